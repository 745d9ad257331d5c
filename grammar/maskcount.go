package grammar

// This file answers for strings that must end soon: the place within a string
// of bounded length from which every character counts.

// spelling is what every token is to a string of any content: the characters
// it begins before the string ends, and whether it ends the string.
type spelling struct {
	chars  []uint8 // by token; notInString where the token cannot stand
	closes []bool  // the string ends within the token or at its end
}

const notInString = 255

// closeTo bounds the characters left at which tokens are counted one by one.
const closeTo = 60

// countedString reports whether id is "m to n more characters, then a quote".
func (m *machine) countedString(id nodeID) (lo, hi int32, ok bool) {
	nd := &m.nodes[id]
	free := &m.nodes[m.freeText[encString]]
	if nd.kind != kCat || nd.b != free.b {
		return 0, 0, false
	}
	r := &m.nodes[nd.a]
	if nd.a == m.anyChar[encString] {
		return 1, 1, true
	}
	return r.m, r.n, r.kind == kRep && r.a == m.anyChar[encString] && r.n >= 0 && r.n <= closeTo
}

// spell computes the spelling of all tokens.
func (m *machine) spell() *spelling {
	v := m.vocab
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.spelling != nil {
		return v.spelling
	}
	s := &spelling{chars: make([]uint8, len(v.tokens)), closes: make([]bool, len(v.tokens))}
	for i := range s.chars {
		s.chars[i] = notInString
	}
	start := m.freeText[encString]
	states := make([]nodeID, v.maxLen+1)
	chars := make([]uint8, v.maxLen+1)
	states[0] = start
	set := func(tok int32, n uint8, closes bool) {
		for _, t := range append([]int32{tok}, v.dup[tok]...) {
			s.chars[t], s.closes[t] = n, closes
		}
	}
	for i, n := 0, len(v.nodeByte); i < n; {
		d := v.nodeDepth[i]
		from := states[d-1]
		next := m.pool.step(from, v.nodeByte[i])
		if next == rxEmpty {
			i = int(v.nodeEnd[i])
			continue
		}
		states[d], chars[d] = next, chars[d-1]
		if next == rxEps {
			// The string ends: all tokens below do the same.
			for _, tok := range v.order[v.nodeRank[i]:v.nodeRank[v.nodeEnd[i]]] {
				set(tok, chars[d], true)
			}
			i = int(v.nodeEnd[i])
			continue
		}
		if from == start && chars[d] < notInString-1 {
			chars[d]++
		}
		if tok := v.nodeTok[i]; tok >= 0 {
			set(tok, chars[d], false)
		}
		i++
	}
	v.spelling = s
	return s
}

// countInner is the inner of a string that must end within lo to hi
// characters.
func (m *machine) countInner(lo, hi int32) *inner {
	base := m.innerOf(m.freeText[encString])
	s := m.spell()
	m.masks.inner.reset()
	m.masks.inner.addAll(base.tokens)
	acc := m.masks.inner.dense()
	lost := make([]uint64, len(acc))
	for i := range acc {
		var bad uint64
		for t := i * 64; t < min(i*64+64, len(s.chars)); t++ {
			if c := int32(s.chars[t]); c > hi || (c < lo && s.closes[t]) {
				bad |= 1 << (t & 63)
			}
		}
		acc[i] &^= bad
		lost[i] = bad
	}
	in := &inner{tokens: packMask(acc)}
	for _, x := range base.exits {
		in.exits = append(in.exits, exits{label: x.label, rest: x.rest, lost: lost})
	}
	return in
}
