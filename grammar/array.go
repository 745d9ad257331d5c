package grammar

import (
	"math"
	"slices"
)

// arrayNode is the arrays that satisfy one conjunction.
type arrayNode struct {
	id    int32
	slots [][]option // by index; the last serves all later items too
	// tally[j] of duty j: so many items must fulfil it.
	tally    []int32
	min, max int32
	unique   bool
	texts    bool // unique: the items are told apart by their texts, not by their options
}

const (
	maxSlots  = 4096
	fewValues = 200 // uniqueItems is enforced on items of at most so many values
)

// array is the node of a conjunction, nil when it is plainly empty.
func (c *compiler) array(conj []lit) *arrayNode {
	a := &arrayNode{max: math.MaxInt32}
	type rule struct {
		lo, hi int32
		val    fid
		need   int32 // duty: so many items
		not    bool  // fewer than need items
	}
	var all, duties []rule
	last := int32(0) // slots from here on are alike
	unique, where := "", ""
	for _, l := range conj {
		at := &c.fs.atoms[l.atom]
		switch at.kind {
		case aMinItems:
			a.min = max(a.min, at.lo)
		case aMaxItems:
			a.max = min(a.max, at.lo)
		case aAllItems:
			if at.hi >= 0 && at.hi <= at.lo {
				continue
			}
			all = append(all, rule{lo: at.lo, hi: at.hi, val: at.val})
			last = max(last, at.lo, at.hi)
		case aSomeItems:
			where = at.ptr
			duties = append(duties, rule{lo: at.lo, hi: at.hi, val: at.val, need: 1})
			last = max(last, at.lo, at.hi)
			a.min = max(a.min, at.lo+1)
		case aItemCount:
			where = at.ptr
			duties = append(duties, rule{lo: 0, hi: -1, val: at.val, need: at.lo, not: l.neg})
			if !l.neg {
				a.min = max(a.min, at.lo)
			}
		case aUnique:
			if l.neg {
				failf(ErrUnsupported, "schema", clip(at.ptr), "uniqueItems", "the negation of uniqueItems")
			}
			a.unique = true
			unique = at.ptr
		default:
			panic("grammar: unexpected atom on arrays")
		}
	}
	if a.min > a.max {
		return nil
	}
	if len(duties) > maxDuties {
		failf(ErrTooLarge, "schema", "", "contains", "too many conditions on the items of one array")
	}
	// A prefix that can never be reached needs no slots.
	last = max(0, min(last, a.max-1))
	if last > maxSlots {
		failf(ErrTooLarge, "schema", "", "prefixItems", "too many items with schemas of their own")
	}
	for _, d := range duties {
		n := d.need
		if d.not {
			n = -n // at most need-1
		}
		a.tally = append(a.tally, n)
	}
	for i := int32(0); i <= last; i++ {
		var parts []fid
		for _, r := range all {
			if i >= r.lo && (r.hi < 0 || i < r.hi) {
				parts = append(parts, r.val)
			}
		}
		var opts []option
	subsets:
		for set := range 1 << len(duties) {
			f := slices.Clone(parts)
			for j, d := range duties {
				in := i >= d.lo && (d.hi < 0 || i < d.hi)
				switch {
				case set&(1<<j) != 0:
					if !in {
						continue subsets
					}
					f = append(f, d.val)
				case in && (d.not || a.unique): // items that are told apart count as what they are
					f = append(f, c.fs.not(d.val))
				}
			}
			if g := c.fs.and(f...); g != fFalse {
				opts = append(opts, option{val: c.value(g), duties: uint32(set)})
			}
		}
		a.slots = append(a.slots, opts)
	}
	// An item that cannot be written ends the array before it.
	for i, opts := range a.slots {
		if len(opts) == 0 {
			a.max = min(a.max, int32(i))
			a.slots = a.slots[:i+1]
			break
		}
	}
	if a.min > a.max {
		return nil
	}
	if a.unique && a.max <= 1 {
		a.unique = false
	}
	if a.unique && !c.splitUnique(a) && !c.plainUnique(a) {
		failf(ErrUnsupported, "schema", clip(unique), "uniqueItems", "not enforced where an item may be an array or object of any content")
	}
	if a.unique && !c.listFew(a) {
		failf(ErrTooLarge, "schema", clip(unique), "uniqueItems", "more items are wanted from a long list of values than can be counted: ask for fewer, or allow more values")
	}
	if a.counted() && a.ledger(func(option) bool { return true }).tooMuch() {
		ptr, keyword := where, "contains"
		if a.unique {
			ptr, keyword = unique, "uniqueItems"
		}
		failf(ErrTooLarge, "schema", clip(ptr), keyword, "too many conditions on the items of one array hold together: use fewer, or smaller numbers of items")
	}
	return a
}

// counted reports whether what was written decides what may still come.
func (a *arrayNode) counted() bool { return len(a.tally) > 0 || a.unique }

// ledger tells where the array can end, before there is a machine.
func (a *arrayNode) ledger(keep func(option) bool) *ledger {
	ids := map[string]int32{}
	return newLedger(a, keep, func(x option, t string) int32 {
		if !a.texts {
			return int32(x.val.f)
		}
		if _, ok := ids[t]; !ok {
			ids[t] = int32(len(ids))
		}
		return ids[t]
	})
}

// plainUnique restricts the items to one spelling a value, so that equal items
// have equal texts. It reports whether none can be a container.
func (c *compiler) plainUnique(a *arrayNode) bool {
	slots := make([][]option, len(a.slots))
	for i, opts := range a.slots {
		for _, x := range opts {
			c.compileValue(x.val)
			if x.val.state != 2 || len(x.val.objects)+len(x.val.arrays) > 0 {
				return false
			}
			v := &valueNode{id: c.newValueID(), f: x.val.f, state: 2, scalar: c.plainScalar(x.val)}
			if !c.nonEmpty(v.scalar) {
				v.scalar = rxEmpty
			}
			slots[i] = append(slots[i], option{val: v, duties: x.duties})
		}
	}
	a.slots, a.texts = slots, true
	return true
}

// plainScalar is the texts of a value without containers, each value in its
// plain spelling only.
func (c *compiler) plainScalar(v *valueNode) nodeID {
	digits := c.digits(0, -1)
	zeros := c.seq(c.opt(c.bytes("-")), c.wholeDigits(maxDigits), c.bytes("."), digits, c.bytes("0"))
	number := c.and(c.plainNumber(), c.pool.not(zeros))
	quote := c.bytes(`"`)
	text := c.seq(quote, c.anyText[encKey], quote)
	other := c.and(c.pool.not(c.anyNumber()), c.pool.not(c.seq(quote, c.anyText[encString], quote)))
	return c.and(v.scalar, c.alt(number, text, other))
}

// splitUnique replaces every option by one option a value, so that the machine
// can tell which values were written. It reports whether the values are few.
func (c *compiler) splitUnique(a *arrayNode) bool {
	for i, opts := range a.slots {
		var out []option
		for _, x := range opts {
			c.compileValue(x.val)
			if x.val.state != 2 || len(x.val.objects)+len(x.val.arrays) > 0 {
				return false
			}
			texts, ok := c.finite(x.val.scalar, fewValues)
			if !ok || len(texts) > fewValues {
				return false
			}
			slices.Sort(texts)
			for _, t := range texts {
				v, err := parseJSON([]byte(t), 64)
				if err != nil {
					return false
				}
				out = append(out, option{val: c.value(c.enum([]*value{v}, "")), duties: x.duties, texts: []string{t}})
			}
		}
		a.slots[i] = out
	}
	return true
}

func (a *arrayNode) slot(i int32) []option { return a.slots[min(int(i), len(a.slots)-1)] }

// productive reports whether a has a finite text, as far as the values known
// to be alive tell.
func (a *arrayNode) productive() bool {
	alive := func(x option) bool { return x.val.alive }
	if a.counted() {
		return a.ledger(alive).canFinish(0, make([]int32, len(a.tally)), nil)
	}
	limit := a.max
	for i, opts := range a.slots {
		if !slices.ContainsFunc(opts, alive) {
			limit = min(limit, int32(i))
			break
		}
	}
	return a.min <= limit
}

// addArray prepares a productive node for the machine.
func (c *compiler) addArray(a *arrayNode) {
	for i, opts := range a.slots {
		a.slots[i] = slices.DeleteFunc(slices.Clone(opts), func(x option) bool { return !x.val.alive })
		if len(a.slots[i]) == 0 {
			a.max = min(a.max, int32(i))
			a.slots = a.slots[:i+1]
			break
		}
	}
	a.id = int32(len(c.arrays))
	c.arrays = append(c.arrays, a)
}
