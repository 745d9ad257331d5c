package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Value is one of: nil (None), Undefined, bool, int64, float64, BigInt, Text, *List,
// *Dict, *Namespace, *Func, and internal kinds.
type Value any

// Undefined is what a missing name or key gives. It prints as nothing and is false;
// most other uses are errors that name it.
type Undefined struct{ Name string }

// BigInt is a number too large for int64 or float64, as written. It can be printed and
// compared, not computed with.
type BigInt string

// List is a list or a tuple.
type List struct {
	Items []Value
	tuple bool
}

// NewList makes a list of values.
func NewList(items ...Value) *List { return &List{Items: items} }

// Dict is a mapping that keeps its keys in the order in which they were set.
type Dict struct {
	keys  []Value
	vals  []Value
	index map[string]int

	// Literal is what the dict prints as, if set: the JSON it was read from. Without
	// it a dict prints as Python would.
	Literal *Text
}

// NewDict makes an empty dict.
func NewDict() *Dict { return &Dict{index: map[string]int{}} }

// Set puts value under a string key.
func (d *Dict) Set(key string, value Value) { d.put(Text{S: key}, value) }

// Get returns the value under a string key.
func (d *Dict) Get(key string) (Value, bool) { return d.find(Text{S: key}) }

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.keys) }

// hashKey is the identity of a key, as in Python 1 == 1.0 == True.
func hashKey(v Value) (string, bool) {
	switch v := v.(type) {
	case Text:
		return "s" + v.S, true
	case bool:
		if v {
			return "i1", true
		}
		return "i0", true
	case int64:
		return "i" + strconv.FormatInt(v, 10), true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<62 {
			return "i" + strconv.FormatInt(int64(v), 10), true
		}
		return "f" + strconv.FormatFloat(v, 'g', -1, 64), true
	case BigInt:
		return "i" + string(v), true
	case nil:
		return "n", true
	case *List: // a tuple of plain values
		if !v.tuple {
			return "", false
		}
		var b strings.Builder
		for _, x := range v.Items {
			if _, nested := x.(*List); nested {
				return "", false
			}
			k, ok := hashKey(x)
			if !ok {
				return "", false
			}
			fmt.Fprintf(&b, "%d:%s", len(k), k)
		}
		return "t" + b.String(), true
	}
	return "", false
}

func (d *Dict) put(key, value Value) bool {
	h, ok := hashKey(key)
	if !ok {
		return false
	}
	if i, ok := d.index[h]; ok {
		d.vals[i] = value
		return true
	}
	d.index[h] = len(d.keys)
	d.keys = append(d.keys, key)
	d.vals = append(d.vals, value)
	return true
}

func (d *Dict) find(key Value) (Value, bool) {
	h, ok := hashKey(key)
	if !ok {
		return nil, false
	}
	i, ok := d.index[h]
	if !ok {
		return nil, false
	}
	return d.vals[i], true
}

func (d *Dict) remove(key Value) {
	h, _ := hashKey(key)
	i, ok := d.index[h]
	if !ok {
		return
	}
	d.keys = slices.Delete(d.keys, i, i+1)
	d.vals = slices.Delete(d.vals, i, i+1)
	delete(d.index, h)
	for k, j := range d.index {
		if j > i {
			d.index[k] = j - 1
		}
	}
}

// Namespace is an object whose attributes a template may set.
type Namespace struct{ attrs *Dict }

// Func is a function that templates can call.
type Func struct {
	Name string
	Call func(in *Call) (Value, error)
}

// typeName is Python's name of v's type, for messages.
func typeName(v Value) string {
	switch v := v.(type) {
	case nil:
		return "None"
	case Undefined:
		return "undefined"
	case bool:
		return "bool"
	case int64, BigInt:
		return "int"
	case float64:
		return "float"
	case Text:
		return "str"
	case *List:
		if v.tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "dict"
	case *Namespace:
		return "namespace"
	case *Func, *macro:
		return "function"
	}
	return "object"
}

// truth is Python's bool(v).
func truth(v Value) bool {
	switch v := v.(type) {
	case nil, Undefined:
		return false
	case bool:
		return v
	case int64:
		return v != 0
	case float64:
		return v != 0
	case Text:
		return v.S != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

// number returns v as a float, and whether it is a number at all.
func number(v Value) (f float64, isInt, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true, true
		}
		return 0, true, true
	case int64:
		return float64(v), true, true
	case float64:
		return v, false, true
	case BigInt:
		f, _ := strconv.ParseFloat(string(v), 64)
		return f, false, true
	}
	return 0, false, false
}

// maxValueDepth bounds how deep values are compared, printed and encoded.
const maxValueDepth = 200

// equal is Python's ==. Values nested deeper than the bound count as unequal; so do
// all when the steps have run out, which the next step reports.
func (in *interp) equal(a, b Value) bool { return in.equalAt(a, b, 0) }

func (in *interp) equalAt(a, b Value, depth int) bool {
	if depth > maxValueDepth || in.step(1) != nil {
		return false
	}
	if x, _, ok := number(a); ok {
		y, _, ok := number(b)
		if i, isInt := a.(int64); isInt {
			if j, isInt := b.(int64); isInt {
				return i == j
			}
		}
		return ok && x == y
	}
	switch a := a.(type) {
	case nil:
		return b == nil
	case Undefined:
		_, ok := b.(Undefined)
		return ok
	case Text:
		b, ok := b.(Text)
		return ok && a.S == b.S
	case *List:
		b, ok := b.(*List)
		return ok && a.tuple == b.tuple && slices.EqualFunc(a.Items, b.Items, func(x, y Value) bool { return in.equalAt(x, y, depth+1) })
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for i, k := range a.keys {
			v, ok := b.find(k)
			if !ok || !in.equalAt(a.vals[i], v, depth+1) {
				return false
			}
		}
		return true
	}
	return a == b
}

// str appends what v prints as, Python's str(v).
func (in *interp) str(b *builder, v Value) error {
	if t, ok := v.(Text); ok {
		b.add(t)
		return nil
	}
	return in.repr(b, v, 0)
}

// textOf is what v prints as.
func (in *interp) textOf(v Value) (Text, error) {
	if t, ok := v.(Text); ok {
		return t, nil
	}
	var b builder
	if err := in.str(&b, v); err != nil {
		return Text{}, err
	}
	return b.text(), in.spend(len(b.s))
}

// repr appends Python's repr(v).
func (in *interp) repr(b *builder, v Value, depth int) error {
	if depth > maxValueDepth {
		return limitf("a value is nested more than %d deep", maxValueDepth)
	}
	if err := in.step(1); err != nil {
		return err
	}
	put := func(s string) { b.addString(s, Trusted) }
	switch v := v.(type) {
	case nil:
		put("None")
	case Undefined:
	case bool:
		if v {
			put("True")
		} else {
			put("False")
		}
	case int64:
		put(strconv.FormatInt(v, 10))
	case BigInt:
		put(string(v))
	case float64:
		put(formatFloat(v))
	case Text:
		if err := in.spend(len(v.S)); err != nil {
			return err
		}
		b.addString(quote(v.S), v.flagAll())
	case *List:
		open, end := "[", "]"
		if v.tuple {
			open, end = "(", ")"
			if len(v.Items) == 1 {
				end = ",)"
			}
		}
		put(open)
		for i, x := range v.Items {
			if i > 0 {
				put(", ")
			}
			if err := in.repr(b, x, depth+1); err != nil {
				return err
			}
		}
		put(end)
	case *Dict:
		if v.Literal != nil {
			b.add(*v.Literal)
			return in.spend(len(v.Literal.S))
		}
		put("{")
		for i, k := range v.keys {
			if i > 0 {
				put(", ")
			}
			if err := in.repr(b, k, depth+1); err != nil {
				return err
			}
			put(": ")
			if err := in.repr(b, v.vals[i], depth+1); err != nil {
				return err
			}
		}
		put("}")
	default:
		put("<" + typeName(v) + ">")
	}
	return nil
}

// formatFloat is Python's repr of a float.
func formatFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	exp, _ := strconv.Atoi(s[strings.IndexByte(s, 'e')+1:])
	if exp < -4 || exp >= 16 {
		return s
	}
	s = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quote is Python's repr of a string.
func quote(s string) string {
	q := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		q = '"'
	}
	b := []byte{q}
	for _, r := range s {
		switch {
		case r == rune(q) || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == ' ' || unicode.IsPrint(r):
			b = append(b, string(r)...)
		case r < 0x100:
			b = fmt.Appendf(b, `\x%02x`, r)
		case r < 0x10000:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = fmt.Appendf(b, `\U%08x`, r)
		}
	}
	return string(append(b, q))
}
