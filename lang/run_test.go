package lang_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
)

func shout(s string) string   { return strings.ToUpper(s) }
func whisper(s string) string { return strings.ToLower(s) }

var leaf = lang.Define("leaf", func(p *lang.Program) lang.Var[obj] {
	text := lang.In[string](p, "text")
	n := lang.In[int](p, "n", lang.Default(2))
	p.User(text, n)
	lang.Call(p, "shout", shout, text)
	return lang.JSON[obj](p, "v", lang.MaxTokens(9))
})

var middle = lang.Define("middle", func(p *lang.Program) lang.Var[[]int] {
	text := lang.In[string](p, "text")
	return lang.Fork(p, "f", lang.Each("a", "b"), func(b *lang.Branch, item lang.Var[string]) lang.Var[int] {
		return lang.Get[int](lang.Run(b, "got", leaf, lang.Args{"text": lang.Calc[string](text, "+", item), "n": 1}), "a")
	})
})

var top = lang.Define("top", func(p *lang.Program) lang.Var[int] {
	p.User("Top.")
	many := lang.Run(p, "many", middle, lang.Args{"text": "x"})
	one := lang.Run(p, "one", leaf, lang.Args{"text": "y"})
	lang.Run(p, "", leaf, lang.Args{"text": "z"})
	return lang.Calc[int]("sum(", many, ") + ", lang.Get[int](one, "a"))
})

func TestRunIsPartOfTheGraph(t *testing.T) {
	g, err := top.Compile()
	require.NoError(t, err)
	sameAfterRoundTrip(t, g)
	for _, id := range []string{"many", "many/f/got/v", "one/v", "run/call"} {
		if id == "run/call" {
			id = "run/shout"
		}
		n := g.Node(id)
		require.NotNil(t, n, id)
		require.Equal(t, id, n.ID)
	}
	require.Equal(t, []string{"leaf", "middle"}, sorted(g))
	require.Contains(t, top.Funcs(), "shout")
	require.NoError(t, g.Link(top.Funcs()))
	require.ErrorContains(t, g.Link(nil), "many/f/got/shout")
	j, err := g.JSON()
	require.NoError(t, err)
	back, err := lang.Decode(j, "x")
	require.NoError(t, err)
	require.True(t, reflect.DeepEqual(bare(back), bare(g)))
	require.Equal(t, "many", back.Node("many").Run.Graph().Within())
	require.Equal(t, "many/f/got", back.Node("many/f/got").Run.Graph().Within())
	own, err := leaf.Compile()
	require.NoError(t, err)
	require.Equal(t, own.Hash(), back.Node("one").Run.Graph().Hash())
	require.NoError(t, g.Check(), "a second time")
	sameAfterRoundTrip(t, g)

	// A program that changes changes those that run it.
	changed, err := lang.Decode([]byte(strings.Replace(string(j), `"${text}${n}"`, `"${text} ${n}"`, 1)), "x")
	require.NoError(t, err)
	require.NotEqual(t, g.Hash(), changed.Hash())
}

func sorted(g *lang.Graph) (names []string) {
	for _, p := range g.Programs {
		names = append([]string{p.Name}, names...)
	}
	return names
}

func TestRunIsExplainedAndDrawn(t *testing.T) {
	g, err := top.Compile()
	require.NoError(t, err)
	x, err := lang.Explain(g, lang.ExplainOptions{Estimator: byteTokens{}})
	require.NoError(t, err)
	var calls []string
	for _, c := range x.Calls {
		calls = append(calls, fmt.Sprint(c.Node, " ", c.Times, " ", c.Usage.Prompt))
	}
	// <u>xa1</><a>: the context of a program begins with nothing.
	require.Equal(t, []string{"many/f/got/v 2 12", "one/v 1 5", "run/v 1 5"}, calls)
	require.Equal(t, "many/f[1]", x.Branches[1].ID)
	require.Equal(t, "[user] Top.", x.Trunk.Text)
	for _, l := range x.Lints {
		t.Errorf("lint %v", l)
	}
	for _, picture := range []string{lang.Mermaid(g), lang.DOT(g)} {
		require.Contains(t, picture, "run many = middle")
		require.Contains(t, picture, "run one = leaf")
		require.Equal(t, 3, strings.Count(picture, "call shout")+strings.Count(picture, "\"shout"), picture)
	}
}

func TestMisuseOfRun(t *testing.T) {
	wrong := func(build func(p *lang.Program), want ...string) {
		t.Helper()
		_, err := lang.Define("outer", func(p *lang.Program) lang.Var[any] { build(p); return lang.Var[any]{} }).Compile()
		var es lang.Errors
		require.ErrorAs(t, err, &es)
		require.Len(t, es, len(want), "%v", err)
		for i, w := range want {
			require.ErrorContains(t, es[i], w)
			require.Equal(t, "lang/run_test.go", es[i].Pos.File)
			require.Positive(t, es[i].Pos.Line)
		}
	}
	wrong(func(p *lang.Program) { lang.Run[string](p, "x", nil, nil) }, "the program to run is nil")
	wrong(func(p *lang.Program) { lang.Run(p, "x", leaf, nil) }, `x: input "text" (string) of program leaf is missing`)
	wrong(func(p *lang.Program) { lang.Run(p, "x", leaf, lang.Args{"txt": 1, "text": "a"}) }, `no input "txt": did you mean "text"?`)
	wrong(func(p *lang.Program) { lang.Run(p, "x", leaf, lang.Args{"text": 3}) }, `input "text" of program leaf is string, not int`)
	wrong(func(p *lang.Program) { lang.Run(p, "x", leaf, lang.Args{"text": make(chan int)}) }, "a constant is")
	wrong(func(p *lang.Program) { lang.Run(p, "x", leaf, lang.Args{"text": lang.Var[string]{}}) }, "never set")
	wrong(func(p *lang.Program) {
		lang.Run(p, "x", leaf, lang.Args{"text": "a"})
		lang.Call(p, "shout", whisper, "a")
	}, `two Go functions are registered as "shout"`)
	// What is wrong inside is said once, where it is.
	bad := lang.Define("bad", func(p *lang.Program) lang.Var[string] {
		p.Gen("")
		return lang.In[string](p, "x")
	})
	wrong(func(p *lang.Program) {
		a := lang.Run(p, "a", bad, lang.Args{"x": "1"})
		lang.Run(p, "b", bad, nil)
		p.User(a)
	}, "a gen without a name")
	// A different program of the same name.
	other := lang.Define("leaf", func(p *lang.Program) lang.Var[string] { p.User("hi"); return p.Gen("x") })
	wrong(func(p *lang.Program) {
		lang.Run(p, "a", middle, lang.Args{"text": "x"})
		lang.Run(p, "b", other, nil)
	}, `two programs are named "leaf"`)
	self := lang.Define("outer", func(p *lang.Program) lang.Var[string] { p.User("hi"); return p.Gen("x") })
	wrong(func(p *lang.Program) { lang.Run(p, "a", self, nil) }, `two programs are named "outer"`)
}

// TestProgramsThatRunEachOther: from whichever side it is compiled, and at the same
// time.
func TestProgramsThatRunEachOther(t *testing.T) {
	var a, b *lang.Def[string]
	a = lang.Define("a", func(p *lang.Program) lang.Var[string] { return lang.Run(p, "x", b, nil) })
	b = lang.Define("b", func(p *lang.Program) lang.Var[string] { return lang.Run(p, "x", a, nil) })
	var self *lang.Def[string]
	self = lang.Define("self", func(p *lang.Program) lang.Var[string] { return lang.Run(p, "x", self, nil) })
	var wg sync.WaitGroup
	// Whichever of a and b is first has found the ring for both.
	for d, want := range map[*lang.Def[string]]string{a: " runs itself: ", b: " runs itself: ", self: "program self runs itself: self -> self"} {
		wg.Go(func() {
			_, err := d.Compile()
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "lang/run_test.go:") {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestProgramsAreBounded(t *testing.T) {
	// Each runs the one below it twice: what it grows to is refused, not made.
	var doc strings.Builder
	doc.WriteString("coppice: 1\nname: root\nprograms:\n")
	for i := range 15 {
		fmt.Fprintf(&doc, "  p%d: {steps: [", i)
		for range 4 {
			if i < 14 {
				fmt.Fprintf(&doc, "{run: {program: p%d}}, ", i+1)
			}
		}
		doc.WriteString("{user: hi}]}\n")
	}
	doc.WriteString("steps: [{run: {program: p0}}]\n")
	_, err := lang.Decode([]byte(doc.String()), "x")
	require.ErrorContains(t, err, "more than 131072 nodes, with those of the programs that it runs")
	for _, n := range []int{16, 17, 40, 3000} {
		doc.Reset()
		doc.WriteString("coppice: 1\nname: root\nprograms:\n")
		for i := range n {
			fmt.Fprintf(&doc, "  p%d: {steps: [{user: hi}", i)
			if i < n-1 {
				fmt.Fprintf(&doc, ", {run: {program: p%d}}", i+1)
			}
			doc.WriteString("]}\n")
		}
		doc.WriteString("steps: [{run: {program: p0}}]\n")
		_, err := lang.Decode([]byte(doc.String()), "x")
		if n == 16 {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, "programs run programs more than 16 deep")
	}
	var deep *lang.Def[string]
	for i := range 40 {
		below := deep
		deep = lang.Define(fmt.Sprint("d", i), func(p *lang.Program) lang.Var[string] {
			if below == nil {
				p.User("hi")
				return p.Gen("x")
			}
			return lang.Run(p, "x", below, nil)
		})
	}
	_, err = deep.Compile()
	require.ErrorContains(t, err, "programs run programs more than 16 deep")
	var es lang.Errors
	require.True(t, errors.As(err, &es))
}

func TestExampleFiles(t *testing.T) {
	files, err := filepath.Glob("../examples/*/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		g, err := lang.Load(name)
		require.NoError(t, err)
		sameAfterRoundTrip(t, g)
	}
}
