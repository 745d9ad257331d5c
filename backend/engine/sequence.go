package engine

import (
	"context"
	"sync/atomic"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/cache"
)

// A sequence is a list of tokens that the model computes, and the pages it
// does so on. It belongs to the loop.
//
//	tokens   0 ......... computed ......... len(tokens)
//	         |  in pages         | pending
//	pages    [ 0 ][ 1 ] owned [ 2 ][ 3 ]
//	         | pinned with h | held by the sequence
//
// The prefix of h is in the tree. Page owned may be in the tree as well, in
// part: the sequence is the only one that writes to it, after what is there.
type sequence struct {
	id    string
	ns    cache.Namespace
	hints backend.Hints
	// priority puts it before those with a lower one that wait, see scheduler.order.
	priority int
	task     task

	tokens   []backend.Token
	prompt   int           // tokens[:prompt] were given
	h        *cache.Handle // nil while it waits
	pages    []int32
	owned    int
	computed int
	reached  int  // most tokens computed before it lost its pages
	detached bool // h pins nothing, all pages are the sequence's

	// Of a step that the device works on while the next is planned, see ahead.go.
	flight int    // tokens of it after computed, 0 without a step
	expect int    // tokens that will be appended when it is done, as far as is certain
	step   uint64 // its number; 0 if what it computes is of no use any more

	order    uint64 // of arrival
	since    uint64 // step in which it began to wait
	served   uint64 // step that last computed some of it
	admitted bool   // was running at least once
	front    bool   // goes before all that were never admitted
	child    bool   // part of another request
	alone    bool   // was in a pass that failed: until it is past fault, no other is in its own
	fault    int    // tokens computed when a pass with it failed, at most
	restarts int    // see maxRestarts
	ended    bool
	ctx      context.Context
	left     *atomic.Bool   // nobody waits for it, whatever ctx says; set by submit
	trace    *backend.Trace // nil if nobody follows
	peek     int            // cached prefix, when the tree was at peekAt
	peekAt   uint64         // 1 + version of the tree

	usage usage
}

// A task is what a sequence is computed for.
type task interface {
	// from is the first position whose logits are still needed.
	from(s *sequence) int
	// wants reports whether the logits after the token at pos are needed.
	wants(s *sequence, pos int) bool
	// logits delivers them. The task may append tokens to the sequence, or end
	// it through the engine. It may change the slice, which is reused after.
	logits(e *Engine, s *sequence, pos int, logits []float32)
	// finish ends the task of s, which holds no pages any more; err is nil if
	// the task said that it is done.
	finish(e *Engine, s *sequence, err error)
}

// planned is the number of tokens that are computed or being computed.
func (s *sequence) planned() int { return s.computed + s.flight }

// pending is the number of tokens that may be planned.
func (s *sequence) pending() int { return len(s.tokens) + s.expect - s.planned() }

// matchLimit bounds the tokens that may come from the tree: those after it must
// be computed because their logits are wanted.
func (s *sequence) matchLimit() int { return s.task.from(s) }

// prefilling reports whether some of the prompt is still to be planned.
func (s *sequence) prefilling() bool { return s.planned() < s.prompt }

// wants reports whether the logits after the token at pos are needed. A token
// that is only expected is one that a generation goes on from.
func (s *sequence) wants(pos int) bool { return pos >= len(s.tokens) || s.task.wants(s, pos) }

// gone is why nobody waits for the sequence any more, nil if somebody does.
func (s *sequence) gone() error {
	switch {
	case s.ctx.Err() != nil:
		return ctxError(s.ctx)
	case s.left != nil && s.left.Load():
		return context.Canceled
	}
	return nil
}

// land forgets the step in flight.
func (s *sequence) land() { s.flight, s.expect, s.step = 0, 0, 0 }

// usage counts what a sequence cost.
type usage struct {
	cached   int
	computed int
	passes   []backend.Span
}

// pass notes that the engine's pass n computed tokens of the sequence.
func (u *usage) pass(engine, n uint64, tokens int) {
	u.computed += tokens
	u.passes = addSpan(u.passes, backend.Span{Engine: engine, From: n, To: n})
}

// addSpan adds a span to a list that is in ascending order, and joins it with
// the last one if they touch.
func addSpan(spans []backend.Span, sp backend.Span) []backend.Span {
	if n := len(spans); n > 0 && spans[n-1].Engine == sp.Engine && sp.From <= spans[n-1].To+1 && sp.From >= spans[n-1].From {
		spans[n-1].To = max(spans[n-1].To, sp.To)
		return spans
	}
	return append(spans, sp)
}
