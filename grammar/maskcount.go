package grammar

import "slices"

// This file answers for strings of any content whose characters are counted.

// spelling is what the tokens are to a string of any content, as masks.
type spelling struct {
	// over[n] is the tokens that cannot stand in it or begin more than n
	// characters before it ends, under[n] those that end it after fewer than n.
	over, under [][]uint64
	// The same without the tokens that begin more than closeTo characters,
	// which are few.
	never, ends []uint64
	long        []longToken
}

// longToken is a token that begins more than closeTo characters of a string.
type longToken struct {
	tok, chars int32
	closes     bool // it ends the string
}

// closeTo bounds the counts that have masks of their own.
const closeTo = 60

// masksOf is the tokens that begin too many characters for a string of lo to hi
// more (no bound if hi is negative), and those that end it too early.
func (s *spelling) masksOf(lo, hi int32) (over, under []uint64) {
	if hi >= 0 && hi <= closeTo {
		over = s.over[hi]
	} else {
		over = withTokens(s.never, nil)
	}
	if lo <= closeTo {
		under = s.under[lo]
	} else {
		under = withTokens(s.ends, nil)
	}
	for _, l := range s.long {
		if hi > closeTo && l.chars > hi {
			over[l.tok>>6] |= 1 << (l.tok & 63)
		}
		if lo > closeTo && l.closes && l.chars < lo {
			under[l.tok>>6] |= 1 << (l.tok & 63)
		}
	}
	return over, under
}

// withTokens is a copy of mask with more tokens.
func withTokens(mask []uint64, tokens []int32) []uint64 {
	mask = slices.Clone(mask)
	for _, t := range tokens {
		mask[t>>6] |= 1 << (t & 63)
	}
	return mask
}

// countedString reports whether id is "lo to hi more characters, then a
// quote".
func (m *machine) countedString(id nodeID) (lo, hi int32, ok bool) {
	nd := &m.nodes[id]
	free := &m.nodes[m.freeText[encString]]
	if nd.kind != kCat || nd.b != free.b || id == m.freeText[encString] {
		return 0, 0, false
	}
	r := &m.nodes[nd.a]
	if nd.a == m.anyChar[encString] {
		return 1, 1, true
	}
	return r.m, r.n, r.kind == kRep && r.a == m.anyChar[encString]
}

// spell computes the spelling of all tokens.
func (m *machine) spell() *spelling {
	v := m.vocab
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.spelling != nil {
		return v.spelling
	}
	var begun [closeTo + 1][]int32 // tokens by the characters that they begin
	var ended [closeTo + 1][]int32 // of these, those that end the string
	s := &spelling{never: make([]uint64, v.MaskWords())}
	start := m.freeText[encString]
	states := make([]nodeID, v.maxLen+1)
	chars := make([]int32, v.maxLen+1)
	states[0] = start
	set := func(tok int32, n int32, closes bool) {
		for _, t := range append([]int32{tok}, v.dup[tok]...) {
			s.never[t>>6] |= 1 << (t & 63) // inverted below
			if n > closeTo {
				s.long = append(s.long, longToken{t, n, closes})
				continue
			}
			begun[n] = append(begun[n], t)
			if closes {
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
		if from == start {
			chars[d]++
		}
		if tok := v.nodeTok[i]; tok >= 0 {
			set(tok, chars[d], false)
		}
		i++
	}
	for i := range s.never {
		s.never[i] = ^s.never[i]
	}
	s.over, s.under = make([][]uint64, closeTo+1), make([][]uint64, closeTo+1)
	last := s.never
	for _, l := range s.long {
		last = withTokens(last, []int32{l.tok})
	}
	s.over[closeTo] = last
	for n := closeTo - 1; n >= 0; n-- {
		if len(begun[n+1]) > 0 {
			last = withTokens(last, begun[n+1])
		}
		s.over[n] = last
	}
	last = make([]uint64, v.MaskWords())
	for n := range s.under {
		s.under[n] = last
		if len(ended[n]) > 0 {
			last = withTokens(last, ended[n])
		}
	}
	s.ends = last
	v.spelling = s
	return s
}

// countInner is the inner of a string that ends after lo to hi more
// characters.
func (m *machine) countInner(lo, hi int32) *inner {
	over, under := m.spell().masksOf(lo, hi)
	base := m.innerOf(m.freeText[encString])
	m.masks.inner.reset()
	m.masks.inner.addAll(base.tokens)
	acc := m.masks.inner.dense()
	lost := make([]uint64, len(acc))
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
