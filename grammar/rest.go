package grammar

// This file follows tokens past the end of a lexeme.

// restTrie is the rests of tokens behind the end of a lexeme, as a trie in
// depth-first order: tokens[from[i]:from[i+1]] have the rest that ends at i.
type restTrie struct {
	b      []byte
	depth  []uint16
	end    []int32
	from   []int32
	tokens []int32
}

// gather builds the trie of what follows at points of the vocabulary's trie: the
// subtrees laid over one another.
func (m *machine) gather(points []point) *restTrie {
	v := m.vocab
	t := &restTrie{}
	below := make([]int32, len(points))
	for i, p := range points {
		below[i] = p.trie
	}
	var merge func(parents []int32, depth uint16)
	merge = func(parents []int32, depth uint16) {
		var start [257]int32 // by byte, in children
		for _, n := range parents {
			for i := n + 1; i < v.nodeEnd[n]; i = v.nodeEnd[i] {
				start[int(v.nodeByte[i])+1]++
			}
		}
		for b := range 256 {
			start[b+1] += start[b]
		}
		if start[256] == 0 {
			return
		}
		children, at := make([]int32, start[256]), start
		for _, n := range parents {
			for i := n + 1; i < v.nodeEnd[n]; i = v.nodeEnd[i] {
				b := v.nodeByte[i]
				children[at[b]] = i
				at[b]++
			}
		}
		for len(children) > 0 {
			b, n := v.nodeByte[children[0]], 1
			for n < len(children) && v.nodeByte[children[n]] == b {
				n++
			}
			node := len(t.b)
			t.b = append(t.b, b)
			t.depth = append(t.depth, depth)
			t.end = append(t.end, 0)
			t.from = append(t.from, int32(len(t.tokens)))
			for _, c := range children[:n] {
				if tok := v.nodeTok[c]; tok >= 0 {
					t.tokens = append(t.tokens, tok)
				}
			}
			merge(children[:n], depth+1)
			t.end[node] = int32(len(t.b))
			children = children[n:]
		}
	}
	merge(below, 1)
	t.from = append(t.from, int32(len(t.tokens)))
	return t
}

// walkRest adds the tokens whose rests p allows, but for those of lost.
func (m *machine) walkRest(t *restTrie, lost []uint64, p *place, acc *tokenSet) {
	states := m.masks.sp
	states[0] = p
	for i, n := 0, len(t.b); i < n; {
		d := t.depth[i]
		s := states[d-1]
		b := t.b[i]
		if f := m.firstBytes(s); f[b>>6]&(1<<(b&63)) == 0 {
			i = int(t.end[i])
			continue
		}
		next := m.step(s, b)
		if next == nil {
			i = int(t.end[i])
			continue
		}
		states[d] = next
		for _, tok := range t.tokens[t.from[i]:t.from[i+1]] {
			if lost == nil || lost[tok>>6]&(1<<(tok&63)) == 0 {
				m.vocab.put(acc, tok)
			}
		}
		i++
	}
}

// manyTexts reports whether p is between so many fixed texts that one walk with
// all of them is shorter than one for each.
func (m *machine) manyTexts(p *place) bool {
	if len(p.configs) < 4 {
		return false
	}
	for _, c := range p.configs {
		if m.nodes[c.node].kind != kLeaf || m.deep(c) || c.stack != nil && m.frames[c.stack.frame].kind == frRecord {
			return false
		}
	}
	return true
}

// walkTogether adds the tokens that p allows.
func (m *machine) walkTogether(p *place, acc *tokenSet) {
	v := m.vocab
	first := *m.firstBytes(p)
	for b := range 256 {
		i := v.roots[b]
		if i < 0 || first[b>>6]&(1<<(b&63)) == 0 {
			continue
		}
		next := m.step(p, byte(b))
		if next == nil {
			continue
		}
		if tok := v.nodeTok[i]; tok >= 0 {
			v.put(acc, tok)
		}
		m.walkBelow(i, next, acc)
	}
}

// walkBelow adds the tokens below a trie node whose rests p allows, and returns
// how many nodes it visited.
func (m *machine) walkBelow(root int32, p *place, acc *tokenSet) (visited int) {
	v := m.vocab
	states := m.masks.sp
	base := v.nodeDepth[root]
	states[0] = p
	for i, n := root+1, v.nodeEnd[root]; i < n; {
		visited++
		d := v.nodeDepth[i] - base
		s := states[d-1]
		b := v.nodeByte[i]
		if f := m.firstBytes(s); f[b>>6]&(1<<(b&63)) == 0 {
			i = v.nodeEnd[i]
			continue
		}
		next := m.step(s, b)
		if next == nil {
			i = v.nodeEnd[i]
			continue
		}
		states[d] = next
		if tok := v.nodeTok[i]; tok >= 0 {
			v.put(acc, tok)
		}
		i++
	}
	return visited
}
