package jinja

import (
	"fmt"
	"math"
	"strings"
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

func (e *attrExpr) eval(in *interp, sc *scope) (Value, error) {
	v, err := e.of.eval(in, sc)
	if err == nil {
		v, err = in.attr(v, e.name, e.of)
	}
	return v, at(e.line, err)
}

// describe names an expression in messages.
func describe(e expr) string {
	switch e := e.(type) {
	case *nameExpr:
		return e.name
	case *attrExpr:
		return describe(e.of) + "." + e.name
	case *indexExpr:
		if l, ok := e.i.(*literal); ok {
			if t, ok := l.v.(Text); ok {
				return describe(e.of) + "[" + quote(t.S) + "]"
			}
			return fmt.Sprintf("%s[%v]", describe(e.of), l.v)
		}
		return describe(e.of) + "[...]"
	}
	return "the value"
}

// attr is v.name: a method, else the key of that name.
func (in *interp) attr(v Value, name string, of expr) (Value, error) {
	if err := in.step(1); err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case Undefined:
		return nil, fmt.Errorf("%s is undefined, so it has no %q", describe(of), name)
	case *Namespace:
		if x, ok := v.attrs.Get(name); ok {
			return x, nil
		}
	case *loop:
		return v.attr(name), nil
	case *Dict:
		if m := method(v, name); m != nil {
			return m, nil
		}
		if x, ok := v.Get(name); ok {
			return x, nil
		}
	default:
		if m := method(v, name); m != nil {
			return m, nil
		}
	}
	return Undefined{describe(of) + "." + name}, nil
}

func (e *indexExpr) eval(in *interp, sc *scope) (Value, error) {
	v, err := e.of.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	i, err := e.i.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	v, err = in.index(v, i, e)
	return v, at(e.line, err)
}

func (in *interp) index(v, i Value, e *indexExpr) (Value, error) {
	if err := in.step(1); err != nil {
		return nil, err
	}
	missing := Undefined{describe(e)}
	switch v := v.(type) {
	case Undefined:
		return nil, fmt.Errorf("%s is undefined, so it has no items", describe(e.of))
	case *Dict:
		if x, ok := v.find(i); ok {
			return x, nil
		}
	case *List:
		if n, ok := intOf(i); ok {
			if n < 0 {
				n += len(v.Items)
			}
			if n >= 0 && n < len(v.Items) {
				return v.Items[n], nil
			}
			return missing, nil
		}
	case Text:
		if n, ok := intOf(i); ok {
			if err := in.step(len(v.S) / 8); err != nil {
				return nil, err
			}
			chars := v.chars()
			if n < 0 {
				n += len(chars)
			}
			if n >= 0 && n < len(chars) {
				return chars[n], nil
			}
			return missing, nil
		}
	}
	if name, ok := i.(Text); ok { // x["name"] is also the attribute
		x, err := in.attr(v, name.S, e.of)
		if _, undefined := x.(Undefined); undefined {
			return missing, err
		}
		return x, err
	}
	return missing, nil
}

func intOf(v Value) (int, bool) {
	switch v := v.(type) {
	case int64:
		return int(v), int64(int(v)) == v
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func (e *sliceExpr) eval(in *interp, sc *scope) (Value, error) {
	v, err := e.of.eval(in, sc)
	if err != nil {
		return nil, at(e.line, err)
	}
	var bounds [3]*int
	for i, x := range e.parts {
		if x == nil {
			continue
		}
		b, err := x.eval(in, sc)
		if err != nil {
			return nil, at(e.line, err)
		}
		if b == nil {
			continue
		}
		n, ok := intOf(b)
		if !ok {
			return nil, at(e.line, fmt.Errorf("a slice needs whole numbers, not %s", typeName(b)))
		}
		bounds[i] = &n
	}
	v, err = in.slice(v, bounds)
	return v, at(e.line, err)
}

// slice is Python's v[from:to:step].
func (in *interp) slice(v Value, bounds [3]*int) (Value, error) {
	var items []Value
	var chars []Text
	n := 0
	switch v := v.(type) {
	case *List:
		items, n = v.Items, len(v.Items)
	case Text:
		chars = v.chars()
		n = len(chars)
	case Undefined:
		return nil, fmt.Errorf("%s is undefined and cannot be sliced", v.Name)
	default:
		return nil, fmt.Errorf("a %s cannot be sliced", typeName(v))
	}
	if err := in.spend(16 * n); err != nil {
		return nil, err
	}
	step := 1
	if bounds[2] != nil {
		step = *bounds[2]
	}
	if step == 0 {
		return nil, fmt.Errorf("the step of a slice cannot be 0")
	}
	low, high := 0, n // where an index may lie
	if step < 0 {
		low, high = -1, n-1
	}
	bound := func(p *int, fallback int) int {
		if p == nil {
			return fallback
		}
		i := *p
		if i < 0 {
			i = max(i+n, low)
		}
		return min(max(i, low), high)
	}
	from, to := bound(bounds[0], low), bound(bounds[1], high)
	if step < 0 {
		from, to = bound(bounds[0], high), bound(bounds[1], low)
	}
	var picked []int
	for i := from; step > 0 && i < to || step < 0 && i > to; {
		picked = append(picked, i)
		if step > n || step < -n {
			break
		}
		i += step
	}
	if chars != nil || items == nil {
		if _, ok := v.(Text); ok {
			var b builder
			for _, i := range picked {
				b.add(chars[i])
			}
			return b.text(), nil
		}
	}
	l := &List{tuple: v.(*List).tuple, Items: make([]Value, len(picked))}
	for j, i := range picked {
		l.Items[j] = items[i]
	}
	return l, nil
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

func (in *interp) compare(op string, a, b Value) (bool, error) {
	if err := in.step(1); err != nil {
		return false, err
	}
	switch op {
	case "==":
		return in.equal(a, b), nil
	case "!=":
		return !in.equal(a, b), nil
	case "in":
		return in.contains(b, a)
	case "not in":
		ok, err := in.contains(b, a)
		return !ok, err
	}
	c, err := in.order(a, b, 0)
	switch op {
	case "<":
		return c < 0, err
	case "<=":
		return c <= 0, err
	case ">":
		return c > 0, err
	}
	return c >= 0, err
}

// order is negative if a < b, 0 if neither is less, positive if a > b.
func (in *interp) order(a, b Value, depth int) (int, error) {
	if err := in.step(1); err != nil {
		return 0, err
	}
	if x, _, ok := number(a); ok {
		if y, _, ok := number(b); ok {
			switch {
			case x < y:
				return -1, nil
			case x > y:
				return 1, nil
			}
			return 0, nil
		}
	}
	if x, ok := a.(Text); ok {
		if y, ok := b.(Text); ok {
			return strings.Compare(x.S, y.S), nil
		}
	}
	if x, ok := a.(*List); ok && depth < maxValueDepth {
		if y, ok := b.(*List); ok && x.tuple == y.tuple {
			for i := range min(len(x.Items), len(y.Items)) {
				if c, err := in.order(x.Items[i], y.Items[i], depth+1); c != 0 || err != nil {
					return c, err
				}
			}
			return len(x.Items) - len(y.Items), nil
		}
	}
	return 0, fmt.Errorf("a %s and a %s have no order", typeName(a), typeName(b))
}

// contains is Python's "x in v".
func (in *interp) contains(v, x Value) (bool, error) {
	switch v := v.(type) {
	case Text:
		t, ok := x.(Text)
		if !ok {
			return false, fmt.Errorf("\"in\" a string needs a string, not %s", typeName(x))
		}
		return strings.Contains(v.S, t.S), in.step(len(v.S) / 8)
	case *List:
		if err := in.step(len(v.Items)); err != nil {
			return false, err
		}
		for _, y := range v.Items {
			if in.equal(x, y) {
				return true, nil
			}
		}
		return false, nil
	case *Dict:
		_, ok := v.find(x)
		return ok, nil
	case *Namespace:
		_, ok := v.attrs.find(x)
		return ok, nil
	case Undefined:
		return false, nil
	}
	return false, fmt.Errorf("\"in\" needs a string, list or mapping, not %s", typeName(v))
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
