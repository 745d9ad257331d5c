package grammar

import (
	"bytes"
	"container/heap"
	"slices"
)

// This file finds short ways from a place to an end of the text: for who runs out
// of room and wants what is open closed.
//
// What a value, a lexeme or a container still needs does not depend on what is
// around it, so each is found once: the shortest text that is the first in the
// order of bytes among equally short ones. What closes a stack is what closes its
// frames, one after the other.

const (
	// endingSteps bounds the work for one place, knownEndings what is remembered.
	endingSteps  = 100_000
	knownEndings = 10_000
)

// ending is a text; a nil one is none.
type ending []byte

// shorter reports whether a is to be taken before b.
func (a ending) shorter(b ending) bool {
	switch {
	case a == nil:
		return false
	case b == nil, len(a) < len(b):
		return true
	}
	return len(a) == len(b) && bytes.Compare(a, b) < 0
}

// then is a and b behind it; nil if one of them is none, or it is too long.
func (a ending) then(b ending) ending {
	if a == nil || b == nil || len(a)+len(b) > LongestEnding {
		return nil
	}
	return append(a[:len(a):len(a)], b...)
}

// endings is what the machine knows of them.
type endings struct {
	lexemes map[nodeID]*knownEnding
	values  map[*valueGroup]*knownEnding // their texts are in the group
	frames  map[frameID]*knownEnding
	groups  map[*valueNode]*valueGroup
	far     farther
	open    *valueGroup  // that is being settled
	guessed bool         // it needed itself
	left    int          // steps for this place
	place   uint64       // how many places were asked for
	finding *knownEnding // the innermost that is sought
}

// knownEnding is the text of a lexeme, a value or a frame; nil if there is none. It
// costs the steps that it took each place that needs it, once, as if nothing were known
// beforehand: so whether a place runs out of steps does not depend on what was asked
// before.
type knownEnding struct {
	text  ending
	cost  int // without those that it needs
	needs map[*knownEnding]bool
	place uint64 // the last one that it was charged to
}

// recall returns what is known under a key, or finds it. What is sought when there are
// no more steps does not become known.
func recall[K comparable](m *machine, known map[K]*knownEnding, key K, find func() ending) ending {
	e := &m.ends
	k := known[key]
	if k != nil {
		if m.charge(k); e.left < 0 {
			return nil
		}
	} else {
		k = &knownEnding{place: e.place}
		outer := e.finding
		e.finding = k
		k.text = find()
		if e.finding = outer; e.left < 0 {
			return nil
		}
		known[key] = k
	}
	if e.finding != nil {
		if e.finding.needs == nil {
			e.finding.needs = map[*knownEnding]bool{}
		}
		e.finding.needs[k] = true
	}
	return k.text
}

// charge takes the steps of k and of all that it needs, if this place has not paid.
func (m *machine) charge(k *knownEnding) {
	if k.place == m.ends.place {
		return
	}
	k.place = m.ends.place
	m.ends.left -= k.cost
	for x := range k.needs {
		m.charge(x)
	}
}

// spendEnding takes n steps; it reports false when there are no more.
func (m *machine) spendEnding(n int) bool {
	m.ends.left -= n
	if m.ends.finding != nil {
		m.ends.finding.cost += n
	}
	return m.ends.left >= 0
}

// ending is the shortest text that leads from p to an end, nil if none is found.
func (m *machine) ending(p *place) (best ending) {
	k := &m.ends
	if k.lexemes == nil || len(k.lexemes) > knownEndings {
		k.lexemes = map[nodeID]*knownEnding{}
	}
	if k.far.nodes == nil || len(k.far.nodes) > 10*knownEndings {
		k.far.nodes = map[nodeID]int32{}
	}
	if k.frames == nil || len(k.frames) > knownEndings {
		k.frames = map[frameID]*knownEnding{}
	}
	if k.values == nil || len(k.values) > knownEndings {
		k.values = map[*valueGroup]*knownEnding{}
	}
	switch {
	case p.canEnd:
		return ending{}
	case m.ws.Indent > 0: // white space depends on the nesting
		return nil
	}
	k.left, k.finding, k.open = endingSteps, nil, nil
	k.place++
	for _, c := range p.configs {
		if a := &m.acts[c.act]; a.kind == actChoice && slices.Contains(m.frameLex[a.frame], item{c.node, c.act}) {
			if text := m.frameEnding(a.frame).then(m.stackEnding(c.stack)); text.shorter(best) {
				best = text
			}
			continue // the other ways from that frame are among these
		}
		m.ways(c.node, c.act, func(text ending, to frameID) {
			stack := c.stack
			switch {
			case to >= 0:
				text = text.then(m.frameEnding(to))
			case stack != nil && m.frames[stack.frame].kind == frRecord:
				r := m.frames[stack.frame]
				for _, b := range text {
					r.set = m.extend(r.set, b)
				}
				stack = stack.next
				text = text.then(m.frameEnding(m.leave(m.frameID(r), stack.frame, true)))
				stack = stack.next
			}
			if text = text.then(m.stackEnding(stack)); text.shorter(best) {
				best = text
			}
		})
	}
	return best
}

// stackEnding is what closes the containers of a stack.
func (m *machine) stackEnding(stack *cell) ending {
	text := ending{}
	for ; stack != nil && text != nil; stack = stack.next {
		text = text.then(m.frameEnding(stack.frame))
	}
	return text
}

// ways yields what may be written from a lexeme on until its container goes on in
// a frame, or, with -1, is complete.
func (m *machine) ways(node nodeID, act actID, yield func(text ending, to frameID)) {
	if a := m.acts[act]; a.kind == actChoice {
		if text := m.nameEnding(node, a.frame); text != nil {
			yield(text, -1)
		}
		return
	}
	if text := m.lexemeEnding(node); text != nil {
		m.follow(act, text, yield)
	}
}

// follow yields what comes of an action behind a text.
func (m *machine) follow(act actID, text ending, yield func(ending, frameID)) {
	if !m.spendEnding(1) {
		return
	}
	a := m.acts[act]
	switch a.kind {
	case actPop:
		yield(text, -1)
	case actGo:
		yield(text, a.frame)
	case actPush, actBegin:
		value := m.valueEnding(a.val)
		to := frameID(-1)
		if a.kind == actPush {
			to = a.frame
		}
		if a.rec > 0 && value != nil { // what may come then depends on what it is
			r := frame{kind: frRecord, node: a.rec - 1}
			for _, b := range value {
				r.set = m.extend(r.set, b)
			}
			to = m.leave(m.frameID(r), to, true)
		}
		if text = text.then(value); text != nil {
			yield(text, to)
		}
	case actMany:
		for _, x := range a.list {
			m.follow(x, text, yield)
		}
	}
}

// frameEnding is the shortest text that completes the container of a frame.
func (m *machine) frameEnding(id frameID) ending {
	if m.ends.open != nil { // it goes by guesses
		return m.findFrameEnding(id)
	}
	return recall(m, m.ends.frames, id, func() ending { return m.findFrameEnding(id) })
}

func (m *machine) findFrameEnding(id frameID) ending {
	if f := m.frames[id]; f.kind == frObject {
		return m.objectEnding(f)
	}
	queue := endingQueue{{text: ending{}, at: int32(id)}}
	done := map[frameID]bool{}
	for len(queue) > 0 && m.spendEnding(1) {
		x := heap.Pop(&queue).(endingStep)
		at := frameID(x.at)
		if at < 0 {
			return x.text
		}
		if done[at] {
			continue
		}
		done[at] = true
		if m.frames[at].kind == frObject {
			if text := x.text.then(m.frameEnding(at)); text != nil {
				heap.Push(&queue, endingStep{text, -1, len(text)})
			}
			continue
		}
		for _, it := range m.lex(at) {
			m.ways(it.node, it.act, func(text ending, to frameID) {
				if text = x.text.then(text); text != nil && !(to >= 0 && done[to]) {
					heap.Push(&queue, endingStep{text, int32(to), len(text)})
				}
			})
		}
	}
	return nil
}

// valueEnding is the shortest text of a value.
func (m *machine) valueEnding(v *valueNode) ending {
	e := &m.ends
	g := m.groupOf(v)
	if g.busy {
		e.guessed = e.guessed || g == e.open
		return g.texts[v.id]
	}
	outer, guessed := e.open, e.guessed
	recall(m, e.values, g, func() ending { return m.settle(g) })
	if e.open, e.guessed = outer, guessed; e.left < 0 {
		return nil
	}
	return g.texts[v.id]
}

// settle finds the shortest texts of a group: what is known of each is bettered until
// nothing changes.
func (m *machine) settle(g *valueGroup) ending {
	e := &m.ends
	e.open, g.busy, g.texts = g, true, map[int32]ending{}
	defer func() { g.busy = false }()
	for changed := true; changed && e.left >= 0; {
		changed, e.guessed = false, false
		for _, x := range g.members {
			best := g.texts[x.id]
			for _, it := range m.start(x, 0) {
				m.ways(it.node, it.act, func(text ending, to frameID) {
					if to >= 0 {
						text = text.then(m.frameEnding(to))
					}
					if text.shorter(best) {
						best = text
					}
				})
			}
			if best.shorter(g.texts[x.id]) {
				g.texts[x.id], changed = best, true
			}
		}
		changed = changed && e.guessed
	}
	return nil
}
