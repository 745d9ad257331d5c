package grammar

// This file compares states of lexemes: where two treat the tokens of a part of
// the vocabulary alike, the answer of one serves the other.

// comparison is how a state is compared with its reference: slack is at least 0
// where that is the same without a bound on the characters of its head, and all
// of the head can be ended in so many; opening is set where it is free text.
type comparison struct {
	slack   int
	opening *byOpening
}

// reference is a state that most tokens treat like id and whose mask is known
// or shared by many: the same without upper bounds on counts, plain text, or
// where most characters lead.
func (m *machine) reference(id nodeID) (ref nodeID, by comparison) {
	by.slack = -1
	m.pairs.steps = 0
	if id < m.base {
		return id, by
	}
	if free, o, ok := m.opening(id); ok {
		by.opening = o
		return free, by
	}
	if nd := m.nodes[id]; nd.kind == kCat {
		if rest, _, ok := m.splitBound(nd.a); ok {
			// Only expressions of whole characters are counted by reachOf.
			if slack := m.reachOf(rest); slack >= 0 && m.nodes[rest].whole != 0 {
				by.slack = slack
				return m.cat(rest, nd.b), by
			}
		}
	}
	if free := m.uncounted(id); free != id {
		return free, by
	}
	if free, ok := m.anyBut(id); ok {
		return free, by
	}
	m.pairs.steps = pairSteps
	if e := m.spelledBy(id); m.resembles(id, m.freeText[e]) {
		return m.freeText[e], by
	}
	m.pairs.steps = 0
	// A state to which ordinary letters lead and in which they stay, such as
	// the one before any part of a pattern was seen.
	to, stay := m.pool.step(id, 'q'), true
	for _, b := range []byte("qtz") {
		stay = stay && to != rxEmpty && m.pool.step(id, b) == to && m.pool.step(to, b) == to
	}
	if stay {
		return to, by
	}
	return id, by
}

// spelledBy is the encoder of the characters that id begins with, encRaw where
// its structure does not tell.
func (m *machine) spelledBy(id nodeID) encoder {
	for {
		nd := &m.nodes[id]
		if nd.whole != 0 {
			return encoder(nd.whole - 1)
		}
		switch nd.kind {
		case kCat:
			if e := m.spelledBy(nd.a); e != encRaw {
				return e
			}
			id = nd.b
		case kRep:
			id = nd.a
		case kAlt, kAnd:
			id = nd.list[len(nd.list)-1]
		default:
			return encRaw
		}
	}
}

// anyBut reports whether id is any text but certain words, with something
// behind it, and returns the same without the exception.
func (m *machine) anyBut(id nodeID) (nodeID, bool) {
	nd := &m.nodes[id]
	if nd.kind != kCat || m.nodes[nd.a].kind != kAnd {
		return 0, false
	}
	free := rxEmpty
	for _, x := range m.nodes[nd.a].list {
		c := &m.nodes[x]
		switch {
		case c.whole != 0 && x == m.anyText[c.whole-1]:
			free = x
		case c.kind != kNot || m.nodes[c.a].kind != kLeaf:
			return 0, false
		}
	}
	if free == rxEmpty {
		return 0, false
	}
	return m.cat(free, nd.b), true
}

// resembles reports whether a walk of id is much shorter against the answer of
// free than alone, judged by some first bytes.
func (m *machine) resembles(id, free nodeID) bool {
	v := m.vocab
	alone, against := int32(0), int32(0) // nodes that have to be visited
	for _, b := range []byte(" cs-P0\xE4") {
		x := m.pool.step(id, b)
		i := v.roots[b]
		if i < 0 || x == rxEmpty {
			continue
		}
		y, end := m.pool.step(free, b), v.nodeEnd[i]
		for i++; i < end; i = v.nodeEnd[i] {
			p, q := m.pool.step(x, v.nodeByte[i]), m.pool.step(y, v.nodeByte[i])
			if p == rxEmpty {
				continue
			}
			size, sig := v.nodeEnd[i]-i, v.nodeSig[i]
			if !m.pool.loops(p, sig) {
				alone += size
			}
			if p != q && (q == rxEmpty || !m.like(p, q, int32(v.nodeHigh[i]), int32(v.nodeChars[i]), sig) && !m.alike(p, q, int32(v.nodeHigh[i]), sig)) {
				against += size
			}
		}
	}
	return 2*against < alone
}

// manyTimes is the least bound that is worth comparing with no bound.
const manyTimes = 8

// uncounted is id without the bounds of its counts. At the head, where what
// follows begins with other bytes than what is counted, the lower one goes too.
func (m *machine) uncounted(id nodeID) nodeID {
	if nd := m.nodes[id]; nd.kind == kCat && (nd.flags&fImpure) == 0 {
		if r := m.nodes[nd.a]; r.kind == kRep && (r.n < 0 || r.n >= manyTimes) && r.m > 0 && m.firstSig(r.a)&m.firstSig(nd.b)&^(1<<sigOf['\\']) == 0 {
			return m.cat(m.rep(r.a, 0, -1), nd.b)
		}
	}
	return m.unbounded(id)
}

// unbounded drops the upper bounds of the counts in id.
func (m *machine) unbounded(id nodeID) nodeID {
	nd := m.nodes[id]
	if nd.flags&fImpure != 0 {
		return id
	}
	switch nd.kind {
	case kRep:
		if nd.n >= manyTimes || nd.n >= manyTimes/2 && m.nodes[nd.a].least > 1 {
			return m.rep(nd.a, nd.m, -1)
		}
	case kCat:
		return m.cat(m.unbounded(nd.a), m.unbounded(nd.b))
	case kAlt:
		if len(nd.list) <= fewAlternatives {
			list := make([]nodeID, len(nd.list))
			for i, x := range nd.list {
				list[i] = m.unbounded(x)
			}
			return m.alt(list...)
		}
	}
	return id
}

// fewAlternatives bounds the alternatives that are compared with one another.
const fewAlternatives = 6

// like reports whether a and b allow the same texts of at most h bytes and
// chars characters, out of the byte groups of sig, to begin, and are complete
// after the same of them. It may say no too often.
func (m *machine) like(a, b nodeID, h, chars int32, sig uint64) bool {
	if a == b {
		return true
	}
	x, y := &m.nodes[a], &m.nodes[b]
	if x.kind == kAnd {
		return false
	}
	if y.flags&fImpure != 0 && (x.kind != kCat || y.kind != kCat) {
		return false
	}
	switch {
	case x.kind == kAlt && y.kind == kAlt:
		if len(x.list) != len(y.list) || len(x.list) > fewAlternatives {
			return false
		}
		used := 0
	next:
		for _, c := range x.list {
			for j, d := range y.list {
				if used&(1<<j) == 0 && m.like(c, d, h, chars, sig) {
					used |= 1 << j
					continue next
				}
			}
			return false
		}
		return true
	case x.kind == kCat && y.kind == kCat:
		if x.b == y.b && (x.flags|y.flags)&fImpure == 0 {
			// The least count does not matter where the rest cannot begin.
			free := sig&m.firstSig(x.b) == 0
			if hx, hy := &m.nodes[x.a], &m.nodes[y.a]; free && hx.kind == kRep && hy.kind == kRep {
				return m.likeRep(hx, hy, h, chars, true)
			}
			return m.like(x.a, y.a, h, chars, sig)
		}
		return m.like(x.a, y.a, h, chars, sig) && (m.nodes[x.a].least > h || m.like(x.b, y.b, h, chars, sig))
	case x.kind == kRep && y.kind == kRep:
		return m.likeRep(x, y, h, chars, false)
	}
	return false
}

// withinBound reports whether a, in the walk of a state against the same
// without a bound on its characters, is not bounded for chars more of them.
func (m *machine) withinBound(a nodeID, chars int32, slack int) bool {
	x := &m.nodes[a]
	if slack < 0 || x.kind != kCat || m.nodes[x.a].kind != kAnd {
		return false
	}
	for _, y := range m.nodes[x.a].list {
		b := &m.nodes[y]
		if b.kind == kCat { // within a character
			b = &m.nodes[b.b]
		}
		if b.kind == kRep && b.whole != 0 && b.a == m.anyChar[b.whole-1] && b.m == 0 && b.n >= 0 {
			return int(b.n) > int(chars)+slack
		}
	}
	return false
}

// firstSig is the groups of the bytes that texts of id begin with, all groups
// when id may be empty.
func (m *machine) firstSig(id nodeID) uint64 {
	nd := &m.nodes[id]
	if nd.first != 0 {
		return nd.first
	}
	out := ^uint64(0)
	if nd.flags&fNullable == 0 {
		var set [4]uint64
		m.pool.firstBytes(id, &set)
		out = 0
		for b := range 256 {
			if set[b>>6]&(1<<(b&63)) != 0 {
				out |= 1 << sigOf[b]
			}
		}
	}
	m.nodes[id].first = out
	return out
}

// likeRep is like for two repetitions; anyMin ignores the least counts.
func (m *machine) likeRep(x, y *node, h, chars int32, anyMin bool) bool {
	if x.a != y.a || (x.flags|y.flags)&fImpure != 0 {
		return false
	}
	// How often the repeated part can be passed.
	c := &m.nodes[x.a]
	times := h
	if c.whole != 0 && c.lo == 1 {
		times = chars
	} else if c.least > 1 {
		times = h / c.least
	}
	if !anyMin && x.m != y.m && (x.m <= times || y.m <= times) {
		return false
	}
	return (x.n < 0 || x.n > times) && (y.n < 0 || y.n > times)
}
