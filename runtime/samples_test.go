package runtime_test

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

func TestSeveralAnswersAreATypedListAndNotInTheContext(t *testing.T) {
	def := lang.Define("samples", func(p *lang.Program) lang.Var[[]int] {
		p.User("A number?")
		ns := lang.GenN[int](p, "ns", 3, lang.Temperature(1))
		p.User("And now? ", lang.Join(ns, "+"))
		p.Gen("more")
		return ns
	})
	m := puppet.New()
	for i := range 3 {
		m.OnID(fmt.Sprintf("ns[%d]/ns", i)).Reply(fmt.Sprint(10 + i))
	}
	m.OnID("more").Reply("ok")
	out, err := runtime.Run(t.Context(), m, def, nil)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(out.Value) != "[10 11 12]" || len(out.Branches) != 3 {
		t.Errorf("%v, %d branches", out.Value, len(out.Branches))
	}
	seeds := map[uint64]bool{}
	for _, c := range m.Log() {
		seeds[c.Request.Sampling.Seed] = true
		if c.ID == "more" && c.Request.Turns[1].Text() != "And now? 10+11+12" {
			t.Errorf("%+v", c.Request.Turns)
		}
	}
	if len(seeds) != 4 {
		t.Errorf("seeds %v", seeds)
	}
	// A file says the same, and means the same graph.
	g := graphYAML(t, `steps:
  - user: A number?
  - json: {name: ns, n: 3, temperature: 1, type: int, join: collect, errors: bad}
  - return: '{ns: ns, bad: bad}'
`)
	m = puppet.New()
	m.OnID("ns[1]/ns").Fail(backend.ErrUnavailable)
	m.OnAny().Reply("4")
	r, err := runtime.RunGraph(t.Context(), m, g, nil, nil)
	if err != nil || !strings.HasPrefix(string(r.Value), `{"ns":[4,null,4],"bad":["","p.yaml:5: ns[1]/ns: `) {
		t.Errorf("%s %v", r.Value, err)
	}
}

func TestAFailedBranchIsInTheListOfErrors(t *testing.T) {
	for policy, c := range map[string]struct {
		opt  func(errs *lang.Var[[]string]) []lang.ForkOption
		list string
	}{
		"collect": {func(e *lang.Var[[]string]) []lang.ForkOption { return []lang.ForkOption{lang.CollectErrors(e)} }, `["a",null,"c"]`},
		"quorum": {func(e *lang.Var[[]string]) []lang.ForkOption {
			return []lang.ForkOption{lang.Quorum(2), lang.ErrorsTo(e)}
		}, `["a","c"]`},
	} {
		def := lang.Define("f", func(p *lang.Program) lang.Var[map[string]any] {
			p.User("hi")
			var errs lang.Var[[]string]
			list := lang.Fork(p, "f", lang.Each("a", "b", "c"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
				b.User(item)
				return b.Gen("x")
			}, c.opt(&errs)...)
			return lang.Calc[map[string]any]("{list: ", list, ", errs: ", errs, "}")
		})
		m := puppet.New()
		m.OnID("f[1]/x").Fail(fmt.Errorf("down: %w", backend.ErrUnavailable))
		m.OnRegexp(`(\w)\W*$`).ReplyFunc(func(p *puppet.Prompt) (string, error) {
			turns := p.Turns
			return turns[len(turns)-1].Text(), nil
		})
		// One after the other, so that the failure comes before the quorum is there.
		out, err := runtime.Run(t.Context(), m, def, nil, runtime.WithConcurrency(1))
		if err != nil {
			t.Fatal(policy, err)
		}
		got := string(out.Report.Value)
		for _, want := range []string{`"errs":["","runtime/samples_test.go:`, "f[1]/x: down", `"list":` + c.list} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %s is not in %s", policy, want, got)
			}
		}
	}
	g := graphYAML(t, "inputs: {l: '[]string'}\nsteps:\n  - fork: {name: f, over: l, steps: [{user: x}], join: collect, errors: e}\n  - return: e\n")
	if r, err := runtime.RunGraph(t.Context(), puppet.New(), g, nil, lang.Args{"l": []string{}}); err != nil || string(r.Value) != "[]" {
		t.Error(r, err)
	}
	_, err := lang.Decode([]byte("coppice: 1\nname: x\nsteps:\n  - fork: {name: f, each: [a], steps: [{user: x}], errors: e}\n"), "x.yaml")
	if err == nil || !strings.Contains(err.Error(), "one failed branch fails the fork") {
		t.Error(err)
	}
}

// weekday is an enumeration with names.
type weekday int

func (w weekday) String() string { return [...]string{"Monday", "Tuesday"}[w] }

func TestSelectGivesTheOptionItselfWhateverItsType(t *testing.T) {
	type size struct {
		CPU int `json:"cpu"`
	}
	def := lang.Define("typed", func(p *lang.Program) lang.Var[int] {
		p.User("hi")
		n := lang.Select(p, "n", 1, 20, 300)
		d := lang.Select(p, "day", weekday(0), weekday(1))
		s := lang.SelectWith(p, "size", []lang.SelectOption{lang.Priority(3)}, size{1}, size{2})
		b := lang.Select(p, "ok", true, false)
		p.When(b, func(p *lang.Program) { p.User("yes ", d) })
		return lang.Calc[int](n, " + ", d, " + ", lang.Get[int](s, "cpu"))
	})
	m := puppet.New()
	m.OnID("n").Scores(map[string]float64{"20": -1})
	m.OnID("day").Scores(map[string]float64{"Tuesday": -1})
	m.OnID("size").Scores(map[string]float64{`{"cpu":2}`: -1})
	m.OnID("ok").Scores(map[string]float64{"true": -1})
	out, err := runtime.Run(t.Context(), m, def, nil)
	if err != nil {
		t.Fatal(err)
	}
	if out.Value != 23 || !strings.Contains(string(out.Variables), `"ok":true`) {
		t.Errorf("%d %s", out.Value, out.Variables)
	}
	if last := out.Turns[len(out.Turns)-1]; last.Text() != "yes 1" {
		t.Errorf("%+v", last)
	}
}

// A branch that waits is a value, not a goroutine and not a thread.
func TestABranchCostsNoGoroutineWhileItWaits(t *testing.T) {
	items := make([]string, 5000)
	for i := range items {
		items[i] = fmt.Sprint(i)
	}
	g := graphYAML(t, "inputs: {l: '[]string'}\nsteps:\n  - user: hi\n  - fork: {name: f, over: l, steps: [{user: '${item}'}, {gen: {name: x}}], yield: x}\n  - return: len(f)\n")
	gate := puppet.NewGate()
	m := puppet.New()
	m.SetGate(gate)
	m.OnAny().Reply("a")
	before := goruntime.NumGoroutine()
	done := make(chan error, 1)
	go func() {
		_, err := runtime.RunGraph(t.Context(), m, g, nil, lang.Args{"l": items}, runtime.WithConcurrency(4))
		done <- err
	}()
	if err := gate.HeldCount(t.Context(), 4); err != nil {
		t.Fatal(err)
	}
	if more := goruntime.NumGoroutine() - before; more > 20 {
		t.Errorf("%d goroutines for 5000 branches of which 4 run", more)
	}
	gate.Open()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// After a failure the machine stays failed: it takes no more results, has nothing
// to do, and says the same each time it is asked.
func TestErrorsStick(t *testing.T) {
	g := graphYAML(t, "steps:\n  - user: hi\n  - fork: {name: f, each: [a, b], steps: [{user: '${item}'}, {gen: {name: x}}], yield: x}\n  - return: f\n")
	m, err := runtime.New(g, nil, runtime.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fail := runtime.Result{Task: "f[1]/x", Failure: runtime.NewFailure(backend.ErrUnavailable)}
	if err := m.Apply(fail); err != nil {
		t.Fatal(err)
	}
	first := m.Err()
	var fe *runtime.ForkError
	if !m.Done() || !errors.Is(first, backend.ErrUnavailable) || !errors.As(first, &fe) || len(fe.Branches) != 1 || fe.Branches[0].Branch != "f[1]" {
		t.Fatal(first)
	}
	for range 3 {
		late := runtime.Result{Task: "f[0]/x", Generate: &backend.Result{Part: backend.Part{Text: "late"}}}
		if err := m.Apply(late); !errors.Is(err, runtime.ErrCancelledTask) {
			t.Error(err)
		}
		if m.Err() != first || len(m.Ready()) != 0 || m.Output() != nil {
			t.Error(m.Err(), m.Ready(), m.Output())
		}
	}
}

func TestGenOptionsReachTheBackend(t *testing.T) {
	g := graphYAML(t, `steps:
  - user: hi
  - gen:
      name: x
      max_tokens: 5
      ignore_eos: true
      stop_regex: ['\d\.']
      repetition_penalty: 1.2
      logit_bias: {7: -100, 9: 2.5}
      tokens: {stop: [2], allowed: [1, 2, 3], banned: [[5, 6]]}
  - return: x
`)
	m := puppet.New()
	m.OnAny().Reply("a")
	if _, err := runtime.RunGraph(t.Context(), m, g, nil, nil); !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "token_rules") {
		t.Fatal(err)
	}
	m.SetInfo(func(i *backend.Info) { i.Capabilities.TokenRules = true })
	var r *backend.Request
	be := &backendFunc{Backend: m, generate: func(ctx context.Context, req *backend.Request) (*backend.Result, error) {
		r = req
		return &backend.Result{Part: backend.Part{Text: "a"}}, nil
	}}
	if _, err := runtime.RunGraph(t.Context(), be, g, nil, nil); err != nil {
		t.Fatal(err)
	}
	if !r.IgnoreEOS || r.Sampling.RepetitionPenalty != 1.2 || r.Sampling.LogitBias[7] != -100 || r.Sampling.LogitBias[9] != 2.5 ||
		fmt.Sprint(r.Tokens) != `{[2] [1 2 3] [[5 6]] [\d\.]}` {
		t.Errorf("%+v", r)
	}
}

func TestTypedShorthands(t *testing.T) {
	def := lang.Define("short", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		n := lang.Gen[int](p, "n")
		ok := lang.Gen[bool](p, "ok", lang.MaxTokens(5))
		at := lang.Gen[time.Time](p, "at")
		list := lang.Gen[[]float64](p, "list", lang.Check("len(list) == 2"))
		s := lang.Gen[string](p, "s", lang.Stop("."))
		p.When(ok, func(p *lang.Program) { p.User(at, list) })
		lang.Call1(p, "f", func(ctx context.Context, at time.Time) (int, error) {
			if at.Year() != 2031 {
				return 0, fmt.Errorf("at is %v", at)
			}
			return 1, nil
		}, at)
		return lang.Calc[string]("string(", n, ") + ", s)
	})
	m := puppet.New()
	for id, text := range map[string]string{"n": "7", "ok": "true", "at": `"2031-02-03T04:05:06Z"`, "list": "[1.5, 2]", "s": "one. two"} {
		m.OnID(id).Reply(text)
	}
	out, err := runtime.Run(t.Context(), m, def, nil)
	if err != nil || out.Value != "7one" {
		t.Fatal(out, err)
	}
}
