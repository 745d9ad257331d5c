package jinja

import "fmt"

// stmt is a statement: text, a printed expression or a block.
type stmt interface {
	exec(in *interp, sc *scope) error
}

type (
	textStmt  struct{ text string }
	printStmt struct {
		line int
		e    expr
	}
	doStmt struct {
		line int
		e    expr
	}
	groupStmt struct{ body []stmt }
	jumpStmt  struct{ err error }

	arm struct {
		cond expr
		body []stmt
	}
	ifStmt struct {
		line  int
		arms  []arm
		other []stmt
	}
	forStmt struct {
		line   int
		target []string
		iter   expr
		cond   expr // nil without one
		body   []stmt
		other  []stmt
	}
	setStmt struct {
		line  int
		names []string
		attr  string // of a namespace
		value expr   // of a block: its filters, or nil
		block bool
		body  []stmt
	}
	filterStmt struct {
		line int
		pipe expr
		body []stmt
	}
	withStmt struct {
		line   int
		names  []string
		values []expr
		body   []stmt
	}
	param struct {
		name     string
		fallback expr // nil without one
	}
	macroStmt struct {
		line   int
		name   string
		params []param
		body   []stmt
	}
)

// macro is a macro and the scope it was made in.
type macro struct {
	*macroStmt
	sc *scope
}

func (s *textStmt) exec(in *interp, _ *scope) error {
	in.out.addString(s.text, Trusted)
	return in.spend(len(s.text))
}

func (s *printStmt) exec(in *interp, sc *scope) error {
	v, err := s.e.eval(in, sc)
	if err != nil {
		return at(s.line, err)
	}
	n := len(in.out.s)
	if err := in.str(in.out, v); err != nil {
		return at(s.line, err)
	}
	return in.spend(len(in.out.s) - n)
}

func (s *doStmt) exec(in *interp, sc *scope) error {
	_, err := s.e.eval(in, sc)
	return at(s.line, err)
}

func (s *groupStmt) exec(in *interp, sc *scope) error { return in.run(s.body, sc) }
func (s *jumpStmt) exec(*interp, *scope) error        { return s.err }

func (s *ifStmt) exec(in *interp, sc *scope) error {
	for _, a := range s.arms {
		v, err := a.cond.eval(in, sc)
		if err != nil {
			return at(s.line, err)
		}
		if truth(v) {
			return in.run(a.body, sc)
		}
	}
	return in.run(s.other, sc)
}

func (s *forStmt) exec(in *interp, sc *scope) error {
	v, err := s.iter.eval(in, sc)
	if err != nil {
		return at(s.line, err)
	}
	items, err := in.iterate(v)
	if err != nil {
		return at(s.line, err)
	}
	if s.cond != nil {
		var kept []Value
		for _, x := range items {
			if err := in.step(1); err != nil {
				return at(s.line, err)
			}
			inner := &scope{outer: sc}
			if err := assign(inner, s.target, x, in); err != nil {
				return at(s.line, err)
			}
			ok, err := s.cond.eval(in, inner)
			if err != nil {
				return at(s.line, err)
			}
			if truth(ok) {
				kept = append(kept, x)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		return in.run(s.other, sc)
	}
	l := &loop{items: items}
	for i, x := range items {
		if err := in.step(1); err != nil {
			return at(s.line, err)
		}
		l.at = i
		inner := &scope{outer: sc}
		inner.set("loop", l)
		if err := assign(inner, s.target, x, in); err != nil {
			return at(s.line, err)
		}
		switch err := in.run(s.body, inner); err {
		case nil, errContinue:
		case errBreak:
			return nil
		default:
			return err
		}
	}
	return nil
}

// assign sets one name to v, or several to its items.
func assign(sc *scope, names []string, v Value, in *interp) error {
	if len(names) == 1 {
		sc.set(names[0], v)
		return nil
	}
	items, err := in.iterate(v)
	if err != nil {
		return err
	}
	if len(items) != len(names) {
		return fmt.Errorf("%d values for %d names", len(items), len(names))
	}
	for i, n := range names {
		sc.set(n, items[i])
	}
	return nil
}

func (s *setStmt) exec(in *interp, sc *scope) error {
	var v Value
	var err error
	if s.block {
		// A block has names of its own, as a loop body has.
		v, err = in.capture(s.body, &scope{outer: sc})
		if err == nil && s.value != nil {
			inner := &scope{outer: sc}
			inner.set(capturedName, v)
			v, err = s.value.eval(in, inner)
		}
	} else {
		v, err = s.value.eval(in, sc)
	}
	if err != nil {
		return at(s.line, err)
	}
	if s.attr == "" {
		return at(s.line, assign(sc, s.names, v, in))
	}
	target, _ := sc.find(s.names[0])
	ns, ok := target.(*Namespace)
	if !ok {
		return at(s.line, fmt.Errorf("cannot set an attribute of %s: it is a %s, not a namespace", s.names[0], typeName(target)))
	}
	ns.attrs.Set(s.attr, v)
	return nil
}

func (s *filterStmt) exec(in *interp, sc *scope) error {
	v, err := in.capture(s.body, &scope{outer: sc})
	if err != nil {
		return at(s.line, err)
	}
	inner := &scope{outer: sc}
	inner.set(capturedName, v)
	return (&printStmt{s.line, s.pipe}).exec(in, inner)
}

func (s *withStmt) exec(in *interp, sc *scope) error {
	inner := &scope{outer: sc}
	for i, n := range s.names {
		v, err := s.values[i].eval(in, sc)
		if err != nil {
			return at(s.line, err)
		}
		inner.set(n, v)
	}
	return in.run(s.body, inner)
}

func (s *macroStmt) exec(_ *interp, sc *scope) error {
	sc.set(s.name, &macro{s, sc})
	return nil
}

func (m *macro) call(in *interp, c *Call) (Value, error) {
	if in.macros++; in.macros > maxMacros {
		return nil, limitf("macros call each other more than %d deep", maxMacros)
	}
	defer func() { in.macros-- }()
	sc := &scope{outer: m.sc}
	if len(c.Args) > len(m.params) {
		return nil, fmt.Errorf("macro %s takes %d arguments, not %d", m.name, len(m.params), len(c.Args))
	}
	used := 0
	for i, p := range m.params {
		var v Value = Undefined{p.name}
		if i < len(c.Args) {
			v = c.Args[i]
		} else if x, ok := c.named(p.name); ok {
			v = x
			used++
		} else if p.fallback != nil {
			x, err := p.fallback.eval(in, sc)
			if err != nil {
				return nil, err
			}
			v = x
		}
		sc.set(p.name, v)
	}
	if used < len(c.Names) {
		return nil, fmt.Errorf("macro %s was given an argument that it does not take, one of %q", m.name, c.Names)
	}
	t, err := in.capture(m.body, sc)
	return t, err
}
