package grammar

import "slices"

// maskEntry is the tokens that may come next, as words or, when they are few,
// as a list. End tokens are not in it.
type maskEntry struct {
	base  *maskEntry // more of them: those of one lexeme, shared by many places
	words []uint64
	list  []int32
}

// writeTo sets the bits of e in bits, and clears the others.
func (e *maskEntry) writeTo(bits []uint64) {
	if e.base != nil {
		e.base.writeTo(bits)
	} else if e.words == nil {
		clear(bits)
	} else {
		copy(bits, e.words)
	}
	for _, t := range e.list {
		bits[t>>6] |= 1 << (t & 63)
	}
}

func (e *maskEntry) size() int { return 8*len(e.words) + 4*len(e.list) + 64 }

// maskStore remembers masks under a budget of bytes.
type maskStore struct {
	bytes  int
	max    int
	places []*place
	all    tokenSet // of the place
	second tokenSet
	inner  tokenSet // of one lexeme
	sn, sr []nodeID
}

func (m *machine) initMasks() {
	s := &m.masks
	s.max = m.limits.MaskBytes
	for _, set := range []*tokenSet{&s.all, &s.second, &s.inner} {
		set.words = make([]uint64, m.vocab.MaskWords())
	}
	s.sn = make([]nodeID, m.vocab.maxLen+1)
	s.sr = make([]nodeID, m.vocab.maxLen+1)
}

// keep remembers the mask of p.
func (m *machine) keep(p *place, e *maskEntry) {
	s := &m.masks
	if s.bytes += e.size(); s.bytes > s.max {
		for _, q := range s.places {
			q.mask.Store(nil)
		}
		s.places = s.places[:0]
		clear(m.inners)
		s.bytes = e.size()
	}
	p.mask.Store(e)
	s.places = append(s.places, p)
}

// maskOf is the mask of p, computed when it is first asked for.
func (m *machine) maskOf(p *place) *maskEntry {
	r := m.repPlace(p)
	e := r.mask.Load()
	if e == nil {
		e = m.computeMask(r)
		m.keep(r, e)
	}
	if r != p {
		p.mask.Store(e)
		m.masks.places = append(m.masks.places, p)
	}
	return e
}

func (m *machine) computeMask(p *place) *maskEntry {
	all := &m.masks.all
	all.reset()
	if m.manyTexts(p) {
		m.walkTogether(p, all)
		return all.pack()
	}
	base := m.baseOf(p)
	for _, c := range p.configs {
		in := m.innerOf(c.node)
		if in.tokens != base {
			all.addAll(in.tokens)
		}
		acc, recorded := all, c.stack != nil && m.frames[c.stack.frame].kind == frRecord
		if recorded {
			// What follows depends on the whole text of the item, which the
			// rests leave out: tokens for which that matters are tried.
			acc = &m.masks.second
			acc.reset()
		}
		for i := range in.exits {
			x := &in.exits[i]
			if m.onlyCloses(c) && !x.closes(m.vocab) {
				continue // and what follows need not be built
			}
			next := m.after(c, x.label)
			if recorded {
				next = m.behindRecord(c.stack)
			}
			if next == nil || len(next.configs) == 0 {
				continue
			}
			if x.rest == nil && x.size <= maxRests && x.walked >= gatherAfter*x.size {
				x.rest = m.gather(x.points)
			}
			if x.rest != nil {
				m.walkRest(x.rest, x.lost, next, acc)
				continue
			}
			for _, t := range m.vocab.below(x.points) {
				x.walked += m.walkBelow(t.trie, next, acc)
			}
		}
		if recorded {
			m.verify(p, acc.dense(), m.mattersTo(c.stack))
			all.addAll(acc.pack())
		}
	}
	if slices.ContainsFunc(p.configs, m.deep) {
		m.verify(p, all.dense(), nil)
	}
	if base != nil && all.many {
		all.addAll(base)
		base = nil
	}
	e := all.pack()
	e.base = base
	return e
}

// baseOf is the largest set of tokens that stay within a lexeme of p: the mask
// of p refers to it. It is nil where tokens have to be tried one by one.
func (m *machine) baseOf(p *place) *maskEntry {
	var base *maskEntry
	for _, c := range p.configs {
		if m.deep(c) {
			return nil
		}
		t := m.innerOf(c.node).tokens
		if base == nil || t.words != nil && base.words == nil || t.words == nil && base.words == nil && len(t.list) > len(base.list) {
			base = t
		}
	}
	return base
}

// deep reports whether one token can lead from c to the deepest nesting.
func (m *machine) deep(c config) bool {
	return c.stack != nil && int(c.stack.depth)+m.span >= int(m.maxDepth)
}

// verify removes the tokens that do not lead anywhere from p; where matters is
// not nil, only those that it names are tried.
func (m *machine) verify(p *place, acc []uint64, matters func(token []byte) bool) {
tokens:
	for t, text := range m.vocab.tokens {
		if acc[t>>6]&(1<<(t&63)) == 0 || matters != nil && !matters(text) {
			continue
		}
		q := p
		for _, b := range text {
			if q = m.step(q, b); q == nil {
				acc[t>>6] &^= 1 << (t & 63)
				continue tokens
			}
		}
	}
}

// inner is what a lexeme state says about tokens whatever surrounds it: the
// tokens that stay within the lexeme, and those that run past its end.
type inner struct {
	tokens *maskEntry
	points []point
	exits  []exits
	once   bool // of a state of basePool: no token has two points
}

// point is a trie node at which a lexeme may be complete and that has longer
// tokens below it.
type point struct {
	trie  int32
	label int32
	deep  bool // every node below is a point too
}

// exits is the points of one label, and the rests of the tokens that run past
// them, once they are asked for.
type exits struct {
	label  int32
	points []point
	size   int // trie nodes below the points
	walked int // nodes that were visited for want of rest
	rest   *restTrie
	taken  bool     // rest is another state's
	lost   []uint64 // tokens of rest that do not count, as a mask; nil: none
	close  int8     // of closes: 0 unknown, 1 yes, 2 no
}

// maxRests bounds the rests that are gathered into a trie; where there are
// more, the trie of the vocabulary is walked below each point.
const maxRests = 30_000

// gatherAfter is the visits to nodes of the vocabulary that cost as much as
// gathering one of them as a rest.
const gatherAfter = 5

func (m *machine) innerOf(id nodeID) *inner {
	if int(id) >= len(m.inners) {
		m.inners = append(m.inners, make([]*inner, int(id)+1-len(m.inners))...)
	}
	if in := m.inners[id]; in != nil {
		return in
	}
	var in *inner
	if id < m.base && slices.Contains(m.common, id) {
		in = m.vocab.shared(id, func() *inner {
			in := m.computeInner(id)
			in.once = m.vocab.apart(in.points)
			for i := range in.exits {
				in.exits[i].rest = m.gather(in.exits[i].points)
			}
			return in
		})
	} else {
		in = m.computeInner(id)
		m.masks.bytes += in.size()
	}
	if int(id) >= len(m.inners) { // forget cut them
		m.inners = append(m.inners, make([]*inner, int(id)+1-len(m.inners))...)
	}
	m.inners[id] = in
	return in
}

func (in *inner) size() int {
	n := in.tokens.size() + 12*len(in.points)
	for _, x := range in.exits {
		n += 4*min(x.size, maxRests) + 8*len(x.lost)
	}
	return n
}

func (m *machine) computeInner(id nodeID) *inner {
	if lo, hi, ok := m.countedString(id); ok {
		return m.countInner(lo, hi)
	}
	in := &inner{}
	mark := len(m.nodes)
	ref, by := id, comparison{}
	if m.nodes[id].kind != kLeaf && !m.fewBelow(id) {
		ref, by = m.reference(id)
	}
	for _, depth := range shallower {
		in = &inner{}
		if ref == id {
			m.effort.begin(depth)
			m.walkNode(id, in)
		} else {
			m.walkAgainst(id, ref, by, depth, in)
		}
		if !m.effort.failed {
			break
		}
	}
	m.forget(mark)
	in.divide(m.vocab)
	return in
}

// divide makes exits of the points, one for each label.
func (in *inner) divide(v *Vocab) {
	one := !slices.ContainsFunc(in.points, func(p point) bool { return p.label != in.points[0].label })
	last := -1
	for _, p := range in.points {
		i := last
		if i < 0 || in.exits[i].label != p.label {
			i = slices.IndexFunc(in.exits, func(x exits) bool { return x.label == p.label && !x.taken })
		}
		if i < 0 {
			i = len(in.exits)
			in.exits = append(in.exits, exits{label: p.label})
			if one {
				in.exits[i].points = in.points
			}
		}
		last = i
		x := &in.exits[i]
		if !one {
			x.points = append(x.points, p)
		}
		x.size += int(v.nodeEnd[p.trie]-p.trie) - 1
		if p.deep {
			x.size += maxRests // not worth a trie
		}
	}
}

// below replaces deep points by all the points they stand for.
func (v *Vocab) below(points []point) []point {
	var out []point
	for _, p := range points {
		out = append(out, point{p.trie, p.label, false})
		if p.deep {
			for i := p.trie + 1; i < v.nodeEnd[p.trie]; i++ {
				if v.nodeHigh[i] > 0 {
					out = append(out, point{i, p.label, false})
				}
			}
		}
	}
	return out
}

// apart reports whether no point is below another.
func (v *Vocab) apart(points []point) bool {
	end := int32(0)
	for _, p := range points {
		if p.deep || p.trie < end {
			return false
		}
		end = v.nodeEnd[p.trie]
	}
	return true
}

// fewBelow reports whether so few tokens begin with a byte that id allows that
// walking them costs less than looking for a reference.
func (m *machine) fewBelow(id nodeID) bool {
	v, size := m.vocab, int32(0)
	m.pool.eachFirst(id, func(b byte, s nodeID) bool {
		i := v.roots[b]
		if i < 0 {
			return true
		}
		if end := v.nodeEnd[i]; end-i <= v.few/8 {
			size += end - i
		} else {
			for i++; i < end && size <= v.few; i = v.nodeEnd[i] {
				if size++; m.pool.step(s, v.nodeByte[i]) != rxEmpty {
					size += v.nodeEnd[i] - i
				}
			}
		}
		return size <= v.few
	})
	return size <= v.few
}

// walkNode walks the trie with one lexeme state.
func (m *machine) walkNode(id nodeID, in *inner) {
	v, nodes := m.vocab, m.pool
	acc := &m.masks.inner
	acc.reset()
	if nd := &nodes.nodes[id]; nd.kind == kLeaf {
		m.walkLeaf(int32(nd.a), in)
		in.tokens = acc.pack()
		return
	}
	states := m.masks.sn
	states[0] = id
	nodes.eachFirst(id, func(b byte, _ nodeID) bool {
		if i := v.roots[b]; i >= 0 {
			m.walkRoot(int(i), in)
		}
		return !m.effort.failed
	})
	in.tokens = acc.pack()
}

// walkRoot is walkNode for the tokens that begin with one byte.
func (m *machine) walkRoot(root int, in *inner) {
	v, nodes := m.vocab, m.pool
	acc, states := &m.masks.inner, m.masks.sn
	for i, n := root, int(v.nodeEnd[root]); i < n; {
		m.visits++
		d := v.nodeDepth[i]
		s := states[d-1]
		t := nodes.nodes[s].tab
		var next nodeID
		if t == nil {
			next = nodes.step(s, v.nodeByte[i])
		} else if next = t.next[t.cls.of[v.nodeByte[i]]]; next < 0 {
			next = nodes.step(s, v.nodeByte[i])
		}
		if next == rxEmpty {
			i = int(v.nodeEnd[i])
			continue
		}
		states[d] = next
		if !m.effort.meet(&nodes.nodes[next]) {
			return
		}
		if tok := v.nodeTok[i]; tok >= 0 {
			v.put(acc, tok)
		}
		if v.nodeHigh[i] > 0 {
			end := nodes.nodes[next].flags&fNullable != 0
			same := nodes.loops(next, v.nodeSig[i])
			if end {
				in.points = append(in.points, point{int32(i), m.labelOf(next), same})
			}
			if same {
				// Every token below stays in this state.
				v.putRange(acc, int32(i)+1, v.nodeEnd[i])
				i = int(v.nodeEnd[i])
				continue
			}
			if d >= m.effort.depth {
				i = int(v.nodeEnd[i])
				continue
			}
		}
		i++
	}
}

// sameBelow reports whether a and b treat all tokens at trie node i and below
// alike. It may say no too often.
func (m *machine) sameBelow(a, b nodeID, i int) bool {
	v := m.vocab
	high, sig := int32(v.nodeHigh[i]), v.nodeSig[i]
	return m.like(a, b, high, int32(v.nodeChars[i]), sig) || v.nodeEnd[i]-int32(i) > v.few/worthPairs && m.alike(a, b, high, sig)
}

// walkAgainst computes what walkNode does, starting from the answer of a
// reference: only the parts of the trie where the two states differ are
// visited.
func (m *machine) walkAgainst(id, ref nodeID, by comparison, depth uint16, in *inner) {
	steps := m.pairs.steps
	base := m.innerOf(ref)
	m.pairs.steps = steps
	m.effort.begin(depth)
	v := m.vocab
	// The rests of a state of basePool that completes a lexeme at one point of
	// a token can be taken over, less those of points that are visited here; and
	// they can be passed on by who took them over.
	whole := base.once && len(base.exits) == 1
	var rests *exits
	for i := range base.exits {
		if whole || base.exits[i].taken {
			rests = &base.exits[i]
		}
	}
	var lost []uint64
	loseToken := func(tok int32) { // the reference's rest of a token
		if rests != nil {
			if lost == nil {
				lost = make([]uint64, v.MaskWords())
				copy(lost, rests.lost)
			}
			v.mark(lost, tok)
		}
	}
	lose := func(from, to int32) { // those of all tokens in a part
		if rests == nil {
			return
		}
		for _, tok := range v.order[v.nodeRank[from]:v.nodeRank[to]] {
			loseToken(tok)
		}
	}
	m.masks.inner.reset()
	m.masks.inner.addAll(base.tokens)
	acc := m.masks.inner.dense()
	states, refs := m.masks.sn, m.masks.sr
	states[0], refs[0] = id, ref
	points := base.points
	if !whole {
		in.points = make([]point, 0, len(points))
	}
	var deep point                    // the last one met below which all are points
	inherit := func(from, to int32) { // the reference's points in a part not visited
		if whole {
			return
		}
		for len(points) > 0 && points[0].trie < from {
			if points[0].deep {
				deep = points[0]
			}
			points = points[1:]
		}
		if deep.deep && from < v.nodeEnd[deep.trie] {
			if v.nodeHigh[from] > 0 {
				in.points = append(in.points, point{from, deep.label, true})
			}
			return
		}
		for ; len(points) > 0 && points[0].trie < to; points = points[1:] {
			in.points = append(in.points, points[0])
		}
	}
	for i, n := 0, len(v.nodeByte); i < n; {
		m.visits++
		d := v.nodeDepth[i]
		b := v.nodeByte[i]
		s, r := states[d-1], refs[d-1]
		s = m.pool.step(s, b)
		if r != rxEmpty {
			r = m.pool.step(r, b)
		}
		if s == r || (s != rxEmpty && r != rxEmpty && (m.withinBound(s, int32(v.nodeChars[i]), by.slack) || m.sameBelow(s, r, i))) {
			if s != rxEmpty {
				inherit(int32(i), v.nodeEnd[i])
			}
			i = int(v.nodeEnd[i])
			continue
		}
		if by.opening != nil && s != rxEmpty && r != rxEmpty {
			if alike, butEnds := by.opening.same(s, i); alike {
				if butEnds {
					for _, tok := range v.order[v.nodeRank[i]:v.nodeRank[v.nodeEnd[i]]] {
						if ends := by.opening.ends; ends[tok>>6]&(1<<(tok&63)) != 0 {
							v.unmark(acc, tok)
							loseToken(tok)
						}
					}
				}
				i = int(v.nodeEnd[i])
				continue
			}
		}
		if s == rxEmpty {
			for _, tok := range v.order[v.nodeRank[i]:v.nodeRank[v.nodeEnd[i]]] {
				v.unmark(acc, tok)
			}
			lose(int32(i), v.nodeEnd[i])
			i = int(v.nodeEnd[i])
			continue
		}
		states[d], refs[d] = s, r
		if !m.effort.meet(&m.nodes[s]) || !m.effort.meet(&m.nodes[r]) {
			return
		}
		if tok := v.nodeTok[i]; tok >= 0 {
			v.mark(acc, tok)
		}
		if v.nodeHigh[i] > 0 && r != rxEmpty && m.nullable(r) {
			lose(int32(i)+1, v.nodeEnd[i])
		}
		if v.nodeHigh[i] > 0 && m.nullable(s) {
			in.points = append(in.points, point{int32(i), m.labelOf(s), false})
		}
		if d >= depth {
			for _, tok := range v.order[v.nodeRank[i+1]:v.nodeRank[v.nodeEnd[i]]] {
				v.unmark(acc, tok)
			}
			lose(int32(i)+1, v.nodeEnd[i])
			i = int(v.nodeEnd[i])
			continue
		}
		i++
	}
	in.tokens = packMask(acc)
	if rests != nil {
		if lost == nil {
			lost = rests.lost
		}
		in.exits = append(in.exits, exits{taken: true, rest: rests.rest, lost: lost, label: rests.label})
	}
}
