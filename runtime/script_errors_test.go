package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
)

// play runs a script without input on a model that says ok to all but "bad".
func play[Out any](t *testing.T, body func(s *lang.S) (Out, error), opts ...Option) (*Output[Out], error) {
	t.Helper()
	m := puppet.New()
	m.OnFunc(func(p *puppet.Prompt) bool { return strings.HasSuffix(p.ID, "bad") }).Fail(backend.ErrOverloaded)
	m.OnFunc(func(p *puppet.Prompt) bool { return p.Score != nil }).Scores(map[string]float64{"yes": -1, "no": -2})
	m.OnFunc(func(p *puppet.Prompt) bool { return strings.HasPrefix(p.ID, "v") }).Reply(`{"reason":"r","page":false}`)
	m.OnAny().Reply("ok")
	return RunScript(t.Context(), m, lang.Script("s", func(s *lang.S, _ string) (Out, error) { return body(s) }), "", opts...)
}

func TestFirstErrorOfAScriptSticks(t *testing.T) {
	var after, text error
	_, err := play(t, func(s *lang.S) (string, error) {
		s.Gen("bad") // not read
		s.User("and then")
		v := s.Gen("later")
		_, after = v.Get()
		s.User("more")
		_, text = s.Gen("last").Get()
		if s.Err() == nil {
			t.Error("no error on the line")
		}
		return "fine", nil // it is not
	})
	for what, e := range map[string]error{"run": err, "later": after, "last": text} {
		var ne *NodeError
		if !errors.Is(e, backend.ErrOverloaded) || !errors.As(e, &ne) || ne.Task != "bad" || ne.Pos.Line == 0 {
			t.Errorf("%s: %v", what, e)
		}
	}
	// Asked for and never read: it still runs, and its failure is the run's.
	if _, err := play(t, func(s *lang.S) (string, error) { s.Gen("bad"); return "fine", nil }); !errors.Is(err, backend.ErrOverloaded) {
		t.Error(err)
	}
}

func TestArmsThatFailAreNamed(t *testing.T) {
	arm := func(b *lang.S, item string) (string, error) {
		switch item {
		case "own":
			return "", errors.New("my reason")
		case "panic":
			panic("dear me")
		case "unread":
			b.Gen("bad")
			return "unread", nil
		}
		return b.Gen(item).Get()
	}
	_, err := play(t, func(s *lang.S) ([]string, error) {
		return lang.Map(s, "m", []string{"good", "own"}, arm)
	})
	if err == nil || !strings.Contains(err.Error(), "m[1] (own): my reason") || !strings.Contains(err.Error(), "script_errors_test.go") {
		t.Error(err)
	}
	out, err := play(t, func(s *lang.S) (string, error) {
		got, err := lang.Try(s, "m", []string{"good", "bad", "own", "panic", "unread"}, arm)
		if err != nil {
			return "", err
		}
		var b strings.Builder
		for _, o := range got {
			fmt.Fprintf(&b, "%s|%v\n", o.Value, o.Err)
		}
		s.User("go on")
		if _, err := s.Gen("after").Get(); err != nil {
			return "", err
		}
		return b.String(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.Value, "\n")
	for i, want := range []string{"ok|<nil>", "overloaded", "my reason", "script_errors_test.go:", "overloaded"} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("arm %d: %s", i, lines[i])
		}
	}
	if !strings.Contains(lines[3], "dear me") || len(out.Branches) != 5 || out.Branches[2].Status != Failed {
		t.Error(lines[3], out.Branches)
	}
}

func TestMapEndsWithItsPolicy(t *testing.T) {
	never := make(chan struct{})
	m := puppet.New()
	m.OnID("m[0]/x").Wait(never).Reply("slow")
	m.OnAny().Reply("fast")
	var slow error
	script := lang.Script("s", func(s *lang.S, _ string) ([]string, error) {
		return lang.Map(s, "m", []string{"a", "b"}, func(b *lang.S, item string) (string, error) {
			v, err := b.Gen("x").Get()
			if item == "a" {
				slow = err
			}
			return v, err
		}, lang.First())
	})
	out, err := RunScript(t.Context(), m, script, "")
	if err != nil || len(out.Value) != 1 || out.Value[0] != "fast" || !errors.Is(slow, ErrLineOver) {
		t.Error(out, err, slow)
	}
	none, err := play(t, func(s *lang.S) (int, error) {
		got, err := lang.Map(s, "m", []string{}, func(b *lang.S, item string) (string, error) { return item, nil })
		return len(got), err
	})
	if err != nil || none.Value != 0 {
		t.Error(err)
	}
	nested, err := play(t, func(s *lang.S) ([][]string, error) {
		return lang.Map(s, "m", []int{1, 2}, func(b *lang.S, n int) ([]string, error) {
			return lang.Map(b, "deep", []int{3, 4}, func(b *lang.S, k int) (string, error) {
				b.User(n, k)
				v, err := b.Gen("x").Get()
				return fmt.Sprint(n, k, v), err
			})
		})
	})
	if err != nil || fmt.Sprint(nested.Value) != "[[1 3ok 1 4ok] [2 3ok 2 4ok]]" {
		t.Error(nested, err)
	}
	if nested.Branches[1].Branches[0].ID != "m[1]/deep[0]" {
		t.Errorf("%+v", nested.Branches[1])
	}
}

func TestMisuseOfScripts(t *testing.T) {
	type strange struct{ C chan int }
	var other lang.Var[string]
	for want, body := range map[string]func(s *lang.S) (string, error){
		"use Go's return": func(s *lang.S) (string, error) {
			lang.Return(s, s.Gen("x"))
			return "", nil
		},
		"the script panicked: boom": func(s *lang.S) (string, error) { panic("boom") },
		"a system turn after other turns": func(s *lang.S) (string, error) {
			s.User("a")
			s.System("b")
			return s.Gen("x").Get()
		},
		"asked for again since": func(s *lang.S) (string, error) {
			a := s.Gen("x")
			s.Gen("x")
			s.User(a)
			return "", s.Err()
		},
		"cannot be read outside of it": func(s *lang.S) (string, error) {
			var leaked lang.Var[string]
			lang.Map(s, "m", []int{1}, func(b *lang.S, _ int) (int, error) { leaked = b.Gen("x"); return 1, nil })
			s.User(leaked)
			return "", nil
		},
		"is over, nothing can be added": func(s *lang.S) (string, error) {
			var arm *lang.S
			lang.Map(s, "m", []int{1}, func(b *lang.S, _ int) (int, error) { arm = b; return 1, nil })
			arm.User("late")
			return s.Gen("x").Get()
		},
		"belongs to program s": func(s *lang.S) (string, error) {
			if other.Expr() == "" {
				other = s.Gen("x")
				return "", errors.New("belongs to program s")
			}
			s.User(other)
			return "", nil
		},
		"has no JSON form": func(s *lang.S) (string, error) {
			_, err := lang.JSON[strange](s, "x").Get()
			return "", err
		},
		"a Map inside the open": func(s *lang.S) (string, error) {
			s.Role("assistant", func(s *lang.S) {
				lang.Map(s, "m", []int{1}, func(b *lang.S, _ int) (int, error) { return 1, nil })
			})
			return "", nil
		},
		"a bound of at least 1": func(s *lang.S) (string, error) {
			for range s.Turns("t", 0) {
			}
			return "", nil
		},
		"not UTF-8": func(s *lang.S) (string, error) { s.User("\xff"); return "", nil },
		"cannot name a variable": func(s *lang.S) (string, error) {
			return s.Gen("a-b").Get()
		},
		"quorum of 3": func(s *lang.S) (string, error) {
			_, err := lang.Map(s, "m", []string{"a"}, func(b *lang.S, _ string) (int, error) { return 1, nil }, lang.Quorum(3))
			return "", err
		},
		"did not stop": func(s *lang.S) (string, error) {
			lang.Do(s, "f", func(ctx context.Context) (string, error) { return "", errors.New("did not stop") })
			for { // a script that looks at no error
				s.Gen("x").Get()
			}
		},
	} {
		_, err := play(t, body)
		if want == "belongs to program s" {
			_, err = play(t, body)
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		} else if want != "did not stop" && !strings.Contains(err.Error(), "script_errors_test.go:") {
			t.Errorf("no place in %v", err)
		}
	}
	// Values do not exist while a graph is built.
	_, err := lang.Define("d", func(p *lang.Program) lang.Var[string] {
		v := p.Gen("x")
		if _, err := v.Get(); err == nil || !strings.Contains(err.Error(), "no value while the program is being built") {
			t.Error(err)
		}
		return v
	}).Compile()
	if err != nil {
		t.Error(err)
	}
}

func TestScriptSeesItsBackend(t *testing.T) {
	m := puppet.New()
	m.SetInfo(func(i *backend.Info) { i.Capabilities.Score = false })
	m.OnAny().Reply("ok")
	_, err := RunScript(t.Context(), m, lang.Script("s", func(s *lang.S, _ string) (string, error) {
		if _, err := s.Gen("x").Get(); err != nil {
			return "", err
		}
		return lang.Select(s, "y", "a", "b").Get()
	}), "")
	var ue *UnsupportedError
	if !errors.As(err, &ue) || !errors.Is(err, backend.ErrUnsupported) || ue.Missing[0].Node != "y" {
		t.Error(err)
	}
}

func TestScriptEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	m := puppet.New()
	gate := puppet.NewGate()
	m.SetGate(gate)
	m.OnAny().Reply("ok")
	go func() {
		gate.HeldCount(t.Context(), 3)
		cancel(errors.New("enough"))
	}()
	ended := 0
	_, err := RunScript(ctx, m, lang.Script("s", func(s *lang.S, _ string) (string, error) {
		defer func() { ended++ }()
		_, err := lang.Map(s, "m", []int{1, 2, 3}, func(b *lang.S, _ int) (string, error) {
			defer func() { ended++ }()
			b.User("x")
			return b.Gen("x").Get()
		})
		return "", err
	}), "")
	if err == nil || !strings.Contains(err.Error(), "enough") || ended != 4 {
		t.Error(err, ended)
	}
}

func TestScriptReadsVarsInEveryForm(t *testing.T) {
	out, err := play(t, func(s *lang.S) (string, error) {
		s.User("JSON please")
		v := lang.JSON[verdict](s, "v")
		reason := lang.Get[string](v, "reason") // of a value that is not there yet
		r, err := reason.Get()
		if err != nil {
			return "", err
		}
		old, err := v.Get()
		if err != nil {
			return "", err
		}
		v2 := lang.JSON[verdict](s, "v")
		s.User(v, v2) // the first was read: its value is meant
		sure := lang.Select(s, "sure", "yes", "no")
		s.When(sure.Is("yes"), func(p *lang.Program) { p.User("then") }) // decided in the run, not read
		fixed := lang.Fork(s, "f", lang.Each("a", "b"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
			b.User(item, v2)
			return b.Gen("x")
		})
		list, err := fixed.Get()
		if err != nil {
			return "", err
		}
		n, err := lang.Len(fixed).Get()
		more, lerr := lang.Let[int](s, "more", "len(", fixed, ") + 1").Get()
		return fmt.Sprint(r, old.Reason, list, n, more, err, lerr), nil
	})
	if err != nil || out.Value != "rr[ok ok] 2 3 <nil> <nil>" {
		t.Fatal(out, err)
	}
	text := ""
	for _, turn := range out.Turns {
		text += string(turn.Role) + ":" + turn.Text() + "\n"
	}
	if !strings.Contains(text, `user:{"reason":"r","page":false}{"reason":"r","page":false}`) || !strings.Contains(text, "user:then") {
		t.Error(text)
	}
}

func TestExplainOfWhatAScriptIsKnownToDo(t *testing.T) {
	called := false
	script := lang.Script("known", func(s *lang.S, in alertIn) (string, error) {
		s.System("Be brief.")
		s.User(in.Alert)
		looks, err := lang.Map(s, "looks", []string{"memory", "two words"}, func(b *lang.S, angle string) (string, error) {
			b.User("Look at ", angle)
			first := b.Gen("first", lang.MaxTokens(10))
			b.User("And ", first)
			if _, err := b.Gen("second", lang.MaxTokens(5)).Get(); err != nil {
				return "", err
			}
			called = true
			return b.Gen("third").Get()
		})
		if err != nil {
			return "", err
		}
		called = true
		return strings.Join(looks, ""), nil
	})
	x, err := lang.ExplainScript(script, lang.ExplainOptions{Inputs: lang.Args{"alert": "pod-7"}})
	if err != nil {
		t.Fatal(err)
	}
	var nodes, branches []string
	for _, c := range x.Calls {
		nodes = append(nodes, c.Node)
	}
	for _, b := range x.Branches {
		branches = append(branches, b.ID)
	}
	if got := strings.Join(nodes, " "); got != "looks/memory/first looks/memory/second looks/1/first looks/1/second" {
		t.Error(got)
	}
	if got := strings.Join(branches, " "); got != "looks/memory looks/1" {
		t.Error(got)
	}
	notes := strings.Join(x.Notes, "\n")
	if called || !strings.Contains(notes, "script_errors_test.go:") || !strings.Contains(notes, "looks/second") {
		t.Error(called, notes)
	}
	if !strings.Contains(x.Trunk.Text, "pod-7") || x.Trunk.Stable.Min != 0 {
		t.Errorf("%+v", x.Trunk)
	}
	// A loop that waits in its first round is known up to there.
	g, _, err := lang.KnownSteps(agent(nil), lang.Args{"input": "dig"})
	if err != nil || g.Node("steps/next") == nil || g.Node("steps").Repeat.Max != 1 {
		t.Error(err)
	}
	// What is wrong with the script is said.
	bad := lang.Script("bad", func(s *lang.S, _ string) (string, error) { s.User("x"); s.System("y"); return "", nil })
	if _, err := lang.ExplainScript(bad, lang.ExplainOptions{Inputs: lang.Args{"input": ""}}); err == nil || !strings.Contains(err.Error(), "a system turn after") {
		t.Error(err)
	}
	if _, err := lang.ExplainScript(bad, lang.ExplainOptions{}); err == nil || !strings.Contains(err.Error(), `input "input"`) {
		t.Error(err)
	}
}

func TestChecksOfAScriptAskAgain(t *testing.T) {
	m := puppet.New()
	m.OnRegexp(`too short`).Reply("long enough")
	m.OnAny().Reply("no")
	long := func(s string) error {
		if len(s) < 5 {
			return errors.New("too short")
		}
		return nil
	}
	out, err := RunScript(t.Context(), m, lang.Script("s", func(s *lang.S, _ string) (string, error) {
		s.User("say it")
		return s.Gen("x", lang.Check(long)).Get()
	}), "")
	if err != nil || out.Value != "long enough" || m.Calls("x~2") != 1 {
		t.Error(out, err)
	}
	if _, err := play(t, func(s *lang.S) (string, error) { return s.Gen("x", lang.Fallback("none")).Get() }); err == nil || !strings.Contains(err.Error(), `no fallback "none"`) {
		t.Error(err)
	}
}
