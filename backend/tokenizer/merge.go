package tokenizer

import (
	"math"
	"math/bits"
	"sync"
)

// symbol is a stretch of a word that a merge has made so far, text[start:end].
type symbol struct {
	start, end int32
	id         int32 // of the model; what it means is up to the pairer
}

// pairer knows which neighbours merge. The lowest priority merges first; none means
// never. id is that of the merged symbol.
type pairer interface {
	pair(left, right symbol) (priority uint32, id int32)
}

const none = math.MaxUint32

// merger is scratch memory for merging the symbols of one word.
type merger struct {
	symbols []symbol
	pairs   []pairing // of symbols i and i+1, or the heap
	next    []int32
	prev    []int32
	text    []byte
}

// pairing is a possible merge. In the heap key is priority<<32 | index of the left
// symbol, so equal priorities go from left to right.
type pairing struct {
	key   uint64
	id    int32
	right int32 // index of the right symbol
	end   int32 // of the right symbol when the pairing was made
}

var mergers = sync.Pool{New: func() any { return new(merger) }}

// longWord is the number of symbols from which a heap beats scanning.
const longWord = 40

// merge merges m.symbols until no neighbours are left that may: always the pair of
// lowest priority, the leftmost among equals.
func (m *merger) merge(p pairer) {
	if len(m.symbols) < longWord {
		m.scan(p)
	} else {
		m.heap(p)
	}
}

// scan looks at all pairs for each merge: quadratic, but quick for short words.
func (m *merger) scan(p pairer) {
	s := m.symbols
	pairs := m.pairs[:0]
	for i := 0; i+1 < len(s); i++ {
		priority, id := p.pair(s[i], s[i+1])
		pairs = append(pairs, pairing{key: uint64(priority), id: id})
	}
	for len(pairs) > 0 {
		best := 0
		for i := range pairs {
			if pairs[i].key < pairs[best].key {
				best = i
			}
		}
		if pairs[best].key == none {
			break
		}
		s[best] = symbol{s[best].start, s[best+1].end, pairs[best].id}
		s = append(s[:best+1], s[best+2:]...)
		pairs = append(pairs[:best], pairs[best+1:]...)
		for i := max(best-1, 0); i <= best && i < len(pairs); i++ {
			priority, id := p.pair(s[i], s[i+1])
			pairs[i] = pairing{key: uint64(priority), id: id}
		}
	}
	m.symbols, m.pairs = s, pairs
}

// heap keeps the possible merges in a heap and the symbols in a linked list.
func (m *merger) heap(p pairer) {
	s := m.symbols
	n := int32(len(s))
	m.next, m.prev = grow(m.next, len(s)), grow(m.prev, len(s))
	for i := range n {
		m.next[i], m.prev[i] = i+1, i-1
	}
	m.next[n-1] = -1
	m.pairs = m.pairs[:0]
	push := func(left, right int32) {
		if left < 0 || right < 0 {
			return
		}
		if priority, id := p.pair(s[left], s[right]); priority != none {
			m.push(pairing{uint64(priority)<<32 | uint64(left), id, right, s[right].end})
		}
	}
	for i := range n - 1 {
		push(i, i+1)
	}
	for len(m.pairs) > 0 {
		x := m.pop()
		left, right := int32(uint32(x.key)), x.right
		if s[left].end == s[left].start || m.next[left] != right || s[right].end != x.end {
			continue // one of the two has merged since
		}
		s[left] = symbol{s[left].start, x.end, x.id}
		s[right].end = s[right].start // gone
		m.next[left] = m.next[right]
		if m.next[left] >= 0 {
			m.prev[m.next[left]] = left
		}
		push(m.prev[left], left)
		push(left, m.next[left])
	}
	kept := s[:0]
	for _, x := range s {
		if x.end > x.start {
			kept = append(kept, x)
		}
	}
	m.symbols = kept
}

func (m *merger) push(x pairing) {
	h := append(m.pairs, x)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].key <= x.key {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = x
	m.pairs = h
}

func (m *merger) pop() pairing {
	h := m.pairs
	top, x := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	m.pairs = h
	if len(h) == 0 {
		return top
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].key < h[down].key {
			down++
		}
		if x.key <= h[down].key {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = x
	return top
}

func grow(s []int32, n int) []int32 {
	if cap(s) < n {
		return make([]int32, n)
	}
	return s[:n]
}

// mergeTable maps pairs of ids to the rank and result of their merge: open
// addressing, at most half full.
type mergeTable struct {
	shift uint
	slots []mergeSlot
}

type mergeSlot struct {
	left, right int32 // left is -1 in an empty slot
	rank        uint32
	id          int32
}

func newMergeTable(n int) *mergeTable {
	log := uint(bits.Len(uint(2*n + 1)))
	t := &mergeTable{shift: 64 - log, slots: make([]mergeSlot, 1<<log)}
	for i := range t.slots {
		t.slots[i].left = -1
	}
	return t
}

// slot finds the slot of a pair, or the empty one where it belongs.
func (t *mergeTable) slot(left, right int32) *mergeSlot {
	const golden = 0x9E3779B97F4A7C15
	i := (uint64(uint32(left))<<32 | uint64(uint32(right))) * golden
	i = (i ^ i>>29) * golden >> t.shift
	for {
		s := &t.slots[i]
		if s.left == left && s.right == right || s.left < 0 {
			return s
		}
		i = (i + 1) & uint64(len(t.slots)-1)
	}
}
