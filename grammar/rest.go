package grammar

import (
	"bytes"
	"slices"
)

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

// gather builds the trie of what follows at points of the vocabulary's trie.
func (m *machine) gather(points []point) *restTrie {
	type rest struct {
		text []byte
		tok  int32
	}
	v := m.vocab
	var list []rest
	for _, p := range points {
		at := int(v.nodeDepth[p.trie])
		for i := p.trie + 1; i < v.nodeEnd[p.trie]; i++ {
			if tok := v.nodeTok[i]; tok >= 0 {
				list = append(list, rest{v.tokens[tok][at:], tok})
			}
		}
	}
	slices.SortFunc(list, func(a, b rest) int { return bytes.Compare(a.text, b.text) })
	t := &restTrie{}
	var path []int32
	var prev []byte
	for _, r := range list {
		common := 0
		for common < len(r.text) && common < len(prev) && r.text[common] == prev[common] {
			common++
		}
		for len(path) > common {
			t.end[path[len(path)-1]] = int32(len(t.b))
			path = path[:len(path)-1]
		}
		for d := common; d < len(r.text); d++ {
			path = append(path, int32(len(t.b)))
			t.b = append(t.b, r.text[d])
			t.depth = append(t.depth, uint16(d+1))
			t.end = append(t.end, 0)
			t.from = append(t.from, int32(len(t.tokens)))
		}
		t.tokens = append(t.tokens, r.tok)
		prev = r.text
	}
	for _, n := range path {
		t.end[n] = int32(len(t.b))
	}
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

// walkBelow adds the tokens below a trie node whose rests p allows.
func (m *machine) walkBelow(root int32, p *place, acc *tokenSet) {
	v := m.vocab
	states := m.masks.sp
	base := v.nodeDepth[root]
	states[0] = p
	for i, n := root+1, v.nodeEnd[root]; i < n; {
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
}
