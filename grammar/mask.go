package grammar

import "math/bits"

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
	sp      []*place
	sn      []nodeID
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
	if e := r.mask.Load(); e != nil {
		if r != p {
			p.mask.Store(e)
			m.masks.places = append(m.masks.places, p)
		}
		return e
	}
	e := m.computeMask(r)
	m.keep(r, e)
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
		for _, x := range in.exits {
			if next := m.after(c, x.label); next != nil && len(next.configs) > 0 {
				m.walkPlaces(x, next, acc)
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
	e.words = append([]uint64(nil), acc...)
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
// tokens that stay within the lexeme, and where tokens run past its end.
type inner struct {
	tokens *maskEntry
	exits  []exit
}

// exit is a trie node at which a lexeme may be complete and that has longer
// tokens below it.
type exit struct {
	trie  int32
	label int32
}

func (m *machine) innerOf(id nodeID) *inner {
	if in := m.inners[id]; in != nil {
		return in
	}
	if id < m.base {
		in := m.vocab.shared(id, func() *inner { return m.walkNode(id) })
		m.inners[id] = in
		return in
	}
	in := m.walkNode(id)
	m.inners[id] = in
	m.masks.bytes += in.tokens.size() + 8*len(in.exits)
	return in
}

// walkNode walks the trie with one lexeme state.
func (m *machine) walkNode(id nodeID) *inner {
	v := m.vocab
	if m.masks.sn == nil {
		m.masks.sn = make([]nodeID, v.maxLen+1)
	}
	acc := make([]uint64, v.MaskWords())
	in := &inner{}
	states := m.masks.sn
	states[0] = id
	nodes := m.pool
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
		if int(v.nodeEnd[i]) > i+1 && nodes.nodes[next].flags&fNullable != 0 {
			in.exits = append(in.exits, exit{int32(i), m.labelOf(next)})
		}
		i++
	}
	in.tokens = packMask(acc)
	return in
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

// walkPlaces adds the tokens below a trie node that p allows.
func (m *machine) walkPlaces(x exit, p *place, acc []uint64) {
	v := m.vocab
	if m.masks.sp == nil {
		m.masks.sp = make([]*place, v.maxLen+1)
	}
	states := m.masks.sp
	root := int(x.trie)
	base := v.nodeDepth[root]
	states[base] = p
	for i, n := root+1, int(v.nodeEnd[root]); i < n; {
		d := v.nodeDepth[i]
		s := states[d-1]
		b := v.nodeByte[i]
		if f := m.firstBytes(s); f[b>>6]&(1<<(b&63)) == 0 {
			i = int(v.nodeEnd[i])
			continue
		}
		next := m.step(s, b)
		if next == nil {
			i = int(v.nodeEnd[i])
			continue
		}
		states[d] = next
		if tok := v.nodeTok[i]; tok >= 0 {
			v.mark(acc, tok)
		}
		i++
	}
}
