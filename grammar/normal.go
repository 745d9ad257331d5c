package grammar

import "slices"

// This file restricts formulas to one JSON type, moves negations down to the
// atoms, and brings the result into disjunctive form.

type treeKind uint8

const (
	trTrue treeKind = iota
	trFalse
	trLit
	trAnd
	trOr
)

// tree is a formula about values of one type, with negations at the atoms.
type tree struct {
	kind treeKind
	lit  lit
	list []*tree
}

// lit is an atom or its negation.
type lit struct {
	atom int32
	neg  bool
}

var (
	treeTrue  = &tree{kind: trTrue}
	treeFalse = &tree{kind: trFalse}
)

type normKey struct {
	f   fid
	typ typeMask
	neg bool
}

func constTree(yes bool) *tree {
	if yes {
		return treeTrue
	}
	return treeFalse
}

// joinTrees is the conjunction (or disjunction) of all.
func joinTrees(kind treeKind, list []*tree) *tree {
	unit, zero := treeTrue, treeFalse
	if kind == trOr {
		unit, zero = zero, unit
	}
	out := make([]*tree, 0, len(list))
	for _, t := range list {
		switch t.kind {
		case unit.kind:
		case zero.kind:
			return zero
		case kind:
			out = append(out, t.list...)
		default:
			out = append(out, t)
		}
	}
	switch len(out) {
	case 0:
		return unit
	case 1:
		return out[0]
	}
	return &tree{kind: kind, list: out}
}

// maxExpand bounds references followed and formulas restricted within one
// another.
const maxExpand = 4000

// restrict is what f (neg: its negation) says about values of one type.
func (c *compiler) restrict(f fid, typ typeMask, neg bool) *tree {
	key := normKey{f, typ, neg}
	if t, ok := c.norm[key]; ok {
		if t == nil {
			if slices.Index(c.open, key) < c.openBase {
				panic(comesBack{}) // by way of a value that possible looks into
			}
			failf(ErrInvalid, "schema", clip(c.loopAt(key)), "$ref", "references lead from here back to here without a value in between: leave one of them out")
		}
		return t
	}
	if c.expanded++; c.expanded > maxExpand {
		failf(ErrTooLarge, "schema", "", "", "too many references or combinations inside one another")
	}
	c.spend(1)
	c.norm[key] = nil
	c.open = append(c.open, key)
	t := c.restrictNode(f, typ, neg)
	c.norm[key] = t
	c.open = c.open[:len(c.open)-1]
	c.expanded--
	return t
}

// loopAt is the pointer of a schema on the way from key back to key.
func (c *compiler) loopAt(key normKey) string {
	for _, k := range c.open[slices.Index(c.open, key):] {
		if n := &c.fs.nodes[k.f]; n.kind == fkRef {
			return n.schema.ptr
		}
	}
	return ""
}

func (c *compiler) restrictNode(f fid, typ typeMask, neg bool) *tree {
	n := c.fs.nodes[f]
	switch n.kind {
	case fkTrue, fkFalse:
		return constTree((n.kind == fkTrue) != neg)
	case fkType:
		return constTree((n.mask&typ != 0) != neg)
	case fkNot:
		return c.restrict(n.list[0], typ, !neg)
	case fkRef:
		return c.restrict(c.read(n.schema), typ, neg)
	case fkAnd, fkOr:
		kind := trAnd
		if (n.kind == fkOr) != neg {
			kind = trOr
		}
		list := make([]*tree, len(n.list))
		for i, x := range n.list {
			list[i] = c.restrict(x, typ, neg)
			if (kind == trAnd && list[i].kind == trFalse) || (kind == trOr && list[i].kind == trTrue) {
				return list[i]
			}
		}
		return joinTrees(kind, list)
	case fkOneOf:
		return c.restrictOneOf(n.list, typ, neg)
	}
	a := &c.fs.atoms[n.atom]
	if a.kind != aEnum {
		if a.typ != typ {
			return constTree(!neg)
		}
		return c.atomTree(n.atom, neg)
	}
	return c.enumTree(n.atom, typ, neg)
}

// atomTree is a literal; atoms whose negation is another kind of atom are
// turned into it, so that only few kinds of negative literals remain.
func (c *compiler) atomTree(id int32, neg bool) *tree {
	a := c.fs.atoms[id]
	as := func(b atom) *tree {
		b.typ, b.ptr = a.typ, a.ptr
		return &tree{kind: trLit, lit: lit{atom: c.fs.nodes[c.fs.atom(b)].atom}}
	}
	if neg {
		switch a.kind {
		case aMin:
			return as(atom{kind: aMax, num: a.num, strict: !a.strict})
		case aMax:
			return as(atom{kind: aMin, num: a.num, strict: !a.strict})
		case aAllProps:
			return as(atom{kind: aHasProp, keys: a.keys, val: c.fs.not(a.val)})
		case aHasProp:
			return as(atom{kind: aAllProps, keys: a.keys, val: c.fs.not(a.val)})
		case aMinProps:
			if a.lo == 0 {
				return treeFalse
			}
			return as(atom{kind: aMaxProps, lo: a.lo - 1})
		case aMaxProps:
			return as(atom{kind: aMinProps, lo: a.lo + 1})
		case aMinItems:
			if a.lo == 0 {
				return treeFalse
			}
			return as(atom{kind: aMaxItems, lo: a.lo - 1})
		case aMaxItems:
			return as(atom{kind: aMinItems, lo: a.lo + 1})
		case aAllItems:
			return as(atom{kind: aSomeItems, lo: a.lo, hi: a.hi, val: c.fs.not(a.val)})
		case aSomeItems:
			return as(atom{kind: aAllItems, lo: a.lo, hi: a.hi, val: c.fs.not(a.val)})
		}
	} else {
		switch {
		case (a.kind == aMinProps || a.kind == aMinItems) && a.lo == 0:
			return treeTrue
		case a.kind == aHasProp && a.val == fFalse:
			return treeFalse
		}
	}
	return &tree{kind: trLit, lit: lit{id, neg}}
}

// enumTree restricts an enumeration to the values of one type.
func (c *compiler) enumTree(id int32, typ typeMask, neg bool) *tree {
	a := c.fs.atoms[id]
	var values []*value
	for _, v := range a.values {
		if kindMask(v) == typ {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return constTree(neg)
	}
	structured := typ == tArray || typ == tObject
	if structured && (neg || c.spec.AnyOrder) {
		list := make([]fid, len(values))
		for i, v := range values {
			list[i] = c.valueFormula(v)
		}
		return c.restrict(c.fs.or(list...), typ, neg)
	}
	if len(values) < len(a.values) {
		id = c.fs.nodes[c.fs.atom(atom{kind: aEnum, typ: tAll, values: values, ptr: a.ptr})].atom
	}
	return &tree{kind: trLit, lit: lit{id, neg}}
}

// valueFormula says that a value equals v, part by part.
func (c *compiler) valueFormula(v *value) fid {
	fs := c.fs
	c.spend(1)
	switch v.kind {
	case '[':
		n := int32(len(v.list))
		parts := []fid{fs.types(tArray), fs.atom(atom{kind: aMinItems, typ: tArray, lo: n}), fs.atom(atom{kind: aMaxItems, typ: tArray, lo: n})}
		for i, x := range v.list {
			parts = append(parts, fs.atom(atom{kind: aAllItems, typ: tArray, lo: int32(i), hi: int32(i) + 1, val: c.valueFormula(x)}))
		}
		return fs.and(parts...)
	case '{':
		parts := []fid{fs.types(tObject)}
		for i, k := range v.keys {
			ks := keyset{kind: ksName, name: k}
			parts = append(parts, fs.atom(atom{kind: aHasProp, typ: tObject, keys: ks, val: c.valueFormula(v.list[i])}))
		}
		parts = append(parts, fs.atom(atom{kind: aAllProps, typ: tObject, keys: keyset{kind: ksOther, names: v.keys}, val: fFalse}))
		return fs.and(parts...)
	}
	return c.enum([]*value{v}, "")
}

// maxOneOf bounds the branches of a oneOf that are compared in pairs.
const maxOneOf = 400

// restrictOneOf is exact: branches that no value shares are simply joined,
// others exclude one another.
func (c *compiler) restrictOneOf(list []fid, typ typeMask, neg bool) *tree {
	var live []fid
	for _, f := range list {
		if c.restrict(f, typ, false).kind != trFalse {
			live = append(live, f)
		}
	}
	if len(live) > maxOneOf {
		failf(ErrTooLarge, "schema", "", "oneOf", "too many branches that may hold together")
	}
	shared := make([][]fid, len(live)) // for each branch the others that overlap it
	var both []fid
	for i, f := range live {
		for j := 0; j < i; j++ {
			if c.overlap(f, live[j], typ) {
				shared[i] = append(shared[i], live[j])
				shared[j] = append(shared[j], f)
				both = append(both, c.fs.and(f, live[j]))
			}
		}
	}
	if neg {
		none := make([]*tree, len(live))
		for i, f := range live {
			none[i] = c.restrict(f, typ, true)
		}
		out := []*tree{joinTrees(trAnd, none)}
		for _, f := range both {
			out = append(out, c.restrict(f, typ, false))
		}
		return joinTrees(trOr, out)
	}
	out := make([]*tree, len(live))
	for i, f := range live {
		parts := []*tree{c.restrict(f, typ, false)}
		for _, g := range shared[i] {
			parts = append(parts, c.restrict(g, typ, true))
		}
		out[i] = joinTrees(trAnd, parts)
	}
	return joinTrees(trOr, out)
}

// overlap reports whether a value of the type may satisfy both; it may say yes
// too often.
func (c *compiler) overlap(f, g fid, typ typeMask) bool {
	t := joinTrees(trAnd, []*tree{c.restrict(f, typ, false), c.restrict(g, typ, false)})
	switch typ {
	case tNull, tBool:
		return c.literals(t, typ) != nil
	case tString:
		return c.nonEmpty(c.stringLang(t, encString))
	case tNumber:
		return c.nonEmpty(c.numberLang(t))
	}
	list, exact := c.dnf(t)
	if !exact {
		return true
	}
	for _, conj := range list {
		if !c.plainlyEmpty(conj, typ) {
			return true
		}
	}
	return false
}

// literals is the JSON words of type null or boolean that satisfy t.
func (c *compiler) literals(t *tree, typ typeMask) []string {
	var out []string
	words := map[typeMask][]*value{tNull: {{kind: 'n'}}, tBool: {{kind: 't'}, {kind: 'f'}}}
	for _, v := range words[typ] {
		if c.holds(t, v) {
			out = append(out, string(v.appendJSON(nil, &form{}, 0)))
		}
	}
	return out
}
