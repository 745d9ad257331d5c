package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
)

// One program, written both ways.

type verdict struct {
	Reason string `json:"reason"`
	Page   bool   `json:"page"`
}

func pageOut(ctx context.Context, who string) (string, error) { return "paged " + who, nil }

var defined = lang.Define("triage", func(p *lang.Program) lang.Var[verdict] {
	alert := lang.In[string](p, "alert")
	p.System("You are on call. Money is ${cheap}.")
	p.User("Alert: ", alert)
	looks := lang.Fork(p, "looks", lang.Each("memory", "rollout", "network"), func(b *lang.Branch, angle lang.Var[string]) lang.Var[string] {
		b.User("Look only at ", angle, ".")
		return b.Gen("finding", lang.MaxTokens(80), lang.Stop("\n"), lang.Temperature(0.7))
	})
	p.User("Findings:\n", lang.Join(looks, "\n"))
	p.Repeat("rounds", 3, func(p *lang.Program, round lang.Var[int]) lang.Cond {
		p.Gen("doubt", lang.Temperature(0.5))
		p.User("Go on.")
		return lang.Cond{}
	})
	var sev lang.Var[string]
	p.Role("assistant", func(p *lang.Program) {
		p.Text("The severity is ")
		sev = lang.Select(p, "severity", "low", "high")
		p.Text(".")
	})
	who := lang.Call1(p, "page", pageOut, sev)
	p.User(who)
	return lang.JSON[verdict](p, "verdict", lang.MaxTokens(200))
})

type alertIn struct {
	Alert string `json:"alert"`
}

var scripted = lang.Script("triage", func(s *lang.S, in alertIn) (verdict, error) {
	s.System("You are on call. Money is ${cheap}.")
	s.User("Alert: ", in.Alert)
	looks, err := lang.Map(s, "looks", []string{"memory", "rollout", "network"}, func(b *lang.S, angle string) (string, error) {
		b.User("Look only at ", angle, ".")
		return b.Gen("finding", lang.MaxTokens(80), lang.Stop("\n"), lang.Temperature(0.7)).Get()
	})
	if err != nil {
		return verdict{}, err
	}
	s.User("Findings:\n", strings.Join(looks, "\n"))
	for range s.Turns("rounds", 3) {
		s.Gen("doubt", lang.Temperature(0.5))
		s.User("Go on.")
	}
	var sev lang.Var[string]
	s.Role("assistant", func(s *lang.S) {
		s.Text("The severity is ")
		sev = lang.Select(s, "severity", "low", "high")
		s.Text(".")
	})
	who := lang.Call1(s, "page", pageOut, sev)
	s.User(who) // not read: a data edge
	return lang.JSON[verdict](s, "verdict", lang.MaxTokens(200)).Get()
})

func triageModel() *puppet.Model {
	m := puppet.New()
	m.OnRegexp(`Look only at (\w+)\.`).Reply("$1 <fine>")
	m.OnRegexp(`doubt`).Reply("never")
	m.OnID("role/severity").Scores(map[string]float64{"low": -2, "high": -0.1})
	m.OnID("verdict").Reply(`{"reason":"memory","page":true}`)
	m.OnAny().Reply("hm")
	return m
}

// requests returns all that a model was asked, in the order of the ids, with
// everything that decides about tokens.
func requests(t *testing.T, m *puppet.Model) string {
	t.Helper()
	var lines []string
	for _, c := range m.Log() {
		var what any
		if c.Request != nil {
			r := *c.Request
			r.Hints, r.Progress = backend.Hints{}, false
			what = r
		} else {
			r := *c.Score
			r.Hints = backend.Hints{}
			what = r
		}
		text, err := json.Marshal(what)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(text))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func TestProgramWrittenBothWaysAsksTheSame(t *testing.T) {
	m1, m2 := triageModel(), triageModel()
	var ev1, ev2 []string
	note := func(to *[]string) Option {
		return WithSink(SinkFunc(func(e Event) {
			if e.Kind == NodeFinished || e.Kind == BranchFinished {
				*to = append(*to, fmt.Sprint(e.Kind, e.Task, e.Branch, e.Label, e.Does, e.Text, string(e.Value)))
			}
		}))
	}
	out1, err := Run(t.Context(), m1, defined, lang.Args{"alert": "pod-7"}, WithSeed(7), note(&ev1))
	if err != nil {
		t.Fatal(err)
	}
	out2, err := RunScript(t.Context(), m2, scripted, alertIn{"pod-7"}, WithSeed(7), note(&ev2))
	if err != nil {
		t.Fatal(err)
	}
	if out1.Value != out2.Value || !out2.Value.Page {
		t.Errorf("values %v and %v", out1.Value, out2.Value)
	}
	if a, b := requests(t, m1), requests(t, m2); a != b {
		t.Errorf("the graph asked\n%s\nthe script\n%s", a, b)
	}
	if m2.Calls("rounds[2]/doubt") != 1 || m2.Calls("looks[1]/finding") != 1 {
		t.Error("ids differ from those expected")
	}
	slices.Sort(ev1)
	slices.Sort(ev2)
	if !slices.Equal(ev1, ev2) {
		t.Errorf("events\n%s\nand\n%s", strings.Join(ev1, "\n"), strings.Join(ev2, "\n"))
	}
	u1, u2 := out1.Usage, out2.Usage
	if u1 != u2 {
		t.Errorf("usage %+v and %+v", u1, u2)
	}
	turns := func(r *Report) string { b, _ := json.Marshal(r.Turns); return string(b) }
	if a, b := turns(out1.Report), turns(out2.Report); a != b {
		t.Errorf("contexts\n%s\n%s", a, b)
	}
	if a, b := string(out1.Variables), string(out2.Variables); a != b {
		t.Errorf("variables\n%s\n%s", a, b)
	}
	if len(out2.Branches) != 3 || out2.Branches[1].Label != "rollout" || string(out2.Branches[1].Value) != `"rollout <fine>"` {
		t.Errorf("branches %+v", out2.Branches)
	}
}

func TestSiblingsOfAMapStartTogether(t *testing.T) {
	m := triageModel()
	if _, err := RunScript(t.Context(), m, scripted, alertIn{"x"}); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range m.Log() {
		if strings.HasSuffix(c.ID, "/finding") {
			n++
			if c.Request.Hints.Siblings != 3 {
				t.Errorf("%s: %d siblings", c.ID, c.Request.Hints.Siblings)
			}
		}
	}
	if n != 3 {
		t.Error(n, "findings")
	}
}

// agent is a script whose steps depend on what it is told, the time and chance.
func agent(calls map[string]int) *lang.ScriptDef[string, string] {
	return lang.Script("agent", func(s *lang.S, task string) (string, error) {
		start := s.Now()
		s.User(task, " #", s.Rand().IntN(1000))
		var log []string
		for i := range s.Turns("steps", 4) {
			next, err := s.Gen("next").Get()
			if err != nil {
				return "", err
			}
			got, err := lang.Do(s, "tool", func(ctx context.Context) (string, error) {
				calls[IdempotencyKey(ctx)]++
				return fmt.Sprint("result ", i, " of ", next), nil
			}).Get()
			if err != nil {
				return "", err
			}
			s.Tool(got, " after ", int(s.Now().Sub(start)/time.Second))
			log = append(log, got)
		}
		sides, err := lang.Map(s, "sides", []int{1, 2}, func(b *lang.S, n int) (string, error) {
			b.User(n, " ", b.Rand().IntN(1000))
			return b.Gen("side").Get()
		})
		return strings.Join(append(log, sides...), ";"), err
	})
}

// ticking returns a clock that moves a second each time it is read.
func ticking() func() time.Time {
	at := time.Unix(1e9, 0).UTC()
	return func() time.Time { at = at.Add(time.Second); return at }
}

func TestScriptGoesOnFromEveryPointOfItsJournal(t *testing.T) {
	mem := newMemFS()
	calls := map[string]int{}
	model := func() *puppet.Model {
		m := puppet.New()
		m.OnAny().Reply("word")
		return m
	}
	first := model()
	want, err := RunScript(t.Context(), first, agent(calls), "dig", WithJournal("j"), WithRun("r"), WithSeed(3), WithClock(ticking()), withFS(mem))
	if err != nil {
		t.Fatal(err)
	}
	if len(calls) != 4 {
		t.Errorf("calls %v", calls)
	}
	asked := requests(t, first)
	whole := bytes.Clone(mem.files["j"].data)
	lines := bytes.SplitAfter(whole, []byte{'\n'})
	for n := 1; n < len(lines); n++ {
		fs := newMemFS()
		head := bytes.Join(lines[:n], nil)
		fs.files["j"] = &memData{data: bytes.Clone(head)}
		again, repeated := model(), map[string]int{}
		clock := ticking()
		for range 40 {
			clock() // another time of day
		}
		got, err := RunScript(t.Context(), again, agent(repeated), "dig", WithJournal("j"), WithClock(clock), withFS(fs))
		if err != nil {
			t.Fatalf("after %d records: %v", n, err)
		}
		if got.Value != want.Value || got.Tasks != want.Tasks {
			t.Errorf("after %d records: %q, %d tasks", n, got.Value, got.Tasks)
		}
		for _, c := range again.Log() {
			if bytes.Contains(head, []byte(`{"kind":"result","task":"`+c.ID+`"`)) {
				t.Errorf("after %d records %s was done again", n, c.ID)
			}
		}
		if n == len(lines)-1 {
			if len(again.Log()) > 0 || len(repeated) > 0 || got.Restored != want.Tasks {
				t.Errorf("a finished run was run again")
			}
		}
		// What was asked before the cut has the same text, the time in it too.
		for _, c := range again.Log() {
			if c.ID == "steps[1]/next" && n > 3 && !strings.Contains(asked, "result 0 of word") {
				t.Error(c.Prompt)
			}
		}
	}
	// A graph's resume cannot have the code.
	if _, err := Resume(t.Context(), model(), "j", nil, withFS(mem)); !errors.Is(err, ErrNeedsScript) || !strings.Contains(err.Error(), "RunScript") {
		t.Error(err)
	}
}

func TestScriptThatChangedIsRefused(t *testing.T) {
	mem := newMemFS()
	script := func(text, name string, max int) *lang.ScriptDef[string, string] {
		return lang.Script("s", func(s *lang.S, in string) (string, error) {
			s.User(text)
			if _, err := s.Gen(name, lang.MaxTokens(max)).Get(); err != nil {
				return "", err
			}
			return s.Gen("last").Get()
		})
	}
	m := puppet.New()
	m.OnAny().Reply("x")
	if _, err := RunScript(t.Context(), m, script("a", "one", 5), "", WithJournal("j"), withFS(mem)); err != nil {
		t.Fatal(err)
	}
	for what, s := range map[string]*lang.ScriptDef[string, string]{
		"other texts": script("b", "one", 5), "with other": script("a", "one", 6), "asks for two": script("a", "two", 5),
	} {
		_, err := RunScript(t.Context(), m, s, "", WithJournal("j"), withFS(mem))
		var re *ReplayError
		if !errors.As(err, &re) || !errors.Is(err, ErrJournalMismatch) || re.Task != "one" || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := RunScript(t.Context(), m, script("a", "one", 5), "other", WithJournal("j"), withFS(mem)); !errors.Is(err, ErrJournalMismatch) {
		t.Error(err)
	}
	n := len(m.Log())
	if _, err := RunScript(t.Context(), m, script("a", "one", 5), "", WithJournal("j"), withFS(mem)); err != nil || len(m.Log()) != n {
		t.Error(err)
	}
}

func TestFailedStepOfAScriptIsTriedAgain(t *testing.T) {
	mem := newMemFS()
	script := lang.Script("s", func(s *lang.S, in string) ([]string, error) {
		s.User("hi")
		got, err := lang.Map(s, "arms", []string{"a", "b"}, func(b *lang.S, item string) (string, error) {
			return b.Gen("x").Get()
		})
		if err != nil {
			return nil, fmt.Errorf("in my words: %w", err)
		}
		return got, nil
	})
	m := puppet.New()
	first := make(chan struct{})
	m.OnID("arms[1]/x").Wait(first).Fail(backend.ErrUnavailable)
	m.OnAny().Reply("ok")
	var seen []string
	sink := SinkFunc(func(e Event) {
		if e.Kind == NodeFinished && e.Task == "arms[0]/x" {
			close(first)
		}
		if e.Kind == NodeFinished {
			seen = append(seen, fmt.Sprint(e.Task, e.Restored, e.Error != ""))
		}
	})
	_, err := RunScript(t.Context(), m, script, "", WithJournal("j"), withFS(mem), WithSink(sink))
	if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "arms[1] (b)") {
		t.Fatal(err)
	}
	m2 := puppet.New()
	m2.OnAny().Reply("ok")
	seen = nil
	out, err := RunScript(t.Context(), m2, script, "", WithJournal("j"), withFS(mem), WithSink(SinkFunc(func(e Event) {
		if e.Kind == NodeFinished {
			seen = append(seen, fmt.Sprint(e.Task, e.Restored, e.Error != ""))
		}
	})))
	if err != nil || !reflect.DeepEqual(out.Value, []string{"ok", "ok"}) {
		t.Fatal(out, err)
	}
	if m2.Calls("arms[0]/x") != 0 || m2.Calls("arms[1]/x") != 1 || !slices.Equal(seen, []string{"arms[0]/x1 false", "arms[1]/x0 false"}) {
		t.Error("done again, or not:", seen)
	}
}
