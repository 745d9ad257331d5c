package cache

import (
	"cmp"
	"math"
	"slices"
)

// parked returns the blocks that the tier has of tokens, one after the other from the
// one in which a prefix of have tokens ends.
func (c *Cache) parked(ns Namespace, tokens []Token, have int) (blocks []*block) {
	if c.tier == nil {
		return nil
	}
	b := c.tier.roots[ns]
	for i := 0; b != nil && (i+1)*PageTokens <= len(tokens); i++ {
		if b = b.kids[[PageTokens]Token(tokens[i*PageTokens:])]; b == nil {
			break
		}
		if i < have/PageTokens {
			continue
		}
		if b.slot < 0 {
			break
		}
		blocks = append(blocks, b)
	}
	return blocks
}

// Parked is how many tokens more than the prefix of h the tier can bring back of
// tokens, which begin with that prefix.
func (c *Cache) Parked(h *Handle, tokens []Token) int {
	if c.tier == nil || h.node == nil {
		return 0
	}
	blocks := c.parked(c.rootOf(h.node).ns, tokens, h.Len())
	if len(blocks) == 0 {
		return 0
	}
	return blocks[len(blocks)-1].depth*PageTokens - h.Len()
}

// Restore brings back what the tier has of tokens after the prefix of h, moves h to its
// end, and returns how many tokens that was. It evicts what it must.
func (c *Cache) Restore(h *Handle, tokens []Token) int {
	if c.tier == nil || h.node == nil {
		return 0
	}
	had := h.Len()
	blocks := c.parked(c.rootOf(h.node).ns, tokens, had)
	c.tier.count.Loaded += uint64(c.load(h, tokens, blocks, func() bool { return c.Available() > 0 }))
	return h.Len() - had
}

// load moves blocks that follow the prefix of h back into the pool while there is room,
// and returns how many that were.
func (c *Cache) load(h *Handle, tokens []Token, blocks []*block, room func() bool) int {
	t := c.tier
	for _, b := range blocks { // what is evicted for them must not take their slots
		b.locked = true
		t.place(b)
	}
	own := h.Len() / PageTokens
	pages := h.Pages(nil, 0)[:own]
	n := 0
	for ; n < len(blocks) && room(); n++ {
		var ok bool
		if pages, ok = c.Alloc(pages, 1); !ok {
			break
		}
		b := blocks[n]
		err := t.mem.Load(pages[len(pages)-1], b.slot)
		t.free = append(t.free, b.slot)
		b.slot = -1
		if err != nil {
			t.count.Failed++
			c.Release(pages[len(pages)-1:])
			pages = pages[:len(pages)-1]
			break
		}
	}
	if end := (own + n) * PageTokens; n > 0 {
		c.Extend(h, tokens[h.Len():end], pages)
		c.Release(pages[own:])
	}
	for i := len(blocks) - 1; i >= 0; i-- {
		b := blocks[i]
		b.locked = false
		if claims := b.claims; b.slot < 0 {
			b.claims = nil
			for _, cl := range claims { // all of them first: a claim may push a run out
				delete(t.wants, cl.owner)
			}
			if h.node.parent == nil { // nothing is left of it
				claims = nil
			}
			for _, cl := range claims {
				c.claim(h.node, cl.owner, cl.next)
			}
			t.tidy(b)
		} else {
			t.place(b)
		}
	}
	return n
}

// Fetch brings pages back before they are asked for, at most so many: of those whose
// owners will read them by the time until, the soonest first. It takes pages that are
// free or worth less, so nothing goes that is read sooner.
func (c *Cache) Fetch(until int64, most int) (pages int) {
	if c.tier == nil || len(c.tier.wants) == 0 || c.tier.soon > until { // so that a step costs nothing
		return 0
	}
	type due struct {
		owner Owner
		next  int64
	}
	var list []due
	c.tier.soon = math.MaxInt64
	for owner, b := range c.tier.wants {
		next := b.claims[b.claims.of(owner)].next
		c.tier.soon = min(c.tier.soon, next)
		if next <= until {
			list = append(list, due{owner, next})
		}
	}
	slices.SortFunc(list, func(a, b due) int {
		return cmp.Or(cmp.Compare(a.next, b.next), cmp.Compare(a.owner.Run, b.owner.Run), cmp.Compare(a.owner.Branch, b.owner.Branch))
	})
	for _, d := range list {
		n, full := c.fetch(d.owner, d.next, most-pages)
		if pages += n; full || pages >= most {
			break
		}
	}
	c.tier.count.Fetched += uint64(pages)
	return pages
}

// NextFetch is the nearest time after until at which Fetch has something to do.
func (c *Cache) NextFetch(until int64) (next int64, ok bool) {
	if c.tier == nil {
		return 0, false
	}
	for owner, b := range c.tier.wants {
		if at := b.claims[b.claims.of(owner)].next; at > until && (!ok || at < next) {
			next, ok = at, true
		}
	}
	return next, ok
}

// fetch brings back at most so many pages of what an owner wants; full reports that
// there is no room for what is read so late.
func (c *Cache) fetch(owner Owner, next int64, most int) (n int, full bool) {
	b := c.tier.wants[owner]
	if b == nil { // went to make room for another
		return 0, false
	}
	tokens := b.prefix()
	root := b
	for root.parent != nil {
		root = root.parent
	}
	h := c.Match(root.ns, tokens)
	defer c.Unpin(h)
	all := c.parked(root.ns, tokens, h.Len())
	if len(all) == 0 { // what is before it is lost
		c.tier.unwant(owner)
		return 0, false
	}
	blocks := all[:min(most, len(all))]
	n = c.load(h, tokens, blocks, func() bool {
		return c.pool.free.n > 0 || len(c.leaves) > 0 && (c.leaves[0].class() < claimedNode || c.leaves[0].next > next)
	})
	if n == 0 {
		return 0, true
	}
	if n == len(all) {
		c.tier.unwant(owner) // if it ends behind what is there
	}
	c.claim(h.node, owner, next)
	return n, n < len(blocks)
}

// rootOf returns the root above n.
func (c *Cache) rootOf(n *node) *node {
	for n.parent != nil {
		n = n.parent
	}
	return n
}
