package jinja

import (
	"fmt"
	"math"
)

// expr is an expression.
type expr interface {
	eval(in *interp, sc *scope) (Value, error)
}

type (
	literal  struct{ v Value }
	captured struct{} // what a set or filter block has printed
	nameExpr struct {
		line int
		name string
	}
	listExpr struct {
		line  int
		items []expr
		tuple bool
	}
	dictExpr struct {
		line       int
		keys, vals []expr
	}
	attrExpr struct {
		line int
		of   expr
		name string
	}
	indexExpr struct {
		line  int
		of, i expr
	}
	sliceExpr struct {
		line  int
		of    expr
		parts [3]expr // from, to, step; nil where missing
	}
	callExpr struct {
		line int
		f    expr
		args arguments
	}
	filterExpr struct {
		line int
		name string
		f    filter
		in   expr
		args arguments
	}
	testExpr struct {
		line int
		name string
		f    test
		in   expr
		not  bool
		args arguments
	}
	ternary struct {
		line          int
		cond, yes, no expr // no may be nil
	}
	logical struct {
		line        int
		left, right expr
		or          bool
	}
	notExpr struct {
		line int
		e    expr
	}
	signExpr struct {
		line  int
		minus bool
		e     expr
	}
	compareExpr struct {
		line  int
		first expr
		ops   []string
		rest  []expr
	}
	joinExpr struct {
		line  int
		parts []expr
	}
	binaryExpr struct {
		line        int
		op          string
		left, right expr
	}
	arguments struct {
		args  []expr
		names []string
		named []expr
	}
)

// Call is a call of a function, filter or test.
type Call struct {
	Args  []Value
	Names []string // of Named
	Named []Value

	in *interp
}

func (c *Call) named(name string) (Value, bool) {
	for i, n := range c.Names {
		if n == name {
			return c.Named[i], true
		}
	}
	return nil, false
}

// arg is the i-th argument, or the one with the name, or the fallback.
func (c *Call) arg(i int, name string, fallback Value) Value {
	if i >= 0 && i < len(c.Args) {
		return c.Args[i]
	}
	if v, ok := c.named(name); ok {
		return v
	}
	return fallback
}

func (a *arguments) eval(in *interp, sc *scope) (*Call, error) {
	c := &Call{in: in, Names: a.names}
	for _, e := range a.args {
		v, err := e.eval(in, sc)
		if err != nil {
			return nil, err
		}
		c.Args = append(c.Args, v)
	}
	for _, e := range a.named {
		v, err := e.eval(in, sc)
		if err != nil {
			return nil, err
		}
		c.Named = append(c.Named, v)
	}
	return c, nil
}

const capturedName = "\x00captured"

func (e *literal) eval(in *interp, _ *scope) (Value, error) { return e.v, in.step(1) }

func (e *captured) eval(_ *interp, sc *scope) (Value, error) {
	v, _ := sc.find(capturedName)
	return v, nil
}

func (e *nameExpr) eval(in *interp, sc *scope) (Value, error) {
	if err := in.step(1); err != nil {
		return nil, at(e.line, err)
	}
	if v, ok := sc.find(e.name); ok {
		return v, nil
	}
	return Undefined{e.name}, nil
}

func (e *listExpr) eval(in *interp, sc *scope) (Value, error) {
	l := &List{tuple: e.tuple, Items: make([]Value, 0, len(e.items))}
	if err := in.spend(16 * len(e.items)); err != nil {
		return nil, at(e.line, err)
	}
	for _, x := range e.items {
		v, err := x.eval(in, sc)
		if err != nil {
			return nil, err
		}
		l.Items = append(l.Items, v)
	}
	return l, nil
}

func (e *dictExpr) eval(in *interp, sc *scope) (Value, error) {
	d := NewDict()
	if err := in.spend(64 * len(e.keys)); err != nil {
		return nil, at(e.line, err)
	}
	for i := range e.keys {
		k, err := e.keys[i].eval(in, sc)
		if err != nil {
			return nil, err
		}
		v, err := e.vals[i].eval(in, sc)
		if err != nil {
			return nil, err
		}
		if !d.put(k, v) {
			return nil, at(e.line, fmt.Errorf("a %s cannot be a key", typeName(k)))
		}
	}
	return d, nil
}

func (e *callExpr) eval(in *interp, sc *scope) (Value, error) {
	f, err := e.f.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	c, err := e.args.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	if err := in.step(1); err != nil {
		return nil, at(e.line, err)
	}
	var v Value
	switch f := f.(type) {
	case *Func:
		v, err = f.Call(c)
	case *macro:
		v, err = f.call(in, c)
	case Undefined:
		err = fmt.Errorf("%s is undefined and cannot be called", describe(e.f))
	default:
		err = fmt.Errorf("%s is a %s and cannot be called", describe(e.f), typeName(f))
	}
	return v, at(e.line, err)
}

func (e *filterExpr) eval(in *interp, sc *scope) (Value, error) {
	v, err := e.in.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	c, err := e.args.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	if err := in.step(1); err != nil {
		return nil, at(e.line, err)
	}
	v, err = e.f(c, v)
	if err != nil {
		err = fmt.Errorf("filter %s: %w", e.name, err)
	}
	return v, at(e.line, err)
}

func (e *testExpr) eval(in *interp, sc *scope) (Value, error) {
	v, err := e.in.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	c, err := e.args.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	ok, err := e.f.run(c, v)
	if err != nil {
		return nil, at(e.line, fmt.Errorf("test %s: %w", e.name, err))
	}
	return ok != e.not, nil
}

func (e *ternary) eval(in *interp, sc *scope) (Value, error) {
	c, err := e.cond.eval(in, sc)
	switch {
	case err != nil:
		return nil, at(e.line, err)
	case truth(c):
		return e.yes.eval(in, sc)
	case e.no == nil:
		return Undefined{"the value of an if without else"}, nil
	}
	return e.no.eval(in, sc)
}

func (e *logical) eval(in *interp, sc *scope) (Value, error) {
	v, err := e.left.eval(in, sc)
	if err != nil || truth(v) == e.or {
		return v, at(e.line, err)
	}
	return e.right.eval(in, sc)
}

func (e *notExpr) eval(in *interp, sc *scope) (Value, error) {
	v, err := e.e.eval(in, sc)
	return !truth(v), at(e.line, err)
}

func (e *signExpr) eval(in *interp, sc *scope) (Value, error) {
	v, err := e.e.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	f, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, at(e.line, fmt.Errorf("a %s has no sign", typeName(v)))
	case !e.minus:
		return v, nil
	case isInt:
		n, _ := intOf(v)
		if n == math.MinInt64 {
			return nil, at(e.line, fmt.Errorf("number too large"))
		}
		return int64(-n), nil
	}
	return -f, nil
}

func (e *compareExpr) eval(in *interp, sc *scope) (Value, error) {
	left, err := e.first.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	for i, op := range e.ops {
		right, err := e.rest[i].eval(in, sc)
		if err != nil {
			return nil, at(e.line, err)
		}
		ok, err := in.compare(op, left, right)
		if err != nil || !ok {
			return false, at(e.line, err)
		}
		left = right
	}
	return true, nil
}

func (e *joinExpr) eval(in *interp, sc *scope) (Value, error) {
	var b builder
	for _, p := range e.parts {
		v, err := p.eval(in, sc)
		if err == nil {
			err = in.str(&b, v)
		}
		if err != nil {
			return nil, at(e.line, err)
		}
	}
	return b.text(), at(e.line, in.spend(len(b.s)))
}

func (e *binaryExpr) eval(in *interp, sc *scope) (Value, error) {
	a, err := e.left.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	b, err := e.right.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	if u, ok := a.(Undefined); ok {
		return nil, at(e.line, fmt.Errorf("%s is undefined, so %q cannot be done", u.Name, e.op))
	}
	if u, ok := b.(Undefined); ok {
		return nil, at(e.line, fmt.Errorf("%s is undefined, so %q cannot be done", u.Name, e.op))
	}
	v, err := in.binary(e.op, a, b)
	return v, at(e.line, err)
}
