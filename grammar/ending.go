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
	lexemes map[nodeID]ending
	values  map[int32]ending
	frames  map[frameID]ending
	open    []*valueNode     // values that are being settled
	guesses map[int32]ending // of those, so far
	left    int              // steps for this place
}

// spendEnding takes n steps; it reports false when there are no more.
func (m *machine) spendEnding(n int) bool {
	m.ends.left -= n
	return m.ends.left >= 0
}

// ending is the shortest text that leads from p to an end, nil if none is found.
func (m *machine) ending(p *place) (best ending) {
	k := &m.ends
	if k.lexemes == nil || len(k.lexemes) > knownEndings {
		k.lexemes = map[nodeID]ending{}
	}
	if k.frames == nil || len(k.frames) > knownEndings {
		k.frames = map[frameID]ending{}
	}
	if k.values == nil || len(k.values) > knownEndings {
		k.values = map[int32]ending{}
	}
	switch {
	case p.canEnd:
		return ending{}
	case m.ws.Indent > 0: // white space depends on the nesting
		return nil
	}
	k.left = endingSteps
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
	if e, ok := m.ends.lexemes[id]; ok {
		return e
	}
	var found ending
	mark := len(m.nodes)
	m.lexemes(id, func(_ nodeID, text ending) bool {
		found = text
		return false
	})
	m.forget(mark)
	if found == nil && m.ends.left < 0 {
		return nil // it may be found another time
	}
	// What is left behind each byte of it is the shortest there.
	at := id
	for i := range found {
		m.ends.lexemes[at] = found[i:]
		at = m.pool.step(at, found[i])
	}
	m.ends.lexemes[id] = found
	return found
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
	if e, ok := m.ends.frames[id]; ok && m.ends.guesses == nil {
		return e
	}
	queue := endingQueue{{text: ending{}, at: int32(id)}}
	done := map[frameID]bool{}
	var found ending
	for len(queue) > 0 && m.spendEnding(1) {
		x := heap.Pop(&queue).(endingStep)
		at := frameID(x.at)
		if at < 0 {
			found = x.text
			break
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
	if m.ends.guesses == nil && m.ends.left >= 0 {
		m.ends.frames[id] = found
	}
	return found
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
	k := &m.ends
	if e, ok := k.values[v.id]; ok {
		return e
	}
	if k.guesses != nil {
		e, ok := k.guesses[v.id]
		if !ok {
			k.guesses[v.id] = nil
			k.open = append(k.open, v)
		}
		return e
	}
	// Values may hold each other: what is known of each is bettered until nothing
	// changes.
	k.guesses = map[int32]ending{v.id: nil}
	k.open = append(k.open[:0], v)
	for changed := true; changed && k.left >= 0; {
		changed = false
		for i := 0; i < len(k.open); i++ {
			x, n := k.open[i], len(k.open)
			e := k.guesses[x.id]
			for _, it := range m.start(x, 0) {
				m.ways(it.node, it.act, func(text ending, to frameID) {
					if to >= 0 {
						text = text.then(m.frameEnding(to))
					}
					if text.shorter(e) {
						e = text
					}
				})
			}
			if e.shorter(k.guesses[x.id]) {
				k.guesses[x.id], changed = e, true
			}
			changed = changed || len(k.open) > n
		}
	}
	guesses := k.guesses
	k.guesses = nil
	if k.left < 0 {
		return nil
	}
	for id, e := range guesses {
		k.values[id] = e
	}
	return guesses[v.id]
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
// may be one: none is sought of more than 4 KiB, and none through items of an array
// that are to be unlike each other.
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
