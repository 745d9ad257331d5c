package runtime_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// thinker thinks as scripted and then answers. Its tokens are bytes.
func thinker(thought string) *puppet.Model {
	m := puppet.New()
	m.OnRegexp(`</think>\n\n$`).Reply(`{"n":7}`)
	m.OnRegexp(`<think>\n$`).Reply(thought)
	return m
}

// TestThinkingBudget: a thought that ends in time stands as the model wrote it; of one
// that does not the budget stays, and it is closed. Either way the answer follows in
// its form, in the same turn.
func TestThinkingBudget(t *testing.T) {
	const budget = 20
	type answer struct {
		N int `json:"n"`
	}
	var thought lang.Var[string]
	def := lang.Define("think", func(p *lang.Program) lang.Var[answer] {
		p.User("how many?")
		a := lang.JSON[answer](p, "a", lang.Think(budget, lang.ThoughtTo(&thought)))
		lang.Let[string](p, "why", thought)
		return a
	})
	script := lang.Script("think", func(s *lang.S, q string) (answer, error) {
		s.User(q)
		return lang.JSON[answer](s, "a", lang.Think(budget)).Get()
	})
	for name, c := range map[string]struct{ writes, thought string }{
		"in time":      {"one, two\n</think>\n\n{", "one, two"},
		"without line": {"one</think>", "one"},
		"at the limit": {strings.Repeat("again ", 9), "again again again ag"},
		"nothing":      {"</think>", ""},
	} {
		m := thinker(c.writes)
		out, err := runtime.Run(t.Context(), m, def, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := "<think>\n" + c.thought + "\n</think>\n\n" + `{"n":7}`
		if got := out.Turns[len(out.Turns)-1]; out.Value.N != 7 || got.Text() != want || len(out.Turns) != 2 {
			t.Errorf("%s: %d, turns %+v", name, out.Value.N, out.Turns)
		}
		if !strings.Contains(string(out.Variables), `"why":"`+c.thought+`"`) {
			t.Errorf("%s: %s", name, out.Variables)
		}
		if calls := m.Log(); len(calls) != 2 || calls[0].Request.MaxTokens != budget || len(calls[1].Request.Constraint.JSONSchema) == 0 {
			t.Errorf("%s: %d calls", name, len(calls))
		}
		m = thinker(c.writes)
		played, err := runtime.RunScript(t.Context(), m, script, "how many?")
		if err != nil {
			t.Fatal(err)
		}
		if got := played.Turns[len(played.Turns)-1]; played.Value.N != 7 || got.Text() != want {
			t.Errorf("%s: script: %d, turns %+v", name, played.Value.N, played.Turns)
		}
	}
	// A backend that cannot go on with a turn is refused before the first call.
	m := thinker("x")
	m.SetInfo(func(info *backend.Info) { info.Capabilities.OpenTurns = false })
	_, err := runtime.Run(t.Context(), m, def, nil)
	if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "open_turns") || len(m.Log()) != 0 {
		t.Error(err)
	}
}

// TestLogprobsReachTheProgram: one number for each token, which conditions can read.
func TestLogprobsReachTheProgram(t *testing.T) {
	g := graphYAML(t, "steps:\n  - user: hi\n  - gen: {name: a, logprobs: lps}\n  - return: '{n: len(lps), sum: sum(lps)}'\n")
	m := puppet.New()
	m.OnAny().Reply("four").Edit(func(_ *puppet.Prompt, r *backend.Result) { r.Logprobs = []float64{-0.5, -0.25, 0, -1} })
	out, err := runtime.RunGraph(t.Context(), m, g, nil, nil)
	if err != nil || string(out.Value) != `{"n":4,"sum":-1.75}` || !m.Log()[0].Request.Logprobs {
		t.Errorf("%v %v", out, err)
	}
	m = puppet.New()
	m.OnAny().Reply("four").Edit(func(_ *puppet.Prompt, r *backend.Result) { r.Logprobs = nil })
	if _, err := runtime.RunGraph(t.Context(), m, g, nil, nil); !errors.Is(err, backend.ErrUnsupported) {
		t.Error(err)
	}
	m = puppet.New()
	m.SetInfo(func(info *backend.Info) { info.Capabilities.Logprobs = false })
	if _, err := runtime.RunGraph(t.Context(), m, g, nil, nil); !errors.Is(err, backend.ErrUnsupported) || len(m.Log()) != 0 {
		t.Error(err)
	}
}

// TestOpenTurnsAreCheckedBeforeTheFirstCall: a turn that begins with what the model
// writes needs nothing of a backend, one that goes on from text does.
func TestOpenTurnsAreCheckedBeforeTheFirstCall(t *testing.T) {
	info := puppet.New().Info()
	info.Capabilities.OpenTurns = false
	for steps, need := range map[string]bool{
		"{gen: {name: a}}":                   false,
		"{text: x}, {gen: {name: a}}":        true,
		"{gen: {name: a}}, {gen: {name: b}}": true,
		"{text: x}":                          false,
		"{when: {if: 1 < 2, then: [{text: x}], else: [{gen: {name: a}}]}}":           false,
		"{when: {if: 1 < 2, then: [{text: x}]}}, {gen: {name: a}}":                   true,
		"{text: x}, {select: {name: s, options: [p, q]}}":                            true,
		"{fork: {name: f, each: [p, q], steps: [{gen: {name: a}}], yield: a}}":       false,
		"{repeat: {max: 1, steps: [{gen: {name: a}}]}}":                              false,
		"{repeat: {max: 2, steps: [{gen: {name: a}}]}}":                              true,
		"{let: {name: n, value: '1'}}, {json: {name: a, type: int}}":                 false,
		"{let: {name: n, value: '1'}}, {text: '${n}'}, {json: {name: a, type: int}}": true,
	} {
		g := graphYAML(t, "steps:\n  - user: hi\n  - role: {role: assistant, steps: ["+steps+"]}\n  - user: bye\n  - gen: {name: z}\n")
		err := runtime.Check(g, info)
		if (err != nil) != need || err != nil && !strings.Contains(err.Error(), "open_turns") {
			t.Errorf("%s: %v", steps, err)
		}
	}
}
