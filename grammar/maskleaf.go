package grammar

// This file walks the trie with explicit states: fixed texts, names and classes
// of characters.

// walkLeaf is walkNode for an explicit state: no nodes are made on the way.
func (m *machine) walkLeaf(l int32, in *inner) {
	for _, e := range m.leaves[l].edges {
		for b := int(e.lo); b <= int(e.hi); b++ {
			if i := m.vocab.roots[b]; i >= 0 {
				m.passLeaf(i, e.to, in)
			}
		}
	}
}

// passLeaf adds the token that ends at trie node i, where the state is l, and
// those below.
func (m *machine) passLeaf(i, l int32, in *inner) {
	v := m.vocab
	m.visits++
	if tok := v.nodeTok[i]; tok >= 0 {
		v.put(&m.masks.inner, tok)
	}
	x := &m.leaves[l]
	if x.accept && v.nodeHigh[i] > 0 {
		in.points = append(in.points, point{i, x.label, false})
	}
	kids := v.kidsOf(i)
	for _, e := range x.edges {
		for len(kids) > 0 && kids[0].b < e.lo {
			kids = kids[1:]
		}
		for len(kids) > 0 && kids[0].b <= e.hi {
			m.passLeaf(kids[0].node, e.to, in)
			kids = kids[1:]
		}
	}
}

// fixedMask writes the mask of a place in the middle of a fixed text, from which
// no token runs past the text's end. It keeps nothing: finding the few tokens
// again costs as much as clearing the other bits. It reports whether p is such a
// place.
func (m *machine) fixedMask(p *place, bits []uint64) bool {
	if p.canEnd || len(p.configs) != 1 {
		return false
	}
	c := p.configs[0]
	nd := &m.nodes[c.node]
	if nd.kind != kLeaf || m.deep(c) || c.stack != nil && m.frames[c.stack.frame].kind == frRecord {
		return false
	}
	v, x := m.vocab, &m.leaves[nd.a]
	var found [24]int32
	tokens := found[:0]
	for at := int32(-1); ; {
		if x.accept || len(x.edges) != 1 || x.edges[0].lo != x.edges[0].hi {
			return false
		}
		b := x.edges[0].lo
		if at < 0 {
			at = v.roots[b]
		} else {
			at = v.kid(at, b)
		}
		if at < 0 {
			break
		}
		if tok := v.nodeTok[at]; tok >= 0 {
			if len(tokens) == len(found) || v.twins(tok) != nil {
				return false
			}
			tokens = append(tokens, tok)
		}
		if v.nodeHigh[at] == 0 {
			break
		}
		x = &m.leaves[x.edges[0].to]
	}
	clear(bits)
	for _, t := range tokens {
		bits[t>>6] |= 1 << (t & 63)
	}
	return true
}

// kid is the child of node i behind byte b, -1 where there is none.
func (v *Vocab) kid(i int32, b byte) int32 {
	kids := v.kidsOf(i)
	for len(kids) > 8 {
		if half := len(kids) / 2; kids[half].b > b {
			kids = kids[:half]
		} else {
			kids = kids[half:]
		}
	}
	for _, k := range kids {
		if k.b == b {
			return k.node
		}
	}
	return -1
}
