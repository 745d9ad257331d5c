package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// noLeaks fails the test if goroutines of the runner outlive it.
func noLeaks(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		deadline := time.Now().Add(time.Minute)
		buf := make([]byte, 1<<20)
		for {
			stacks := string(buf[:goruntime.Stack(buf, true)])
			n := strings.Count(stacks, "runtime.(*runner).perform")
			if n == 0 {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("%d tasks are still running:\n%s", n, stacks)
				return
			}
			goruntime.Gosched()
		}
	})
}

type verdict struct {
	Pod    string `json:"pod"`
	Reason string `json:"reason"`
	OOM    bool   `json:"oom_killed"`
}

var paged atomic.Int32

func page(ctx context.Context, alert string) (string, error) {
	paged.Add(1)
	return "paged for " + alert + " with " + runtime.IdempotencyKey(ctx) + " in " + runtime.TaskID(ctx), nil
}

var triage = lang.Define("triage", func(p *lang.Program) lang.Var[verdict] {
	alert := lang.In[string](p, "alert")
	p.System("You are on call.")
	p.User("Alert: ", alert)
	looks := lang.Fork(p, "looks", lang.Each("memory", "rollout", "network"),
		func(b *lang.Branch, angle lang.Var[string]) lang.Var[string] {
			b.User("Look only at ", angle, ".")
			return b.Gen("finding", lang.MaxTokens(80), lang.Stop("\n"))
		})
	p.User("Findings:\n", lang.Join(looks, "\n"))
	sev := lang.Select(p, "severity", "low", "high", "critical")
	p.When(sev.Is("critical"), func(p *lang.Program) {
		lang.Call1(p, "receipt", page, alert)
	})
	return lang.JSON[verdict](p, "verdict")
})

func triageModel() *puppet.Model {
	m := puppet.New()
	m.OnRegexp(`Look only at (\w+)\.`).Reply("$1 is bad\nand more")
	m.OnID("severity").Scores(map[string]float64{"low": -5, "high": -2, "critical": -0.2})
	m.OnID("verdict").Reply(`{"pod":"p <1>","reason":"OOMKilled","oom_killed":true}`)
	return m
}

func TestRunGivesTypedValueBranchesAndUsage(t *testing.T) {
	noLeaks(t)
	m := puppet.New()
	for i, a := range []string{"memory", "rollout", "network"} {
		m.OnID(fmt.Sprintf("looks[%d]/finding", i)).Reply(a + " is bad\nand more")
	}
	m.OnID("severity").Scores(map[string]float64{"low": -5, "high": -2, "critical": -0.2})
	m.OnID("verdict").Reply(`{"pod": "p <1>", "reason": "OOMKilled", "oom_killed": true}`)
	before := paged.Load()
	out, err := runtime.Run(t.Context(), m, triage, lang.Args{"alert": "pod down"}, runtime.WithRun("r1"))
	if err != nil {
		t.Fatal(err)
	}
	if out.Value != (verdict{"p <1>", "OOMKilled", true}) {
		t.Errorf("value %+v", out.Value)
	}
	if want := `{"pod":"p <1>","reason":"OOMKilled","oom_killed":true}`; string(out.Report.Value) != want {
		t.Errorf("value %s", out.Report.Value)
	}
	if paged.Load() != before+1 {
		t.Error("page was not called once")
	}
	var vars map[string]any
	if err := json.Unmarshal(out.Variables, &vars); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(vars["looks"]); got != "[memory is bad rollout is bad network is bad]" {
		t.Errorf("looks = %s", got)
	}
	if got := vars["receipt"]; got != "paged for pod down with 2:r1:when/then/receipt in when/then/receipt" {
		t.Errorf("receipt = %v", got)
	}
	if len(out.Branches) != 3 {
		t.Fatalf("%d branches", len(out.Branches))
	}
	b := out.Branches[1]
	if b.ID != "looks[1]" || b.Label != "rollout" || b.Status != runtime.Finished || string(b.Value) != `"rollout is bad"` {
		t.Errorf("branch %+v", b)
	}
	if len(b.Turns) != 2 || b.Turns[0].Text != "Look only at rollout." || b.Turns[1] != (runtime.Turn{Role: "assistant", Text: "rollout is bad"}) {
		t.Errorf("turns %+v", b.Turns)
	}
	if out.Tasks != 6 || out.Restored != 0 {
		t.Errorf("%d tasks, %d restored", out.Tasks, out.Restored)
	}
	u := out.Usage
	if u.PromptTokens == 0 || u.CachedTokens == 0 || u.ForwardPasses == 0 || u.Without.ComputedTokens <= u.ComputedTokens {
		t.Errorf("usage %+v", u)
	}
	// What a model wrote goes back as the ids it wrote, whole.
	last := m.Log()[len(m.Log())-1].Request
	for _, turn := range last.Turns {
		for _, p := range turn.Parts {
			if turn.Role == backend.Assistant && puppet.Text(p.Tokens) != p.Text {
				t.Errorf("part %+v lost its ids", p)
			}
		}
	}
}

func TestValueKeepsTheOrderOfKeysThatTheModelWrote(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply(`{"z": {"y": 1.50, "x": "<&>"}, "a": [{"d": 1e2, "c": null}]}`)
	schema := json.RawMessage(`{"type": "object", "additionalProperties": true}`)
	whole := lang.Define("whole", func(p *lang.Program) lang.Var[any] {
		p.User("x")
		return lang.JSONSchema(p, "v", schema)
	})
	part := lang.Define("part", func(p *lang.Program) lang.Var[any] {
		p.User("x")
		v := lang.JSONSchema(p, "v", schema)
		return lang.Get[any](v, "z")
	})
	forked := lang.Define("forked", func(p *lang.Program) lang.Var[[]any] {
		p.User("x")
		return lang.Fork(p, "f", lang.Each("a", "b"), func(b *lang.Branch, it lang.Var[string]) lang.Var[any] {
			return lang.JSONSchema(b, "v", schema)
		})
	})
	const object = `{"z":{"y":1.50,"x":"<&>"},"a":[{"d":1e2,"c":null}]}`
	for want, g := range map[string]*lang.Graph{
		object:                            graphOf(t, whole),
		`{"y":1.50,"x":"<&>"}`:            graphOf(t, part),
		"[" + object + "," + object + "]": graphOf(t, forked),
	} {
		r, err := runtime.RunGraph(t.Context(), m, g, nil, nil)
		if err != nil || string(r.Value) != want {
			t.Errorf("%s: %s %v", g.Name, r.Value, err)
		}
	}
}

func TestReportHasTheFieldsOfThePublicContract(t *testing.T) {
	out, err := runtime.RunGraph(t.Context(), puppet.Null{}, graphOf(t, fork8), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(out)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"value", "variables", "usage", "branches", "restored"} {
		if doc[key] == nil {
			t.Errorf("no %q in %s", key, text)
		}
	}
	want := `{"prompt_tokens":0,"computed_tokens":0,"cached_tokens":0,"forced_tokens":0,"sampled_tokens":0,"forward_passes":0,"without":{"computed_tokens":0,"forward_passes":0}}`
	if string(doc["usage"]) != want {
		t.Errorf("usage %s", doc["usage"])
	}
}

func graphOf[T any](t testing.TB, def *lang.Def[T]) *lang.Graph {
	t.Helper()
	g, err := def.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestProgramIsCheckedAgainstTheBackendBeforeTheFirstCall(t *testing.T) {
	m := triageModel()
	m.SetInfo(func(info *backend.Info) {
		info.Model = "chat-only"
		info.Capabilities = backend.Capabilities{Regex: true}
	})
	_, err := runtime.Run(t.Context(), m, triage, lang.Args{"alert": "x"})
	var missing *runtime.UnsupportedError
	if !errors.As(err, &missing) || !errors.Is(err, backend.ErrUnsupported) {
		t.Fatal(err)
	}
	if len(missing.Missing) != 2 || missing.Missing[0].Node != "severity" || missing.Missing[1].Need != "json_schema" {
		t.Errorf("missing %+v", missing.Missing)
	}
	if !strings.Contains(err.Error(), "runner_test.go:") {
		t.Errorf("no position in %v", err)
	}
	if len(m.Log()) != 0 {
		t.Error("the backend was called")
	}
}

func TestMissingFunctionIsFoundBeforeTheFirstCall(t *testing.T) {
	m := triageModel()
	_, err := runtime.RunGraph(t.Context(), m, graphOf(t, triage), nil, lang.Args{"alert": "x"})
	if err == nil || !strings.Contains(err.Error(), "receipt") || len(m.Log()) != 0 {
		t.Error(err)
	}
}

func TestNoReadHangsWhenTheContextEnds(t *testing.T) {
	noLeaks(t)
	m := triageModel()
	gate := puppet.NewGate() // never opened
	m.SetGate(gate)
	why := errors.New("user went home")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		gate.HeldCount(ctx, 3)
		cancel(why)
	}()
	out, err := runtime.Run(ctx, m, triage, lang.Args{"alert": "x"})
	if !errors.Is(err, why) {
		t.Errorf("err = %v", err)
	}
	if out == nil || len(out.Branches) != 3 || out.Branches[0].Status != runtime.Running {
		t.Errorf("the report does not say how far the run came: %+v", out)
	}
}

func TestRunReturnsThoughAFunctionIgnoresItsContext(t *testing.T) {
	stuck := make(chan struct{})
	entered := make(chan struct{})
	f, err := lang.NewFunc("sleepy", func(ctx context.Context) error { close(entered); <-stuck; return nil })
	if err != nil {
		t.Fatal(err)
	}
	def := lang.Define("p", func(p *lang.Program) lang.Var[any] { return lang.Call(p, "zzz", f) })
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	_, err = runtime.Run(ctx, puppet.New(), def, nil, runtime.WithGrace(1))
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "left behind") || !strings.Contains(err.Error(), "zzz") {
		t.Error(err)
	}
	close(stuck)
	noLeaks(t)
}

func TestPanicsAreErrorsOfTheirNode(t *testing.T) {
	noLeaks(t)
	for name, fn := range map[string]func(context.Context, []any) (any, error){
		"panic":  func(context.Context, []any) (any, error) { panic("boom") },
		"goexit": func(context.Context, []any) (any, error) { goruntime.Goexit(); return nil, nil },
		"nan":    func(context.Context, []any) (any, error) { return math.NaN(), nil },
		"chan":   func(context.Context, []any) (any, error) { return make(chan int), nil },
	} {
		f := lang.Func{Name: name, Result: lang.Type{Kind: lang.TypeAny}, Call: fn}
		def := lang.Define("p", func(p *lang.Program) lang.Var[any] { return lang.Call(p, "bad", f) })
		_, err := runtime.Run(t.Context(), puppet.New(), def, nil)
		var node *runtime.NodeError
		if !errors.As(err, &node) || node.Task != "bad" || !strings.Contains(node.Pos.File, "runner_test.go") || node.Pos.Line == 0 {
			t.Errorf("%s: %v", name, err)
		}
		if name == "panic" && (!errors.Is(err, runtime.ErrPanic) && !strings.Contains(err.Error(), "panic")) {
			t.Errorf("%s: %v", name, err)
		}
	}
	m := puppet.New()
	m.OnAny().Panic("backend bug")
	_, err := runtime.Run(t.Context(), m, oneGen, nil)
	if !errors.Is(err, runtime.ErrPanic) {
		t.Error(err)
	}
}

func TestErrorsOfFunctionsCanBeMatched(t *testing.T) {
	mine := errors.New("mine")
	fail := func(ctx context.Context, s string) (string, error) { return "", fmt.Errorf("wrapped: %w", mine) }
	def := lang.Define("p", func(p *lang.Program) lang.Var[[]string] {
		return lang.Fork(p, "f", lang.Each("a", "b"), func(b *lang.Branch, it lang.Var[string]) lang.Var[string] {
			return lang.Call1(b, "c", fail, it)
		})
	})
	_, err := runtime.Run(t.Context(), puppet.New(), def, nil)
	if !errors.Is(err, mine) {
		t.Error(err)
	}
	var br *runtime.BranchError
	if !errors.As(err, &br) || !strings.HasPrefix(br.Branch, "f[") {
		t.Error(err)
	}
}

func fork3(opts ...lang.ForkOption) *lang.Def[[]string] {
	return lang.Define("fork3", func(p *lang.Program) lang.Var[[]string] {
		p.User("go")
		return lang.Fork(p, "f", lang.Each("a", "b", "c"), func(b *lang.Branch, it lang.Var[string]) lang.Var[string] {
			b.User(it)
			return b.Gen("x")
		}, opts...)
	})
}

func TestAFailedBranchNeverVanishes(t *testing.T) {
	noLeaks(t)
	overload := fmt.Errorf("full: %w", backend.ErrOverloaded)

	t.Run("all", func(t *testing.T) {
		m := puppet.New()
		gate := puppet.NewGate()
		m.SetGate(gate)
		m.OnID("f[1]/x").Fail(overload)
		m.OnAny().Reply("fine")
		go func() {
			gate.HeldCount(t.Context(), 3)
			gate.Release("f[1]/x") // the others wait until they are cancelled
		}()
		out, err := runtime.Run(t.Context(), m, fork3(), nil)
		var fe *runtime.ForkError
		if !errors.As(err, &fe) || len(fe.Branches) != 1 || fe.Branches[0].Branch != "f[1]" || fe.Branches[0].Label != "b" || fe.Of != 3 {
			t.Fatalf("%v", err)
		}
		if !errors.Is(err, backend.ErrOverloaded) || !strings.Contains(err.Error(), "runner_test.go:") {
			t.Error(err)
		}
		var status []runtime.Status
		for _, b := range out.Branches {
			status = append(status, b.Status)
		}
		if fmt.Sprint(status) != "[cancelled failed cancelled]" {
			t.Error(status)
		}
	})
	t.Run("collect", func(t *testing.T) {
		m := puppet.New()
		m.OnID("f[1]/x").Fail(overload)
		m.OnAny().Reply("fine")
		report, err := runtime.RunGraph(t.Context(), m, graphOf(t, fork3(lang.Collect())), nil, nil)
		if err != nil || string(report.Value) != `["fine",null,"fine"]` {
			t.Errorf("%s %v", report.Value, err)
		}
		if b := report.Branches[1]; b.Status != runtime.Failed || !errors.Is(b.Err, backend.ErrOverloaded) || b.Error == "" {
			t.Errorf("%+v", b)
		}
	})
	t.Run("first", func(t *testing.T) {
		m := puppet.New()
		gate := puppet.NewGate()
		m.SetGate(gate)
		m.OnID("f[0]/x").Fail(overload)
		m.OnAny().Reply("fine")
		go func() {
			gate.HeldCount(t.Context(), 3)
			gate.Release("f[0]/x")
			gate.Release("f[2]/x")
		}()
		report, err := runtime.RunGraph(t.Context(), m, graphOf(t, fork3(lang.First())), nil, nil)
		if err != nil || string(report.Value) != `["fine"]` {
			t.Errorf("%s %v", report.Value, err)
		}
		if report.Branches[1].Status != runtime.Cancelled {
			t.Errorf("%+v", report.Branches[1])
		}
	})
	t.Run("quorum", func(t *testing.T) {
		m := puppet.New()
		m.OnID("f[0]/x").Fail(overload)
		m.OnID("f[1]/x").Fail(overload)
		m.OnAny().Reply("fine")
		_, err := runtime.Run(t.Context(), m, fork3(lang.Quorum(2)), nil)
		var fe *runtime.ForkError
		if !errors.As(err, &fe) || fe.Policy != "quorum" || len(fe.Branches) != 2 {
			t.Error(err)
		}
	})
}

func TestConcurrencyIsBounded(t *testing.T) {
	noLeaks(t)
	m := puppet.New()
	gate := puppet.NewGate()
	m.SetGate(gate)
	m.OnAny().Reply("ok")
	done := make(chan error, 1)
	go func() {
		_, err := runtime.Run(t.Context(), m, fork8, nil, runtime.WithConcurrency(3))
		done <- err
	}()
	// Tasks start in the order of the program; one more for each that ends.
	if err := gate.HeldCount(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	if n := len(m.Log()); n != 3 {
		t.Errorf("%d calls in flight", n)
	}
	gate.Release("tips[1]/text")
	if err := gate.Held(t.Context(), "tips[3]/text"); err != nil {
		t.Fatal(err)
	}
	if n := len(m.Log()); n != 4 {
		t.Errorf("%d calls after one ended", n)
	}
	gate.Open()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestForkCommitsItsPrefixBeforeChildren(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("ok")
	if _, err := runtime.Run(t.Context(), m, fork8, nil); err != nil {
		t.Fatal(err)
	}
	for _, c := range m.Log()[:8] {
		if !strings.HasPrefix(c.Prompt, "user: Plan?\nuser: Expand ") {
			t.Errorf("%s began with %q", c.ID, c.Prompt)
		}
		if c.Request.Hints.Siblings != 8 || c.Request.Hints.Run == "" || !c.Request.Hints.LastUse || c.Request.Hints.Reused {
			t.Errorf("%s: hints %+v", c.ID, c.Request.Hints)
		}
	}
}

func TestJSONCutAtItsLimitIsAnErrorOfItsNode(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply(`{"pod": "a-very-long-name", "reason": "x", "oom_killed": true}`)
	def := lang.Define("p", func(p *lang.Program) lang.Var[verdict] {
		p.User("x")
		return lang.JSON[verdict](p, "v", lang.MaxTokens(12))
	})
	_, err := runtime.Run(t.Context(), m, def, nil)
	var node *runtime.NodeError
	if !errors.Is(err, runtime.ErrTruncated) || !errors.As(err, &node) || node.Task != "v" || !strings.Contains(err.Error(), "max_tokens 12") {
		t.Error(err)
	}
}

func TestHostileProgramsEnd(t *testing.T) {
	loop := lang.Define("loop", func(p *lang.Program) lang.Var[any] {
		p.Repeat("forever", 1_000_000, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			return round.Is(-1)
		})
		return lang.Var[any]{}
	})
	wide := lang.Define("wide", func(p *lang.Program) lang.Var[any] {
		xs := lang.Let[[]int](p, "xs", "0..999")
		p.Repeat("again", 1000, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			lang.Fork(p, "f", lang.Over(xs), func(b *lang.Branch, it lang.Var[int]) lang.Var[any] { return lang.Var[any]{} })
			return round.Is(-1)
		})
		return lang.Var[any]{}
	})
	long := lang.Define("long", func(p *lang.Program) lang.Var[any] {
		s := lang.Let[string](p, "s", `repeat("x", 50000)`)
		p.Repeat("again", 1000, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			p.User("more ", s)
			return round.Is(-1)
		})
		return lang.Var[any]{}
	})
	bomb := lang.Define("bomb", func(p *lang.Program) lang.Var[any] {
		lang.Let[[]any](p, "x", "[]")
		p.Repeat("again", 60, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			lang.Let[[]any](p, "x", "[x, x]")
			return round.Is(-1)
		})
		return lang.Var[any]{}
	})
	knot := lang.Define("knot", func(p *lang.Program) lang.Var[any] {
		lang.Let[[]any](p, "x", "[]")
		p.Repeat("again", 60, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			f := lang.Fork(p, "f", lang.Each("a", "b"), func(b *lang.Branch, it lang.Var[string]) lang.Var[[]any] { return lang.Calc[[]any]("x") })
			lang.Let[[]any](p, "x", f)
			return round.Is(-1)
		})
		return lang.Var[any]{}
	})
	for _, def := range []*lang.Def[any]{loop, wide, long, bomb, knot} {
		_, err := runtime.Run(t.Context(), puppet.New(), def, nil, runtime.WithLimits(runtime.Limits{Nodes: 20000, Branches: 5000, Text: 100000}))
		if !errors.Is(err, runtime.ErrLimit) {
			t.Errorf("%s: %v", def.Name(), err)
		}
	}
}

func TestReportOfValuesThatShareTheirPartsStaysSmall(t *testing.T) {
	def := lang.Define("shared", func(p *lang.Program) lang.Var[any] {
		x := lang.Let[[]any](p, "x", "map(1..1000, 'a text of some length')")
		p.Repeat("again", 60, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			lang.Fork(p, "f", lang.Each("a", "b"), func(b *lang.Branch, it lang.Var[string]) lang.Var[any] {
				lang.Let[[]any](b, "y", x)
				return lang.Var[any]{}
			})
			return round.Is(-1)
		})
		return lang.Var[any]{}
	})
	r, err := runtime.RunGraph(t.Context(), puppet.New(), graphOf(t, def), nil, nil, runtime.WithLimits(runtime.Limits{Text: 50000}))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(text), "not shown") || len(text) > 150000 {
		t.Errorf("%v, %d bytes", err, len(text))
	}
}
