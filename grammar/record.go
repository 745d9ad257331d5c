package grammar

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// This file enforces uniqueItems on items without containers. While such an
// item is written, a frame of kind frRecord on top of its array's frame holds
// the text so far. When the item is complete its text joins the array's set,
// and what is in the set cannot be written again. Where the number of an
// object's free names counts, or what one of them holds, they are told apart in
// the same way: of two equal names a reader keeps one.

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

// ids is the members of an interned set of texts.
func (w *writer) ids(set int32) []int32 {
	var out []int32
	for s := w.sets[set]; len(s) >= 4; s = s[4:] {
		out = append(out, int32(binary.LittleEndian.Uint32([]byte(s[:4]))))
	}
	return out
}

// distinct reports whether a free name that was written before f must not come
// again.
func (o *objectNode) distinct(f *frame) bool {
	return len(o.cells) > 0 && (o.duty > 0 || o.bound && o.min > 1 && f.cnt < o.min)
}

// nameValue is the names of a cell, each with its closing quote.
func (w *writer) nameValue(p *objectPlan, i int, c *objectCell) *valueNode {
	for len(p.free) <= i {
		p.free = append(p.free, nil)
	}
	if p.free[i] == nil {
		p.free[i] = &valueNode{id: w.valueIDs, scalar: w.cat(c.lang, w.bytes(`"`)), state: 2, alive: true}
		w.valueIDs++
	}
	return p.free[i]
}

// leave is the frame behind the text in a record; kept tells whether that text
// joins those that cannot be written again.
func (w *writer) leave(record, below frameID, kept bool) frameID {
	r, f := w.frames[record], w.frames[below]
	if f.kind == frObject {
		if kept {
			seen := append(w.ids(f.free), w.setID(w.rope(r.set)))
			slices.Sort(seen)
			f.free = w.arraySetID(nil, seen)
		}
		o := w.objects[f.node]
		act, _ := w.memberAct(o, w.plan(f.node), f, -1, o.cells[r.node].options)
		return w.frameID(frame{kind: frColon, node: int32(act)})
	}
	if kept {
		tally, seen := w.arraySet(w.arrays[f.node], f.set)
		seen = append(seen, w.setID(w.rope(r.set)))
		slices.Sort(seen)
		f.set = w.arraySetID(tally, seen)
	}
	return w.frameID(f)
}

// behindRecord is what may follow the text in the record on top of stack, as if
// it were unlike all others.
func (m *machine) behindRecord(stack *cell) *place {
	m.build.reset()
	m.enter(m.leave(stack.frame, stack.next.frame, false), stack.next.next)
	return m.finish()
}

// mattersTo tells for which tokens it matters what text ends in the record on
// top of stack: those that hold it once more, as the text of something else.
// Where other texts are promised to some item it may matter to all: nil.
func (m *machine) mattersTo(stack *cell) func(token []byte) bool {
	if f := m.frames[stack.next.frame]; f.kind == frArray {
		if l := m.ledgers[f.node]; l == nil || l.listed {
			return nil
		}
	}
	before := m.rope(m.frames[stack.frame].set)
	var text []byte
	return func(token []byte) bool {
		for k := 1; len(token)-k > len(before)+k; k++ {
			text = append(append(text[:0], before...), token[:k]...)
			if bytes.Contains(token[k:], text) {
				return true
			}
		}
		return false
	}
}
