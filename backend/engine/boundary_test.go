package engine

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// vocabulary makes a tokenizer of a kind, with the control tokens of chatML.
func vocabulary(t *testing.T, kind string) *tokenizer.Tokenizer {
	t.Helper()
	var texts []string
	var types []int32
	var scores []float32
	add := func(typ int32, score float32, list ...string) {
		for _, x := range list {
			texts, types, scores = append(texts, x), append(types, typ), append(scores, score)
		}
	}
	key := func(name string, v any) gguf.KV { return gguf.KV{Key: "tokenizer.ggml." + name, Value: v} }
	var meta []gguf.KV
	switch kind {
	case "spm":
		add(2, 0, "<unk>")
		add(3, 0, "<s>", "</s>", "<|im_start|>", "<|im_end|>")
		for b := range 256 {
			add(6, 0, fmt.Sprintf("<0x%02X>", b))
		}
		for i, x := range []string{"▁", "S", "u", "r", "e", "N", "v", "a", "t", "n", ":", "▁S", "Su", "re", "Sure", "▁Sure", "ev", "er", "Never", "▁Never", "nt", "ant", "\n▁", "▁▁"} {
			add(1, -float32(i), x)
		}
		meta = []gguf.KV{key("model", "llama"), key("scores", scores), key("add_space_prefix", true), key("eos_token_id", uint32(2))}
	case "bpe":
		add(3, 0, "<|im_start|>", "<|im_end|>")
		for c := rune('!'); c <= '~'; c++ {
			add(1, 0, string(c))
		}
		add(1, 0, "Ġ", "Ċ")
		merges := []string{"S u", "r e", "Su re", "Ġ Sure", "e v", "N ev", "Nev e", "Neve r", "Ġ Never", ": Ġ", "Ġ Ġ"}
		for _, m := range merges {
			add(1, 0, strings.ReplaceAll(m, " ", ""))
		}
		meta = []gguf.KV{key("model", "gpt2"), key("pre", "gpt-2"), key("merges", merges), key("eos_token_id", uint32(1))}
	}
	meta = append(meta, key("tokens", texts), key("token_type", types))
	var b bytes.Buffer
	if err := gguf.Write(&b, meta, nil); err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestOptionsAreTheTokensOfTheWholeText: whatever the vocabulary and whatever stands
// before an option, nothing or text or a space, it is scored as those tokens that the
// whole text has from a place on that is the same for all options, and of what is
// before that place nothing is in the score.
func TestOptionsAreTheTokensOfTheWholeText(t *testing.T) {
	options := []string{"Sure", "Never", "@~Q}", " Sure", "Surer"}
	for _, kind := range []string{"spm", "bpe"} {
		tok := vocabulary(t, kind)
		e := newFake(t, func(c *Config, m *fakeModel) {
			c.Tokenizer, m.vocab, m.ends = tok, tok.Size(), tok.EndTokens()
		})
		for where, turns := range map[string][]backend.Turn{
			"after the header":              {user("Hi!")},
			"after the header and a space":  {user("Hi!"), {Role: backend.Assistant, Open: true, Parts: []backend.Part{{Text: " "}}}},
			"after text":                    {user("Hi!"), {Role: backend.Assistant, Open: true, Parts: []backend.Part{{Text: "Ant:"}}}},
			"after text and a space":        {user("Hi!"), {Role: backend.Assistant, Open: true, Parts: []backend.Part{{Text: "Ant: "}}}},
			"after text outside of turns":   {raw("Ant:")},
			"after a space outside of them": {raw("Ant: ")},
		} {
			r := mustScore(t, e, &backend.ScoreRequest{Turns: turns, Options: options})
			var before []backend.Token
			for i, o := range r.Options {
				whole := slices.Clone(turns)
				if last := &whole[len(whole)-1]; last.Open || last.Role == backend.Raw {
					last.Parts = []backend.Part{{Text: last.Text() + options[i]}}
				} else {
					whole = append(whole, backend.Turn{Role: backend.Assistant, Open: true, Parts: []backend.Part{{Text: options[i]}}})
				}
				ids, err := e.Tokenize(whole, true)
				if err != nil {
					t.Fatal(err)
				}
				n := len(ids) - len(o.Part.Tokens)
				if n < 0 || !slices.Equal(ids[n:], o.Part.Tokens) || len(o.Logprobs) != len(o.Part.Tokens) {
					t.Errorf("%s, %s: %q is scored as %q with %d numbers, the whole is %q", kind, where, options[i], pieces(tok, o.Part.Tokens), len(o.Logprobs), pieces(tok, ids))
					continue
				}
				if before == nil {
					before = ids[:n]
				}
				if !slices.Equal(before, ids[:n]) {
					t.Errorf("%s, %s: %q begins after %q, the first option after %q", kind, where, options[i], pieces(tok, ids[:n]), pieces(tok, before))
				}
			}
		}
	}
}

func pieces(tok *tokenizer.Tokenizer, ids []backend.Token) (out []string) {
	for _, id := range ids {
		out = append(out, string(tok.Bytes(id)))
	}
	return out
}
