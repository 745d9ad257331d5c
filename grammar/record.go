package grammar

import "slices"

// This file enforces uniqueItems on items without containers. While such an
// item is written, a frame of kind frRecord on top of its array's frame holds
// the text so far. When the item is complete its text joins the array's set,
// and what is in the set cannot be written again.

type otherKey struct {
	val int32
	set int32
}

// ropeKey is a text that is one byte longer than another; 0 is the empty text.
type ropeKey struct {
	before int32
	b      byte
}

// extend is the text id of a text and one more byte.
func (w *writer) extend(id int32, b byte) int32 {
	k := ropeKey{id, b}
	if n, ok := w.ropes[k]; ok {
		return n
	}
	if w.ropes == nil {
		w.ropes = map[ropeKey]int32{}
		w.ropeList = []ropeKey{{}}
	}
	w.ropeList = append(w.ropeList, k)
	n := int32(len(w.ropeList) - 1)
	w.ropes[k] = n
	return n
}

func (w *writer) rope(id int32) string {
	var b []byte
	for ; id != 0; id = w.ropeList[id].before {
		b = append(b, w.ropeList[id].b)
	}
	slices.Reverse(b)
	return string(b)
}

// without is v less the texts of a set, nil when none is left.
func (w *writer) without(v *valueNode, seen []int32) *valueNode {
	if len(seen) == 0 {
		return v
	}
	k := otherKey{v.id, w.arraySetID(nil, seen)}
	if o, ok := w.others[k]; ok {
		return o
	}
	if w.others == nil {
		w.others = map[otherKey]*valueNode{}
	}
	words := make([]string, len(seen))
	for i, id := range seen {
		words[i] = w.sets[id]
	}
	scalar := w.and(v.scalar, w.pool.not(w.words(words)))
	var o *valueNode
	if w.nonEmpty(scalar) {
		o = &valueNode{id: w.valueIDs, f: v.f, scalar: scalar, state: 2, alive: true}
		w.valueIDs++
	}
	w.others[k] = o
	return o
}

// recorded is the array's frame after the item in the record was written.
func (w *writer) recorded(array, record frameID) frameID {
	f := w.frames[array]
	a := w.arrays[f.node]
	tally, seen := w.arraySet(a, f.set)
	seen = append(seen, w.setID(w.rope(w.frames[record].set)))
	slices.Sort(seen)
	f.set = w.arraySetID(tally, seen)
	return w.frameID(f)
}

// behindRecord is what may follow an item of the array on top of stack, as if
// the item were unlike all others.
func (m *machine) behindRecord(stack *cell) *place {
	m.build.reset()
	m.enter(stack.frame, stack.next)
	return m.finish()
}
