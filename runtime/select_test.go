package runtime_test

import (
	"encoding/json"
	"errors"
	"math"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// scorer tells the log-probabilities of the tokens of three options such that each
// method takes another one, as far as there are enough.
func scorer() *puppet.Model {
	m := puppet.New()
	m.OnAny().ScoreFunc(func(p *puppet.Prompt, option string) []float64 {
		switch option {
		case "short":
			return []float64{-1.5}
		case "greedy":
			return []float64{-0.9, -3}
		}
		return []float64{-1, -2, -0.1, -0.1}
	}).ScoreAlone(func(option string) []float64 {
		if option == "greedy" {
			return []float64{0, -9}
		}
		return make([]float64, map[string]int{"short": 1, "mean": 4}[option])
	})
	return m
}

// TestSelectByEachMethod: the program gets the option that the method takes, and
// the shares add up to 1, in the variable as in the event.
func TestSelectByEachMethod(t *testing.T) {
	for method, want := range map[lang.ScoreMethod]string{
		"": "short", lang.Exact: "short", lang.TokenLengthNormalized: "mean",
		lang.GreedyTokenSelection: "greedy", lang.UnconditionalLikelihoodNormalized: "greedy",
	} {
		def := lang.Define("pick", func(p *lang.Program) lang.Var[string] {
			p.User("which?")
			var shares lang.Var[[]float64]
			v := lang.SelectWith(p, "pick", []lang.SelectOption{lang.ScoreBy(method), lang.SharesTo(&shares)}, "short", "mean", "greedy")
			lang.Let[float64](p, "sum", lang.Calc[float64]("sum(", shares, ")"))
			return v
		})
		m := scorer()
		var scores []runtime.OptionScore
		out, err := runtime.Run(t.Context(), m, def, nil, runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
			if e.Scores != nil {
				scores = e.Scores
			}
		})))
		if err != nil {
			t.Fatal(err)
		}
		if out.Value != want {
			t.Errorf("%q takes %q, want %q", method, out.Value, want)
		}
		req := m.Log()[0].Score
		if req.Method != backend.ScoreMethod(method) || req.Closed != (method == "" || method == lang.Exact) {
			t.Errorf("%q asks for %+v", method, req)
		}
		var vars struct {
			Sum    float64   `json:"sum"`
			Shares []float64 `json:"pick_shares"`
		}
		if err := json.Unmarshal(out.Variables, &vars); err != nil {
			t.Fatal(err)
		}
		if math.Abs(vars.Sum-1) > 1e-9 || len(vars.Shares) != 3 || len(scores) != 3 {
			t.Fatalf("%q: %s, events %v", method, out.Variables, scores)
		}
		for i, s := range scores {
			if s.P != vars.Shares[i] {
				t.Errorf("%q: shares %v, events %v", method, vars.Shares, scores)
			}
		}
	}
}

// TestSelectMethodsAreCheckedBeforeTheFirstCall: what the backend cannot tell is
// refused by name.
func TestSelectMethodsAreCheckedBeforeTheFirstCall(t *testing.T) {
	for method, need := range map[string]string{"exact": "score_exact", "greedy_token_selection": "score_tokens"} {
		m := scorer()
		m.SetInfo(func(info *backend.Info) { info.Capabilities = backend.Capabilities{Score: true} })
		g := graphYAML(t, "steps:\n  - user: hi\n  - select: {name: s, options: [short, mean], method: "+method+"}\n  - return: s\n")
		_, err := runtime.RunGraph(t.Context(), m, g, nil, nil)
		var missing *runtime.UnsupportedError
		if !errors.As(err, &missing) || len(missing.Missing) != 1 || missing.Missing[0].Need != need || len(m.Log()) != 0 {
			t.Errorf("%s: %v", method, err)
		}
	}
}
