package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// memory is a Store that forgets.
type memory struct {
	mu   sync.Mutex
	data map[string][]byte
	puts int
}

func newMemory() *memory { return &memory{data: map[string][]byte{}} }

func (m *memory) Put(data []byte, _ bool) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := Hash(data)
	m.data[h] = append([]byte(nil), data...)
	m.puts++
	return h, nil
}

func (m *memory) Get(hash string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data, ok := m.data[hash]
	if !ok {
		return nil, fmt.Errorf("%s: %w", hash, ErrMissing)
	}
	return data, nil
}

// rig is a run in the SDK's test environment, which skips time.
type rig struct {
	t     *testing.T
	w     *Worker
	env   *testsuite.TestWorkflowEnvironment
	graph *lang.Graph
	in    *Input
	store *memory
	later bool   // the next history is not the first, and short
	each  func() // after each new environment, if not nil
}

func program(t *testing.T, yaml string) *lang.Graph {
	t.Helper()
	g, err := lang.Decode([]byte("coppice: 1\n"+yaml), "test.yaml")
	require.NoError(t, err)
	return g
}

func newRig(t *testing.T, be backend.Backend, funcs lang.Funcs, yaml string, args lang.Args, o StartOptions) *rig {
	t.Helper()
	r := &rig{t: t, graph: program(t, yaml), store: newMemory()}
	vars, err := r.graph.Bind(args)
	require.NoError(t, err)
	if o.Name == "" {
		o.Name = "test"
	}
	r.in, err = newInput(r.graph, vars, o)
	require.NoError(t, err)
	r.w = newWorker(Config{Backend: be, Funcs: funcs, Store: r.store})
	r.fresh()
	return r
}

// fresh makes a new environment, as a new history has.
func (r *rig) fresh() {
	var s testsuite.WorkflowTestSuite
	s.SetLogger(quiet{})
	r.env = s.NewTestWorkflowEnvironment()
	r.env.SetDataConverter(Converter(r.store, nil))
	r.env.SetFailureConverter(FailureConverter(Converter(r.store, nil), nil))
	r.env.SetTestTimeout(time.Minute)
	// A busy machine is no deadlock.
	r.env.SetWorkerOptions(worker.Options{DeadlockDetectionTimeout: time.Minute})
	r.env.RegisterWorkflowWithOptions(r.w.run, workflow.RegisterOptions{Name: WorkflowType})
	r.w.register(r.env)
	r.env.SetContinueAsNewSuggested(r.later)
	if r.each != nil {
		r.each()
	}
}

// run runs to the end, over new histories, and returns the report.
func (r *rig) run() (*runtime.Report, error) {
	for range 1000 {
		r.env.ExecuteWorkflow(WorkflowType, *r.in)
		require.True(r.t, r.env.IsWorkflowCompleted())
		err := r.env.GetWorkflowError()
		var again *workflow.ContinueAsNewError
		if !errors.As(err, &again) {
			if err != nil {
				return nil, err
			}
			var out Outcome
			require.NoError(r.t, r.env.GetWorkflowResult(&out))
			return out.Report()
		}
		next := new(Input)
		require.NoError(r.t, Converter(r.store, nil).FromPayloads(again.Input, next))
		r.in, r.later = next, true
		r.fresh()
	}
	r.t.Fatal("the run has no end")
	return nil, nil
}

// same compares a durable report with one of a run in this process.
func same(t *testing.T, want, got *runtime.Report) {
	t.Helper()
	for _, r := range []*runtime.Report{want, got} {
		r.Run, r.Turns = "", nil
	}
	w, err := json.Marshal(want)
	require.NoError(t, err)
	g, err := json.Marshal(got)
	require.NoError(t, err)
	require.JSONEq(t, string(w), string(g))
}

const everything = `
name: everything
inputs: {alert: string}
steps:
- system: You look at alerts. ${alert}
- fork:
    name: looks
    each: [memory, rollout, network]
    steps:
    - user: Look at ${item}.
    - gen: {name: finding, max_tokens: 40}
    - fork:
        name: deeper
        each: [a, b]
        as: part
        steps:
        - user: Deeper at ${part}.
        - gen: {name: more, max_tokens: 20}
        yield: more
    - user: 'And now? ${join(deeper, "+")}'
    - gen: {name: again, max_tokens: 40}
    yield: finding + ":" + again
- user: 'Findings: ${join(looks, "; ")}'
- select: {name: severity, options: [low, high]}
- when:
    if: severity == "high"
    then:
    - call: {name: paged, func: page, args: [alert], result: string}
    else:
    - let: {name: paged, value: '"nobody"'}
- repeat:
    name: rounds
    max: 3
    index: i
    steps:
    - user: Round ${i}.
    - gen: {name: thought, max_tokens: 10}
- foreach:
    name: each
    over: looks
    as: look
    steps:
    - user: And ${look}?
    - json: {name: v, schema: {type: object, properties: {n: {type: integer}}, required: [n], additionalProperties: false}}
    yield: v.n
- return: '{paged: paged, severity: severity, sum: sum(each)}'
`

func clever() *puppet.Model {
	m := puppet.New()
	m.OnFunc(func(p *puppet.Prompt) bool { return p.Score != nil }).Scores(map[string]float64{"low": -2, "high": -1})
	m.OnFunc(func(p *puppet.Prompt) bool { return strings.HasPrefix(p.ID, "each[") }).ReplyFunc(func(p *puppet.Prompt) (string, error) {
		return fmt.Sprintf(`{"n":%d}`, len(p.Text)%7), nil
	})
	m.OnAny().ReplyFunc(func(p *puppet.Prompt) (string, error) {
		return fmt.Sprintf("%s after %d", p.ID, len(p.Text)), nil
	})
	return m
}

func pager(calls *[]string) lang.Funcs {
	var mu sync.Mutex
	f, err := lang.NewFunc("page", func(ctx context.Context, who string) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		*calls = append(*calls, runtime.IdempotencyKey(ctx))
		return "paged for " + who, nil
	})
	if err != nil {
		panic(err)
	}
	return lang.Funcs{"page": f}
}

func TestDurableRunEqualsRunInProcess(t *testing.T) {
	var calls []string
	args := lang.Args{"alert": strings.Repeat("a long alert text, ", 300)}
	// Usage counts what the cache had, which depends on the order of siblings;
	// one at a time there is only one order.
	want, err := runtime.RunGraph(context.Background(), clever(), program(t, everything), pager(&calls), args, runtime.WithConcurrency(1))
	require.NoError(t, err)
	for _, o := range []StartOptions{{Window: 1}, {Window: 64}} {
		t.Run(fmt.Sprint(o.Window), func(t *testing.T) {
			calls = nil
			be := clever()
			r := newRig(t, be, pager(&calls), everything, args, o)
			got, err := r.run()
			require.NoError(t, err)
			if o.Window > 1 {
				got.Usage, want.Usage = runtime.Usage{}, runtime.Usage{}
				dropUsage(got.Branches)
				dropUsage(want.Branches)
			}
			same(t, want, got)
			require.Len(t, calls, 1)
			require.NotEmpty(t, calls[0])
			for _, c := range be.Log() {
				require.Equal(t, 1, be.Calls(c.ID), c.ID)
			}
		})
	}
}

func dropUsage(bs []runtime.Branch) {
	for i := range bs {
		bs[i].Usage = runtime.Usage{}
		dropUsage(bs[i].Branches)
	}
}

// TestNewHistoriesCarryTheRun: the run goes on in a new history after every
// window of tasks, and nothing is done twice.
func TestNewHistoriesCarryTheRun(t *testing.T) {
	var calls []string
	args := lang.Args{"alert": "x"}
	want, err := runtime.RunGraph(context.Background(), clever(), program(t, everything), pager(&calls), args, runtime.WithConcurrency(1))
	require.NoError(t, err)
	calls = nil
	be := clever()
	r := newRig(t, be, pager(&calls), everything, args, StartOptions{Window: 1})
	r.env.SetContinueAsNewSuggested(true)
	got, err := r.run()
	require.NoError(t, err)
	same(t, want, got)
	require.Len(t, calls, 1)
	require.NotEmpty(t, r.in.Results)
	for _, c := range be.Log() {
		require.Equal(t, 1, be.Calls(c.ID), c.ID)
	}
}

// TestPromptsTravelOnce: however often a long text is part of a prompt, what is
// sent to activities holds it once.
func TestPromptsTravelOnce(t *testing.T) {
	long := strings.Repeat("a runbook of many words. ", 1000)
	var calls []string
	r := newRig(t, clever(), pager(&calls), everything, lang.Args{"alert": long}, StartOptions{})
	var mu sync.Mutex
	inline := 0
	r.env.SetOnActivityStartedListener(func(_ *activity.Info, _ context.Context, args converter.EncodedValues) {
		mu.Lock()
		defer mu.Unlock()
		var a ask
		require.NoError(t, args.Get(&a))
		b, err := json.Marshal(a)
		require.NoError(t, err)
		inline = max(inline, len(b))
	})
	_, err := r.run()
	require.NoError(t, err)
	require.Less(t, inline, 2*len(long), "one call has the text as its argument, no request does")
	total := 0
	for _, d := range r.store.data {
		total += strings.Count(string(d), long)
	}
	// The input, the call and its result, the system turn as a payload and as a
	// context, the report with its variables.
	require.LessOrEqual(t, total, 8)
}

func TestTreeShowsWhatIsOpen(t *testing.T) {
	r := newRig(t, clever(), nil, asking, nil, StartOptions{})
	var tree Tree
	r.env.RegisterDelayedCallback(func() {
		v, err := r.env.QueryWorkflow(QueryTree)
		require.NoError(t, err)
		require.NoError(t, v.Get(&tree))
	}, 10*time.Minute)
	_, err := r.run()
	require.NoError(t, err)
	require.Equal(t, 1, tree.Finished)
	require.Len(t, tree.Tasks, 1)
	require.Equal(t, "both/person/ok", tree.Tasks[0].Task)
	require.Equal(t, "May I?", tree.Tasks[0].Ask)
	require.False(t, tree.Tasks[0].Due.IsZero())
	require.Len(t, tree.Branches, 2)
	require.Equal(t, runtime.Finished, tree.Branches[1].Status)
}

// TestOneOwnerOfRetries counts the requests that a failing backend gets.
func TestOneOwnerOfRetries(t *testing.T) {
	const one = `
name: one
steps:
- user: hello
- gen: {name: x, max_tokens: 5}
- return: x
`
	for name, c := range map[string]struct {
		err      error
		failures int // of the first calls; 0: all
		calls    int
		after    time.Duration
		ok       bool
	}{
		"always unavailable": {fmt.Errorf("500: %w", backend.ErrUnavailable), 0, 3, 0, false},
		"passes":             {fmt.Errorf("reset: %w", backend.ErrUnavailable), 2, 3, 0, true},
		"invalid":            {fmt.Errorf("400: %w", backend.ErrInvalid), 0, 1, 0, false},
		"too long":           {fmt.Errorf("413: %w", backend.ErrContextLength), 0, 1, 0, false},
		"retry after":        {&asks{7 * time.Second}, 1, 2, 7 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			m := puppet.New()
			rule := m.OnAny().Reply("fine")
			if c.failures == 0 {
				rule.Fail(c.err)
			}
			for i := range c.failures {
				rule.FailCall(i+1, c.err)
			}
			r := newRig(t, m, nil, one, nil, StartOptions{Retry: Retry{Attempts: 3}})
			begin := r.env.Now()
			_, err := r.run()
			require.Equal(t, c.ok, err == nil, "%v", err)
			require.Equal(t, c.calls, m.Calls("x"))
			require.GreaterOrEqual(t, r.env.Now().Sub(begin), c.after)
		})
	}
}

// asks is an overload with a time to wait.
type asks struct{ d time.Duration }

func (a *asks) Error() string             { return "429" }
func (a *asks) Unwrap() error             { return backend.ErrOverloaded }
func (a *asks) RetryDelay() time.Duration { return a.d }

const effect = `
name: effect
steps:
- call: {name: sent, func: page, args: ['"x"'], result: string, unsafe: true}
- return: sent
`

// TestUnsafeCallOfUnknownOutcome: a call whose worker was lost is not made again
// until somebody says so.
func TestUnsafeCallOfUnknownOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		s     Settlement
		want  string
		calls int
	}{
		"it happened": {Settlement{Task: "sent", Result: json.RawMessage(`"by hand"`)}, `"by hand"`, 0},
		"again":       {Settlement{Task: "sent", Again: true}, `"paged for x"`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var calls []string
			r := newRig(t, clever(), pager(&calls), effect, nil, StartOptions{})
			lost := temporal.NewHeartbeatTimeoutError()
			r.env.OnActivity(activityCall, mock.Anything, mock.Anything).Return(nil, lost).Once()
			r.env.OnActivity(activityCall, mock.Anything, mock.Anything).Return(r.w.call)
			var tree Tree
			r.env.RegisterDelayedCallback(func() {
				v, err := r.env.QueryWorkflow(QueryTree)
				require.NoError(t, err)
				require.NoError(t, v.Get(&tree))
				r.env.UpdateWorkflow(Settles, "", &testsuite.TestUpdateCallback{
					OnReject: func(err error) { t.Error(err) }, OnAccept: func() {}, OnComplete: func(any, error) {},
				}, c.s)
			}, 24*time.Hour)
			got, err := r.run()
			require.NoError(t, err)
			require.JSONEq(t, c.want, string(got.Value))
			require.Len(t, tree.Unknown, 1)
			require.Equal(t, "page", tree.Unknown[0].Func)
			require.NotEmpty(t, tree.Unknown[0].Key)
			require.Len(t, calls, c.calls)
		})
	}
}

func TestFailedProgramHasAReport(t *testing.T) {
	m := puppet.New()
	m.OnID("b").Fail(backend.ErrInvalid)
	m.OnAny().Reply("fine")
	r := newRig(t, m, nil, `
name: fails
steps:
- user: one
- gen: {name: a, max_tokens: 5}
- user: two
- gen: {name: b, max_tokens: 5}
`, nil, StartOptions{})
	_, err := r.run()
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.Equal(t, typeProgram, app.Type())
	var code string
	var out Outcome
	require.NoError(t, app.Details(&code, &out))
	report, err := out.Report()
	require.NoError(t, err)
	require.Equal(t, 2, report.Tasks)
	require.Contains(t, string(report.Variables), `"a":"fine"`)
}

func TestDeadlineEndsTheRun(t *testing.T) {
	r := newRig(t, clever(), nil, `
name: slow
steps:
- sleep: {for: 2h}
- return: '"late"'
`, nil, StartOptions{})
	r.in.Deadline = r.env.Now().Add(time.Hour)
	_, err := r.run()
	require.ErrorContains(t, err, "deadline of the run")
}

func TestCancelEndsTheRun(t *testing.T) {
	r := newRig(t, clever(), nil, `
name: slow
steps:
- wait: {name: ok, ask: "May I?"}
- return: ok
`, nil, StartOptions{})
	r.env.RegisterDelayedCallback(r.env.CancelWorkflow, time.Hour)
	_, err := r.run()
	var canceled *temporal.CanceledError
	require.ErrorAs(t, err, &canceled)
}

// manyBranches forks over a list.
const manyBranches = `
name: many
inputs: {items: "[]int"}
steps:
- user: Begin.
- fork:
    name: all
    over: items
    steps:
    - user: ${item}
    - gen: {name: x, max_tokens: 2}
    yield: x
- return: len(all)
`

// TestManyBranches: more branches than a server takes pending activities.
func TestManyBranches(t *testing.T) {
	n := 3000
	if testing.Short() {
		n = 300
	}
	r := newRig(t, puppet.Null{}, nil, manyBranches, lang.Args{"items": numbers(n)}, StartOptions{})
	var mu sync.Mutex
	now, most := 0, 0
	r.env.SetOnActivityStartedListener(func(*activity.Info, context.Context, converter.EncodedValues) {
		mu.Lock()
		defer mu.Unlock()
		now++
		most = max(most, now)
	})
	r.env.SetOnActivityCompletedListener(func(*activity.Info, converter.EncodedValue, error) {
		mu.Lock()
		defer mu.Unlock()
		now--
	})
	got, err := r.run()
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(n), string(got.Value))
	require.LessOrEqual(t, most, 64)
}

func numbers(n int) []any {
	out := make([]any, n)
	for i := range out {
		out[i] = i
	}
	return out
}
