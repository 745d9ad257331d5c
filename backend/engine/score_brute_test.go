package engine

import (
	"bytes"
	"math"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/sapling"
)

// brute is the built-in model without an engine: one forward pass for each question.
type brute struct {
	t     *testing.T
	e     *Engine // for its tokenizer
	m     *model.Model
	known map[string][]float64
}

// next is the log-probability of each token after ids.
func (b *brute) next(ids []backend.Token) []float64 {
	b.t.Helper()
	key := ""
	for _, id := range ids {
		key += string(rune(id))
	}
	if lps, ok := b.known[key]; ok {
		return lps
	}
	pages := (len(ids) + model.PageSize - 1) / model.PageSize
	kv, err := b.m.NewKV(pages)
	if err != nil {
		b.t.Fatal(err)
	}
	defer kv.Close()
	row := model.Row{Outputs: []int{len(ids) - 1}}
	for i := range pages {
		row.Pages = append(row.Pages, int32(i))
	}
	row.Tokens = append(row.Tokens, ids...)
	logits := make([]float32, b.m.Config().Vocab)
	if err := b.m.Forward(kv, &model.Batch{Rows: []model.Row{row}}, [][]float32{logits}); err != nil {
		b.t.Fatal(err)
	}
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l))
	}
	lps := make([]float64, len(logits))
	for i, l := range logits {
		lps[i] = float64(l) - math.Log(sum)
	}
	b.known[key] = lps
	return lps
}

// score is the log-probability of each of tokens behind prefix.
func (b *brute) score(prefix, tokens []backend.Token) (lps []float64) {
	seq := append([]backend.Token{}, prefix...)
	for _, id := range tokens {
		lps = append(lps, b.next(seq)[id])
		seq = append(seq, id)
	}
	return lps
}

// spell is the probability of text behind prefix, over all ways to write it.
func (b *brute) spell(prefix []backend.Token, text []byte) float64 {
	if len(text) == 0 {
		return 1
	}
	p := 0.0
	for id := range backend.Token(b.e.tok.Size()) {
		piece := b.e.tok.Bytes(id)
		if len(piece) == 0 || b.e.tok.IsControl(id) || !bytes.HasPrefix(text, piece) {
			continue
		}
		p += math.Exp(b.next(prefix)[id]) * b.spell(append(append([]backend.Token{}, prefix...), id), text[len(piece):])
	}
	return p
}

// TestMethodsEqualBruteForceBehindAnyBoundary: each method of select on the built-in
// model, where the prompt ends between tokens, in the middle of one and in the middle
// of one for some options only. All options are scored from the same token on, and the
// means are of all tokens from there.
func TestMethodsEqualBruteForceBehindAnyBoundary(t *testing.T) {
	f, err := gguf.Parse(sapling.GGUF())
	if err != nil {
		t.Fatal(err)
	}
	e, err := Load(f, Config{Pages: 256, Check: true}, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	m, err := model.Load(f, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	b := &brute{t: t, e: e, m: m, known: map[string][]float64{}}
	for name, c := range map[string]struct {
		prompt  string
		options []string
		back    bool // the boundary is before the prompt's end
	}{
		"between tokens": {"The pod was", []string{" killed", " kil", " up"}, false},
		"between signs":  {`{"pod":`, []string{`"a"`, `"web"`, `7`}, true},
		"in a word":      {"The pod was res", []string{"tarted", "t", "ult", "?"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			prompt := func(text string) []backend.Token {
				ids, err := e.Tokenize([]backend.Turn{raw(text)}, true)
				if err != nil {
					t.Fatal(err)
				}
				return ids
			}
			whole := prompt(c.prompt)
			from := len(whole)
			for _, o := range c.options {
				from = min(from, commonPrefix(whole, prompt(c.prompt+o)))
			}
			if (from < len(whole)) != c.back {
				t.Fatalf("%d of %d tokens are common: not the case that is meant", from, len(whole))
			}
			var healed []byte
			for _, id := range whole[from:] {
				healed = append(healed, e.tok.Bytes(id)...)
			}
			prefix := whole[:from]
			var want []backend.OptionScore
			for _, o := range c.options {
				ids := prompt(c.prompt + o)[from:]
				s := backend.OptionScore{Logprobs: b.score(prefix, ids), Unconditional: append([]float64{0}, b.score(ids[:1], ids[1:])...)}
				want = append(want, s)
			}
			for _, method := range []backend.ScoreMethod{backend.Likelihood, backend.TokenLengthNormalized, backend.GreedyTokenSelection, backend.UnconditionalLikelihoodNormalized, backend.Exact} {
				got := mustScore(t, e, &backend.ScoreRequest{Turns: []backend.Turn{raw(c.prompt)}, Options: c.options, Method: method})
				rank := method.Rank(got.Options)
				best := 0
				var values []float64
				for i, w := range want {
					var v float64
					switch method {
					case backend.Likelihood:
						v = sum(w.Logprobs)
					case backend.TokenLengthNormalized:
						v = sum(w.Logprobs) / float64(len(w.Logprobs))
					case backend.GreedyTokenSelection:
						v = w.Logprobs[0]
					case backend.UnconditionalLikelihoodNormalized:
						v = (sum(w.Logprobs) - sum(w.Unconditional)) / float64(len(w.Logprobs))
					case backend.Exact:
						v = math.Log(b.spell(prefix, append(append([]byte{}, healed...), c.options[i]...)))
					}
					values = append(values, v)
					if math.Abs(v-rank.Scores[i]) > 1e-4 {
						t.Errorf("%q of %q by %q: %v, by hand %v", c.options[i], c.prompt, method, rank.Scores[i], v)
					}
					if v > values[best] {
						best = i
					}
				}
				if method != backend.GreedyTokenSelection && rank.Best != best {
					t.Errorf("%q by %q takes %q, by hand %q", c.prompt, method, c.options[rank.Best], c.options[best])
				}
			}
		})
	}
}
