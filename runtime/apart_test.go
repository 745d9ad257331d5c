package runtime_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// TestAForkOfOneItemIsACopy: it begins with what the program has said, and what it says
// and sets stays in it; only what it yields comes back, as a list of one.
func TestAForkOfOneItemIsACopy(t *testing.T) {
	def := lang.Define("copy", func(p *lang.Program) lang.Var[string] {
		p.User("Plan?")
		p.Gen("plan")
		tried := lang.Fork(p, "try", lang.Each("aside"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
			b.User("Only between us, ", item, ": will it work?")
			return b.Gen("doubt")
		})
		p.User("Then?")
		p.Gen("then")
		return lang.Join(tried, ",")
	})
	m := puppet.New()
	m.OnID("try[0]/doubt").Reply("hardly")
	m.OnAny().Reply("yes")
	out, err := runtime.Run(t.Context(), m, def, nil)
	if err != nil || out.Value != "hardly" {
		t.Fatal(out, err)
	}
	want := map[string]string{
		"plan":         "user: Plan?\nassistant: ",
		"try[0]/doubt": "user: Plan?\nassistant: yes\nuser: Only between us, aside: will it work?\nassistant: ",
		"then":         "user: Plan?\nassistant: yes\nuser: Then?\nassistant: ",
	}
	for _, c := range m.Log() {
		if c.Prompt != want[c.ID] {
			t.Errorf("%s: %q, want %q", c.ID, c.Prompt, want[c.ID])
		}
	}
}

// TestRunsDoNotDisturbEachOther: one program on many backends at once, with other
// inputs, seeds and listeners each: there is nothing that two runs share.
func TestRunsDoNotDisturbEachOther(t *testing.T) {
	def := lang.Define("own", func(p *lang.Program) lang.Var[string] {
		who := lang.In[string](p, "who")
		p.User("I am ", who, ".")
		all := lang.Fork(p, "f", lang.Each("a", "b", "c"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
			b.User(item)
			return b.Gen("x", lang.Temperature(1))
		})
		return lang.Join(all, " ")
	})
	g, err := def.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 24 {
		all.Go(func() {
			m := puppet.New()
			me := fmt.Sprint("number ", i)
			m.OnRegexp(`I am ` + me + `\.`).Reply(me)
			tasks := map[string]bool{}
			out, err := runtime.Run(t.Context(), m, def, lang.Args{"who": me}, runtime.WithSeed(uint64(i)), runtime.WithRun(me),
				runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
					if e.Kind == runtime.NodeFinished {
						tasks[e.Task+e.Text] = true
					}
				})))
			if err != nil || out.Value != me+" "+me+" "+me || out.Run != me || len(m.Log()) != 3 || len(tasks) != 3 {
				t.Errorf("run %d: %v %v, %d calls, events %v", i, out, err, len(m.Log()), tasks)
			}
			for _, c := range m.Log() {
				alone, err := runtime.New(g, map[string]any{"who": me}, runtime.Options{Seed: uint64(i), Run: me})
				if err != nil {
					t.Error(err)
					return
				}
				for _, task := range alone.Ready() {
					if task.ID == c.ID && task.Generate.Sampling.Seed != c.Request.Sampling.Seed {
						t.Errorf("run %d: %s has another seed than alone", i, c.ID)
					}
				}
			}
		})
	}
	all.Wait()
}
