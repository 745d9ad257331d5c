package workflows

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

const patient = `
name: patient
steps:
- user: hello
- gen: {name: x, max_tokens: 5}
- wait: {name: ok, ask: "May I?"}
- return: ok
`

// TestEventStreamsEnd: however a run ends, its listeners are told, and nothing but
// its name stays in memory.
func TestEventStreamsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(r *rig)
		last runtime.EventKind
		says string
	}{
		"finished": {func(r *rig) {
			r.env.RegisterDelayedCallback(func() {
				r.env.SignalWorkflow(Answers, Answer{Task: "ok", Value: []byte("true")})
			}, time.Hour)
		}, runtime.RunFinished, ""},
		"deadline":  {func(r *rig) { r.in.Deadline = r.env.Now().Add(time.Hour) }, runtime.RunFailed, "deadline"},
		"cancelled": {func(r *rig) { r.env.RegisterDelayedCallback(r.env.CancelWorkflow, time.Hour) }, runtime.RunFailed, "canceled"},
		"budget":    {func(r *rig) { r.in.Budget = lang.Budget{Generated: 1} }, runtime.RunFailed, "budget"},
		"failed": {func(r *rig) {
			r.in.Limits = runtime.Limits{Nodes: 2}
		}, runtime.RunFailed, "limit"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, clever(), nil, patient, nil, StartOptions{})
			rec := r.listen()
			c.do(r)
			_, err := r.run()
			require.Equal(t, c.last == runtime.RunFinished, err == nil, "%v", err)
			require.NotEmpty(t, rec.events)
			last := rec.events[len(rec.events)-1]
			require.Equal(t, c.last, last.Kind)
			require.NotNil(t, last.Usage)
			require.Contains(t, last.Error, c.says)
			require.Len(t, r.w.events.runs, 1)
			for _, p := range r.w.events.runs {
				require.True(t, p.ended())
			}
		})
	}
}

// TestStreamsAreForgotten: a process that saw many runs keeps few.
func TestStreamsAreForgotten(t *testing.T) {
	opened := map[string]int{}
	s := streams{open: func(run string) runtime.Sink {
		opened[run]++
		if run == "nobody" {
			return nil
		}
		return &recorder{}
	}}
	for range 3 {
		require.Nil(t, s.of("nobody", "1"))
	}
	require.Equal(t, 1, opened["nobody"])
	stays := s.of("stays", "1")
	back := s.of("back", "1")
	s.left("back", "1")
	require.Same(t, back, s.of("back", "1"), "it came back")
	for i := range 3 * keptStreams {
		name := fmt.Sprint(i % 100) // names are used again
		p := s.of(name, fmt.Sprint(i))
		require.NotNil(t, p)
		if i%2 == 0 {
			p.emit(runtime.Event{Kind: runtime.RunFailed})
			require.Nil(t, s.of(name, fmt.Sprint(i)), "it is over")
		}
		s.left(name, fmt.Sprint(i))
	}
	require.LessOrEqual(t, len(s.runs), keptStreams+3)
	require.Same(t, stays, s.of("stays", "1"))
	require.Same(t, back, s.of("back", "1"))
}
