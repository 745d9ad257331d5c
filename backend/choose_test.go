package backend

import (
	"errors"
	"math"
	"testing"
)

// TestRank: the same options, of which each method takes another one, with what
// the formulas give by hand.
func TestRank(t *testing.T) {
	options := []OptionScore{
		{Logprobs: []float64{-1, -1}, Unconditional: []float64{0, -0.5}, Sum: -2},
		{Logprobs: []float64{-1.5}, Unconditional: []float64{0}, Sum: -1.5},
		{Logprobs: []float64{-1, -2, -0.1, -0.1}, Unconditional: []float64{0, -6, -1, -1}, Sum: -3.2},
		{Logprobs: []float64{-0.9, -3}, Unconditional: []float64{0, -1}, Sum: -3.9},
	}
	for _, c := range []struct {
		method ScoreMethod
		best   int
		scores []float64
	}{
		{Likelihood, 1, []float64{-2, -1.5, -3.2, -3.9}},
		{Exact, 1, []float64{-2, -1.5, -3.2, -3.9}},
		{TokenLengthNormalized, 2, []float64{-1, -1.5, -0.8, -1.95}},
		{UnconditionalLikelihoodNormalized, 2, []float64{-0.75, -1.5, 1.2, -1.45}},
		{GreedyTokenSelection, 3, []float64{-1, -1.5, -1, -0.9}},
	} {
		r := c.method.Rank(options)
		sum, total := 0.0, 0.0
		for i, s := range c.scores {
			if math.Abs(r.Scores[i]-s) > 1e-12 {
				t.Errorf("%q: scores %v, want %v", c.method, r.Scores, c.scores)
			}
			total += math.Exp(s)
			sum += r.P[i]
		}
		if r.Best != c.best || math.Abs(sum-1) > 1e-12 {
			t.Errorf("%q: option %d, want %d; shares %v", c.method, r.Best, c.best, r.P)
		}
		for i, s := range c.scores {
			if c.method != GreedyTokenSelection && math.Abs(r.P[i]-math.Exp(s)/total) > 1e-12 {
				t.Errorf("%q: shares %v", c.method, r.P)
			}
		}
	}
}

// TestATailThatIsCertainDoesNotWin: the mean is high of a long option whose first token
// is unlikely and whose others follow from it; that is why it is not what options are
// compared by if nothing else is said.
func TestATailThatIsCertainDoesNotWin(t *testing.T) {
	log := math.Log
	short, long := []float64{log(0.4)}, []float64{log(0.02), log(0.98), log(0.98), log(0.98), log(0.98)}
	alone := []float64{0, log(0.97), log(0.97), log(0.97), log(0.97)}
	options := []OptionScore{
		{Logprobs: long, Unconditional: alone, Sum: log(0.02) + 4*log(0.98)},
		{Logprobs: short, Unconditional: []float64{0}, Sum: log(0.4)},
	}
	for method, best := range map[ScoreMethod]int{
		Likelihood: 1, Exact: 1, GreedyTokenSelection: 1, TokenLengthNormalized: 0, UnconditionalLikelihoodNormalized: 0,
	} {
		if got := method.Rank(options).Best; got != best {
			t.Errorf("%q takes option %d, want %d", method, got, best)
		}
	}
}

// TestGreedyGoesTokenByToken: options that are beginnings of others, ties, and
// shares.
func TestGreedyGoesTokenByToken(t *testing.T) {
	half, third := math.Log(0.5), math.Log(1.0/3)
	for name, c := range map[string]struct {
		rows [][]float64
		best int
		p    []float64
	}{
		"first token decides":      {[][]float64{{third, -0.01}, {half}, {third, -9}}, 1, []float64{0.2, 0.6, 0.2}},
		"the short one goes on":    {[][]float64{{half}, {half, third}}, 0, []float64{0.6, 0.4}},
		"the long one is likelier": {[][]float64{{third}, {third, half}}, 1, []float64{0.4, 0.6}},
		"a tie is the first's":     {[][]float64{{half, half}, {half, half}}, 0, []float64{0.5, 0.5}},
		"one option":               {[][]float64{{third}}, 0, []float64{1}},
		"not possible at all":      {[][]float64{{math.Inf(-1)}, {half}}, 1, []float64{0, 1}},
	} {
		options := make([]OptionScore, len(c.rows))
		for i := range options {
			options[i].Logprobs = c.rows[i]
		}
		r := GreedyTokenSelection.Rank(options)
		if r.Best != c.best {
			t.Errorf("%s: option %d, want %d", name, r.Best, c.best)
		}
		for i, p := range c.p {
			if math.Abs(r.P[i]-p) > 1e-12 {
				t.Errorf("%s: shares %v, want %v", name, r.P, c.p)
			}
		}
	}
}

func TestScoreMethodCheck(t *testing.T) {
	for _, m := range append(scoreMethods, Likelihood) {
		if err := m.Check(); err != nil {
			t.Error(err)
		}
	}
	if err := ScoreMethod("best").Check(); !errors.Is(err, ErrInvalid) {
		t.Error(err)
	}
}
