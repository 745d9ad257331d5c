package cache

import "slices"

// Owner is who will read a prefix again: a branch of a run. It has one prefix at
// a time, since what it reads next begins with what it read before.
type Owner struct {
	Run    string
	Branch string
}

// claim says when an owner will read a prefix again.
type claim struct {
	owner Owner
	next  int64
}

// maxRuns bounds the runs that are remembered. A run that ended without Forget
// costs nothing more than a worse eviction order until it is pushed out.
const maxRuns = 4096

// Claim notes that owner will read the prefix of h again at the time next, and
// none that it claimed before. Times are whatever the caller counts in. Claimed
// prefixes are evicted last, the latest use first. A claim is no pin.
func (c *Cache) Claim(h *Handle, owner Owner, next int64) {
	n := h.node
	if n == nil || n.parent == nil || owner.Run == "" {
		return
	}
	c.tier.unwant(owner)
	c.claim(n, owner, next)
}

func (c *Cache) claim(n *node, owner Owner, next int64) {
	c.dropClaim(owner)
	nodes := c.runs[owner.Run]
	if nodes == nil {
		if len(c.runAge) >= maxRuns {
			c.Forget(c.runAge[0])
		}
		nodes = make(map[string]*node)
		c.runs[owner.Run] = nodes
		c.runAge = append(c.runAge, owner.Run)
	}
	nodes[owner.Branch] = n
	n.claims = append(n.claims, claim{owner, next})
	c.claimed(n)
}

// Expect changes when the owner of a claim will read its prefix, and reports
// whether there is any of it left.
func (c *Cache) Expect(owner Owner, next int64) bool {
	parked := c.tier.expect(owner, next)
	n := c.runs[owner.Run][owner.Branch]
	if n == nil {
		return parked
	}
	n.claims[n.claims.of(owner)].next = next
	c.claimed(n)
	return true
}

// Unclaim drops the claim of an owner, if it has one.
func (c *Cache) Unclaim(owner Owner) {
	c.tier.unwant(owner)
	c.dropClaim(owner)
}

// dropClaim is Unclaim for the pool alone.
func (c *Cache) dropClaim(owner Owner) {
	nodes := c.runs[owner.Run]
	n := nodes[owner.Branch]
	if n == nil {
		return
	}
	i := n.claims.of(owner)
	n.claims = slices.Delete(n.claims, i, i+1)
	c.claimed(n)
	c.disown(owner)
}

// disown forgets where the claim of an owner is.
func (c *Cache) disown(owner Owner) {
	nodes := c.runs[owner.Run]
	delete(nodes, owner.Branch)
	if len(nodes) == 0 {
		delete(c.runs, owner.Run)
		c.runAge = slices.DeleteFunc(c.runAge, func(r string) bool { return r == owner.Run })
	}
}

// Forget drops all claims of a run.
func (c *Cache) Forget(run string) {
	c.tier.forget(run)
	nodes, ok := c.runs[run]
	if !ok {
		return
	}
	for branch, n := range nodes {
		i := n.claims.of(Owner{run, branch})
		n.claims = slices.Delete(n.claims, i, i+1)
		c.claimed(n)
	}
	delete(c.runs, run)
	c.runAge = slices.DeleteFunc(c.runAge, func(r string) bool { return r == run })
}

// claimList is what owners claim of a node or a parked block.
type claimList []claim

// of returns the index of the claim of an owner, -1 without one.
func (l claimList) of(owner Owner) int {
	return slices.IndexFunc(l, func(cl claim) bool { return cl.owner == owner })
}

// next returns the soonest use, or old if nobody claims anything.
func (l claimList) next(old int64) int64 {
	for i, cl := range l {
		if i == 0 || cl.next < old {
			old = cl.next
		}
	}
	return old
}

// claimed restores the order after the claims of n changed.
func (c *Cache) claimed(n *node) {
	n.next = n.claims.next(n.next)
	c.reorder(n)
}

// Dead notes that the nodes of h's path which begin at token from or later will
// not be read again, as far as anyone knows: they are evicted first. It stops at
// a node that other prefixes share.
func (c *Cache) Dead(h *Handle, from int) {
	for n := h.node; n != nil && n.parent != nil && n.start >= from; n = n.parent {
		if n != h.node && len(n.kids) > 1 {
			break
		}
		n.dead = true
		c.reorder(n)
	}
}

// moveClaims hands the claims of a removed node to its parent.
func (c *Cache) moveClaims(n, parent *node) {
	if len(n.claims) == 0 {
		return
	}
	for _, cl := range n.claims {
		if parent.parent == nil {
			c.disown(cl.owner)
		} else {
			c.runs[cl.owner.Run][cl.owner.Branch] = parent
		}
	}
	if parent.parent != nil {
		parent.claims = append(parent.claims, n.claims...)
		c.claimed(parent)
	}
	n.claims = nil
}

// evict frees pages until n are free. There must be enough.
func (c *Cache) evict(n int) {
	for c.pool.free.n < n {
		leaf := c.leaves[0]
		// Cut the leaf from its end, and take it out when one page is left: the
		// first page may be its parent's too and is then not freed.
		for len(leaf.pages) > 1 && c.pool.free.n < n {
			last := len(leaf.pages) - 1
			c.park(leaf)
			c.pool.dropTree(leaf.pages[last])
			leaf.pages = leaf.pages[:last]
			leaf.tokens = leaf.tokens[:(leaf.start/PageTokens+last)*PageTokens-leaf.start]
			c.version++
		}
		if c.pool.free.n < n {
			c.park(leaf)
			c.remove(leaf)
		}
	}
}

// leafHeap holds the nodes without children and pins, what to evict first at
// the root.
type leafHeap []*node

// before reports whether a is to be evicted before b.
func before(a, b *node) bool {
	ca, cb := a.class(), b.class()
	switch {
	case ca != cb:
		return ca < cb
	case ca == claimedNode && a.next != b.next:
		return a.next > b.next
	}
	return a.used < b.used
}

// The classes of nodes, in the order in which they are evicted.
const (
	deadNode    = iota // will not be read
	unknownNode        // nothing is known
	claimedNode        // its owners will read it again
)

func (n *node) class() int {
	switch {
	case len(n.claims) > 0:
		return claimedNode
	case n.dead:
		return deadNode
	}
	return unknownNode
}

// reorder restores the heap after n changed.
func (c *Cache) reorder(n *node) {
	if n.heap >= 0 {
		c.leaves.fix(n.heap)
	}
}

func (h *leafHeap) push(n *node) {
	n.heap = len(*h)
	*h = append(*h, n)
	h.up(n.heap)
}

func (h *leafHeap) remove(n *node) {
	i, last := n.heap, len(*h)-1
	if i != last {
		h.swap(i, last)
	}
	(*h)[last] = nil
	*h = (*h)[:last]
	n.heap = -1
	if i != last {
		h.fix(i)
	}
}

func (h *leafHeap) fix(i int) {
	if !h.down(i) {
		h.up(i)
	}
}

func (h *leafHeap) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !before((*h)[i], (*h)[parent]) {
			return
		}
		h.swap(i, parent)
		i = parent
	}
}

func (h *leafHeap) down(i int) bool {
	moved := false
	for {
		kid := 2*i + 1
		if kid >= len(*h) {
			return moved
		}
		if r := kid + 1; r < len(*h) && before((*h)[r], (*h)[kid]) {
			kid = r
		}
		if !before((*h)[kid], (*h)[i]) {
			return moved
		}
		h.swap(i, kid)
		i, moved = kid, true
	}
}

func (h leafHeap) swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heap, h[j].heap = i, j
}
