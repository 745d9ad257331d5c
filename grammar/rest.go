package grammar

import "slices"

// This file follows tokens past the end of a lexeme.

// restTrie is the rests of tokens behind the end of a lexeme, as a trie: the
// children of a node lie side by side, those of the root are the first top.
// tokens[from[i]:from[i+1]] have the rest that ends at i.
type restTrie struct {
	top    int32
	b      []byte
	kids   [][2]int32 // of each node, from and to
	from   []int32
	tokens []int32
}

// gather builds the trie of what follows at points of the vocabulary's trie: the
// subtrees laid over one another.
func (m *machine) gather(points []point) *restTrie {
	v := m.vocab
	t := &restTrie{}
	below := make([]kid, len(points))
	for i, p := range points {
		below[i].node = p.trie
	}
	var merge func(parents []kid) (first, end int32)
	merge = func(parents []kid) (first, end int32) {
		first = int32(len(t.b))
		n := 0
		for _, p := range parents {
			n += len(v.kidsOf(p.node))
		}
		if n == 0 {
			return first, first
		}
		children := make([]kid, 0, n)
		for _, p := range parents {
			children = append(children, v.kidsOf(p.node)...)
		}
		if len(parents) > 1 {
			children = byByte(children)
		}
		for i, c := range children {
			if i == 0 || c.b != children[i-1].b {
				t.b = append(t.b, c.b)
				t.kids = append(t.kids, [2]int32{})
				t.from = append(t.from, int32(len(t.tokens)))
			}
			if tok := v.nodeTok[c.node]; tok >= 0 {
				t.tokens = append(t.tokens, tok)
			}
		}
		end = int32(len(t.b))
		for node := first; node < end; node++ {
			n := 1
			for n < len(children) && children[n].b == children[0].b {
				n++
			}
			t.kids[node][0], t.kids[node][1] = merge(children[:n])
			children = children[n:]
		}
		return first, end
	}
	_, t.top = merge(below)
	t.from = append(t.from, int32(len(t.tokens)))
	return t
}

// byByte sorts kids by their bytes.
func byByte(kids []kid) []kid {
	if len(kids) <= 64 {
		slices.SortFunc(kids, func(x, y kid) int { return int(x.b) - int(y.b) })
		return kids
	}
	var at [257]int32
	for _, k := range kids {
		at[int(k.b)+1]++
	}
	for b := range 256 {
		at[b+1] += at[b]
	}
	out := make([]kid, len(kids))
	for _, k := range kids {
		out[at[k.b]] = k
		at[k.b]++
	}
	return out
}

// isCloser reports whether b may stand behind a value in an array or object.
func isCloser(b byte) bool {
	switch b {
	case ',', '}', ']', ' ', '\t', '\n', '\r':
		return true
	}
	return false
}

// onlyCloses reports whether behind c only what goes on in an array or object, or
// closes it, can follow.
func (m *machine) onlyCloses(c config) bool {
	if c.stack == nil || m.acts[c.act].kind != actPop {
		return false
	}
	k := m.frames[c.stack.frame].kind
	return k == frObject || k == frArray
}

// closes reports whether some rest begins with such a byte.
func (x *exits) closes(v *Vocab) bool {
	if x.close == 0 {
		x.close = 2
		if x.rest != nil {
			if slices.ContainsFunc(x.rest.b[:x.rest.top], isCloser) {
				x.close = 1
			}
		} else {
			for _, t := range v.below(x.points) {
				if slices.ContainsFunc(v.kidsOf(t.trie), func(k kid) bool { return isCloser(k.b) }) {
					x.close = 1
					break
				}
			}
		}
	}
	return x.close == 1
}

// walkRest adds the tokens whose rests p allows, but for those of lost.
func (m *machine) walkRest(t *restTrie, lost []uint64, p *place, acc *tokenSet) {
	m.walkRests(t, 0, t.top, lost, p, acc)
}

// walkRests is walkRest for the nodes of a range and those below.
func (m *machine) walkRests(t *restTrie, from, to int32, lost []uint64, p *place, acc *tokenSet) {
	first := m.firstBytes(p)
	for i := from; i < to; i++ {
		b := t.b[i]
		if first[b>>6]&(1<<(b&63)) == 0 {
			continue
		}
		next := m.step(p, b)
		if next == nil {
			continue
		}
		for _, tok := range t.tokens[t.from[i]:t.from[i+1]] {
			if lost == nil || lost[tok>>6]&(1<<(tok&63)) == 0 {
				m.vocab.put(acc, tok)
			}
		}
		if kids := t.kids[i]; kids[0] < kids[1] {
			m.walkRests(t, kids[0], kids[1], lost, next, acc)
		}
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
	kids := v.kidsOf(root)
	if len(kids) == 0 {
		return 0
	}
	first := m.firstBytes(p)
	for _, k := range kids {
		visited++
		if first[k.b>>6]&(1<<(k.b&63)) == 0 {
			continue
		}
		next := m.step(p, k.b)
		if next == nil {
			continue
		}
		if tok := v.nodeTok[k.node]; tok >= 0 {
			v.put(acc, tok)
		}
		visited += m.walkBelow(k.node, next, acc)
	}
	return visited
}
