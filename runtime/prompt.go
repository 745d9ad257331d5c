package runtime

import (
	"slices"

	"github.com/coppice-run/coppice/backend"
)

// prompt is the context of a branch: a list of turns of which only the last can
// still change. Branches share turns; the invariant is that whatever somebody
// else can see (a request in flight, a child) is never written again:
//
//	parent  [ system | user | assistant… ]      turns[:3], its last turn is shared
//	child 0 [ same backing array, capacity 3 ]  an append copies the headers
//	child 1 [ same backing array, capacity 3 ]
//
// A turn added by the parent after the fork lands behind the part the children
// see; a part added to the shared open turn copies the list first (own).
type prompt struct {
	turns []backend.Turn
	// shared is set if others see the last turn.
	shared bool
}

// view returns the turns for somebody who only reads them.
func (p *prompt) view() []backend.Turn {
	p.shared = true
	return p.turns[:len(p.turns):len(p.turns)]
}

// child returns a prompt that begins as p.
func (p *prompt) child() prompt {
	return prompt{turns: p.view(), shared: true}
}

// own makes the last turn safe to change and returns it.
func (p *prompt) own() *backend.Turn {
	n := len(p.turns)
	if p.shared {
		turns := make([]backend.Turn, n, n+4)
		copy(turns, p.turns)
		p.turns = turns
		p.shared = false
		t := &p.turns[n-1]
		t.Parts = slices.Clip(t.Parts)
	}
	return &p.turns[n-1]
}

// push adds a turn; an open last turn ends with it.
func (p *prompt) push(t backend.Turn) {
	p.close()
	p.turns = append(p.turns, t)
	p.shared = false
}

// open reports whether the last turn is open.
func (p *prompt) open() bool {
	n := len(p.turns)
	return n > 0 && p.turns[n-1].Open
}

// close ends an open last turn.
func (p *prompt) close() {
	if p.open() {
		p.own().Open = false
	}
}

// text adds text of the program: to the open turn or, outside of one, to the
// raw text that the prompt ends in.
func (p *prompt) text(s string) {
	if s == "" {
		return
	}
	n := len(p.turns)
	if !p.open() && (n == 0 || p.turns[n-1].Role != backend.Raw) {
		p.push(backend.Turn{Role: backend.Raw, Parts: []backend.Part{{Text: s}}})
		return
	}
	t := p.own()
	t.Parts = append(t.Parts, backend.Part{Text: s})
}

// generated adds what a model wrote: to the open turn, to raw text that the
// prompt ends in, or as an assistant turn of its own.
func (p *prompt) generated(part backend.Part) {
	n := len(p.turns)
	if p.open() || (n > 0 && p.turns[n-1].Role == backend.Raw) {
		t := p.own()
		t.Parts = append(t.Parts, part)
		return
	}
	p.push(backend.Turn{Role: backend.Assistant, Parts: []backend.Part{part}})
}

// since returns what p has beyond the first base turns, of which the last had
// parts parts when p began.
func (p *prompt) since(base, parts int) []backend.Turn {
	var out []backend.Turn
	if base > 0 && len(p.turns[base-1].Parts) > parts {
		t := p.turns[base-1]
		t.Parts = slices.Clip(t.Parts[parts:])
		out = append(out, t)
	}
	return append(out, p.turns[base:]...)
}

// continues reports whether what comes next continues a turn or raw text rather
// than being a turn of its own.
func (p *prompt) continues() bool {
	n := len(p.turns)
	return n > 0 && (p.turns[n-1].Open || p.turns[n-1].Role == backend.Raw)
}
