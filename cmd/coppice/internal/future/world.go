package future

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/sim"
)

// world is what is around the engine: agents that use tools, and time. An agent
// rests (it has not begun, or a tool runs), has a request at the engine, or is
// done; between these it is under way. The engine's round begins when nobody is.
type world struct {
	load   Load
	ready  chan struct{} // closed when engine and device are set
	engine *engine.Engine
	device *sim.Device
	random []*rand.Rand // of each agent
	latest []*request   // of each agent

	mu      sync.Mutex
	changed sync.Cond
	resting []*rest // what ends first at the end
	queued  int     // requests taken in so far
	over    int     // agents that are done
	stopped bool
	trace   *Trace
}

// rest is an agent that waits until some time.
type rest struct {
	who  int
	till time.Duration
	wake chan struct{}
}

// before is the engine's Config.Before: it lets all agents get ready, wakes those
// whose time has come one after the other, and moves the time on if nothing else is
// to be done.
func (w *world) before() {
	<-w.ready
	ended := w.engine.Stats()
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		atEngine := func() int { return w.queued - int(ended.Finished+ended.Failed) }
		for !w.stopped && atEngine()+len(w.resting)+w.over < w.load.Agents {
			w.changed.Wait()
		}
		if w.stopped || w.over == w.load.Agents {
			return
		}
		n := len(w.resting) - 1
		if n >= 0 && w.resting[n].till <= w.device.Now() {
			close(w.resting[n].wake)
			w.resting = w.resting[:n]
			continue
		}
		if n < 0 || atEngine() > 0 {
			return
		}
		w.device.Advance(w.resting[n].till)
	}
}

func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	w.changed.Signal()
}

func (w *world) stop() { w.change(func() { w.stopped = true }) }
func (w *world) done() { w.change(func() { w.over++ }) }

// rest lets an agent rest for a time.
func (w *world) rest(ctx context.Context, who int, d time.Duration) error {
	<-w.ready
	r := &rest{who, w.device.Now() + d, make(chan struct{})}
	w.change(func() {
		i, _ := slices.BinarySearchFunc(w.resting, r, func(a, b *rest) int {
			if a.till == b.till {
				return b.who - a.who
			}
			return int(b.till - a.till)
		})
		w.resting = slices.Insert(w.resting, i, r)
	})
	select {
	case <-r.wake:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// use is what all tools do: they take their time and return some text.
func (w *world) use(ctx context.Context, who int, usual time.Duration) (string, error) {
	r := w.random[who]
	takes := usual
	if w.load.Pause != nil {
		takes = w.load.Pause(r, usual)
	}
	result := words(r, 60+r.IntN(200))
	w.change(func() { w.latest[who].after = usual })
	return result, w.rest(ctx, who, takes)
}

// client sends the requests of an agent to the engine and writes down what becomes
// of them.
type client struct {
	*engine.Engine
	w   *world
	who int
}

func (c *client) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	prompt, err := c.Tokenize(req.Turns, true)
	if err != nil {
		return nil, err
	}
	r := &request{prompt: len(prompt), tokens: prompt, who: c.who}
	w := c.w
	w.change(func() { w.latest[c.who] = r })
	res, err := c.Engine.Generate(backend.WithTrace(ctx, &backend.Trace{
		Queued: func(string) { w.change(func() { w.queued++ }) },
		Step:   func(s backend.Step) { w.trace.add(s.Pass, r, s.Tokens) },
	}), req, emit)
	if err != nil {
		return nil, err
	}
	r.cached = res.Usage.CachedTokens
	r.tokens = append(r.tokens, res.Part.Tokens...)
	return res, nil
}

// blind is a backend that hears nothing of what its clients know.
type blind struct{ backend.Backend }

func (b blind) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	own := *req
	own.Hints = backend.Hints{}
	return b.Backend.Generate(ctx, &own, emit)
}
