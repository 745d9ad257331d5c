package cache

import "unsafe"

// node is a run of tokens after its parent's. Its pages cover the page indices
// from start/PageTokens on; see the package comment for pages that two nodes
// have. A node belongs to one root, which has no tokens and no parent.
type node struct {
	parent *node
	kids   map[Token]*node // by first token
	tokens []Token
	pages  []int32
	start  int // position of the first token
	locks  int // pins at or below this node
	used   uint64
	heap   int // index in the leaf heap, -1 if not in it
	dead   bool
	claims claimList
	next   int64 // of the claims, the nearest use

	block *block // of the tier, at the end of the last whole page; nil or gone if not known

	// Of roots only.
	ns    Namespace
	stale bool // flushed: removed as its pins go
}

func newNode(parent *node) *node { return &node{parent: parent, heap: -1} }

func (n *node) end() int { return n.start + len(n.tokens) }

// touch marks n as used now. n may be in the leaf heap only until the lock
// that follows.
func (c *Cache) touch(n *node) {
	n.used = c.clock
	n.dead = false
	c.reorder(n)
}

// addLeaf hangs tokens below parent. pages is the table of the whole sequence.
func (c *Cache) addLeaf(parent *node, tokens []Token, pages []int32) *node {
	n := newNode(parent)
	n.start = parent.end()
	n.tokens = append(make([]Token, 0, len(tokens)), tokens...)
	n.pages = append([]int32(nil), pages[n.start/PageTokens:pagesFor(n.end())]...)
	n.used = c.clock
	for _, id := range n.pages {
		c.pool.addTree(id)
	}
	if parent.kids == nil {
		parent.kids = make(map[Token]*node, 1)
	}
	parent.kids[tokens[0]] = n
	if parent.heap >= 0 {
		c.leaves.remove(parent)
	}
	c.leaves.push(n) // the caller locks it
	c.nodes++
	c.version++
	return n
}

// split cuts n after its first at tokens and returns the new upper part. n
// stays the lower part, so handles at its end stay where they are.
func (c *Cache) split(n *node, at int) *node {
	top := newNode(n.parent)
	top.start = n.start
	top.tokens = n.tokens[:at:at]
	top.locks = n.locks
	top.used = n.used
	top.dead = n.dead
	cut := n.start + at
	first := n.start / PageTokens
	top.pages = n.pages[: pagesFor(cut)-first : pagesFor(cut)-first]
	top.kids = map[Token]*node{n.tokens[at]: n}
	n.parent.kids[n.tokens[0]] = top

	n.parent = top
	n.tokens = n.tokens[at:]
	n.pages = n.pages[cut/PageTokens-first:]
	n.start = cut
	if cut%PageTokens != 0 { // the page of the cut is now in both
		c.pool.addTree(n.pages[0])
		if n.locks > 0 {
			c.pool.addHold(n.pages[0])
		}
	}
	c.nodes++
	return top
}

// remove takes a node without children and pins out of the tree. What its runs
// will read again is now, at best, its parent.
func (c *Cache) remove(n *node) {
	if n.heap >= 0 {
		c.leaves.remove(n)
	}
	for _, id := range n.pages {
		c.pool.dropTree(id)
	}
	parent := n.parent
	delete(parent.kids, n.tokens[0])
	c.moveClaims(n, parent)
	n.parent = nil
	c.nodes--
	c.version++
	c.becameLeaf(parent)
}

// becameLeaf puts n where a node without children belongs.
func (c *Cache) becameLeaf(n *node) {
	if len(n.kids) > 0 || n.locks > 0 {
		return
	}
	if n.parent == nil {
		if c.roots[n.ns] == n {
			delete(c.roots, n.ns)
		}
		return
	}
	if n.heap < 0 {
		c.leaves.push(n)
	}
}

// lock pins n and its ancestors up to, not including, until.
func (c *Cache) lock(n, until *node) {
	for ; n != until && n != nil; n = n.parent {
		if n.locks == 0 {
			if n.heap >= 0 {
				c.leaves.remove(n)
			}
			for _, id := range n.pages {
				c.pool.addHold(id)
			}
		}
		n.locks++
	}
}

// unlock undoes one lock of n and its ancestors. Unpinned nodes of a flushed
// tree go at once: everything below them has gone before.
func (c *Cache) unlock(n *node) {
	root := n
	for root.parent != nil {
		root = root.parent
	}
	for n != nil {
		parent := n.parent
		n.locks--
		if n.locks == 0 {
			for _, id := range n.pages {
				c.pool.dropHold(id)
			}
			if root.stale && parent != nil {
				c.remove(n)
			} else {
				c.becameLeaf(n)
			}
		}
		n = parent
	}
}

// commonPrefix is the length of the longest common prefix of a and b.
func commonPrefix(a, b []Token) int {
	n := min(len(a), len(b))
	if n == 0 {
		return 0
	}
	// Whole edges match far more often than not, and comparing strings is many
	// times faster than a loop over tokens.
	if asString(a[:n]) == asString(b[:n]) {
		return n
	}
	const block = 64
	i := 0
	for i+block <= n && asString(a[i:i+block]) == asString(b[i:i+block]) {
		i += block
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// asString views tokens as a string for comparing; it must not outlive them.
func asString(t []Token) string {
	return unsafe.String((*byte)(unsafe.Pointer(unsafe.SliceData(t))), len(t)*4)
}
