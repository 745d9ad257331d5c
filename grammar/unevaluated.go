package grammar

import "slices"

// unevaluatedProperties and unevaluatedItems depend on which subschemas hold.
// A schema that uses them is divided into cases, each of which fixes the
// subschemas that matter: within a case the properties and items that were
// looked at are known.

// evalCase is a formula and what a value that satisfies it has had looked at.
type evalCase struct {
	f     fid
	props evalProps
	items evalItems
}

type evalProps struct {
	all   bool
	names []string
	langs []nodeID
}

type evalItems struct {
	all      bool
	prefix   int32
	contains []fid // items that satisfy one of these
}

func (a *evalCase) plain() bool {
	return !a.props.all && len(a.props.names)+len(a.props.langs) == 0 && !a.items.all && a.items.prefix == 0 && len(a.items.contains) == 0
}

const (
	maxEvalCases = 256
	maxEvalDepth = 40
	maxEvalAnyOf = 6
)

// evalProduct combines the cases of two schemas that hold together.
func (c *compiler) evalProduct(a, b []evalCase) []evalCase {
	var out []evalCase
	for _, x := range a {
		for _, y := range b {
			f := c.fs.and(x.f, y.f)
			if f == fFalse {
				continue
			}
			out = append(out, evalCase{
				f: f,
				props: evalProps{x.props.all || y.props.all, slices.Concat(x.props.names, y.props.names),
					slices.Concat(x.props.langs, y.props.langs)},
				items: evalItems{x.items.all || y.items.all, max(x.items.prefix, y.items.prefix), slices.Concat(x.items.contains, y.items.contains)},
			})
		}
	}
	if len(out) > maxEvalCases {
		failf(ErrTooLarge, "schema", "", "unevaluatedProperties", "too many cases of what is evaluated")
	}
	return out
}

// readCases is the formula of a schema with unevaluated keywords.
func (c *compiler) readCases(s *schema) fid {
	var list []fid
	for _, x := range c.evalCases(s, 0) {
		list = append(list, x.f)
	}
	return c.fs.or(list...)
}

// evalCases divides a schema into cases.
func (c *compiler) evalCases(s *schema, depth int) []evalCase {
	if depth > maxEvalDepth {
		c.refuse(ErrUnsupported, s, "", "unevaluated keywords over references that lead back")
	}
	switch s.v.kind {
	case 't':
		return []evalCase{{f: fTrue}}
	case 'f':
		return nil
	case '{':
	default:
		c.refuse(ErrInvalid, s, "", "a schema is an object or a boolean")
	}
	fs := c.fs
	sub := func(v *value) *schema {
		t := c.doc.byValue[v]
		if t == nil {
			c.refuse(ErrInvalid, s, "", "a schema is an object or a boolean")
		}
		return t
	}
	cases := func(v *value) []evalCase { return c.evalCases(sub(v), depth+1) }
	plain := func(f fid) []evalCase { return []evalCase{{f: f}} }
	out := plain(fTrue)
	for i, k := range s.v.keys {
		v := s.v.list[i]
		if k == "unevaluatedProperties" || k == "unevaluatedItems" || k == "then" || k == "else" {
			continue
		}
		f := c.keyword(s, k, v) // also finds faults
		more := plain(f)
		switch k {
		case "properties":
			more[0].props.names = v.keys
		case "patternProperties":
			for _, p := range v.keys {
				more[0].props.langs = append(more[0].props.langs, c.keyPattern(s, p))
			}
		case "additionalProperties":
			more[0].props.all = true
		case "prefixItems":
			more[0].items.prefix = int32(len(v.list))
		case "items":
			if v.kind == '[' {
				more[0].items.prefix = int32(len(v.list))
			} else {
				more[0].items.all = true
			}
		case "additionalItems":
			more[0].items.all = s.v.get("items") != nil && s.v.get("items").kind == '['
		case "contains":
			if s.res.draft >= draft2020 {
				more[0].items.contains = []fid{c.sub(v)}
			}
		case "$ref", "$dynamicRef":
			more = c.evalCases(c.doc.find(s, v.str, k), depth+1)
		case "allOf":
			more = plain(fTrue)
			for _, x := range v.list {
				more = c.evalProduct(more, cases(x))
			}
		case "anyOf":
			more = c.evalAnyOf(s, v.list, cases)
		case "oneOf":
			more = nil
			for _, x := range v.list {
				more = append(more, c.evalProduct(plain(f), cases(x))...)
			}
		case "if":
			then, els := plain(fTrue), plain(fTrue)
			if x := s.v.get("then"); x != nil {
				then = cases(x)
			}
			if x := s.v.get("else"); x != nil {
				els = cases(x)
			}
			more = append(c.evalProduct(cases(v), then), c.evalProduct(plain(fs.not(c.sub(v))), els)...)
		case "dependentSchemas", "dependencies":
			more = plain(fTrue)
			for j, name := range v.keys {
				x := v.list[j]
				absent := fs.or(fs.types(tAll&^tObject), fs.not(c.has(name)))
				if x.kind == '[' || x.kind == 's' {
					var need []fid
					for _, n := range c.names(s, k, x) {
						need = append(need, c.has(n))
					}
					more = c.evalProduct(more, plain(fs.or(absent, fs.and(need...))))
					continue
				}
				with := c.evalProduct(plain(fs.and(fs.types(tObject), c.has(name))), cases(x))
				more = c.evalProduct(more, append(with, evalCase{f: absent}))
			}
		}
		out = c.evalProduct(out, more)
	}
	for _, k := range []string{"unevaluatedProperties", "unevaluatedItems"} {
		v := s.v.get(k)
		if v == nil {
			continue
		}
		if v.kind != '{' && v.kind != 't' && v.kind != 'f' {
			c.refuse(ErrInvalid, s, k, "a schema is an object or a boolean")
		}
		f := c.sub(v)
		for i := range out {
			x := &out[i]
			if k == "unevaluatedProperties" {
				if !x.props.all && f != fTrue {
					rest := keyset{kind: ksOther, names: x.props.names, langs: x.props.langs}
					x.f = fs.and(x.f, fs.atom(atom{kind: aAllProps, typ: tObject, keys: rest, val: f, ptr: s.ptr + "/" + k}))
				}
				x.props.all = true
				continue
			}
			if !x.items.all && f != fTrue {
				val := fs.or(append(slices.Clone(x.items.contains), f)...)
				if val != fTrue {
					x.f = fs.and(x.f, fs.atom(atom{kind: aAllItems, typ: tArray, lo: x.items.prefix, hi: -1, val: val, ptr: s.ptr + "/" + k}))
				}
			}
			x.items.all = true
		}
	}
	return out
}

// evalAnyOf has a case for every set of branches that matter and hold.
func (c *compiler) evalAnyOf(s *schema, list []*value, cases func(*value) []evalCase) []evalCase {
	var marked [][]evalCase
	var no []fid
	var quiet []fid // branches that look at nothing
	for _, v := range list {
		cs := cases(v)
		if slices.ContainsFunc(cs, func(x evalCase) bool { return !x.plain() }) {
			marked = append(marked, cs)
			no = append(no, c.fs.not(c.sub(v)))
		} else {
			quiet = append(quiet, c.sub(v))
		}
	}
	if len(marked) > maxEvalAnyOf {
		c.refuse(ErrTooLarge, s, "anyOf", "too many branches under unevaluated keywords")
	}
	var out []evalCase
	for set := range 1 << len(marked) {
		part := []evalCase{{f: fTrue}}
		if set == 0 {
			part[0].f = c.fs.or(quiet...)
		}
		for i, cs := range marked {
			if set&(1<<i) == 0 {
				cs = []evalCase{{f: no[i]}}
			}
			part = c.evalProduct(part, cs)
		}
		out = append(out, part...)
	}
	return out
}
