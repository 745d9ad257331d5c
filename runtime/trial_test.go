package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// graphYAML is a program file of steps.
func graphYAML(t *testing.T, steps string) *lang.Graph {
	t.Helper()
	g, err := lang.Decode([]byte("coppice: 1\nname: p\n"+steps), "p.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestRefusedAnswerIsShownToTheModelWithTheReason(t *testing.T) {
	g := graphYAML(t, `steps:
  - user: Say a word.
  - gen:
      name: word
      check:
        - {expr: 'len(word) < 6', say: use a shorter word}
        - word != "cat"
  - user: Again.
  - gen: {name: again}
  - return: word + again
`)
	m := puppet.New()
	m.OnFunc(func(p *puppet.Prompt) bool { return p.ID == "word" }).Reply("elephant")
	m.OnFunc(func(p *puppet.Prompt) bool { return p.ID == "word~2" }).Reply("cat")
	m.OnFunc(func(p *puppet.Prompt) bool { return p.ID == "word~3" }).Reply("dog")
	m.OnID("again").Reply("!")
	var refused []string
	r, err := runtime.RunGraph(t.Context(), m, g, nil, nil, runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
		if e.Kind == runtime.NodeRefused {
			refused = append(refused, e.Task+": "+e.Error)
		}
	})))
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Value) != `"dog!"` || r.Tasks != 4 {
		t.Errorf("%s, %d tasks", r.Value, r.Tasks)
	}
	if got := strings.Join(refused, "\n"); got != "word: use a shorter word\nword~2: this must hold: word != \"cat\"" {
		t.Error(got)
	}
	log := m.Log()
	third := log[2].Request.Turns
	want := []backend.Turn{
		{Role: backend.User, Parts: []backend.Part{{Text: "Say a word."}}},
		{Role: backend.Assistant, Parts: []backend.Part{{Text: "elephant"}}},
		{Role: backend.User, Parts: []backend.Part{{Text: lang.RefusalText("use a shorter word")}}},
		{Role: backend.Assistant, Parts: []backend.Part{{Text: "cat"}}},
		{Role: backend.User, Parts: []backend.Part{{Text: lang.RefusalText(`this must hold: word != "cat"`)}}},
	}
	if len(third) != len(want) {
		t.Fatalf("%+v", third)
	}
	for i := range want {
		if third[i].Role != want[i].Role || third[i].Text() != want[i].Text() {
			t.Errorf("turn %d: %+v", i, third[i])
		}
	}
	// What was refused is gone from the context.
	if last := log[3].Request.Turns; len(last) != 3 || last[1].Text() != "dog" {
		t.Errorf("%+v", last)
	}
	seeds := map[uint64]bool{}
	for _, c := range log {
		seeds[c.Request.Sampling.Seed] = true
	}
	if len(seeds) != 4 {
		t.Errorf("seeds %v", seeds)
	}
}

func TestChecksThatNeverPassFailTheNodeWithTheLastReason(t *testing.T) {
	g := graphYAML(t, `steps:
  - user: Say a word.
  - gen: {name: word, check: 'word startsWith "x"', tries: 2}
  - return: word
`)
	m := puppet.New()
	m.OnAny().Reply("no")
	_, err := runtime.RunGraph(t.Context(), m, g, nil, nil)
	var ce *runtime.CheckError
	if !errors.Is(err, runtime.ErrCheck) || !errors.As(err, &ce) || len(ce.Reasons) != 2 || ce.Answer != "no" {
		t.Fatal(err)
	}
	if len(m.Log()) != 2 || !strings.Contains(err.Error(), "p.yaml:5: word") {
		t.Errorf("%d calls: %v", len(m.Log()), err)
	}
}

type reading struct {
	Pod   string `json:"pod"`
	Count int    `json:"count"`
}

func TestGoFunctionsCheckTypedValues(t *testing.T) {
	calls := 0
	def := lang.Define("typed", func(p *lang.Program) lang.Var[reading] {
		p.User("Read.")
		return lang.JSON[reading](p, "r",
			lang.Check(func(ctx context.Context, r reading) error {
				calls++
				if runtime.IdempotencyKey(ctx) == "" {
					return runtime.Permanent(errors.New("no key"))
				}
				if r.Count < 3 {
					return fmt.Errorf("count is %d, which is below 3", r.Count)
				}
				return nil
			}),
			lang.CheckFunc("known_pod", func(r reading) bool { return r.Pod == "web" }, "name a pod that exists"),
			lang.Check(`r.count < 100`))
	})
	m := puppet.New()
	m.OnID("r").Reply(`{"pod": "web", "count": 1}`)
	m.OnID("r~2").Reply(`{"pod": "api", "count": 5}`)
	m.OnID("r~3").Reply(`{"pod": "web", "count": 5}`)
	journal := filepath.Join(t.TempDir(), "j")
	out, err := runtime.Run(t.Context(), m, def, nil, runtime.WithJournal(journal))
	if err != nil {
		t.Fatal(err)
	}
	if out.Value != (reading{"web", 5}) || calls != 3 {
		t.Errorf("%+v, %d calls", out.Value, calls)
	}
	prompt := m.Log()[2].Prompt
	for _, want := range []string{"count is 1, which is below 3", "name a pod that exists"} {
		if !strings.Contains(prompt, want) {
			t.Errorf("%q is not in %q", want, prompt)
		}
	}
	// The finished journal gives the same without a call, in a program that came
	// from a file.
	again, err := runtime.Resume(t.Context(), nil, journal, def.Funcs())
	if err != nil || string(again.Value) != string(out.Report.Value) || calls != 3 {
		t.Errorf("%v %v", again, err)
	}
	if err := (&lang.Graph{}).Link(nil); err != nil {
		t.Error(err)
	}
	g, _ := def.Compile()
	if err := g.Link(nil); err == nil || !strings.Contains(err.Error(), `no function "known_pod"`) || !strings.Contains(err.Error(), `no function "r_check"`) {
		t.Error(err)
	}
}

func TestTrialGoesOnFromEveryPrefixOfItsResults(t *testing.T) {
	g := graphYAML(t, `steps:
  - user: Say.
  - fork:
      name: words
      each: [a, b]
      steps:
        - user: ${item}
        - gen: {name: word, check: [{func: fine}, 'len(word) > 1']}
      yield: word
  - return: words
`)
	fine, err := lang.NewFunc("fine", func(s string) string {
		if strings.HasPrefix(s, "bad") {
			return "it is bad"
		}
		return ""
	})
	if err != nil {
		t.Fatal(err)
	}
	funcs := lang.Funcs{"fine": fine}
	answers := map[string]string{
		"words[0]/word": "bad", "words[0]/word~2": "x", "words[0]/word~3": "good",
		"words[1]/word": "fine",
	}
	opt := runtime.Options{Run: "r"}
	m, err := runtime.New(g, nil, opt)
	if err != nil {
		t.Fatal(err)
	}
	step := func(m *runtime.Machine) {
		task := m.Ready()[0]
		res := runtime.Result{Task: task.ID}
		if task.Call != nil {
			v, err := runtime.CallFunc(t.Context(), funcs, task.Call)
			if err != nil {
				t.Fatal(err)
			}
			res.Value = v
		} else {
			text, ok := answers[task.ID]
			if !ok {
				t.Fatalf("unexpected %s", task.ID)
			}
			res.Generate = &backend.Result{Part: backend.Part{Text: text}, Finish: backend.FinishStop}
		}
		if err := m.Apply(res); err != nil {
			t.Fatal(err)
		}
	}
	for !m.Done() {
		step(m)
	}
	if m.Err() != nil || fmt.Sprint(m.Output()) != "[good fine]" {
		t.Fatal(m.Output(), m.Err())
	}
	all := m.Snapshot()
	if len(all) != 8 {
		t.Errorf("%d results", len(all))
	}
	for n := range all {
		r, err := runtime.Restore(g, nil, opt, all[:n])
		if err != nil {
			t.Fatal(err)
		}
		for !r.Done() {
			step(r)
		}
		if fmt.Sprint(r.Output()) != "[good fine]" {
			t.Errorf("from %d results: %v %v", n, r.Output(), r.Err())
		}
	}
}

func TestFunctionOfACheckThatBreaksIsNoVerdict(t *testing.T) {
	def := lang.Define("broken", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		return p.Gen("x", lang.Check(func(string) bool { panic("oh") }))
	})
	m := puppet.New()
	m.OnAny().Reply("y")
	_, err := runtime.Run(t.Context(), m, def, nil)
	if !errors.Is(err, runtime.ErrPanic) || len(m.Log()) != 1 {
		t.Errorf("%d calls, %v", len(m.Log()), err)
	}
}

func TestJSONThatIsNoneIsAskedForAgain(t *testing.T) {
	g := graphYAML(t, `steps:
  - user: hi
  - json: {name: v, type: int, tries: 2}
  - return: v
`)
	m := puppet.New()
	n := 0
	m.OnAny().ReplyFunc(func(p *puppet.Prompt) (string, error) { return "7", nil }).Edit(func(p *puppet.Prompt, r *backend.Result) {
		if n++; n == 1 {
			r.Part = backend.Part{Text: "seven"}
		}
	})
	r, err := runtime.RunGraph(t.Context(), m, g, nil, nil)
	if err != nil || string(r.Value) != "7" {
		t.Fatal(r, err)
	}
	if p := m.Log()[1].Prompt; !strings.Contains(p, "not a value of the schema") {
		t.Error(p)
	}
}

func TestTrialInsideAnOpenTurnAndInRawText(t *testing.T) {
	g := graphYAML(t, `steps:
  - user: hi
  - role:
      role: assistant
      steps:
        - text: "I say "
        - gen: {name: x, check: 'x == "b"'}
        - text: .
  - return: x
`)
	m := puppet.New()
	m.OnID("role/x").Reply("a")
	m.OnID("role/x~2").Reply("b")
	r, err := runtime.RunGraph(t.Context(), m, g, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	turns := m.Log()[1].Request.Turns
	if len(turns) != 4 || turns[1].Text() != "I say a" || turns[1].Open || turns[3].Text() != "I say " || !turns[3].Open {
		t.Errorf("%+v", turns)
	}
	if last := r.Turns[1]; last.Text() != "I say b." || len(r.Turns) != 2 {
		t.Errorf("%+v", r.Turns)
	}

	for temperature, calls := range map[string]int{"0": 1, "1": 3} {
		g := graphYAML(t, "steps:\n  - text: once\n  - gen: {name: x, check: 'x == \"b\"', temperature: "+temperature+"}\n  - return: x\n")
		m := puppet.New()
		m.OnAny().Reply("a")
		if _, err := runtime.RunGraph(t.Context(), m, g, nil, nil); !errors.Is(err, runtime.ErrCheck) || len(m.Log()) != calls {
			t.Errorf("temperature %s: %d calls, %v", temperature, len(m.Log()), err)
		}
	}
}
