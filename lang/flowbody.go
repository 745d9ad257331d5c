package lang

import (
	"fmt"
	"strconv"
)

var roles = []string{"system", "user", "assistant", "tool"}

func isRole(r string) bool {
	for _, x := range roles {
		if x == r {
			return true
		}
	}
	return false
}

// turn checks a turn, or raw text if role is empty, at f.
func (c *analysis) turn(n *Node, role string, f *flow) {
	if role == "" {
		return
	}
	if !isRole(role) {
		c.fail(n, fmt.Sprintf("no role %q", clip(role, 40)), didYouMean(role, roles))
		return
	}
	if f.inRole {
		c.fail(n, fmt.Sprintf("a %s turn inside the open %s turn", role, f.role), "end the block first, or use text")
		return
	}
	if role != "system" {
		f.turns = manyTurns
		return
	}
	switch {
	case f.turns == manyTurns:
		c.fail(n, "a system turn after other turns: many chat templates refuse it or move it", "put it first, or make it a user turn")
	case f.loop:
		c.fail(n, "a system turn in a body that may run again: many chat templates take only one", "put it before the loop")
	default:
		f.turns = onlySystem
	}
}

// generates checks that the model may write at f.
func (c *analysis) generates(n *Node, f *flow) {
	if f.inRole && f.role != "assistant" {
		c.fail(n, fmt.Sprintf("%s inside a %s turn: a model writes only as the assistant", n.Kind, f.role), "move it out of the block, or make it an assistant block")
	}
	if !f.inRole {
		f.turns = manyTurns
	}
}

func (c *analysis) roleBlock(n *Node, f *flow, e effects) {
	if n.Role.Role == "" {
		c.fail(n, "a role block without a role", "give it one of "+list(roles))
	}
	c.turn(n, n.Role.Role, f)
	if f.inRole {
		e.then(c.body(n.Role.Body, f))
		return
	}
	f.inRole, f.role = true, n.Role.Role
	e.then(c.body(n.Role.Body, f))
	f.inRole, f.role = false, ""
}

func (c *analysis) fork(n *Node, f *flow, e effects) {
	fk := n.Fork
	elem := Type{Kind: TypeAny}
	switch {
	case len(fk.Arms) > 0:
		for i := range fk.Arms {
			arm := &fk.Arms[i]
			t := c.branch(n, i+1, arm.Body, arm.Yield, "", Type{}, f, e)
			if i == 0 {
				elem = t
			} else {
				elem = unify(elem, t)
			}
		}
	default:
		item := Type{Kind: TypeString}
		if fk.Over != "" {
			item = c.listOf(n, "over", fk.Over, f, e)
		}
		elem = c.branch(n, 1, fk.Body, fk.Yield, fk.As, item, f, e)
	}
	if fk.Join.Kind == "collect" {
		elem = Type{Kind: TypeAny} // null for failed branches
	}
	fk.Elem = elem
	if n.Name != "" {
		c.set(n, n.Name, ListOf(elem), f, e)
	}
	if fk.Errors != "" {
		c.set(n, fk.Errors, ListOf(Type{Kind: TypeString}), f, e)
	}
}

// branch checks one body of a fork or foreach and returns the type of what it
// yields.
func (c *analysis) branch(n *Node, which int, nodes []*Node, yield Expr, as string, item Type, f *flow, e effects) Type {
	in := f.inside(n)
	in.loop = f.loop || n.Kind == KindForEach
	if as != "" {
		c.bind(n, as, item, in)
	}
	be := newEffects()
	be.then(c.body(nodes, in))
	t := Type{Kind: TypeAny}
	ye := newEffects()
	if yield != "" {
		t = c.expr(n, "yield", yield, in, ye)
	}
	c.checkClaims(n, which, in, ye)
	be.then(ye)
	for r := range be.reads {
		if v := in.vars[r]; v == nil || v.region != n {
			e.reads[r] = true
		}
	}
	if n.Kind == KindForEach {
		f.turns = max(f.turns, in.turns)
	}
	return t
}

// listOf checks an expression that must be a list and returns the type of its
// elements.
func (c *analysis) listOf(n *Node, what string, src Expr, f *flow, e effects) Type {
	if src == "" {
		return Type{Kind: TypeAny} // said by limits
	}
	t := c.expr(n, what, src, f, e)
	if t.Kind != TypeList && !t.isAny() {
		c.fail(n, fmt.Sprintf("%s is %s, not a list", what, t), "give it a list, e.g. split(text, \"\\n\") of a text")
	}
	return t.elem()
}

func (c *analysis) when(n *Node, f *flow, e effects) {
	w := n.When
	if w.If == "" {
		// said by limits
	} else if t := c.expr(n, "if", w.If, f, e); t.Kind != TypeBool && !t.isAny() {
		c.fail(n, fmt.Sprintf("the condition is %s, not a bool", t), "compare it with something")
	}
	then, other := f.copy(), f.copy()
	te, oe := c.body(w.Then, then), c.body(w.Else, other)
	for _, x := range []effects{te, oe} {
		for r := range x.reads {
			e.reads[r] = true
		}
		for s := range x.writes {
			e.writes[s] = true
		}
	}
	f.turns = max(then.turns, other.turns)
	f.dead = f.dead || then.dead && other.dead
	// An arm that ends the program says nothing about what comes after.
	switch {
	case then.dead && !other.dead:
		f.vars = other.vars
		for s := range oe.sets {
			e.sets[s] = true
		}
		return
	case other.dead && !then.dead:
		f.vars = then.vars
		for s := range te.sets {
			e.sets[s] = true
		}
		return
	}
	for name := range te.sets {
		if !oe.sets[name] {
			continue
		}
		e.sets[name] = true
		a, b := then.vars[name], other.vars[name]
		if a == nil || b == nil || f.vars[name] != nil {
			continue
		}
		if !a.typ.Equal(b.typ) {
			c.fail(n, fmt.Sprintf("%s is %s at %s and %s at %s", strconv.Quote(name), a.typ, a.pos, b.typ, b.pos), "give both cases one type, or two names")
		}
		f.vars[name] = a
	}
}

func (c *analysis) repeat(n *Node, f *flow, e effects) {
	r := n.Repeat
	loop := f.loop
	f.loop = loop || r.Max > 1
	bound := r.Index != "" && c.bind(n, r.Index, Type{Kind: TypeInt}, f)
	be := c.body(r.Body, f)
	ue := newEffects()
	if r.Until != "" {
		if t := c.expr(n, "until", r.Until, f, ue); t.Kind != TypeBool && !t.isAny() {
			c.fail(n, fmt.Sprintf("until is %s, not a bool", t), "compare it with something")
		}
	}
	c.checkClaims(n, 1, f, ue)
	be.then(ue)
	if bound {
		delete(be.reads, r.Index)
		delete(f.vars, r.Index) // rounds are over
	}
	e.then(be)
	f.loop = loop
}

func (c *analysis) forEach(n *Node, f *flow, e effects) {
	fe := n.ForEach
	item := c.listOf(n, "over", fe.Over, f, e)
	fe.Elem = c.branch(n, 1, fe.Body, fe.Yield, fe.As, item, f, e)
	if n.Name != "" {
		c.set(n, n.Name, ListOf(fe.Elem), f, e)
	}
}
