package lang

import (
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"
)

// variable is a variable that is known to be set.
type variable struct {
	typ    Type
	pos    Pos
	region *Node // the fork or foreach that it is inside of; nil: the program
	fixed  bool  // an input, an item or a round: no let changes it
}

// flow is what is known at one point of a program: the variables that are set,
// and the state of the context.
type flow struct {
	vars    map[string]*variable
	regions []*Node // the forks and foreachs around, outermost first
	dead    bool    // after a return
	turns   turns
	role    string // of the open role block
	inRole  bool
	loop    bool // inside a body that may run more than once
}

// turns says what turns the context holds.
type turns uint8

const (
	noTurns    turns = iota
	onlySystem       // system turns only
	manyTurns
)

func (f *flow) copy() *flow {
	g := *f
	g.vars = make(map[string]*variable, len(f.vars)+4)
	for k, v := range f.vars {
		g.vars[k] = v
	}
	return &g
}

// region returns the fork or foreach that the point is inside of.
func (f *flow) region() *Node {
	if len(f.regions) == 0 {
		return nil
	}
	return f.regions[len(f.regions)-1]
}

// holds reports whether the point is inside of a region.
func (f *flow) holds(region *Node) bool {
	if region == nil {
		return true
	}
	for _, r := range f.regions {
		if r == region {
			return true
		}
	}
	return false
}

func (f *flow) names() []string {
	out := make([]string, 0, len(f.vars))
	for k := range f.vars {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

// inside returns the flow at the start of a branch or round of n.
func (f *flow) inside(n *Node) *flow {
	g := f.copy()
	g.regions = append(append([]*Node(nil), f.regions...), n)
	return g
}

// effects are what a node or body does to the variables around it.
type effects struct {
	reads  map[string]bool // before it sets them itself
	writes map[string]bool // possibly
	sets   map[string]bool // surely
}

func newEffects() effects {
	return effects{map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

// then adds what follows e.
func (e effects) then(next effects) {
	for r := range next.reads {
		if !e.sets[r] {
			e.reads[r] = true
		}
	}
	for w := range next.writes {
		e.writes[w] = true
	}
	for s := range next.sets {
		e.sets[s] = true
	}
}

// body checks a body from f, which it moves to the end of the body.
func (c *analysis) body(nodes []*Node, f *flow) effects {
	all := newEffects()
	for _, n := range nodes {
		e := c.node(n, f)
		n.Reads, n.Writes = setOf(e.reads), setOf(e.writes)
		all.then(e)
	}
	return all
}

func setOf(m map[string]bool) []string {
	if len(m) == 0 {
		return nil
	}
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}

func (c *analysis) logprobs(n *Node, f *flow, e effects) {
	if name := n.Logprobs(); name != "" {
		c.set(n, name, ListOf(Type{Kind: TypeFloat}), f, e)
	}
}

// node checks one node at f, which it moves to after the node.
func (c *analysis) node(n *Node, f *flow) effects {
	e := newEffects()
	c.checkClaims(n, 0, f, e)
	switch n.Kind {
	case KindText:
		c.turn(n, n.Text.Role, f)
		c.template(n, n.Text.Content, f, e)
	case KindImage:
		if !f.inRole || f.role != "user" {
			c.fail(n, "an image outside of a user's turn", "put it into a role block of the user, beside the text that belongs to it")
		}
		c.template(n, n.Image.URL, f, e)
	case KindRole:
		c.roleBlock(n, f, e)
	case KindGen:
		c.generates(n, f)
		c.set(n, n.Name, Type{Kind: TypeString}, f, e)
		c.logprobs(n, f, e)
		c.conditions(n, f, e)
	case KindSelect:
		c.generates(n, f)
		if n.Select.From != "" {
			t := c.expr(n, "from", n.Select.From, f, e)
			if !t.AssignableTo(ListOf(Type{Kind: TypeString})) {
				c.fail(n, fmt.Sprintf("from is %s, not a list of strings", t), "give it a list such as split(text, \",\")")
			}
		}
		c.set(n, n.Name, n.Select.Type, f, e)
		if n.Select.Shares != "" {
			c.set(n, n.Select.Shares, ListOf(Type{Kind: TypeFloat}), f, e)
		}
		c.conditions(n, f, e)
	case KindJSON:
		c.generates(n, f)
		c.set(n, n.Name, n.JSON.Type, f, e)
		c.logprobs(n, f, e)
		c.conditions(n, f, e)
	case KindFork:
		c.fork(n, f, e)
	case KindCall:
		n.Call.argTypes = make([]Type, len(n.Call.Args))
		for i, a := range n.Call.Args {
			n.Call.argTypes[i] = c.expr(n, "argument "+strconv.Itoa(i+1), a, f, e)
		}
		if n.Name != "" {
			c.set(n, n.Name, n.Call.Result, f, e)
		}
	case KindRun:
		c.run(n, f, e)
	case KindWhen:
		c.when(n, f, e)
	case KindRepeat:
		c.repeat(n, f, e)
	case KindForEach:
		c.forEach(n, f, e)
	case KindWait:
		c.template(n, n.Wait.Ask, f, e)
		c.set(n, n.Name, n.Wait.Type, f, e)
	case KindLet:
		t := c.expr(n, "value", n.Let.Value, f, e)
		n.Let.inferred = t
		if n.Let.Type.Kind == "" {
			n.Let.Type = t
		} else if !t.AssignableTo(n.Let.Type) {
			c.fail(n, fmt.Sprintf("the value is %s, not %s", t, n.Let.Type), "change the expression or the type")
		}
		c.set(n, n.Name, n.Let.Type, f, e)
	case KindReturn:
		t := c.expr(n, "the value", n.Return.Value, f, e)
		if f.region() != nil {
			c.fail(n, "return inside "+f.region().ID, "a branch gives its value by yield; return ends the whole program")
		}
		if c.output != nil && !t.AssignableTo(*c.output) {
			c.fail(n, fmt.Sprintf("returns %s, but the program's result is %s", t, *c.output), "return a value of that type")
		}
		c.returns = append(c.returns, t)
		f.dead = true
	}
	return e
}

// set makes name a variable that node n sets.
func (c *analysis) set(n *Node, name string, t Type, f *flow, e effects) {
	if !c.goodName(n, name) {
		return
	}
	e.writes[name], e.sets[name] = true, true
	if old := f.vars[name]; old != nil {
		switch {
		case n.Kind != KindLet:
			c.fail(n, fmt.Sprintf("%q is set already, at %s", name, old.pos), "use another name; only let may set a variable again")
		case old.fixed:
			c.fail(n, fmt.Sprintf("let cannot change %q (%s)", name, old.pos), "inputs, items and rounds keep their values: use another name")
		case old.region != f.region():
			c.fail(n, fmt.Sprintf("let cannot change %q, which is set outside of %s, at %s", name, f.region().ID, old.pos), "yield the value and use the list that comes back")
		case !t.AssignableTo(old.typ):
			c.fail(n, fmt.Sprintf("let gives %q a value of type %s, but it is %s since %s", name, t, old.typ, old.pos), "use another name")
		}
		return
	}
	f.vars[name] = &variable{typ: t, pos: n.Pos, region: f.region()}
}

// bind makes name a variable that a body is given, and reports whether it could.
func (c *analysis) bind(n *Node, name string, t Type, f *flow) bool {
	if !c.goodName(n, name) {
		return false
	}
	if old := f.vars[name]; old != nil {
		c.fail(n, fmt.Sprintf("%q is set already, at %s", name, old.pos), "use another name")
		return false
	}
	f.vars[name] = &variable{typ: t, pos: n.Pos, region: f.region(), fixed: true}
	return true
}

func (c *analysis) goodName(n *Node, name string) bool {
	switch {
	case name == "":
		return false // said by limits
	case reserved[name]:
		c.fail(n, fmt.Sprintf("%q cannot name a variable: it is a word of the expression language", name), "use another name")
	case !isName(name) || len(name) > 128:
		c.fail(n, fmt.Sprintf("%q cannot name a variable", clip(name, 40)), "use letters, digits and _, with no digit first, 128 at most")
	default:
		return true
	}
	return false
}

// expr checks an expression of node n and returns its type.
func (c *analysis) expr(n *Node, what string, src Expr, f *flow, e effects) Type {
	unknown := Type{Kind: TypeAny}
	p, err := parseExpr(src)
	if err != nil {
		c.exprFailed(n, what, err)
		return unknown
	}
	types := make(map[string]Type, len(p.reads))
	good := true
	for _, name := range p.reads {
		v := f.vars[name]
		if v == nil {
			c.unknown(n, what, name, snippetAt(src, p.at[name]), f)
			good = false
			continue
		}
		e.reads[name] = true
		types[name] = v.typ
	}
	if !good {
		return unknown
	}
	t, err := checkExpr(p, src, types)
	if err != nil {
		c.exprFailed(n, what, err)
		return unknown
	}
	old, ok := c.g.compiled.exprs.Load(src)
	if ok && len(p.orders) == 0 && len(old.(*program).orders) == 0 {
		return t
	}
	prog, err := compileParsed(p, src)
	if err != nil {
		c.exprFailed(n, what, err)
		return unknown
	}
	if ok && !reflect.DeepEqual(old.(*program).orders, prog.orders) {
		// The same words over other types: neither orders keys.
		p.orders = nil
		if prog, err = compileParsed(p, src); err != nil {
			c.exprFailed(n, what, err)
			return unknown
		}
	}
	c.g.compiled.exprs.Store(src, prog)
	return t
}

func (c *analysis) exprFailed(n *Node, what string, err error) {
	e := &Error{Pos: n.Pos, Node: n.ID, Msg: what + ": " + err.Error()}
	if x, ok := err.(*exprError); ok {
		e.Msg, e.Hint, e.Snippet = what+": "+x.msg, x.hint, x.snippet
	}
	c.errs = append(c.errs, e)
}

// template checks the expressions of a text and makes the text ready to fill.
func (c *analysis) template(n *Node, t Template, f *flow, e effects) {
	ps, err := t.pieces()
	if err != nil {
		c.fail(n, err.Error(), "")
		return
	}
	var types []Type
	before := len(c.errs)
	for _, p := range ps {
		if p.ex == "" {
			continue
		}
		failed := len(c.errs)
		types = append(types, c.expr(n, "text", p.ex, f, e))
		if n.Text != nil && n.Text.line > 0 { // a block of lines: say which
			for _, err := range c.errs[failed:] {
				err.Pos.Line = n.Text.line + strings.Count(string(t[:p.at]), "\n")
			}
		}
	}
	if len(types) == 0 || len(c.errs) > before {
		return
	}
	x, err := c.g.compileTemplate(t, types)
	if err != nil {
		c.exprFailed(n, "text", err)
		return
	}
	if old, ok := c.g.compiled.templates.Load(t); ok {
		// The same text elsewhere: where the types differ, neither orders keys.
		for i := range x.pieces {
			if !old.(*text).pieces[i].typ.Equal(x.pieces[i].typ) {
				x.pieces[i].typ = Type{}
			}
		}
	}
	c.g.compiled.templates.Store(t, x)
}

// checkClaims holds what the builder's Go types say against the expressions.
func (c *analysis) checkClaims(n *Node, body int, f *flow, e effects) {
	for _, cl := range c.claims[n] {
		if cl.body != body {
			continue
		}
		before := len(c.errs)
		t := c.expr(&Node{Pos: cl.pos, ID: n.ID}, "expression", cl.ex, f, e)
		if len(c.errs) > before {
			c.errs = c.errs[:before] // said where the node uses it
			continue
		}
		if !t.AssignableTo(cl.want) {
			c.errs = append(c.errs, &Error{Pos: cl.pos, Node: n.ID, Msg: fmt.Sprintf("%s is %s, but the Go type says %s", clip(string(cl.ex), 60), t, cl.want), Hint: "change the type parameter or the expression"})
		}
	}
}
