package jinja

import "fmt"

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
