package grammar

// This file compares states of lexemes: where two treat the tokens of a part of
// the vocabulary alike, the answer of one serves the other.

// reference is a state that most tokens treat like id and whose mask is known
// or shared by many: the same without upper bounds on counts, plain text, or
// where most characters lead.
func (m *machine) reference(id nodeID) nodeID {
	if id < m.base {
		return id
	}
	if nd := m.nodes[id]; nd.kind == kCat {
		if rest, _, ok := m.splitBound(nd.a); ok {
			// Only expressions of whole characters are counted by reachOf.
			if m.masks.slack = m.reachOf(rest); m.masks.slack >= 0 && m.nodes[rest].whole != 0 {
				return m.cat(rest, nd.b)
			}
		}
	}
	if free := m.unbounded(id); free != id {
		return free
	}
	for _, e := range []encoder{encString, encKey} {
		if free := m.freeText[e]; m.resembles(id, free) {
			return free
		}
	}
	// A state to which ordinary letters lead and in which they stay, such as
	// the one before any part of a pattern was seen.
	to, stay := m.pool.step(id, 'q'), true
	for _, b := range []byte("qtz") {
		stay = stay && to != rxEmpty && m.pool.step(id, b) == to && m.pool.step(to, b) == to
	}
	if stay {
		return to
	}
	return id
}

// resembles reports whether most first characters lead from id to where they
// lead from free.
func (m *machine) resembles(id, free nodeID) bool {
	same, all := 0, 0
	letters := uint64(1)<<sigOf['a'] | 1<<sigOf['z']
	for b := byte('a'); b <= 'z'; b++ {
		all++
		x, y := m.pool.step(id, b), m.pool.step(free, b)
		if x != rxEmpty && m.like(x, y, 8, 8, letters) {
			same++
		}
	}
	return 2*same > all
}

// manyTimes is the least bound that is worth comparing with no bound.
const manyTimes = 8

// unbounded drops the upper bounds of the counts in id.
func (m *machine) unbounded(id nodeID) nodeID {
	nd := m.nodes[id]
	if nd.flags&fImpure != 0 {
		return id
	}
	switch nd.kind {
	case kRep:
		if nd.n >= manyTimes {
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
	if x.kind == kAnd || x.kind == kCat && m.nodes[x.a].kind == kAnd {
		// "At most n characters of r", perhaps with more behind it, against the
		// same without a bound, where r can always end in time.
		if c := m.boundedOf(a); c.ok && c.core == b && int(c.bound) > int(chars)+m.masks.slack {
			return true
		}
		if x = &m.nodes[a]; x.kind == kAnd {
			return false
		}
		y = &m.nodes[b]
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

// bounded is a state without the bound on the characters of its head.
type bounded struct {
	core  nodeID
	bound int32
	ok    bool // there is one
	known bool
}

// boundedOf divides id, once for each.
func (m *machine) boundedOf(id nodeID) bounded {
	if int(id) < len(m.cores) && m.cores[id].known {
		return m.cores[id]
	}
	c := bounded{known: true}
	if nd := m.nodes[id]; nd.kind == kAnd {
		c.core, c.bound, c.ok = m.splitBound(id)
	} else if c.core, c.bound, c.ok = m.splitBound(nd.a); c.ok {
		c.core = m.cat(c.core, nd.b)
	}
	if n := len(m.nodes); n > len(m.cores) {
		m.cores = append(m.cores, make([]bounded, n-len(m.cores))...)
	}
	m.cores[id] = c
	return c
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
