package jinja

import (
	"fmt"
	"math"
	"math/bits"
)

// binary is a op b for the arithmetic operators.
func (in *interp) binary(op string, a, b Value) (Value, error) {
	if err := in.step(1); err != nil {
		return nil, err
	}
	x, aInt, aNum := number(a)
	y, bInt, bNum := number(b)
	if aNum && bNum {
		if aInt && bInt {
			i, _ := intOf(a)
			j, _ := intOf(b)
			return integers(op, int64(i), int64(j))
		}
		return floats(op, x, y)
	}
	switch op {
	case "+":
		return in.plus(a, b)
	case "*":
		if n, ok := intOf(b); ok {
			return in.times(a, n)
		}
		if n, ok := intOf(a); ok {
			return in.times(b, n)
		}
	case "%":
		if t, ok := a.(Text); ok {
			return in.percent(t, b)
		}
	}
	return nil, fmt.Errorf("a %s and a %s cannot be combined with %q", typeName(a), typeName(b), op)
}

// plus joins texts and lists. A dict with a literal, as the arguments of a tool call
// are, joins a text as its JSON.
func (in *interp) plus(a, b Value) (Value, error) {
	asText := func(v Value) (Text, bool) {
		switch v := v.(type) {
		case Text:
			return v, true
		case *Dict:
			if v.Literal != nil {
				return *v.Literal, true
			}
		}
		return Text{}, false
	}
	if x, ok := asText(a); ok {
		if y, ok := asText(b); ok {
			return concat(x, y), in.spend(len(x.S) + len(y.S))
		}
	}
	if x, ok := a.(*List); ok {
		if y, ok := b.(*List); ok && x.tuple == y.tuple {
			if err := in.spend(16 * (len(x.Items) + len(y.Items))); err != nil {
				return nil, err
			}
			return &List{tuple: x.tuple, Items: append(append([]Value{}, x.Items...), y.Items...)}, nil
		}
	}
	return nil, fmt.Errorf("a %s and a %s cannot be added", typeName(a), typeName(b))
}

// times repeats a text or a list.
func (in *interp) times(v Value, n int) (Value, error) {
	n = max(n, 0)
	size := 0
	switch v := v.(type) {
	case Text:
		size = len(v.S)
	case *List:
		size = 16 * len(v.Items)
	default:
		return nil, fmt.Errorf("a %s cannot be repeated", typeName(v))
	}
	if hi, lo := bits.Mul64(uint64(size), uint64(n)); hi != 0 || lo > maxBytes {
		return nil, limitf("more than %d MB of text", maxBytes>>20)
	}
	if err := in.spend(size * n); err != nil {
		return nil, err
	}
	if t, ok := v.(Text); ok {
		var b builder
		if t.S != "" {
			for range n {
				b.add(t)
			}
		}
		return b.text(), nil
	}
	l := v.(*List)
	out := &List{tuple: l.tuple}
	if len(l.Items) > 0 {
		for range n {
			out.Items = append(out.Items, l.Items...)
		}
	}
	return out, nil
}

func integers(op string, a, b int64) (Value, error) {
	overflow := fmt.Errorf("%d %s %d is too large", a, op, b)
	switch op {
	case "+":
		c := a + b
		if (c > a) != (b > 0) && b != 0 {
			return nil, overflow
		}
		return c, nil
	case "-":
		c := a - b
		if (c < a) != (b > 0) && b != 0 {
			return nil, overflow
		}
		return c, nil
	case "*":
		c := a * b
		if a != 0 && (c/a != b || a == -1 && b == math.MinInt64) {
			return nil, overflow
		}
		return c, nil
	case "**":
		if b < 0 {
			return floats(op, float64(a), float64(b))
		}
		c := int64(1)
		for range min(b, 64) {
			if c != 0 && a != 0 && (c*a)/a != c {
				return nil, overflow
			}
			c *= a
		}
		if b > 64 && (a > 1 || a < -1) {
			return nil, overflow
		}
		if b > 64 && a == -1 && b%2 == 1 {
			c = -1
		}
		return c, nil
	}
	if b == 0 {
		return nil, fmt.Errorf("division by zero")
	}
	switch op {
	case "/":
		return float64(a) / float64(b), nil
	case "//":
		if a == math.MinInt64 && b == -1 {
			return nil, overflow
		}
		q := a / b
		if a%b != 0 && (a < 0) != (b < 0) {
			q--
		}
		return q, nil
	case "%":
		r := a % b
		if r != 0 && (r < 0) != (b < 0) {
			r += b
		}
		return r, nil
	}
	return nil, fmt.Errorf("unknown operator %q", op)
}

func floats(op string, a, b float64) (Value, error) {
	switch op {
	case "+":
		return a + b, nil
	case "-":
		return a - b, nil
	case "*":
		return a * b, nil
	case "**":
		return math.Pow(a, b), nil
	}
	if b == 0 {
		return nil, fmt.Errorf("division by zero")
	}
	switch op {
	case "/":
		return a / b, nil
	case "//":
		return math.Floor(a / b), nil
	case "%":
		r := math.Mod(a, b)
		if r != 0 && (r < 0) != (b < 0) {
			r += b
		}
		return r, nil
	}
	return nil, fmt.Errorf("unknown operator %q", op)
}
