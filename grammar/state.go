package grammar

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// State is a place in a grammar. It is an immutable small value: a copy is a
// fork, an old copy a rollback. The zero State is of no use; see
// [Grammar.Start].
type State struct {
	g    *Grammar
	at   *place
	plan []int32 // tokens that must come next
	tail tailTokens
	past *history
}

// history is how a state was reached, newest first; Encode writes it.
type history struct {
	prev  *history
	token int32 // or -1 for text
	text  []byte
}

// Start is the state before the first byte.
func (g *Grammar) Start() State {
	return g.enter(g.m.begin, noTail, nil)
}

// StartAfter is Start behind a prompt that ends with the given tokens: forced
// text is encoded as the tokenizer encodes it behind them.
func (g *Grammar) StartAfter(prompt []int32) State {
	tail := noTail
	for _, t := range prompt[max(0, len(prompt)-maxTail):] {
		if len(g.vocab.Token(t)) == 0 {
			tail = noTail // text before a control token has no bearing
			continue
		}
		tail = tail.with(t)
	}
	return g.enter(g.m.begin, tail, nil)
}

// enter is the state at a place that no plan led to.
func (g *Grammar) enter(p *place, tail tailTokens, past *history) State {
	s := State{g: g, at: p, tail: tail, past: past}
	if g.vocab.encode != nil {
		g.m.mu.Lock()
		s.plan = g.m.plan(p, tail)
		g.m.mu.Unlock()
	}
	return s
}

// Mask sets bit i of bits for every token i that may come next and clears the
// others; bits holds at least [Vocab.MaskWords] words. Bits of end tokens are
// set where the text may end. Where [State.Jump] would add tokens, only the
// first of these is set.
func (s State) Mask(bits []uint64) {
	v := s.g.vocab
	bits = bits[:v.MaskWords()]
	if len(s.plan) > 0 {
		clear(bits)
		bits[s.plan[0]>>6] |= 1 << (s.plan[0] & 63)
		return
	}
	e := s.at.mask.Load()
	if e == nil {
		m := s.g.m
		m.mu.Lock()
		if m.fixedMask(s.at, bits) {
			m.mu.Unlock()
			return
		}
		e = m.maskOf(s.at)
		m.mu.Unlock()
	}
	e.writeTo(bits)
	if s.at.canEnd {
		for _, t := range v.end {
			bits[t>>6] |= 1 << (t & 63)
		}
	}
}

// Accept is the state after a token. End tokens are not accepted: the caller
// stops there. The error is ErrRejected, wrapped.
func (s State) Accept(token int32) (State, error) {
	v := s.g.vocab
	if token < 0 || int(token) >= len(v.tokens) || len(v.tokens[token]) == 0 {
		return s, fmt.Errorf("token %d has no text: %w", token, ErrRejected)
	}
	if len(s.plan) > 0 && s.plan[0] != token {
		return s, fmt.Errorf("token %d (%q): only token %d (%q) may come here: %w", token, v.tokens[token], s.plan[0], v.tokens[s.plan[0]], ErrRejected)
	}
	p, n := s.g.m.walk(s.at, v.tokens[token])
	if p == nil {
		return s, fmt.Errorf("token %d (%q) at its byte %d: %w", token, v.tokens[token], n, ErrRejected)
	}
	tail := s.tail.with(token)
	past := &history{prev: s.past, token: token}
	if len(s.plan) > 1 {
		return State{g: s.g, at: p, plan: s.plan[1:], tail: tail, past: past}, nil
	}
	return s.g.enter(p, tail, past), nil
}

// AcceptBytes is the state after a text, however it is cut into tokens. An
// error tells at which byte the text left the grammar.
func (s State) AcceptBytes(text []byte) (State, error) {
	if len(text) == 0 {
		return s, nil
	}
	p, n := s.g.m.walk(s.at, text)
	if p == nil {
		return s, &RejectError{At: n}
	}
	return s.g.enter(p, noTail, &history{prev: s.past, token: -1, text: append([]byte(nil), text...)}), nil
}

// RejectError tells at which byte of a text it left the grammar.
type RejectError struct{ At int }

func (e *RejectError) Error() string { return fmt.Sprintf("byte %d: %v", e.At, ErrRejected) }

// Unwrap returns ErrRejected.
func (e *RejectError) Unwrap() error { return ErrRejected }

// walk is the place after text, nil with the offending byte's index when it is
// not allowed.
func (m *machine) walk(p *place, text []byte) (*place, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, b := range text {
		if p = m.step(p, b); p == nil {
			return nil, i
		}
	}
	return p, len(text)
}

// Forced is the longest text (up to 4 KiB) that every continuation begins
// with. It may end inside a character. It must not be changed.
func (s State) Forced() []byte {
	m := s.g.m
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.forcedText(s.at)
}

// Jump returns the tokens that come next without asking the model, and the
// state after them.
//
// The tokens are canonical: they are what the tokenizer makes of the whole
// text, and the last ones that might merge with what follows are left to the
// model. The plan is fixed when a state is entered and is followed by
// [State.Mask] and [State.Accept] too: a run that never calls Jump is led
// through the same tokens one at a time. So the tokens of a run do not depend
// on whether Jump is used, only the number of model calls does.
//
// Of a text that is forced without an end in sight it returns some thousand tokens;
// a further call goes on.
func (s State) Jump() ([]int32, State) {
	var out []int32
	for len(s.plan) > 0 && len(out) < maxJump {
		plan := s.plan
		for range plan {
			next, err := s.Accept(s.plan[0])
			if err != nil { // a plan follows the grammar
				panic("grammar: " + err.Error())
			}
			s = next
		}
		out = append(out, plan...)
	}
	return out, s
}

// Likely is the tokens that the tokenizer makes of the forced text that Jump
// leaves to the model, nil where it leaves none. The last ones may turn out
// otherwise, since they may merge with what follows: they are a guess, and hardly
// ever a wrong one. A model that draws the first of them from the logits at this
// place, the next from those behind it, and so on, needs one pass for them all
// and writes what it would have written without.
func (s State) Likely() []int32 {
	m := s.g.m
	if len(s.plan) > 0 || s.g.vocab.encode == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	forced := m.forcedText(s.at)
	if len(forced) == 0 || len(forced) == maxForced { // its end is not in sight
		return nil
	}
	return m.encodeAfter(forced, s.tail)
}

// maxJump is the number of tokens after which Jump adds no more pieces of forced text.
const maxJump = 2048

// CanEnd reports whether the text may end here.
func (s State) CanEnd() bool { return s.at.canEnd }

// Done reports whether the text can only end here.
func (s State) Done() bool { return s.at.canEnd && len(s.at.configs) == 0 }

// Encode writes the state as bytes for [Grammar.Decode]: the tokens and texts
// that led to it.
func (s State) Encode() []byte {
	var steps []*history
	for h := s.past; h != nil; h = h.prev {
		steps = append(steps, h)
	}
	b := []byte{1}
	for i := len(steps) - 1; i >= 0; i-- {
		h := steps[i]
		if h.token >= 0 {
			b = binary.AppendUvarint(b, uint64(h.token)+1)
			continue
		}
		b = append(b, 0)
		b = binary.AppendUvarint(b, uint64(len(h.text)))
		b = append(b, h.text...)
	}
	return b
}

var errEncoding = errors.New("grammar: not an encoded state")

// Decode reads a state that Encode wrote for the same spec and vocabulary.
func (g *Grammar) Decode(data []byte) (State, error) {
	if len(data) == 0 || data[0] != 1 {
		return State{}, errEncoding
	}
	data = data[1:]
	s := g.Start()
	for len(data) > 0 {
		v, n := binary.Uvarint(data)
		if n <= 0 || v > 1<<31 {
			return State{}, errEncoding
		}
		data = data[n:]
		var err error
		if v > 0 {
			s, err = s.Accept(int32(v - 1))
		} else {
			size, n := binary.Uvarint(data)
			if n <= 0 || size > uint64(len(data)-n) {
				return State{}, errEncoding
			}
			s, err = s.AcceptBytes(data[n : n+int(size)])
			data = data[n+int(size):]
		}
		if err != nil {
			return State{}, fmt.Errorf("grammar: the state is not of this grammar: %w", err)
		}
	}
	return s, nil
}
