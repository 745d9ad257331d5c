package grammar

import "slices"

// This file answers for strings that must end soon: the place within a string
// of bounded length from which every character counts.

// spelling is what the tokens are to a string of any content, as masks, for
// every count up to closeTo: over[n] cannot stand in it or begin more than n
// characters before it ends, under[n] end it after fewer than n.
type spelling struct{ over, under [][]uint64 }

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
	var begun [closeTo + 2][]int32 // tokens by the characters that they begin
	var ended [closeTo][]int32     // of these, those that end the string
	stands := make([]uint64, v.MaskWords())
	start := m.freeText[encString]
	states := make([]nodeID, v.maxLen+1)
	chars := make([]uint8, v.maxLen+1)
	states[0] = start
	set := func(tok int32, n uint8, closes bool) {
		for _, t := range append([]int32{tok}, v.dup[tok]...) {
			stands[t>>6] |= 1 << (t & 63)
			begun[min(n, closeTo+1)] = append(begun[min(n, closeTo+1)], t)
			if closes && n < closeTo {
				ended[n] = append(ended[n], t)
			}
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
		if from == start && chars[d] < closeTo+1 {
			chars[d]++
		}
		if tok := v.nodeTok[i]; tok >= 0 {
			set(tok, chars[d], false)
		}
		i++
	}
	s := &spelling{over: make([][]uint64, closeTo+1), under: make([][]uint64, closeTo+1)}
	with := func(mask []uint64, tokens []int32) []uint64 {
		mask = slices.Clone(mask)
		for _, t := range tokens {
			mask[t>>6] |= 1 << (t & 63)
		}
		return mask
	}
	for i := range stands {
		stands[i] = ^stands[i]
	}
	last := stands
	for n := closeTo; n >= 0; n-- {
		last = with(last, begun[n+1])
		s.over[n] = last
	}
	last = make([]uint64, v.MaskWords())
	for n := range s.under {
		if n > 0 {
			last = with(last, ended[n-1])
		}
		s.under[n] = last
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
	over, under := s.over[hi], s.under[lo]
	for i := range acc {
		lost[i] = over[i] | under[i]
		acc[i] &^= lost[i]
	}
	in := &inner{tokens: packMask(acc)}
	for _, x := range base.exits {
		in.exits = append(in.exits, exits{taken: true, label: x.label, rest: x.rest, lost: lost})
	}
	return in
}
