package grammar

import (
	"container/heap"
	"slices"
)

// This file finds the shortest texts of lexemes.

const (
	// lexemeSteps bounds the states that are looked at for a lexeme.
	lexemeSteps = 4096
	// endless is more bytes than are sought.
	endless = 1 << 20
)

// farther is how many bytes the texts of lexemes have at least.
type farther struct {
	nodes  map[nodeID]int32
	leaves []int32
}

// far is how many bytes a text of id has at least; it is exact for expressions without
// And and Not.
func (m *machine) far(id nodeID) int32 {
	k := &m.ends.far
	if n, ok := k.nodes[id]; ok {
		return n
	}
	n := int64(0)
	for at := id; ; {
		nd := &m.nodes[at]
		if nd.kind == kCat {
			at = nd.b
			n += int64(m.far(nd.a))
			continue
		}
		n += m.farOf(nd)
		break
	}
	out := int32(min(n, endless))
	k.nodes[id] = out
	return out
}

func (m *machine) farOf(nd *node) int64 {
	n := int64(0)
	switch nd.kind {
	case kEmpty:
		return endless
	case kLeaf:
		return int64(m.farLeaf(int32(nd.a)))
	case kAlt:
		n = endless
		for _, x := range nd.list {
			n = min(n, int64(m.far(x)))
		}
	case kAnd:
		for _, x := range nd.list {
			n = max(n, int64(m.far(x)))
		}
	case kNot:
		if nd.flags&fNullable == 0 {
			n = 1
		}
	case kRep:
		n = int64(nd.m) * int64(m.far(nd.a))
	}
	return n
}

// farLeaf is how many bytes lead from a leaf to an accepting one.
func (m *machine) farLeaf(l int32) int32 {
	k := &m.ends.far
	if from := len(k.leaves); int(l) >= from {
		for range m.leaves[from:] {
			k.leaves = append(k.leaves, endless)
		}
		// Most edges lead to earlier leaves, so that one pass is enough for these.
		for changed := true; changed; {
			changed = false
			for i := from; i < len(m.leaves); i++ {
				n := int32(endless)
				if m.leaves[i].accept {
					n = 0
				}
				for _, e := range m.leaves[i].edges {
					n = min(n, k.leaves[e.to]+1)
				}
				if n < k.leaves[i] {
					k.leaves[i], changed = n, true
				}
			}
		}
	}
	return k.leaves[l]
}

// step of a search: a text and where it leads.
type endingStep struct {
	text ending
	at   int32
	far  int // bytes of the text and of what must follow it at least
}

type endingQueue []endingStep

func (q endingQueue) Len() int { return len(q) }
func (q endingQueue) Less(i, j int) bool {
	if q[i].far != q[j].far {
		return q[i].far < q[j].far
	}
	return ending.shorter(q[i].text, q[j].text)
}
func (q endingQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *endingQueue) Push(x any)   { *q = append(*q, x.(endingStep)) }
func (q *endingQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// lexemeEnding is the shortest text of id.
func (m *machine) lexemeEnding(id nodeID) ending {
	return recall(m, m.ends.lexemes, id, func() ending {
		mark := len(m.nodes)
		text := m.straight(id)
		if text == nil && m.spendEnding(0) {
			text = m.searchLexeme(id, true)
		}
		if text == nil && m.spendEnding(0) {
			text = m.searchLexeme(id, false)
		}
		m.forget(mark)
		return text
	})
}

// straight is a text of id of no more bytes than it must have, the first of them in the
// order of bytes; nil where following that order leads to none.
func (m *machine) straight(id nodeID) ending {
	text, left := ending{}, m.far(id)
	if left > LongestEnding {
		return nil
	}
	for ; left > 0; left-- {
		to := rxEmpty
		for _, b := range m.tableOf(id).cls.rep {
			if !m.spendEnding(1) {
				return nil
			}
			if n := m.pool.step(id, b); n != rxEmpty && m.far(n) < left {
				to, text = n, append(text, b)
				break
			}
		}
		if to == rxEmpty {
			return nil
		}
		id = to
	}
	if !m.nullable(id) {
		return nil
	}
	return text
}

// searchLexeme is the shortest text of id, or, if that is not wanted, one that is found
// by going where the least is missing.
func (m *machine) searchLexeme(id nodeID, shortest bool) ending {
	queue := endingQueue{{text: ending{}, at: int32(id)}}
	best := map[nodeID]ending{id: {}}
	for range lexemeSteps {
		if len(queue) == 0 {
			return nil
		}
		x := heap.Pop(&queue).(endingStep)
		at := nodeID(x.at)
		if best[at].shorter(x.text) {
			continue // there was a better way here
		}
		if m.nullable(at) {
			return x.text
		}
		cls := m.tableOf(at).cls
		if !m.spendEnding(len(cls.rep)) {
			return nil
		}
		for _, b := range cls.rep {
			n := m.pool.step(at, b)
			if n == rxEmpty {
				continue
			}
			far := int(m.far(n))
			if len(x.text)+1+far > LongestEnding {
				continue
			}
			text := append(x.text[:len(x.text):len(x.text)], b)
			if old, ok := best[n]; ok && (!shortest || !text.shorter(old)) {
				continue
			}
			best[n] = text
			if shortest {
				far += len(text)
			}
			heap.Push(&queue, endingStep{text, int32(n), far})
		}
	}
	return nil
}

// nameText is the rest of a name and the name's label.
type nameText struct {
	text  ending
	label int32
}

// nameEndings is what completes a name out of those of a choice, the shortest first.
func (m *machine) nameEndings(id nodeID) (names []nameText) {
	lead := ending{}
	for ; m.nodes[id].kind == kCat; id = m.nodes[id].b {
		if lead = lead.then(m.lexemeEnding(m.nodes[id].a)); lead == nil {
			return nil
		}
	}
	if id == rxEps || m.nodes[id].kind != kLeaf {
		return nil
	}
	var walk func(l int32, text ending)
	walk = func(l int32, text ending) {
		for !m.leaves[l].accept && len(m.leaves[l].edges) == 1 && m.spendEnding(1) {
			e := &m.leaves[l].edges[0]
			l, text = e.to, append(text, e.lo)
		}
		if m.leaves[l].accept {
			names = append(names, nameText{text, m.leaves[l].label})
		}
		for _, e := range m.leaves[l].edges {
			if len(text) >= LongestEnding || !m.spendEnding(1) {
				return
			}
			walk(e.to, append(text[:len(text):len(text)], e.lo))
		}
	}
	walk(int32(m.nodes[id].a), lead)
	slices.SortFunc(names, func(a, b nameText) int {
		switch {
		case a.text.shorter(b.text):
			return -1
		case b.text.shorter(a.text):
			return 1
		}
		return 0
	})
	return names
}
