package lang_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

// wantErrors compiles a program and checks that each of the wanted texts is in
// one of its errors, each of which names a line of this package.
func wantErrors[T any](t *testing.T, name string, build func(p *lang.Program) lang.Var[T], want ...string) {
	t.Helper()
	_, err := lang.Define(name, build).Compile()
	if err == nil {
		if len(want) > 0 {
			t.Errorf("%s: no error, want %q", name, want)
		}
		return
	}
	var es lang.Errors
	if !errors.As(err, &es) {
		t.Fatalf("%s: the error is a %T", name, err)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: want %q in:\n%v", name, w, err)
		}
	}
	if len(want) == 0 || len(es) > len(want) {
		t.Errorf("%s: %d errors, want %d:\n%v", name, len(es), len(want), err)
	}
	for _, e := range es {
		if !strings.HasPrefix(e.Pos.File, "lang/misuse_test.go") || e.Pos.Line == 0 {
			t.Errorf("%s: error at %q: %v", name, e.Pos, e)
		}
	}
}

type obj struct {
	A int    `json:"a"`
	B string `json:"b,omitempty"`
}

func TestMisuseIsReportedNotPanicked(t *testing.T) {
	wantErrors(t, "branch-var-outside", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		var leak lang.Var[string]
		lang.Fork(p, "looks", lang.Each("a", "b"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
			leak = b.Gen("finding")
			return leak
		})
		p.User(leak)
		return p.Gen("x")
	}, "finding is set at lang/misuse_test.go:54 inside looks (lang/misuse_test.go:53) and cannot be read outside of it", `text reads "finding"`)

	wantErrors(t, "same-name-other-branch", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		var leak lang.Var[string]
		body := func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
			leak = b.Gen("finding")
			return leak
		}
		lang.Fork(p, "one", lang.Each("a", "b"), body)
		stale := leak
		lang.Fork(p, "two", lang.Each("a", "b"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
			b.Gen("finding")
			b.User(stale) // the other branch's
			return b.Gen("more")
		})
		return p.Gen("x")
	}, "inside one")

	wantErrors(t, "one-arm", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		s := lang.Select(p, "s", "a", "b")
		var x lang.Var[string]
		p.When(s.Is("a"), func(p *lang.Program) { x = p.Gen("x") })
		return x
	}, "sets it in one case only")

	wantErrors(t, "both-arms", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		s := lang.Select(p, "s", "a", "b")
		var x lang.Var[string]
		p.When(lang.Not(s.Is("a")), func(p *lang.Program) { x = p.Gen("x") }, func(p *lang.Program) { lang.Let[string](p, "x", s) })
		return x
	})

	wantErrors(t, "outer-program", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		lang.Fork(p, "f", lang.Each("a"), func(b *lang.Branch, item lang.Var[string]) lang.Var[string] {
			p.User("oops")
			return b.Gen("g")
		})
		return p.Gen("x")
	}, "while a branch of f is being built")

	var kept *lang.Program
	wantErrors(t, "closed", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		p.When(lang.Const(true), func(p *lang.Program) { kept = p })
		kept.User("late")
		return p.Gen("x")
	}, "is over")

	wantErrors(t, "panics", func(p *lang.Program) lang.Var[string] {
		var list []string
		_ = list[3]
		return p.Gen("x")
	}, "panicked")
	wantErrors(t, "inner-panics", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		p.Role("assistant", func(p *lang.Program) { panic("inside") })
		return p.Gen("x")
	}, "panicked: inside")

	var foreign lang.Var[string]
	lang.Define("other", func(p *lang.Program) lang.Var[string] {
		foreign = lang.In[string](p, "i")
		return foreign
	}).Compile()
	wantErrors(t, "foreign", func(p *lang.Program) lang.Var[string] {
		p.User(foreign)
		return p.Gen("x")
	}, "belongs to program other", `reads "i", which nothing sets`)

	wantErrors(t, "zero-var", func(p *lang.Program) lang.Var[string] {
		var v lang.Var[string]
		p.User("a ", v)
		p.When(lang.Cond{}, func(p *lang.Program) {})
		return p.Gen("x")
	}, "this Var was never set", "this Var was never set")

	wantErrors(t, "no-result", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		return lang.Var[string]{}
	}, "returns no value")
	wantErrors(t, "nothing-is-fine-for-any", func(p *lang.Program) lang.Var[any] {
		p.User("hi")
		return lang.Var[any]{}
	})
	wantErrors[string](t, "nil-build", nil, "has no build function")
	wantErrors(t, "bad name!", func(p *lang.Program) lang.Var[string] { p.User("x"); return p.Gen("x") }, "no name for a program")

	wantErrors(t, "texts", func(p *lang.Program) lang.Var[string] {
		p.User("n ", 3, 2.5, true, int64(1), []string{"x"}, nil, struct{}{})
		p.User("\xff")
		return p.Gen("x")
	}, "cannot hold a []string", "cannot hold a <nil>", "cannot hold a struct {}", "not UTF-8")

	wantErrors(t, "result-type", func(p *lang.Program) lang.Var[int] {
		p.User("hi")
		g := p.Gen("g")
		return lang.As[int](g)
	}, "returns string, but the program's result is int")

	wantErrors(t, "calc", func(p *lang.Program) lang.Var[int] {
		s := lang.In[string](p, "s")
		n := lang.In[int](p, "n")
		p.User(lang.Calc[int](s, " + \"x\""))
		lang.Let[string](p, "t", n, " * 2")
		return lang.Calc[int](n, " + ", n)
	}, "is string, but the Go type says int", "the value is int, not string")

	wantErrors(t, "fields", func(p *lang.Program) lang.Var[int] {
		p.User("hi")
		o := lang.JSON[obj](p, "o")
		p.User(lang.Get[string](o, "bb"), lang.Get[bool](o, "a"))
		return lang.Get[int](o, "a")
	}, `has no field "bb"`, `field "a" of lang_test.obj is int, not bool`)

	wantErrors(t, "go-types", func(p *lang.Program) lang.Var[any] {
		lang.In[chan int](p, "c")
		p.User("hi")
		lang.JSON[func()](p, "f")
		lang.Call(p, "v", func(a ...int) {})
		lang.Call(p, "w", "no function")
		lang.Call(p, "u", func(a int) (int, int) { return a, a }, 1)
		lang.JSON[map[bool]string](p, "m")
		return lang.Var[any]{}
	}, "chan int has no JSON form", "func() has no JSON form", "variadic", "want a Go function", "want one result", "map[bool]string has no JSON form")

	wantErrors(t, "calls", func(p *lang.Program) lang.Var[any] {
		lang.Call(p, "a", func(n int) int { return n })
		lang.Call(p, "b", func(n int) int { return n }, "text")
		lang.Call(p, "c", func() {}, lang.FuncName("same"))
		lang.Call(p, "d", func(n int) int { return n }, 1, lang.FuncName("same"))
		return lang.Var[any]{}
	}, "takes 1 arguments, not 0", `"text" is string, but the Go type says int`, "two Go functions are registered")

	wantErrors(t, "inputs", func(p *lang.Program) lang.Var[string] {
		lang.In[int](p, "n", lang.Default("x"))
		lang.In[int](p, "n")
		p.User("hi")
		return p.Gen("x")
	}, "want int, got", `input "n" twice`)

	wantErrors(t, "forks", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		none := func(b *lang.Branch, item lang.Var[string]) lang.Var[string] { return b.Gen("g") }
		lang.Fork(p, "a", lang.Each[string](), none)
		lang.Fork(p, "b", lang.Items[string]{}, none)
		lang.Fork(p, "c", lang.Each("x"), none, lang.Quorum(2))
		lang.Arms[string](p, "d")
		lang.Fork(p, "e", lang.Each("x"), none, lang.ItemName("in"))
		return p.Gen("x")
	}, "a fork of no branches", "never set", "quorum of 2", "a fork of no branches", "cannot name a variable")

	wantErrors(t, "when-with-three", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		p.When(lang.Const(true), func(p *lang.Program) {}, func(p *lang.Program) {}, func(p *lang.Program) {})
		return p.Gen("x")
	}, "one function for the other case")

	// A list from sampling several times cannot be appended in silence: it is a
	// fork, and its value is a list that a text shows as one.
	wantErrors(t, "several-samples", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		tries := lang.Fork(p, "tries", lang.Each(1, 2, 3), func(b *lang.Branch, n lang.Var[int]) lang.Var[string] {
			return b.Gen("try", lang.Temperature(1))
		})
		p.User("Best of:\n", lang.Join(tries, "\n"))
		return p.Gen("x")
	})
}

func TestEarlyReturnAndLoops(t *testing.T) {
	d := lang.Define("loops", func(p *lang.Program) lang.Var[string] {
		items := lang.In[[]string](p, "items", lang.Default([]string{"a"}))
		p.User("Items: ", lang.Join(items, ", "), " (", lang.Len(items), ")")
		s := lang.Select(p, "s", "go on", "stop")
		p.When(s.Is("stop"), func(p *lang.Program) { lang.Return(p, s) })
		notes := lang.ForEach(p, "notes", items, func(p *lang.Program, it lang.Var[string]) lang.Var[string] {
			p.User("Note on ", it)
			return p.Gen("note")
		})
		draft := lang.Let[string](p, "draft", lang.At(notes, 0))
		p.Repeat("polish", 3, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			p.User("Round ", round, ": ", draft)
			better := p.Gen("better")
			lang.Let[string](p, "draft", better)
			return lang.And(lang.Select(p, "done", "yes", "no").Is("yes"), lang.Or(round.Is(1), round.Is(2)))
		})
		views := lang.Arms(p, "views",
			lang.Case("pro", func(b *lang.Branch) lang.Var[string] { b.User("pro?"); return b.Gen("v") }),
			lang.Case("con", func(b *lang.Branch) lang.Var[string] { b.User("con?"); return b.Gen("v") }))
		p.Role("assistant", func(p *lang.Program) {
			p.Text("So: ", lang.At(views, -1))
			p.Gen("tail")
		})
		return draft
	})
	g, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	g.Walk(func(n *lang.Node) bool { ids = append(ids, n.ID); return true })
	want := "user s when when/then/return notes notes/user notes/note draft polish polish/user polish/better polish/draft polish/done views views/pro/user views/pro/v views/con/user views/con/v role role/text role/tail return"
	if got := strings.Join(ids, " "); got != want {
		t.Errorf("%s", got)
	}
	if got := strings.Join(g.Node("polish").Writes, " "); got != "better done draft" {
		t.Errorf("polish writes %s", got)
	}
	if got := strings.Join(g.Node("polish").Reads, " "); got != "draft" {
		t.Errorf("polish reads %s", got)
	}
	if got := g.Node("polish").Repeat.Until; got != `(done == "yes") && ((polish_round == 1) || (polish_round == 2))` {
		t.Errorf("until %s", got)
	}
	sameAfterRoundTrip(t, g)
}

func TestFuncs(t *testing.T) {
	type in struct {
		Name string   `json:"name"`
		Tags []string `json:"tags"`
	}
	f, err := lang.NewFunc("f", func(ctx context.Context, a in, n int, x float64, m map[string]int, any any) (in, error) {
		if n == 0 {
			return in{}, errors.New("zero")
		}
		if n == 1 {
			panic("one")
		}
		a.Tags = append(a.Tags, "more")
		return a, ctx.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := lang.ListOf(lang.Type{Kind: lang.TypeObject, Fields: []lang.Field{{Name: "p", Type: f.Params[0]}}}).String(); got != "[]{p: {name: string, tags: []string}}" {
		t.Error(got)
	}
	args := []any{map[string]any{"name": "x", "tags": []any{"a"}}, 2, 3, map[string]any{"k": 1}, nil}
	v, err := f.Call(context.Background(), args)
	if err != nil || string(lang.FormatJSON(v, f.Result)) != `{"name":"x","tags":["a","more"]}` {
		t.Errorf("%v %v", v, err)
	}
	for i, want := range map[int]string{0: "zero", 1: "func f panicked: one"} {
		args[1] = i
		if _, err := f.Call(context.Background(), args); err == nil || err.Error() != want {
			t.Errorf("%v", err)
		}
	}
	args[1] = "text"
	if _, err := f.Call(context.Background(), args); err == nil {
		t.Error("a text for an int")
	}
	if _, err := f.Call(context.Background(), args[:2]); err == nil {
		t.Error("too few arguments")
	}

	g, err := lang.Decode([]byte("coppice: 1\nname: x\nsteps:\n  - call: {name: a, func: pge, args: ['1']}\n  - call: {name: b, func: page, args: ['1']}\n  - call: {name: c, func: page, args: []}\n"), "x.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, _ := lang.NewFunc("page", page)
	err = g.Link(lang.Funcs{"page": page})
	for _, want := range []string{`x.yaml:4: a: no function "pge": did you mean "page"?`, "x.yaml:5: b: argument 1 of page is int, not string", "x.yaml:6: c: function page takes 1 arguments, not 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}

func TestTextsFromFilesStayBesideTheProgram(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("secret.txt", "secret")
	write("prog/texts/a.md", "A ${x} \r\nline")
	write("prog/bad.md", "\xff")
	if err := os.Symlink(filepath.Join(dir, "secret.txt"), filepath.Join(dir, "prog", "link.md")); err != nil {
		t.Skip(err)
	}
	head := "coppice: 1\nname: x\ninputs: {x: string}\nsteps:\n"
	write("prog/p.yaml", head+"  - user: {file: texts/a.md}\n  - user: {template: ./texts/a.md}\n")
	g, err := lang.Load(filepath.Join(dir, "prog/p.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"user": "A ${x} \nline", "user#2": "A 1 \nline"} {
		if got, err := g.Expand(g.Node(id).Text.Content, map[string]any{"x": "1"}); err != nil || got != want {
			t.Errorf("%s: %q %v", id, got, err)
		}
	}
	for _, name := range []string{"../secret.txt", "/etc/hostname", "link.md", "nope.md", "bad.md", "", "texts"} {
		write("prog/q.yaml", head+"  - user: {file: \""+name+"\"}\n")
		if _, err := lang.Load(filepath.Join(dir, "prog/q.yaml")); err == nil || !strings.Contains(err.Error(), "q.yaml:5: ") || strings.Contains(err.Error(), "secret\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := lang.Load(filepath.Join(dir, "prog/none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestNoAllowedTokenIsNotAll: a list of tokens that came out empty is an error, not a
// generation without bounds.
func TestNoAllowedTokenIsNotAll(t *testing.T) {
	var ids []int32
	_, err := lang.Define("p", func(p *lang.Program) lang.Var[string] {
		p.User("hi")
		return p.Gen("a", lang.AllowedTokens(ids...))
	}).Compile()
	if err == nil || !strings.Contains(err.Error(), "none is allowed") {
		t.Error(err)
	}
}
