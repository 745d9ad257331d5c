package cache

import "math/bits"

// pool counts who uses each page. A page is in exactly one of three states:
//
//	hold > 0               held
//	hold == 0, tree > 0    evictable
//	hold == 0, tree == 0   free
type pool struct {
	hold      []int32 // pinned nodes that have the page, plus sequences that allocated it
	tree      []int32 // nodes that have the page
	free      pageSet
	held      int
	evictable int
}

func newPool(n int) pool {
	p := pool{hold: make([]int32, n), tree: make([]int32, n), free: newPageSet(n)}
	for i := range n {
		p.free.add(int32(i))
	}
	return p
}

// take holds a free page and returns it: the one after last if that is free,
// so that a sequence lies on neighbouring pages, else the first. There must be
// one.
func (p *pool) take(last int32) int32 {
	id := last + 1
	if int(id) >= len(p.hold) || !p.free.has(id) {
		id = p.free.first()
	}
	p.free.remove(id)
	p.hold[id] = 1
	p.held++
	return id
}

func (p *pool) addHold(id int32) {
	if p.hold[id] == 0 {
		p.held++
		p.evictable-- // pages are only ever held again out of the tree
	}
	p.hold[id]++
}

func (p *pool) dropHold(id int32) {
	p.hold[id]--
	if p.hold[id] > 0 {
		return
	}
	p.held--
	if p.tree[id] > 0 {
		p.evictable++
	} else {
		p.free.add(id)
	}
}

// addTree notes one more node with the page. The page must not be free.
func (p *pool) addTree(id int32) { p.tree[id]++ }

// dropTree notes one node less.
func (p *pool) dropTree(id int32) {
	p.tree[id]--
	if p.tree[id] > 0 || p.hold[id] > 0 {
		return
	}
	p.evictable--
	p.free.add(id)
}

// pageSet is a set of pages with a quick first: a bit a page, and a bit for
// every word that is not zero.
type pageSet struct {
	words, summary []uint64
	n              int
}

func newPageSet(n int) pageSet {
	words := (n + 63) / 64
	return pageSet{words: make([]uint64, words), summary: make([]uint64, (words+63)/64)}
}

func (s *pageSet) has(id int32) bool { return s.words[id>>6]&(1<<(id&63)) != 0 }

func (s *pageSet) add(id int32) {
	s.words[id>>6] |= 1 << (id & 63)
	s.summary[id>>12] |= 1 << (id >> 6 & 63)
	s.n++
}

func (s *pageSet) remove(id int32) {
	if s.words[id>>6] &^= 1 << (id & 63); s.words[id>>6] == 0 {
		s.summary[id>>12] &^= 1 << (id >> 6 & 63)
	}
	s.n--
}

// first is the lowest page of a set that is not empty.
func (s *pageSet) first() int32 {
	for i, w := range s.summary {
		if w != 0 {
			word := i*64 + bits.TrailingZeros64(w)
			return int32(word*64 + bits.TrailingZeros64(s.words[word]))
		}
	}
	panic("cache: no free page")
}
