package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// deaf is work that takes its time whatever its context says.
func deaf(d time.Duration) { <-time.After(d) }

// deafBackend answers late, to all that it can be asked.
type deafBackend struct {
	backend.Backend
	takes time.Duration
}

func (b *deafBackend) Generate(_ context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	deaf(b.takes)
	if emit != nil {
		emit(backend.Delta{Text: "late"})
	}
	return &backend.Result{Part: backend.Part{Text: "late"}, Usage: backend.Usage{SampledTokens: 1}}, nil
}

func (b *deafBackend) Score(_ context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	deaf(b.takes)
	return &backend.ScoreResult{Options: make([]backend.OptionScore, len(req.Options))}, nil
}

func (b *deafBackend) CheckConstraint(context.Context, backend.Constraint) error {
	deaf(b.takes)
	return errors.New("not this one")
}

// TestTimeoutsHoldForWhatHeedsNoContext: the timeout of a node is the longest that its
// run waits, whoever is asked; what comes later is not the answer and no event, and
// the goroutine that waited for it has ended once it has come.
func TestTimeoutsHoldForWhatHeedsNoContext(t *testing.T) {
	lateText := func(context.Context, string) (string, error) { deaf(9 * time.Second); return "late", nil }
	lateVerdict := func(context.Context, string) (bool, error) { deaf(9 * time.Second); return true, nil }
	graph := func(g *lang.Graph) func() (*lang.Graph, lang.Funcs, error) {
		return func() (*lang.Graph, lang.Funcs, error) { return g, nil, nil }
	}
	define := func(def *lang.Def[string]) func() (*lang.Graph, lang.Funcs, error) {
		return func() (*lang.Graph, lang.Funcs, error) { g, err := def.Compile(); return g, def.Funcs(), err }
	}
	for name, c := range map[string]struct {
		program func() (*lang.Graph, lang.Funcs, error)
		slow    bool // the backend, too
		opts    []runtime.Option
	}{
		"a gen":    {program: graph(graphYAML(t, fmt.Sprintf(askOnce, "timeout: 5s"))), slow: true},
		"a select": {program: graph(graphYAML(t, "steps:\n  - user: hi\n  - select: {name: x, options: [a, b], timeout: 5s}\n  - return: x\n")), slow: true},
		"a json":   {program: graph(graphYAML(t, "steps:\n  - user: hi\n  - json: {name: x, schema: {type: integer}, timeout: 5s}\n  - return: x\n")), slow: true},
		"the run's own": {program: graph(graphYAML(t, fmt.Sprintf(askOnce, "max_tokens: 1"))), slow: true,
			opts: []runtime.Option{runtime.WithTimeout(5 * time.Second)}},
		"a function": {program: define(lang.Define("f", func(p *lang.Program) lang.Var[string] {
			return lang.Call1(p, "x", lateText, lang.Const("a"), lang.Timeout(5*time.Second))
		}))},
		"a function that must not be called twice": {program: define(lang.Define("f", func(p *lang.Program) lang.Var[string] {
			return lang.Call1(p, "x", lateText, lang.Const("a"), lang.Timeout(5*time.Second), lang.Unsafe())
		}))},
		"a validator": {program: define(lang.Define("f", func(p *lang.Program) lang.Var[string] {
			p.User("hi")
			return p.Gen("x", lang.CheckFunc("late", lateVerdict), lang.Timeout(5*time.Second))
		}))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // fails if a goroutine is left for ever
				g, funcs, err := c.program()
				require.NoError(t, err)
				m := puppet.New()
				m.OnAny().Reply("3")
				var be backend.Backend = m
				if c.slow {
					be = &heedlessOnly{&deafBackend{m, 9 * time.Second}}
				}
				var events []runtime.Event
				opts := append(c.opts, runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) { events = append(events, e) })))
				began := time.Now()
				r, err := runtime.RunGraph(t.Context(), be, g, funcs, nil, opts...)
				var late *runtime.TimeoutError
				require.ErrorAs(t, err, &late)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, 5*time.Second, late.After)
				if d := time.Since(began); d > 5500*time.Millisecond {
					t.Errorf("it took %v", d)
				}
				require.Equal(t, "null", string(r.Value))
				deaf(10 * time.Second)
				for _, e := range events {
					require.NotContains(t, e.Text, "late")
				}
			})
		})
	}
}

// heedlessOnly hides that a backend checks constraints.
type heedlessOnly struct{ backend.Backend }

// TestTheCheckBeforeARunEndsWithItsContext: a backend that looks at a grammar for ever
// holds up nobody who has gone.
func TestTheCheckBeforeARunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		be := &deafBackend{puppet.New(), time.Hour}
		g := graphYAML(t, fmt.Sprintf(askOnce, `regex: "a+"`))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := runtime.RunGraph(ctx, be, g, nil, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))
		_, err = runtime.RunGraph(t.Context(), be, g, nil, nil)
		require.ErrorContains(t, err, "not this one")
	})
}

// TestCancelledBranchesTakeNoPlace: requests of branches that nobody wants any more and
// that do not end do not keep others from beginning.
func TestCancelledBranchesTakeNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		be := &backendFunc{Backend: puppet.New(), generate: func(_ context.Context, req *backend.Request) (*backend.Result, error) {
			if req.ID == "race[0]/x" {
				<-hang
			}
			return &backend.Result{Part: backend.Part{Text: req.ID}}, nil
		}}
		g := graphYAML(t, `steps:
  - user: hi
  - fork: {name: race, each: [slow, fast], join: first, steps: [{gen: {name: x}}], yield: x}
  - fork: {name: both, each: [a, b], steps: [{gen: {name: y}}], yield: y}
  - return: both
`)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		r, err := runtime.RunGraph(ctx, be, g, nil, nil, runtime.WithConcurrency(2))
		require.NoError(t, err)
		require.Equal(t, `["both[0]/y","both[1]/y"]`, string(r.Value))
		require.LessOrEqual(t, time.Since(began), 2*time.Second) // the run ends without it
		close(hang)
	})
}
