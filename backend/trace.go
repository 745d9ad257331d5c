package backend

import (
	"context"
	"time"
)

// Step is a forward pass that a request took part in.
type Step struct {
	Request string // its ID
	Engine  uint64
	Pass    uint64 // number of the pass, as in Span
	Start   time.Time
	End     time.Time
	// Tokens of the request that the pass computed, of Batch tokens in all and of
	// Sequences sequences.
	Tokens    int
	Batch     int
	Sequences int
	Prompt    bool // the tokens are of the prompt
}

// Trace is told what is done for requests. Its functions must return at once, and
// may be called from several goroutines for different requests. Nil ones are not
// called.
type Trace struct {
	// Queued is called when a request has been taken in, from the goroutine that
	// sent it.
	Queued func(request string)
	// Step is called after each pass, from the goroutine that computes.
	Step func(Step)
}

type traceKey struct{}

// WithTrace returns a context whose requests are traced, by backends that can.
func WithTrace(ctx context.Context, t *Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// TraceOf returns the trace of a context, nil if it has none.
func TraceOf(ctx context.Context) *Trace {
	t, _ := ctx.Value(traceKey{}).(*Trace)
	return t
}
