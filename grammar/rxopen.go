package grammar

// This file knows intersections of patterns that may be found anywhere: they
// are alive without a search, and any character may come next.

// opened reports whether id is an intersection of parts of which each, whatever
// was read, may begin anew behind any further text: then some text matches, the
// parts one behind the other. chars is what that takes at most, in characters;
// most is the characters that id allows, -1 without a bound.
func (p *pool) opened(id nodeID) (chars, most int32, ok bool) {
	_, chars, most, ok = p.openedAt(id)
	return chars, most, ok
}

// openedAt is opened with the rest of a character that all parts begin with.
func (p *pool) openedAt(id nodeID) (head nodeID, chars, most int32, ok bool) {
	nd := &p.nodes[id]
	if nd.kind != kAnd {
		return 0, 0, 0, false
	}
	most, head = -1, -1
	ends := 0
	for _, x := range nd.list {
		h, rest := p.splitChar(x)
		if r := &p.nodes[rest]; r.kind == kRep && r.whole != 0 && r.a == p.anyChar[r.whole-1] {
			if head >= 0 && h != head {
				return 0, 0, 0, false
			}
			if head = h; r.n >= 0 && (most < 0 || r.n < most) {
				most = r.n
			}
			chars = max(chars, r.m)
			continue
		}
		alts := []nodeID{x}
		if p.nodes[x].kind == kAlt {
			alts = p.nodes[x].list
		}
		found := false
		for _, y := range alts {
			h, rest := p.splitChar(y)
			r := &p.nodes[rest]
			if head >= 0 && h != head || r.kind != kCat || r.whole == 0 || r.flags&fImpure != 0 || r.a != p.anyText[r.whole-1] {
				continue
			}
			last := r.b
			for p.nodes[last].kind == kCat {
				last = p.nodes[last].b
			}
			if last != r.a {
				ends++ // it must be the last of all
			}
			head, found = h, true
			chars += r.lo
			break
		}
		if !found {
			return 0, 0, 0, false
		}
	}
	if ends > 1 || most >= 0 && chars+1 > most {
		return 0, 0, 0, false
	}
	return head, chars + 1, most, true
}

// splitChar divides id into the rest of a character that is under way, rxEps
// where none is, and what follows it.
func (p *pool) splitChar(id nodeID) (head, rest nodeID) {
	if nd := &p.nodes[id]; nd.kind == kCat {
		if h := &p.nodes[nd.a]; h.kind == kLeaf && h.whole == 0 {
			return nd.a, nd.b
		}
	}
	return rxEps, id
}

// byOpening compares a state that is opened, up to the end of its string, with
// free text in the walk of [machine.walkAgainst].
type byOpening struct {
	m     *machine
	close nodeID   // what ends the string
	ends  []uint64 // the tokens that end one
}

// opening is how id is compared with free text; ok is false where that is no
// use.
func (m *machine) opening(id nodeID) (free nodeID, by *byOpening, ok bool) {
	nd := &m.nodes[id]
	if nd.kind != kCat || m.nodes[nd.a].whole == 0 {
		return 0, nil, false
	}
	e := encoder(m.nodes[nd.a].whole - 1)
	if e == encRaw {
		return 0, nil, false
	}
	free = m.freeText[e]
	if head, _, _, ok := m.openedAt(nd.a); !ok || head != rxEps || nd.b != m.nodes[free].b {
		return 0, nil, false
	}
	return free, &byOpening{m, nd.b, m.spell().ends}, true
}

// same reports whether all tokens at trie node i and below are treated by s as
// by free text: all, or all but those that end the string, which s refuses.
func (o *byOpening) same(s nodeID, i int) (alike, butEnds bool) {
	m := o.m
	nd := &m.nodes[s]
	if nd.kind != kCat || nd.b != o.close {
		return false, false
	}
	chars, most, ok := m.opened(nd.a)
	if !ok || most >= 0 && most <= chars+int32(m.vocab.nodeChars[i]) {
		return false, false
	}
	if m.vocab.nodeSig[i]&(1<<sigOf['"']) == 0 {
		return true, false
	}
	return m.nodes[nd.a].least > int32(m.vocab.nodeHigh[i]), true
}
