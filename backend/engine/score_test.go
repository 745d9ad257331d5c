package engine

import (
	"context"
	"errors"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// scoreByHand sums the log-probabilities of tokens after prefix.
func scoreByHand(m *fakeModel, prefix, tokens []backend.Token) (out []float64) {
	logits := make([]float32, m.vocab)
	seq := slices.Clone(prefix)
	for _, t := range tokens {
		m.fill(seq, logits)
		sum := 0.0
		for _, l := range logits {
			sum += math.Exp(float64(l))
		}
		out = append(out, float64(logits[t])-math.Log(sum))
		seq = append(seq, t)
	}
	return out
}

func mustScore(t *testing.T, e *Engine, req *backend.ScoreRequest) *backend.ScoreResult {
	t.Helper()
	r, err := e.Score(context.Background(), req)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestScoreEqualsByHand(t *testing.T) {
	open := func(text string) []backend.Turn {
		return []backend.Turn{user("how bad?"), {Role: backend.Assistant, Open: true, Parts: []backend.Part{{Text: text}}}}
	}
	for name, c := range map[string]struct {
		turns   []backend.Turn
		closed  bool
		options []string
		// prefix and tokens of each option, as texts that tokenise apart
		prefix []backend.Turn
		texts  [][]string
		healed bool
	}{
		"after header": {
			[]backend.Turn{user("how bad?")}, false, []string{"high", "low", "lower than"},
			[]backend.Turn{user("how bad?"), {Role: backend.Assistant, Open: true}},
			[][]string{{"high"}, {"low"}, {"low", "er", " ", "t", "h", "a", "n"}}, false,
		},
		"closed": {
			[]backend.Turn{user("how bad?")}, true, []string{"", "high", "low"},
			[]backend.Turn{user("how bad?"), {Role: backend.Assistant, Open: true}},
			[][]string{{"<end>"}, {"high", "<end>"}, {"low", "<end>"}}, false,
		},
		"text before": {
			open("It is:"), false, []string{"high", "xy"}, open("It is:"), [][]string{{"high"}, {"x", "y"}}, false,
		},
		"healed": {
			open("x "), false, []string{"high", "low"}, open("x"), [][]string{{" high"}, {" low"}}, true,
		},
		"healed by one of them": {
			open("x "), false, []string{"high", "?"}, open("x"), [][]string{{" high"}, {" ", "?"}}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newFake(t, nil)
			prefix, err := e.Tokenize(c.prefix, true)
			if err != nil {
				t.Fatal(err)
			}
			req := &backend.ScoreRequest{Turns: c.turns, Options: c.options, Closed: c.closed}
			cold := mustScore(t, e, req)
			for i, o := range cold.Options {
				var want []backend.Token
				for _, s := range c.texts[i] {
					if s == "<end>" {
						want = append(want, imEnd)
					} else {
						want = append(want, encodeText(e.tok, s)...)
					}
				}
				lps := scoreByHand(e.fake(), prefix, want)
				if c.closed {
					want = want[:len(want)-1]
				}
				if !slices.Equal(o.Part.Tokens, want) || o.Part.Text != c.options[i] {
					t.Errorf("option %q: part %+v, want ids %v", c.options[i], o.Part, want)
				}
				sum := 0.0
				for j := range lps {
					if j >= len(o.Logprobs) || math.Abs(lps[j]-o.Logprobs[j]) > 1e-6 {
						t.Fatalf("option %q: log-probabilities %v, want %v", c.options[i], o.Logprobs, lps)
					}
					sum += o.Logprobs[j]
				}
				if sum != o.Sum || len(lps) != len(o.Logprobs) {
					t.Errorf("option %q: sum %v of %v", c.options[i], o.Sum, o.Logprobs)
				}
				if (o.Part.Model == "") != (c.healed || len(want) == 0) {
					t.Errorf("option %q: model %q", c.options[i], o.Part.Model)
				}
				// What was scored is what the program gets if it goes on with it.
				turns := slices.Clone(c.prefix)
				last := &turns[len(turns)-1]
				if !c.healed {
					last.Parts = append(slices.Clone(last.Parts), o.Part)
				} else {
					last.Parts = []backend.Part{c.turns[len(c.turns)-1].Parts[0], o.Part}
				}
				if ids, _ := e.Tokenize(turns, true); !slices.Equal(ids, append(slices.Clone(prefix), want...)) {
					t.Errorf("option %q: going on gives %v, want %v and %v", c.options[i], ids, prefix, want)
				}
			}
			warm := mustScore(t, e, req)
			if !reflect.DeepEqual(warm.Options, cold.Options) {
				t.Errorf("warm %+v, cold %+v", warm.Options, cold.Options)
			}
			if warm.Usage.CachedTokens != warm.Usage.PromptTokens-1 || cold.Usage.CachedTokens != 0 {
				t.Errorf("warm %+v, cold %+v", warm.Usage, cold.Usage)
			}
			computed := len(prefix)
			without := 0
			for _, o := range cold.Options {
				computed += len(o.Logprobs) - 1
				without += len(prefix) + len(o.Logprobs) - 1
			}
			if u := cold.Usage; u.ComputedTokens != computed || u.Without != (backend.Cost{ComputedTokens: without, ForwardPasses: len(c.options)}) || u.PromptTokens != len(prefix) {
				t.Errorf("usage %+v, want %d computed, %d without", u, computed, without)
			}
		})
	}
}

func TestScoreOptionsAlone(t *testing.T) {
	e := newFake(t, nil)
	options := []string{"high", "higher", "low", "lower than"}
	turns := []backend.Turn{user(longText(200))}
	all := mustScore(t, e, &backend.ScoreRequest{Turns: turns, Options: options, Closed: true})
	for i, o := range options {
		alone := mustScore(t, newFake(t, nil), &backend.ScoreRequest{Turns: turns, Options: []string{o}, Closed: true})
		if !reflect.DeepEqual(alone.Options[0], all.Options[i]) {
			t.Errorf("%q alone %+v, among others %+v", o, alone.Options[0], all.Options[i])
		}
	}
}

func TestScoreThenGenerateFindsTheOption(t *testing.T) {
	e := newFake(t, nil)
	turns := []backend.Turn{user("how bad?")}
	r := mustScore(t, e, &backend.ScoreRequest{Turns: turns, Options: []string{"low", "lower than the"}})
	turns = append(turns, backend.Turn{Role: backend.Assistant, Open: true, Parts: []backend.Part{r.Options[1].Part}})
	ids, _ := e.Tokenize(turns, true)
	g := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 1})
	if g.Usage.CachedTokens != len(ids)-1 {
		t.Errorf("cached %d of %d", g.Usage.CachedTokens, len(ids))
	}
}

func TestScoreInvalid(t *testing.T) {
	e := newFake(t, nil)
	for name, req := range map[string]*backend.ScoreRequest{
		"none":  {Turns: []backend.Turn{user("x")}},
		"twice": {Turns: []backend.Turn{user("x")}, Options: []string{"a", "b", "a"}},
		"empty": {Turns: []backend.Turn{user("x")}, Options: []string{"a", ""}},
	} {
		if _, err := e.Score(context.Background(), req); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := e.Score(context.Background(), &backend.ScoreRequest{ID: "n", Turns: []backend.Turn{raw(longText(5000))}, Options: []string{"a"}})
	if !errors.Is(err, backend.ErrContextLength) {
		t.Error(err)
	}
}

// TestLongOptionsShareTheirBeginning: of three options with 40 tokens in
// common, those are computed once, and the scores are as for each alone.
func TestLongOptionsShareTheirBeginning(t *testing.T) {
	e := newFake(t, nil)
	common := longText(60)
	options := []string{common + "x and", "other", common + "y and more", common, common + "y and less", "o"}
	turns := []backend.Turn{user("which?")}
	r := mustScore(t, e, &backend.ScoreRequest{Turns: turns, Options: options, Closed: true})
	apart := 0
	for i, o := range options {
		alone := mustScore(t, newFake(t, nil), &backend.ScoreRequest{Turns: turns, Options: []string{o}, Closed: true})
		if !reflect.DeepEqual(alone.Options[0], r.Options[i]) {
			t.Errorf("%q alone %+v, among others %+v", o, alone.Options[0], r.Options[i])
		}
		apart += alone.Usage.ComputedTokens - alone.Usage.PromptTokens
	}
	n := len(encodeText(e.tok, common))
	if got, want := r.Usage.ComputedTokens-r.Usage.PromptTokens, apart-3*n; got > want+3 {
		t.Errorf("%d option tokens computed, want about %d; apart they are %d", got, want, apart)
	}
	if got := passes(r.Usage); got != 3 {
		t.Errorf("%d passes, want the prompt's, the beginning's and the ends'", got)
	}
}
