package lang_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/lang"
)

// maker makes random programs that are right.
type maker struct {
	*rand.Rand
	names int
	inner int // programs that others run
}

// known is a variable that the point being made can read.
type known struct {
	name string
	typ  lang.Type
}

var nasty = []string{
	"", " ", "plain", "  leading", "trailing ", "two\nlines", "ends in newline\n", "\n\nstarts", "tab\there", "\ttab first", " a\nb",
	"$", "$$", "${", "$${", "$$${x}", "}", "a $b ${", "€ 漢字 😀 é", "\u2028\u2029\u0085", "\ufeffbom", "\x00\x01\x7f", "cr\r\nlf", "\r",
	"yes", "no", "null", "~", "true", "1", "1.5", "0x10", "1e3", ".inf", "- a", "a: b", "#c", "a #c", "'q'", `"q"`, `\n`, "@x", "%x", "`x`", "!t", "&a", "*a",
	"<b>&amp;", "{a: 1}", "[x]", "a,b", "|", ">", "? x", ": y", "---", "...", "2001-01-01", "=", "<<", strings.Repeat("long ", 60),
}

func (m *maker) text() string {
	s := ""
	for range 1 + m.IntN(3) {
		s += nasty[m.IntN(len(nasty))]
	}
	return s
}

func (m *maker) some() string {
	for {
		if s := m.text(); s != "" {
			return s
		}
	}
}

func (m *maker) name() string {
	m.names++
	return fmt.Sprintf("%s%d", []string{"x", "len", "y_", "Z", "true_", "count"}[m.IntN(6)], m.names)
}

func (m *maker) typ(depth int) lang.Type {
	kinds := []lang.TypeKind{lang.TypeString, lang.TypeInt, lang.TypeFloat, lang.TypeBool, lang.TypeAny, lang.TypeList, lang.TypeObject}
	k := kinds[m.IntN(len(kinds)-depth)]
	switch k {
	case lang.TypeList:
		return lang.ListOf(m.typ(min(depth+1, 2)))
	case lang.TypeObject:
		t := lang.Type{Kind: k}
		for i := range m.IntN(4) {
			name := fmt.Sprintf("f%d", i)
			if m.IntN(5) == 0 {
				name = fmt.Sprintf("odd %d%s", i, m.text())
			}
			t.Fields = append(t.Fields, lang.Field{Name: name, Type: m.typ(min(depth+1, 2)), Optional: m.IntN(3) == 0})
		}
		return t
	}
	return lang.Type{Kind: k}
}

// value makes a value of a type.
func (m *maker) value(t lang.Type) any {
	switch t.Kind {
	case lang.TypeString:
		return m.text()
	case lang.TypeInt:
		return m.IntN(1000) - 500
	case lang.TypeFloat:
		return (m.Float64() - 0.5) * []float64{1, 1e-9, 1e25}[m.IntN(3)]
	case lang.TypeBool:
		return m.IntN(2) == 0
	case lang.TypeList:
		out := make([]any, m.IntN(4))
		for i := range out {
			out[i] = m.value(*t.Elem)
		}
		return out
	case lang.TypeObject:
		out := map[string]any{}
		for _, f := range t.Fields {
			if !f.Optional || m.IntN(2) == 0 {
				out[f.Name] = m.value(f.Type)
			}
		}
		return out
	}
	return m.value(m.typ(1))
}

func (m *maker) template(vars []known) lang.Template {
	t := lang.Template("")
	for range m.IntN(4) {
		if len(vars) > 0 && m.IntN(2) == 0 {
			t += lang.Template("${" + vars[m.IntN(len(vars))].name + "}")
		} else {
			s := lang.Escape(m.text())
			if !strings.HasSuffix(string(s), "$") {
				t += s
			}
		}
	}
	return t
}

func (m *maker) cond(vars []known) lang.Expr {
	for _, v := range vars {
		if m.IntN(3) == 0 {
			switch v.typ.Kind {
			case lang.TypeString:
				return lang.Expr(v.name + ` contains "x" or ` + v.name + ` == "}"`)
			case lang.TypeInt:
				return lang.Expr(v.name + " > 3")
			case lang.TypeList:
				return lang.Expr("len(" + v.name + ") > 1")
			}
		}
	}
	return "1 < 2"
}

func (m *maker) sampling() lang.Sampling {
	var s lang.Sampling
	if m.IntN(2) == 0 {
		s.Temperature = float64(m.IntN(20)) / 10
		s.TopP = m.Float64()
		s.TopK = m.IntN(5)
		s.FrequencyPenalty = m.Float64() - 0.5
		if m.IntN(2) == 0 {
			s.LogitBias = map[int32]float64{int32(m.IntN(9)): m.Float64() * 50, 100: -3}
		}
	}
	if m.IntN(3) == 0 {
		seed := m.Uint64()
		s.Seed = &seed
	}
	return s
}

// terms makes terms that a request can have, or a call.
func (m *maker) terms(vars []known, call bool) lang.Terms {
	var t lang.Terms
	if m.IntN(3) > 0 {
		return t
	}
	t.Timeout = time.Duration(m.IntN(3)) * 1500 * time.Millisecond
	if m.IntN(2) == 0 {
		t.Retry = lang.Retry{Attempts: 1 + m.IntN(5), Wait: time.Duration(m.IntN(2)) * time.Second, Max: time.Duration(m.IntN(2)) * time.Minute}
	}
	if call {
		return t
	}
	for i := range m.IntN(3) {
		t.Fallback = append(t.Fallback, fmt.Sprintf("be-%d", i))
	}
	t.Priority = m.IntN(5) - 2
	if m.IntN(2) == 0 {
		t.Salt = m.template(vars)
	}
	return t
}

// checks makes what a value of the variable name must pass.
func (m *maker) checks(name string) (out []lang.Validator, tries int) {
	for range m.IntN(3) {
		c := lang.Validator{Func: "ok"}
		if m.IntN(2) == 0 {
			c = lang.Validator{Expr: lang.Expr("string(" + name + `) != "x"`)}
		}
		if m.IntN(2) == 0 {
			c.Say = m.text()
		}
		out = append(out, c)
	}
	return out, m.IntN(4)
}

func (m *maker) body(depth int, vars []known, role bool) ([]*lang.Node, []known) {
	var out []*lang.Node
	for range m.IntN(5) {
		n, set := m.node(depth, vars, role)
		out = append(out, n)
		vars = append(vars[:len(vars):len(vars)], set...)
	}
	return out, vars
}

var str = lang.Type{Kind: lang.TypeString}

func (m *maker) node(depth int, vars []known, role bool) (*lang.Node, []known) {
	kind := m.IntN(12)
	if depth > 3 {
		kind = m.IntN(6)
	}
	name := m.name()
	one := func(n *lang.Node, t lang.Type) (*lang.Node, []known) {
		n.Name = name
		return n, []known{{name, t}}
	}
	pick := func() lang.Expr {
		if len(vars) == 0 {
			return `"nothing"`
		}
		return lang.Expr(vars[m.IntN(len(vars))].name)
	}
	switch kind {
	case 0:
		r := ""
		if !role {
			r = []string{"user", "assistant", "tool", ""}[m.IntN(4)]
		}
		return &lang.Node{Kind: lang.KindText, Text: &lang.TextNode{Role: r, Content: m.template(vars)}}, nil
	case 1:
		g := &lang.GenNode{MaxTokens: m.IntN(3) * 50, Sampling: m.sampling(), Terms: m.terms(vars, false)}
		g.Checks, g.Tries = m.checks(name)
		if g.IgnoreEOS = m.IntN(4) == 0; g.IgnoreEOS {
			g.StopRegex = []string{"[.!?] ", "\\d{3}"}
			g.Tokens = lang.TokenRules{Stop: []int32{1, 2}, Allowed: []int32{int32(m.IntN(9))}, Banned: [][]int32{{3}, {4, 5}}}
		}
		if m.IntN(4) == 0 {
			g.Logprobs = name + "_lps"
		}
		for range m.IntN(3) {
			g.Stop = append(g.Stop, m.some())
		}
		if m.IntN(3) == 0 {
			g.Regex = `[a-z"\\]+`
		} else if m.IntN(4) == 0 {
			g.EBNF = "root ::= \"a\"\n" + m.text()
		}
		return one(&lang.Node{Kind: lang.KindGen, Gen: g}, str)
	case 2:
		s := &lang.SelectNode{Terms: m.terms(vars, false)}
		s.Method = []lang.ScoreMethod{"", "", lang.Exact, lang.GreedyTokenSelection}[m.IntN(4)]
		if m.IntN(4) == 0 {
			s.Shares = name + "_shares"
		}
		seen := map[string]bool{}
		for range 1 + m.IntN(4) {
			if o := m.some(); !seen[o] {
				seen[o] = true
				s.Options = append(s.Options, o)
			}
		}
		if m.IntN(3) > 0 {
			return one(&lang.Node{Kind: lang.KindSelect, Select: s}, str)
		}
		t := m.typ(1)
		for range s.Options {
			s.Values = append(s.Values, lang.FormatJSON(m.value(t), t))
		}
		return one(&lang.Node{Kind: lang.KindSelect, Select: s}, lang.Type{Kind: lang.TypeAny})
	case 3:
		t := m.typ(0)
		j := &lang.JSONNode{Schema: lang.SchemaOfType(t), MaxTokens: m.IntN(2) * 9, Sampling: m.sampling(), Terms: m.terms(vars, false)}
		j.Checks, j.Tries = m.checks(name)
		return one(&lang.Node{Kind: lang.KindJSON, JSON: j}, t)
	case 4:
		c := &lang.CallNode{Func: "f" + name, Result: m.typ(0), Unsafe: m.IntN(2) == 0, Terms: m.terms(vars, true)}
		if c.Unsafe {
			c.Terms.Retry = lang.Retry{}
		}
		for range m.IntN(3) {
			c.Args = append(c.Args, pick())
		}
		return one(&lang.Node{Kind: lang.KindCall, Call: c}, c.Result)
	case 5:
		return one(&lang.Node{Kind: lang.KindLet, Let: &lang.LetNode{Value: pick()}}, lang.Type{Kind: lang.TypeAny})
	case 6:
		if role {
			return &lang.Node{Kind: lang.KindText, Text: &lang.TextNode{Content: m.template(vars)}}, nil
		}
		b, _ := m.body(depth+1, vars, true)
		return &lang.Node{Kind: lang.KindRole, Role: &lang.RoleNode{Role: "assistant", Body: b}}, nil
	case 7:
		f := &lang.ForkNode{As: name + "_i"}
		in := append(vars[:len(vars):len(vars)], known{f.As, str})
		for range 1 + m.IntN(3) {
			f.Items = append(f.Items, m.text())
		}
		var inner []known
		f.Body, inner = m.body(depth+1, in, role)
		elem := lang.Type{Kind: lang.TypeAny}
		if m.IntN(3) > 0 {
			y := inner[m.IntN(len(inner))]
			f.Yield, elem = lang.Expr(y.name), y.typ
		}
		f.Join = []lang.Policy{{}, {Kind: "collect"}, {Kind: "first"}, {Kind: "quorum", N: 1}}[m.IntN(4)]
		_ = elem
		if f.Join.Kind != "" && m.IntN(2) == 0 {
			f.Errors = name + "_e"
		}
		return one(&lang.Node{Kind: lang.KindFork, Fork: f}, lang.ListOf(lang.Type{Kind: lang.TypeAny}))
	case 8:
		f := &lang.ForkNode{}
		for i := range 1 + m.IntN(3) {
			b, _ := m.body(depth+1, vars, role)
			f.Arms = append(f.Arms, lang.Arm{Name: fmt.Sprintf("arm-%d", i), Body: b, Yield: pick()})
		}
		return one(&lang.Node{Kind: lang.KindFork, Fork: f}, lang.ListOf(lang.Type{Kind: lang.TypeAny}))
	case 9:
		w := &lang.WhenNode{If: m.cond(vars)}
		w.Then, _ = m.body(depth+1, vars, role)
		if m.IntN(2) == 0 {
			w.Else, _ = m.body(depth+1, vars, role)
		}
		return &lang.Node{Kind: lang.KindWhen, When: w}, nil
	case 10:
		r := &lang.RepeatNode{Max: 1 + m.IntN(4)}
		in := vars
		if m.IntN(2) == 0 {
			r.Index = name + "_i"
			in = append(vars[:len(vars):len(vars)], known{r.Index, lang.Type{Kind: lang.TypeInt}})
		}
		b, after := m.body(depth+1, in, role)
		r.Body = b
		if m.IntN(2) == 0 {
			r.Until = m.cond(after)
		}
		return &lang.Node{Kind: lang.KindRepeat, Name: name, Repeat: r}, after[len(in):]
	}
	f := &lang.ForEachNode{Over: `["a", "b"]`, As: name + "_i"}
	in := append(vars[:len(vars):len(vars)], known{f.As, str})
	b, after := m.body(depth+1, in, role)
	f.Body = b
	if m.IntN(2) == 0 {
		f.Yield = lang.Expr(after[m.IntN(len(after))].name)
	}
	return one(&lang.Node{Kind: lang.KindForEach, ForEach: f}, lang.ListOf(lang.Type{Kind: lang.TypeAny}))
}

func (m *maker) graph() *lang.Graph {
	g := &lang.Graph{Name: "random", Doc: m.text()}
	if m.IntN(3) == 0 {
		g.Budget = lang.Budget{Tokens: m.IntN(3), Generated: m.IntN(3), Cost: m.Float64(), Time: time.Duration(m.IntN(2)) * time.Minute}
	}
	var vars []known
	for range m.IntN(4) {
		in := lang.Input{Name: m.name(), Type: m.typ(0), Doc: m.text()}
		if m.IntN(2) == 0 {
			in.Default = lang.FormatJSON(m.value(in.Type), in.Type)
		}
		g.Inputs = append(g.Inputs, in)
		vars = append(vars, known{in.Name, in.Type})
	}
	body, vars := m.body(0, vars, false)
	g.Body = body
	for m.inner < 3 && m.IntN(3) == 0 {
		m.inner++
		sub := m.graph()
		sub.Name = fmt.Sprintf("sub%d-%d", m.inner, m.names)
		g.Programs = append(g.Programs, sub)
		for range 1 + m.IntN(2) {
			r := &lang.RunNode{Program: sub.Name}
			for i := range sub.Inputs {
				in := &sub.Inputs[i]
				given := false
				for _, v := range vars {
					if given = v.typ.Kind != lang.TypeAny && v.typ.Equal(in.Type); given {
						r.With = append(r.With, lang.Arg{Name: in.Name, Value: lang.Expr(v.name)})
						break
					}
				}
				if !given && in.Default == nil {
					in.Default = lang.FormatJSON(m.value(in.Type), in.Type)
				}
			}
			g.Body = append(g.Body, &lang.Node{Kind: lang.KindRun, Name: m.name(), Run: r})
		}
	}
	if len(vars) > 0 {
		g.Body = append(g.Body, &lang.Node{Kind: lang.KindReturn, Return: &lang.ReturnNode{Value: lang.Expr(vars[m.IntN(len(vars))].name)}})
	}
	return g
}

// TestRandomProgramsReadBack writes random programs as JSON and YAML, reads
// them back and compares everything, what Check fills in included.
func TestRandomProgramsReadBack(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 50
	}
	for seed := range rounds {
		m := &maker{Rand: rand.New(rand.NewPCG(uint64(seed), 1))}
		g := m.graph()
		if err := g.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		j, err := g.JSON()
		if err != nil {
			t.Fatal(err)
		}
		y, err := g.YAML()
		if err != nil {
			t.Fatal(err)
		}
		for _, doc := range [][]byte{j, y} {
			back, err := lang.Decode(doc, "x")
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, doc)
			}
			j2, err := back.JSON()
			if err != nil {
				t.Fatal(err)
			}
			if back.Hash() != g.Hash() {
				t.Fatalf("seed %d: the hash changed\n%s\n%s", seed, j, j2)
			}
			if !reflect.DeepEqual(bare(back), bare(g)) {
				t.Fatalf("seed %d: the graph changed\n%s", seed, doc)
			}
		}
		if _, err := lang.Explain(g, lang.ExplainOptions{}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		lang.Mermaid(g)
		lang.DOT(g)
	}
}

// bare returns what a graph says apart from positions and caches.
func bare(g *lang.Graph) any {
	type flat struct {
		ID, Name      string
		Kind          lang.Kind
		Reads, Writes []string
		Role, Text    string
		Gen           *lang.GenNode
		Select        *lang.SelectNode
		JSON          *lang.JSONNode
		Let           *lang.LetNode
		Program       string
		With          []lang.Arg
		Budget        lang.Budget
		Output        lang.Type
		Terms         lang.Terms
		Elem          lang.Type
		Policy        lang.Policy
		Errors        string
	}
	var out []any
	for _, in := range g.Inputs {
		in.Pos = lang.Pos{}
		out = append(out, in)
	}
	g.Walk(func(n *lang.Node) bool {
		f := flat{ID: n.ID, Name: n.Name, Kind: n.Kind, Reads: n.Reads, Writes: n.Writes, Gen: n.Gen, Select: n.Select, JSON: n.JSON, Let: n.Let}
		if n.Text != nil {
			f.Role, f.Text = n.Text.Role, string(n.Text.Content)
		}
		if n.Fork != nil {
			f.Elem, f.Policy, f.Errors = n.Fork.Elem, n.Fork.Join, n.Fork.Errors
		}
		if n.Run != nil {
			f.Program, f.With, f.Budget, f.Output = n.Run.Program, n.Run.With, n.Run.Graph().Budget, n.Run.Graph().Output
		}
		if n.Terms() != nil {
			f.Terms = *n.Terms()
		}
		if n.ForEach != nil {
			f.Elem = n.ForEach.Elem
		}
		out = append(out, f)
		return true
	})
	return append(out, g.Output, g.Budget)
}

func FuzzDecode(f *testing.F) {
	for seed := range 20 {
		m := &maker{Rand: rand.New(rand.NewPCG(uint64(seed), 2))}
		g := m.graph()
		if g.Check() != nil {
			continue
		}
		j, _ := g.JSON()
		y, _ := g.YAML()
		f.Add(j)
		f.Add(y)
	}
	for _, s := range []string{"", "{", "[", "coppice: 1", "a: &a [*a]", "coppice: 1\nname: x\nsteps: [{user: ${[[[(((}]", "{\"coppice\":1,\"name\":\"x\",\"steps\":[{\"json\":{\"name\":\"a\",\"schema\":{\"$ref\":\"#\"}}}]}",
		"a: &a {<<: *a}", "? [a]: b", "!!binary x", "\xff", "- - - - - -"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		g, err := lang.Decode(data, "f")
		if err != nil {
			if len(err.Error()) == 0 {
				t.Error("an error without words")
			}
			return
		}
		j, err := g.JSON()
		if err != nil {
			t.Fatal(err)
		}
		back, err := lang.Decode(j, "f")
		if err != nil {
			t.Fatalf("%v\n%s", err, j)
		}
		j2, _ := back.JSON()
		if !bytes.Equal(j, j2) || g.Hash() != back.Hash() {
			t.Fatalf("changed:\n%s\n%s", j, j2)
		}
		y, err := g.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if back, err = lang.Decode(y, "f"); err != nil || back.Hash() != g.Hash() {
			t.Fatalf("%v\n%s", err, y)
		}
		if _, err := lang.Explain(g, lang.ExplainOptions{Context: 100, Remote: true}); err != nil {
			t.Fatal(err)
		}
		lang.Mermaid(g)
		lang.DOT(g)
	})
}
