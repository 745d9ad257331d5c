package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// engine is a workflow engine in small: coroutines that run one at a time and
// wait for conditions, activities whose results it keeps as its history, and a
// time that moves only with them. It knows of scripts only lang.Seams and the
// exported methods of a Machine.
type engine struct {
	m       *runtime.Machine
	be      backend.Backend
	now     time.Time
	threads []*thread
	history []runtime.Result
	err     error
	ran     int // activities
}

type thread struct {
	resume, yielded chan struct{}
	ready           func() bool
	done            bool
}

// seams are those of one thread.
type seams struct {
	e *engine
	t *thread
}

func (s seams) Now() time.Time             { return s.e.now }
func (s seams) Seed() uint64               { return 7 }
func (s seams) Ask(a lang.Ask) lang.Answer { return s.e.m.Ask(a) }

func (s seams) Spawn(f func(lang.Seams)) {
	t := &thread{resume: make(chan struct{}), yielded: make(chan struct{})}
	s.e.threads = append(s.e.threads, t)
	go func() {
		<-t.resume
		f(seams{s.e, t})
		t.done = true
		t.yielded <- struct{}{}
	}()
}

func (s seams) Await(ready func() bool) error {
	for !ready() {
		if s.e.err != nil {
			return s.e.err
		}
		s.t.ready = ready
		s.t.yielded <- struct{}{}
		<-s.t.resume
	}
	return nil
}

// advance runs all threads until each of them waits.
func (e *engine) advance() {
	for again := true; again; {
		again = false
		for i := 0; i < len(e.threads); i++ {
			t := e.threads[i]
			if t.done || t.ready != nil && e.err == nil && !t.ready() {
				continue
			}
			t.ready, again = nil, true
			t.resume <- struct{}{}
			<-t.yielded
		}
		e.m.Settle()
	}
}

// run executes a script. past is the history of an earlier execution; crash ends
// this one after that many activities.
func (e *engine) run(ctx context.Context, script lang.Scripted, args lang.Args, past []runtime.Result, crash int) error {
	g, err := script.Open()
	if err != nil {
		return err
	}
	inputs, err := g.Bind(args)
	if err != nil {
		return err
	}
	if e.m, err = runtime.NewScript(g, inputs, runtime.Options{Run: "r", Seed: 7}); err != nil {
		return err
	}
	seams{e: e}.Spawn(func(w lang.Seams) { script.Play(w, g, inputs) })
	defer func() {
		e.err = errors.New("the engine stops")
		e.advance()
	}()
	e.advance()
	for !e.m.Done() {
		ready := e.m.Ready()
		if len(ready) == 0 {
			return errors.New("deadlock")
		}
		task := ready[len(ready)-1] // not in the order of the program
		var r runtime.Result
		if len(past) > 0 {
			r, past = past[0], past[1:]
			if !slices.ContainsFunc(ready, func(t runtime.Task) bool { return t.ID == r.Task }) {
				return fmt.Errorf("history has %s", r.Task)
			}
		} else {
			if e.ran == crash {
				return nil
			}
			e.ran++
			if r, err = e.activity(ctx, task); err != nil {
				return err
			}
		}
		e.history = append(e.history, r)
		e.now = e.now.Add(time.Second)
		if err := e.m.Apply(r); err != nil {
			return err
		}
		e.advance()
	}
	return e.m.Err()
}

func (e *engine) activity(ctx context.Context, t runtime.Task) (r runtime.Result, err error) {
	r.Task = t.ID
	switch {
	case t.Generate != nil:
		r.Generate, err = e.be.Generate(ctx, t.Generate, nil)
	case t.Score != nil:
		r.Score, err = e.be.Score(ctx, t.Score)
	default:
		f, ok := e.m.Func(t.ID)
		if !ok {
			return r, fmt.Errorf("no function for %s", t.ID)
		}
		r.Value, err = runtime.CallFunc(runtime.WithTask(ctx, t), lang.Funcs{t.Call.Func: f}, t.Call)
	}
	return r, err
}

// dig is a script that uses every seam.
func dig(effects *[]string) *lang.ScriptDef[string, string] {
	return lang.Script("dig", func(s *lang.S, task string) (string, error) {
		began := s.Now()
		s.User(task, " #", s.Rand().IntN(1000))
		var notes []string
		for i := range s.Turns("rounds", 3) {
			word, err := s.Gen("word", lang.Temperature(1)).Get()
			if err != nil {
				return "", err
			}
			got, err := lang.Do(s, "dig", func(ctx context.Context) (string, error) {
				*effects = append(*effects, runtime.IdempotencyKey(ctx))
				return fmt.Sprint(word, i), nil
			}).Get()
			if err != nil {
				return "", err
			}
			s.Tool(got, s.Now().Sub(began).String())
			notes = append(notes, got)
		}
		more, err := lang.Map(s, "sides", []string{"left", "right"}, func(b *lang.S, side string) (string, error) {
			b.User(side, b.Rand().IntN(1000))
			if _, err := b.Gen("look").Get(); err != nil {
				return "", err
			}
			return lang.Select(b, "sure", "yes", "no").Get()
		})
		return strings.Join(append(notes, more...), " "), err
	})
}

func digModel() *puppet.Model {
	m := puppet.New()
	m.OnFunc(func(p *puppet.Prompt) bool { return p.Score != nil }).Scores(map[string]float64{"yes": -1, "no": -2})
	m.OnAny().Reply("clay")
	return m
}

func TestSameScriptOnAnotherWorld(t *testing.T) {
	var effects []string
	script := dig(&effects)
	args, err := script.Args("dig here")
	if err != nil {
		t.Fatal(err)
	}
	own := digModel()
	at := time.Unix(0, 0)
	clock := func() time.Time { return at }
	want, err := runtime.RunScript(t.Context(), own, script, "dig here", runtime.WithSeed(7), runtime.WithRun("r"), runtime.WithClock(clock))
	if err != nil {
		t.Fatal(err)
	}
	wantEffects := slices.Clone(effects)

	effects = nil
	whole := &engine{be: digModel(), now: at}
	if err := whole.run(t.Context(), script, args, nil, -1); err != nil {
		t.Fatal(err)
	}
	if got, _ := json.Marshal(whole.m.Output()); string(got) != string(want.Report.Value) {
		t.Errorf("%s, want %s", got, want.Report.Value)
	}
	if !slices.Equal(effects, wantEffects) {
		t.Errorf("effects %v, want %v", effects, wantEffects)
	}
	if a, b := asked(own), asked(whole.be.(*puppet.Model)); a != b {
		t.Errorf("this process asked\n%s\nthe engine\n%s", a, b)
	}

	// It stops after each activity, and a new execution goes on from the history.
	for crash := range whole.ran {
		effects = nil
		first := &engine{be: digModel(), now: at}
		if err := first.run(t.Context(), script, args, nil, crash); err != nil {
			t.Fatal(err)
		}
		second := &engine{be: digModel(), now: at}
		if err := second.run(t.Context(), script, args, first.history, -1); err != nil {
			t.Fatalf("crash after %d: %v", crash, err)
		}
		if got, _ := json.Marshal(second.m.Output()); string(got) != string(want.Report.Value) || second.ran+first.ran != whole.ran || !slices.Equal(effects, wantEffects) {
			t.Errorf("crash after %d: %s, %d and %d activities, effects %v", crash, got, first.ran, second.ran, effects)
		}
	}
}

// asked returns what a model was asked: ids, prompts without the times in them,
// and the numbers that sampling starts from.
func asked(m *puppet.Model) string {
	var lines []string
	for _, c := range m.Log() {
		seed := uint64(0)
		if c.Request != nil {
			seed = c.Request.Sampling.Seed
		}
		prompt := c.Prompt
		for i := range 10 {
			prompt = strings.ReplaceAll(prompt, fmt.Sprint(i, "s"), "?")
		}
		lines = append(lines, fmt.Sprintf("%s %d %q", c.ID, seed, prompt))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
