package engine

import (
	"sync"
	"time"

	"github.com/coppice-run/coppice/cache"
)

// Pass is a forward pass of the recent past.
type Pass struct {
	Number     uint64 // from 1
	Start, End time.Time
	Sequences  int
	Prompt     int // tokens of prompts that it computed
	Generated  int // other tokens that it computed
}

// passesKept is how many passes are remembered.
const passesKept = 4096

// passRing holds the newest passes of an engine.
type passRing struct {
	mu   sync.Mutex
	ring []Pass
	next int // index of the oldest, once the ring is full
}

// add notes a pass that began at start and ends now.
func (p *passRing) add(plan []work, number uint64, start time.Time) {
	x := Pass{Number: number, Start: start, End: time.Now(), Sequences: len(plan)}
	for _, w := range plan {
		if w.seq.computed < w.seq.prompt {
			x.Prompt += w.n
		} else {
			x.Generated += w.n
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ring) < passesKept {
		p.ring = append(p.ring, x)
		return
	}
	p.ring[p.next] = x
	p.next = (p.next + 1) % passesKept
}

// Passes returns the passes after the one numbered after that are remembered,
// oldest first. Between them the device was idle.
func (e *Engine) Passes(after uint64) []Pass {
	p := &e.recent
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []Pass
	for i := range p.ring {
		if x := p.ring[(p.next+i)%len(p.ring)]; x.Number > after {
			out = append(out, x)
		}
	}
	return out
}

// Tree returns up to most nodes of the cache's trees, those nearest to the roots
// first, each with up to first of its tokens, and how many nodes there are.
func (e *Engine) Tree(most, first int) (nodes []cache.NodeView, all int) {
	e.do(func() { nodes, all = e.sched.cache.View(most, first) })
	return nodes, all
}
