package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
)

var digest = lang.Define("digest", func(p *lang.Program) lang.Var[verdict] {
	text := lang.In[string](p, "text")
	mood := lang.In[string](p, "mood", lang.Default("calm"))
	p.System("You are ", mood, ".")
	views := lang.Fork(p, "views", lang.Each("a", "b"), func(b *lang.Branch, side lang.Var[string]) lang.Var[string] {
		b.User(side, " of ", text)
		return b.Gen("view", lang.Temperature(0.7))
	})
	p.User(lang.Join(views, ";"))
	who := lang.Call1(p, "page", pageOut, text)
	p.User(who)
	return lang.JSON[verdict](p, "v")
})

var digests = lang.Define("digests", func(p *lang.Program) lang.Var[[]string] {
	p.System("Top.")
	one := lang.Run(p, "one", digest, lang.Args{"text": "first", "mood": "wild"})
	p.User("It says ", lang.Get[string](one, "reason"))
	p.Gen("next")
	return lang.Fork(p, "rest", lang.Each("second", "third"), func(b *lang.Branch, text lang.Var[string]) lang.Var[string] {
		got := lang.Run(b, "got", digest, lang.Args{"text": text})
		b.User("and ", lang.Get[string](got, "reason"))
		return b.Gen("say")
	})
})

func digestModel() *puppet.Model {
	m := puppet.New()
	m.OnRegexp(`(?s)assistant: $`).ReplyFunc(func(p *puppet.Prompt) (string, error) {
		if strings.HasSuffix(p.ID, "/v") {
			return fmt.Sprintf(`{"reason": "r%d", "page": true}`, len(p.Text)), nil
		}
		return fmt.Sprintf("%s %d", p.ID, len(p.Text)), nil
	})
	return m
}

func TestProgramsAreSteps(t *testing.T) {
	m := digestModel()
	log := &eventList{}
	out, err := Run(t.Context(), m, digests, nil, WithSeed(7), WithRun("r"), WithSink(log))
	require.NoError(t, err)
	require.Len(t, out.Value, 2)
	for _, id := range []string{"one/views[0]/view", "one/v", "rest[1]/got/views[1]/view", "rest[0]/say"} {
		require.Equal(t, 1, m.Calls(id), id)
	}
	// Its context is its own, and so are its variables.
	for _, c := range m.Log() {
		if c.ID == "one/views[0]/view" {
			require.NotContains(t, c.Prompt, "Top.")
			require.Contains(t, c.Prompt, "You are wild.")
		}
		if c.ID == "rest[0]/got/v" {
			require.Contains(t, c.Prompt, "You are calm.")
		}
	}
	require.JSONEq(t, `["one","next","rest"]`, keysOf(t, out.Variables))
	// One tree, one account.
	require.Equal(t, "one", out.Branches[0].ID)
	require.Equal(t, "digest", out.Branches[0].Label)
	require.JSONEq(t, string(mustJSON(t, varOf(t, out.Variables, "one"))), string(out.Branches[0].Value))
	require.Equal(t, "one/views[0]", out.Branches[0].Branches[0].ID)
	require.Equal(t, "rest[1]/got", out.Branches[2].Branches[0].ID)
	sum := 0
	for _, b := range out.Branches {
		sum += b.Usage.PromptTokens
	}
	require.Less(t, sum, out.Usage.PromptTokens)
	var kinds []string
	for _, e := range log.all {
		if e.Branch == "one" && (e.Kind == BranchStarted || e.Kind == BranchFinished) {
			kinds = append(kinds, string(e.Kind))
		}
		if e.Task == "one/v" {
			require.Equal(t, "one", e.Branch)
			require.NotNil(t, compile(t, digests).Node(e.Node), e.Node)
		}
	}
	require.Equal(t, []string{string(BranchStarted), string(BranchFinished)}, kinds)
}

func keysOf(t *testing.T, object json.RawMessage) string {
	var keys []string
	for _, m := range members(object) {
		keys = append(keys, m.key)
	}
	return string(mustJSON(t, keys))
}

func varOf(t *testing.T, object json.RawMessage, name string) json.RawMessage {
	for _, m := range members(object) {
		if m.key == name {
			return m.value
		}
	}
	t.Fatal("no variable ", name)
	return nil
}

func mustJSON(t *testing.T, v any) []byte {
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return data
}

// apart drives a machine whose programs run in machines of their own.
func apart(t *testing.T, m *Machine, opt Options, funcs lang.Funcs, model *puppet.Model) {
	for !m.Done() {
		ready := m.Ready()
		require.NotEmpty(t, ready)
		for _, task := range ready {
			r := Result{Task: task.ID}
			var err error
			switch {
			case task.Generate != nil:
				r.Generate, err = model.Generate(t.Context(), task.Generate, nil)
			case task.Call != nil:
				r.Value, err = CallFunc(WithTask(t.Context(), task), funcs, task.Call)
			case task.Program != nil:
				inner := opt
				inner.Within = task.ID
				var c *Machine
				c, err = NewApart(task.Program.Graph, task.Program.Inputs, inner)
				require.NoError(t, err)
				apart(t, c, opt, funcs, model)
				r.Ran = c.Ran()
				r.Value, err = r.Ran.Branch.Value, c.Err()
			}
			if err != nil {
				r = Result{Task: task.ID, Failure: NewFailure(err), Ran: r.Ran}
			}
			data, err := json.Marshal(r) // as a driver would store it
			require.NoError(t, err)
			r = Result{}
			require.NoError(t, json.Unmarshal(data, &r))
			if err := m.Apply(r); err != nil {
				require.ErrorIs(t, err, ErrCancelledTask)
			}
		}
	}
}

// TestProgramsApartAreTheSame: ids, keys, seeds, values and reports do not depend
// on where a program runs.
func TestProgramsApartAreTheSame(t *testing.T) {
	g := compile(t, digests)
	data, err := g.JSON()
	require.NoError(t, err)
	g, err = lang.Decode(data, "")
	require.NoError(t, err)
	whole := digestModel()
	want, err := RunGraph(t.Context(), whole, g, digests.Funcs(), nil, WithSeed(7), WithRun("r"))
	require.NoError(t, err)
	opt := Options{Run: "r", Seed: 7, Apart: true}
	m, err := New(g, nil, opt)
	require.NoError(t, err)
	model := digestModel()
	apart(t, m, opt, digests.Funcs(), model)
	require.NoError(t, m.Err())
	got := m.Report()
	require.Equal(t, normal(t, want), normal(t, got))
	seeds := func(m *puppet.Model) map[string]uint64 {
		out := map[string]uint64{}
		for _, c := range m.Log() {
			out[c.ID] = c.Request.Sampling.Seed
		}
		return out
	}
	require.Equal(t, seeds(whole), seeds(model))
	plain := func(bs []Branch) string {
		var walk func(bs []Branch) []Branch
		walk = func(bs []Branch) []Branch {
			out := append([]Branch(nil), bs...)
			for i := range out {
				out[i].Usage, out[i].Branches = Usage{}, walk(out[i].Branches)
			}
			return out
		}
		return string(mustJSON(t, walk(bs)))
	}
	require.Equal(t, plain(want.Branches), plain(got.Branches))
	require.Equal(t, want.Tasks, got.Tasks)
}

func TestProgramsResumeFromEveryRecord(t *testing.T) {
	mem := newMemFS()
	opts := func(m *memFS) []Option { return []Option{WithJournal("j"), WithRun("r"), withFS(m)} }
	want, err := RunGraph(t.Context(), digestModel(), compile(t, digests), digests.Funcs(), nil, opts(mem)...)
	require.NoError(t, err)
	whole := mem.files["j"].data
	lines := bytes.SplitAfter(whole, []byte{'\n'})
	for n := 1; n < len(lines); n++ {
		mem := newMemFS()
		mem.files["j"] = &memData{data: bytes.Join(lines[:n], nil)}
		model := digestModel()
		got, err := Resume(t.Context(), model, "j", digests.Funcs(), withFS(mem))
		require.NoError(t, err, n)
		require.Equal(t, normal(t, want), normal(t, got), n)
		require.LessOrEqual(t, len(model.Log())+got.Restored, want.Tasks)
	}
}

func TestProgramsFailWithTheirStep(t *testing.T) {
	boom := errors.New("boom")
	m := puppet.New()
	m.OnID("one/views[1]/view").Fail(boom)
	m.OnRegexp(".*").Reply("x")
	_, err := Run(t.Context(), m, digests, nil)
	require.ErrorIs(t, err, boom)
	var pe *ProgramError
	require.ErrorAs(t, err, &pe)
	require.Equal(t, "digest", pe.Program)
	require.ErrorContains(t, err, "program_test.go:")
	require.ErrorContains(t, err, "one: program digest: ")
	require.Equal(t, []string{"one/views[1]/view"}, failedTasks(err))
}

// TestProgramsAreCancelled: the first branch that is over ends the program that the
// other one runs.
func TestProgramsAreCancelled(t *testing.T) {
	race := lang.Define("race", func(p *lang.Program) lang.Var[[]string] {
		p.User("Go.")
		return lang.Fork(p, "who", lang.Each("slow", "fast"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
			b.When(item.Is("slow"), func(b *lang.Program) { lang.Run(b, "sub", digest, lang.Args{"text": item}) })
			return b.Gen("say")
		}, lang.First())
	})
	m := puppet.New()
	begun := make(chan struct{})
	m.OnID("who[0]/when/then/sub/views[0]/view").ReplyFunc(func(*puppet.Prompt) (string, error) { close(begun); return "x", nil }).Wait(make(chan struct{}))
	m.OnID("who[0]/when/then/sub/views[1]/view").Wait(make(chan struct{}))
	m.OnID("who[1]/say").ReplyFunc(func(*puppet.Prompt) (string, error) { return "won", nil })
	log := &eventList{}
	out, err := Run(t.Context(), m, race, nil, WithSink(log))
	require.NoError(t, err)
	require.Equal(t, []string{"won"}, out.Value)
	over := map[string]Status{}
	for _, e := range log.all {
		if e.Kind == BranchFinished {
			over[e.Branch] = e.Status
		}
	}
	require.Equal(t, Cancelled, over["who[0]/when/then/sub"])
	require.Equal(t, Cancelled, over["who[0]/when/then/sub/views[1]"])
}

const frugal = `
coppice: 1
name: frugal
programs:
  spender:
    budget: {BUDGET}
    steps:
    - user: Go.
    - repeat:
        name: r
        max: 50
        steps:
        - gen: {name: x, max_tokens: 5}
    - return: x
steps:
- fork:
    name: f
    each: [a]
    steps:
    - run: {name: sub, program: spender}
    yield: sub
    join: collect
    errors: why
- return: why[0]
`

func TestProgramsHaveBudgets(t *testing.T) {
	g, err := lang.Decode([]byte(strings.Replace(frugal, "BUDGET", "generated: 20", 1)), "frugal.yaml")
	require.NoError(t, err)
	m := puppet.New()
	m.OnRegexp(".*").Reply("12345")
	mem := newMemFS()
	r, err := RunGraph(t.Context(), m, g, nil, nil, WithJournal("j"), withFS(mem))
	require.NoError(t, err)
	require.Contains(t, string(r.Value), "generated tokens 20 of 20")
	require.Contains(t, string(r.Value), "frugal.yaml:20: f[0]/sub: program spender: ")
	require.Equal(t, 1, m.Calls("f[0]/sub/r[3]/x"))
	require.Zero(t, m.Calls("f[0]/sub/r[4]/x"))
	// What it was ended by is recorded.
	again, err := Resume(t.Context(), nil, "j", nil, withFS(mem))
	require.NoError(t, err)
	require.Equal(t, normal(t, r), normal(t, again))

	g, err = lang.Decode([]byte(strings.Replace(frugal, "BUDGET", "time: 10ms", 1)), "frugal.yaml")
	require.NoError(t, err)
	m = puppet.New()
	m.OnRegexp(".*").Wait(make(chan struct{}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err = RunGraph(ctx, m, g, nil, nil)
	require.NoError(t, err)
	require.Contains(t, string(r.Value), "time 10ms of 10ms")

	g, err = lang.Decode([]byte(strings.Replace(frugal, "BUDGET", "cost: 1", 1)), "frugal.yaml")
	require.NoError(t, err)
	_, err = RunGraph(t.Context(), m, g, nil, nil)
	require.ErrorContains(t, err, "frugal.yaml:20: f/sub: the budget of program spender bounds the cost")
}

func TestScriptsRunPrograms(t *testing.T) {
	solve := lang.Script("solve", func(s *lang.S, in string) ([]string, error) {
		var out []string
		for i := range s.Turns("try", 2) {
			v, err := lang.Run(s, "sub", digest, lang.Args{"text": fmt.Sprint(in, i)}).Get()
			if err != nil {
				return nil, err
			}
			out = append(out, v.Reason)
		}
		return lang.Map(s, "more", out, func(b *lang.S, text string) (string, error) {
			v, err := lang.Run(b, "sub", digest, lang.Args{"text": text}).Get()
			return v.Reason, err
		})
	})
	mem := newMemFS()
	m := digestModel()
	out, err := RunScript(t.Context(), m, solve, "q", WithJournal("j"), withFS(mem), WithRun("r"))
	require.NoError(t, err)
	require.Len(t, out.Value, 2)
	require.Equal(t, 1, m.Calls("try[1]/sub/v"))
	require.Equal(t, 1, m.Calls("more[0]/sub/views[1]/view"))
	lines := bytes.SplitAfter(mem.files["j"].data, []byte{'\n'})
	for n := 1; n < len(lines); n += 5 {
		mem := newMemFS()
		mem.files["j"] = &memData{data: bytes.Join(lines[:n], nil)}
		got, err := RunScript(t.Context(), digestModel(), solve, "q", WithJournal("j"), withFS(mem), WithRun("r"))
		require.NoError(t, err, n)
		require.Equal(t, out.Value, got.Value)
	}
}

func TestMachineRefusesResultsOfProgramsThatRunHere(t *testing.T) {
	m, err := New(compile(t, digests), nil, Options{})
	require.NoError(t, err)
	require.ErrorIs(t, m.Apply(Result{Task: "one", Value: json.RawMessage("1")}), ErrBadResult)
	require.NoError(t, m.Apply(Result{Task: "one", Failure: NewFailure(errors.New("enough"))}))
	require.True(t, m.Done())
	require.EqualError(t, m.Err(), m.Err().Error())
	require.Contains(t, m.Err().Error(), "one: program digest: enough")
	require.ElementsMatch(t, []string{}, m.Changes().Cancel) // nobody saw the tasks
	_, err = NewApart(compile(t, digests), nil, Options{})
	require.Error(t, err)
}

type eventList struct{ all []Event }

func (l *eventList) Emit(e Event) { l.all = append(l.all, e) }
