package grammar

import (
	"bytes"
	"container/heap"
)

// This file finds short ways from a place to an end of the text: for who runs out
// of room and wants what is open closed.
//
// What a value, a lexeme or a container still needs does not depend on what is
// around it, so each is found once: the shortest text that is the first in the
// order of bytes among equally short ones. What closes a stack is what closes its
// frames, one after the other.

const (
	// maxEnding bounds the text that is sought, in bytes.
	maxEnding = 4096
	// maxLexeme bounds that of one lexeme, lexemeSteps the states that are looked at
	// for it.
	maxLexeme   = 1024
	lexemeSteps = 4096
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
	if a == nil || b == nil || len(a)+len(b) > maxEnding {
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
		m.charge(k)
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
			for ; stack != nil && text != nil; stack = stack.next {
				text = text.then(m.frameEnding(stack.frame))
			}
			if text.shorter(best) {
				best = text
			}
		})
	}
	if k.left < 0 {
		return nil
	}
	return best
}

// ways yields what may be written from a lexeme on until its container goes on in
// a frame, or, with -1, is complete.
func (m *machine) ways(node nodeID, act actID, yield func(text ending, to frameID)) {
	if m.acts[act].kind == actChoice {
		m.nameEndings(node, func(label int32, text ending) { m.follow(act, label, text, yield) })
		return
	}
	if text := m.lexemeEnding(node); text != nil {
		m.follow(act, 0, text, yield)
	}
}

// follow yields what comes of an action behind a text.
func (m *machine) follow(act actID, label int32, text ending, yield func(ending, frameID)) {
	if !m.spendEnding(1) {
		return
	}
	a := m.acts[act]
	switch a.kind {
	case actPop:
		yield(text, -1)
	case actGo:
		yield(text, a.frame)
	case actPush:
		if a.rec > 0 { // what may come then depends on what it is
			return
		}
		if text = text.then(m.valueEnding(a.val)); text != nil {
			yield(text, a.frame)
		}
	case actBegin:
		if text = text.then(m.valueEnding(a.val)); text != nil {
			yield(text, -1)
		}
	case actChoice:
		m.follow(m.choose(a.frame, label), 0, text, yield)
	case actMany:
		for _, x := range a.list {
			m.follow(x, 0, text, yield)
		}
	}
}

// step of a search: a text and where it leads.
type endingStep struct {
	text ending
	at   int32
	far  int // bytes of the text and of what must follow it at least
}

type endingQueue []endingStep

func (q endingQueue) Len() int { return len(q) }
func (q endingQueue) Less(i, j int) bool {
	if q[i].far != q[j].far {
		return q[i].far < q[j].far
	}
	return bytes.Compare(q[i].text, q[j].text) < 0
}
func (q endingQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *endingQueue) Push(x any)   { *q = append(*q, x.(endingStep)) }
func (q *endingQueue) Pop() any {
	old := *q
	x := old[len(old)-1]
	*q = old[:len(old)-1]
	return x
}

// lexemeEnding is the shortest text of id.
func (m *machine) lexemeEnding(id nodeID) ending {
	return recall(m, m.ends.lexemes, id, func() (found ending) {
		mark := len(m.nodes)
		m.lexemes(id, func(_ nodeID, text ending) bool {
			found = text
			return false
		})
		m.forget(mark)
		return found
	})
}

// nameEndings yields the shortest text for each label of a choice of names.
func (m *machine) nameEndings(id nodeID, yield func(label int32, text ending)) {
	seen := map[int32]bool{}
	m.lexemes(id, func(at nodeID, text ending) bool {
		if label := m.labelOf(at); !seen[label] {
			seen[label] = true
			yield(label, text)
		}
		return true
	})
}

// lexemes yields the states in which texts of id are complete, the shortest text
// first, until yield says no.
func (m *machine) lexemes(id nodeID, yield func(at nodeID, text ending) bool) {
	if int(m.nodes[id].least) > maxLexeme {
		return
	}
	queue := endingQueue{{text: ending{}, at: int32(id), far: int(m.nodes[id].least)}}
	best := map[nodeID]ending{id: {}}
	for range lexemeSteps {
		if len(queue) == 0 {
			return
		}
		x := heap.Pop(&queue).(endingStep)
		at := nodeID(x.at)
		if best[at].shorter(x.text) {
			continue // there was a better way here
		}
		if m.nullable(at) && !yield(at, x.text) {
			return
		}
		cls := m.tableOf(at).cls
		if !m.spendEnding(len(cls.rep)) {
			return
		}
		for _, b := range cls.rep {
			n := m.pool.step(at, b)
			if n == rxEmpty || len(x.text) >= maxLexeme {
				continue
			}
			text := append(x.text[:len(x.text):len(x.text)], b)
			if old, ok := best[n]; ok && !text.shorter(old) {
				continue
			}
			best[n] = text
			heap.Push(&queue, endingStep{text, int32(n), len(text) + int(m.nodes[n].least)})
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
		for _, it := range m.onward(at) {
			m.ways(it.node, it.act, func(text ending, to frameID) {
				if text = x.text.then(text); text != nil && !(to >= 0 && done[to]) {
					heap.Push(&queue, endingStep{text, int32(to), len(text)})
				}
			})
		}
	}
	return nil
}

// onward is the lexemes of a frame that a short way to the end of its container
// can begin with.
func (m *machine) onward(id frameID) []item {
	f := m.frames[id]
	if f.kind != frObject || m.anyOrder {
		return m.lex(id)
	}
	o := m.objects[f.node]
	p := m.writer.plan(f.node)
	if o.bound || o.duty > 0 || p.required[f.pos] == 0 {
		return m.lex(id)
	}
	// Only the next name that must come matters.
	name := m.nameTrie(o, p, []int32{p.nextReq[f.pos]})
	return []item{{m.cat(m.nameLead(f), m.leafNode(name)), m.act(action{kind: actChoice, frame: id})}}
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

// EndsWithin reports whether the text can come to an end within so many tokens,
// as [State.Ending] finds it.
func (s State) EndsWithin(tokens int) bool {
	m := s.g.m
	m.mu.Lock()
	text := m.ending(s.at)
	m.mu.Unlock()
	if text == nil {
		return false
	}
	if len(text) <= tokens { // a token is a byte at least
		return true
	}
	_, ok := s.Ending(tokens)
	return ok
}

// Ending returns the tokens of a short way from here to a place where the text may
// end: what is open is closed, and what must come has its shortest form. It depends
// on the grammar and the text so far alone. It is empty where the text may end
// already; ok is false if no way of at most so many tokens is found, though there
// may be one: none is sought of more than 4 KiB, none for longer than some ten
// milliseconds' worth of steps, and none through items of an array that are to be unlike
// each other.
func (s State) Ending(most int) (tokens []int32, ok bool) {
	m := s.g.m
	add := func(t int32) bool {
		next, err := s.Accept(t)
		if err == nil {
			tokens = append(tokens, t)
			s = next
		}
		return err == nil
	}
	for !s.at.canEnd {
		if len(tokens) >= most {
			return nil, false
		}
		if len(s.plan) > 0 {
			if !add(s.plan[0]) {
				return nil, false
			}
			continue
		}
		m.mu.Lock()
		text := m.ending(s.at)
		m.mu.Unlock()
		if text == nil {
			return nil, false
		}
		m.mu.Lock()
		var ids []int32
		if m.vocab.encode != nil {
			ids = m.encodeAfter(text, s.tail)
		}
		if ids == nil {
			ids = m.vocab.cut(text)
		}
		m.mu.Unlock()
		if len(ids) == 0 || !add(ids[0]) {
			return nil, false
		}
		for _, t := range ids[1:] {
			if s.at.canEnd || len(tokens) >= most || !add(t) {
				break // by a plan
			}
		}
	}
	return tokens, true
}

// cut divides text into the longest tokens there are, nil if that does not work.
func (v *Vocab) cut(text []byte) (ids []int32) {
	for len(text) > 0 {
		t := v.longest(text)
		if t < 0 {
			return nil
		}
		ids = append(ids, t)
		text = text[len(v.tokens[t]):]
	}
	return ids
}

// longest is the longest token that text begins with, -1 if there is none.
func (v *Vocab) longest(text []byte) int32 {
	found := int32(-1)
	i, end := 0, len(v.nodeByte)
	for _, b := range text {
		for i < end && v.nodeByte[i] < b {
			i = int(v.nodeEnd[i])
		}
		if i >= end || v.nodeByte[i] != b {
			break
		}
		if v.nodeTok[i] >= 0 {
			found = v.nodeTok[i]
		}
		i, end = i+1, int(v.nodeEnd[i])
	}
	return found
}
