package lang

import (
	"fmt"
	"strconv"
)

// Check checks a graph that was put together by hand and fills what follows
// from it: IDs, reads and writes, types. Define and Decode do so themselves.
// The error, if any, is of type Errors and holds everything that is wrong.
func (g *Graph) Check() error { return (&analysis{g: g}).check() }

// analysis is one check of a graph. Its passes are structure and assignIDs
// (ids.go), inputs and nodes (checknode.go) and the flow of variables, types and
// turns (flow.go).
type analysis struct {
	g         *Graph
	errs      Errors
	claims    map[*Node][]claim // from the builder
	output    *Type             // what the program must return; nil: anything
	outputPos Pos

	defs    map[string][]definition
	returns []Type

	around []*Graph         // the programs whose check this one is part of
	progs  map[*Node]*Graph // what nodes run; nil for those that cannot
}

// definition is a place that sets a variable.
type definition struct {
	node   *Node
	region *Node // the fork or foreach that it is inside of
	pos    Pos
}

func (c *analysis) check() error {
	g := c.g
	switch {
	case g.Name == "":
		c.errs = append(c.errs, &Error{Pos: c.outputPos, Msg: "name is missing", Hint: "write name: and a name such as triage"})
	case !isPathName(g.Name):
		c.errs = append(c.errs, &Error{Pos: c.outputPos, Msg: fmt.Sprintf("%q is no name for a program", clip(g.Name, 40)), Hint: "use letters, digits, _ - and ."})
	}
	if !c.structure() {
		return c.errs.err()
	}
	unplace(g.Body)
	c.assignIDs(g.Body, "")
	g.compiled.nodes = map[string]*Node{}
	c.define(g.Body, nil)
	start := c.inputs()
	c.budget(g.Budget)
	c.limits(g.Body)
	c.programs()
	c.body(g.Body, start)
	g.Output = Type{Kind: TypeAny}
	if len(c.returns) > 0 {
		g.Output = c.returns[0]
		for _, t := range c.returns[1:] {
			g.Output = unify(g.Output, t)
		}
		if !start.dead && !endsInReturn(g.Body) {
			g.Output = Type{Kind: TypeAny} // may end without a value
		}
	}
	if len(c.errs) == 0 {
		c.place(g.Body)
	}
	g.Walk(func(n *Node) bool { g.compiled.nodes[n.ID] = n; return true })
	return c.errs.err()
}

// fail notes that something is wrong with a node.
func (c *analysis) fail(n *Node, msg, hint string) {
	c.errs = append(c.errs, &Error{Pos: n.Pos, Node: n.ID, Msg: msg, Hint: hint})
}

// define collects the places that set variables, for messages about those that
// cannot be read.
func (c *analysis) define(body []*Node, region *Node) {
	if c.defs == nil {
		c.defs = map[string][]definition{}
	}
	add := func(name string, n, region *Node) {
		if name != "" {
			c.defs[name] = append(c.defs[name], definition{n, region, n.Pos})
		}
	}
	for _, n := range body {
		switch n.Kind {
		case KindRole, KindWhen, KindRepeat, KindSleep:
		default:
			add(n.Name, n, region)
		}
		inner := region
		switch {
		case n.Fork != nil:
			inner = n
			add(n.Fork.As, n, inner)
			add(n.Fork.Errors, n, region)
		case n.Select != nil:
			add(n.Select.Shares, n, region)
		case n.Logprobs() != "":
			add(n.Logprobs(), n, region)
		case n.ForEach != nil:
			inner = n
			add(n.ForEach.As, n, inner)
		case n.Repeat != nil:
			add(n.Repeat.Index, n, region)
		}
		for _, b := range n.bodies() {
			c.define(b.nodes, inner)
		}
	}
}

// unknown reports a variable that cannot be read at node n, with the reason.
func (c *analysis) unknown(n *Node, what, name, snippet string, f *flow) {
	e := &Error{Pos: n.Pos, Node: n.ID, Snippet: snippet, unknown: true}
	defs := c.defs[name]
	var inside, other *definition
	for i := range defs {
		d := &defs[i]
		if f.holds(d.region) {
			other = d
		} else {
			inside = d
		}
	}
	switch {
	case other != nil && other.node == n:
		e.Msg = fmt.Sprintf("%s reads %s, which this node itself sets", what, strconv.Quote(name))
		e.Hint = "read a variable that is set before"
	case other != nil && c.later(other.node, n):
		e.Msg = fmt.Sprintf("%s reads %s, which is set only later, at %s", what, strconv.Quote(name), other.pos)
		e.Hint = "move this after it"
	case other != nil:
		e.Msg = fmt.Sprintf("%s reads %s, which may not be set here: %s sets it in one case only", what, strconv.Quote(name), other.pos)
		e.Hint = "set it in the other case too (a let will do), or read it inside of that case"
	case inside != nil:
		e.Msg = fmt.Sprintf("%s reads %s, which is set at %s inside %s (%s) and cannot be read outside of it", what, strconv.Quote(name), inside.pos, inside.region.ID, inside.region.Pos)
		e.Hint = "yield it, and read the list " + inside.region.Name
		if inside.region.Name == "" {
			e.Hint = "yield it"
		}
	default:
		e.Msg = fmt.Sprintf("%s reads %s, which nothing sets", what, strconv.Quote(name))
		e.Hint = didYouMean(name, f.names())
		if e.Hint == "" {
			e.Hint = "declare it as an input or set it before"
		}
	}
	c.errs = append(c.errs, e)
}

// later reports whether node a stands after node b in the source.
func (c *analysis) later(a, b *Node) bool {
	seenB, after := false, false
	c.g.Walk(func(n *Node) bool {
		if n == b {
			seenB = true
		}
		if n == a && seenB {
			after = true
		}
		return true
	})
	return after
}
