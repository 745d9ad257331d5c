package lang_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
)

// TestSelectMethodInFilesAndCode: both ways to write a select with a method and
// shares make one graph, and what may follow can read the shares.
func TestSelectMethodInFilesAndCode(t *testing.T) {
	def := lang.Define("pick", func(p *lang.Program) lang.Var[[]float64] {
		p.User("which?")
		var shares lang.Var[[]float64]
		lang.SelectWith(p, "a", []lang.SelectOption{lang.ScoreBy(lang.Exact), lang.SharesTo(&shares)}, "x", "y")
		lang.SelectFrom(p, "b", lang.Const([]string{"p", "q"}), lang.ScoreBy(lang.TokenLengthNormalized))
		return shares
	})
	g, err := def.Compile()
	require.NoError(t, err)
	text, err := g.YAML()
	require.NoError(t, err)
	require.Contains(t, string(text), "method: exact")
	require.Contains(t, string(text), "shares: a_shares")
	back, err := lang.Decode(text, "pick.yaml")
	require.NoError(t, err)
	again, err := back.YAML()
	require.NoError(t, err)
	require.Equal(t, string(text), string(again))
	require.Equal(t, "[]float", back.Output.String())
	require.Equal(t, []string{"a", "a_shares"}, back.Body[1].Writes)
}

func TestBadSelectMethods(t *testing.T) {
	for doc, want := range map[string]string{
		"{name: a, options: [x], method: exakt}":    `no method "exakt": did you mean "exact"?`,
		"{name: a, options: [x], shares: 'not so'}": "not so",
		"{name: a, options: [x], shares: a}":        "a",
	} {
		_, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:\n  - user: hi\n  - select: "+doc+"\n"), "p.yaml")
		require.ErrorContains(t, err, want)
	}
	script := lang.Script("p", func(s *lang.S, _ struct{}) (string, error) {
		s.User("hi")
		var shares lang.Var[[]float64]
		return lang.SelectWith(s, "a", []lang.SelectOption{lang.SharesTo(&shares)}, "x", "y").Get()
	})
	x, err := lang.ExplainScript(script, lang.ExplainOptions{Estimator: byteTokens{}})
	if err != nil || len(x.Notes) != 1 {
		t.Errorf("%v %v", x, err)
	}
}

// TestExplainOfSelectMethods: the means ask nothing of the turn's end, one of them
// asks once more without the context, and how often an exact one asks is open.
func TestExplainOfSelectMethods(t *testing.T) {
	of := func(method string) *lang.Explanation {
		g := decode(t, "steps:\n  - user: hi\n  - select: {name: s, options: [abc, x]"+method+"}\n  - return: s\n")
		x, err := lang.Explain(g, lang.ExplainOptions{Estimator: byteTokens{}})
		require.NoError(t, err)
		return x
	}
	plain, mean, alone, exact := of(""), of(", method: token_length_normalized"), of(", method: unconditional_likelihood_normalized"), of(", method: exact")
	prompt := plain.Usage.Prompt.Min
	require.Equal(t, prompt+4, plain.Usage.Computed.Min) // all tokens: the end is asked for after the last
	require.Equal(t, 2*prompt+4, plain.Usage.Without.Computed.Min)
	require.Equal(t, prompt+2, mean.Usage.Computed.Min)
	require.Equal(t, 2*prompt+2, mean.Usage.Without.Computed.Min)
	require.Equal(t, prompt+2+2, alone.Usage.Computed.Min) // "ab" again
	require.Equal(t, 3, alone.Usage.Without.Passes.Min)
	require.False(t, mean.Usage.Computed.Open)
	require.True(t, exact.Usage.Computed.Open)
	require.Equal(t, plain.Usage.Computed.Min, exact.Usage.Computed.Min)
	require.Contains(t, strings.Join(exact.Notes, "\n"), "in how many ways")
}

// TestLogprobsTo: a variable with the log-probabilities of what is generated.
func TestLogprobsTo(t *testing.T) {
	def := lang.Define("p", func(p *lang.Program) lang.Var[[]float64] {
		p.User("hi")
		var a, b lang.Var[[]float64]
		p.Gen("a", lang.LogprobsTo(&a))
		p.User("and?")
		lang.JSON[int](p, "b", lang.LogprobsTo(&b))
		return lang.Calc[[]float64]("concat(", a, ", ", b, ")")
	})
	g, err := def.Compile()
	require.NoError(t, err)
	require.Equal(t, []string{"a", "a_logprobs"}, g.Body[1].Writes)
	h := decode(t, "steps:\n  - user: hi\n  - gen: {name: a, logprobs: a_logprobs}\n  - user: and?\n  - json: {name: b, type: int, logprobs: lps}\n  - return: lps\n")
	require.Equal(t, "a_logprobs", h.Body[1].Gen.Logprobs)
	require.Equal(t, "lps", h.Body[3].JSON.Logprobs)
	require.Equal(t, "[]float", h.Output.String())
}
