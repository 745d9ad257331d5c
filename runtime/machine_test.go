package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
)

// answer makes up the result of a task from nothing but its id, so that it is
// the same whatever the order.
func answer(t Task) Result {
	h := xxhash.Sum64String(t.ID)
	switch {
	case strings.Contains(t.ID, "risky") && h%3 == 0:
		return Result{Task: t.ID, Failure: NewFailure(fmt.Errorf("no luck with %s: %w", t.ID, backend.ErrOverloaded))}
	case t.Generate != nil && t.Generate.Constraint.JSONSchema != nil:
		text := fmt.Sprintf(`{"z": %d, "a": "%x"}`, h%100, h)
		return Result{Task: t.ID, Generate: &backend.Result{Part: backend.Part{Text: text, Tokens: puppet.Tokens(text)}, Finish: backend.FinishStop}}
	case t.Generate != nil:
		text := fmt.Sprintf("%x", h)
		from := h % 50
		return Result{Task: t.ID, Generate: &backend.Result{
			Part: backend.Part{Text: text, Tokens: puppet.Tokens(text)}, Finish: backend.FinishStop,
			Usage: backend.Usage{SampledTokens: int(h % 7), Passes: []backend.Span{{Engine: h % 2, From: from, To: from + h%9}}},
		}}
	case t.Score != nil:
		s := &backend.ScoreResult{}
		for i, o := range t.Score.Options {
			s.Options = append(s.Options, backend.OptionScore{Part: backend.Part{Text: o, Tokens: puppet.Tokens(o)}, Sum: -float64((h >> i) % 17)})
		}
		return Result{Task: t.ID, Score: s}
	}
	return Result{Task: t.ID, Value: json.RawMessage(fmt.Sprintf(`{"k":%d}`, h%10))}
}

// bushy has forks in forks, loops in branches, and branches that fail.
var bushy = lang.Define("bushy", func(p *lang.Program) lang.Var[any] {
	p.System("root")
	outer := lang.Fork(p, "outer", lang.Each("a", "b", "c"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
		b.User("item ", item)
		inner := lang.Fork(b, "risky", lang.Each("x", "y", "z", "w"), func(b *lang.Branch, it lang.Var[string]) lang.Var[string] {
			b.User("inner ", it)
			b.Gen("first")
			return b.Gen("second")
		}, lang.Collect())
		b.User("got ", lang.Len(inner))
		b.Repeat("rounds", 3, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			p.User("round ", round)
			sel := lang.Select(p, "pick", "go", "stop")
			return sel.Is("stop")
		})
		return b.Gen("sum")
	})
	p.User("joined ", lang.Join(outer, ","))
	lang.Fork(p, "plans", lang.Over(outer), func(b *lang.Branch, it lang.Var[string]) lang.Var[string] {
		b.User("plan for ", it)
		return b.Gen("plan")
	})
	return lang.JSONSchema(p, "verdict", json.RawMessage(`{"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"string"}},"required":["z","a"]}`))
})

func compile[T any](t testing.TB, def *lang.Def[T]) *lang.Graph {
	t.Helper()
	g, err := def.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// drive applies answers in an order drawn from rng, restoring the machine from
// its snapshot now and then, and returns the final machine.
func drive(t *testing.T, g *lang.Graph, rng *rand.Rand) *Machine {
	t.Helper()
	opt := Options{Run: "r", Seed: 3}
	m, err := New(g, nil, opt)
	if err != nil {
		t.Fatal(err)
	}
	pending := map[string]Task{}
	var order []string // keeps the drawing independent of the map
	follow := func() {
		c := m.Changes()
		for _, id := range c.Cancel {
			delete(pending, id)
		}
		for _, x := range c.Start {
			pending[x.ID] = x
			order = append(order, x.ID)
		}
	}
	follow()
	for !m.Done() {
		ready := m.Ready()
		if len(ready) != len(pending) {
			t.Fatalf("Ready has %d tasks, Changes adds up to %d", len(ready), len(pending))
		}
		x := ready[rng.IntN(len(ready))]
		if _, ok := pending[x.ID]; !ok {
			t.Fatalf("task %s is ready and was never started", x.ID)
		}
		delete(pending, x.ID)
		if err := m.Apply(answer(x)); err != nil {
			t.Fatal(err)
		}
		if rng.IntN(8) == 0 {
			was := fingerprint(m)
			restored, err := Restore(g, nil, opt, m.Snapshot())
			if err != nil {
				t.Fatal(err)
			}
			if is := fingerprint(restored); is != was {
				t.Fatalf("restored machine differs:\n%s\nwas\n%s", is, was)
			}
			m.Changes()
			restored.Changes()
			m = restored
			pending = map[string]Task{}
			for _, x := range m.Ready() {
				pending[x.ID] = x
			}
			continue
		}
		follow()
	}
	return m
}

func TestFinalStateDoesNotDependOnTheOrderOfSiblings(t *testing.T) {
	g := compile(t, bushy)
	want := fingerprint(drive(t, g, rand.New(rand.NewPCG(0, 0))))
	if !strings.Contains(want, "no luck") {
		t.Fatal("no branch failed: the test lost its point")
	}
	n := 60
	if testing.Short() {
		n = 30
	}
	for i := range n {
		if got := fingerprint(drive(t, g, rand.New(rand.NewPCG(1, uint64(i))))); got != want {
			t.Fatalf("order %d ends in\n%s\nnot\n%s", i, got, want)
		}
	}
}

func TestSameResultsGiveTheSameMachineWhoeverWins(t *testing.T) {
	for _, opt := range []lang.ForkOption{lang.First(), lang.Quorum(2)} {
		def := lang.Define("race", func(p *lang.Program) lang.Var[[]string] {
			p.User("go")
			return lang.Fork(p, "risky", lang.Each("a", "b", "c", "d", "e", "f"), func(b *lang.Branch, it lang.Var[string]) lang.Var[string] {
				b.User(it)
				b.Gen("one")
				return b.Gen("two")
			}, opt)
		})
		g := compile(t, def)
		outcomes := map[string]bool{}
		for i := range 50 {
			m := drive(t, g, rand.New(rand.NewPCG(2, uint64(i))))
			again, err := Restore(g, nil, Options{Run: "r", Seed: 3}, m.Snapshot())
			if err != nil {
				t.Fatal(err)
			}
			if fingerprint(again) != fingerprint(m) {
				t.Fatal("a replay of the same results ended differently")
			}
			outcomes[string(m.Report().Value)] = true
		}
		if len(outcomes) < 2 {
			t.Error("the same branch won every time: the test lost its point")
		}
	}
}

func TestSeedsDifferByInstanceAndRunSeedOnly(t *testing.T) {
	def := lang.Define("seeds", func(p *lang.Program) lang.Var[[]string] {
		p.User("go")
		return lang.Fork(p, "f", lang.Each("a", "b"), func(b *lang.Branch, it lang.Var[string]) lang.Var[string] {
			b.Gen("fixed", lang.Seed(7), lang.Temperature(1))
			return b.Gen("free", lang.Temperature(1))
		})
	})
	g := compile(t, def)
	seeds := func(seed uint64) map[string]uint64 {
		out := map[string]uint64{}
		m, err := New(g, nil, Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		for !m.Done() {
			x := m.Ready()[0]
			out[x.ID] = x.Generate.Sampling.Seed
			if err := m.Apply(answer(x)); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	a, b, c := seeds(1), seeds(1), seeds(2)
	if fmt.Sprint(a) != fmt.Sprint(b) {
		t.Error("the same run seed gave other seeds", a, b)
	}
	if a["f[0]/fixed"] != 7 || a["f[1]/fixed"] != 7 {
		t.Error("a node's own seed was not used", a)
	}
	if a["f[0]/free"] == a["f[1]/free"] || a["f[0]/free"] == c["f[0]/free"] {
		t.Error("seeds do not differ", a, c)
	}
}

func TestApplyRefuses(t *testing.T) {
	g := compile(t, lang.Define("p", func(p *lang.Program) lang.Var[string] {
		p.User("x")
		lang.Select(p, "s", "a", "b")
		return p.Gen("g")
	}))
	m, err := New(g, nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	gen := &backend.Result{Part: backend.Part{Text: "t"}}
	score := &backend.ScoreResult{Options: make([]backend.OptionScore, 2)}
	for _, x := range []struct {
		r    Result
		want error
	}{
		{Result{Task: "nope", Generate: gen}, ErrUnknownTask},
		{Result{Task: "g", Generate: gen}, ErrUnknownTask}, // not ready yet
		{Result{Task: "s"}, ErrBadResult},
		{Result{Task: "s", Generate: gen}, ErrBadResult},
		{Result{Task: "s", Generate: gen, Score: score}, ErrBadResult},
		{Result{Task: "s", Score: &backend.ScoreResult{}}, ErrBadResult},
		{Result{Task: "s", Value: json.RawMessage("1")}, ErrBadResult},
		{Result{Task: "s", Score: score}, nil},
		{Result{Task: "s", Score: score}, ErrFinishedTask},
		{Result{Task: "g", Score: score}, ErrBadResult},
		{Result{Task: "g", Generate: gen}, nil},
		{Result{Task: "g", Generate: gen}, ErrFinishedTask},
	} {
		before := fingerprint(m)
		err := m.Apply(x.r)
		if !errors.Is(err, x.want) || (x.want == nil) != (err == nil) {
			t.Errorf("Apply(%+v) = %v, want %v", x.r, err, x.want)
		}
		if err != nil && fingerprint(m) != before {
			t.Errorf("Apply(%+v) refused and changed the machine", x.r)
		}
	}
	if !m.Done() || m.Output() != "t" {
		t.Error("not done", m.Output())
	}
}

func TestBranchesShareTurnsAndNeverWriteThem(t *testing.T) {
	var parent prompt
	parent.push(backend.Turn{Role: backend.System, Parts: []backend.Part{{Text: "s"}}})
	parent.push(backend.Turn{Role: backend.Assistant, Open: true})
	parent.text("So far ")
	seen := parent.view()
	kids := []prompt{parent.child(), parent.child()}
	if &kids[0].turns[0] != &parent.turns[0] {
		t.Error("a child copies its parent's turns before it changes any")
	}
	kids[0].text("left")
	kids[1].text("right")
	parent.text("on")
	kids[1].close()
	kids[1].push(backend.Turn{Role: backend.User, Parts: []backend.Part{{Text: "u"}}})
	var b strings.Builder
	for _, turns := range [][]backend.Turn{seen, parent.turns, kids[0].turns, kids[1].turns} {
		writePrompt(&b, turns)
	}
	want := `
  system: "s"
  assistant: "So far " …

  system: "s"
  assistant: "So far " "on" …

  system: "s"
  assistant: "So far " "left" …

  system: "s"
  assistant: "So far " "right"
  user: "u"
`
	if b.String() != want {
		t.Errorf("got %s", b.String())
	}
	var own strings.Builder
	writePrompt(&own, kids[1].since(2, 1))
	if own.String() != "\n  assistant: \"right\"\n  user: \"u\"\n" {
		t.Errorf("own turns %s", own.String())
	}
}

func TestSpanSetCountsEachPassOnce(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(9, seed))
		var s spanSet
		want := map[[2]uint64]bool{}
		for range rng.IntN(40) {
			from := rng.Uint64N(60)
			if rng.IntN(10) == 0 {
				from = ^uint64(0) - rng.Uint64N(5)
			}
			to := from + min(rng.Uint64N(6), ^uint64(0)-from)
			e := rng.Uint64N(3)
			s.add(backend.Span{Engine: e, From: from, To: to})
			for p := from; ; p++ {
				want[[2]uint64{e, p}] = true
				if p == to {
					break
				}
			}
		}
		if s.size() != len(want) {
			t.Fatalf("seed %d: %d passes, want %d: %v", seed, s.size(), len(want), s)
		}
	}
}
