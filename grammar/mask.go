package grammar

import (
	"bytes"
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
	inner   []uint64
	sp      []*place
	sn, sr  []nodeID
}

func (m *machine) initMasks() {
	s := &m.masks
	s.max = m.limits.MaskBytes
	s.scratch = make([]uint64, m.vocab.MaskWords())
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
	acc := m.masks.scratch
	clear(acc)
	for _, c := range p.configs {
		in := m.innerOf(c.node)
		in.tokens.addTo(acc)
		for i := range in.exits {
			x := &in.exits[i]
			next := m.after(c, x.label)
			if next == nil || len(next.configs) == 0 {
				continue
			}
			if x.rest == nil && x.size <= maxRests {
				x.rest = m.gather(x.points)
			}
			if x.rest != nil {
				m.walkRest(x.rest, next, acc)
				continue
			}
			for _, t := range x.points {
				m.walkBelow(t, next, acc)
			}
		}
	}
	return packMask(acc)
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
}

// exits is the points of one label, and the rests of the tokens that run past
// them, once they are asked for.
type exits struct {
	label  int32
	points []int32
	size   int // trie nodes below the points
	rest   *restTrie
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
	in := &inner{}
	if ref := m.reference(id); ref != id {
		m.walkAgainst(id, ref, in)
	} else {
		m.walkNode(id, in)
	}
	for _, p := range in.points {
		i := slices.IndexFunc(in.exits, func(x exits) bool { return x.label == p.label })
		if i < 0 {
			i = len(in.exits)
			in.exits = append(in.exits, exits{label: p.label})
		}
		x := &in.exits[i]
		x.points = append(x.points, p.trie)
		x.size += int(m.vocab.nodeEnd[p.trie]-p.trie) - 1
	}
	return in
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
		if v.nodeHigh[i] > 0 && nodes.nodes[next].flags&fNullable != 0 {
			in.points = append(in.points, point{int32(i), m.labelOf(next)})
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
// or shared by many: the same without upper bounds on counts, or plain text.
func (m *machine) reference(id nodeID) nodeID {
	if id < m.base {
		return id
	}
	r := m.unbounded(id)
	for _, e := range []encoder{encString, encKey} {
		if free := m.freeText[e]; r == id && m.resembles(id, free) {
			return free
		}
	}
	return r
}

// resembles reports whether most first characters lead from id to where they
// lead from free.
func (m *machine) resembles(id, free nodeID) bool {
	same, all := 0, 0
	for b := byte('a'); b <= 'z'; b++ {
		all++
		x, y := m.pool.step(id, b), m.pool.step(free, b)
		if x != rxEmpty && m.like(x, y, 8) {
			same++
		}
	}
	return 2*same > all
}

// unbounded drops the upper bounds of the counts at the head of id.
func (m *machine) unbounded(id nodeID) nodeID {
	switch nd := m.nodes[id]; nd.kind {
	case kRep:
		if nd.n >= 0 {
			return m.rep(nd.a, nd.m, -1)
		}
	case kCat:
		if a := m.unbounded(nd.a); a != nd.a {
			return m.cat(a, nd.b)
		}
		if m.nullable(nd.a) {
			return m.cat(nd.a, m.unbounded(nd.b))
		}
	}
	return id
}

// like reports whether a and b allow the same texts of at most h bytes to
// begin, and are complete after the same of them. It may say no too often.
func (m *machine) like(a, b nodeID, h int32) bool {
	if a == b {
		return true
	}
	x, y := &m.nodes[a], &m.nodes[b]
	if x.kind == kCat || y.kind == kCat {
		if x.kind != kCat {
			return y.a == a && m.onlyLater(y.a, h)
		}
		if y.kind != kCat {
			return x.a == b && m.onlyLater(x.a, h)
		}
		return m.like(x.a, y.a, h) && m.like(x.b, y.b, h)
	}
	if x.kind != kRep || y.kind != kRep || x.a != y.a || (x.flags|y.flags)&fImpure != 0 {
		return false
	}
	if x.m != y.m && (x.m <= h || y.m <= h) {
		return false
	}
	return (x.n < 0 || x.n > h) && (y.n < 0 || y.n > h)
}

// onlyLater reports whether what stands behind a is out of reach of h bytes.
func (m *machine) onlyLater(a nodeID, h int32) bool {
	nd := &m.nodes[a]
	return nd.kind == kRep && nd.m > h
}

// walkAgainst computes what walkNode does, starting from the answer of a
// reference: only the parts of the trie where the two states differ are
// visited.
func (m *machine) walkAgainst(id, ref nodeID, in *inner) {
	base := m.innerOf(ref)
	v := m.vocab
	acc := m.masks.inner
	clear(acc)
	base.tokens.addTo(acc)
	states, refs := m.masks.sn, m.masks.sr
	states[0], refs[0] = id, ref
	points := base.points
	inherit := func(from, to int32) { // the reference's points in a part not visited
		i, _ := slices.BinarySearchFunc(points, from, func(p point, x int32) int { return int(p.trie - x) })
		for ; i < len(points) && points[i].trie < to; i++ {
			in.points = append(in.points, points[i])
		}
	}
	for i, n := 0, len(v.nodeByte); i < n; {
		d := v.nodeDepth[i]
		b := v.nodeByte[i]
		s, r := states[d-1], refs[d-1]
		if s != rxEmpty {
			s = m.pool.step(s, b)
		}
		if r != rxEmpty {
			r = m.pool.step(r, b)
		}
		if s == r || (s != rxEmpty && r != rxEmpty && m.like(s, r, int32(v.nodeHigh[i]))) {
			if s != rxEmpty {
				inherit(int32(i), v.nodeEnd[i])
			}
			i = int(v.nodeEnd[i])
			continue
		}
		states[d], refs[d] = s, r
		if tok := v.nodeTok[i]; tok >= 0 {
			if s != rxEmpty {
				v.mark(acc, tok)
			} else {
				v.unmark(acc, tok)
			}
		}
		if s != rxEmpty && v.nodeHigh[i] > 0 && m.nullable(s) {
			in.points = append(in.points, point{int32(i), m.labelOf(s)})
		}
		i++
	}
	in.tokens = packMask(acc)
}

// restTrie is the rests of tokens behind the end of a lexeme, as a trie in
// depth-first order: tokens[from[i]:from[i+1]] have the rest that ends at i.
type restTrie struct {
	b      []byte
	depth  []uint16
	end    []int32
	from   []int32
	tokens []int32
}

// gather builds the trie of what follows at points of the vocabulary's trie.
func (m *machine) gather(points []int32) *restTrie {
	type rest struct {
		text []byte
		tok  int32
	}
	v := m.vocab
	var list []rest
	for _, p := range points {
		at := int(v.nodeDepth[p])
		for i := p + 1; i < v.nodeEnd[p]; i++ {
			if tok := v.nodeTok[i]; tok >= 0 {
				list = append(list, rest{v.tokens[tok][at:], tok})
			}
		}
	}
	slices.SortFunc(list, func(a, b rest) int { return bytes.Compare(a.text, b.text) })
	t := &restTrie{}
	var path []int32
	var prev []byte
	for _, r := range list {
		common := 0
		for common < len(r.text) && common < len(prev) && r.text[common] == prev[common] {
			common++
		}
		for len(path) > common {
			t.end[path[len(path)-1]] = int32(len(t.b))
			path = path[:len(path)-1]
		}
		for d := common; d < len(r.text); d++ {
			path = append(path, int32(len(t.b)))
			t.b = append(t.b, r.text[d])
			t.depth = append(t.depth, uint16(d+1))
			t.end = append(t.end, 0)
			t.from = append(t.from, int32(len(t.tokens)))
		}
		t.tokens = append(t.tokens, r.tok)
		prev = r.text
	}
	for _, n := range path {
		t.end[n] = int32(len(t.b))
	}
	t.from = append(t.from, int32(len(t.tokens)))
	return t
}

// walkRest adds the tokens whose rests p allows.
func (m *machine) walkRest(t *restTrie, p *place, acc []uint64) {
	states := m.masks.sp
	states[0] = p
	for i, n := 0, len(t.b); i < n; {
		d := t.depth[i]
		s := states[d-1]
		b := t.b[i]
		if f := m.firstBytes(s); f[b>>6]&(1<<(b&63)) == 0 {
			i = int(t.end[i])
			continue
		}
		next := m.step(s, b)
		if next == nil {
			i = int(t.end[i])
			continue
		}
		states[d] = next
		for _, tok := range t.tokens[t.from[i]:t.from[i+1]] {
			m.vocab.mark(acc, tok)
		}
		i++
	}
}

// walkBelow adds the tokens below a trie node whose rests p allows.
func (m *machine) walkBelow(root int32, p *place, acc []uint64) {
	v := m.vocab
	states := m.masks.sp
	base := v.nodeDepth[root]
	states[0] = p
	for i, n := root+1, v.nodeEnd[root]; i < n; {
		d := v.nodeDepth[i] - base
		s := states[d-1]
		b := v.nodeByte[i]
		if f := m.firstBytes(s); f[b>>6]&(1<<(b&63)) == 0 {
			i = v.nodeEnd[i]
			continue
		}
		next := m.step(s, b)
		if next == nil {
			i = v.nodeEnd[i]
			continue
		}
		states[d] = next
		if tok := v.nodeTok[i]; tok >= 0 {
			v.mark(acc, tok)
		}
		i++
	}
}
