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

// Stretch is the number of pages of a sequence that are worth keeping together: whoever
// lays pages out in memory in groups of as many reads long sequences in a row. Half
// of it is the least that is.
const Stretch = 32

// place returns a free page for the page at of a sequence whose last one so far is
// last, -1 for none, and how many of the n pages that it wants lie there in a row.
// Few go after the last one if that is free, else to the first free page, so that
// short sequences leave no gaps. Many, and those of a sequence that has come to the
// end of a stretch, go where at and the page are the same modulo a stretch, or half
// of one, and all are free up to its end. One page must be free.
func (p *pool) place(last int32, at, n int) (id int32, run int) {
	next, room := last+1, n
	if at > 0 && at%Stretch == 0 {
		room = max(n, Stretch)
	}
	for size := Stretch; size >= Stretch/2 && room >= Stretch/2; size /= 2 {
		from := at % size
		run := min(room, size-from)
		mask := (uint64(1)<<run - 1) << from
		if base := int(next) - from; base >= 0 && base%size == 0 && p.free.all(int32(base), mask) {
			return next, min(n, run)
		}
		if base, ok := p.free.find(mask, size); ok {
			return base + int32(from), min(n, run)
		}
	}
	if int(next) >= len(p.hold) || !p.free.has(next) {
		next = p.free.first()
	}
	return next, 1
}

// take holds a free page.
func (p *pool) take(id int32) {
	p.free.remove(id)
	p.hold[id] = 1
	p.held++
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

// all tells whether the set has the pages from base on that are set in mask; both lie in
// one word.
func (s *pageSet) all(base int32, mask uint64) bool {
	return int(base>>6) < len(s.words) && s.words[base>>6]>>(base&63)&mask == mask
}

// find returns the first multiple of size, a power of two up to 64, for which all is true.
func (s *pageSet) find(mask uint64, size int) (base int32, ok bool) {
	for i, w := range s.summary {
		for ; w != 0; w &= w - 1 {
			word := int32(i*64 + bits.TrailingZeros64(w))
			for base := word * 64; base < word*64+64; base += int32(size) {
				if s.all(base, mask) {
					return base, true
				}
			}
		}
	}
	return 0, false
}
