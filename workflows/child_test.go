package workflows

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

const nested = `
name: nested
inputs: {text: string}
programs:
  leaf:
    inputs: {of: string, deep: {type: int, default: 3}}
    steps:
    - user: ${of} at ${deep}
    - gen: {name: x, max_tokens: 20, temperature: 0.5}
    - sleep: {for: 1h}
    - return: '{said: x, deep: deep}'
  middle:
    inputs: {of: string}
    steps:
    - system: Shared words.
    - fork:
        name: f
        each: [a, b]
        steps:
        - user: Now ${item}.
        - gen: {name: view, max_tokens: 20}
        - run: {name: got, program: leaf, with: {of: view + item}}
        - user: It is ${got.said}
        - gen: {name: end, max_tokens: 20}
        yield: end
    - call: {name: paged, func: page, args: [of], result: string}
    - return: '{paged: paged, all: f}'
steps:
- user: ${text}
- run: {name: first, program: leaf, with: {of: text, deep: 1}}
- fork:
    name: all
    over: split("u v w", " ")
    steps:
    - run: {name: sub, program: middle, with: {of: item + first.said}}
    yield: sub
- user: 'So: ${all}'
- gen: {name: last, max_tokens: 20}
- return: '{last: last, all: all, first: first}'
`

func nestedModel() *puppet.Model {
	m := puppet.New()
	m.OnRegexp(`(?s)assistant: $`).ReplyFunc(func(p *puppet.Prompt) (string, error) { return fmt.Sprintf("%s %d", p.ID, len(p.Text)), nil })
	return m
}

// TestChildrenEqualRunInProcess: programs that are steps are workflows of their own,
// and nothing of what comes out shows it; not over new histories either.
func TestChildrenEqualRunInProcess(t *testing.T) {
	args := lang.Args{"text": "Begin."}
	var wantCalls, calls []string
	g := program(t, nested)
	wantModel := nestedModel()
	want, err := runtime.RunGraph(context.Background(), wantModel, withoutSleep(t, g), pager(&wantCalls), args, runtime.WithSeed(3), runtime.WithRun("test/"))
	require.NoError(t, err)
	for _, history := range []int{0, 20} {
		calls = nil
		model := nestedModel()
		r := newRig(t, model, pager(&calls), nested, args, StartOptions{Seed: 3, History: history})
		got, err := r.run()
		require.NoError(t, err, history)
		require.Equal(t, string(want.Value), string(got.Value), history)
		require.ElementsMatch(t, wantCalls, calls)
		seeds := map[string]uint64{}
		for _, c := range wantModel.Log() {
			seeds[c.ID] = c.Request.Sampling.Seed
		}
		require.Len(t, model.Log(), len(seeds), history)
		for _, c := range model.Log() {
			require.Equal(t, seeds[c.ID], c.Request.Sampling.Seed, c.ID)
		}
		require.Equal(t, want.Usage.PromptTokens, got.Usage.PromptTokens, history)
		require.Equal(t, want.Usage.SampledTokens, got.Usage.SampledTokens, history)
		require.Equal(t, "all[2]/sub/f[1]/got", got.Branches[3].Branches[0].Branches[1].Branches[0].ID)
	}
}

// withoutSleep is a graph as it is for a clock that is not skipped.
func withoutSleep(t *testing.T, g *lang.Graph) *lang.Graph {
	data, err := g.YAML()
	require.NoError(t, err)
	g, err = lang.Decode([]byte(strings.ReplaceAll(string(data), "1h0m0s", "1ms")), "x")
	require.NoError(t, err)
	return g
}

func TestChildFails(t *testing.T) {
	m := nestedModel()
	r := newRig(t, m, nil, `
name: failing
programs:
  sub:
    steps:
    - user: hi
    - gen: {name: x, max_tokens: 5}
    - json: {name: v, type: "{n: int}"}
    - return: v.n
steps:
- fork:
    name: f
    each: [a]
    steps:
    - run: {name: n, program: sub}
    yield: n
    join: collect
    errors: why
- return: why[0]
`, nil, StartOptions{})
	got, err := r.run()
	require.NoError(t, err)
	require.Contains(t, string(got.Value), "test.yaml:16: f[0]/n: program sub: test.yaml:9: f[0]/n/v: puppet: ")
	require.Equal(t, runtime.Failed, got.Branches[0].Status)
	require.Equal(t, runtime.Failed, got.Branches[0].Branches[0].Status)
	require.Positive(t, got.Branches[0].Branches[0].Usage.SampledTokens)
	require.Equal(t, got.Usage, got.Branches[0].Usage)
}

func TestChildHasBudgets(t *testing.T) {
	const spender = `
name: frugal
programs:
  sub:
    budget: {generated: OWN}
    steps:
    - repeat: {name: r, max: 50, steps: [{user: go}, {gen: {name: x, max_tokens: 5}}]}
    - return: x
steps:
- run: {name: first, program: sub}
- return: first
`
	m := puppet.New()
	m.OnRegexp(".*").Reply("12345")
	for _, c := range []struct {
		own   string
		whole *lang.Budget
		want  string
	}{
		{"20", nil, "generated tokens 20 of 20"},
		{"1000", &lang.Budget{Generated: 30}, "generated tokens 30 of 30"},
	} {
		r := newRig(t, m, nil, strings.Replace(spender, "OWN", c.own, 1), nil, StartOptions{Budget: c.whole})
		_, err := r.run()
		require.ErrorContains(t, err, c.want)
	}
	// Its time is over while it sleeps.
	r := newRig(t, m, nil, `
name: slow
programs:
  sub:
    budget: {time: 10m}
    steps:
    - sleep: {for: 1h}
    - return: "1"
steps:
- run: {name: first, program: sub}
- return: first
`, nil, StartOptions{})
	start := r.env.Now()
	_, err := r.run()
	require.ErrorContains(t, err, "first: program sub: the budget of the run is used up: time 10m0s of 10m0s")
	require.Less(t, r.env.Now().Sub(start), time.Hour)
	require.Equal(t, "budget", codeOf(t, err))
}

// codeOf is the code that a failed run has.
func codeOf(t *testing.T, err error) string {
	var app *temporal.ApplicationError
	require.ErrorAs(t, err, &app)
	require.Equal(t, typeProgram, app.Type())
	var code string
	require.NoError(t, app.Details(&code))
	return code
}

// TestTimeOfARunIsOver: it is a budget's or a deadline's, whichever ends first, also
// where an activity that is under way meets it before the run does. An attempt that
// would come too late is not waited for.
func TestTimeOfARunIsOver(t *testing.T) {
	for name, c := range map[string]struct {
		budget, deadline time.Duration
		code, says       string
	}{
		"budget":         {time.Minute, 0, "budget", "time 1m0s of 1m0s"},
		"budget first":   {time.Minute, time.Hour, "budget", "time 1m0s of 1m0s"},
		"deadline first": {time.Hour, time.Minute, "timeout", "the deadline of the run is over"},
		"deadline":       {0, time.Minute, "timeout", "the deadline of the run is over"},
	} {
		for _, retries := range []bool{false, true} {
			t.Run(fmt.Sprint(name, retries), func(t *testing.T) {
				m := puppet.New()
				m.OnAny().Fail(errDown)
				r := newRig(t, m, nil, fmt.Sprintf(once, ""), nil, StartOptions{Retry: Retry{Attempts: 1000}})
				begin := r.env.Now()
				if c.budget > 0 {
					r.in.Budget.Time, r.in.Ends = c.budget, begin.Add(c.budget)
				}
				if c.deadline > 0 {
					r.in.Deadline = begin.Add(c.deadline)
				}
				if retries {
					c.code, c.says = "unavailable", "down"
				} else {
					late := temporal.NewTimeoutError(enums.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE, nil)
					r.env.OnActivity(activityGenerate, mock.Anything, mock.Anything, mock.Anything, mock.Anything, mock.Anything).
						After(59*time.Second).Return(nil, late)
				}
				_, err := r.run()
				require.Equal(t, c.code, codeOf(t, err), "%v", err)
				require.ErrorContains(t, err, c.says)
				require.LessOrEqual(t, r.env.Now().Sub(begin), time.Minute)
			})
		}
	}
}

// crowd has n programs that wait, each for a person.
const crowd = `
name: crowd
inputs: {n: int}
programs:
  asker:
    inputs: {who: int}
    steps:
    - wait: {name: ok, ask: "May ${who}?"}
    - return: ok
steps:
- fork:
    name: all
    over: 1..n
    steps:
    - run: {name: sub, program: asker, with: {who: item}}
    yield: sub
- return: len(all)
`

const askingChild = `
name: outer
programs:
  sub:
    inputs: {who: string}
    steps:
    - wait: {name: ok, ask: "May ${who}?"}
    - return: ok
steps:
- fork:
    name: f
    each: [u, v]
    steps:
    - run: {name: sub, program: sub, with: {who: item}}
    yield: sub
- return: f
`

// TestChildIsAnswered: an answer that comes to the run finds the program that waits
// for it, before it is there too, and one that is handed over.
func TestChildIsAnswered(t *testing.T) {
	r := newRig(t, puppet.Null{}, nil, askingChild, nil, StartOptions{})
	r.env.RegisterDelayedCallback(func() {
		r.env.SignalWorkflow(Answers, Answer{Task: "f[0]/sub/ok", Value: json.RawMessage("true")})
	}, 0)
	r.env.RegisterDelayedCallback(func() {
		v, err := r.env.QueryWorkflow(QueryTree)
		require.NoError(t, err)
		var tree Tree
		require.NoError(t, v.Get(&tree))
		require.Len(t, tree.Tasks, 1)
		require.Equal(t, "f[1]/sub", tree.Tasks[0].Task)
		require.Contains(t, tree.Tasks[0].Run, "test/f[1]/sub~")
		r.env.SignalWorkflow(Answers, Answer{Task: "f[1]/sub/ok", Value: json.RawMessage("false")})
	}, time.Hour)
	got, err := r.run()
	require.NoError(t, err)
	require.JSONEq(t, "[true, false]", string(got.Value))
}

// TestAnswerComesLate: an answer that is on its way to a program which hands over
// meanwhile is not lost.
func TestAnswerComesLate(t *testing.T) {
	r := newRig(t, puppet.Null{}, nil, askingChild, nil, StartOptions{})
	r.env.RegisterDelayedCallback(func() {
		v, err := r.env.QueryWorkflow(QueryTree)
		require.NoError(t, err)
		var tree Tree
		require.NoError(t, v.Get(&tree))
		require.Len(t, tree.Tasks, 2)
		for i, x := range tree.Tasks {
			require.NoError(t, r.env.SignalWorkflowByID(x.Run, suspends, nil))
			r.env.SignalWorkflow(Answers, Answer{Task: x.Task + "/ok", Value: json.RawMessage(fmt.Sprint(i == 0))})
		}
	}, time.Hour)
	got, err := r.run()
	require.NoError(t, err)
	require.JSONEq(t, "[true, false]", string(got.Value))
}

// TestFewProgramsBeginAtATime: of many programs the server is asked to start a few at
// a time, and has as many open as a run may have.
func TestFewProgramsBeginAtATime(t *testing.T) {
	const n = 3*maxStarting + 1
	r := newRig(t, puppet.Null{}, nil, crowd, lang.Args{"n": n}, StartOptions{})
	asked := 0
	r.env.SetOnChildWorkflowStartedListener(func(*workflow.Info, workflow.Context, converter.EncodedValues) {
		v, err := r.env.QueryWorkflow(QueryTree)
		require.NoError(t, err)
		var tree Tree
		require.NoError(t, v.Get(&tree))
		asked++
		require.LessOrEqual(t, len(tree.Tasks), asked+maxStarting)
	})
	r.env.RegisterDelayedCallback(func() {
		require.Equal(t, n, asked)
		for i := range n {
			r.env.SignalWorkflow(Answers, Answer{Task: fmt.Sprintf("all[%d]/sub/ok", i), Value: json.RawMessage("true")})
		}
	}, time.Hour)
	got, err := r.run()
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(n), string(got.Value))
}

func TestChildrenAreCancelled(t *testing.T) {
	r := newRig(t, puppet.Null{}, nil, askingChild, nil, StartOptions{})
	r.env.RegisterDelayedCallback(r.env.CancelWorkflow, time.Minute)
	_, err := r.run()
	var canceled *temporal.CanceledError
	require.ErrorAs(t, err, &canceled)
}

// TestCostlyChildNeedsPrices: a program that is run may bound the cost as well.
func TestCostlyChildNeedsPrices(t *testing.T) {
	child := lang.Define("child", func(p *lang.Program) lang.Var[string] {
		p.Budget(lang.Budget{Cost: 1})
		p.User("hi")
		return p.Gen("a")
	})
	g, err := lang.Define("parent", func(p *lang.Program) lang.Var[string] {
		return lang.Run(p, "it", child, nil)
	}).Compile()
	require.NoError(t, err)
	_, err = newInput(g, nil, StartOptions{Name: "n"})
	require.ErrorContains(t, err, "budget of program child bounds the cost")
}

// TestCarryingIsWorthIt: a history that only holds what was open before is not ended
// for a new one that would begin in the same way.
func TestCarryingIsWorthIt(t *testing.T) {
	const timers = `
name: timers
inputs: {items: "[]int"}
steps:
- fork: {name: all, over: items, steps: [{sleep: {for: 1h}}], yield: "1"}
- return: len(all)
`
	const programs = `
name: programs
inputs: {items: "[]int"}
programs:
  slow: {steps: [{sleep: {for: 1h}}, {return: "1"}]}
steps:
- fork:
    name: both
    arms:
    - {name: early, steps: [{sleep: {for: 30m}}], yield: "1"}
    - name: many
      steps:
      - fork: {name: all, over: items, steps: [{run: {name: x, program: slow}}], yield: x}
      yield: len(all)
- return: both[1]
`
	for name, c := range map[string]struct {
		program   string
		n, length int
		histories int
		results   int // of the first one
	}{
		"timers":         {timers, 600, 1000, 2, 100},
		"timers, long":   {timers, 600, 1200, 2, 1},
		"programs":       {programs, 100, 1900, 1, 0},
		"programs, long": {programs, 100, 2100, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, puppet.Null{}, nil, c.program, lang.Args{"items": numbers(c.n)}, StartOptions{})
			histories := 0
			r.each = func() {
				r.env.SetContinueAsNewSuggested(false)
				if histories++; histories == 1 {
					r.env.RegisterDelayedCallback(func() {
						r.env.SetContinueAsNewSuggested(true)
						r.env.SetCurrentHistoryLength(c.length)
					}, time.Minute)
				}
			}
			r.fresh()
			got, err := r.run()
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(c.n), string(got.Value))
			require.Equal(t, c.histories, histories)
			require.GreaterOrEqual(t, len(r.in.Results), c.results)
		})
	}
}

// TestStatusIsOfAllPrograms: a run whose programs wait for people waits, and one of
// whose programs works does not.
func TestStatusIsOfAllPrograms(t *testing.T) {
	r := newRig(t, puppet.Null{}, nil, askingChild, nil, StartOptions{SearchAttributes: true})
	var seen []string
	r.env.OnUpsertTypedSearchAttributes(mock.Anything).Return(nil).Run(func(args mock.Arguments) {
		s, ok := args.Get(0).(temporal.SearchAttributes).GetKeyword(attrStatus)
		require.True(t, ok)
		seen = append(seen, s)
	})
	r.env.OnSignalExternalWorkflow(mock.Anything, mock.Anything, "", stood, mock.Anything).
		Return(func(_, id, _, name string, s any) error {
			require.Equal(t, "default-test-workflow-id", id)
			r.env.RegisterDelayedCallback(func() { r.env.SignalWorkflow(name, s) }, 0)
			return nil
		})
	for i := range 2 {
		r.env.RegisterDelayedCallback(func() {
			seen = append(seen, "answer")
			r.env.SignalWorkflow(Answers, Answer{Task: fmt.Sprintf("f[%d]/sub/ok", i), Value: json.RawMessage("true")})
		}, time.Duration(i+1)*time.Hour)
	}
	_, err := r.run()
	require.NoError(t, err)
	require.Equal(t, []string{
		statusWaiting, statusWaiting, statusWaiting, // both programs, and then the run
		"answer", statusFinished, "answer", statusFinished, statusFinished,
	}, seen)
}

// TestProgramsOfAnEarlierFormat: a program that began before programs told their runs how
// they stand goes on as its history has it.
func TestProgramsOfAnEarlierFormat(t *testing.T) {
	for format, tells := range map[int]int{1: 0, inputFormat: 1} {
		r := newRig(t, puppet.Null{}, nil, askingChild, nil, StartOptions{SearchAttributes: true})
		in := *r.in
		in.Format, in.At, in.Within, in.First, in.Graph = format, "f/sub", "f[0]/sub", "first", nil
		in.Inputs = json.RawMessage(`{"who":"u"}`)
		told := 0
		r.env.RegisterWorkflowWithOptions(func(ctx workflow.Context) error {
			child := workflow.WithChildOptions(ctx, workflow.ChildWorkflowOptions{WorkflowID: "child"})
			err := workflow.ExecuteChildWorkflow(child, WorkflowType, in, r.in.Graph).Get(ctx, nil)
			for workflow.GetSignalChannel(ctx, stood).ReceiveAsync(nil) {
				told++
			}
			return err
		}, workflow.RegisterOptions{Name: "parent"})
		r.env.OnUpsertTypedSearchAttributes(mock.Anything).Return(nil)
		r.env.RegisterDelayedCallback(func() {
			require.NoError(t, r.env.SignalWorkflowByID("child", Answers, Answer{Task: "f[0]/sub/ok", Value: json.RawMessage("true")}))
		}, time.Hour)
		r.env.ExecuteWorkflow("parent")
		require.NoError(t, r.env.GetWorkflowError())
		require.Equal(t, tells, told, "format %d", format)
	}
}
