package jinja

import (
	"fmt"
	"strings"
)

// test is what stands after "is".
type test struct {
	args int // wanted after the name; with one or more, parentheses may be left out
	run  func(c *Call, v Value) (bool, error)
}

var tests map[string]test

func init() {
	plain := func(f func(v Value) bool) test {
		return test{0, func(_ *Call, v Value) (bool, error) { return f(v), nil }}
	}
	compare := func(op string) test {
		return test{1, func(c *Call, v Value) (bool, error) {
			if len(c.Args) != 1 {
				return false, fmt.Errorf("needs one value to compare with")
			}
			return c.in.compare(op, v, c.Args[0])
		}}
	}
	divisible := func(c *Call, v Value, by Value) (bool, error) {
		n, ok1 := intOf(v)
		d, ok2 := intOf(by)
		if !ok1 || !ok2 || d == 0 {
			return false, fmt.Errorf("needs whole numbers")
		}
		return n%d == 0, nil
	}
	isA := func(types ...string) test {
		return plain(func(v Value) bool {
			for _, t := range types {
				if typeName(v) == t {
					return true
				}
			}
			return false
		})
	}
	tests = map[string]test{
		"defined":   plain(func(v Value) bool { _, ok := v.(Undefined); return !ok }),
		"undefined": plain(func(v Value) bool { _, ok := v.(Undefined); return ok }),
		"none":      plain(func(v Value) bool { return v == nil }),
		"true":      plain(func(v Value) bool { return v == true }),
		"false":     plain(func(v Value) bool { return v == false }),
		"boolean":   isA("bool"),
		"string":    isA("str"),
		"mapping":   isA("dict"),
		"integer":   isA("int"),
		"float":     isA("float"),
		"number":    isA("int", "float", "bool"),
		"sequence":  isA("list", "tuple", "str", "dict", "undefined"),
		"iterable":  isA("list", "tuple", "str", "dict", "undefined"),
		"callable":  isA("function"),
		"lower":     plain(func(v Value) bool { t, ok := v.(Text); return ok && hasCase(t.S) && strings.ToLower(t.S) == t.S }),
		"upper":     plain(func(v Value) bool { t, ok := v.(Text); return ok && hasCase(t.S) && strings.ToUpper(t.S) == t.S }),
		"odd": {0, func(c *Call, v Value) (bool, error) {
			ok, err := divisible(c, v, int64(2))
			return !ok && err == nil, err
		}},
		"even": {0, func(c *Call, v Value) (bool, error) { return divisible(c, v, int64(2)) }},
		"divisibleby": {1, func(c *Call, v Value) (bool, error) {
			return divisible(c, v, c.arg(0, "num", nil))
		}},
		"sameas": {1, func(c *Call, v Value) (bool, error) {
			w := c.arg(0, "other", nil)
			return typeName(v) == typeName(w) && c.in.equal(v, w), nil
		}},
		"filter": plain(func(v Value) bool { t, ok := v.(Text); _, is := filters[t.S]; return ok && is }),
		"test":   plain(func(v Value) bool { t, ok := v.(Text); _, is := tests[t.S]; return ok && is }),
		"in":     compare("in"),
	}
	for op, names := range map[string][]string{
		"==": {"eq", "equalto"}, "!=": {"ne"}, "<": {"lt", "lessthan"}, "<=": {"le"}, ">": {"gt", "greaterthan"}, ">=": {"ge"},
	} {
		tests[op] = compare(op)
		for _, n := range names {
			tests[n] = compare(op)
		}
	}
}

func hasCase(s string) bool { return strings.ToLower(s) != strings.ToUpper(s) }
