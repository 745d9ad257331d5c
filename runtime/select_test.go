package runtime_test

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"
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

// TestOptionsOfASelect: what a select without any other word may choose from. One
// option is chosen; none, an option twice, and nothing where more text may follow are
// errors that name the node, whether the options are written down or known in the run.
func TestOptionsOfASelect(t *testing.T) {
	for _, c := range []struct {
		options string
		open    bool // in a turn that goes on
		want    string
		err     string
	}{
		{`["one"]`, false, "one", ""},
		{`["", "more"]`, false, "", ""}, // the end of the turn is an answer
		{`["", "more"]`, true, "", "option 0 is empty"},
		{`[]`, false, "", "no options"},
		{`["a", "b", "a"]`, false, "", `both "a"`},
		{`[1]`, false, "", "not a string"},
	} {
		m := puppet.New()
		m.OnAny().ScoreFunc(func(_ *puppet.Prompt, option string) []float64 { return []float64{-float64(len(option)) - 1} })
		steps := "- select: {name: pick, from: options}"
		if c.open {
			steps = "- role: {role: assistant, steps: [{text: so}, {select: {name: pick, from: options}}]}"
		}
		g := graphYAML(t, "inputs: {options: '[]any'}\nsteps:\n- user: hi\n"+steps+"\n- return: pick\n")
		var options []any
		if err := json.Unmarshal([]byte(c.options), &options); err != nil {
			t.Fatal(err)
		}
		r, err := runtime.RunGraph(t.Context(), m, g, nil, lang.Args{"options": options})
		if c.err == "" {
			if err != nil || string(r.Value) != strconv.Quote(c.want) {
				t.Errorf("%s: %v", c.options, err)
			}
			continue
		}
		var node *runtime.NodeError
		if !errors.As(err, &node) || !strings.HasSuffix(node.Node, "pick") || !strings.Contains(err.Error(), c.err) || len(m.Log()) != 0 {
			t.Errorf("%s, open %v: %v", c.options, c.open, err)
		}
	}
	for _, bad := range []string{"[]", "[a, a]", "[a, '']"} {
		_, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:\n- user: hi\n- select: {name: pick, options: "+bad+"}\n"), "p.yaml")
		if err == nil || !strings.Contains(err.Error(), "p.yaml:5: pick: ") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
