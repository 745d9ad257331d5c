package engine

import (
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// TestThoughtIsComputedOnce: a model that would think for ever is stopped at its
// budget, and the answer goes on from what was computed for the thought.
func TestThoughtIsComputedOnce(t *testing.T) {
	e := newFake(t, func(_ *Config, m *fakeModel) {
		m.script = func([]backend.Token) backend.Token { return 257 } // " the"
	})
	def := lang.Define("think", func(p *lang.Program) lang.Var[string] {
		p.User("how bad?")
		return p.Gen("a", lang.Think(6), lang.Regex("high|low"))
	})
	var costs []backend.Usage
	out, err := runtime.Run(t.Context(), e, def, nil, runtime.WithSink(runtime.SinkFunc(func(ev runtime.Event) {
		if ev.Cost != nil {
			costs = append(costs, *ev.Cost)
		}
	})))
	if err != nil {
		t.Fatal(err)
	}
	want := "<think>\n the the the the the the\n</think>\n\n" + out.Value
	if got := out.Turns[len(out.Turns)-1].Text(); got != want || out.Value != "high" && out.Value != "low" {
		t.Errorf("%q, want %q", got, want)
	}
	if len(costs) != 2 || costs[0].SampledTokens != 6 {
		t.Fatalf("costs %+v", costs)
	}
	if have, got := costs[0].PromptTokens+costs[0].SampledTokens-1, costs[1].CachedTokens; got != have {
		t.Errorf("%d tokens of %d that were computed are used again", got, have)
	}
}
