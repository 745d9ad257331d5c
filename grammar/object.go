package grammar

import (
	"math"
	"slices"
)

// objectNode is the objects that satisfy one conjunction: properties with
// names of their own, in order, and cells of other names.
type objectNode struct {
	id    int32
	names []objectName
	cells []objectCell
	duty  int   // number of duties: "some property in a set of names has such a value"
	min   int32 // properties
	max   int32
	bound bool // min or max can be missed: the machine counts
	only  bool // the names are all there can be
}

// option is a way to write a value: duties is the set of duties it fulfils.
type option struct {
	val    *valueNode
	duties uint32
	texts  []string // of an item unlike all others: all its texts, where they are few
}

type objectName struct {
	text     string // plain spelling, without quotes
	required bool
	options  []option
}

// objectCell is a language of names, disjoint from the names and from the
// other cells.
type objectCell struct {
	lang    nodeID
	options []option
}

const (
	maxDuties    = 4
	maxLanguages = 10
	fewNames     = 40 // a cell of at most so many names is written out
)

// object is the node of a conjunction, nil when it is plainly empty.
func (c *compiler) object(conj []lit) *objectNode {
	o := &objectNode{max: math.MaxInt32}
	type rule struct {
		keys *keyset
		val  fid
	}
	var all, duties []rule
	index := map[string]int{}
	vals := [][]fid{}
	add := func(name string) int {
		i, ok := index[name]
		if !ok {
			i = len(o.names)
			index[name] = i
			o.names = append(o.names, objectName{text: name})
			vals = append(vals, nil)
		}
		return i
	}
	for _, l := range conj {
		a := &c.fs.atoms[l.atom]
		if l.neg {
			failf(ErrUnsupported, "schema", clip(a.ptr), "not", "the negation of this keyword on objects")
		}
		switch a.kind {
		case aMinProps:
			o.min = max(o.min, a.lo)
		case aMaxProps:
			o.max = min(o.max, a.lo)
		case aAllProps, aHasProp:
			has := a.kind == aHasProp
			switch {
			case a.keys.kind == ksName:
				i := add(a.keys.name)
				vals[i] = append(vals[i], a.val)
				o.names[i].required = o.names[i].required || has
			case has:
				duties = append(duties, rule{&a.keys, a.val})
			default:
				all = append(all, rule{&a.keys, a.val})
			}
		default:
			panic("grammar: unexpected atom on objects")
		}
	}
	// Names that sets leave out are named, so that a set is told by its
	// languages alone.
	var langs []nodeID
	for _, r := range append(slices.Clone(all), duties...) {
		for _, n := range r.keys.names {
			add(n)
		}
		list := r.keys.langs
		if r.keys.kind == ksLang {
			list = []nodeID{r.keys.lang}
		}
		for _, l := range list {
			if !slices.Contains(langs, l) {
				langs = append(langs, l)
			}
		}
	}
	if len(duties) > maxDuties || len(langs) > maxLanguages {
		failf(ErrTooLarge, "schema", "", "", "too many name patterns for one object")
	}
	o.duty = len(duties)
	c.spend(len(o.names))

	// options of names with the given value parts, where in tells the rules
	// that speak of them.
	options := func(parts []fid, in func(*keyset) bool) []option {
		for _, r := range all {
			if in(r.keys) {
				parts = append(parts, r.val)
			}
		}
		var mine []int
		for j, r := range duties {
			if in(r.keys) {
				mine = append(mine, j)
			}
		}
		var out []option
		for set := range 1 << len(mine) {
			f, bits := slices.Clone(parts), uint32(0)
			for k, j := range mine {
				if set&(1<<k) != 0 {
					f = append(f, duties[j].val)
					bits |= 1 << j
				}
			}
			if g := c.fs.and(f...); g != fFalse {
				out = append(out, option{val: c.value(g), duties: bits})
			}
		}
		return out
	}
	c.cells(o, langs, func(member []bool, lang nodeID) {
		in := func(k *keyset) bool {
			if k.kind == ksLang {
				return member[slices.Index(langs, k.lang)]
			}
			return !slices.ContainsFunc(k.langs, func(l nodeID) bool { return member[slices.Index(langs, l)] })
		}
		opts := options(nil, in)
		if len(opts) == 0 {
			return
		}
		if len(langs) > 0 {
			// So many names that they can all be needed are written out too.
			if texts, ok := c.finite(lang, max(fewNames, min(int(o.min), fewTexts))); ok {
				slices.Sort(texts)
				for _, t := range texts {
					o.names = append(o.names, objectName{text: t, options: opts})
				}
				return
			}
		}
		if len(langs) > 0 && o.min > fewTexts {
			if n, ok := c.countTexts(lang, int(o.min)); !ok || n >= 0 && n <= int(o.min) {
				failf(ErrTooLarge, "schema", "", "minProperties", "more properties are wanted than can be counted: ask for fewer")
			}
		}
		o.cells = append(o.cells, objectCell{lang, opts})
	})
	for i := range vals {
		n := &o.names[i]
		n.options = options(vals[i], func(k *keyset) bool { return c.inKeys(k, n.text) })
		if n.required && len(n.options) == 0 {
			return nil
		}
		n.text = keyText(n.text)
	}
	if o.min > o.max {
		return nil
	}
	return o
}

// cells calls emit for every language of names that is not empty: the names
// that are not among o's, divided by membership in langs.
func (c *compiler) cells(o *objectNode, langs []nodeID, emit func([]bool, nodeID)) {
	free := c.anyText[encKey]
	if len(o.names) > 0 {
		words := make([]string, len(o.names))
		for i := range o.names {
			words[i] = keyText(o.names[i].text)
		}
		free = c.and(free, c.pool.not(c.words(words)))
	}
	member := make([]bool, len(langs))
	var split func(i int, lang nodeID)
	split = func(i int, lang nodeID) {
		if i == len(langs) {
			emit(member, lang)
			return
		}
		for _, in := range []bool{true, false} {
			l := langs[i]
			if !in {
				l = c.pool.not(l)
			}
			if sub := c.and(lang, l); c.nonEmpty(sub) {
				member[i] = in
				split(i+1, sub)
			}
		}
	}
	split(0, free)
}

// productive reports whether o has a finite text, as far as the values known
// to be alive tell.
func (o *objectNode) productive() bool {
	alive := func(x option) bool { return x.val.alive }
	total := int32(0)
	cost := o.cellCosts(alive)
	for i := range o.names {
		if slices.ContainsFunc(o.names[i].options, alive) {
			total++
		}
		cost.name(&o.names[i], alive)
	}
	for i := range o.cells {
		if slices.ContainsFunc(o.cells[i].options, alive) {
			total = math.MaxInt32
		}
	}
	least := cost[1<<o.duty-1]
	return least < impossible && least <= o.max && total >= o.min
}

// dutyCosts is, for each set of duties, the least number of properties that
// fulfil them all, the required ones among them: impossible where none do.
type dutyCosts []int32

const impossible = math.MaxInt32

// cellCosts is the costs where only free names are left.
func (o *objectNode) cellCosts(keep func(option) bool) dutyCosts {
	cost := make(dutyCosts, 1<<o.duty)
	for set := 1; set < len(cost); set++ {
		cost[set] = impossible
		for i := range o.cells {
			cost[set] = min(cost[set], cost.with(set, o.cells[i].options, keep))
		}
	}
	return cost
}

// with is the cost of a set of duties when one property is written in one of
// the given ways that are of use.
func (cost dutyCosts) with(set int, options []option, keep func(option) bool) int32 {
	least := int32(impossible)
	for _, x := range options {
		if rest := set &^ int(x.duties); rest != set && keep(x) && cost[rest] < impossible {
			least = min(least, cost[rest]+1)
		}
	}
	return least
}

// name takes one more name into account.
func (cost dutyCosts) name(n *objectName, keep func(option) bool) {
	for set := len(cost) - 1; set >= 0; set-- { // the sets within one come after it
		least := cost.with(set, n.options, keep)
		switch {
		case !n.required:
			least = min(least, cost[set])
		case cost[set] < impossible && slices.ContainsFunc(n.options, keep):
			least = min(least, cost[set]+1)
		}
		cost[set] = least
	}
}

// addObject prepares a productive node for the machine: what is not alive is
// dropped.
func (c *compiler) addObject(o *objectNode) {
	dead := func(x option) bool { return !x.val.alive }
	var names []objectName
	for _, n := range o.names {
		n.options = slices.DeleteFunc(slices.Clone(n.options), dead)
		if len(n.options) > 0 {
			names = append(names, n)
		}
	}
	o.names = names
	var cells []objectCell
	for _, n := range o.cells {
		n.options = slices.DeleteFunc(slices.Clone(n.options), dead)
		if len(n.options) > 0 {
			cells = append(cells, n)
		}
	}
	o.cells = cells
	o.only = len(cells) == 0
	required := int32(0)
	for i := range o.names {
		if o.names[i].required {
			required++
		}
	}
	o.bound = o.min > required || (o.max < math.MaxInt32 && !(o.only && int(o.max) >= len(o.names)))
	o.id = int32(len(c.objects))
	c.objects = append(c.objects, o)
}
