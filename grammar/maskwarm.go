package grammar

import "slices"

// This file computes, while a grammar is compiled, what its masks will ask
// first: a mask that is asked for the first time stands between two tokens of a
// running text, compiling does not.

const (
	// warmVisits bounds the trie nodes that are visited for it, so that it takes
	// a fraction of a millisecond; the last lexeme may go beyond. Where there are
	// no values, as in a pattern, all masks come from a few lexemes.
	warmVisits      = 12_000
	warmVisitsAlone = 40_000
	warmStates      = 400     // lexeme states
	warmBytes       = 1 << 20 // that their answers hold
	warmPlaces      = 16      // where there are no values: places one byte further, two, and so on
	warmCells       = 600     // places and stacks that their masks may make
)

// reserve makes room for the states that texts will come to, and makes those of
// names: while a text is written no token shall wait until all others are moved.
func (m *machine) reserve() {
	const most = 1 << 14
	more, members := len(m.leaves), len(m.arrays)
	for id, o := range m.objects {
		var p *objectPlan
		for i := range o.names {
			members++
			if more += len(o.names[i].text) + 3; more > most {
				more = most
				break
			}
			if p == nil {
				p = m.writer.plan(int32(id))
			}
			m.tail(o, p, int32(i))
		}
	}
	m.frames = slices.Grow(m.frames, 2*members)
	m.frameLex = slices.Grow(m.frameLex, 2*members)
	m.frameRep = slices.Grow(m.frameRep, 2*members)
	m.acts = slices.Grow(m.acts, 4*members)
	m.afters.table.ready()
	m.cells.table.ready()
	m.nodes = slices.Grow(m.nodes, more)
	m.leaves = slices.Grow(m.leaves, more)
	m.leafIDs = append(make([]nodeID, 0, len(m.leaves)+more), m.leafIDs...)
	m.inners = make([]*inner, 0, len(m.nodes)+more)
}

// warm looks at the lexemes that the text begins with and at those of values,
// in their order: first at the beginning of each, then at what is one byte
// further in each, and so on.
func (m *machine) warm(values []*valueNode) {
	var queue []nodeID
	seen := map[nodeID]bool{}
	meet := func(id nodeID) {
		if id = m.repNode(id); id >= m.base && !seen[id] && len(seen) < warmStates {
			seen[id] = true
			queue = append(queue, id)
		}
	}
	for _, c := range m.begin.configs {
		meet(c.node)
	}
	for _, v := range values {
		if v.scalar != rxEmpty && m.nodes[v.scalar].least > 0 {
			meet(v.scalar)
		}
	}
	bytes, searches, visits := m.masks.bytes, m.searches, warmVisits
	if len(values) == 0 {
		visits = warmVisitsAlone
	}
	for i := 0; i < len(queue) && m.visits < visits && m.masks.bytes-bytes < warmBytes && 2*m.searches > searches; i++ {
		id := queue[i]
		if _, _, ok := m.countedString(id); ok {
			continue // put together from what the vocabulary knows
		}
		if len(values) > 0 && m.nodes[id].kind != kLeaf && !m.fewBelow(id) {
			// As long as compiling takes, for a value that may not come.
			m.visits += int(m.vocab.few)
			continue
		}
		m.innerOf(id)
		last := rxEmpty
		m.pool.eachFirst(id, func(b byte, next nodeID) bool {
			if next != last && b < 0x80 { // not within a character
				meet(next)
			}
			last = next
			return len(seen) < warmStates
		})
	}
	m.maskOf(m.begin)
	if len(values) > 0 {
		return
	}
	// Rules lead to one another: what their first texts make serves the next.
	places, ids := []*place{m.begin}, m.nextID
	for i := 0; i < len(places) && m.visits < visits && m.masks.bytes-bytes < warmBytes && 2*m.searches > searches; i++ {
		p := places[i]
		m.maskOf(p)
		first := m.firstBytes(p)
		for b := range byte(0x80) {
			if first[b>>6]&(1<<(b&63)) == 0 {
				continue
			}
			if len(places) == warmPlaces || m.nextID-ids > warmCells {
				break
			}
			if next := m.step(p, b); next != nil && !slices.Contains(places, next) {
				places = append(places, next)
			}
		}
	}
}
