package grammar

import "math/bits"

// This file decides by a bounded search which texts two states of lexemes
// treat alike, where their structure does not tell (see masklike.go).

// statePair is two states that are compared.
type statePair struct{ a, b nodeID }

// agreement is what is known of a pair: texts of at most long bytes, all of
// the groups in sig, lead both to states that live and are complete alike.
type agreement struct {
	sig  uint64
	long int32
}

// pairs remembers agreements.
type pairs struct {
	known map[statePair]agreement
	steps int // left in this walk
	found []pairState
	seen  map[statePair]struct{}
}

// pairState is a pair that a search came to.
type pairState struct {
	statePair
	from  int32 // the one before it, -1 for the first
	depth int32
	group uint8 // of the byte that led here
}

const (
	// pairDepth bounds the texts that a search follows: few parts of a
	// vocabulary hold tokens that go on for longer.
	pairDepth = 24
	// pairStates bounds the pairs of one search, pairSteps those of all
	// searches for one mask.
	pairStates = 150
	pairSteps  = 250
	// A part of fewer nodes than a worthPairs-th of Vocab.few is sooner walked
	// than looked up.
	worthPairs = 100
	// enoughDepth is the length from which an agreement is good enough, so that
	// no group of bytes is left out for the sake of longer texts.
	enoughDepth = 8
	maxPairs    = 5_000
)

// alike reports whether a and b treat the texts of at most h bytes out of the
// groups of sig alike. It may say no too often.
func (m *machine) alike(a, b nodeID, h int32, sig uint64) bool {
	x := m.agree(a, b)
	return h <= x.long && sig&^x.sig == 0
}

// agree is the agreement of a and b.
func (m *machine) agree(a, b nodeID) agreement {
	s := &m.pairs
	key := statePair{a, b}
	if x, ok := s.known[key]; ok {
		return x
	}
	if s.steps <= 0 {
		return agreement{long: -1} // not remembered: another walk may have time for it
	}
	if s.known == nil || len(s.known) > maxPairs {
		s.known = map[statePair]agreement{}
	}
	sig := ^(uint64(1) << sigOf['\\']) // escapes have many states
	for sig != 0 {
		long, bad, ok := m.pursue(key, sig)
		if !ok {
			break
		}
		if bad >= 0 && long < enoughDepth {
			// Without one group on the way to the difference it is not met.
			sig &^= 1 << m.spoiler(bad)
			continue
		}
		for i := range s.found {
			f := &s.found[i]
			if left := long - f.depth; left > 0 || i == 0 {
				if x, ok := s.known[f.statePair]; !ok || x.long < left && x.sig&^sig == 0 {
					s.known[f.statePair] = agreement{sig, left}
				}
			}
		}
		return s.known[key]
	}
	s.known[key] = agreement{long: -1}
	return s.known[key]
}

// spoiler is the group of bytes to do without so that the found pair at i is
// not reached: the one on the way that the fewest tokens hold.
func (m *machine) spoiler(i int32) uint8 {
	found := m.pairs.found
	out := found[i].group
	for ; found[i].from >= 0; i = found[i].from {
		if g := found[i].group; m.vocab.weight[g] < m.vocab.weight[out] {
			out = g
		}
	}
	return out
}

// pursue follows the pair under the bytes of sig. It returns how long texts are
// treated alike, and the found pair that is not, -1 where there is none; not ok
// when the search takes too long or the pair itself differs.
func (m *machine) pursue(start statePair, sig uint64) (long, bad int32, ok bool) {
	s := &m.pairs
	s.found = append(s.found[:0], pairState{statePair: start, from: -1})
	if s.seen == nil {
		s.seen = map[statePair]struct{}{}
	}
	clear(s.seen)
	s.seen[start] = struct{}{}
	if !m.sameEnd(start) {
		return 0, 0, false
	}
	for i := int32(0); int(i) < len(s.found); i++ {
		cur := s.found[i]
		if cur.depth == pairDepth {
			return pairDepth, -1, true
		}
		if s.steps--; s.steps < 0 || len(s.found) > pairStates {
			return 0, 0, false
		}
		x, y := m.tableOf(cur.a).cls, m.tableOf(cur.b).cls
		for rest := sig; rest != 0; rest &= rest - 1 {
			g := uint8(bits.TrailingZeros64(rest))
			cx, cy := -1, -1
			for _, c := range sigBytes[g] {
				if int(x.of[c]) == cx && int(y.of[c]) == cy {
					continue
				}
				cx, cy = int(x.of[c]), int(y.of[c])
				next := statePair{m.pool.step(cur.a, c), m.pool.step(cur.b, c)}
				if next.a == next.b {
					continue
				}
				if _, ok := s.seen[next]; ok {
					continue
				}
				s.seen[next] = struct{}{}
				s.found = append(s.found, pairState{next, i, cur.depth + 1, g})
				if next.a == rxEmpty || next.b == rxEmpty || !m.sameEnd(next) {
					return cur.depth, int32(len(s.found) - 1), true
				}
			}
		}
	}
	return 1 << 20, -1, true
}

// sameEnd reports whether both are complete, with one label, or neither is.
func (m *machine) sameEnd(p statePair) bool {
	end := m.nullable(p.a)
	return end == m.nullable(p.b) && (!end || m.labelOf(p.a) == m.labelOf(p.b))
}
