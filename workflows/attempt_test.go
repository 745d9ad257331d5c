package workflows

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// recorder is a sink that keeps what it is told.
type recorder struct {
	mu     sync.Mutex
	events []runtime.Event
}

func (r *recorder) Emit(e runtime.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

// lines are the events in few words.
func (r *recorder) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for i, e := range r.events {
		if e.Seq != uint64(i+1) {
			out = append(out, fmt.Sprint("gap before ", e.Seq))
		}
		s := string(e.Kind)
		if e.Task != "" {
			s += " " + e.Task
		}
		if e.Kind == runtime.TextDelta {
			s += fmt.Sprintf(" %d %s", e.Offset, e.Text)
		}
		if e.By != "" {
			s += " by " + e.By
		}
		out = append(out, s)
	}
	return out
}

// listen records the events of the rig's runs.
func (r *rig) listen() *recorder {
	rec := &recorder{}
	r.w.events.open = func(string) runtime.Sink { return rec }
	return rec
}

// breaks is a model that writes some tokens and then fails or goes on. Its tokens
// are numbers from 1, its text their digits.
type breaks struct {
	fingerprint string
	plan        []int // how many tokens each call writes before it fails
	fails       error
	length      int
	anew        bool // it cannot go on from tokens

	mu   sync.Mutex
	reqs []backend.Request
}

func (b *breaks) Info() backend.Info {
	return backend.Info{Model: "breaks", Fingerprint: b.fingerprint, Capabilities: backend.Capabilities{TokenIDs: true}}
}

func (b *breaks) Close() error { return nil }

func (b *breaks) Score(context.Context, *backend.ScoreRequest) (*backend.ScoreResult, error) {
	return nil, backend.ErrUnsupported
}

func (b *breaks) Generate(_ context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	b.mu.Lock()
	b.reqs = append(b.reqs, *req)
	n := len(b.reqs)
	b.mu.Unlock()
	text, tokens := "", []backend.Token(nil)
	for i := range b.length {
		if n <= len(b.plan) && i == b.plan[n-1] {
			return nil, b.fails
		}
		t := backend.Token(i + 1)
		if b.anew {
			t += backend.Token(n)
		}
		emit(backend.Delta{Text: fmt.Sprint(t % 10), Tokens: []backend.Token{t}})
		text, tokens = text+fmt.Sprint(t%10), append(tokens, t)
	}
	return &backend.Result{Part: backend.Part{Text: text, Tokens: tokens, Model: b.fingerprint}, Finish: backend.FinishStop}, nil
}

const once = `
name: once
steps:
- user: hello
- gen: {name: x, max_tokens: 20%s}
- return: x
`

var errDown = fmt.Errorf("down: %w", backend.ErrUnavailable)

// TestFallbackOfDurableRuns is the same as in process: who is asked when the
// worker's own backend cannot answer, and when nobody else is.
func TestFallbackOfDurableRuns(t *testing.T) {
	for name, c := range map[string]struct {
		terms string
		err   error // of the worker's own; nil: it hangs
		want  string
		fails string
		calls int // of the worker's own
	}{
		"unavailable":     {"", errDown, "1", "", 2},
		"context":         {"", &backend.ContextLengthError{Prompt: 9, Context: 5}, "1", "", 1},
		"closed":          {"", backend.ErrClosed, "1", "", 2},
		"too slow":        {", timeout: 20ms", nil, "1", "", 2},
		"named":           {", fallback: [second]", errDown, "2", "", 2},
		"in order":        {", fallback: [broken, second]", errDown, "2", "", 2},
		"slow in order":   {", timeout: 20ms, fallback: [slow, second]", nil, "2", "", 2},
		"wrong request":   {"", backend.ErrInvalid, "", "invalid request", 1},
		"wrong there":     {", fallback: [wrong, second]", errDown, "", "then fallback wrong: invalid request", 2},
		"all fail":        {", fallback: broken", errDown, "", "down: backend unavailable; then fallback broken: down", 2},
		"not there":       {", fallback: nobody", errDown, "", `no fallback "nobody": the worker has first, second, broken, wrong, slow`, 0},
		"asks too long":   {", retry: {attempts: 2, max_wait: 1s}", &asks{time.Hour}, "1", "", 1},
		"asks for a long": {"", &asks{time.Hour}, "1", "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // who answers at once is never late
				own := puppet.New()
				if rule := own.OnAny().Reply("0"); c.err != nil {
					rule.Fail(c.err)
				} else {
					rule.Wait(make(chan struct{}))
				}
				others := map[string]*puppet.Model{}
				r := newRig(t, own, nil, fmt.Sprintf(once, c.terms), nil, StartOptions{Retry: Retry{Attempts: 2}})
				for _, name := range []string{"first", "second", "broken", "wrong", "slow"} {
					others[name] = puppet.New()
					r.w.cfg.Fallback = append(r.w.cfg.Fallback, Fallback{name, others[name]})
				}
				others["first"].OnAny().Reply("1")
				others["second"].OnAny().Reply("2")
				others["broken"].OnAny().Fail(errDown)
				others["wrong"].OnAny().Fail(backend.ErrInvalid)
				others["slow"].OnAny().Reply("no").Wait(make(chan struct{}))
				got, err := r.run()
				require.Equal(t, c.calls, own.Calls("x"))
				if c.fails != "" {
					require.ErrorContains(t, err, c.fails)
					return
				}
				require.NoError(t, err)
				require.Equal(t, fmt.Sprintf("%q", c.want), string(got.Value))
				require.Len(t, got.Fallbacks, 1)
			})
		})
	}
}

// TestFallbackBeginsAnew: nothing of what the first model wrote is given to the
// next, and listeners drop it.
func TestFallbackBeginsAnew(t *testing.T) {
	own := &breaks{fingerprint: "same", plan: []int{3, 4}, fails: errDown, length: 9}
	next := &breaks{fingerprint: "other", length: 5}
	r := newRig(t, own, nil, fmt.Sprintf(once, ""), nil, StartOptions{Retry: Retry{Attempts: 2}})
	r.w.cfg.Fallback = []Fallback{{"next", next}}
	rec := r.listen()
	got, err := r.run()
	require.NoError(t, err)
	require.Equal(t, `"12345"`, string(got.Value))
	require.Equal(t, []backend.Token{1, 2, 3}, own.reqs[1].Resume, "the same model goes on")
	require.Empty(t, next.reqs[0].Resume)
	require.Equal(t, []string{
		"run_started", "node_started x",
		"delta x 0 1", "delta x 1 2", "delta x 2 3", "node_retried x",
		"delta x 0 1", "delta x 1 2", "delta x 2 3", "delta x 3 4", "node_retried x",
		"delta x 0 1", "delta x 1 2", "delta x 2 3", "delta x 3 4", "delta x 4 5",
		"node_finished x by next", "run_finished",
	}, rec.lines())
}

// TestModelThatBeginsAnew: a text that differs from the lost one replaces it.
func TestModelThatBeginsAnew(t *testing.T) {
	w := newWorker(Config{Backend: &breaks{fingerprint: "f", length: 4, anew: true}, Store: newMemory()})
	rec := &recorder{}
	w.events.open = func(string) runtime.Sink { return rec }
	pub := w.events.of("run", "1")
	pub.emit(runtime.Event{Kind: runtime.TextDelta, Task: "x", Text: "239"})
	_, beats, err := attemptOf(t, w, &progress{Tokens: []backend.Token{2, 9, 4}, Model: "f"})
	require.NoError(t, err)
	require.Equal(t, []backend.Token{2, 3, 4, 5}, beats[len(beats)-1].Tokens)
	require.Equal(t, []string{"delta x 0 239", "node_started x", "node_retried x", "delta x 0 234", "delta x 3 5"}, rec.lines())
}

// attemptOf makes one attempt at a generation behind what an earlier one had, and
// returns its answer and its heartbeats, with the state at the end as the last.
func attemptOf(t *testing.T, w *Worker, before *progress) (*answer, []progress, error) {
	var s testsuite.WorkflowTestSuite
	s.SetLogger(quiet{})
	env := s.NewTestActivityEnvironment()
	var at *attempt
	env.RegisterActivityWithOptions(func(ctx context.Context, a ask) (*answer, error) {
		at = w.attempt(ctx, &a)
		defer at.stop()
		req := *a.Generate
		res, err := at.request(func(ctx context.Context, be backend.Backend, s *stream) (runtime.Result, error) {
			own := req
			own.Resume = s.resume
			out, err := runtime.Generate(ctx, be, &own, func(d backend.Delta) { s.delta(ctx, d) })
			return runtime.Result{Generate: out}, err
		})
		return at.done(&answer{Result: res}, err)
	}, activity.RegisterOptions{Name: activityGenerate})
	if before != nil {
		env.SetHeartbeatDetails(*before)
	}
	var beats []progress
	v, err := env.ExecuteActivity(activityGenerate, ask{Run: "run", First: "1", Task: "x", Node: "x", Generate: &backend.Request{ID: "x"}, Retry: Retry{}.withDefaults()})
	beats = append(beats, at.p)
	var out *answer
	if err == nil {
		require.NoError(t, v.Get(&out))
	}
	return out, beats, err
}

// TestHeartbeatKeepsWhatWasResumed: a worker that dies soon after it resumed a
// generation loses nothing of it.
func TestHeartbeatKeepsWhatWasResumed(t *testing.T) {
	before := []backend.Token{1, 2, 3, 4, 5}
	for died, want := range map[int][]backend.Token{
		0: before,
		2: before,
		5: before,
		7: {1, 2, 3, 4, 5, 6, 7},
	} {
		be := &breaks{fingerprint: "f", plan: []int{died}, fails: errDown, length: 9}
		_, beats, err := attemptOf(t, newWorker(Config{Backend: be, Store: newMemory()}), &progress{Tokens: before, Model: "f"})
		require.Error(t, err)
		require.Equal(t, before, be.reqs[0].Resume)
		require.Equal(t, want, beats[0].Tokens, died)
	}
	// Those of another model are of no use.
	be := &breaks{fingerprint: "f", plan: []int{2}, fails: errDown, length: 9}
	_, beats, err := attemptOf(t, newWorker(Config{Backend: be, Store: newMemory()}), &progress{Tokens: before, Model: "g"})
	require.Error(t, err)
	require.Empty(t, be.reqs[0].Resume)
	require.Equal(t, []backend.Token{1, 2}, beats[0].Tokens)
}

// TestAffinity: requests and calls prefer the worker that had the last request, and
// when that worker is gone any other goes on from the tokens of
// its last heartbeat.
func TestAffinity(t *testing.T) {
	be := &breaks{fingerprint: "f", length: 6}
	var calls []string
	r := newRig(t, be, pager(&calls), `
name: homes
steps:
- user: one
- gen: {name: a, max_tokens: 20}
- call: {name: paged, func: page, args: ['"x"'], result: string}
- user: two
- gen: {name: b, max_tokens: 20}
- user: three
- gen: {name: c, max_tokens: 20}
- return: c
`, nil, StartOptions{})
	r.w.queue = "engine-1"
	other := newWorker(Config{Backend: be, Funcs: pager(&calls), Store: r.store})
	other.queue = "engine-2"
	var queues []string
	var mu sync.Mutex
	r.env.SetOnActivityStartedListener(func(info *activity.Info, _ context.Context, args converter.EncodedValues) {
		var a ask
		require.NoError(t, args.Get(&a))
		mu.Lock()
		defer mu.Unlock()
		queues = append(queues, a.Task+" "+info.TaskQueue)
	})
	begun := progress{Tokens: []backend.Token{1, 2, 3}, Model: "f", Tries: 1, Failed: 1}
	gone := temporal.NewTimeoutError(enums.TIMEOUT_TYPE_SCHEDULE_TO_START, nil, begun)
	r.env.OnActivity(activityGenerate, mock.Anything, mock.MatchedBy(func(a ask) bool { return a.Task == "c" && a.Before == nil }), mock.Anything, mock.Anything, mock.Anything).
		Return(nil, gone).Once()
	r.env.OnActivity(activityGenerate, mock.Anything, mock.MatchedBy(func(a ask) bool { return a.Task != "c" || a.Before != nil }), mock.Anything, mock.Anything, mock.Anything).
		Return(r.w.generate)
	r.env.OnActivity(activityCall, mock.Anything, mock.Anything).Return(other.call)
	_, err := r.run()
	require.NoError(t, err)
	common := queues[0][len("a "):]
	require.Equal(t, []string{"a " + common, "paged engine-1", "b engine-1", "c engine-1", "c " + common}, queues)
	require.NotContains(t, common, "engine")
	require.Len(t, be.reqs, 3)
	require.Equal(t, begun.Tokens, be.reqs[2].Resume)
}

// TestTagsOfDurableRuns: a backend that cannot hold a model to tags is not asked
// to, and the report says so.
func TestTagsOfDurableRuns(t *testing.T) {
	m := puppet.New()
	m.SetInfo(func(i *backend.Info) { i.Capabilities.Tags = false })
	m.OnAny().Reply("free text")
	r := newRig(t, m, nil, fmt.Sprintf(once, `, tags: {tags: [{begin: "<a>", end: "</a>"}]}`), nil, StartOptions{})
	got, err := r.run()
	require.NoError(t, err)
	require.Nil(t, m.Log()[0].Request.Constraint.Tags)
	require.Equal(t, []string{"tags: asked for in the prompt only, and read leniently"}, got.Emulated)
}

// TestWorkerStopsDuringUnsafeCall: a call that must not be made twice has a little
// time to end when its worker stops; if it does not, its outcome is unknown.
func TestWorkerStopsDuringUnsafeCall(t *testing.T) {
	for name, c := range map[string]struct {
		ends bool
		want string
	}{
		"in time": {true, `"paged"`},
		"not":     {false, `"by hand"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stop := make(chan struct{})
				f, err := lang.NewFunc("page", func(ctx context.Context, who string) (string, error) {
					close(stop)
					if c.ends {
						return "paged", nil
					}
					<-ctx.Done()
					return "", ctx.Err()
				})
				require.NoError(t, err)
				r := newRig(t, clever(), lang.Funcs{"page": f}, effect, nil, StartOptions{})
				r.w.cfg.Stop = 20 * time.Millisecond
				r.env.SetWorkerStopChannel(stop)
				r.env.RegisterDelayedCallback(func() {
					r.env.UpdateWorkflow(Settles, "", &testsuite.TestUpdateCallback{
						OnReject: func(err error) { t.Error(err) }, OnAccept: func() {}, OnComplete: func(any, error) {},
					}, Settlement{Task: "sent", Result: []byte(`"by hand"`)})
				}, 24*time.Hour)
				got, err := r.run()
				require.NoError(t, err)
				require.Equal(t, c.want, string(got.Value))
			})
		})
	}
}

// TestUnknownOutcomesOutliveHistories: calls of unknown outcome are not made again
// however many histories there are, hold up nothing, and take no room.
func TestUnknownOutcomesOutliveHistories(t *testing.T) {
	var calls []string
	r := newRig(t, clever(), pager(&calls), `
name: mixed
steps:
- fork:
    name: arms
    arms:
    - name: one
      steps:
      - call: {name: sent, func: page, args: ['"x"'], result: string, unsafe: true}
      yield: sent
    - name: two
      steps:
      - call: {name: sent, func: page, args: ['"y"'], result: string, unsafe: true}
      yield: sent
    - name: model
      steps:
      - repeat:
          name: rounds
          max: 5
          index: i
          steps:
          - user: ${i}
          - gen: {name: x, max_tokens: 5}
      yield: '"done"'
- return: join(arms, "+")
`, nil, StartOptions{Window: 1})
	histories, settled := 0, map[string]bool{}
	var tree Tree
	r.each = func() {
		histories++
		if histories == 1 {
			r.env.OnActivity(activityCall, mock.Anything, mock.Anything).Return(nil, temporal.NewHeartbeatTimeoutError()).Twice()
			r.env.OnActivity(activityCall, mock.Anything, mock.Anything).Return(r.w.call)
			r.env.SetContinueAsNewSuggested(true)
		}
		settle := func(task string) func() {
			return func() {
				if tree.Run == "" {
					v, err := r.env.QueryWorkflow(QueryTree)
					require.NoError(t, err)
					require.NoError(t, v.Get(&tree))
				}
				if settled[task] {
					return
				}
				settled[task] = true
				r.env.UpdateWorkflow(Settles, "", &testsuite.TestUpdateCallback{
					OnReject: func(err error) { t.Error(err) }, OnAccept: func() {}, OnComplete: func(any, error) {},
				}, Settlement{Task: task, Result: []byte(`"by hand"`)})
			}
		}
		r.env.RegisterDelayedCallback(settle("arms/one/sent"), 24*time.Hour)
		r.env.RegisterDelayedCallback(settle("arms/two/sent"), 25*time.Hour)
	}
	r.fresh()
	got, err := r.run()
	require.NoError(t, err)
	require.Empty(t, calls)
	require.Greater(t, histories, 3)
	require.Equal(t, `"by hand+by hand+done"`, string(got.Value))
	require.Len(t, tree.Unknown, 2)
	require.Equal(t, 5, tree.Finished)
}

// TestSettlementsAreOfTheRightType: what somebody says a call returned is refused
// if it cannot be.
func TestSettlementsAreOfTheRightType(t *testing.T) {
	var calls []string
	r := newRig(t, clever(), pager(&calls), effect, nil, StartOptions{})
	r.env.OnActivity(activityCall, mock.Anything, mock.Anything).Return(nil, temporal.NewHeartbeatTimeoutError()).Once()
	var refused []string
	for i, s := range []Settlement{
		{Task: "sent", Result: []byte(`17`)},
		{Task: "sent", Result: []byte(`{"no": "string"}`)},
		{Task: "sent", Result: []byte(`"by hand"`)},
	} {
		r.env.RegisterDelayedCallback(func() {
			r.env.UpdateWorkflow(Settles, "", &testsuite.TestUpdateCallback{
				OnReject: func(err error) { refused = append(refused, err.Error()) }, OnAccept: func() {}, OnComplete: func(any, error) {},
			}, s)
		}, time.Duration(i+1)*time.Hour)
	}
	got, err := r.run()
	require.NoError(t, err)
	require.Equal(t, `"by hand"`, string(got.Value))
	require.Len(t, refused, 2)
	for _, s := range refused {
		require.Contains(t, s, "does not fit page, which returns string")
	}
}

func TestWaitsOfRetries(t *testing.T) {
	down := Retry{Attempts: 4, Wait: time.Second}
	for i, c := range []struct {
		r     Retry
		n     int
		err   error
		wait  time.Duration
		again bool
	}{
		{down, 1, errDown, time.Second, true},
		{down, 3, errDown, 4 * time.Second, true},
		{down, 4, errDown, 0, false},
		{down, 1, backend.ErrInvalid, 0, false},
		{Retry{Attempts: 90, Wait: time.Second}, 80, errDown, time.Minute, true},
		{down, 1, &asks{time.Hour}, time.Hour, true},
		// A node that says how long it waits at most is not kept waiting longer.
		{Retry{Attempts: 4, Wait: time.Second, Max: 10 * time.Minute}, 1, &asks{time.Hour}, 0, false},
		{Retry{Attempts: 4, Wait: time.Second, Max: 2 * time.Hour}, 1, &asks{time.Hour}, time.Hour, true},
	} {
		wait, again := c.r.wait(c.n, c.err, false)
		require.Equal(t, c.again, again, i)
		if again {
			require.Equal(t, c.wait, wait, i)
		}
	}
}
