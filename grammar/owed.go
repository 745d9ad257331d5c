package grammar

import (
	"encoding/binary"
	"math"
	"slices"
)

// This file decides whether the end of an array can be reached where its items
// are counted: so many must fulfil a condition, so many may, and none may come
// twice. Items that count alike are one kind. In the slots of single items the
// ways to go on are tried, in the last slot, which serves any number of items,
// only the numbers of items of each kind matter.

// itemKind is the items of one slot that count alike.
type itemKind struct {
	duties uint32
	texts  []int32 // ids of all texts, where none may come twice; nil: there are more than can be needed
}

// ledger tells from where in an array its end can be reached.
type ledger struct {
	tally    []int32 // as in arrayNode
	least    uint32  // the duties that want so many items at least
	min, max int32
	slots    [][]itemKind
	unique   bool
	texts    []int32 // all of the kinds' texts, where slots differ
	listed   bool    // some kind has its texts listed
	known    map[string]bool
}

const (
	maxLedger  = 50_000    // steps to decide about one place
	maxMatch   = 2_000_000 // of matching values with slots
	maxKnown   = 100_000   // answers that are kept
	fewTexts   = 5_000     // texts of one kind that are told apart
	noEnd      = int64(1) << 40
	maxListing = 1 << 20 // bytes of these texts
)

// newLedger is the ledger of a over the options that keep lets in; id is the
// number under which the machine remembers a text of an option.
func newLedger(a *arrayNode, keep func(option) bool, id func(option, string) int32) *ledger {
	l := &ledger{tally: a.tally, min: a.min, max: a.max, unique: a.unique, known: map[string]bool{}}
	for j, n := range a.tally {
		if n > 0 {
			l.least |= 1 << j
		}
	}
	for i, opts := range a.slots {
		var kinds []itemKind
		for _, x := range opts {
			if !keep(x) {
				continue
			}
			k := itemKind{duties: x.duties}
			if a.unique && x.texts != nil {
				l.listed = true
				k.texts = make([]int32, len(x.texts))
				for i, t := range x.texts {
					k.texts[i] = id(x, t)
				}
			}
			kinds = l.addKind(kinds, k)
		}
		slices.SortStableFunc(kinds, func(x, y itemKind) int { return int(min(l.most(x), math.MaxInt32) - min(l.most(y), math.MaxInt32)) })
		l.slots = append(l.slots, kinds)
		if len(kinds) == 0 {
			l.max = min(l.max, int32(i))
			break
		}
	}
	if a.unique && len(l.slots) > 1 {
		for _, kinds := range l.slots {
			for _, k := range kinds {
				l.texts = append(l.texts, k.texts...)
			}
		}
		slices.Sort(l.texts)
		l.texts = slices.Compact(l.texts)
	}
	return l
}

// addKind adds a kind to those of a slot. Where items may come twice, a kind
// that is no better than another is left out.
func (l *ledger) addKind(kinds []itemKind, k itemKind) []itemKind {
	if l.unique {
		for i := range kinds {
			if old := &kinds[i]; old.duties == k.duties {
				if old.texts != nil && k.texts != nil {
					old.texts = append(old.texts, k.texts...)
				} else {
					old.texts = nil
				}
				return kinds
			}
		}
		return append(kinds, k)
	}
	better := func(x, y itemKind) bool {
		return y.duties&l.least&^x.duties == 0 && x.duties&^l.least&^y.duties == 0
	}
	if slices.ContainsFunc(kinds, func(x itemKind) bool { return better(x, k) }) {
		return kinds
	}
	return append(slices.DeleteFunc(kinds, func(x itemKind) bool { return better(k, x) }), k)
}

// most is how many items of a kind an array can have, noEnd where nothing
// bounds them.
func (l *ledger) most(k itemKind) int64 {
	n := noEnd
	if k.texts != nil {
		n = int64(len(k.texts))
	}
	for j, t := range l.tally {
		if t < 0 && k.duties>>j&1 != 0 {
			n = min(n, int64(-t)-1)
		}
	}
	return n
}

// tooMuch reports whether deciding about some place could take too long.
func (l *ledger) tooMuch() bool {
	head := l.slots[:len(l.slots)-1]
	if l.unique && len(l.tally) == 0 {
		texts := 0
		for _, kinds := range l.slots {
			for _, k := range kinds {
				texts += len(k.texts)
			}
		}
		return texts*len(l.slots) > maxMatch
	}
	times := func(a, b int64) int64 { return min(a*b, noEnd) }
	states, ways := int64(1), int64(1)
	for _, n := range l.tally {
		states = times(states, int64(max(n, -n))+1)
	}
	for _, kinds := range head {
		n := int64(0)
		for _, k := range kinds {
			if k.texts != nil {
				n += int64(len(k.texts))
				states = noEnd // what was written bears on what may come
			} else {
				n++
			}
		}
		ways = times(ways, max(n, 1))
	}
	steps := min(times(states, int64(len(head))), ways)
	last := l.slots[len(l.slots)-1]
	for i := range max(0, len(last)-2) {
		steps = times(max(steps, 1), l.width(last, i)+1)
	}
	return steps > maxLedger
}

// width bounds the number of items of kind i that need be tried.
func (l *ledger) width(kinds []itemKind, i int) int64 {
	if n := l.most(kinds[i]); n < noEnd {
		return n
	}
	// More than its duties want is no use: items of the last kind, which has no
	// bound either, do as well.
	n := int64(0)
	for j, t := range l.tally {
		if t > 0 && kinds[i].duties>>j&1 != 0 {
			n = max(n, int64(t))
		}
	}
	return n
}

// canFinish reports whether the array can end behind pos items, some of which
// fulfilled duties, and, where none may come twice, these.
func (l *ledger) canFinish(pos int32, tally, seen []int32) bool {
	if l.met(tally) && pos >= l.min {
		return true
	}
	last := int32(len(l.slots)) - 1
	switch {
	case pos >= l.max:
		return false
	case l.unique && len(l.tally) == 0:
		return l.remember(pos, tally, seen, l.match)
	case pos >= last:
		return l.remember(pos, tally, seen, l.tail)
	}
	return l.remember(pos, tally, seen, l.head)
}

func (l *ledger) met(tally []int32) bool {
	for j, n := range l.tally {
		if n > 0 && tally[j] < n {
			return false
		}
	}
	return true
}

// remember is find's answer, found once.
func (l *ledger) remember(pos int32, tally, seen []int32, find func(pos int32, tally, seen []int32) bool) bool {
	b := binary.AppendUvarint(nil, uint64(pos))
	for _, v := range tally {
		b = binary.AppendUvarint(b, uint64(v))
	}
	for _, v := range seen {
		b = binary.AppendUvarint(b, uint64(v))
	}
	if yes, ok := l.known[string(b)]; ok {
		return yes
	}
	yes := find(pos, tally, seen)
	if len(l.known) > maxKnown {
		clear(l.known)
	}
	l.known[string(b)] = yes
	return yes
}

// countDuties adds an item that fulfils the given duties; ok is false when a
// duty was fulfilled too often.
func countDuties(wanted, tally []int32, duties uint32) (out []int32, ok bool) {
	out = slices.Clone(tally)
	for j, n := range wanted {
		if duties&(1<<j) == 0 {
			continue
		}
		out[j]++
		if n > 0 {
			out[j] = min(out[j], n)
		} else if out[j] >= -n {
			return nil, false
		}
	}
	return out, true
}

// itemValue is what may be written for an option of an array's item such that
// the end can be reached, nil if nothing may. pos and tally are those behind the
// item; seen is the values before it and, where values are options, itself.
func (w *writer) itemValue(node int32, x option, pos int32, tally, seen []int32) *valueNode {
	a, l := w.arrays[node], w.ledgers[node]
	if l == nil {
		l = newLedger(a, func(option) bool { return true }, func(x option, t string) int32 {
			if a.texts {
				return w.setID(t)
			}
			return int32(x.val.f)
		})
		w.ledgers[node] = l
	}
	if !a.texts || x.texts == nil {
		if !l.canFinish(pos, tally, seen) {
			return nil
		}
		if !a.texts {
			return x.val
		}
	}
	// Texts that another item needs are left to it.
	listed := l.texts
	if x.texts != nil {
		listed = make([]int32, len(x.texts))
		for i, t := range x.texts {
			listed[i] = w.setID(t)
		}
	}
	avoid := slices.Clone(seen)
	for _, t := range listed {
		if at, was := slices.BinarySearch(seen, t); !was && !l.canFinish(pos, tally, slices.Insert(slices.Clone(seen), at, t)) {
			avoid = append(avoid, t)
		}
	}
	slices.Sort(avoid)
	return w.without(x.val, avoid)
}

// head tries every kind of the item at pos.
func (l *ledger) head(pos int32, tally, seen []int32) bool {
	for _, k := range l.slots[pos] {
		next, ok := countDuties(l.tally, tally, k.duties)
		if !ok {
			continue
		}
		if k.texts == nil {
			if l.canFinish(pos+1, next, seen) {
				return true
			}
			continue
		}
		for _, t := range k.texts {
			at, was := slices.BinarySearch(seen, t)
			if !was && l.canFinish(pos+1, next, slices.Insert(slices.Clone(seen), at, t)) {
				return true
			}
		}
	}
	return false
}

// sumBound bounds the number of items of some kinds.
type sumBound struct {
	kinds  uint32
	lo, hi int64
}

// tail asks for numbers of items of the last slot's kinds that keep all bounds.
func (l *ledger) tail(pos int32, tally, seen []int32) bool {
	kinds := l.slots[len(l.slots)-1]
	bounds := []sumBound{{1<<len(kinds) - 1, int64(max(0, l.min-pos)), int64(l.max) - int64(pos)}}
	for j, n := range l.tally {
		b := sumBound{hi: noEnd}
		if n > 0 {
			b.lo = int64(max(0, n-tally[j]))
		} else {
			b.hi = int64(-n-1) - int64(tally[j])
		}
		for i, k := range kinds {
			if k.duties>>j&1 != 0 {
				b.kinds |= 1 << i
			}
		}
		bounds = append(bounds, b)
	}
	for i, k := range kinds {
		if k.texts != nil {
			bounds = append(bounds, sumBound{1 << i, 0, int64(len(k.texts) - written(k.texts, seen))})
		}
	}
	return l.solve(kinds, 0, bounds)
}

// written is how many of the texts are in seen, which is sorted.
func written(texts, seen []int32) int {
	n := 0
	for _, t := range texts {
		if _, ok := slices.BinarySearch(seen, t); ok {
			n++
		}
	}
	return n
}

// solve tries all numbers of the kinds from i on but the last two, for which
// the bounds alone tell: each is one of x, of y or of x+y.
func (l *ledger) solve(kinds []itemKind, i int, bounds []sumBound) bool {
	if i < len(kinds)-2 {
		most := l.width(kinds, i)
		for _, b := range bounds {
			if b.kinds>>i&1 != 0 {
				most = min(most, b.hi)
			}
		}
		rest := make([]sumBound, len(bounds))
		for n := int64(0); n <= most; n++ {
			for k, b := range bounds {
				if b.kinds>>i&1 != 0 {
					b.lo, b.hi = b.lo-n, b.hi-n
				}
				rest[k] = b
			}
			if l.solve(kinds, i+1, rest) {
				return true
			}
		}
		return false
	}
	left := uint32(0)
	for k := i; k < len(kinds); k++ {
		left |= 1 << k
	}
	x, y, sum := sumBound{hi: noEnd}, sumBound{hi: noEnd}, sumBound{hi: 2 * noEnd}
	if len(kinds)-i < 2 {
		y.hi = 0
	}
	if len(kinds)-i < 1 {
		x.hi = 0
	}
	for _, b := range bounds {
		to := &sum
		switch b.kinds & left {
		case 0:
			if b.lo > 0 || b.hi < 0 {
				return false
			}
			continue
		case 1 << i:
			to = &x
		case 1 << (i + 1):
			to = &y
		}
		to.lo, to.hi = max(to.lo, b.lo), min(to.hi, b.hi)
	}
	return x.lo <= x.hi && y.lo <= y.hi && sum.lo <= sum.hi && x.lo+y.lo <= sum.hi && x.hi+y.hi >= sum.lo
}

// match asks for different texts at all places up to the least number of items.
func (l *ledger) match(pos int32, _, seen []int32) bool {
	if l.min > l.max {
		return false
	}
	last := int32(len(l.slots)) - 1
	unseen := func(k itemKind) []int32 {
		return slices.DeleteFunc(slices.Clone(k.texts), func(t int32) bool {
			_, was := slices.BinarySearch(seen, t)
			return was
		})
	}
	// Places with more texts than can be needed always find one.
	var places [][]int32
	for i := pos; i < min(last, l.min); i++ {
		if k := l.slots[i][0]; k.texts != nil {
			places = append(places, unseen(k))
		}
	}
	if k := l.slots[last]; l.min > max(pos, last) && len(k) > 0 && k[0].texts != nil {
		free := unseen(k[0])
		n := int(l.min - max(pos, last))
		if n > len(free) {
			return false
		}
		if len(places) == 0 {
			return true
		}
		for range n {
			places = append(places, free)
		}
	}
	owner := map[int32]int{}
	var tried map[int32]bool
	var place func(i int) bool
	place = func(i int) bool {
		for _, t := range places[i] {
			if tried[t] {
				continue
			}
			tried[t] = true
			if j, taken := owner[t]; !taken || place(j) {
				owner[t] = i
				return true
			}
		}
		return false
	}
	for i := range places {
		if tried = map[int32]bool{}; !place(i) {
			return false
		}
	}
	return true
}

// listFew lists the texts of every option of an array without equal items where
// there are no more than could be needed; it reports whether the texts that
// must be listed are few enough.
func (c *compiler) listFew(a *arrayNode) bool {
	enough := int64(len(a.slots)) + int64(a.min) + 1
	for _, n := range a.tally {
		enough += 2 * int64(max(n, 0))
	}
	limit := int(min(enough, fewTexts))
	for i := range a.slots {
		for k := range a.slots[i] {
			x := &a.slots[i][k]
			if x.texts != nil {
				continue
			}
			n, ok := c.countTexts(x.val.scalar, limit)
			switch {
			case !ok:
				return false
			case n < 0 || n > limit && int64(limit) == enough:
				continue
			case n > limit:
				return false
			}
			if x.texts, ok = c.listTexts(x.val.scalar); !ok {
				return false
			}
		}
	}
	return true
}

// countTexts is the number of texts of id, limit+1 for any more than limit, -1
// where they have no end; ok is false if that would take too long to find out.
func (c *compiler) countTexts(id nodeID, limit int) (n int, ok bool) {
	const inWork = -2
	counts := map[nodeID]int{}
	ok = true
	var count func(id nodeID, depth int) int
	count = func(id nodeID, depth int) int {
		if n, seen := counts[id]; seen {
			if n == inWork {
				return -1
			}
			return n
		}
		if len(counts) > maxLedger || depth > maxLedger/10 {
			ok = false
		}
		if !ok {
			return 0
		}
		c.spend(1)
		counts[id] = inWork
		n := 0
		if c.nullable(id) {
			n = 1
		}
		cls := c.tableOf(id).cls
		for i, b := range cls.rep {
			next := c.pool.step(id, b)
			if next == rxEmpty || !c.nonEmpty(next) {
				continue
			}
			end := 256
			if i+1 < len(cls.rep) {
				end = int(cls.rep[i+1])
			}
			m := count(next, depth+1)
			if m < 0 {
				n = -1
				break
			}
			if n = min(n+m*(end-int(b)), limit+1); n > limit {
				break
			}
		}
		counts[id] = n
		return n
	}
	n = count(id, 0)
	return n, ok
}

// listTexts is the texts of id, which are few.
func (c *compiler) listTexts(id nodeID) (texts []string, ok bool) {
	size := 0
	texts = []string{}
	var walk func(id nodeID, text []byte) bool
	walk = func(id nodeID, text []byte) bool {
		if c.nullable(id) {
			texts = append(texts, string(text))
			if size += len(text); size > maxListing {
				return false
			}
		}
		cls := c.tableOf(id).cls
		for i, b := range cls.rep {
			next := c.pool.step(id, b)
			if next == rxEmpty || !c.nonEmpty(next) {
				continue
			}
			end := 256
			if i+1 < len(cls.rep) {
				end = int(cls.rep[i+1])
			}
			for x := int(b); x < end; x++ {
				c.spend(1)
				if !walk(next, append(text[:len(text):len(text)], byte(x))) {
					return false
				}
			}
		}
		return true
	}
	if !walk(id, nil) {
		return nil, false
	}
	return texts, true
}
