package grammar

import (
	"slices"
	"sync"
	"sync/atomic"
)

// cell is one frame of a stack; cells are interned, so equal stacks built in
// the same generation of the tables are one pointer.
type cell struct {
	frame frameID
	next  *cell
	depth int32
	id    uint64
	rep   *cell // the stack that stands for this one in masks
}

// config is one way to read the text so far: a lexeme under way, what follows
// it, and the containers around it.
type config struct {
	node  nodeID
	act   actID
	stack *cell
}

// place is a state of the automaton: all ways to read the text so far. It is
// immutable but for what is remembered about it, which the machine's lock
// guards (mask is read without it).
type place struct {
	configs []config
	canEnd  bool
	id      uint64

	trans  []transition
	first  *[4]uint64 // bytes that may come next
	rep    *place     // the place that stands for this one in masks
	mask   atomic.Pointer[maskEntry]
	forced []byte
	known  bool // forced is computed
}

type transition struct {
	b  byte
	to *place // nil: the byte is not allowed
}

// machine runs a grammar. Everything in it is guarded by mu.
type machine struct {
	mu sync.Mutex
	writer
	vocab    *Vocab
	limits   Limits
	maxDepth int32
	cells    steadyMap[cellKey, *cell]
	places   placeTable
	afters   steadyMap[afterKey, *place]
	nextID   uint64
	begin    *place
	masks    maskStore
	inners   []*inner // by node, nil: not computed
	crossed  map[crossKey][]crossing
	pairs    pairs
	effort   effort
	ends     endings
	visits   int // of the vocabulary's trie, for tokens within lexemes
	build    builder
}

type cellKey struct {
	frame frameID
	next  *cell
}

type afterKey struct {
	act   actID
	label int32
	stack *cell
}

// builder collects the configs of one place.
type builder struct {
	configs []config
	visited []config        // all that were added, while they are few
	seen    map[config]bool // all that were added, when they are many
	canEnd  bool
	steps   int
}

// visit reports whether c is new.
func (b *builder) visit(c config) bool {
	if b.seen == nil {
		for _, x := range b.visited {
			if x == c {
				return false
			}
		}
		if len(b.visited) < 24 {
			b.visited = append(b.visited, c)
			return true
		}
		b.seen = make(map[config]bool, 64)
		for _, x := range b.visited {
			b.seen[x] = true
		}
	}
	if b.seen[c] {
		return false
	}
	b.seen[c] = true
	return true
}

// maxTables bounds the interned cells and places; past it the tables are
// emptied, which costs sharing and nothing else.
const maxTables = 100_000

func (m *machine) push(f frameID, next *cell) *cell {
	k := cellKey{f, next}
	if c, ok := m.cells.get(k); ok {
		return c
	}
	if m.cells.len() > maxTables {
		m.cells = steadyMap[cellKey, *cell]{}
		m.places = placeTable{}
		m.afters = steadyMap[afterKey, *place]{}
	}
	m.nextID++
	c := &cell{frame: f, next: next, id: m.nextID}
	if next != nil {
		c.depth = next.depth + 1
	}
	m.cells.put(k, c)
	return c
}

func (b *builder) reset() {
	b.configs = b.configs[:0]
	b.visited = b.visited[:0]
	b.seen = nil
	b.canEnd = false
	b.steps = 0
}

// maxConfigs bounds the readings of one text that are followed at once.
const maxConfigs = 20_000

// add adds a lexeme; one that may be empty is also complete.
func (m *machine) add(c config) {
	if len(m.build.configs) > maxConfigs || !m.build.visit(c) {
		return
	}
	if m.nodes[c.node].kind != kEps && (m.nodes[c.node].kind != kLeaf || len(m.leaves[m.nodes[c.node].a].edges) > 0) {
		m.build.configs = append(m.build.configs, c)
	}
	if m.nullable(c.node) {
		m.run(c.act, m.labelOf(c.node), c.stack)
	}
}

// labelOf is the label of a complete lexeme that stands for a choice.
func (m *machine) labelOf(id nodeID) int32 {
	if nd := &m.nodes[id]; nd.kind == kLeaf {
		return m.leaves[nd.a].label
	}
	return 0
}

// run performs what follows a complete lexeme.
func (m *machine) run(act actID, label int32, stack *cell) {
	if m.build.steps++; m.build.steps > 10*maxConfigs {
		return
	}
	a := m.acts[act]
	switch a.kind {
	case actPop:
		if stack == nil {
			m.build.canEnd = true
			return
		}
		if m.frames[stack.frame].kind == frRecord {
			below := stack.next
			m.enter(m.leave(stack.frame, below.frame, true), below.next)
			return
		}
		m.enter(stack.frame, stack.next)
	case actGo:
		m.enter(a.frame, stack)
	case actPush:
		if stack != nil && stack.depth >= m.maxDepth {
			return
		}
		top := m.push(a.frame, stack)
		if a.rec > 0 {
			top = m.push(m.frameID(frame{kind: frRecord, node: a.rec - 1}), top)
		}
		m.begins(a.val, top)
	case actBegin:
		m.begins(a.val, stack)
	case actChoice:
		m.run(m.choose(a.frame, label), 0, stack)
	case actMany:
		for _, x := range a.list {
			m.run(x, 0, stack)
		}
	}
}

func (m *machine) enter(f frameID, stack *cell) {
	for _, it := range m.lex(f) {
		m.add(config{it.node, it.act, stack})
	}
}

func (m *machine) begins(v *valueNode, stack *cell) {
	depth := int32(0)
	if stack != nil {
		depth = stack.depth + 1
	}
	for _, it := range m.start(v, depth) {
		m.add(config{it.node, it.act, stack})
	}
}

func stackID(c *cell) uint64 {
	if c == nil {
		return 0
	}
	return c.id
}

// finish interns the place that was built, nil when it is a dead end.
func (m *machine) finish() *place {
	b := &m.build
	if len(b.configs) == 0 && !b.canEnd {
		return nil
	}
	slices.SortFunc(b.configs, func(x, y config) int {
		switch {
		case x.node != y.node:
			return int(x.node) - int(y.node)
		case x.act != y.act:
			return int(x.act) - int(y.act)
		case stackID(x.stack) < stackID(y.stack):
			return -1
		}
		return 1
	})
	hash := hashConfigs(b.configs, b.canEnd)
	if p := m.places.find(hash, b.configs, b.canEnd); p != nil {
		return p
	}
	if m.places.len() > maxTables {
		m.places = placeTable{}
	}
	m.nextID++
	p := &place{configs: slices.Clone(b.configs), canEnd: b.canEnd, id: m.nextID}
	m.places.insert(hash, p)
	return p
}

// step is the place after a byte, nil when the byte is not allowed.
func (m *machine) step(p *place, b byte) *place {
	for i := range p.trans {
		if p.trans[i].b == b {
			return p.trans[i].to
		}
	}
	m.build.reset()
	for _, c := range p.configs {
		if n := m.pool.step(c.node, b); n != rxEmpty {
			stack := c.stack
			if stack != nil && m.frames[stack.frame].kind == frRecord {
				f := m.frames[stack.frame]
				f.set = m.extend(f.set, b)
				stack = m.push(m.frameID(f), stack.next)
			}
			m.add(config{n, c.act, stack})
		}
	}
	to := m.finish()
	p.trans = append(p.trans, transition{b, to})
	return to
}

// after is the place behind a complete lexeme of c; nil when only nothing can
// follow.
func (m *machine) after(c config, label int32) *place {
	k := afterKey{c.act, label, c.stack}
	if p, ok := m.afters.get(k); ok {
		return p
	}
	m.build.reset()
	m.run(c.act, label, c.stack)
	p := m.finish()
	m.afters.put(k, p)
	return p
}

// firstBytes is the bytes that may come next.
func (m *machine) firstBytes(p *place) *[4]uint64 {
	if p.first != nil {
		return p.first
	}
	var set [4]uint64
	for _, c := range p.configs {
		m.pool.firstBytes(c.node, &set)
	}
	p.first = &set
	return p.first
}

// firstBytes adds to set the bytes that texts of id begin with.
func (p *pool) firstBytes(id nodeID, set *[4]uint64) {
	p.eachFirst(id, func(b byte, _ nodeID) bool {
		set[b>>6] |= 1 << (b & 63)
		return true
	})
}

// maxForced bounds the forced text that is looked for at once, in bytes.
const maxForced = 4096

// forcedText is the longest text that all continuations of p begin with.
func (m *machine) forcedText(p *place) []byte {
	if p.known {
		return p.forced
	}
	var out []byte
	for q := p; len(out) < maxForced && !q.canEnd; {
		b, ok := only(m.firstBytes(q))
		if !ok {
			break
		}
		if q = m.step(q, b); q == nil {
			break // the only way on leads nowhere
		}
		out = append(out, b)
	}
	p.forced, p.known = out, true
	return out
}

// deadEnd reports whether the forced text from p leads to a place that nothing
// leads on from.
func (m *machine) deadEnd(p *place) bool {
	for range maxForced {
		if p.canEnd {
			return false
		}
		set := m.firstBytes(p)
		if *set == [4]uint64{} {
			return true
		}
		b, ok := only(set)
		if !ok {
			return false
		}
		if p = m.step(p, b); p == nil {
			return true
		}
	}
	return false
}

// only is the single member of a set of bytes.
func only(set *[4]uint64) (b byte, ok bool) {
	for i, w := range set {
		if w == 0 {
			continue
		}
		if ok || w&(w-1) != 0 {
			return 0, false
		}
		for w != 1 {
			w >>= 1
			b++
		}
		b += byte(i * 64)
		ok = true
	}
	return b, ok
}
