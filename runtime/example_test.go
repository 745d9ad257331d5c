package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// A program that looks at an alert from two sides at once and then rates it.
var rate = lang.Define("rate", func(p *lang.Program) lang.Var[string] {
	alert := lang.In[string](p, "alert")
	p.User("Alert: ", alert)
	looks := lang.Fork(p, "looks", lang.Each("memory", "network"),
		func(b *lang.Branch, angle lang.Var[string]) lang.Var[string] {
			b.User("Look only at ", angle, ".")
			return b.Gen("finding", lang.MaxTokens(20))
		})
	p.User("Findings:\n", lang.Join(looks, "\n"))
	return lang.Select(p, "severity", "low", "high")
})

// model stands in for a language model.
func model() backend.Backend {
	m := puppet.New()
	m.OnID("severity").Scores(map[string]float64{"low": -2.5, "high": -0.1})
	m.OnRegexp(`Look only at (\w+)\.`).Reply("$1 is fine")
	return m
}

func ExampleRun() {
	out, err := runtime.Run(context.Background(), model(), rate, lang.Args{"alert": "pod-7 is down"})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(out.Value)
	for _, b := range out.Branches {
		fmt.Printf("%s (%s): %s\n", b.ID, b.Label, b.Value)
	}
	// Output:
	// high
	// looks[0] (memory): "memory is fine"
	// looks[1] (network): "network is fine"
}

// A script looks at what the model says and decides in Go what comes next.
func ExampleRunScript() {
	triage := lang.Script("triage", func(s *lang.S, alert string) (string, error) {
		s.User("Alert: ", alert)
		looks, err := lang.Map(s, "looks", []string{"memory", "network"},
			func(b *lang.S, angle string) (string, error) {
				b.User("Look only at ", angle, ".")
				return b.Gen("finding", lang.MaxTokens(20)).Get()
			})
		if err != nil {
			return "", err
		}
		for _, finding := range looks {
			s.User(finding)
		}
		severity, err := lang.Select(s, "severity", "low", "high").Get()
		if err != nil {
			return "", err
		}
		if severity == "low" {
			return "nothing to do", nil
		}
		return lang.Do(s, "page", func(ctx context.Context) (string, error) {
			return "paged for " + alert, nil
		}).Get()
	})
	out, err := runtime.RunScript(context.Background(), model(), triage, "pod-7 is down")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(out.Value)
	// Output: paged for pod-7 is down
}

// A Machine says what is to be done and takes results back. Whoever drives it
// decides where and when tasks are carried out.
func ExampleMachine() {
	g, err := rate.Compile()
	if err != nil {
		fmt.Println(err)
		return
	}
	inputs, _ := g.Bind(lang.Args{"alert": "pod-7 is down"})
	m, err := runtime.New(g, inputs, runtime.Options{Run: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	be := model()
	for !m.Done() {
		for _, t := range m.Ready() {
			r := runtime.Result{Task: t.ID}
			switch {
			case t.Generate != nil:
				r.Generate, err = be.Generate(context.Background(), t.Generate, nil)
			case t.Score != nil:
				r.Score, err = be.Score(context.Background(), t.Score)
			}
			if err != nil {
				r.Failure = runtime.NewFailure(err)
			}
			fmt.Println("did", t.ID)
			if err := m.Apply(r); err != nil {
				fmt.Println(err)
				return
			}
		}
	}
	fmt.Println(m.Output())
	// Output:
	// did looks[0]/finding
	// did looks[1]/finding
	// did severity
	// high
}

// A run with a journal goes on where it was interrupted, whatever interrupted
// it.
func ExampleResume() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "run.journal")

	down := puppet.New() // a model that goes away before it can rate
	down.OnID("severity").Fail(backend.ErrUnavailable)
	down.OnRegexp(`Look only at (\w+)\.`).Reply("$1 is fine")
	_, err = runtime.Run(context.Background(), down, rate, lang.Args{"alert": "pod-7 is down"}, runtime.WithJournal(path))
	fmt.Println(errors.Is(err, backend.ErrUnavailable))

	report, err := runtime.Resume(context.Background(), model(), path, rate.Funcs())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s, %d of %d tasks from the journal\n", report.Value, report.Restored, report.Tasks)
	// Output:
	// true
	// "high", 2 of 3 tasks from the journal
}

// A Log keeps the events of a run for readers that may be slow.
func ExampleLog() {
	log := runtime.NewLog(1000)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range log.Events(context.Background(), 0) {
			switch e.Kind {
			case runtime.BranchStarted:
				fmt.Println("branch", e.Label)
			case runtime.NodeFinished:
				if e.Task == "severity" {
					fmt.Printf("%s with p=%.2f\n", e.Text, e.Scores[1].P)
				}
			}
		}
	}()
	_, err := runtime.Run(context.Background(), model(), rate, lang.Args{"alert": "pod-7 is down"}, runtime.WithSink(log))
	<-done
	fmt.Println(err)
	// Output:
	// branch memory
	// branch network
	// high with p=0.92
	// <nil>
}

// The errors of a fork's branches are joined and can be told apart.
func ExampleForkError() {
	m := puppet.New()
	m.OnID("looks[1]/finding").Fail(backend.ErrOverloaded)
	m.OnAny().Reply("fine").Scores(map[string]float64{"low": -1})
	_, err := runtime.Run(context.Background(), m, rate, lang.Args{"alert": "pod-7 is down"})
	var fork *runtime.ForkError
	if errors.As(err, &fork) {
		for _, b := range fork.Branches {
			fmt.Println(b.Branch, b.Label, errors.Is(b.Err, backend.ErrOverloaded))
		}
	}
	// Output:
	// looks[1] network true
}

func ExampleReport() {
	g, _ := rate.Compile()
	report, err := runtime.RunGraph(context.Background(), model(), g, nil, lang.Args{"alert": "x"}, runtime.WithRun("r1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	text, _ := json.Marshal(report.Branches[0].Turns)
	fmt.Println(string(report.Variables))
	fmt.Println(string(text))
	// Output:
	// {"alert":"x","looks":["memory is fine","network is fine"],"severity":"high"}
	// [{"role":"user","text":"Look only at memory."},{"role":"assistant","text":"memory is fine"}]
}

// A check says what is wrong with an answer, and the model tries again.
func ExampleCheckError() {
	title := lang.Define("title", func(p *lang.Program) lang.Var[string] {
		p.User("A title?")
		return p.Gen("title", lang.Check("len(title) < 12", "use fewer than 12 letters"), lang.Tries(2))
	})
	m := puppet.New()
	m.OnID("title").Reply("A very long title")
	m.OnID("title~2").Reply("Short")
	out, err := runtime.Run(context.Background(), m, title, nil)
	fmt.Println(out.Value, err)
	// Output: Short <nil>
}

func ExampleBatch() {
	g, _ := rate.Compile()
	alerts := strings.NewReader(`{"alert": "disk full", "id": "a"}
{"alrt": "typo", "id": "b"}
{"alert": "slow", "id": "c"}`)
	report, err := runtime.Batch(context.Background(), model(), g, nil, runtime.ReadJSONL(alerts), runtime.BatchOptions{
		Each: func(r runtime.BatchResult) error {
			fmt.Println(r.Kept["id"], string(r.Value), r.Err != nil)
			return nil
		},
	})
	fmt.Println(report.Items, report.Failed, err)
	// Output:
	// a "high" false
	// b  true
	// c "high" false
	// 3 1 <nil>
}

// A program runs another as a step: typed inputs, a typed result, and nothing else in
// common but the run.
func Example_program() {
	type verdict struct {
		Good bool   `json:"good"`
		Why  string `json:"why"`
	}
	judge := lang.Define("judge", func(p *lang.Program) lang.Var[verdict] {
		text := lang.In[string](p, "text")
		p.User("Is this good? ", text)
		return lang.JSON[verdict](p, "verdict")
	})
	write := lang.Define("write", func(p *lang.Program) lang.Var[string] {
		p.User("Write a motto.")
		motto := p.Gen("motto")
		judged := lang.Run(p, "judged", judge, lang.Args{"text": motto})
		p.User("Somebody says: ", lang.Get[string](judged, "why"))
		return p.Gen("better")
	})
	be := puppet.New()
	be.OnID("motto").Reply("Trees, not threads.")
	be.OnID("judged/verdict").ReplyFunc(func(p *puppet.Prompt) (string, error) {
		fmt.Printf("the judge sees: %q\n", p.Text)
		return `{"good": false, "why": "too short"}`, nil
	})
	be.OnID("better").Reply("Trees share their roots.")
	out, err := runtime.Run(context.Background(), be, write, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(out.Value)
	fmt.Println(out.Branches[0].ID, string(out.Branches[0].Value))
	// Output:
	// the judge sees: "user: Is this good? Trees, not threads.\nassistant: "
	// Trees share their roots.
	// judged {"good":false,"why":"too short"}
}
