package grammar

import (
	"math/big"
	"slices"
	"unicode/utf8"
)

// This file checks a value against a formula directly: enumerations are
// filtered by it.

// holdsFormula reports whether v satisfies f.
func (c *compiler) holdsFormula(f fid, v *value) bool {
	return c.holds(c.restrict(f, kindMask(v), false), v)
}

func (c *compiler) holds(t *tree, v *value) bool {
	switch t.kind {
	case trTrue:
		return true
	case trFalse:
		return false
	case trLit:
		return c.holdsLit(t.lit, v)
	}
	for _, x := range t.list {
		if c.holds(x, v) == (t.kind == trOr) {
			return t.kind == trOr
		}
	}
	return t.kind == trAnd
}

func (c *compiler) holdsLit(l lit, v *value) bool { return c.holdsAtom(l, v) != l.neg }

func (c *compiler) holdsAtom(l lit, v *value) bool {
	c.spend(1)
	a := c.fs.atoms[l.atom]
	switch a.kind {
	case aEnum:
		return slices.ContainsFunc(a.values, v.equal)
	case aInt, aMin, aMax, aMultiple:
		d, ok := parseDecimal(v.str)
		if !ok {
			failf(ErrUnsupported, "schema", clip(a.ptr), "", "a number of this size")
		}
		switch a.kind {
		case aInt:
			return d.isInt()
		case aMin:
			n := d.cmp(a.num)
			return n > 0 || (n == 0 && !a.strict)
		case aMax:
			n := d.cmp(a.num)
			return n < 0 || (n == 0 && !a.strict)
		}
		if max(d.exp, -d.exp, a.num.exp, -a.num.exp) > 2000 {
			failf(ErrUnsupported, "schema", clip(a.ptr), "", "a number of this size")
		}
		return new(big.Rat).Quo(d.rat(), a.num.rat()).IsInt()
	case aPattern, aFormat:
		return c.matches(c.lang(l.atom, encString), keyText(v.str))
	case aLen:
		n := int32(utf8.RuneCountInString(v.str))
		return n >= a.lo && (a.hi < 0 || n <= a.hi)
	case aAllProps, aHasProp:
		for i, k := range v.keys {
			if c.inKeys(&a.keys, k) && c.holdsFormula(a.val, v.list[i]) == (a.kind == aHasProp) {
				return a.kind == aHasProp
			}
		}
		return a.kind == aAllProps
	case aMinProps, aMinItems:
		return len(v.list) >= int(a.lo)
	case aMaxProps, aMaxItems:
		return len(v.list) <= int(a.lo)
	case aAllItems, aSomeItems:
		for i, x := range v.list {
			if i >= int(a.lo) && (a.hi < 0 || i < int(a.hi)) && c.holdsFormula(a.val, x) == (a.kind == aSomeItems) {
				return a.kind == aSomeItems
			}
		}
		return a.kind == aAllItems
	case aItemCount:
		n := int32(0)
		for _, x := range v.list {
			if c.holdsFormula(a.val, x) {
				n++
			}
		}
		return n >= a.lo
	case aUnique:
		for i, x := range v.list {
			if slices.ContainsFunc(v.list[:i], x.equal) {
				return false
			}
		}
		return true
	}
	panic("grammar: unknown atom")
}

// inKeys reports whether a property name is in the set.
func (c *compiler) inKeys(k *keyset, name string) bool {
	switch k.kind {
	case ksName:
		return k.name == name
	case ksLang:
		return c.matches(k.lang, keyText(name))
	}
	if slices.Contains(k.names, name) {
		return false
	}
	return !slices.ContainsFunc(k.langs, func(l nodeID) bool { return c.matches(l, keyText(name)) })
}
