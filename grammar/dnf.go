package grammar

import (
	"slices"
	"strconv"
)

// This file brings restricted formulas into disjunctive form: a list of
// conjunctions of literals.

const (
	// maxConjuncts bounds a disjunctive form. Beyond it the conjunctions with
	// the fewest literals are kept: some values are then left out, none is let
	// in.
	maxConjuncts  = 1500
	keptConjuncts = 300
	// maxEnum bounds the values that are tried to decide whether two
	// conditions exclude or imply one another.
	maxEnum = 64
)

// dnf is the disjunctive form of t: each element is a conjunction of literals
// in their order. Without exact some are left out.
func (c *compiler) dnf(t *tree) (list [][]lit, exact bool) {
	switch t.kind {
	case trTrue:
		return [][]lit{nil}, true
	case trFalse:
		return nil, true
	case trLit:
		return [][]lit{{t.lit}}, true
	}
	exact = true
	if t.kind == trOr {
		var out [][]lit
		for _, x := range t.list {
			more, ok := c.dnf(x)
			exact = exact && ok
			out = append(out, more...)
		}
		out, ok := c.reduce(out)
		return out, exact && ok
	}
	out := [][]lit{nil}
	// Plain literals first: they prune what follows. The order of names is
	// restored below.
	parts := make([][][]lit, len(t.list))
	order := map[lit]int{}
	for i, x := range t.list {
		right, ok := c.dnf(x)
		exact = exact && ok
		if len(right) == 0 {
			return nil, exact
		}
		parts[i] = right
		for _, conj := range right {
			for _, l := range conj {
				if _, seen := order[l]; !seen {
					order[l] = len(order)
				}
			}
		}
	}
	slices.SortStableFunc(parts, func(a, b [][]lit) int { return min(len(a), 2) - min(len(b), 2) })
	for _, right := range parts {
		next := make([][]lit, 0, len(out)*len(right))
		for _, a := range out {
			for _, b := range right {
				if conj, ok := c.joinLits(a, b); ok {
					next = append(next, conj)
				}
			}
			if len(next) > 20*maxConjuncts {
				exact = false
				break
			}
		}
		var ok bool
		out, ok = c.reduce(next)
		exact = exact && ok
	}
	rank := func(l lit) int {
		if i, ok := order[l]; ok {
			return i
		}
		return len(order)
	}
	for _, conj := range out {
		slices.SortStableFunc(conj, func(a, b lit) int { return rank(a) - rank(b) })
	}
	return out, exact
}

// reduce removes conjunctions that others cover, and, where there are still
// too many, the longest.
func (c *compiler) reduce(list [][]lit) (out [][]lit, exact bool) {
	c.spend(len(list))
	list = dedupe(list)
	if len(list) > 24 {
		list = c.absorb(list)
	}
	if len(list) <= maxConjuncts {
		return list, true
	}
	order := slices.Clone(list)
	slices.SortStableFunc(order, func(a, b []lit) int { return len(a) - len(b) })
	return order[:keptConjuncts], false
}

// absorb removes conjunctions that say more than another one.
func (c *compiler) absorb(list [][]lit) [][]lit {
	if len(list) > 4*maxConjuncts {
		return list
	}
	index := map[lit]int{}
	for _, conj := range list {
		for _, l := range conj {
			if _, ok := index[l]; !ok {
				index[l] = len(index)
			}
		}
	}
	words := (len(index) + 63) / 64
	if words > 8 {
		return list
	}
	sets := make([][8]uint64, len(list))
	size := make([]int, len(list)) // literals of each
	order := make([]int, len(list))
	for i, conj := range list {
		order[i] = i
		for _, l := range conj {
			w, bit := index[l]>>6, uint64(1)<<(index[l]&63)
			if sets[i][w]&bit == 0 {
				sets[i][w] |= bit
				size[i]++
			}
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return size[a] - size[b] })
	drop := make([]bool, len(list))
	next := 0 // in order: the first with more literals than i
	for _, i := range order {
		for next < len(order) && size[order[next]] <= size[i] {
			next++
		}
		if drop[i] {
			continue
		}
		c.spend((len(order) - next) / 16)
	larger:
		for _, j := range order[next:] {
			if drop[j] {
				continue
			}
			for w := range words {
				if sets[i][w]&^sets[j][w] != 0 {
					continue larger
				}
			}
			drop[j] = true
		}
	}
	var out [][]lit
	for i, conj := range list {
		if !drop[i] {
			out = append(out, conj)
		}
	}
	return out
}

// joinLits is a and b; ok is false when they plainly contradict.
func (c *compiler) joinLits(a, b []lit) (out []lit, ok bool) {
	out = a[:len(a):len(a)]
	for _, l := range b {
		if out, ok = c.addLit(out, l); !ok {
			return nil, false
		}
	}
	return out, true
}

// named reports whether l speaks of one property.
func (c *compiler) named(l lit) (a *atom, ok bool) {
	a = &c.fs.atoms[l.atom]
	return a, !l.neg && (a.kind == aAllProps || a.kind == aHasProp) && a.keys.kind == ksName
}

// addLit is conj and l. What is said of one property is compared: contradictions
// are found and what is implied is left out.
func (c *compiler) addLit(conj []lit, l lit) (out []lit, ok bool) {
	c.spend(1 + len(conj)/8)
	for _, m := range conj {
		if m.atom == l.atom {
			return conj, m.neg == l.neg
		}
	}
	a, single := c.named(l)
	if !single {
		return append(conj, l), true
	}
	present := a.kind == aHasProp
	absent, implied, certain := false, false, false
	for _, m := range conj {
		b, ok := c.named(m)
		if !ok || b.keys.name != a.keys.name {
			continue
		}
		present = present || b.kind == aHasProp
		certain = certain || b.kind == aHasProp
		absent = absent || c.excludes(a.val, b.val)
		implied = implied || c.implies(b.val, a.val)
	}
	switch {
	case absent && present:
		return nil, false
	case implied && (certain || a.kind == aAllProps):
		return conj, true
	case absent && a.val != fFalse:
		none := c.fs.atom(atom{kind: aAllProps, typ: tObject, keys: keyset{kind: ksName, name: a.keys.name}, val: fFalse, ptr: a.ptr})
		return c.addLit(conj, lit{atom: c.fs.nodes[none].atom})
	}
	return append(conj, l), true
}

// enumOf is a short list of values that f stays within, nil where none is
// plain.
func (c *compiler) enumOf(f fid, depth int) []*value {
	if depth > 20 {
		return nil
	}
	switch n := c.fs.nodes[f]; n.kind {
	case fkAtom:
		if a := &c.fs.atoms[n.atom]; a.kind == aEnum && len(a.values) <= maxEnum {
			return a.values
		}
	case fkRef:
		if n.schema.state != 1 {
			return c.enumOf(c.read(n.schema), depth+1)
		}
	case fkAnd:
		for _, x := range n.list {
			if v := c.enumOf(x, depth+1); v != nil {
				return v
			}
		}
	}
	return nil
}

type fidPair struct{ f, g fid }

// excludes reports that no value satisfies both; it may miss some.
func (c *compiler) excludes(f, g fid) bool {
	if c.fs.and(f, g) == fFalse {
		return true
	}
	k := fidPair{min(f, g), max(f, g)}
	if yes, ok := c.exclude[k]; ok {
		return yes
	}
	values := c.enumOf(f, 0)
	if values == nil {
		values = c.enumOf(g, 0)
	}
	yes := values != nil && !slices.ContainsFunc(values, func(v *value) bool { return c.holdsFormula(f, v) && c.holdsFormula(g, v) })
	c.exclude[k] = yes
	return yes
}

// implies reports that all values of f satisfy g; it may miss some.
func (c *compiler) implies(f, g fid) bool {
	if f == g || g == fTrue || f == fFalse {
		return true
	}
	k := fidPair{f, g}
	if yes, ok := c.imply[k]; ok {
		return yes
	}
	values := c.enumOf(f, 0)
	yes := values != nil && !slices.ContainsFunc(values, func(v *value) bool { return c.holdsFormula(f, v) && !c.holdsFormula(g, v) })
	c.imply[k] = yes
	return yes
}

// leftOut notes that a disjunctive form is not exact.
func (c *compiler) leftOut() {
	c.partial++
	if c.partial == 1 {
		c.notes = append(c.notes, "some combinations of conditions are left out: over "+strconv.Itoa(maxConjuncts)+" cases at one value")
	}
}

// dedupe removes conjunctions that say the same.
func dedupe(list [][]lit) [][]lit {
	if len(list) < 2 {
		return list
	}
	seen := map[string]bool{}
	out := list[:0]
	for _, conj := range list {
		b := make([]byte, 0, 5*len(conj))
		for _, l := range conj {
			s := byte(0)
			if l.neg {
				s = 1
			}
			b = append(b, byte(l.atom), byte(l.atom>>8), byte(l.atom>>16), byte(l.atom>>24), s)
		}
		if !seen[string(b)] {
			seen[string(b)] = true
			out = append(out, conj)
		}
	}
	return out
}
