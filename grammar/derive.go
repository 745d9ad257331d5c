package grammar

import (
	"maps"
	"math/bits"
)

// This file runs the expressions of rx.go as an automaton: the state after a
// byte is the derivative of the expression, computed when it is first asked
// for and kept in the node's table.

// classMap partitions the bytes: bytes of one class behave alike.
type classMap struct {
	of  [256]uint8
	rep []byte // one byte of each class
}

// table holds the transitions of a node: next[class], -1 where not computed,
// rxEmpty where no text can follow.
type table struct {
	cls  *classMap
	next []nodeID
}

func (p *pool) classMapOf(c cutset) *classMap {
	if m := p.tables[c]; m != nil {
		return m
	}
	m := &classMap{rep: []byte{0}}
	for b := 1; b < 256; b++ {
		if c[b>>6]&(1<<(b&63)) != 0 {
			m.rep = append(m.rep, byte(b))
		}
		m.of[b] = uint8(len(m.rep) - 1)
	}
	p.tables[c] = m
	return m
}

func (p *pool) tableOf(id nodeID) *table {
	if t := p.nodes[id].tab; t != nil {
		return t
	}
	cls := p.classMapOf(p.nodes[id].cuts)
	t := &table{cls: cls, next: make([]nodeID, len(cls.rep))}
	for i := range t.next {
		t.next[i] = -1
	}
	p.nodes[id].tab = t
	return t
}

// step is the state after byte b: rxEmpty when no text goes on that way.
func (p *pool) step(id nodeID, b byte) nodeID {
	t := p.tableOf(id)
	c := t.cls.of[b]
	n := t.next[c]
	if n < 0 {
		n = p.derive(id, b)
		if !p.nonEmpty(n) {
			n = rxEmpty
		}
		t.next[c] = n
	}
	return n
}

// eachFirst calls f for every byte that texts of id begin with, and the state
// behind it, until f says no.
func (p *pool) eachFirst(id nodeID, f func(b byte, next nodeID) bool) {
	cls := p.tableOf(id).cls
	for i, b := range cls.rep {
		next := p.step(id, b)
		if next == rxEmpty {
			continue
		}
		end := 256
		if i+1 < len(cls.rep) {
			end = int(cls.rep[i+1])
		}
		for x := int(b); x < end; x++ {
			if !f(byte(x), next) {
				return
			}
		}
	}
}

// derive is what may follow byte b in the texts of id.
func (p *pool) derive(id nodeID, b byte) nodeID {
	p.spend(1)
	nd := &p.nodes[id]
	switch nd.kind {
	case kLeaf:
		if to := p.leaves[nd.a].next(b); to >= 0 {
			return p.leafNode(to)
		}
		return rxEmpty
	case kCat:
		x, y := nd.a, nd.b
		d := p.derive(x, b)
		if d != rxEmpty {
			d = p.cat(d, y)
		}
		if p.nullable(x) {
			if e := p.derive(y, b); e != rxEmpty {
				d = p.alt(d, e)
			}
		}
		return d
	case kAlt:
		list := nd.list
		var few [8]nodeID
		out := few[:0]
		for _, x := range list {
			if d := p.derive(x, b); d != rxEmpty {
				out = append(out, d)
			}
		}
		if len(out) == 1 {
			return out[0]
		}
		return p.alt(out...)
	case kAnd:
		list := nd.list
		out := make([]nodeID, 0, len(list))
		for _, x := range list {
			d := p.derive(x, b)
			if d == rxEmpty {
				return rxEmpty
			}
			out = append(out, d)
		}
		return p.and(out...)
	case kNot:
		return p.not(p.derive(nd.a, b))
	case kRep:
		x, m, n := nd.a, nd.m, nd.n
		d := p.derive(x, b)
		if d == rxEmpty {
			return rxEmpty
		}
		if n > 0 {
			n--
		}
		return p.cat(d, p.rep(x, max(m-1, 0), n))
	}
	return rxEmpty
}

// loops reports whether every byte of the groups in sig (see sigOf) leads from
// id back to id. Groups above ASCII never count as such.
func (p *pool) loops(id nodeID, sig uint64) bool {
	nd := &p.nodes[id]
	if sig&^nd.loop == 0 {
		return true
	}
	if sig&nd.noLoop != 0 || sig&sigHigh != 0 || nd.kind == kLeaf {
		return false
	}
	for rest := sig &^ nd.loop; rest != 0; rest &= rest - 1 {
		g := bits.TrailingZeros64(rest)
		for _, b := range sigBytes[g] {
			if p.step(id, b) != id {
				p.nodes[id].noLoop |= 1 << g
				return false
			}
		}
		p.nodes[id].loop |= 1 << g
	}
	return true
}

// searchSteps bounds one search for a text of an intersection while a grammar
// runs (and compileSearchSteps while it is compiled). When it is not enough the state is taken to be alive: the worst that
// follows is a dead end, never a wrong text. allSearches bounds the steps of
// all searches of a running grammar.
const (
	searchSteps        = 50_000
	compileSearchSteps = 150_000
	allSearches        = 300_000
)

// nearness sorts the states of a search by the length of the shortest text
// they may still match, in bytes: those from which the least is missing come
// first, the latest found of them foremost.
type nearness [32][]int32

func (q *nearness) push(i int32, least int32) {
	least = min(least, int32(len(q)-1))
	q[least] = append(q[least], i)
}

func (q *nearness) pop() (i int32, ok bool) {
	for least := range q {
		if n := len(q[least]); n > 0 {
			i, q[least] = q[least][n-1], q[least][:n-1]
			return i, true
		}
	}
	return 0, false
}

// nonEmpty reports whether some text matches. Expressions without And and Not
// answer at once.
func (p *pool) nonEmpty(id nodeID) bool {
	// A chain is as alive as its least part.
	for p.nodes[id].alive == 0 && p.nodes[id].kind == kCat {
		if !p.nonEmpty(p.nodes[id].a) {
			p.nodes[id].alive = -1
			return false
		}
		next := p.nodes[id].b
		if p.nodes[next].alive != 0 {
			p.nodes[id].alive = p.nodes[next].alive
			break
		}
		id = next
	}
	if alive := p.nodes[id].alive; alive != 0 {
		return alive > 0
	}
	if _, _, ok := p.opened(id); ok {
		p.nodes[id].alive = 1
		return true
	}
	if rest, bound, ok := p.splitBound(id); ok && p.nodes[rest].alive > 0 && p.nodes[rest].whole != 0 {
		if n := p.reachOf(rest); n >= 0 && bound >= max(int32(n), p.nodes[rest].lo) {
			p.nodes[id].alive = 1
			return true
		}
	}
	return p.search(id)
}

// search answers nonEmpty by following the states of id, the nearest to an end
// first.
func (p *pool) search(id nodeID) bool {
	type item struct {
		id     nodeID
		parent int32
	}
	items := []item{{id, -1}}
	seen := map[nodeID]bool{id: true}
	var queue nearness
	queue.push(0, 0)
	found := int32(-1)
	budget := min(searchSteps, p.searches)
	if !p.running {
		budget = compileSearchSteps
	}
	all := budget
	defer func() { p.searches -= all - budget }()
search:
	for {
		i, ok := queue.pop()
		if !ok {
			break
		}
		cur := items[i].id
		cls := p.classMapOf(p.nodes[cur].cuts)
		for _, b := range cls.rep {
			n := p.derive(cur, b)
			budget--
			if p.running {
				budget -= int(p.nodes[cur].weight) / 8
			}
			a := p.nodes[n].alive
			if a == 1 {
				found = i
				break search
			}
			if a == -1 || seen[n] {
				continue
			}
			seen[n] = true
			items = append(items, item{n, i})
			queue.push(int32(len(items)-1), p.nodes[n].least)
		}
		if budget < 0 {
			if p.running {
				p.nodes[id].alive = 1
				return true
			}
			failf(ErrTooLarge, "spec", "", "", "an intersection of patterns and lengths is too large to decide")
		}
	}
	if found < 0 {
		for _, it := range items {
			p.nodes[it.id].alive = -1
		}
		return false
	}
	for i := found; i >= 0; i = items[i].parent {
		p.nodes[items[i].id].alive = 1
	}
	return true
}

// States of one mask are not kept if they are manyStates, or, once all states
// weigh heavyPool, if they weigh more than a part of that.
const (
	manyStates = 4000
	heavyPool  = 400_000
)

// forget drops the states from mark on if they are many, as after the walk for
// a mask of a pattern that has a state of its own for almost every text.
func (m *machine) forget(mark int) {
	weight := int32(0)
	if m.weight > heavyPool {
		for i := range m.nodes[mark:] {
			weight += m.nodes[mark+i].weight
		}
	}
	if len(m.nodes)-mark < manyStates && weight < heavyPool/400 {
		return
	}
	for i := range m.nodes[mark:] {
		m.weight -= int(m.nodes[mark+i].weight)
	}
	for id := mark; id < len(m.nodes); id++ {
		switch nd := &m.nodes[id]; nd.kind {
		case kAlt, kAnd:
			delete(m.byList, m.listKey(nd.kind, nd.list))
		case kLeaf:
			m.leafIDs[nd.a] = 0
		default:
			m.byKey.drop(nodeKey{kind: nd.kind, a: nd.a, b: nd.b, m: nd.m, n: nd.n})
		}
	}
	clear(m.nodes[mark:])
	m.nodes = m.nodes[:mark]
	gone := func(id nodeID) bool { return int(id) >= mark }
	for i := range m.nodes {
		if t := m.nodes[i].tab; t != nil {
			for c, to := range t.next {
				if gone(to) {
					t.next[c] = -1
				}
			}
		}
	}
	maps.DeleteFunc(m.reaches, func(id nodeID, _ int) bool { return gone(id) })
	maps.DeleteFunc(m.ends.lexemes, func(id nodeID, _ *knownEnding) bool { return gone(id) })
	maps.DeleteFunc(m.ends.far.nodes, func(id nodeID, _ int32) bool { return gone(id) })
	if len(m.inners) > mark {
		clear(m.inners[mark:])
		m.inners = m.inners[:mark]
	}
	clear(m.pairs.known)
}

// matches reports whether text is one of id's.
func (p *pool) matches(id nodeID, text string) bool {
	for i := 0; i < len(text) && id != rxEmpty; i++ {
		id = p.step(id, text[i])
	}
	return p.nullable(id)
}

// finite lists the texts of id when there are at most limit of them, none
// longer than 256 bytes, and reports whether that is so.
func (p *pool) finite(id nodeID, limit int) ([]string, bool) {
	onPath := map[nodeID]bool{}
	var out []string
	steps := 0
	var walk func(id nodeID, text []byte) bool
	walk = func(id nodeID, text []byte) bool {
		if steps++; onPath[id] || len(text) > 256 || steps > 64*limit+64 {
			return false
		}
		if p.nullable(id) {
			if out = append(out, string(text)); len(out) > limit {
				return false
			}
		}
		onPath[id] = true
		for i, cls := 0, p.tableOf(id).cls; i < len(cls.rep); i++ {
			n := p.step(id, cls.rep[i])
			if n == rxEmpty {
				continue
			}
			end := 256
			if i+1 < len(cls.rep) {
				end = int(cls.rep[i+1])
			}
			for b := int(cls.rep[i]); b < end; b++ {
				if !walk(n, append(text[:len(text):len(text)], byte(b))) {
					return false
				}
			}
		}
		delete(onPath, id)
		return true
	}
	if !walk(id, nil) {
		return nil, false
	}
	return out, true
}
