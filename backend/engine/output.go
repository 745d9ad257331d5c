package engine

import (
	"context"
	"sync"

	"github.com/coppice-run/coppice/backend"
)

// output carries what the loop produces to the goroutine that asked for it. The
// loop never waits: pieces are kept until they are fetched.
type output[T any] struct {
	mu     sync.Mutex
	deltas []backend.Delta
	result T
	err    error
	done   bool
	ready  chan struct{} // holds one value when there is something to fetch
}

func newOutput[T any]() *output[T] { return &output[T]{ready: make(chan struct{}, 1)} }

func (o *output[T]) signal() {
	select {
	case o.ready <- struct{}{}:
	default:
	}
}

// send adds pieces.
func (o *output[T]) send(d []backend.Delta) {
	if len(d) == 0 {
		return
	}
	o.mu.Lock()
	o.deltas = append(o.deltas, d...)
	o.mu.Unlock()
	o.signal()
}

// finish ends the output, once.
func (o *output[T]) finish(result T, err error) {
	o.mu.Lock()
	if !o.done {
		o.result, o.err, o.done = result, err, true
	}
	o.mu.Unlock()
	o.signal()
}

// wait hands the pieces to emit until the output is finished or ctx is done.
func (o *output[T]) wait(ctx context.Context, emit func(backend.Delta)) (T, error) {
	for {
		o.mu.Lock()
		deltas, done := o.deltas, o.done
		o.deltas = nil
		o.mu.Unlock()
		if emit != nil {
			for _, d := range deltas {
				emit(d)
			}
		}
		if done {
			return o.result, o.err
		}
		select {
		case <-o.ready:
		case <-ctx.Done():
			var none T
			return none, ctx.Err()
		}
	}
}
