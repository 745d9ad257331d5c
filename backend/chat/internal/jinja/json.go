package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// FromJSON turns JSON into a value. Objects keep the order of their keys; all strings,
// keys too, are marked with flag.
func FromJSON(raw []byte, flag Flag) (Value, error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := decodeJSON(d, flag, 0)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("more than one JSON value")
	}
	return v, nil
}

func decodeJSON(d *json.Decoder, flag Flag, depth int) (Value, error) {
	if depth > maxValueDepth {
		return nil, limitf("JSON nested more than %d deep", maxValueDepth)
	}
	t, err := d.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '[' {
			l := NewList()
			for d.More() {
				v, err := decodeJSON(d, flag, depth+1)
				if err != nil {
					return nil, err
				}
				l.Items = append(l.Items, v)
			}
			_, err := d.Token()
			return l, err
		}
		out := NewDict()
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := decodeJSON(d, flag, depth+1)
			if err != nil {
				return nil, err
			}
			out.put(Marked(k.(string), flag), v)
		}
		_, err := d.Token()
		return out, err
	case json.Number:
		return numberOf(t.String()), nil
	case string:
		return Marked(t, flag), nil
	case bool:
		return t, nil
	}
	return nil, nil
}

// numberOf reads a JSON number as Python does: an int without point and exponent.
func numberOf(s string) Value {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	if !strings.ContainsAny(s, ".eE") {
		return BigInt(s)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil { // too large for a float: kept as written
		return BigInt(s)
	}
	return f
}

// jsonStyle are the arguments of tojson.
type jsonStyle struct {
	indent    string // of one level; with pretty
	pretty    bool
	item, key string // separators
	ascii     bool
	sort      bool
}

func toJSON(c *Call, v Value) (Value, error) {
	st := jsonStyle{item: ", ", key: ": "}
	st.ascii = truth(c.arg(0, "ensure_ascii", false))
	st.sort = truth(c.arg(-1, "sort_keys", false))
	switch x := c.arg(1, "indent", nil).(type) {
	case nil:
	case Text:
		st.indent, st.pretty, st.item = x.S, true, ","
	default:
		n, ok := intOf(x)
		if !ok || n > 64 {
			return nil, fmt.Errorf("indent is to be a small number")
		}
		st.indent, st.pretty, st.item = strings.Repeat(" ", max(n, 0)), true, ","
	}
	if l, ok := c.arg(2, "separators", nil).(*List); ok && len(l.Items) == 2 {
		item, ok1 := l.Items[0].(Text)
		key, ok2 := l.Items[1].(Text)
		if ok1 && ok2 {
			st.item, st.key = item.S, key.S
		}
	}
	var b builder
	if err := st.encode(c.in, &b, v, 0); err != nil {
		return nil, err
	}
	return b.text(), c.in.spend(len(b.s))
}

func (st *jsonStyle) newline(b *builder, depth int) {
	if st.pretty {
		b.addString("\n"+strings.Repeat(st.indent, depth), Trusted)
	}
}

// encode appends v as Python's json.dumps would.
func (st *jsonStyle) encode(in *interp, b *builder, v Value, depth int) error {
	if depth > maxValueDepth {
		return limitf("a value is nested more than %d deep", maxValueDepth)
	}
	if err := in.step(1 + depth/8); err != nil {
		return err
	}
	put := func(s string) { b.addString(s, Trusted) }
	switch v := v.(type) {
	case nil:
		put("null")
	case bool:
		put(strconv.FormatBool(v))
	case int64:
		put(strconv.FormatInt(v, 10))
	case BigInt:
		put(string(v))
	case float64:
		switch {
		case math.IsNaN(v):
			put("NaN")
		case math.IsInf(v, 0):
			put(strings.Replace(formatFloat(v), "inf", "Infinity", 1))
		default:
			put(formatFloat(v))
		}
	case Text:
		if err := in.spend(len(v.S)); err != nil {
			return err
		}
		b.addString(quoteJSON(v.S, st.ascii), v.flagAll())
	case *List:
		if len(v.Items) == 0 {
			put("[]")
			return nil
		}
		put("[")
		for i, x := range v.Items {
			if i > 0 {
				put(st.item)
			}
			st.newline(b, depth+1)
			if err := st.encode(in, b, x, depth+1); err != nil {
				return err
			}
		}
		st.newline(b, depth)
		put("]")
	case *Dict:
		return st.encodeDict(in, b, v, depth)
	case Undefined:
		return fmt.Errorf("%s is undefined and has no JSON", v.Name)
	default:
		return fmt.Errorf("a %s has no JSON", typeName(v))
	}
	return nil
}

func (st *jsonStyle) encodeDict(in *interp, b *builder, d *Dict, depth int) error {
	if len(d.keys) == 0 {
		b.addString("{}", Trusted)
		return nil
	}
	order := make([]int, len(d.keys))
	names := make([]Text, len(d.keys))
	for i, k := range d.keys {
		order[i] = i
		switch k := k.(type) {
		case Text:
			names[i] = k
		case nil, bool, int64, float64, BigInt:
			var kb builder
			if err := st.encode(in, &kb, k, depth); err != nil {
				return err
			}
			names[i] = kb.text()
		default:
			return fmt.Errorf("a %s cannot be a key in JSON", typeName(k))
		}
	}
	if st.sort {
		slices.SortStableFunc(order, func(i, j int) int { return strings.Compare(names[i].S, names[j].S) })
	}
	b.addString("{", Trusted)
	for n, i := range order {
		if n > 0 {
			b.addString(st.item, Trusted)
		}
		st.newline(b, depth+1)
		b.addString(quoteJSON(names[i].S, st.ascii), names[i].flagAll())
		b.addString(st.key, Trusted)
		if err := st.encode(in, b, d.vals[i], depth+1); err != nil {
			return err
		}
	}
	st.newline(b, depth)
	b.addString("}", Trusted)
	return nil
}

// quoteJSON writes a JSON string as Python does: no HTML escapes; beyond ASCII only
// when asked.
func quoteJSON(s string, ascii bool) string {
	const hex = "0123456789abcdef"
	b := make([]byte, 0, len(s)+2)
	b = append(b, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case r == '\f':
			b = append(b, `\f`...)
		case r == '\b':
			b = append(b, `\b`...)
		case r < 0x20 || ascii && r > 0x7e && r < 0x10000:
			b = append(b, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		case ascii && r >= 0x10000:
			for _, u := range utf16.Encode([]rune{r}) {
				b = append(b, '\\', 'u', hex[u>>12&15], hex[u>>8&15], hex[u>>4&15], hex[u&15])
			}
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return string(append(b, '"'))
}
