package lang

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// RunNode runs another program as one step: with inputs of its own, in a context
// of its own, and its variable is what that program returns. The two share
// nothing else. In process the steps of the program are part of the same run; a
// durable driver may run it as a run of its own.
type RunNode struct {
	Program string // name of one of Graph.Programs
	With    []Arg  // its inputs; those left out have their defaults

	def    *Graph // the program, from the builder
	broken bool   // it does not compile, which the builder has said
	graph  *Graph // the program at this place: its nodes have ids below this one's
}

// Arg is the value of one input.
type Arg struct {
	Name  string
	Value Expr
}

// Graph returns the program that a checked node runs, as it stands at that place:
// the ids of its nodes begin with that of the node.
func (r *RunNode) Graph() *Graph { return r.graph }

// Within returns the id of the node that runs the program, for a graph that
// [RunNode.Graph] returned; empty for all others.
func (g *Graph) Within() string { return g.within }

// maxRunDepth is how deep programs may run programs that run programs.
const maxRunDepth = 16

// Run runs another program as one step. Its context begins empty, it sees only the
// inputs that args gives it (Vars or constants, by name), and the result is what
// it returns. Its budget bounds it alone; what it uses counts for the whole run
// too. If it fails, the step fails with its error.
//
// A program cannot run itself, directly or through others: use Repeat.
func Run[T any](at Builder, name string, def *Def[T], args Args) Var[T] {
	p := at.program()
	pos := caller()
	t, _ := typeOfGo(reflect.TypeFor[T]()) // Compile of def says what is wrong with it
	n := &Node{Kind: KindRun, Name: name, Run: &RunNode{}}
	if def == nil {
		p.b.errs = append(p.b.errs, &Error{Pos: pos, Node: name, Msg: "the program to run is nil", Hint: "give it what Define returned"})
		n.Run.broken = true
	} else {
		n.Run.Program = def.name
		n.Run.def = p.b.include(pos, name, def)
		n.Run.broken = n.Run.def == nil
	}
	for _, k := range sortedKeys(args) {
		var h *handle
		if v, ok := args[k].(anyVar); ok {
			h = v.handle()
		} else {
			h = Const(args[k]).h
		}
		n.Run.With = append(n.Run.With, Arg{k, p.use(h, pos)})
		p.claim(n, 0, h)
	}
	p.addAt(pos, n)
	return newVar[T](p, name, t, pos)
}

// built is a compiled program with the Go functions that it calls.
type built struct {
	graph *Graph
	funcs Funcs
	goFns map[string]goFn
	err   error
}

// definable is a *Def of any type.
type definable interface {
	Name() string
	compiled() *built // nil before
	compileOnce() *built
	buildIn(b *builder) *built
}

func (d *Def[T]) compiled() *built { return d.built.Load() }

func (d *Def[T]) compileOnce() *built {
	d.Compile()
	return d.built.Load()
}

func (d *Def[T]) buildIn(b *builder) *built {
	g, err := d.compile(b)
	return &built{g, b.funcs, b.goFns, err}
}

// include compiles a program that a step of b's runs, or returns nil and notes
// why that is not possible. It never waits for another Compile, which may wait
// for this one.
func (b *builder) include(pos Pos, node string, d definable) *Graph {
	for i, outer := range b.chain {
		if outer == d {
			b.errs = append(b.errs, recursion(pos, node, append(namesOf(b.chain[i:]), d.Name())))
			return nil
		}
	}
	if len(b.chain) > maxRunDepth {
		b.errs = append(b.errs, tooDeep(pos, node))
		return nil
	}
	x := d.compiled()
	switch {
	case x != nil:
	case len(b.chain) == 0: // a script: no Compile waits for it
		x = d.compileOnce()
	case b.made[d] != nil:
		x = b.made[d]
	default:
		in := newBuilder(d)
		in.chain, in.made = append(b.chain[:len(b.chain):len(b.chain)], d), b.made
		x = d.buildIn(in)
		b.made[d] = x
	}
	if x.err != nil {
		if es, ok := x.err.(Errors); ok {
			b.errs = append(b.errs, es...)
		} else {
			b.errorf(pos, node, "program %s: %v", d.Name(), x.err)
		}
		return nil
	}
	for _, name := range x.funcs.Names() {
		id := x.goFns[name]
		if old, ok := b.goFns[name]; ok && old != id {
			b.errs = append(b.errs, twoFuncs(pos, name, old, id))
			continue
		}
		if b.goFns == nil {
			b.goFns = map[string]goFn{}
		}
		b.goFns[name], b.funcs[name] = id, x.funcs[name]
	}
	return x.graph
}

func namesOf(ds []definable) []string {
	names := make([]string, len(ds))
	for i, d := range ds {
		names[i] = d.Name()
	}
	return names
}

func recursion(pos Pos, node string, path []string) *Error {
	return &Error{Pos: pos, Node: node, Msg: "program " + path[0] + " runs itself: " + strings.Join(path, " -> "), Hint: "a program has an end that is known: use repeat or foreach"}
}

func tooDeep(pos Pos, node string) *Error {
	return &Error{Pos: pos, Node: node, Msg: fmt.Sprintf("programs run programs more than %d deep", maxRunDepth), Hint: "put the steps of some into those that run them"}
}

// programs finds the programs that the nodes of the graph run, checks those that
// were not, and puts them into the order in which they are named.
func (c *analysis) programs() {
	g := c.g
	g.depth = 0
	c.progs = map[*Node]*Graph{}
	var used []*Graph
	g.Walk(func(n *Node) bool {
		if n.Run == nil || n.Run.broken {
			return true
		}
		p := c.program(n)
		c.progs[n] = p
		if p != nil && !slices.Contains(used, p) {
			used = append(used, p)
		}
		return true
	})
	for _, p := range g.Programs {
		if !slices.Contains(used, p) && p != nil && !c.named(p.Name) {
			c.errs = append(c.errs, &Error{Pos: p.at, Msg: fmt.Sprintf("nothing runs program %q", p.Name), Hint: "remove it, or run it"})
		}
	}
	g.Programs = used
	names := map[string]*Graph{g.Name: g}
	c.distinct(g, names)
}

// named reports whether a node runs a program of that name, be it a broken one.
func (c *analysis) named(name string) (yes bool) {
	c.g.Walk(func(n *Node) bool { yes = yes || n.Run != nil && n.Run.Program == name; return !yes })
	return yes
}

// program returns the checked program of a run node, nil if there is something
// wrong with it.
func (c *analysis) program(n *Node) *Graph {
	name := n.Run.Program
	p := n.Run.def
	if p == nil {
		names := slices.Clone(c.g.beside)
		for _, x := range c.g.Programs {
			if x != nil && x.Name == name {
				p = x
			} else if x != nil && len(c.g.beside) == 0 {
				names = append(names, x.Name)
			}
		}
		if name == "" {
			c.fail(n, "no program", "name one with program")
			return nil
		}
		if p == nil && c.itself(n, func(x *Graph) bool { return x.Name == name }) {
			return nil
		}
		if p == nil {
			hint := didYouMean(name, names)
			if hint == "" {
				hint = "write it below programs"
			}
			c.fail(n, fmt.Sprintf("no program %q", clip(name, 40)), hint)
			return nil
		}
	}
	if c.itself(n, func(x *Graph) bool { return x == p }) {
		return nil
	}
	if p.compiled.nodes == nil {
		if len(c.around) > maxRunDepth {
			c.errs = append(c.errs, tooDeep(n.Pos, n.ID))
			return nil
		}
		in := &analysis{g: p, outputPos: p.at, around: append(c.around[:len(c.around):len(c.around)], c.g)}
		if err := in.check(); err != nil {
			c.errs = append(c.errs, in.errs...)
			p.failed = true
		}
	}
	if p.failed {
		return nil
	}
	if c.g.depth = max(c.g.depth, p.depth+1); c.g.depth > maxRunDepth {
		c.errs = append(c.errs, tooDeep(n.Pos, n.ID))
		return nil
	}
	return p
}

// itself reports whether a node runs a program that it is inside of.
func (c *analysis) itself(n *Node, is func(*Graph) bool) bool {
	chain := append(c.around[:len(c.around):len(c.around)], c.g)
	for i, x := range chain {
		if !is(x) {
			continue
		}
		var path []string
		for _, y := range chain[i:] {
			path = append(path, y.Name)
		}
		c.errs = append(c.errs, recursion(n.Pos, n.ID, append(path, x.Name)))
		return true
	}
	return false
}

// distinct refuses two programs of one name, which files could not tell apart.
func (c *analysis) distinct(of *Graph, names map[string]*Graph) {
	for _, p := range of.Programs {
		old := names[p.Name]
		if old == nil {
			names[p.Name] = p
			c.distinct(p, names)
			continue
		}
		if old == p || old != c.g && old.Hash() == p.Hash() {
			continue
		}
		pos := c.outputPos
		c.g.Walk(func(n *Node) bool {
			if n.Run != nil && n.Run.Program == p.Name {
				pos = n.Pos
			}
			return true
		})
		c.errs = append(c.errs, &Error{Pos: pos, Msg: fmt.Sprintf("two programs are named %q", p.Name), Hint: "give one of them another name"})
	}
}

// programOf returns the program that a node runs, nil if there is none.
func (c *analysis) programOf(n *Node) *Graph {
	if p, known := c.progs[n]; known {
		return p
	}
	return n.Run.def // of a script
}

// run checks the inputs that a node gives to a program.
func (c *analysis) run(n *Node, f *flow, e effects) {
	r := n.Run
	p := c.programOf(n)
	out := Type{Kind: TypeAny}
	given := map[string]bool{}
	for _, a := range r.With {
		t := c.expr(n, "input "+a.Name, a.Value, f, e)
		if given[a.Name] {
			c.fail(n, fmt.Sprintf("input %q twice", clip(a.Name, 40)), "remove one")
		}
		given[a.Name] = true
		if p == nil {
			continue
		}
		i := slices.IndexFunc(p.Inputs, func(in Input) bool { return in.Name == a.Name })
		if i < 0 {
			hint := "it takes " + p.inputList()
			if near := nearest(a.Name, p.inputNames()); near != "" {
				hint = "did you mean " + strconv.Quote(near) + "? " + hint
			}
			c.fail(n, fmt.Sprintf("program %s has no input %q", p.Name, clip(a.Name, 40)), hint)
			continue
		}
		if want := p.Inputs[i].Type; !t.AssignableTo(want) {
			c.fail(n, fmt.Sprintf("input %q of program %s is %s, not %s", a.Name, p.Name, want, t), "change the expression "+strconv.Quote(clip(string(a.Value), 60)))
		}
	}
	if p != nil {
		for _, in := range p.Inputs {
			if !given[in.Name] && in.Default == nil {
				c.fail(n, fmt.Sprintf("input %q (%s) of program %s is missing", in.Name, in.Type, p.Name), "add it to with; the program takes "+p.inputList())
			}
		}
		out = p.Output
	}
	if n.Name != "" {
		c.set(n, n.Name, out, f, e)
	}
}

// place gives each node that runs a program the program's nodes with ids of their
// own. It is the last thing that a check does.
func (c *analysis) place(body []*Node) {
	size := 0
	c.g.Walk(func(*Node) bool { size++; return true })
	walkBody(body, func(n *Node) bool {
		if n.Run == nil {
			return true
		}
		p := c.programOf(n)
		if size += p.size; size > maxNodes {
			c.fail(n, fmt.Sprintf("more than %d nodes, with those of the programs that it runs", maxNodes), "run fewer")
			return false
		}
		n.Run.graph = p.instance(n.ID, n.ID+"/")
		return false
	})
	c.g.size = size
}

// unplace takes back what place did.
func unplace(body []*Node) {
	walkBody(body, func(n *Node) bool {
		if n != nil && n.Run != nil {
			n.Run.graph = nil
		}
		return true
	})
}

// instance returns the graph as what the node of an id runs; its nodes get a prefix
// before their ids.
func (g *Graph) instance(at, prefix string) *Graph {
	c := &Graph{Name: g.Name, Doc: g.Doc, Inputs: g.Inputs, Programs: g.Programs, Budget: g.Budget, Output: g.Output, origin: g, within: at}
	if g.origin != nil {
		c.origin = g.origin
	}
	c.Body = moved(g.Body, prefix)
	return c
}

// moved returns a copy of nodes with a prefix before their ids.
func moved(body []*Node, prefix string) []*Node {
	if body == nil {
		return nil
	}
	out := make([]*Node, len(body))
	for i, n := range body {
		c := *n
		c.ID = prefix + n.ID
		switch {
		case n.Role != nil:
			x := *n.Role
			x.Body = moved(x.Body, prefix)
			c.Role = &x
		case n.Fork != nil:
			x := *n.Fork
			x.Body = moved(x.Body, prefix)
			x.Arms = slices.Clone(x.Arms)
			for j := range x.Arms {
				x.Arms[j].Body = moved(x.Arms[j].Body, prefix)
			}
			c.Fork = &x
		case n.When != nil:
			x := *n.When
			x.Then, x.Else = moved(x.Then, prefix), moved(x.Else, prefix)
			c.When = &x
		case n.Repeat != nil:
			x := *n.Repeat
			x.Body = moved(x.Body, prefix)
			c.Repeat = &x
		case n.ForEach != nil:
			x := *n.ForEach
			x.Body = moved(x.Body, prefix)
			c.ForEach = &x
		case n.Run != nil:
			x := *n.Run
			x.graph = n.Run.graph.instance(c.ID, prefix) // its nodes stand below n already
			c.Run = &x
		}
		out[i] = &c
	}
	return out
}

// closure returns the programs that g runs, and those that they run, each once
// and in the order in which they are named.
func (g *Graph) closure() []*Graph {
	var out []*Graph
	seen := map[string]bool{}
	var walk func(*Graph)
	walk = func(of *Graph) {
		for _, p := range of.Programs {
			if !seen[p.Name] {
				seen[p.Name] = true
				out = append(out, p)
				walk(p)
			}
		}
	}
	walk(g)
	return out
}

func (e encoder) run(m *tree, r *RunNode) {
	m.put("program", strTree(r.Program))
	if len(r.With) > 0 {
		with := &tree{kind: treeMap}
		for _, a := range r.With {
			with.put(a.Name, strTree(string(a.Value)))
		}
		m.put("with", with)
	}
}

func (d *decoder) run(f *fields) *RunNode {
	r := &RunNode{Program: f.str("program")}
	if t := f.get("with"); t != nil {
		if t.kind != treeMap {
			d.errorf(t.line, "write with: {input: expression}", "%s: with is %s, not a map", f.what, t.kind)
			return r
		}
		for i, k := range t.keys {
			r.With = append(r.With, Arg{k, d.expr(t.vals[i], f.what+": with: "+k, 1)})
		}
	}
	return r
}

// programs reads the programs of a document, which may run each other.
func (d *decoder) programs(f *fields) []*Graph {
	t := f.get("programs")
	if t == nil {
		return nil
	}
	if t.kind != treeMap {
		d.errorf(t.line, "write programs: and below it a name and the program", "programs are %s, not a map", t.kind)
		return nil
	}
	var out []*Graph
	for i, name := range t.keys {
		pf := d.fields(t.vals[i], "program "+clip(name, 40))
		g := &Graph{Name: name, at: Pos{d.file, t.at[i]}}
		d.parts(g, pf)
		pf.done()
		out = append(out, g)
	}
	for _, g := range out {
		g.pick(out)
	}
	return out
}

// pick takes those of the programs of a document that the nodes of g run.
func (g *Graph) pick(all []*Graph) {
	var out []*Graph
	for _, p := range all {
		g.beside = append(g.beside, p.Name)
	}
	g.Walk(func(n *Node) bool {
		if n.Run == nil {
			return true
		}
		for _, p := range all {
			if p.Name == n.Run.Program && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
		return true
	})
	g.Programs = out
}

// unrun reports programs of a document that nothing runs.
func (d *decoder) unrun(g *Graph, all []*Graph) {
	seen := map[*Graph]bool{}
	var walk func(*Graph)
	walk = func(of *Graph) {
		for _, p := range of.Programs {
			if !seen[p] {
				seen[p] = true
				walk(p)
			}
		}
	}
	walk(g)
	for _, p := range all {
		if !seen[p] {
			d.errorf(p.at.Line, "remove it, or run it", "nothing runs program %q", clip(p.Name, 40))
		}
	}
}
