package grammar

import "slices"

// This file reads bounds on length off intersections.

// splitBound divides an intersection into "at most bound characters" and the
// rest.
func (p *pool) splitBound(id nodeID) (rest nodeID, bound int32, ok bool) {
	nd := &p.nodes[id]
	if nd.kind != kAnd {
		return 0, 0, false
	}
	for i, x := range nd.list {
		b := &p.nodes[x]
		if b.kind == kRep && b.whole != 0 && b.a == p.anyChar[b.whole-1] && b.m == 0 && b.n >= 0 {
			if len(nd.list) == 2 {
				return nd.list[1-i], b.n, true
			}
			n := b.n
			return p.and(slices.Delete(slices.Clone(nd.list), i, i+1)...), n, true
		}
	}
	return 0, 0, false
}

// reachOf bounds the characters in which every text that id allows to begin
// can be ended, -1 where the structure of id does not tell.
func (p *pool) reachOf(id nodeID) int {
	if n, ok := p.reaches[id]; ok {
		return n
	}
	n := p.computeReach(id)
	if len(p.reaches) > 10_000 {
		clear(p.reaches)
	}
	p.reaches[id] = n
	return n
}

func (p *pool) computeReach(id nodeID) int {
	nd := &p.nodes[id]
	switch nd.kind {
	case kEps:
		return 0
	case kLeaf:
		if nd.whole != 0 {
			return 0 // the rest of one character
		}
		for _, e := range p.leaves[nd.a].edges {
			if p.reachOf(p.leafNode(e.to)) != 0 {
				return -1
			}
		}
		return 0
	case kCat:
		a, b := p.reachOf(nd.a), p.reachOf(nd.b)
		if a < 0 || b < 0 {
			return -1
		}
		nd = &p.nodes[id]
		return max(a+int(p.nodes[nd.b].lo), b)
	case kAlt:
		out := 0
		for _, x := range nd.list {
			n := p.reachOf(x)
			if n < 0 {
				return -1
			}
			out = max(out, n)
		}
		return out
	case kRep:
		a := p.reachOf(nd.a)
		if a < 0 {
			return -1
		}
		nd = &p.nodes[id]
		return a + max(int(nd.m)-1, 0)*int(p.nodes[nd.a].lo)
	}
	return -1
}
