package puppet

import (
	"context"
	"sync"
)

// Gate holds requests back until a test lets them go. It is safe for concurrent
// use.
type Gate struct {
	mu      sync.Mutex
	open    bool
	waiting map[string]int // requests held, by ID
	passes  map[string]int // releases not used yet
	change  chan struct{}  // closed and replaced at each change
}

// NewGate returns a gate that is shut.
func NewGate() *Gate {
	return &Gate{waiting: map[string]int{}, passes: map[string]int{}, change: make(chan struct{})}
}

// wake tells all waiters to look again. g.mu is held.
func (g *Gate) wake() {
	close(g.change)
	g.change = make(chan struct{})
}

// Release lets one request with that ID go, now or when it comes.
func (g *Gate) Release(id string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passes[id]++
	g.wake()
}

// Open lets all requests go from now on.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = true
	g.wake()
}

// Held waits until a request with that ID is held.
func (g *Gate) Held(ctx context.Context, id string) error {
	return g.until(ctx, func() bool { return g.waiting[id] > 0 })
}

// HeldCount waits until n requests are held, whatever their IDs.
func (g *Gate) HeldCount(ctx context.Context, n int) error {
	return g.until(ctx, func() bool {
		sum := 0
		for _, k := range g.waiting {
			sum += k
		}
		return sum >= n
	})
}

// until waits for cond, which is called with g.mu held.
func (g *Gate) until(ctx context.Context, cond func() bool) error {
	for {
		g.mu.Lock()
		ok, change := cond(), g.change
		g.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-change:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// wait holds a request.
func (g *Gate) wait(ctx context.Context, id string) error {
	g.mu.Lock()
	g.waiting[id]++
	g.wake()
	g.mu.Unlock()
	err := g.until(ctx, func() bool {
		if g.open {
			return true
		}
		if g.passes[id] > 0 {
			g.passes[id]--
			return true
		}
		return false
	})
	g.mu.Lock()
	g.waiting[id]--
	g.wake()
	g.mu.Unlock()
	return err
}
