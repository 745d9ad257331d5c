package cache

import "fmt"

// PageTokens is the number of tokens of a page.
const PageTokens = 16

// Token is an id in a model's vocabulary.
type Token = int32

// Namespace is what must be equal, besides the tokens, for a prefix to be
// shared. Its fields are compared one by one: an adapter named like somebody's
// salt shares nothing with it.
type Namespace struct {
	Model   string // fingerprint of weights and tokenizer
	Adapter string
	Salt    string // of a tenant
}

// Cache is a fixed set of pages and the trees over them. It is not safe for
// concurrent use.
type Cache struct {
	pool    pool
	roots   map[Namespace]*node
	leaves  leafHeap
	runs    map[string]map[string]*node // by run and branch, what it claims
	runAge  []string                    // runs in the order they were first seen, oldest first
	tier    *tier                       // nil without one
	clock   uint64
	version uint64
	nodes   int
	handles int
	owned   int
}

// New returns a cache of n free pages, numbered from 0.
func New(n int) *Cache {
	return &Cache{
		pool:  newPool(n),
		roots: make(map[Namespace]*node),
		runs:  make(map[string]map[string]*node),
	}
}

// Stats are the sizes of a cache. Free + Evictable + Held is Pages.
type Stats struct {
	Pages     int
	Free      int
	Evictable int // only in the tree
	Held      int // pinned, or allocated by a sequence
	Nodes     int // nodes with tokens
	Handles   int // handles not yet released
	Owned     int // holds that callers have by Alloc, Hold and TakeTail
}

// Stats returns the sizes now, in constant time.
func (c *Cache) Stats() Stats {
	return Stats{
		Pages: len(c.pool.hold), Free: c.pool.free.n, Evictable: c.pool.evictable,
		Held: c.pool.held, Nodes: c.nodes, Handles: c.handles, Owned: c.owned,
	}
}

// Version changes whenever a prefix was added or removed, so that a caller may
// keep what [Cache.Peek] said until then.
func (c *Cache) Version() uint64 { return c.version }

// Available is the number of pages that Alloc could give now.
func (c *Cache) Available() int { return c.pool.free.n + c.pool.evictable }

// Alloc appends n pages to dst, evicting what it must, and reports whether it
// could. If not, nothing was evicted and dst is as it was. The pages are held
// by the caller until [Cache.Release]. They follow the last page of dst and
// each other where those are free; many at once lie as [Stretch] says, taking
// dst for all pages of a sequence so far.
func (c *Cache) Alloc(dst []int32, n int) ([]int32, bool) {
	if c.Available() < n {
		return dst, false
	}
	c.evict(n)
	c.owned += n
	last := int32(-1)
	if len(dst) > 0 {
		last = dst[len(dst)-1]
	}
	for n > 0 {
		id, run := c.pool.place(last, len(dst), n)
		for range run {
			c.pool.take(id)
			dst = append(dst, id)
			last, id = id, id+1
		}
		n -= run
	}
	return dst, true
}

// Hold adds a hold to pages that are held already or in the tree; each needs
// its own Release.
func (c *Cache) Hold(pages []int32) {
	c.owned += len(pages)
	for _, id := range pages {
		c.pool.addHold(id)
	}
}

// Release gives up one hold of each page. A page that is in the tree stays
// there and becomes evictable; any other becomes free.
func (c *Cache) Release(pages []int32) {
	c.owned -= len(pages)
	for _, id := range pages {
		c.pool.dropHold(id)
	}
}

// Handle is a pinned prefix: a path from the root to the end of a node. It is
// valid until Unpin. The zero Handle pins nothing.
type Handle struct {
	node *node
}

// Len is the number of tokens of the prefix.
func (h *Handle) Len() int {
	if h.node == nil {
		return 0
	}
	return h.node.end()
}

// Pages returns the pages of the prefix from page index from on, appended to
// dst: page i holds the tokens [16i, 16i+16). If Len is no multiple of
// PageTokens, the last page is only partly the prefix's: whoever wants to
// write after the prefix must copy it first.
func (h *Handle) Pages(dst []int32, from int) []int32 {
	if h.node == nil || h.node.parent == nil {
		return dst
	}
	hi := pagesFor(h.node.end())
	if hi <= from {
		return dst
	}
	base := len(dst) - from // where page index 0 would be
	dst = append(dst, make([]int32, hi-from)...)
	for n := h.node; n.parent != nil && hi > from; n = n.parent {
		lo := n.start / PageTokens
		for i := hi - 1; i >= max(lo, from); i-- {
			dst[base+i] = n.pages[i-lo]
		}
		hi = min(hi, lo)
	}
	return dst
}

// TakeTail lets the caller write behind the prefix of h in the page where it
// ends, and holds that page: it need not be copied. It reports false if the prefix
// ends with its page, or somebody else may write there or has written.
func (c *Cache) TakeTail(h *Handle) bool {
	n := h.node
	if n == nil || n.parent == nil || n.end()%PageTokens == 0 {
		return false
	}
	// The page may be that of nodes above, which end in it before.
	id := n.pages[len(n.pages)-1]
	above := int32(0)
	for a := n; a.parent != nil && a.pages[len(a.pages)-1] == id; a = a.parent {
		above++
	}
	if n.locks != 1 || c.pool.tree[id] != above || c.pool.hold[id] != above {
		return false
	}
	c.pool.addHold(id)
	c.owned++
	return true
}

// Match pins the longest prefix of tokens that the tree has, which may be
// empty, and marks it used.
func (c *Cache) Match(ns Namespace, tokens []Token) *Handle {
	root := c.roots[ns]
	if root == nil {
		root = newNode(nil)
		root.ns = ns
		c.roots[ns] = root
	}
	c.clock++
	n := root
	for len(tokens) > 0 {
		kid := n.kids[tokens[0]]
		if kid == nil {
			break
		}
		m := commonPrefix(kid.tokens, tokens)
		if m < len(kid.tokens) {
			n = c.split(kid, m)
			c.touch(n)
			break
		}
		n = kid
		c.touch(n)
		tokens = tokens[m:]
	}
	c.lock(n, nil)
	c.handles++
	return &Handle{node: n}
}

// Peek returns the length that Match would pin, and changes nothing.
func (c *Cache) Peek(ns Namespace, tokens []Token) int {
	n := c.roots[ns]
	if n == nil {
		return 0
	}
	have := 0
	for len(tokens) > 0 {
		kid := n.kids[tokens[0]]
		if kid == nil {
			break
		}
		m := commonPrefix(kid.tokens, tokens)
		have += m
		if m < len(kid.tokens) {
			break
		}
		n, tokens = kid, tokens[m:]
	}
	return have
}

// Extend puts computed tokens into the tree after the prefix of h and moves h
// to their end. pages is the page table of the whole sequence, prefix included;
// it must hold the tokens' keys and values already, and its pages from the
// prefix's end on must be held by the caller, who keeps those holds.
//
// Where the tree has some of the tokens already, its own pages stay and the
// caller's are not used: compare with [Handle.Pages] and release the doubles.
func (c *Cache) Extend(h *Handle, tokens []Token, pages []int32) {
	if len(tokens) == 0 || h.node == nil {
		return
	}
	if want := pagesFor(h.Len() + len(tokens)); len(pages) < want {
		panic(fmt.Sprintf("cache: Extend to %d tokens with %d pages, want %d", h.Len()+len(tokens), len(pages), want))
	}
	c.clock++
	old := h.node
	n := old
	for len(tokens) > 0 {
		kid := n.kids[tokens[0]]
		if kid == nil {
			n = c.addLeaf(n, tokens, pages)
			break
		}
		m := commonPrefix(kid.tokens, tokens)
		if m < len(kid.tokens) {
			kid = c.split(kid, m)
		}
		n = kid
		c.touch(n)
		tokens = tokens[m:]
	}
	c.lock(n, old)
	h.node = n
}

// Unpin releases the prefix. A second Unpin does nothing.
func (c *Cache) Unpin(h *Handle) {
	if h == nil || h.node == nil {
		return
	}
	n := h.node
	h.node = nil
	c.handles--
	c.unlock(n)
}

// Flush forgets every prefix. What is pinned stays until its handles are
// released, but is found by no later Match.
func (c *Cache) Flush() {
	c.version++
	c.tier.clear()
	for ns, root := range c.roots {
		root.stale = true
		c.prune(root)
		delete(c.roots, ns)
	}
}

// prune removes every subtree below n that nothing pins.
func (c *Cache) prune(n *node) {
	for _, kid := range n.kids {
		c.prune(kid)
		if kid.locks == 0 {
			c.remove(kid)
		}
	}
}

func pagesFor(tokens int) int { return (tokens + PageTokens - 1) / PageTokens }
