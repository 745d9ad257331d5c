package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// filter is what stands after a bar; v is the value before it.
type filter func(c *Call, v Value) (Value, error)

var filters map[string]filter

func init() {
	text := func(f func(c *Call, t Text) (Value, error)) filter {
		return func(c *Call, v Value) (Value, error) {
			t, err := c.in.textOf(v)
			if err != nil {
				return nil, err
			}
			out, err := f(c, t)
			if t, ok := out.(Text); ok && err == nil {
				err = c.in.spend(len(t.S))
			}
			return out, err
		}
	}
	viaMethod := func(name string) filter {
		return text(func(c *Call, t Text) (Value, error) { return textMethods[name](c, t) })
	}
	filters = map[string]filter{
		"tojson":     toJSON,
		"from_json":  text(func(c *Call, t Text) (Value, error) { return fromJSON(c, t) }),
		"trim":       viaMethod("strip"),
		"upper":      viaMethod("upper"),
		"lower":      viaMethod("lower"),
		"title":      viaMethod("title"),
		"capitalize": viaMethod("capitalize"),
		"replace":    viaMethod("replace"),
		"format":     text(func(c *Call, t Text) (Value, error) { return c.in.percent(t, &List{Items: c.Args, tuple: true}) }),
		"string":     text(func(c *Call, t Text) (Value, error) { return t, nil }),
		"safe":       func(c *Call, v Value) (Value, error) { return v, nil },
		"escape":     text(escapeHTML), "e": text(escapeHTML),
		"indent":    text(indent),
		"wordcount": text(func(c *Call, t Text) (Value, error) { return int64(len(strings.Fields(t.S))), nil }),
		"length":    length, "count": length,
		"items": items,
		"default": func(c *Call, v Value) (Value, error) {
			_, undefined := v.(Undefined)
			if undefined || truth(c.arg(1, "boolean", false)) && !truth(v) {
				return c.arg(0, "default_value", Text{}), nil
			}
			return v, nil
		},
		"list": func(c *Call, v Value) (Value, error) {
			its, err := c.in.iterate(v)
			return &List{Items: slices.Clone(its)}, err
		},
		"first":   first,
		"last":    last,
		"reverse": reverse,
		"join":    join,
		"int":     toInt,
		"float":   toFloat,
		"abs": func(c *Call, v Value) (Value, error) {
			if f, isInt, ok := number(v); ok && !isInt {
				return math.Abs(f), nil
			}
			n, ok := intOf(v)
			if !ok || n == math.MinInt64 {
				return nil, fmt.Errorf("a number is needed")
			}
			return int64(max(n, -n)), nil
		},
		"round":   round,
		"sum":     sum,
		"min":     func(c *Call, v Value) (Value, error) { return extreme(c, v, -1) },
		"max":     func(c *Call, v Value) (Value, error) { return extreme(c, v, 1) },
		"sort":    sortFilter,
		"unique":  unique,
		"batch":   batch,
		"groupby": groupBy,
		"map":     mapFilter,
		"select":  selecting(false, true), "reject": selecting(false, false),
		"selectattr": selecting(true, true), "rejectattr": selecting(true, false),
		"dictsort": dictSort,
	}
	filters["d"] = filters["default"]
}

func fromJSON(c *Call, t Text) (Value, error) {
	if err := c.in.spend(32 * len(t.S)); err != nil {
		return nil, err
	}
	return FromJSON([]byte(t.S), t.flagAll())
}

func escapeHTML(_ *Call, t Text) (Value, error) {
	return t.each(strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", "'", "&#39;", `"`, "&#34;").Replace), nil
}

func indent(c *Call, t Text) (Value, error) {
	var by string
	switch w := c.arg(0, "width", int64(4)).(type) {
	case Text:
		by = w.S
	default:
		n, ok := intOf(w)
		if !ok || n > 1000 {
			return nil, fmt.Errorf("width is to be a small number or a string")
		}
		by = strings.Repeat(" ", max(n, 0))
	}
	onFirst, onBlank := truth(c.arg(1, "first", false)), truth(c.arg(2, "blank", false))
	if err := c.in.spend(len(t.S) + len(by)*(1+strings.Count(t.S, "\n"))); err != nil {
		return nil, err
	}
	var b builder
	for i, line := range t.split("\n", -1, false) {
		if i > 0 {
			b.addString("\n", Trusted)
		}
		if (i > 0 || onFirst) && (i == 0 || onBlank || line.S != "") {
			b.addString(by, Trusted)
		}
		b.add(line)
	}
	return b.text(), nil
}

func length(c *Call, v Value) (Value, error) {
	switch v := v.(type) {
	case Text:
		return int64(v.length()), c.in.step(len(v.S) / 8)
	case *List:
		return int64(len(v.Items)), nil
	case *Dict:
		return int64(len(v.keys)), nil
	case Undefined:
		return int64(0), nil
	}
	return nil, fmt.Errorf("a %s has no length", typeName(v))
}

// items lists the pairs of a mapping. A string has none: the arguments of a tool call
// that are not JSON come as text and must not fail the template.
func items(c *Call, v Value) (Value, error) {
	switch v := v.(type) {
	case *Dict:
		return pairs(c, v)
	case Undefined, Text:
		return NewList(), nil
	}
	return nil, fmt.Errorf("a mapping is needed, not %s", typeName(v))
}

func first(c *Call, v Value) (Value, error) {
	its, err := c.in.iterate(v)
	if err != nil || len(its) == 0 {
		return Undefined{"the first item of nothing"}, err
	}
	return its[0], nil
}

func last(c *Call, v Value) (Value, error) {
	its, err := c.in.iterate(v)
	if err != nil || len(its) == 0 {
		return Undefined{"the last item of nothing"}, err
	}
	return its[len(its)-1], nil
}

func reverse(c *Call, v Value) (Value, error) {
	its, err := c.in.iterate(v)
	if err != nil {
		return nil, err
	}
	its = slices.Clone(its)
	slices.Reverse(its)
	if _, ok := v.(Text); ok {
		return joinTexts(c, its, Text{}, true)
	}
	return &List{Items: its}, c.in.spend(16 * len(its))
}

func join(c *Call, v Value) (Value, error) {
	its, err := c.in.iterate(v)
	if err != nil {
		return nil, err
	}
	if its, err = attributes(c, its); err != nil {
		return nil, err
	}
	sep, err := c.in.textOf(c.arg(0, "d", Text{}))
	if err != nil {
		return nil, err
	}
	return joinTexts(c, its, sep, false)
}

// attributes replaces items by their attribute, if one is asked for by name.
func attributes(c *Call, its []Value) ([]Value, error) {
	path, ok := c.named("attribute")
	if !ok || path == nil {
		return its, nil
	}
	out := make([]Value, len(its))
	for i, x := range its {
		v, err := attributeOf(c, x, path)
		if err != nil {
			return nil, err
		}
		out[i] = v
	}
	return out, c.in.spend(16 * len(its))
}

// attributeOf follows a path such as "function.name" or an index.
func attributeOf(c *Call, v Value, path Value) (Value, error) {
	t, ok := path.(Text)
	if !ok {
		return c.in.index(v, path, &indexExpr{of: &literal{}, i: &literal{path}})
	}
	for _, part := range strings.Split(t.S, ".") {
		var key Value = Text{S: part}
		if n, err := strconv.ParseInt(part, 10, 64); err == nil {
			key = n
		}
		var err error
		if v, err = c.in.index(v, key, &indexExpr{of: &literal{}, i: &literal{key}}); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func toInt(c *Call, v Value) (Value, error) {
	fallback := c.arg(0, "default", int64(0))
	switch v := v.(type) {
	case Text:
		s := strings.ReplaceAll(strings.TrimSpace(v.S), "_", "")
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n, nil
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || math.Abs(f) >= 1<<63 || f != f {
			return fallback, nil
		}
		return int64(f), nil
	case float64:
		if math.Abs(v) >= 1<<63 || v != v {
			return fallback, nil
		}
		return int64(v), nil
	case BigInt:
		return v, nil
	}
	if n, ok := intOf(v); ok {
		return int64(n), nil
	}
	return fallback, nil
}

func toFloat(c *Call, v Value) (Value, error) {
	if f, _, ok := number(v); ok {
		return f, nil
	}
	if t, ok := v.(Text); ok {
		if f, err := strconv.ParseFloat(strings.TrimSpace(t.S), 64); err == nil {
			return f, nil
		}
	}
	return c.arg(0, "default", 0.0), nil
}

func round(c *Call, v Value) (Value, error) {
	f, _, ok := number(v)
	if !ok {
		return nil, fmt.Errorf("a number is needed, not %s", typeName(v))
	}
	n, err := intArg(c, 0, "precision", 0)
	if err != nil || n < 0 || n > 15 {
		return nil, fmt.Errorf("precision is to be 0 to 15")
	}
	how, err := textArg(c, 1, "method")
	if err != nil {
		return nil, err
	}
	scale := math.Pow(10, float64(n))
	switch how.S {
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	return math.RoundToEven(f*scale) / scale, nil
}

func sum(c *Call, v Value) (Value, error) {
	its, err := c.in.iterate(v)
	if err != nil {
		return nil, err
	}
	if its, err = attributes(c, its); err != nil {
		return nil, err
	}
	total := c.arg(1, "start", int64(0))
	for _, x := range its {
		if total, err = c.in.binary("+", total, x); err != nil {
			return nil, err
		}
	}
	return total, nil
}

// sortKey folds the case of strings, as sort, unique, min and max do by default.
func sortKey(c *Call, v Value) Value {
	if t, ok := v.(Text); ok && !truth(c.arg(-1, "case_sensitive", false)) {
		return Text{S: strings.ToLower(t.S)}
	}
	return v
}

func extreme(c *Call, v Value, sign int) (Value, error) {
	its, err := c.in.iterate(v)
	if err != nil || len(its) == 0 {
		return Undefined{"the extreme of nothing"}, err
	}
	keys, err := attributes(c, its)
	if err != nil {
		return nil, err
	}
	best := 0
	for i := range its {
		d, err := c.in.order(sortKey(c, keys[i]), sortKey(c, keys[best]), 0)
		if err != nil {
			return nil, err
		}
		if d*sign > 0 {
			best = i
		}
	}
	return its[best], nil
}

// sorted returns its in ascending order of keys, or descending.
func sorted(c *Call, its, keys []Value, down bool) (*List, error) {
	if err := c.in.step(8 * len(its)); err != nil {
		return nil, err
	}
	index := make([]int, len(its))
	for i := range index {
		index[i] = i
	}
	var bad error
	slices.SortStableFunc(index, func(i, j int) int {
		d, err := c.in.order(sortKey(c, keys[i]), sortKey(c, keys[j]), 0)
		if err != nil {
			bad = err
		}
		if down {
			return -d
		}
		return d
	})
	out := NewList()
	for _, i := range index {
		out.Items = append(out.Items, its[i])
	}
	return out, bad
}

func sortFilter(c *Call, v Value) (Value, error) {
	its, err := c.in.iterate(v)
	if err != nil {
		return nil, err
	}
	keys, err := attributes(c, its)
	if err != nil {
		return nil, err
	}
	return sorted(c, its, keys, truth(c.arg(0, "reverse", false)))
}

func dictSort(c *Call, v Value) (Value, error) {
	d, ok := v.(*Dict)
	if !ok {
		return nil, fmt.Errorf("a mapping is needed, not %s", typeName(v))
	}
	all, err := pairs(c, d)
	if err != nil {
		return nil, err
	}
	keys := d.keys
	if t, ok := c.arg(1, "by", nil).(Text); ok && t.S == "value" {
		keys = d.vals
	}
	if truth(c.arg(0, "case_sensitive", false)) {
		c.Names, c.Named = append(c.Names, "case_sensitive"), append(c.Named, true)
	}
	return sorted(c, all.(*List).Items, keys, truth(c.arg(2, "reverse", false)))
}

func unique(c *Call, v Value) (Value, error) {
	its, err := c.in.iterate(v)
	if err != nil {
		return nil, err
	}
	keys, err := attributes(c, its)
	if err != nil {
		return nil, err
	}
	seen := NewDict()
	out := NewList()
	for i, x := range its {
		k := sortKey(c, keys[i])
		if _, ok := seen.find(k); ok {
			continue
		}
		if !seen.put(k, true) {
			return nil, fmt.Errorf("a %s cannot be compared for this", typeName(k))
		}
		out.Items = append(out.Items, x)
	}
	return out, c.in.spend(64 * len(its))
}

func batch(c *Call, v Value) (Value, error) {
	its, err := c.in.iterate(v)
	if err != nil {
		return nil, err
	}
	n, err := intArg(c, 0, "linecount", 0)
	if err != nil || n < 1 {
		return nil, fmt.Errorf("a count of at least 1 is needed")
	}
	out := NewList()
	for part := range slices.Chunk(its, n) {
		out.Items = append(out.Items, &List{Items: slices.Clone(part)})
	}
	return out, c.in.spend(32 * len(its))
}

func groupBy(c *Call, v Value) (Value, error) {
	its, err := c.in.iterate(v)
	if err != nil {
		return nil, err
	}
	path := c.arg(0, "attribute", Text{})
	keys := make([]Value, len(its))
	for i, x := range its {
		if keys[i], err = attributeOf(c, x, path); err != nil {
			return nil, err
		}
	}
	groups := NewDict()
	for i, x := range its {
		g, ok := groups.find(keys[i])
		if !ok {
			g = NewList()
			if !groups.put(keys[i], g) {
				return nil, fmt.Errorf("a %s cannot be a group", typeName(keys[i]))
			}
		}
		g.(*List).Items = append(g.(*List).Items, x)
	}
	all, err := pairs(c, groups)
	if err != nil {
		return nil, err
	}
	return sorted(c, all.(*List).Items, groups.keys, false)
}

func mapFilter(c *Call, v Value) (Value, error) {
	if v == nil { // None maps to nothing, as in Jinja
		return NewList(), nil
	}
	its, err := c.in.iterate(v)
	if err != nil {
		return nil, err
	}
	out := &List{Items: make([]Value, len(its))}
	if err := c.in.spend(16 * len(its)); err != nil {
		return nil, err
	}
	if path, ok := c.named("attribute"); ok {
		fallback, has := c.named("default")
		for i, x := range its {
			if out.Items[i], err = attributeOf(c, x, path); err != nil {
				return nil, err
			}
			if _, undefined := out.Items[i].(Undefined); undefined && has {
				out.Items[i] = fallback
			}
		}
		return out, nil
	}
	name, err := textArg(c, 0, "filter")
	if err != nil {
		return nil, err
	}
	f, ok := filters[name.S]
	if !ok {
		return nil, fmt.Errorf("there is no filter %q", name.S)
	}
	inner := &Call{in: c.in, Names: c.Names, Named: c.Named}
	if len(c.Args) > 0 {
		inner.Args = c.Args[1:]
	}
	for i, x := range its {
		if out.Items[i], err = f(inner, x); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// selecting is select, reject, selectattr and rejectattr.
func selecting(byAttr, keep bool) filter {
	return func(c *Call, v Value) (Value, error) {
		if v == nil {
			return NewList(), nil
		}
		its, err := c.in.iterate(v)
		if err != nil {
			return nil, err
		}
		args := c.Args
		var path Value
		if byAttr {
			if len(args) == 0 {
				return nil, fmt.Errorf("the name of an attribute is needed")
			}
			path, args = args[0], args[1:]
		}
		pass := func(_ *Call, v Value) (bool, error) { return truth(v), nil }
		if len(args) > 0 {
			name, _ := args[0].(Text)
			t, ok := tests[name.S]
			if !ok {
				return nil, fmt.Errorf("there is no test %q", name.S)
			}
			pass, args = t.run, args[1:]
		}
		inner := &Call{in: c.in, Args: args}
		out := NewList()
		for _, x := range its {
			y := x
			if byAttr {
				if y, err = attributeOf(c, x, path); err != nil {
					return nil, err
				}
			}
			ok, err := pass(inner, y)
			if err != nil {
				return nil, err
			}
			if ok == keep {
				out.Items = append(out.Items, x)
			}
		}
		return out, c.in.spend(16 * len(its))
	}
}
