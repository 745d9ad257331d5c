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
