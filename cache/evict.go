package cache

import "slices"

// claim says that a run will read a prefix again.
type claim struct {
	run  string
	rank int
}

// maxRuns bounds the runs that are remembered. A run that ended without Forget
// costs nothing more than a worse eviction order until it is pushed out.
const maxRuns = 1024

// Claim notes that run will read the prefix of h again, after rank other uses
// of its own. Claimed prefixes are evicted last, the highest rank first. A
// claim is no pin. Claiming the same prefix again replaces the rank.
func (c *Cache) Claim(h *Handle, run string, rank int) {
	n := h.node
	if n == nil || n.parent == nil || run == "" {
		return
	}
	nodes := c.runs[run]
	if nodes == nil {
		if len(c.runAge) >= maxRuns {
			c.Forget(c.runAge[0])
		}
		nodes = make(map[*node]struct{})
		c.runs[run] = nodes
		c.runAge = append(c.runAge, run)
	}
	nodes[n] = struct{}{}
	i := slices.IndexFunc(n.claims, func(cl claim) bool { return cl.run == run })
	if i < 0 {
		n.claims = append(n.claims, claim{run, rank})
	} else {
		n.claims[i].rank = rank
	}
	c.reorder(n)
}

// Forget drops all claims of a run.
func (c *Cache) Forget(run string) {
	nodes, ok := c.runs[run]
	if !ok {
		return
	}
	for n := range nodes {
		n.claims = slices.DeleteFunc(n.claims, func(cl claim) bool { return cl.run == run })
		c.reorder(n)
	}
	delete(c.runs, run)
	c.runAge = slices.DeleteFunc(c.runAge, func(r string) bool { return r == run })
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
	for _, cl := range n.claims {
		nodes := c.runs[cl.run]
		delete(nodes, n)
		if parent.parent == nil {
			continue
		}
		nodes[parent] = struct{}{}
		i := slices.IndexFunc(parent.claims, func(p claim) bool { return p.run == cl.run })
		if i < 0 {
			parent.claims = append(parent.claims, cl)
		} else {
			parent.claims[i].rank = min(parent.claims[i].rank, cl.rank)
		}
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
			c.pool.dropTree(leaf.pages[last])
			leaf.pages = leaf.pages[:last]
			leaf.tokens = leaf.tokens[:(leaf.start/PageTokens+last)*PageTokens-leaf.start]
			c.version++
		}
		if c.pool.free.n < n {
			c.remove(leaf)
		}
	}
}

// leafHeap holds the nodes without children and pins, what to evict first at
// the root.
type leafHeap []*node

// before reports whether a is to be evicted before b.
func before(a, b *node) bool {
	ca, ra := a.class()
	cb, rb := b.class()
	if ca != cb {
		return ca < cb
	}
	if ra != rb {
		return ra > rb
	}
	return a.used < b.used
}

// class is 0 for what will not be read, 1 for what nothing is known of, 2 for
// what a run will read again; then rank is the nearest such use.
func (n *node) class() (class, rank int) {
	if len(n.claims) == 0 {
		if n.dead {
			return 0, 0
		}
		return 1, 0
	}
	rank = n.claims[0].rank
	for _, cl := range n.claims[1:] {
		rank = min(rank, cl.rank)
	}
	return 2, rank
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
