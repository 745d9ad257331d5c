package tokenizer

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/coppice-run/coppice/backend/gguf"
)

// FromGGUF reads the tokenizer of a model file. It keeps nothing of the file.
//
// Errors match gguf.ErrUnsupported for kinds of tokenizers that are not read (the
// message names the kind) and gguf.ErrCorrupt for metadata that contradict each other.
func FromGGUF(f *gguf.File) (*Tokenizer, error) {
	loadClasses()
	v, err := readVocabulary(f)
	if err != nil {
		return nil, err
	}
	t := &Tokenizer{vocab: v, words: newWordCache()}
	switch kind, _ := f.String("tokenizer.ggml.model"); kind {
	case "gpt2":
		err = t.loadBPE(f)
	case "llama":
		err = t.loadSPM(f)
	case "":
		err = corruptf("the file names no tokenizer (tokenizer.ggml.model)")
	default:
		err = unsupportedf("tokenizer model %q; byte-level BPE (\"gpt2\") and SentencePiece (\"llama\") are read", kind)
	}
	if err != nil {
		return nil, err
	}
	if b, ok := f.Bool("tokenizer.ggml.add_bos_token"); ok {
		t.addBOS = b
	}
	t.addBOS = t.addBOS && t.vocab.bos >= 0
	t.specials = newTrie()
	for i, k := range t.vocab.kinds {
		if k&(control|unknown|userDefined) != 0 {
			t.specials.add(t.vocab.texts[i], Token(i), t.vocab.guarded(Token(i)))
		}
	}
	t.specials.link()
	return t, nil
}

func (t *Tokenizer) loadBPE(f *gguf.File) error {
	name, _ := f.String("tokenizer.ggml.pre") // without the key "default" is meant
	p, ok := pres[name]
	if !ok {
		return unsupportedf("pre-tokenizer %q (tokenizer.ggml.pre) is not known, and a guess would give wrong tokens", name)
	}
	merges, ok := f.Strings("tokenizer.ggml.merges")
	if !ok {
		return corruptf("no merges (tokenizer.ggml.merges)")
	}
	t.addBOS = p.addBOS
	t.vocab.bytes = decodeAll(&t.vocab, appendUnmapped)
	b, err := newBPE(&t.vocab, merges, p)
	t.model = b
	return err
}

func (t *Tokenizer) loadSPM(f *gguf.File) error {
	if t.vocab.scores == nil {
		return corruptf("no scores (tokenizer.ggml.scores)")
	}
	t.addBOS, t.addSpacePrefix = true, true
	if b, ok := f.Bool("tokenizer.ggml.add_space_prefix"); ok {
		t.addSpacePrefix = b
	}
	t.vocab.bytes = decodeAll(&t.vocab, appendUnescaped)
	t.model = newSPM(&t.vocab)
	return nil
}

// decodeAll works out what each token stands for; normal tokens go through decode.
func decodeAll(v *vocabulary, decode func(b []byte, text string) []byte) [][]byte {
	size := 0
	for _, text := range v.texts {
		size += len(text)
	}
	arena := make([]byte, 0, size)
	out := make([][]byte, len(v.texts))
	for i, text := range v.texts {
		from := len(arena)
		switch k := v.kinds[i]; {
		case k&(control|unknown|unused) != 0 || k == 0:
			continue
		case k&userDefined != 0:
			arena = append(arena, text...)
		case k&byteValue != 0:
			b, ok := parseByte(text)
			if !ok {
				continue
			}
			arena = append(arena, b)
		default:
			arena = decode(arena, text)
		}
		out[i] = arena[from:len(arena):len(arena)]
	}
	return out
}

// parseByte reads <0xNN>.
func parseByte(text string) (b byte, ok bool) {
	if len(text) != 6 || text[:3] != "<0x" || text[5] != '>' {
		return 0, false
	}
	n, err := strconv.ParseUint(text[3:5], 16, 8)
	return byte(n), err == nil
}

// The byte alphabet of GPT-2 gives each byte a printable character: itself where it
// is printable in Latin-1, else the next free one from U+0100 on.
var (
	byteRune [256]rune
	runeByte = map[rune]byte{}
)

func init() {
	next := rune(256)
	for b := range 256 {
		r := rune(b)
		if !(r >= '!' && r <= '~' || r >= 0xa1 && r <= 0xac || r >= 0xae) {
			r = next
			next++
		}
		byteRune[b] = r
		runeByte[r] = byte(b)
	}
}

// appendUnmapped turns the byte alphabet back into bytes. A character outside the
// alphabet stands for itself.
func appendUnmapped(b []byte, text string) []byte {
	for _, r := range text {
		if x, ok := runeByte[r]; ok {
			b = append(b, x)
		} else {
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}

const spaceMark = "▁" // U+2581, how SentencePiece writes a space

// appendUnescaped turns space marks into spaces.
func appendUnescaped(b []byte, text string) []byte {
	for {
		i := strings.Index(text, spaceMark)
		if i < 0 {
			return append(b, text...)
		}
		b = append(append(b, text[:i]...), ' ')
		text = text[i+len(spaceMark):]
	}
}
