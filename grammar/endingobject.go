package grammar

import (
	"bytes"
	"math"
	"slices"
	"strings"
)

// This file finds the shortest ways to close objects. One name after the other is
// written or left out, those that the schema does not name behind these: what is best
// from there on depends on how many properties were written and which duties are
// fulfilled, not on which ones were. Where any order is allowed the names are taken as
// they sort, and what was chosen is sorted in the end: how long a text is does not depend
// on the order.

// objectEnding is how one object is closed.
type objectEnding struct {
	m      *machine
	o      *objectNode
	p      *objectPlan
	f      frame
	need   int32 // properties that must be written yet
	most   int32 // that may be
	exact  bool  // whether that bears on it: then those beyond need are counted too
	lead   ending
	close  ending
	names  []int32       // that may be written
	last   []int32       // [i]: how many of names[i:] must be
	values []dutyEndings // of each name, found when asked for
	cells  []freeNames
	known  map[objectAt]*objectTail
}

// objectAt is a place in an object: the next of its names, or, behind these, the next of
// a cell's; how many properties were written; which duties are fulfilled.
type objectAt struct {
	name, cell, free int32
	wrote            int32
	duties           uint32
}

// objectTail is a text as a list of parts; a nil part ends it. A nil tail is none.
type objectTail struct {
	part  ending
	label int32 // of its name
	next  *objectTail
	size  int
}

// shorter reports whether t is to be taken before u.
func (t *objectTail) shorter(u *objectTail) bool {
	switch {
	case t == nil:
		return false
	case u == nil || t.size < u.size:
		return true
	case t.size > u.size:
		return false
	}
	a, b := t.part, u.part
	for {
		for len(a) == 0 && t.next != nil {
			t = t.next
			a = t.part
		}
		for len(b) == 0 && u.next != nil {
			u = u.next
			b = u.part
		}
		n := min(len(a), len(b))
		if n == 0 || t == u && len(a) == len(b) {
			return false
		}
		for i := range n {
			if a[i] != b[i] {
				return a[i] < b[i]
			}
		}
		a, b = a[n:], b[n:]
	}
}

// dutyEnding is the shortest value that fulfils some duties.
type dutyEnding struct {
	duties uint32
	text   ending
}

type dutyEndings struct {
	known bool
	list  []dutyEnding
}

// freeNames is the names of a cell that an ending takes, the shortest first.
type freeNames struct {
	seen  []int32 // what may not be written
	texts []ending
	done  bool // there are no more
	value dutyEndings
}

// newObjectEnding prepares for a frame of an object.
func (m *machine) newObjectEnding(f frame) *objectEnding {
	o := m.objects[f.node]
	e := &objectEnding{m: m, o: o, p: m.writer.plan(f.node), f: f, most: math.MaxInt32, known: map[objectAt]*objectTail{}}
	if o.bound {
		e.need, e.most = max(0, o.min-f.cnt), o.max
		if o.max < math.MaxInt32 {
			e.most -= f.cnt
		}
	}
	e.writable()
	f.started = true
	e.lead = m.lexemeEnding(m.nameLead(f))
	e.close = m.lexemeEnding(m.closing(f))
	e.cells = make([]freeNames, len(o.cells))
	return e
}

// objectEnding is the shortest text that closes the object of a frame.
func (m *machine) objectEnding(f frame) ending {
	e := m.newObjectEnding(f)
	t := e.from(objectAt{duties: f.duties})
	switch {
	case t == nil:
		return nil
	case f.started:
		return e.text(ending{}, t)
	case t.next == nil:
		return m.lexemeEnding(m.closing(f))
	}
	lead := m.lexemeEnding(m.nameLead(f))
	return lead.then(e.text(ending{}, t)[len(e.lead):])
}

// text is what stands before t and t.
func (e *objectEnding) text(before ending, t *objectTail) ending {
	var parts []ending
	for ; t != nil; t = t.next {
		parts = append(parts, t.part)
	}
	if e.m.anyOrder {
		slices.SortFunc(parts[:len(parts)-1], func(a, b ending) int { return bytes.Compare(a, b) })
	}
	out := slices.Clone(before)
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// nameEnding is the shortest text that completes a name of those that node allows and
// closes the object of the frame that it stands in.
func (m *machine) nameEnding(node nodeID, id frameID) (best ending) {
	names := m.nameEndings(node)
	if m.anyOrder {
		return m.nameOfAny(names, m.frames[id])
	}
	f := m.frames[id]
	e := m.newObjectEnding(f)
	for _, n := range names {
		if best != nil && len(n.text)+2 > len(best) {
			continue
		}
		if m.ws.Max > 0 {
			n.text = n.text.then(ending{':'})
		}
		i := n.label - 1
		next, _ := slices.BinarySearch(e.names, i+1)
		for _, v := range e.valuesOf(e.o.names[i].options) {
			if t := e.wrote(objectAt{name: int32(next), duties: f.duties}, n.text, v); t != nil {
				if text := e.text(n.text.then(v.text), t.next); text.shorter(best) {
					best = text
				}
			}
		}
	}
	return best
}

// namesTried bounds the names that are tried where any order is allowed: what comes
// behind each is a search of its own.
const namesTried = 16

// nameOfAny is nameEnding where any order is allowed.
func (m *machine) nameOfAny(names []nameText, f frame) (best ending) {
	o := m.objects[f.node]
	if len(names) > namesTried {
		// Those that the whole object is closed with, then those that must come.
		first := map[int32]int{}
		e := m.newObjectEnding(f)
		for t := e.from(objectAt{duties: f.duties}); t != nil; t = t.next {
			first[t.label] = 2
		}
		for i := range o.names {
			if o.names[i].required {
				first[int32(i)+1]++
			}
		}
		slices.SortStableFunc(names, func(a, b nameText) int { return first[b.label] - first[a.label] })
		names = names[:namesTried]
	}
	for _, n := range names {
		if m.ws.Max > 0 {
			n.text = n.text.then(ending{':'})
		}
		i := n.label - 1
		for _, x := range o.names[i].options {
			text := n.text.then(m.valueEnding(x.val)).then(m.frameEnding(m.frameID(m.member(o, f, i, x.duties))))
			if text.shorter(best) {
				best = text
			}
		}
	}
	return best
}

// writable finds the names that a short way may write.
func (e *objectEnding) writable() {
	o, must := e.o, int32(0)
	idle := e.f.duties == 1<<o.duty-1 && e.need == 0
	e.m.remaining(o, e.p, &e.f, func(i int32) {
		if o.names[i].required {
			must++
		}
	})
	if o.bound {
		// More than what must come, what is needed and one for each duty is no use.
		e.exact = e.most < max(must+int32(o.duty), e.need)
		idle = idle || must >= e.need && e.f.duties == 1<<o.duty-1
	}
	e.m.remaining(o, e.p, &e.f, func(i int32) {
		if !idle || o.names[i].required {
			e.names = append(e.names, i)
		}
	})
	if e.m.anyOrder {
		slices.SortFunc(e.names, func(a, b int32) int { return strings.Compare(o.names[a].text, o.names[b].text) })
	}
	e.last = make([]int32, len(e.names)+1)
	for i := len(e.names) - 1; i >= 0; i-- {
		e.last[i] = e.last[i+1]
		if o.names[e.names[i]].required {
			e.last[i]++
		}
	}
	e.values = make([]dutyEndings, len(e.names))
}

// from is the shortest way from a place on.
func (e *objectEnding) from(at objectAt) (best *objectTail) {
	full := at.duties == 1<<e.o.duty-1
	over := e.exact && at.wrote+e.last[at.name] > e.most
	if int(at.name) == len(e.names) && full && at.wrote >= e.need && !over {
		return &objectTail{part: e.close, size: len(e.close)}
	}
	if t, ok := e.known[at]; ok {
		return t
	}
	if !e.m.spendEnding(1) || over {
		return nil
	}
	if int(at.name) < len(e.names) {
		best = e.fromName(at)
	} else {
		best = e.fromCell(at)
	}
	e.known[at] = best
	return best
}

// fromName writes a name or leaves it out.
func (e *objectEnding) fromName(at objectAt) (best *objectTail) {
	n := &e.o.names[e.names[at.name]]
	if !n.required {
		next := at
		next.name++
		best = e.from(next)
	}
	if v := &e.values[at.name]; !v.known {
		v.known, v.list = true, e.valuesOf(n.options)
	}
	text := ending(n.text + e.p.suffix)
	if e.m.ws.Max > 0 {
		text = append(text, ':')
	}
	for _, v := range e.values[at.name].list {
		if !n.required && !e.useful(at, v) {
			continue
		}
		next := at
		next.name++
		if t := e.wrote(next, text, v); t.shorter(best) {
			t.label = e.names[at.name] + 1
			best = t
		}
	}
	return best
}

// useful reports whether a property that need not be written is wanted.
func (e *objectEnding) useful(at objectAt, v dutyEnding) bool {
	return at.wrote < e.need || v.duties&^at.duties != 0
}

// wrote is the way behind a property.
func (e *objectEnding) wrote(next objectAt, name ending, v dutyEnding) *objectTail {
	if next.wrote++; !e.exact {
		next.wrote = min(next.wrote, e.need)
	}
	next.duties |= v.duties
	t := e.from(next)
	if size := len(e.lead) + len(name) + len(v.text); t != nil && t.size+size <= LongestEnding {
		return &objectTail{part: slices.Concat(e.lead, name, v.text), next: t, size: t.size + size}
	}
	return nil
}

// fromCell writes a free name, or none of this cell any more.
func (e *objectEnding) fromCell(at objectAt) (best *objectTail) {
	if int(at.cell) == len(e.cells) {
		return nil
	}
	best = e.from(objectAt{name: at.name, cell: at.cell + 1, wrote: at.wrote, duties: at.duties})
	c := &e.cells[at.cell]
	if at.wrote >= e.need && at.duties == 1<<e.o.duty-1 {
		return best
	}
	if !c.value.known {
		c.value.known, c.value.list = true, e.valuesOf(e.o.cells[at.cell].options)
	}
	if len(c.value.list) == 0 {
		return best
	}
	name := e.freeName(at.cell, at.free)
	if name == nil {
		return best
	}
	for _, v := range c.value.list {
		if !e.useful(at, v) {
			continue
		}
		next := at
		next.free++
		if t := e.wrote(next, name, v); t.shorter(best) {
			best = t
		}
	}
	return best
}

// freeName is the nth name of a cell, with all up to the value; nil if there is none.
func (e *objectEnding) freeName(cell, n int32) ending {
	m, c := e.m, &e.cells[cell]
	names := m.nameValue(e.p, int(cell), &e.o.cells[cell])
	if len(c.texts) == 0 && e.o.distinct(&e.f) {
		c.seen = m.ids(e.f.free)
	}
	for int(n) >= len(c.texts) && !c.done {
		v := m.without(names, c.seen)
		if c.done = v == nil || !m.spendEnding(1+len(c.seen)); c.done {
			break
		}
		text := m.lexemeEnding(v.scalar)
		if c.done = text == nil; c.done {
			break
		}
		c.seen = append(slices.Clone(c.seen), m.setID(string(text)))
		slices.Sort(c.seen)
		c.texts = append(c.texts, text.then(m.lexemeEnding(m.colon())))
	}
	if int(n) >= len(c.texts) {
		return nil
	}
	return c.texts[n]
}

// valuesOf is the shortest value for each set of duties that the options have.
func (e *objectEnding) valuesOf(options []option) (list []dutyEnding) {
	for _, x := range options {
		text := e.m.valueEnding(x.val)
		if text == nil {
			continue
		}
		i := slices.IndexFunc(list, func(d dutyEnding) bool { return d.duties == x.duties })
		switch {
		case i < 0:
			list = append(list, dutyEnding{x.duties, text})
		case text.shorter(list[i].text):
			list[i].text = text
		}
	}
	return list
}
