package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/backend/gguf"
)

// kind is a set of marks of a token.
type kind uint8

const (
	normal kind = 1 << iota
	unknown
	control
	userDefined
	unused
	byteValue
	rstrip // white space after it is dropped
)

// kindOf maps tokenizer.ggml.token_type.
var kindOf = map[int64]kind{1: normal, 2: unknown, 3: control, 4: userDefined, 5: unused, 6: byteValue}

// vocabulary is what the file says about tokens, special ids worked out.
type vocabulary struct {
	texts  []string // as spelled in the file
	kinds  []kind
	scores []float32 // nil without scores
	byText map[string]Token
	bytes  [][]byte // what a token stands for; nil for control tokens

	bos, eos, unk Token // -1 when there is none
	ends          []Token

	bad error // first error of reading
}

// corruptf returns an error that matches gguf.ErrCorrupt.
func corruptf(format string, args ...any) error {
	return fmt.Errorf("tokenizer: %w: %s; download or convert it again", gguf.ErrCorrupt, fmt.Sprintf(format, args...))
}

// unsupportedf returns an error that matches gguf.ErrUnsupported.
func unsupportedf(format string, args ...any) error {
	return fmt.Errorf("tokenizer: %w: %s", gguf.ErrUnsupported, fmt.Sprintf(format, args...))
}

func readVocabulary(f *gguf.File) (v vocabulary, err error) {
	var ok bool
	if v.texts, ok = f.Strings("tokenizer.ggml.tokens"); !ok || len(v.texts) == 0 {
		return v, corruptf("no vocabulary (tokenizer.ggml.tokens)")
	}
	v.byText = make(map[string]Token, len(v.texts))
	for i, text := range v.texts {
		if text == "" {
			text = fmt.Sprintf("[EMPTY_%d]", i)
			v.texts[i] = text
		}
		if old, twice := v.byText[text]; twice {
			return v, corruptf("tokens %d and %d have the same text %q", old, i, text)
		}
		v.byText[text] = Token(i)
	}
	v.kinds = make([]kind, len(v.texts))
	types, ok := f.Ints("tokenizer.ggml.token_type")
	if ok && len(types) < len(v.texts) {
		return v, corruptf("%d token types for %d tokens", len(types), len(v.texts))
	}
	for i := range v.kinds {
		v.kinds[i] = normal
		if ok {
			v.kinds[i] = kindOf[types[i]]
		}
	}
	if v.scores, ok = f.Floats("tokenizer.ggml.scores"); ok && len(v.scores) < len(v.texts) {
		return v, corruptf("%d scores for %d tokens", len(v.scores), len(v.texts))
	}
	v.readSpecials(f)
	v.patchKinds(f)
	return v, v.bad
}

// guarded tells whether a token may come from special text only: control tokens, the
// unknown token, and those of the form <|name|> that a file calls user-defined. The
// last are matched in all text by other runtimes, but they mark turns and channels.
func (v *vocabulary) guarded(id Token) bool {
	k, text := v.kinds[id], v.texts[id]
	return k&(control|unknown) != 0 ||
		k&userDefined != 0 && len(text) > 4 && strings.HasPrefix(text, "<|") && strings.HasSuffix(text, "|>")
}

// id reads a token number from the metadata. All ones, and what is below zero,
// is how files say that there is none; a number that is too large is a mistake
// that would make generations run on, and sticks in v.bad.
func (v *vocabulary) id(f *gguf.File, name string, fallback Token) Token {
	if int(fallback) >= len(v.texts) {
		fallback = -1
	}
	key := "tokenizer.ggml." + name + "_token_id"
	n, ok := f.Int(key)
	switch {
	case !f.Has(key) || ok && (n < 0 || n == math.MaxUint32):
		return fallback
	case !ok:
		v.fail(corruptf("%s is not a whole number", key))
		return fallback
	case n >= int64(len(v.texts)):
		v.fail(corruptf("%s is %d, and the vocabulary ends at %d", key, n, len(v.texts)-1))
		return fallback
	}
	return Token(n)
}

// fail keeps the first error.
func (v *vocabulary) fail(err error) {
	if v.bad == nil {
		v.bad = err
	}
}

// readSpecials finds the tokens that play a part by their number or by their text,
// marks them as control tokens and collects the end tokens.
func (v *vocabulary) readSpecials(f *gguf.File) {
	v.bos, v.eos, v.unk = -1, -1, -1
	if m, _ := f.String("tokenizer.ggml.model"); m == "llama" {
		v.bos, v.eos, v.unk = 1, 2, 0 // what SentencePiece files mean when they name none
	}
	v.bos = v.id(f, "bos", v.bos)
	v.eos = v.id(f, "eos", v.eos)
	v.unk = v.id(f, "unknown", v.unk)
	ends := map[Token]bool{}
	mark := func(id Token, end bool) {
		if id >= 0 {
			ends[id] = ends[id] || end
		}
	}
	mark(v.eos, true)
	mark(v.id(f, "eot", -1), true)
	mark(v.id(f, "eom", -1), true)
	for _, part := range middleParts {
		id := v.id(f, part.key, -1)
		for _, text := range part.texts {
			if id >= 0 {
				break
			}
			if t, ok := v.byText[text]; ok {
				id = t
				v.kinds[t] |= control
			}
		}
		mark(id, part.ends)
	}
	for _, text := range endTexts {
		if id, ok := v.byText[text]; ok {
			mark(id, true)
			v.kinds[id] |= control
		}
	}
	v.exempt(ends)
	for id, end := range ends {
		if end {
			v.ends = append(v.ends, id)
		}
	}
	slices.Sort(v.ends)
}

// endTexts end a generation wherever they are in a vocabulary, as in llama.cpp.
var endTexts = []string{
	"<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
	"<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
	"<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
	"<｜end▁of▁sentence｜>", "[e~[",
}

// middleParts are the tokens of fill-in-the-middle prompts: by key, else by text.
var middleParts = []struct {
	key   string
	ends  bool
	texts []string
}{
	{"fim_pre", false, []string{"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>", "<|code_prefix|>", "<|prefix|>"}},
	{"fim_suf", false, []string{"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>", "<|code_suffix|>", "<|suffix|>"}},
	{"fim_mid", false, []string{"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>", "<|code_middle|>", "<|middle|>"}},
	{"fim_pad", true, []string{"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
	{"fim_rep", true, []string{"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
	{"fim_sep", true, []string{"<|file_sep|>"}},
}

// exempt takes back what the texts say about two families of models: where <|end|>
// separates channels and where </s> is an ordinary token.
func (v *vocabulary) exempt(ends map[Token]bool) {
	ending := func(texts ...string) bool {
		for _, text := range texts {
			if id, ok := v.byText[text]; ok && ends[id] {
				return true
			}
		}
		return false
	}
	if ending("<|call|>", "<|calls|>") && ending("<|return|>", "<|flush|>") && ending("<|end|>") {
		id := v.byText["<|end|>"]
		delete(ends, id)
		v.kinds[id] = userDefined
	}
	if ending("<|tool_response>", "<|plamo:eos|>") && ending("</s>") {
		id := v.byText["</s>"]
		delete(ends, id)
		v.kinds[id] = normal
	}
	for _, text := range []string{"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"} {
		if id, ok := v.byText[text]; ok {
			v.kinds[id] = userDefined
		}
	}
}

// patchKinds adds what no file says: Phi-3 drops white space after special tokens.
func (v *vocabulary) patchKinds(f *gguf.File) {
	name := strings.ToLower(f.Name())
	if !strings.Contains(name, "phi-3") && !strings.Contains(name, "phi3") {
		return
	}
	for i := range v.kinds {
		switch v.texts[i] {
		case "<unk>", "<s>", "<|endoftext|>":
		default:
			if v.kinds[i]&(control|userDefined|unknown) != 0 {
				v.kinds[i] |= rstrip
			}
		}
	}
}
