package cache

import (
	"maps"
	"slices"
)

// NodeView is a node of a tree as people look at it.
type NodeView struct {
	ID, Parent int // numbers within one view, from 1; the parent of a first node is 0
	Start      int // position of its first token
	Tokens     int
	Pages      int
	Pinned     bool    // by a sequence, at or below it
	First      []Token // its first tokens
}

// View returns up to most nodes of the trees, those nearest to the roots first
// and children in the order of their first tokens, each with up to first of its
// tokens; all is how many nodes there are. It takes time in proportion to what it
// returns.
func (c *Cache) View(most, first int) (nodes []NodeView, all int) {
	type place struct {
		n      *node
		parent int
	}
	var queue []place
	kids := func(n *node, parent int) {
		for _, t := range slices.Sorted(maps.Keys(n.kids)) {
			queue = append(queue, place{n.kids[t], parent})
		}
	}
	for _, ns := range c.spaces() {
		kids(c.roots[ns], 0)
	}
	for i := 0; i < len(queue) && i < most; i++ {
		n := queue[i].n
		nodes = append(nodes, NodeView{
			ID: i + 1, Parent: queue[i].parent, Start: n.start, Tokens: len(n.tokens), Pages: len(n.pages), Pinned: n.locks > 0,
			First: slices.Clone(n.tokens[:min(first, len(n.tokens))]),
		})
		if len(queue) < most {
			kids(n, i+1)
		}
	}
	return nodes, c.nodes
}
