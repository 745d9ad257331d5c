package grammar

import (
	"math/bits"
	"slices"
)

// maskEntry is the tokens that may come next, as words or, when they are few,
// as a list. End tokens are not in it.
type maskEntry struct {
	words []uint64
	list  []int32
}

func (e *maskEntry) size() int { return 8*len(e.words) + 4*len(e.list) + 64 }

// maskStore remembers masks under a budget of bytes.
type maskStore struct {
	bytes   int
	max     int
	places  []*place
	scratch []uint64
	second  []uint64
	inner   []uint64
	sp      []*place
	sn, sr  []nodeID
	slack   int // see reference
}

func (m *machine) initMasks() {
	s := &m.masks
	s.max = m.limits.MaskBytes
	s.scratch = make([]uint64, m.vocab.MaskWords())
	s.second = make([]uint64, m.vocab.MaskWords())
	s.inner = make([]uint64, m.vocab.MaskWords())
	s.sp = make([]*place, m.vocab.maxLen+1)
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
	all := m.masks.scratch
	clear(all)
	for _, c := range p.configs {
		in := m.innerOf(c.node)
		in.tokens.addTo(all)
		acc, recorded := all, c.stack != nil && m.frames[c.stack.frame].kind == frRecord
		if recorded {
			// What follows depends on the whole text of the item, which the
			// rests leave out: each token is tried.
			acc = m.masks.second
			clear(acc)
		}
		for i := range in.exits {
			x := &in.exits[i]
			next := m.after(c, x.label)
			if recorded {
				next = m.behindRecord(c.stack.next)
			}
			if next == nil || len(next.configs) == 0 {
				continue
			}
			if x.rest == nil && x.size <= maxRests {
				x.rest = m.gather(x.points)
			}
			if x.rest != nil {
				m.walkRest(x.rest, x.lost, next, acc)
				continue
			}
			for _, t := range m.vocab.below(x.points) {
				m.walkBelow(t.trie, next, acc)
			}
		}
		if recorded {
			m.verify(p, acc)
			for i, w := range acc {
				all[i] |= w
			}
		}
	}
	for _, c := range p.configs {
		if c.stack != nil && int(c.stack.depth)+m.span >= int(m.maxDepth) {
			m.verify(p, all)
			break
		}
	}
	return packMask(all)
}

// verify removes the tokens that do not lead anywhere from p.
func (m *machine) verify(p *place, acc []uint64) {
tokens:
	for t, text := range m.vocab.tokens {
		if acc[t>>6]&(1<<(t&63)) == 0 {
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

func (e *maskEntry) addTo(acc []uint64) {
	if e.words != nil {
		for i, w := range e.words {
			acc[i] |= w
		}
		return
	}
	for _, t := range e.list {
		acc[t>>6] |= 1 << (t & 63)
	}
}

// inner is what a lexeme state says about tokens whatever surrounds it: the
// tokens that stay within the lexeme, and those that run past its end.
type inner struct {
	tokens *maskEntry
	points []point
	exits  []exits
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
	rest   *restTrie
	lost   []uint64 // tokens of rest that do not count, as a mask; nil: none
}

// maxRests bounds the rests that are gathered into a trie; where there are
// more, the trie of the vocabulary is walked below each point.
const maxRests = 30_000

func (m *machine) innerOf(id nodeID) *inner {
	if in := m.inners[id]; in != nil {
		return in
	}
	var in *inner
	if id < m.base {
		in = m.vocab.shared(id, func() *inner {
			in := m.computeInner(id)
			for i := range in.exits {
				in.exits[i].rest = m.gather(in.exits[i].points)
			}
			return in
		})
	} else {
		in = m.computeInner(id)
		m.masks.bytes += in.size()
	}
	m.inners[id] = in
	return in
}

func (in *inner) size() int {
	n := in.tokens.size() + 12*len(in.points)
	for _, x := range in.exits {
		n += 4 * min(x.size, maxRests)
	}
	return n
}

func (m *machine) computeInner(id nodeID) *inner {
	if lo, hi, ok := m.countedString(id); ok {
		return m.countInner(lo, hi)
	}
	in := &inner{}
	if ref := m.reference(id); ref == id || !m.walkAgainst(id, ref, in) {
		m.walkNode(id, in)
	}
	for _, p := range in.points {
		i := slices.IndexFunc(in.exits, func(x exits) bool { return x.label == p.label && x.rest == nil })
		if i < 0 {
			i = len(in.exits)
			in.exits = append(in.exits, exits{label: p.label})
		}
		x := &in.exits[i]
		x.points = append(x.points, p)
		x.size += int(m.vocab.nodeEnd[p.trie]-p.trie) - 1
		if p.deep {
			x.size += maxRests // not worth a trie
		}
	}
	return in
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

// walkNode walks the trie with one lexeme state.
func (m *machine) walkNode(id nodeID, in *inner) {
	v, nodes := m.vocab, m.pool
	acc := m.masks.inner
	clear(acc)
	states := m.masks.sn
	states[0] = id
	for i, n := 0, len(v.nodeByte); i < n; {
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
		if tok := v.nodeTok[i]; tok >= 0 {
			v.mark(acc, tok)
		}
		if v.nodeHigh[i] > 0 {
			end := nodes.nodes[next].flags&fNullable != 0
			same := nodes.loops(next, v.nodeSig[i])
			if end {
				in.points = append(in.points, point{int32(i), m.labelOf(next), same})
			}
			if same {
				// Every token below stays in this state.
				for _, tok := range v.order[v.nodeRank[i+1]:v.nodeRank[v.nodeEnd[i]]] {
					v.mark(acc, tok)
				}
				i = int(v.nodeEnd[i])
				continue
			}
		}
		i++
	}
	in.tokens = packMask(acc)
}

// mark sets the bits of a token and of those with the same bytes.
func (v *Vocab) mark(acc []uint64, tok int32) {
	acc[tok>>6] |= 1 << (tok & 63)
	if len(v.dup) > 0 {
		for _, t := range v.dup[tok] {
			acc[t>>6] |= 1 << (t & 63)
		}
	}
}

func (v *Vocab) unmark(acc []uint64, tok int32) {
	acc[tok>>6] &^= 1 << (tok & 63)
	if len(v.dup) > 0 {
		for _, t := range v.dup[tok] {
			acc[t>>6] &^= 1 << (t & 63)
		}
	}
}

// reference is a state that most tokens treat like id and whose mask is known
// or shared by many: the same without upper bounds on counts, plain text, or
// where most characters lead.
func (m *machine) reference(id nodeID) nodeID {
	if id < m.base {
		return id
	}
	if nd := m.nodes[id]; nd.kind == kCat {
		if rest, _, ok := m.splitBound(nd.a); ok {
			if m.masks.slack = m.reachOf(rest); m.masks.slack >= 0 {
				return m.cat(rest, nd.b)
			}
		}
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
	if stay && to != id {
		return to
	}
	return m.unbounded(id)
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
	if x.kind == kAnd {
		// "At most n characters of r" against r, where r can always end in time.
		rest, bound, ok := m.splitBound(a)
		return ok && rest == b && int(bound) > int(chars)+m.masks.slack
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

// walkAgainst computes what walkNode does, starting from the answer of a
// reference: only the parts of the trie where the two states differ are
// visited. It declines when the reference may end almost anywhere.
func (m *machine) walkAgainst(id, ref nodeID, in *inner) bool {
	base := m.innerOf(ref)
	v := m.vocab
	if slices.ContainsFunc(base.points, func(p point) bool { return p.deep }) {
		return false
	}
	// A state of basePool completes a lexeme at one point of a token, so its
	// rests can be taken over, less those of points that are visited here.
	share := ref < m.base && len(base.exits) == 1
	var lost []uint64
	lose := func(from, to int32) { // the reference's rests of tokens in a part
		if share {
			if lost == nil {
				lost = make([]uint64, v.MaskWords())
			}
			for _, tok := range v.order[v.nodeRank[from]:v.nodeRank[to]] {
				v.mark(lost, tok)
			}
		}
	}
	acc := m.masks.inner
	clear(acc)
	base.tokens.addTo(acc)
	states, refs := m.masks.sn, m.masks.sr
	states[0], refs[0] = id, ref
	points := base.points
	inherit := func(from, to int32) { // the reference's points in a part not visited
		if share {
			return
		}
		i, _ := slices.BinarySearchFunc(points, from, func(p point, x int32) int { return int(p.trie - x) })
		for ; i < len(points) && points[i].trie < to; i++ {
			in.points = append(in.points, points[i])
		}
	}
	for i, n := 0, len(v.nodeByte); i < n; {
		d := v.nodeDepth[i]
		b := v.nodeByte[i]
		s, r := states[d-1], refs[d-1]
		s = m.pool.step(s, b)
		if r != rxEmpty {
			r = m.pool.step(r, b)
		}
		if s == r || (s != rxEmpty && r != rxEmpty && m.like(s, r, int32(v.nodeHigh[i]), int32(v.nodeChars[i]), v.nodeSig[i])) {
			if s != rxEmpty {
				inherit(int32(i), v.nodeEnd[i])
			}
			i = int(v.nodeEnd[i])
			continue
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
		if tok := v.nodeTok[i]; tok >= 0 {
			v.mark(acc, tok)
		}
		if v.nodeHigh[i] > 0 && r != rxEmpty && m.nullable(r) {
			lose(int32(i)+1, v.nodeEnd[i])
		}
		if v.nodeHigh[i] > 0 && m.nullable(s) {
			in.points = append(in.points, point{int32(i), m.labelOf(s), false})
		}
		i++
	}
	in.tokens = packMask(acc)
	if share {
		in.exits = append(in.exits, exits{rest: base.exits[0].rest, lost: lost, label: base.exits[0].label})
	}
	return true
}
