package jinja

import (
	"fmt"
	"strconv"
	"strings"
)

// format is Python's str.format for {}, {0}, {name}; specifications after a colon are
// refused.
func (in *interp) format(t Text, c *Call) (Value, error) {
	var b builder
	next := 0
	for i := 0; i < len(t.S); {
		j := strings.IndexAny(t.S[i:], "{}")
		if j < 0 {
			b.add(t.slice(i, len(t.S)))
			break
		}
		j += i
		b.add(t.slice(i, j))
		if j+1 < len(t.S) && t.S[j+1] == t.S[j] { // {{ or }}
			b.add(t.slice(j, j+1))
			i = j + 2
			continue
		}
		end := strings.IndexByte(t.S[j:], '}')
		if t.S[j] == '}' || end < 0 {
			return nil, fmt.Errorf("format: a single %q", t.S[j])
		}
		field := t.S[j+1 : j+end]
		i = j + end + 1
		if strings.ContainsAny(field, ":!.[") {
			return nil, fmt.Errorf("format: {%s} is not supported, only plain fields are", field)
		}
		var v Value
		n, err := strconv.Atoi(field)
		switch {
		case field == "":
			n = next
			next++
			fallthrough
		case err == nil:
			if n < 0 || n >= len(c.Args) {
				return nil, fmt.Errorf("format: there is no argument %d", n)
			}
			v = c.Args[n]
		default:
			x, ok := c.named(field)
			if !ok {
				return nil, fmt.Errorf("format: there is no argument %q", field)
			}
			v = x
		}
		if err := in.str(&b, v); err != nil {
			return nil, err
		}
		if err := in.spend(len(b.s)); err != nil {
			return nil, err
		}
	}
	return b.text(), nil
}

// percent is Python's t % v for %s, %d, %r, %f and %%, with flags for numbers.
func (in *interp) percent(t Text, v Value) (Value, error) {
	args := []Value{v}
	if l, ok := v.(*List); ok && l.tuple {
		args = l.Items
	}
	var b builder
	used := 0
	for i := 0; i < len(t.S); {
		j := strings.IndexByte(t.S[i:], '%')
		if j < 0 {
			b.add(t.slice(i, len(t.S)))
			break
		}
		j += i
		b.add(t.slice(i, j))
		end := j + 1
		for end < len(t.S) && strings.IndexByte("-+ 0#.123456789", t.S[end]) >= 0 {
			end++
		}
		if end == len(t.S) || end-j > 8 {
			return nil, fmt.Errorf("incomplete format %q", t.S[j:])
		}
		verb, spec := t.S[end], t.S[j:end]
		i = end + 1
		if verb == '%' {
			b.add(t.slice(j, j+1))
			continue
		}
		if used == len(args) {
			return nil, fmt.Errorf("not enough values for the format")
		}
		x := args[used]
		used++
		switch verb {
		case 's':
			if err := in.str(&b, x); err != nil {
				return nil, err
			}
		case 'r':
			if err := in.repr(&b, x, 0); err != nil {
				return nil, err
			}
		case 'd', 'i', 'f', 'x':
			f, isInt, ok := number(x)
			if !ok || len(spec) > 6 {
				return nil, fmt.Errorf("%%%c needs a number", verb)
			}
			if verb == 'f' {
				b.addString(fmt.Sprintf(spec+"f", f), Trusted)
				continue
			}
			n := int64(f)
			if isInt {
				m, _ := intOf(x)
				n = int64(m)
			}
			if verb == 'i' {
				verb = 'd'
			}
			b.addString(fmt.Sprintf(spec+string(verb), n), Trusted)
		default:
			return nil, fmt.Errorf("format %%%c is not supported", verb)
		}
		if err := in.spend(len(b.s)); err != nil {
			return nil, err
		}
	}
	if used < len(args) && len(args) > 1 {
		return nil, fmt.Errorf("too many values for the format")
	}
	return b.text(), nil
}
