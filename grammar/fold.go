package grammar

import "slices"

// This file folds places that one token cannot tell apart into one, so that
// they share a mask.

// repPlace is a place with the same mask as p that many places share: counts
// that one token cannot exhaust are folded.
func (m *machine) repPlace(p *place) *place {
	if p.rep != nil {
		return p.rep
	}
	same := true
	configs := make([]config, len(p.configs))
	for i, c := range p.configs {
		r := config{m.repNode(c.node), m.repAct(c.act), m.repStack(c.stack)}
		same = same && r == c
		configs[i] = r
	}
	p.rep = p
	if !same {
		m.build.reset()
		m.build.canEnd = p.canEnd
		m.build.configs = append(m.build.configs, configs...)
		p.rep = m.finish()
		p.rep.rep = p.rep
	}
	return p.rep
}

func (m *machine) repStack(c *cell) *cell {
	if c == nil || c.rep != nil {
		if c == nil {
			return nil
		}
		return c.rep
	}
	// Iterative: stacks may be deep.
	var chain []*cell
	for x := c; x != nil && x.rep == nil; x = x.next {
		chain = append(chain, x)
	}
	for i := len(chain) - 1; i >= 0; i-- {
		x := chain[i]
		var below *cell
		if x.next != nil {
			below = x.next.rep
		}
		x.rep = m.push(m.repFrame(x.frame), below)
		x.rep.rep = x.rep
	}
	return c.rep
}

func (m *machine) repAct(id actID) actID {
	a := m.acts[id]
	switch a.kind {
	case actGo, actPush, actChoice:
		if r := m.repFrame(a.frame); r != a.frame {
			a.frame = r
			return m.act(a)
		}
	case actMany:
		list := slices.Clone(a.list)
		for i, x := range list {
			list[i] = m.repAct(x)
		}
		if !slices.Equal(list, a.list) {
			slices.Sort(list)
			a.list = slices.Compact(list)
			return m.act(a)
		}
	}
	return id
}

// repFrame is a frame that allows the same bytes as id for as far as one token
// can see: a place in a long bounded array is like any other, since a token
// holds only so many commas.
func (m *machine) repFrame(id frameID) frameID {
	if r := m.frameRep[id]; r >= 0 {
		return r
	}
	r := id
	if f := m.frames[id]; f.kind == frArray {
		a := m.arrays[f.node]
		far := m.vocab.items + 1
		last := int32(len(a.slots)) - 1
		if len(a.tally) == 0 && !a.unique && f.pos > last {
			toMin, toMax := a.min-f.pos, a.max-f.pos
			switch {
			case toMin > far:
				f.pos = max(last+1, 1)
				if a.min-f.pos <= far {
					f.pos = m.frames[id].pos
				}
			case toMin <= 0 && toMax > far:
				f.pos = max(last+1, a.min, 1)
			}
			r = m.frameID(f)
		}
	}
	m.frameRep[id] = r
	m.frameRep[r] = r
	return r
}

// passes is how often one token can pass a, at most.
func (m *machine) passes(a nodeID) int32 {
	nd := &m.nodes[a]
	if nd.kind != kLeaf {
		return int32(m.span)
	}
	edges := m.leaves[nd.a].edges
	for _, e := range edges {
		if e.to != leafEnd || sigOf[e.lo] != sigOf[edges[0].lo] || sigOf[e.hi] != sigOf[edges[0].lo] {
			return int32(m.span)
		}
	}
	return m.vocab.runs[sigOf[edges[0].lo]] // bytes of one group, such as digits
}

// repNode folds repeat counts beyond the longest token.
func (m *machine) repNode(id nodeID) nodeID {
	if r := m.nodes[id].rep; r != 0 {
		return r
	}
	r := m.foldCounts(id)
	m.nodes[id].rep = r
	if m.nodes[r].rep == 0 {
		m.nodes[r].rep = r
	}
	return r
}

func (m *machine) foldCounts(id nodeID) nodeID {
	nd := m.nodes[id]
	if nd.flags&fImpure != 0 {
		return m.foldBounds(id)
	}
	switch nd.kind {
	case kCat:
		return m.cat(m.repNode(nd.a), m.repNode(nd.b))
	case kAlt:
		list := make([]nodeID, len(nd.list))
		for i, x := range nd.list {
			list[i] = m.repNode(x)
		}
		return m.alt(list...)
	case kRep:
		far := m.passes(nd.a) + 1
		lo, hi := nd.m, nd.n
		if lo > far {
			if hi >= 0 {
				hi -= lo - far
			}
			lo = far
		}
		if hi > far {
			hi = -1
		}
		if lo == nd.m && hi == nd.n {
			return id
		}
		return m.rep(nd.a, lo, hi)
	}
	return id
}

// foldBounds drops an upper bound on the length from an intersection when
// every state of the rest can end well before it.
func (m *machine) foldBounds(id nodeID) nodeID {
	nd := m.nodes[id]
	switch nd.kind {
	case kCat:
		if a := m.repNode(nd.a); a != nd.a {
			return m.cat(a, nd.b)
		}
	case kAnd:
		if rest, bound, ok := m.splitBound(id); ok {
			if n := m.reachOf(rest); n >= 0 && int(bound) > n+m.span {
				return rest
			}
		}
	}
	return id
}
