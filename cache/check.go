package cache

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Check recounts everything that the cache keeps count of and returns what is
// wrong. It walks the whole tree: for tests and for an idle engine. Nodes that
// were flushed but are still pinned are reachable only by their handles, so
// stale says which those are.
func (c *Cache) Check(stale ...*Handle) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	tree := make([]int32, len(c.pool.tree))
	holds := make([]int32, len(c.pool.hold)) // by nodes alone
	nodes, leaves, claimed := 0, 0, 0
	var walk func(n *node)
	walk = func(n *node) {
		for first, kid := range n.kids {
			nodes++
			claimed += len(kid.claims)
			if kid.parent != n || kid.start != n.end() || len(kid.tokens) == 0 || kid.tokens[0] != first {
				bad("node at %d: wrong parent, start or first token", kid.start)
				continue
			}
			if want := pagesFor(kid.end()) - kid.start/PageTokens; len(kid.pages) != want {
				bad("node [%d,%d): %d pages, want %d", kid.start, kid.end(), len(kid.pages), want)
			}
			if kid.locks > n.locks {
				bad("node [%d,%d): %d pins under %d", kid.start, kid.end(), kid.locks, n.locks)
			}
			for _, id := range kid.pages {
				tree[id]++
				if kid.locks > 0 {
					holds[id]++
				}
			}
			if b := kid.block; b != nil && !b.gone && !b.leadsTo(kid) {
				bad("node [%d,%d): of other tokens than its block of the tier, at %d", kid.start, kid.end(), b.depth)
			}
			leaf := len(kid.kids) == 0 && kid.locks == 0
			if leaf {
				leaves++
			}
			if leaf != (kid.heap >= 0) {
				bad("node [%d,%d): in the leaf heap: %v, want %v", kid.start, kid.end(), kid.heap >= 0, leaf)
			}
			walk(kid)
		}
	}
	roots := make(map[*node]bool)
	for ns, r := range c.roots {
		roots[r] = true
		if r.ns != ns || r.stale {
			bad("root of %v: stale or of another namespace", ns)
		}
	}
	for _, h := range stale {
		if h == nil || h.node == nil {
			continue
		}
		r := h.node
		for r.parent != nil {
			r = r.parent
		}
		roots[r] = true
	}
	for r := range roots {
		walk(r)
	}
	if nodes != c.nodes {
		bad("%d nodes reachable, %d counted", nodes, c.nodes)
	}
	if leaves != len(c.leaves) {
		bad("%d evictable leaves, %d in the heap", leaves, len(c.leaves))
	}
	for i, n := range c.leaves {
		if n.heap != i {
			bad("leaf heap: index %d says %d", i, n.heap)
		}
		if i > 0 && before(n, c.leaves[(i-1)/2]) {
			bad("leaf heap: %d goes before its parent", i)
		}
	}

	free := make([]bool, len(tree))
	freePages := 0
	for id := range free {
		if free[id] = c.pool.free.has(int32(id)); free[id] {
			freePages++
		}
	}
	if freePages != c.pool.free.n {
		bad("%d pages are free, counted %d", freePages, c.pool.free.n)
	}
	held, evictable := 0, 0
	for id := range tree {
		if c.pool.tree[id] != tree[id] {
			bad("page %d: in %d nodes, counted %d", id, tree[id], c.pool.tree[id])
		}
		if c.pool.hold[id] < holds[id] {
			bad("page %d: held by %d nodes, counted %d", id, holds[id], c.pool.hold[id])
		}
		switch {
		case c.pool.hold[id] > 0:
			held++
		case tree[id] > 0:
			evictable++
		}
		if free[id] != (c.pool.hold[id] == 0 && tree[id] == 0) {
			bad("page %d: free %v with %d holds and %d nodes", id, free[id], c.pool.hold[id], tree[id])
		}
	}
	if held != c.pool.held || evictable != c.pool.evictable || freePages+held+evictable != len(tree) {
		bad("free %d + evictable %d (counted %d) + held %d (counted %d) of %d pages",
			freePages, evictable, c.pool.evictable, held, c.pool.held, len(tree))
	}
	if len(c.runs) != len(c.runAge) {
		bad("%d runs of %d ages", len(c.runs), len(c.runAge))
	}
	claims := 0
	for run, nodes := range c.runs {
		for branch, n := range nodes {
			claims++
			if n.claims.of(Owner{run, branch}) < 0 {
				bad("run %q: its node at %d knows nothing of it", run, n.start)
			}
		}
	}
	if claims != claimed {
		bad("%d claims, the nodes have %d", claims, claimed)
	}
	if c.tier != nil {
		c.tier.check(bad)
	}
	return errors.Join(errs...)
}

// check recounts the tier.
func (t *tier) check(bad func(string, ...any)) {
	slots := make([]int, t.count.Slots)
	leaves, wants := 0, 0
	var walk func(b *block)
	walk = func(b *block) {
		if b.slot >= 0 {
			slots[b.slot]++
		} else if len(b.kids) == 0 {
			bad("tier: a block at depth %d holds nothing and leads nowhere", b.depth)
		}
		leaf := b.slot >= 0 && len(b.kids) == 0
		if leaf {
			leaves++
		}
		if leaf != (b.heap >= 0) || leaf && t.leaves[b.heap] != b || b.locked {
			bad("tier: a block at depth %d is a leaf: %v, at %d in the heap, locked: %v", b.depth, leaf, b.heap, b.locked)
		}
		wants += len(b.claims)
		for _, cl := range b.claims {
			if cl.next < t.soon {
				bad("tier: %v reads at %d, before %d", cl.owner, cl.next, t.soon)
			}
			if t.wants[cl.owner] != b || b.slot < 0 {
				bad("tier: %v wants a block at depth %d, which is not known", cl.owner, b.depth)
			}
		}
		for key, kid := range b.kids {
			if kid.parent != b || kid.tokens != key || kid.depth != b.depth+1 {
				bad("tier: a block at depth %d: wrong parent, tokens or depth", kid.depth)
			}
			walk(kid)
		}
	}
	for _, root := range t.roots {
		walk(root)
	}
	for _, slot := range t.free {
		slots[slot]++
	}
	for slot, n := range slots {
		if n != 1 {
			bad("tier: slot %d is in %d places", slot, n)
		}
	}
	if leaves != len(t.leaves) || wants != len(t.wants) {
		bad("tier: %d leaves of %d in the heap, %d claims of %d", leaves, len(t.leaves), wants, len(t.wants))
	}
	for i, b := range t.leaves {
		if i > 0 && blockBefore(b, t.leaves[(i-1)/2]) {
			bad("tier: %d goes before its parent in the heap", i)
		}
	}
}

// String draws the trees, one node a line, children by first token.
func (c *Cache) String() string {
	var b strings.Builder
	s := c.Stats()
	fmt.Fprintf(&b, "free %d  evictable %d  held %d\n", s.Free, s.Evictable, s.Held)
	for _, ns := range c.spaces() {
		fmt.Fprintf(&b, "%q %q %q\n", ns.Model, ns.Adapter, ns.Salt)
		c.roots[ns].draw(&b, "  ")
	}
	return b.String()
}

// spaces returns the namespaces of the trees, sorted.
func (c *Cache) spaces() []Namespace {
	return slices.SortedFunc(maps.Keys(c.roots), func(a, b Namespace) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Adapter, b.Adapter), cmp.Compare(a.Salt, b.Salt))
	})
}

func (n *node) draw(b *strings.Builder, indent string) {
	firsts := make([]Token, 0, len(n.kids))
	for t := range n.kids {
		firsts = append(firsts, t)
	}
	slices.Sort(firsts)
	for _, t := range firsts {
		kid := n.kids[t]
		fmt.Fprintf(b, "%s[%d,%d) %s pages %v", indent, kid.start, kid.end(), drawTokens(kid.tokens), kid.pages)
		if kid.locks > 0 {
			fmt.Fprintf(b, " pins %d", kid.locks)
		}
		if kid.dead {
			b.WriteString(" dead")
		}
		for _, cl := range kid.claims {
			fmt.Fprintf(b, " %s@%d", strings.TrimSuffix(cl.owner.Run+"/"+cl.owner.Branch, "/"), cl.next)
		}
		b.WriteByte('\n')
		kid.draw(b, indent+"  ")
	}
}

// drawTokens writes runs of counting tokens as first..last.
func drawTokens(t []Token) string {
	var out []string
	for i := 0; i < len(t); {
		j := i
		for j+1 < len(t) && t[j+1] == t[j]+1 {
			j++
		}
		if j > i+1 {
			out = append(out, fmt.Sprintf("%d..%d", t[i], t[j]))
		} else {
			j = i
			out = append(out, fmt.Sprint(t[i]))
		}
		i = j + 1
	}
	return strings.Join(out, " ")
}
