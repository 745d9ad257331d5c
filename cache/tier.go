package cache

import (
	"container/heap"
	"slices"
)

// Tier is memory beside the pool, of so many slots of one page each. Its owner moves
// the content of pages; the cache says which. A page that cannot be saved is evicted
// as it would be without a tier. One that cannot be loaded is lost: it is computed
// again, and what the page of the pool holds then does not matter.
type Tier interface {
	Save(slot, page int32) error // copies a page of the pool to a slot
	Load(page, slot int32) error // copies it back
}

// TierStats count what a tier holds and did.
type TierStats struct {
	Slots, Used int
	Saved       uint64 // pages that were evicted and went there
	Loaded      uint64 // pages that came back as they were needed
	Fetched     uint64 // pages that came back before, see Fetch
	Failed      uint64 // pages that could not be saved or loaded
}

// tier knows which pages lie in which slots. It is a tree of blocks of PageTokens
// tokens each, so that a page is known by all tokens before it and its own, not by a
// hash of them. A block without a slot only leads to others.
//
//	tree of the pool   [0 ...... 32)[32 .. 48)          pages evicted from the end
//	tier                 .     .       .    [48 .. 64)[64 .. 80)
//	                                        slot 3     slot 1
//
// What comes back leaves its slot.
type tier struct {
	mem    Tier
	roots  map[Namespace]*block
	free   []int32 // slots
	leaves blockHeap
	wants  map[Owner]*block // where what an owner will read again ends
	soon   int64            // no owner is known to read before that
	count  TierStats
	passed int // blocks that evicting has gone by
}

// block is one page of tokens after its parent's.
type block struct {
	parent *block
	kids   map[[PageTokens]Token]*block
	tokens [PageTokens]Token
	depth  int   // in blocks; 0 is a root
	slot   int32 // -1 without one
	locked bool  // is being loaded: keeps its slot
	gone   bool  // is not in the tree any more
	used   uint64
	heap   int // index in the heap of what can be dropped, -1 if not in it
	claims claimList
	next   int64 // of the claims, the nearest use

	ns Namespace // of roots only
}

// prefix returns all tokens up to the end of b.
func (b *block) prefix() []Token {
	tokens := make([]Token, b.depth*PageTokens)
	for ; b.parent != nil; b = b.parent {
		copy(tokens[(b.depth-1)*PageTokens:], b.tokens[:])
	}
	return tokens
}

// leadsTo reports whether b is at the end of the last whole page of n, or of one that n
// has lost since.
func (b *block) leadsTo(n *node) bool {
	whole := n.end() / PageTokens * PageTokens
	have := b.prefix()
	return len(have) >= whole && slices.Equal(have[:whole], n.tokensFrom(0)[:whole])
}

// SetTier gives the cache a tier of n slots. Pages that are evicted go there, but for
// those that nobody will read again, and come back by [Cache.Restore] and
// [Cache.Fetch]. It is called before the first page is handed out.
func (c *Cache) SetTier(mem Tier, n int) {
	t := &tier{mem: mem, roots: map[Namespace]*block{}, wants: map[Owner]*block{}}
	for slot := n - 1; slot >= 0; slot-- {
		t.free = append(t.free, int32(slot))
	}
	t.count.Slots = n
	c.tier = t
}

// TierStats returns what the tier holds and did; all is 0 without one.
func (c *Cache) TierStats() TierStats {
	if c.tier == nil {
		return TierStats{}
	}
	s := c.tier.count
	s.Used = s.Slots - len(c.tier.free)
	return s
}

// park saves the last page of a leaf that is about to lose it, if it is full.
func (c *Cache) park(n *node) {
	t := c.tier
	if t == nil || n.class() == deadNode || n.end()%PageTokens != 0 {
		return
	}
	b, grown := c.blockOf(n)
	if b.slot < 0 {
		b.locked = true // the way to it may be that of what is dropped for it
		slot, ok := t.take(n)
		if b.locked = false; !ok {
			t.tidy(b)
			return
		}
		if t.mem.Save(slot, n.pages[len(n.pages)-1]) != nil {
			t.count.Failed++
			t.free = append(t.free, slot)
			t.tidy(b)
			return
		}
		b.slot = slot
		t.count.Saved++
	}
	b.used = n.used
	for _, cl := range n.claims {
		t.want(b, cl)
	}
	t.place(b)
	if grown != nil {
		t.place(grown) // no leaf any more
	}
}

// take returns a slot for a page of n: a free one, or that of what is worth less.
func (t *tier) take(n *node) (slot int32, ok bool) {
	if len(t.free) == 0 {
		if len(t.leaves) == 0 || !blockBefore(t.leaves[0], &block{used: n.used, claims: n.claims, next: n.next}) {
			return 0, false
		}
		t.drop(t.leaves[0])
	}
	last := len(t.free) - 1
	slot = t.free[last]
	t.free = t.free[:last]
	return slot, true
}

// blockOf returns the block at the end of the last whole page of n, and makes the way to
// it: from that of the nearest node above of which it is known, so that evicting what
// hangs on a long prefix does not go through all of that each time. grown is the block
// that new ones begin at, nil without new ones.
func (c *Cache) blockOf(n *node) (b, grown *block) {
	t, from := c.tier, n
	for from.parent != nil && (from.block == nil || from.block.gone) {
		from = from.parent
	}
	if from.parent == nil {
		if b = t.roots[from.ns]; b == nil {
			b = &block{slot: -1, heap: -1, ns: from.ns}
			t.roots[from.ns] = b
		}
		from.block = b
	}
	b = from.block
	for b.depth > from.end()/PageTokens { // it was longer; what follows it now is something else
		b = b.parent
		t.passed++
	}
	from.block = b
	for rest := n.tokensFrom(b.depth * PageTokens); len(rest) >= PageTokens; rest = rest[PageTokens:] {
		kid := b.kids[[PageTokens]Token(rest)]
		if kid == nil {
			kid = &block{parent: b, tokens: [PageTokens]Token(rest), depth: b.depth + 1, slot: -1, heap: -1}
			if b.kids == nil {
				b.kids = make(map[[PageTokens]Token]*block, 1)
			}
			if b.kids[kid.tokens] = kid; grown == nil {
				grown = b
			}
		}
		b = kid
		t.passed++
	}
	n.block = b
	for p, at := n.parent, b; n != from && p != from; p = p.parent {
		for at.depth > p.end()/PageTokens {
			at = at.parent
		}
		p.block = at
	}
	return b, grown
}

// tokensFrom returns the tokens from a position up to the end of n.
func (n *node) tokensFrom(pos int) []Token {
	end := n.end()
	tokens := make([]Token, end-pos)
	for ; end > pos; n, end = n.parent, n.start {
		from := max(pos, n.start)
		copy(tokens[from-pos:], n.tokens[from-n.start:])
	}
	return tokens
}

// drop gives up the slot of a block.
func (t *tier) drop(b *block) {
	t.free = append(t.free, b.slot)
	claims := b.claims
	b.slot, b.claims = -1, nil
	t.place(b)
	for _, cl := range claims { // what is left of it
		delete(t.wants, cl.owner)
		if b.parent.slot >= 0 {
			t.want(b.parent, cl)
		}
	}
	t.tidy(b)
}

// tidy removes a block that holds nothing and leads nowhere, and those above it that
// only led there, and puts what is left where it belongs.
func (t *tier) tidy(b *block) {
	for b.slot < 0 && len(b.kids) == 0 && !b.locked {
		if b.heap >= 0 {
			heap.Remove(&t.leaves, b.heap)
		}
		for _, cl := range b.claims {
			delete(t.wants, cl.owner)
		}
		b.claims, b.gone = nil, true
		if b.parent == nil {
			delete(t.roots, b.ns)
			return
		}
		delete(b.parent.kids, b.tokens)
		b = b.parent
	}
	t.place(b)
}

// place restores the order after b changed: what has a slot and leads to no other can
// be dropped.
func (t *tier) place(b *block) {
	switch in := b.slot >= 0 && len(b.kids) == 0 && !b.locked; {
	case in && b.heap < 0:
		heap.Push(&t.leaves, b)
	case in:
		heap.Fix(&t.leaves, b.heap)
	case b.heap >= 0:
		heap.Remove(&t.leaves, b.heap)
	}
}

// want notes that an owner will read up to b again, unless it is known to read
// further.
func (t *tier) want(b *block, cl claim) {
	if old := t.wants[cl.owner]; old != nil {
		if old.depth >= b.depth {
			return
		}
		t.unwant(cl.owner)
	}
	t.wants[cl.owner] = b
	t.soon = min(t.soon, cl.next)
	b.claims = append(b.claims, cl)
	t.claimed(b)
}

// expect changes when an owner will read its prefix, and reports whether any of that
// is here.
func (t *tier) expect(owner Owner, next int64) bool {
	if t == nil || t.wants[owner] == nil {
		return false
	}
	b := t.wants[owner]
	b.claims[b.claims.of(owner)].next = next
	t.soon = min(t.soon, next)
	t.claimed(b)
	return true
}

// unwant forgets what an owner wants.
func (t *tier) unwant(owner Owner) {
	if t == nil || t.wants[owner] == nil {
		return
	}
	b := t.wants[owner]
	i := b.claims.of(owner)
	b.claims = slices.Delete(b.claims, i, i+1)
	delete(t.wants, owner)
	t.claimed(b)
}

// forget drops what a run wants.
func (t *tier) forget(run string) {
	if t == nil {
		return
	}
	for owner := range t.wants {
		if owner.Run == run {
			t.unwant(owner)
		}
	}
}

func (t *tier) claimed(b *block) {
	b.next = b.claims.next(b.next)
	t.place(b)
}

// clear forgets everything.
func (t *tier) clear() {
	if t == nil {
		return
	}
	for _, root := range t.roots {
		t.release(root)
	}
	t.roots, t.leaves = map[Namespace]*block{}, nil
	clear(t.wants)
}

func (t *tier) release(b *block) {
	b.gone = true
	if b.slot >= 0 {
		t.free = append(t.free, b.slot)
	}
	for _, kid := range b.kids {
		t.release(kid)
	}
}

// blockHeap has what to drop first at its root: what nobody is known to read, by last
// use, then what is read last.
type blockHeap []*block

func blockBefore(a, b *block) bool {
	if wanted := len(a.claims) > 0; wanted != (len(b.claims) > 0) {
		return !wanted
	} else if wanted && a.next != b.next {
		return a.next > b.next
	}
	if a.used != b.used {
		return a.used < b.used
	}
	return a.slot < b.slot
}

func (h blockHeap) Len() int           { return len(h) }
func (h blockHeap) Less(i, j int) bool { return blockBefore(h[i], h[j]) }
func (h blockHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}
func (h *blockHeap) Push(x any) {
	b := x.(*block)
	b.heap = len(*h)
	*h = append(*h, b)
}
func (h *blockHeap) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	b.heap = -1
	return b
}
