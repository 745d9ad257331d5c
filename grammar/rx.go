package grammar

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync"
)

// This file holds the regular part of the automaton: hash-consed expressions
// over bytes, built only through the mk functions, which simplify. Two equal
// languages that were simplified the same way have the same id, so an id is a
// state of a lazily built deterministic automaton (see derive.go).

type nodeID int32

const (
	rxEmpty nodeID = 0 // no text
	rxEps   nodeID = 1 // the empty text
)

type nodeKind uint8

const (
	kEmpty nodeKind = iota
	kEps
	kLeaf // an explicit automaton state: leaves[a]
	kCat  // a then b
	kAlt  // any of list
	kAnd  // all of list
	kNot  // every byte string that a does not match
	kRep  // a repeated m to n times; n < 0: no bound
)

// Flags of a node.
const (
	fNullable = 1 << iota // matches the empty text
	fImpure               // holds an And or a Not: may be empty though it is not rxEmpty
	fMarked               // holds an anchor marker (see ecma compile)
)

type node struct {
	kind         nodeKind
	flags        uint8
	whole        int8 // encoder+1 whose whole characters the text is made of, 0 if unknown
	alive        int8 // 1: some text matches, -1: none, 0: not known
	a, b         nodeID
	m, n         int32
	lo           int32  // characters of the shortest text (whole nodes only)
	hi           int32  // of the longest, -1: no bound
	least        int32  // bytes of the shortest text, or fewer
	first        uint64 // groups of first bytes, 0: not computed
	loop, noLoop uint64 // byte groups that are known to lead back here, and not to
	list         []nodeID
	cuts         cutset
	tab          *table
	rep          nodeID // representative for masks, 0: not computed
	weight       int32  // about how many parts a derivative is made of
	met          int32  // the walk that came here last, see effort
}

// cutset has bit b set where byte b may behave unlike byte b-1.
type cutset [4]uint64

func (c *cutset) add(b int) {
	if b < 256 {
		c[b>>6] |= 1 << (b & 63)
	}
}

func (c *cutset) or(d *cutset) {
	for i := range c {
		c[i] |= d[i]
	}
}

// leaf is a state of an explicit automaton whose every state can reach an
// accepting one.
type leaf struct {
	accept bool
	label  int32  // of an accepting state that stands for one of several choices, else 0
	edges  []edge // ascending, disjoint
}

type edge struct {
	lo, hi byte
	to     int32 // a leaf
}

// next is the state behind a byte, -1 where there is none.
func (l *leaf) next(b byte) int32 {
	for i := range l.edges {
		if e := &l.edges[i]; b <= e.hi {
			if b >= e.lo {
				return e.to
			}
			break
		}
	}
	return -1
}

const leafEnd = 0 // accepts and has no edges

type nodeKey struct {
	kind nodeKind
	a, b nodeID
	m, n int32
}

// pool owns the expressions of one grammar.
type pool struct {
	nodes    []node
	leaves   []leaf
	leafIDs  []nodeID // of each leaf, 0: none yet
	byKey    steadyMap[nodeKey, nodeID]
	byList   map[string]nodeID
	byLeaf   leafTable
	classes  map[string]nodeID
	tables   map[cutset]*classMap
	reaches  map[nodeID]int    // see reachOf
	anyChar  [nEncoders]nodeID // one character
	anyText  [nEncoders]nodeID // any number of them
	freeText [nEncoders]nodeID // anyText and what closes it in a compact JSON text
	work     int               // elementary steps left
	max      int               // nodes at most
	weight   int               // of all nodes
	searches int               // steps that searches may still take while running
	running  bool              // past compiling: limits no longer fail
	base     nodeID            // nodes below are those of basePool
	cells    int               // of basePool: entries of all its tables
	common   []nodeID          // states of basePool that most texts pass
	ranges   map[nodeID][]rng  // of the nodes that are one character out of ranges
	buf      []byte
}

// fail is the panic value of the inner stages; Compile turns it into an error.
type fail struct{ err error }

func failf(kind error, source, pointer, keyword, msg string) {
	panic(fail{&Error{Kind: kind, Source: source, Pointer: pointer, Keyword: keyword, Msg: msg}})
}

func (p *pool) spend(n int) {
	p.work -= n
	if p.work < 0 && !p.running {
		failf(ErrTooLarge, "spec", "", "", "compiling takes more work than the limit allows")
	}
}

// newPool is a pool that holds the nodes of basePool. Their ids mean the same
// in every pool, so that masks of plain strings are shared by all grammars.
func newPool() *pool {
	b := basePool()
	p := &pool{
		nodes: append(make([]node, 0, 2*len(b.nodes)), b.nodes...), leaves: append(make([]leaf, 0, 2*len(b.leaves)), b.leaves...),
		leafIDs: slices.Clone(b.leafIDs), byList: maps.Clone(b.byList),
		classes: maps.Clone(b.classes), tables: maps.Clone(b.tables), reaches: map[nodeID]int{},
		anyChar: b.anyChar, anyText: b.anyText, freeText: b.freeText, work: 1 << 30, max: 1 << 30, base: b.base, common: b.common, ranges: maps.Clone(b.ranges),
	}
	p.byKey.base, p.byLeaf.base = &b.byKey, &b.byLeaf
	// The tables are the grammar's own; two allocations hold them all.
	tabs, next := make([]table, 0, b.base), make([]nodeID, 0, b.cells)
	for i := range p.nodes {
		if t := p.nodes[i].tab; t != nil {
			n := len(next)
			next = append(next, t.next...)
			tabs = append(tabs, table{cls: t.cls, next: next[n:len(next):len(next)]})
			p.nodes[i].tab = &tabs[len(tabs)-1]
		}
	}
	return p
}

// basePool holds all states of a string and of a name of any content.
var basePool = sync.OnceValue(func() *pool {
	p := &pool{
		byList:  map[string]nodeID{},
		classes: map[string]nodeID{}, tables: map[cutset]*classMap{}, reaches: map[nodeID]int{}, ranges: map[nodeID][]rng{},
		work: 1 << 30, max: 1 << 30,
	}
	p.leaves = []leaf{{accept: true}}
	p.nodes = []node{{kind: kEmpty, alive: -1}, {kind: kEps, flags: fNullable, alive: 1}}
	for e := range encoder(nEncoders) {
		p.anyChar[e] = p.class(e, []rng{{0, 0x10FFFF}})
		p.anyText[e] = p.rep(p.anyChar[e], 0, -1)
	}
	quote := p.bytes(`"`)
	work := []nodeID{
		p.seq(quote, p.anyText[encString], quote),
		p.seq(p.anyText[encKey], quote, p.bytes(":")), // as lexObject writes it
		p.seq(p.anyText[encKey], p.bytes(`"`)),
	}
	p.freeText[encString] = p.cat(p.anyText[encString], quote)
	p.freeText[encKey] = work[1]
	p.freeText[encRaw] = p.anyText[encRaw]
	p.common = append(slices.Clone(work), p.freeText[encString], p.anyText[encRaw])
	// Numbers as masks see them, see foldCounts; all states found below are common.
	roots := len(work)
	work = append(work, p.number(-1, 3), p.number(-1, -1), p.integer(-1))
	defer func() { p.common = append(p.common, work[roots:]...) }()
	for i := 0; i < len(work); i++ {
		for _, b := range p.tableOf(work[i]).cls.rep {
			if n := p.step(work[i], b); n != rxEmpty && !slices.Contains(work, n) {
				work = append(work, n)
			}
		}
	}
	p.base = nodeID(len(p.nodes))
	for i := range p.nodes {
		if t := p.nodes[i].tab; t != nil {
			p.cells += len(t.next)
		}
	}
	return p
})

func (p *pool) add(nd node) nodeID {
	if len(p.nodes) >= p.max && !p.running {
		failf(ErrTooLarge, "spec", "", "", "the automaton has more nodes than the limit allows")
	}
	p.work--
	nd.weight = 1
	switch nd.kind {
	case kCat, kNot, kRep:
		nd.weight += p.nodes[nd.a].weight
	case kAlt, kAnd:
		for _, x := range nd.list {
			nd.weight = min(nd.weight+p.nodes[x].weight, 1<<20)
		}
	}
	p.weight += int(nd.weight)
	p.nodes = append(p.nodes, nd)
	return nodeID(len(p.nodes) - 1)
}

func (p *pool) nullable(id nodeID) bool { return p.nodes[id].flags&fNullable != 0 }

// leafNode is the expression of an explicit state.
func (p *pool) leafNode(l int32) nodeID {
	if l == leafEnd {
		return rxEps
	}
	if int(l) < len(p.leafIDs) {
		if id := p.leafIDs[l]; id != 0 {
			return id
		}
	} else {
		p.leafIDs = append(p.leafIDs, make([]nodeID, len(p.leaves)-len(p.leafIDs))...)
	}
	nd := node{kind: kLeaf, a: nodeID(l), alive: 1}
	lf := &p.leaves[l]
	if lf.accept {
		nd.flags |= fNullable
	} else {
		nd.least = 1
	}
	for _, e := range lf.edges {
		nd.cuts.add(int(e.lo))
		nd.cuts.add(int(e.hi) + 1)
		if e.lo >= markBegin {
			nd.flags |= fMarked
		}
	}
	id := p.add(nd)
	p.leafIDs[l] = id
	return id
}

// mkLeaf hash-conses an explicit state whose edges lead to earlier ones.
func (p *pool) mkLeaf(accept bool, edges []edge) int32 {
	if len(edges) == 0 && accept {
		return leafEnd
	}
	hash := hashLeaf(accept, edges)
	if id, ok := p.byLeaf.find(p.leaves, hash, accept, edges); ok {
		return id
	}
	p.spend(1)
	p.leaves = append(p.leaves, leaf{accept: accept, edges: slices.Clone(edges)})
	id := int32(len(p.leaves) - 1)
	p.byLeaf.own.insert(hash, id)
	return id
}

// bytes is the expression of one literal text.
func (p *pool) bytes(text string) nodeID {
	l := int32(leafEnd)
	for i := len(text) - 1; i >= 0; i-- {
		l = p.mkLeaf(false, []edge{{text[i], text[i], l}})
	}
	return p.leafNode(l)
}

// words is the expression of a set of literal texts, one minimised trie.
func (p *pool) words(texts []string) nodeID {
	if len(texts) == 0 {
		return rxEmpty
	}
	texts = slices.Clone(texts)
	slices.Sort(texts)
	texts = slices.Compact(texts)
	return p.leafNode(p.wordTrie(texts, 0))
}

// wordTrie builds the trie of sorted texts that share their first d bytes. It
// recurses once a branching, not once a byte.
func (p *pool) wordTrie(texts []string, d int) int32 {
	first, last := texts[0], texts[len(texts)-1]
	common := d
	for common < len(first) && common < len(last) && first[common] == last[common] {
		common++
	}
	accept := len(first) == common
	rest := texts
	if accept {
		rest = texts[1:]
	}
	var edges []edge
	for len(rest) > 0 {
		c := rest[0][common]
		n := 1
		for n < len(rest) && rest[n][common] == c {
			n++
		}
		edges = append(edges, edge{c, c, p.wordTrie(rest[:n], common+1)})
		rest = rest[n:]
	}
	l := p.mkLeaf(accept, joinEdges(edges))
	for i := common - 1; i >= d; i-- {
		l = p.mkLeaf(false, []edge{{first[i], first[i], l}})
	}
	return l
}

// joinEdges merges neighbouring edges to the same state.
func joinEdges(edges []edge) []edge {
	out := edges[:0]
	for _, e := range edges {
		if n := len(out); n > 0 && out[n-1].to == e.to && int(out[n-1].hi)+1 == int(e.lo) {
			out[n-1].hi = e.hi
			continue
		}
		out = append(out, e)
	}
	return out
}

// cat is a then b.
func (p *pool) cat(a, b nodeID) nodeID {
	switch {
	case a == rxEmpty || b == rxEmpty:
		return rxEmpty
	case a == rxEps:
		return b
	case b == rxEps:
		return a
	}
	na := &p.nodes[a]
	if na.kind == kCat {
		x, y := na.a, na.b
		return p.cat(x, p.cat(y, b))
	}
	if na.kind == kRep {
		// x{m,n} x{p,q} = x{m+p,n+q}
		second, tail := b, rxEps
		if p.nodes[b].kind == kCat {
			second, tail = p.nodes[b].a, p.nodes[b].b
		}
		if nb := &p.nodes[second]; nb.kind == kRep && nb.a == na.a && na.m < 1<<29 && nb.m < 1<<29 && na.n < 1<<29 && nb.n < 1<<29 {
			m, n := na.m+nb.m, int32(-1)
			if na.n >= 0 && nb.n >= 0 {
				n = na.n + nb.n
			}
			return p.cat(p.rep(na.a, m, n), tail)
		}
	}
	key := nodeKey{kind: kCat, a: a, b: b}
	if id, ok := p.byKey.get(key); ok {
		return id
	}
	na, nb := &p.nodes[a], &p.nodes[b]
	nd := node{kind: kCat, a: a, b: b, cuts: na.cuts, least: min(na.least+nb.least, 1<<20)}
	nd.flags = na.flags & nb.flags & fNullable
	nd.flags |= (na.flags | nb.flags) & (fImpure | fMarked)
	if na.flags&fNullable != 0 {
		nd.cuts.or(&nb.cuts)
	}
	if na.whole == nb.whole {
		nd.whole = na.whole
		nd.lo, nd.hi = na.lo+nb.lo, addLen(na.hi, nb.hi)
	}
	if nd.flags&fImpure == 0 {
		nd.alive = 1
	}
	id := p.add(nd)
	p.byKey.put(key, id)
	return id
}

func addLen(a, b int32) int32 {
	if a < 0 || b < 0 || int64(a)+int64(b) > 1<<30 {
		return -1
	}
	return a + b
}

// seq is the concatenation of all.
func (p *pool) seq(ids ...nodeID) nodeID {
	out := rxEps
	for i := len(ids) - 1; i >= 0; i-- {
		out = p.cat(ids[i], out)
	}
	return out
}

func (p *pool) listKey(k nodeKind, list []nodeID) string {
	b := append(p.buf[:0], byte(k))
	for _, id := range list {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
	}
	p.buf = b
	return string(b)
}

// not is the complement of a among all byte strings.
func (p *pool) not(a nodeID) nodeID {
	if p.nodes[a].kind == kNot {
		return p.nodes[a].a
	}
	key := nodeKey{kind: kNot, a: a}
	if id, ok := p.byKey.get(key); ok {
		return id
	}
	na := &p.nodes[a]
	nd := node{kind: kNot, a: a, cuts: na.cuts, flags: fImpure}
	nd.flags |= na.flags & fMarked
	if na.flags&fNullable == 0 {
		nd.flags |= fNullable
		nd.alive = 1
	}
	id := p.add(nd)
	p.byKey.put(key, id)
	return id
}

// rep is a repeated m to n times, n < 0 without bound.
func (p *pool) rep(a nodeID, m, n int32) nodeID {
	switch {
	case n == 0 || a == rxEps:
		return rxEps
	case a == rxEmpty:
		if m == 0 {
			return rxEps
		}
		return rxEmpty
	case m == 1 && n == 1:
		return a
	}
	na := p.nodes[a]
	if na.flags&fNullable != 0 {
		m = 0
		if na.kind == kRep && na.n < 0 {
			return a
		}
	}
	if na.kind == kRep && na.n < 0 && na.m <= 1 && n < 0 {
		// (x+){m,} = x{m,} and (x*){m,} = x*
		return p.rep(na.a, m*na.m, -1)
	}
	key := nodeKey{kind: kRep, a: a, m: m, n: n}
	if id, ok := p.byKey.get(key); ok {
		return id
	}
	nd := node{kind: kRep, a: a, m: m, n: n, cuts: na.cuts, flags: na.flags & (fImpure | fMarked), whole: na.whole}
	nd.least = int32(min(int64(na.least)*int64(m), 1<<20))
	if m == 0 {
		nd.flags |= fNullable
		nd.alive = 1
	}
	if na.alive == 1 {
		nd.alive = 1
	}
	if na.whole != 0 {
		lo, hi := int64(na.lo)*int64(m), int64(na.hi)*int64(n)
		nd.lo = int32(min(lo, 1<<30))
		nd.hi = int32(hi)
		if na.hi < 0 || n < 0 || hi > 1<<30 {
			nd.hi = -1
		}
	}
	id := p.add(nd)
	p.byKey.put(key, id)
	return id
}

// opt is a or nothing.
func (p *pool) opt(a nodeID) nodeID { return p.alt(a, rxEps) }
