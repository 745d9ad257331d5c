package lang_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
)

// TestThinkIsATurnWithAThoughtBeforeTheAnswer: in files and in Go it becomes the same
// steps, with sampling and terms of the answer.
func TestThinkIsATurnWithAThoughtBeforeTheAnswer(t *testing.T) {
	def := lang.Define("p", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		var thought lang.Var[string]
		p.Gen("a", lang.Think(30, lang.ThoughtTo(&thought)), lang.MaxTokens(5), lang.Temperature(0.5), lang.Priority(2))
		p.User("and?")
		lang.JSON[int](p, "b", lang.Think(9, lang.ThinkMarks("", "</t>\n")))
		return thought
	})
	g, err := def.Compile()
	require.NoError(t, err)
	h := decode(t, `steps:
  - user: hi
  - gen: {name: a, think: 30, max_tokens: 5, temperature: 0.5, priority: 2}
  - user: and?
  - json: {name: b, type: int, think: {tokens: 9, open: "", close: "</t>\n"}}
  - return: a_thought
`)
	for _, g := range []*lang.Graph{g, h} {
		a := g.Body[1].Role
		require.NotNil(t, a)
		require.Equal(t, "assistant", a.Role)
		require.Len(t, a.Body, 4)
		require.Equal(t, lang.Template("<think>\n"), a.Body[0].Text.Content)
		require.Equal(t, "a_thought", a.Body[1].Name)
		require.Equal(t, 30, a.Body[1].Gen.MaxTokens)
		require.Equal(t, []string{"\n</think>", "</think>"}, a.Body[1].Gen.Stop)
		require.Equal(t, 0.5, a.Body[1].Gen.Sampling.Temperature)
		require.Equal(t, 2, a.Body[1].Gen.Terms.Priority)
		require.Equal(t, lang.Template("\n</think>\n\n"), a.Body[2].Text.Content)
		require.Equal(t, "a", a.Body[3].Name)
		require.Equal(t, 5, a.Body[3].Gen.MaxTokens)
		b := g.Body[3].Role
		require.Len(t, b.Body, 3)
		require.Equal(t, []string{"</t>"}, b.Body[0].Gen.Stop)
		require.NotNil(t, b.Body[2].JSON)
		require.Equal(t, []string{"a", "a_thought"}, g.Body[1].Writes)
		require.Equal(t, "string", g.Output.String())
	}
	// With n each of the answers has a thought of its own.
	f := decode(t, "steps:\n  - user: hi\n  - gen: {name: a, think: 3, n: 2, temperature: 1}\n  - return: a\n")
	require.Equal(t, "a_thought", f.Body[1].Fork.Body[0].Role.Body[1].Name)
	require.Equal(t, "[]string", f.Output.String())
}

func TestBadThoughts(t *testing.T) {
	for doc, want := range map[string]string{
		"- gen: {name: a, think: 0}":                                          "a thought of no tokens",
		"- gen: {name: a, think: {tokens: 3, close: ' '}}":                    "nothing ends the thought",
		"- gen: {name: a, think: {token: 3}}":                                 `no field "token"`,
		"- role: {role: assistant, steps: [{gen: {name: a, think: 3}}]}":      "turn",
		"- gen: {name: a_thought}\n  - user: x\n  - gen: {name: a, think: 3}": "a_thought",
	} {
		_, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:\n  - user: hi\n  "+doc+"\n"), "p.yaml")
		require.ErrorContains(t, err, want, doc)
	}
	_, err := lang.Define("p", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		return p.Gen("a", lang.Think(0))
	}).Compile()
	require.ErrorContains(t, err, "think_test.go:")
}
