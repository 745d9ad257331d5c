package grammar

import (
	"math/bits"
	"slices"
)

// fewTokens bounds the tokens that a set keeps as a list. Most places allow
// fewer, and a list of them costs less than clearing a bit for every token of
// the vocabulary.
const fewTokens = 1024

// tokenSet collects tokens: as a list, which may hold some twice, while they
// are few, as words from then on.
type tokenSet struct {
	list  []int32
	words []uint64
	many  bool // the set is in words
}

func (s *tokenSet) reset() { s.list, s.many = s.list[:0], false }

func (s *tokenSet) add(tok int32) {
	if !s.many {
		if len(s.list) < fewTokens {
			s.list = append(s.list, tok)
			return
		}
		s.dense()
	}
	s.words[tok>>6] |= 1 << (tok & 63)
}

// addAll adds the tokens of an entry without base.
func (s *tokenSet) addAll(e *maskEntry) {
	if e.words == nil {
		for _, t := range e.list {
			s.add(t)
		}
		return
	}
	for i, w := range s.dense() {
		s.words[i] = w | e.words[i]
	}
}

// dense turns the set into words and returns them.
func (s *tokenSet) dense() []uint64 {
	if !s.many {
		clear(s.words)
		for _, t := range s.list {
			s.words[t>>6] |= 1 << (t & 63)
		}
		s.many = true
	}
	return s.words
}

// pack copies the set in its smaller form.
func (s *tokenSet) pack() *maskEntry {
	if s.many {
		return packMask(s.words)
	}
	return &maskEntry{list: slices.Clone(s.list)}
}

// packMask copies a mask in its smaller form.
func packMask(acc []uint64) *maskEntry {
	n := 0
	for _, w := range acc {
		n += bits.OnesCount64(w)
	}
	e := &maskEntry{}
	if n < len(acc)/2 {
		e.list = make([]int32, 0, n)
		for i, w := range acc {
			for ; w != 0; w &= w - 1 {
				e.list = append(e.list, int32(i*64+bits.TrailingZeros64(w)))
			}
		}
		return e
	}
	e.words = slices.Clone(acc)
	return e
}

// twins is the other tokens with the bytes of tok.
func (v *Vocab) twins(tok int32) []int32 {
	if v.twin == nil || v.twin[tok>>6]&(1<<(tok&63)) == 0 {
		return nil
	}
	return v.dup[tok]
}

// put adds a token and those with the same bytes.
func (v *Vocab) put(s *tokenSet, tok int32) {
	s.add(tok)
	for _, t := range v.twins(tok) {
		s.add(t)
	}
}

// putRange adds the tokens of the trie nodes in a range, and those with the
// same bytes.
func (v *Vocab) putRange(s *tokenSet, from, to int32) {
	tokens := v.order[v.nodeRank[from]:v.nodeRank[to]]
	if !s.many && len(s.list)+len(tokens) > fewTokens {
		s.dense()
	}
	if !s.many || v.twin != nil {
		for _, tok := range tokens {
			v.put(s, tok)
		}
		return
	}
	words := s.words
	for _, tok := range tokens {
		words[tok>>6] |= 1 << (tok & 63)
	}
}

// mark sets the bits of a token and of those with the same bytes.
func (v *Vocab) mark(acc []uint64, tok int32) {
	acc[tok>>6] |= 1 << (tok & 63)
	for _, t := range v.twins(tok) {
		acc[t>>6] |= 1 << (t & 63)
	}
}

func (v *Vocab) unmark(acc []uint64, tok int32) {
	acc[tok>>6] &^= 1 << (tok & 63)
	for _, t := range v.twins(tok) {
		acc[t>>6] &^= 1 << (t & 63)
	}
}
