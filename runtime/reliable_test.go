package runtime_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

var errBusy = fmt.Errorf("busy: %w", backend.ErrOverloaded)

// askedToWait is an error of a server that says when to come back.
type askedToWait time.Duration

func (e askedToWait) Error() string             { return "429" }
func (e askedToWait) Unwrap() error             { return backend.ErrOverloaded }
func (e askedToWait) RetryDelay() time.Duration { return time.Duration(e) }

const askOnce = "steps:\n  - user: hi\n  - gen: {name: x, %s}\n  - return: x\n"

func TestRetriesWaitAndHonourRetryAfter(t *testing.T) {
	for name, c := range map[string]struct {
		terms    string
		fail     []error
		attempts int
		min, max time.Duration
		err      error
	}{
		"first time":          {"retry: 3", nil, 0, 0, 0, nil},
		"doubles":             {"retry: {attempts: 4, wait: 8s}", []error{errBusy, errBusy, errBusy}, 4, 28 * time.Second, 56 * time.Second, nil},
		"bounded wait":        {"retry: {attempts: 4, wait: 8s, max_wait: 9s}", []error{errBusy, errBusy, errBusy}, 4, 13 * time.Second, 26 * time.Second, nil},
		"asked":               {"retry: 3", []error{askedToWait(20 * time.Second)}, 2, 20 * time.Second, 20 * time.Second, nil},
		"asked for too much":  {"retry: {attempts: 3, max_wait: 10s}", []error{askedToWait(20 * time.Second)}, 1, 0, 0, backend.ErrOverloaded},
		"used up":             {"retry: 2", []error{errBusy, errBusy, errBusy}, 2, 0, time.Second, backend.ErrOverloaded},
		"no policy":           {"max_tokens: 9", []error{errBusy}, 1, 0, 0, backend.ErrOverloaded},
		"not retryable":       {"retry: 3", []error{backend.ErrInvalid}, 1, 0, 0, backend.ErrInvalid},
		"says it is final":    {"retry: 3", []error{runtime.Permanent(errBusy)}, 1, 0, 0, backend.ErrOverloaded},
		"context is too long": {"retry: 3", []error{&backend.ContextLengthError{Prompt: 9, Context: 5}}, 1, 0, 0, backend.ErrContextLength},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := puppet.New()
				r := m.OnAny().Reply("ok")
				for i, err := range c.fail {
					r.FailCall(i+1, err)
				}
				var events []runtime.Event
				began := time.Now()
				rep, err := runtime.RunGraph(t.Context(), m, graphYAML(t, fmt.Sprintf(askOnce, c.terms)), nil, nil,
					runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) { events = append(events, e) })))
				if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
					t.Fatal(err)
				}
				if err == nil && string(rep.Value) != `"ok"` {
					t.Errorf("%s", rep.Value)
				}
				if d := time.Since(began); d < c.min || d > c.max {
					t.Errorf("waited %v", d)
				}
				if got := len(m.Log()); got != max(1, c.attempts) {
					t.Errorf("%d calls", got)
				}
				retried := 0
				for _, e := range events {
					if e.Kind == runtime.NodeRetried {
						retried++
						if e.Attempt != retried || e.Error == "" || e.Wait <= 0 {
							t.Errorf("%+v", e)
						}
					}
				}
				if retried != max(1, c.attempts)-1 {
					t.Errorf("%d retries told of", retried)
				}
			})
		})
	}
}

func TestTimeoutOfANodeEndsAttemptsThatHang(t *testing.T) {
	for name, obedient := range map[string]bool{"a backend that heeds its context": true, "one that does not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hang := make(chan struct{})
				defer close(hang)
				m := puppet.New()
				var calls atomic.Int32
				be := &backendFunc{Backend: m, generate: func(ctx context.Context, req *backend.Request) (*backend.Result, error) {
					if calls.Add(1) == 2 {
						return &backend.Result{Part: backend.Part{Text: "late"}}, nil
					}
					if !obedient {
						<-hang
						return nil, errors.New("gone")
					}
					select {
					case <-hang:
					case <-ctx.Done():
					}
					return nil, ctx.Err()
				}}
				g := graphYAML(t, fmt.Sprintf(askOnce, "timeout: 5s, retry: {attempts: 2, wait: 1s}"))
				began := time.Now()
				r, err := runtime.RunGraph(t.Context(), be, g, nil, nil)
				if err != nil || string(r.Value) != `"late"` {
					t.Fatal(r, err)
				}
				if d := time.Since(began); d < 5*time.Second || d > 9*time.Second {
					t.Error(d)
				}
				_, err = runtime.RunGraph(t.Context(), be, graphYAML(t, fmt.Sprintf(askOnce, "timeout: 5s")), nil, nil)
				var te *runtime.TimeoutError
				if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &te) || te.After != 5*time.Second {
					t.Error(err)
				}
				_, err = runtime.RunGraph(t.Context(), be, graphYAML(t, fmt.Sprintf(askOnce, "max_tokens: 1")), nil, nil, runtime.WithTimeout(time.Second), runtime.WithGrace(time.Second))
				if !errors.As(err, &te) || te.After != time.Second {
					t.Error(err)
				}
			})
		})
	}
}

// backendFunc is a backend with another Generate.
type backendFunc struct {
	backend.Backend
	generate func(ctx context.Context, req *backend.Request) (*backend.Result, error)
}

func (b *backendFunc) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	return b.generate(ctx, req)
}

func TestCancelWhileWaitingToRetryEndsTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := puppet.New()
		m.OnAny().Fail(errBusy)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		_, err := runtime.RunGraph(ctx, m, graphYAML(t, fmt.Sprintf(askOnce, "retry: {attempts: 9, wait: 1h, max_wait: 2h}")), nil, nil)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 10*time.Second || len(m.Log()) != 1 {
			t.Error(err, time.Since(began), len(m.Log()))
		}
	})
}

func TestRetriesOfANodeDoNotMultiplyWithTheBackends(t *testing.T) {
	var owned []bool
	be := &backendFunc{Backend: puppet.New(), generate: func(ctx context.Context, req *backend.Request) (*backend.Result, error) {
		owned = append(owned, backend.RetriesOwned(ctx))
		return &backend.Result{Part: backend.Part{Text: "a"}}, nil
	}}
	for _, terms := range []string{"retry: 2", "max_tokens: 3", "retry: 1"} {
		if _, err := runtime.RunGraph(t.Context(), be, graphYAML(t, fmt.Sprintf(askOnce, terms)), nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(owned) != "[true false true]" {
		t.Error(owned)
	}
}

func TestFallbackAnswersWhenTheRunsOwnBackendCannot(t *testing.T) {
	for name, c := range map[string]struct {
		terms string
		err   error
		by    string
		fails error
	}{
		"unavailable":   {"max_tokens: 9", backend.ErrUnavailable, "first", nil},
		"context":       {"max_tokens: 9", &backend.ContextLengthError{Prompt: 9, Context: 5}, "first", nil},
		"named":         {"fallback: [second]", errBusy, "second", nil},
		"in order":      {"fallback: [broken, second]", errBusy, "second", nil},
		"wrong request": {"max_tokens: 9", backend.ErrInvalid, "", backend.ErrInvalid},
		"all fail":      {"fallback: broken", errBusy, "", backend.ErrOverloaded},
		// What the last one failed at decides, not the reason for asking it.
		"wrong there": {"fallback: [wrong, second]", errBusy, "", backend.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			own, first, second, broken, wrong := puppet.New(), puppet.New(), puppet.New(), puppet.New(), puppet.New()
			wrong.OnAny().Fail(fmt.Errorf("wrong: %w", backend.ErrInvalid))
			own.OnAny().Fail(c.err)
			first.OnAny().Reply("1")
			second.OnAny().Reply("2")
			broken.OnAny().Fail(fmt.Errorf("broken: %w", backend.ErrUnavailable))
			journal := filepath.Join(t.TempDir(), "j")
			opts := []runtime.Option{runtime.WithFallback("first", first), runtime.WithFallback("second", second), runtime.WithFallback("broken", broken), runtime.WithFallback("wrong", wrong), runtime.WithJournal(journal)}
			var by string
			r, err := runtime.RunGraph(t.Context(), own, graphYAML(t, fmt.Sprintf(askOnce, c.terms)), nil, nil,
				append(opts, runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) { by += e.By })))...)
			if c.fails != nil {
				if !errors.Is(err, c.fails) {
					t.Error(err)
				}
				if name == "all fail" && (!strings.Contains(err.Error(), "then fallback broken") || !errors.Is(err, backend.ErrUnavailable)) {
					t.Error(err)
				}
				return
			}
			if err != nil || by != c.by || r.Fallbacks[c.by] != 1 {
				t.Fatalf("by %q, %v, %v", by, r.Fallbacks, err)
			}
			again, err := runtime.Resume(t.Context(), nil, journal, nil)
			if err != nil || string(again.Value) != string(r.Value) || again.Fallbacks[c.by] != 1 {
				t.Error(again, err)
			}
		})
	}
}

func TestFallbacksAreCheckedBeforeTheFirstCall(t *testing.T) {
	own, weak := puppet.New(), puppet.New()
	own.OnAny().Reply("a")
	weak.SetInfo(func(i *backend.Info) { i.Capabilities.Regex = false })
	g := graphYAML(t, "steps:\n  - user: hi\n  - gen: {name: x, regex: '[a-z]'}\n  - gen: {name: y, fallback: weak}\n  - return: x\n")
	_, err := runtime.RunGraph(t.Context(), own, g, nil, nil, runtime.WithFallback("weak", weak))
	if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "fallback weak") || strings.Contains(err.Error(), "\n  p.yaml:7") {
		t.Error(err)
	}
	_, err = runtime.RunGraph(t.Context(), own, g, nil, nil)
	if err == nil || !strings.Contains(err.Error(), `p.yaml:6: y: no fallback "weak"`) {
		t.Error(err)
	}
	if len(own.Log()) != 0 {
		t.Error("the backend was called")
	}
}

func TestCallsAreMadeAgainWithTheSameKey(t *testing.T) {
	var keys []string
	fail := errors.New("not now")
	def := func(opts ...lang.CallOption) *lang.Def[string] {
		return lang.Define("c", func(p *lang.Program) lang.Var[string] {
			return lang.Call1(p, "f", func(ctx context.Context, s string) (string, error) {
				keys = append(keys, runtime.IdempotencyKey(ctx))
				if len(keys) < 3 {
					return "", fail
				}
				return s, nil
			}, lang.Const("a"), opts...)
		})
	}
	out, err := runtime.Run(t.Context(), nil, def(lang.Retries(3), lang.RetryWait(time.Nanosecond, time.Nanosecond)), nil)
	if err != nil || out.Value != "a" || len(keys) != 3 || keys[0] != keys[2] || keys[0] == "" || out.Retries != 2 {
		t.Error(out, err, keys)
	}
	keys, fail = nil, runtime.Permanent(errors.New("never"))
	if _, err := runtime.Run(t.Context(), nil, def(lang.Retries(3)), nil); err == nil || len(keys) != 1 {
		t.Error(err, keys)
	}
	keys, fail = nil, errors.New("not now")
	if _, err := runtime.Run(t.Context(), nil, def(), nil); err == nil || len(keys) != 1 {
		t.Error(err, keys)
	}
}

func TestBudgetStopsTheRunAndALargerOneResumesIt(t *testing.T) {
	g := graphYAML(t, `budget: {generated: 5}
steps:
  - user: hi
  - repeat:
      max: 10
      steps:
        - user: more
        - gen: {name: x}
  - return: x
`)
	m := puppet.New()
	m.OnAny().Reply("ab")
	journal := filepath.Join(t.TempDir(), "j")
	r, err := runtime.RunGraph(t.Context(), m, g, nil, nil, runtime.WithJournal(journal))
	var be *runtime.BudgetError
	if !errors.Is(err, runtime.ErrBudget) || !errors.As(err, &be) || be.Limit != "5" || r == nil || r.Tasks != 3 {
		t.Fatal(r, err)
	}
	if r, err = runtime.Resume(t.Context(), m, journal, nil); !errors.Is(err, runtime.ErrBudget) || len(m.Log()) != 3 {
		t.Fatal(r, err, len(m.Log()))
	}
	for _, tokens := range []int{8, 0} {
		r, err = runtime.Resume(t.Context(), m, journal, nil, runtime.WithBudget(lang.Budget{Generated: tokens}))
	}
	if err != nil || string(r.Value) != `"ab"` || len(m.Log()) != 10 {
		t.Error(r, err, len(m.Log()))
	}
	for name, b := range map[string]lang.Budget{"tokens": {Tokens: 1}, "cost": {Cost: 0.000001}} {
		m := puppet.New()
		m.OnAny().Reply("ab")
		_, err := runtime.RunGraph(t.Context(), m, g, nil, nil, runtime.WithBudget(b), runtime.WithPrices(runtime.Prices{Input: 1, Output: 10}))
		if !errors.As(err, &be) || be.What != name || len(m.Log()) != 1 {
			t.Error(err, len(m.Log()))
		}
	}
	if _, err := runtime.RunGraph(t.Context(), m, g, nil, nil, runtime.WithBudget(lang.Budget{Cost: 1})); err == nil || !strings.Contains(err.Error(), "no prices") {
		t.Error(err)
	}
	synctest.Test(t, func(t *testing.T) {
		m := puppet.New()
		m.OnAny().Reply("ab").Wait(make(chan struct{}))
		began := time.Now()
		_, err := runtime.RunGraph(t.Context(), m, g, nil, nil, runtime.WithBudget(lang.Budget{Time: time.Minute}))
		if !errors.As(err, &be) || be.What != "time" || time.Since(began) != time.Minute {
			t.Error(err, time.Since(began))
		}
	})
}

func TestSaltAndPriorityReachTheBackend(t *testing.T) {
	g := graphYAML(t, `inputs: {tenant: string}
steps:
  - user: hi
  - gen: {name: x, salt: "${tenant}", priority: 2}
  - select: {name: s, options: [a, b], salt: t1, priority: -1}
  - gen: {name: y}
  - return: x
`)
	salts := func(run string, tenant string) string {
		m := puppet.New()
		m.OnAny().Reply("a").Scores(map[string]float64{"a": -1})
		if _, err := runtime.RunGraph(t.Context(), m, g, nil, lang.Args{"tenant": tenant}, runtime.WithSalt(run)); err != nil {
			t.Fatal(err)
		}
		l := m.Log()
		if l[0].Request.Priority != 2 || l[1].Score.Priority != -1 || l[2].Request.Priority != 0 || l[2].Request.Salt != run {
			t.Errorf("%+v", l)
		}
		if (tenant == "t1") != (l[0].Request.Salt == l[1].Score.Salt) {
			t.Errorf("%q %q", l[0].Request.Salt, l[1].Score.Salt)
		}
		return l[0].Request.Salt
	}
	if a, b := salts("a", "bt1"), salts("ab", "t1"); a == b || a == "a" {
		t.Errorf("%q %q", a, b)
	}
	if s := salts("a", ""); s != "a" {
		t.Errorf("%q", s)
	}
}

// TestTimeIsSpentOverProcesses: a run that is resumed has what is left of its time,
// whether the process before it ended in order or was killed.
func TestTimeIsSpentOverProcesses(t *testing.T) {
	g := graphYAML(t, `budget: {time: 60s}
steps:
  - sleep: {for: 40s}
  - sleep: {for: 40s}
  - return: '"slept"'
`)
	for _, killed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			journal := filepath.Join(t.TempDir(), "j")
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
			defer cancel()
			if _, err := runtime.RunGraph(ctx, nil, g, nil, nil, runtime.WithJournal(journal)); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			left := 10 * time.Second
			if killed { // what it spent since its last record is not known
				data, err := os.ReadFile(journal)
				if err != nil {
					t.Fatal(err)
				}
				end := bytes.LastIndex(data, []byte(` {"kind":"end"`))
				if err := os.WriteFile(journal, data[:bytes.LastIndexByte(data[:end], '\n')+1], 0o600); err != nil {
					t.Fatal(err)
				}
				left = 20 * time.Second
			}
			<-time.After(5 * time.Second) // nobody has it
			for _, want := range []time.Duration{left, 0} {
				began := time.Now()
				var be *runtime.BudgetError
				if _, err := runtime.Resume(t.Context(), nil, journal, nil); !errors.As(err, &be) || be.What != "time" || be.Limit != "1m0s" || time.Since(began) != want {
					t.Error(err, time.Since(began), want)
				}
			}
			r, err := runtime.Resume(t.Context(), nil, journal, nil, runtime.WithBudget(lang.Budget{Time: 2 * time.Minute}))
			if err != nil || string(r.Value) != `"slept"` {
				t.Error(err)
			}
		})
	}
}
