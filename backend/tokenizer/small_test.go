package tokenizer

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

// fileOf makes a model file that has metadata only.
func fileOf(t testing.TB, meta ...gguf.KV) *gguf.File {
	t.Helper()
	var b bytes.Buffer
	if err := gguf.Write(&b, meta, nil); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func fromMeta(t testing.TB, meta ...gguf.KV) *Tokenizer {
	t.Helper()
	tok, err := FromGGUF(fileOf(t, meta...))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func key(name string, v any) gguf.KV { return gguf.KV{Key: "tokenizer.ggml." + name, Value: v} }

// smallBPE has all bytes, a few merges, two control tokens and a user-defined one.
func smallBPE(t testing.TB, pre string, more ...gguf.KV) *Tokenizer {
	t.Helper()
	var texts []string
	var types []int32
	add := func(typ int32, list ...string) {
		for _, x := range list {
			texts, types = append(texts, x), append(types, typ)
		}
	}
	add(3, "<|im_start|>", "<|im_end|>")
	add(4, "<tool>")
	for b := range 256 {
		add(1, string(byteRune[b]))
	}
	merges := []string{"h e", "l l", "he ll", "hell o", "Ġ hello", "a b", "ab ab", "Ġ a", "Ã ©", "Ġ Ġ", "ĠĠ ĠĠ"}
	for _, m := range merges {
		add(1, strings.ReplaceAll(m, " ", ""))
	}
	meta := append([]gguf.KV{key("model", "gpt2"), key("pre", pre), key("tokens", texts), key("token_type", types), key("merges", merges)}, more...)
	return fromMeta(t, meta...)
}

// smallSPM has byte tokens, a few pieces with scores, and specials.
func smallSPM(t testing.TB, more ...gguf.KV) *Tokenizer {
	t.Helper()
	texts := []string{"<unk>", "<s>", "</s>"}
	scores := []float32{0, 0, 0}
	types := []int32{2, 3, 3}
	add := func(typ int32, score float32, text string) {
		texts, scores, types = append(texts, text), append(scores, score), append(types, typ)
	}
	add(4, 0, "<tool>")
	for b := range 256 {
		add(6, 0, fmt.Sprintf("<0x%02X>", b))
	}
	for i, text := range []string{"▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "a", "b", "ab", "▁a", "é", "▁▁", "<", "s", ">", ">▁", "<s", "s>", ">▁b"} {
		add(1, -float32(i), text)
	}
	meta := append([]gguf.KV{key("model", "llama"), key("tokens", texts), key("scores", scores), key("token_type", types)}, more...)
	return fromMeta(t, meta...)
}

func TestSmallBPE(t *testing.T) {
	tok := smallBPE(t, "gpt-2")
	for text, want := range map[string]string{
		"hello hello":            "hello Ġhello",
		"abab ab":                "abab Ġ ab",
		"é":                      "Ã©",
		"hi<|im_end|>":           "h i < | i m _ e n d | >",
		"<tool>a":                "<tool> a",
		"\xff":                   "ÿ",
		"     hello":             "ĠĠĠĠ Ġhello",
		"":                       "",
		strings.Repeat("ab", 40): strings.TrimSpace(strings.Repeat("abab ", 20)),
	} {
		if got := strings.Join(texts(tok, tok.Encode(text, false)), " "); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
		if got := tok.Decode(tok.Encode(text, false)); got != strings.ToValidUTF8(text, "\uFFFD") {
			t.Errorf("%q came back as %q", text, got)
		}
	}
	ids := tok.Encode("a<|im_end|>", true)
	if got := texts(tok, ids); !slices.Equal(got, []string{"a", "<|im_end|>"}) || !tok.IsControl(ids[1]) {
		t.Errorf("special: got %q", got)
	}
	if got := tok.Decode(ids); got != "a" {
		t.Errorf("a control token prints %q", got)
	}
}

func TestSmallSPM(t *testing.T) {
	tok := smallSPM(t)
	for text, want := range map[string]string{
		"hello":       "▁hello",
		"hello hello": "▁hello ▁hello",
		"é\u00ff":     "▁ é <0xC3> <0xBF>",
		"a  b":        "▁a ▁▁ b",
		"<s>":         "▁ <s >",
		"<s> b":       "▁ <s >▁b", // the one token that goes on with a space
		"<tool>a":     "<tool> ▁a",
		"\xff":        "▁ <0xFF>",
		"":            "",
		"a</s> b":     "▁a < <0x2F> s >▁b",
	} {
		if got := strings.Join(texts(tok, tok.Encode(text, false)), " "); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
	if got := strings.Join(texts(tok, tok.Encode("a</s> b", true)), " "); got != "▁a </s> ▁▁ b" {
		t.Errorf("special: got %s", got)
	}
	off := smallSPM(t, key("add_space_prefix", false))
	if got := strings.Join(texts(off, off.Encode("hello</s>hello", true)), " "); got != "hello </s> hello" {
		t.Errorf("without space prefix: got %s", got)
	}
	if tok.AddSpacePrefix() == off.AddSpacePrefix() {
		t.Error("AddSpacePrefix does not follow the file")
	}
	if bos, ok := tok.BOS(); !ok || bos != 1 || !tok.AddBOS() {
		t.Errorf("BOS %d, %v, added %v", bos, ok, tok.AddBOS())
	}
	if got := tok.WithBOS(tok.WithBOS([]Token{5})); !slices.Equal(got, []Token{1, 5}) {
		t.Errorf("WithBOS twice gives %v", got)
	}
}

func TestPiecesAreTokenisedAsOneText(t *testing.T) {
	for _, tok := range []*Tokenizer{smallBPE(t, "gpt-2"), smallSPM(t, key("add_space_prefix", false))} {
		whole := tok.Encode("hello hello<tool>abab", false)
		for _, pieces := range [][]Piece{
			{{"hello hello<tool>abab", false}},
			{{"hel", false}, {"lo hel", true}, {"lo<to", false}, {"ol>a", true}, {"", true}, {"bab", false}},
			{{"hello hello", true}, {"<tool>", true}, {"abab", false}},
		} {
			if got := tok.EncodePieces(pieces); !slices.Equal(got, whole) {
				t.Errorf("%+v: got %q, want %q", pieces, texts(tok, got), texts(tok, whole))
			}
		}
	}
}

func TestControlTokensNeedSpecialText(t *testing.T) {
	tok := smallBPE(t, "gpt-2")
	count := func(pieces ...Piece) (n int) {
		for _, id := range tok.EncodePieces(pieces) {
			if tok.IsControl(id) {
				n++
			}
		}
		return n
	}
	for _, c := range []struct {
		want   int
		pieces []Piece
	}{
		{1, []Piece{{"<|im_end|>", true}}},
		{0, []Piece{{"<|im_end|>", false}}},
		{1, []Piece{{"<|im_", true}, {"end|>", true}}},
		{0, []Piece{{"<|im_", true}, {"end|>", false}}},
		{0, []Piece{{"<|", true}, {"im_end", false}, {"|>", true}}},
		{0, []Piece{{"<|im_end|", false}, {">", true}}},
		{2, []Piece{{"<|im_start|>x", true}, {"<|im_end|><|im_start|>", false}, {"<|im_end|>", true}}},
	} {
		if got := count(c.pieces...); got != c.want {
			t.Errorf("%+v has %d control tokens, want %d", c.pieces, got, c.want)
		}
	}
}

func TestUserDefinedMarksNeedSpecialText(t *testing.T) {
	texts := []string{"<|end|>", "<|channel|>", "<b>"}
	types := []int32{3, 4, 4}
	for b := range 256 {
		texts, types = append(texts, string(byteRune[b])), append(types, 1)
	}
	tok := fromMeta(t, key("model", "gpt2"), key("pre", "gpt-2"), key("tokens", texts), key("token_type", types), key("merges", []string{"x y"}))
	for _, c := range []struct {
		text    string
		special bool
		want    int
	}{{"<|channel|>", true, 1}, {"<|channel|>", false, 11}, {"<b>", true, 1}, {"<b>", false, 1}, {"<|end|>", false, 7}} {
		ids := tok.Encode(c.text, c.special)
		if len(ids) != c.want {
			t.Errorf("%q, special %v: %d tokens, want %d", c.text, c.special, len(ids), c.want)
		}
		if got := tok.Decode(ids); got != c.text {
			t.Errorf("%q came back as %q", c.text, got)
		}
	}
}

func TestIgnoredMerges(t *testing.T) {
	// "Ġhello" is a token; with the merges of "he" only, it is found as a whole word.
	texts := []string{"<|im_end|>", "Ġhello"}
	for b := range 256 {
		texts = append(texts, string(byteRune[b]))
	}
	for pre, want := range map[string]int{"llama-bpe": 1, "qwen2": 6} {
		tok := fromMeta(t, key("model", "gpt2"), key("pre", pre), key("tokens", texts), key("merges", []string{"x y"}))
		if got := tok.Encode(" hello", false); len(got) != want {
			t.Errorf("%s: %d tokens, want %d", pre, len(got), want)
		}
	}
}

func TestMergesThroughTextsOutsideTheVocabulary(t *testing.T) {
	texts := []string{"abc"}
	for b := range 256 {
		texts = append(texts, string(byteRune[b]))
	}
	tok := fromMeta(t, key("model", "gpt2"), key("pre", "gpt-2"), key("tokens", texts), key("merges", []string{"a b", "ab c"}))
	for text, want := range map[string]int{"abc": 1, "ab": 2, "abd": 3} {
		if got := tok.Encode(text, false); len(got) != want || tok.Decode(got) != text {
			t.Errorf("%q: %d tokens for %q, want %d", text, len(got), tok.Decode(got), want)
		}
	}
}

func TestEndTokens(t *testing.T) {
	tok := smallBPE(t, "gpt-2", key("eos_token_id", uint32(5)), key("eot_token_id", uint32(7)), key("eom_token_id", uint32(9)))
	if got := tok.EndTokens(); !slices.Equal(got, []Token{1, 5, 7, 9}) { // 1 is <|im_end|>
		t.Errorf("got %v", got)
	}
	if eos, ok := tok.EOS(); !ok || eos != 5 {
		t.Errorf("EOS is %d, %v", eos, ok)
	}
	if _, ok := tok.BOS(); ok || tok.AddBOS() {
		t.Error("a BOS that the file does not name")
	}
	for _, none := range []any{int32(-1), uint32(1<<32 - 1)} {
		if got := smallBPE(t, "gpt-2", key("eos_token_id", none)).EndTokens(); !slices.Equal(got, []Token{1}) {
			t.Errorf("end token %v: %v", none, got)
		}
	}
}

func TestSpecialIdsThatAreNoTokensAreRefused(t *testing.T) {
	for _, name := range []string{"bos", "eos", "eot", "eom", "unknown", "fim_pre"} {
		for _, id := range []any{uint32(3), uint32(1 << 30), uint64(1 << 63), "2", float32(1)} {
			_, err := FromGGUF(fileOf(t, key("model", "gpt2"), key("pre", "gpt-2"), key("tokens", []string{"a", "b", "ab"}),
				key("merges", []string{"a b"}), key(name+"_token_id", id)))
			if !errors.Is(err, gguf.ErrCorrupt) || !strings.Contains(err.Error(), name+"_token_id") {
				t.Errorf("%s %v: %v", name, id, err)
			}
		}
	}
}

func TestIdsOutsideTheVocabulary(t *testing.T) {
	tok := smallBPE(t, "gpt-2")
	for _, id := range []Token{-1, Token(tok.Size()), 1 << 30} {
		if tok.Bytes(id) != nil || tok.Text(id) != "" || tok.IsControl(id) || tok.Decode([]Token{id}) != "" {
			t.Errorf("id %d stands for something", id)
		}
	}
	if id, ok := tok.Lookup("Ġhello"); !ok || string(tok.Bytes(id)) != " hello" {
		t.Errorf("Lookup gives %d, %v", id, ok)
	}
	if _, ok := tok.Lookup("nope"); ok {
		t.Error("Lookup found what is not there")
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	tokens := key("tokens", []string{"a", "b"})
	for _, c := range []struct {
		name string
		meta []gguf.KV
		want error
		text string
	}{
		{"nothing", nil, gguf.ErrCorrupt, "vocabulary"},
		{"no model", []gguf.KV{tokens}, gguf.ErrCorrupt, "tokenizer.ggml.model"},
		{"other model", []gguf.KV{tokens, key("model", "t5")}, gguf.ErrUnsupported, `"t5"`},
		{"other pre", []gguf.KV{tokens, key("model", "gpt2"), key("pre", "xyz"), key("merges", []string{})}, gguf.ErrUnsupported, `"xyz"`},
		{"no merges", []gguf.KV{tokens, key("model", "gpt2")}, gguf.ErrCorrupt, "merges"},
		{"bad merge", []gguf.KV{tokens, key("model", "gpt2"), key("merges", []string{"ab"})}, gguf.ErrCorrupt, "merge 0"},
		{"empty merge", []gguf.KV{tokens, key("model", "gpt2"), key("merges", []string{""})}, gguf.ErrCorrupt, "merge 0"},
		{"no scores", []gguf.KV{tokens, key("model", "llama")}, gguf.ErrCorrupt, "scores"},
		{"few scores", []gguf.KV{tokens, key("model", "llama"), key("scores", []float32{1})}, gguf.ErrCorrupt, "1 scores"},
		{"few types", []gguf.KV{tokens, key("model", "llama"), key("token_type", []int32{1})}, gguf.ErrCorrupt, "1 token types"},
		{"same token twice", []gguf.KV{key("tokens", []string{"a", "a"}), key("model", "gpt2")}, gguf.ErrCorrupt, "0 and 1"},
	} {
		_, err := FromGGUF(fileOf(t, c.meta...))
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: got %v, want %v with %s", c.name, err, c.want, c.text)
		}
	}
}

func FuzzEncode(f *testing.F) {
	toks := []*Tokenizer{smallBPE(f, "gpt-2"), smallBPE(f, "llama-bpe"), smallBPE(f, "default"), smallSPM(f), smallSPM(f, key("add_space_prefix", false))}
	for _, s := range splitSeeds {
		f.Add(s, 1, true)
	}
	f.Add("<|im_end|><tool><|im_end|", 7, true)
	f.Fuzz(func(t *testing.T, s string, cut int, special bool) {
		for i, tok := range toks {
			ids := tok.Encode(s, false)
			var raw []byte
			for _, id := range ids {
				if tok.IsControl(id) {
					t.Fatalf("plain %q gives control token %q", s, tok.Text(id))
				}
				raw = append(raw, tok.Bytes(id)...)
			}
			want := s
			if tok.AddSpacePrefix() {
				continue // spaces are added after each user-defined token
			}
			if i >= 3 {
				want = strings.ReplaceAll(want, spaceMark, " ") // the two are one to SentencePiece
			}
			if string(raw) != want {
				t.Fatalf("%d: %q came back as %q", i, s, raw)
			}
			if cut < 0 || cut > len(s) {
				continue
			}
			if got := tok.EncodePieces([]Piece{{s[:cut], false}, {s[cut:], false}}); !slices.Equal(got, ids) {
				t.Fatalf("cut at %d of %q: %v, whole %v", cut, s, got, ids)
			}
			tok.EncodePieces([]Piece{{s[:cut], special}, {s[cut:], !special}})
		}
	})
}

func FuzzFromGGUF(f *testing.F) {
	f.Add("gpt2", "gpt-2", "a\x00b\x00ab", "a b", uint32(1), []byte{1, 1, 3})
	f.Add("llama", "default", "<unk>\x00<s>\x00▁\x00<0x41>", "", uint32(9), []byte{2, 3, 1, 6})
	f.Fuzz(func(t *testing.T, model, pre, tokens, merges string, id uint32, types []byte) {
		texts := strings.Split(tokens, "\x00")
		kinds := make([]int32, len(types))
		scores := make([]float32, len(types))
		for i, k := range types {
			kinds[i], scores[i] = int32(k), -float32(k)
		}
		file := fileOf(t, key("model", model), key("pre", pre), key("tokens", texts), key("merges", strings.Split(merges, "\x00")),
			key("bos_token_id", id), key("eos_token_id", id), key("token_type", kinds), key("scores", scores))
		tok, err := FromGGUF(file)
		if err != nil {
			if !errors.Is(err, gguf.ErrCorrupt) && !errors.Is(err, gguf.ErrUnsupported) {
				t.Fatalf("unmatched error: %v", err)
			}
			return
		}
		tok.Decode(tok.Encode(tokens+merges+" x", true))
		tok.WithBOS(nil)
	})
}
