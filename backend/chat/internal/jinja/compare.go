package jinja

import (
	"fmt"
	"strings"
)

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
