package compute

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// A Pool is a set of threads that work through sections together. A section is
// a number of independent tasks; Run returns when all are done. Within a step
// of a model hundreds of sections follow each other within microseconds, so
// idle threads spin for a while before they sleep.
//
// Leave a processor to the rest of the program: with GOMAXPROCS at the number
// of threads, everything else waits for the scheduler's timer.
type Pool struct {
	threads int

	// ticket is the section's number in the upper half and the number of blocks
	// not yet taken in the lower one. Taking a block is one compare-and-swap, so
	// a thread that was late for a section cannot take one of it.
	ticket atomic.Uint64
	_      [56]byte
	left   atomic.Int64 // blocks not yet finished
	_      [56]byte
	fn     func(worker, task int) // of the current section
	items  int                    // of the current section
	block  int                    // items that are taken at once

	sleeping atomic.Int32
	closed   atomic.Bool
	mu       sync.Mutex
	wake     *sync.Cond
	done     sync.WaitGroup
}

// spinFor is how long an idle thread stays awake.
const spinFor = 50 * time.Microsecond

// NewPool starts a pool of the given number of threads, the caller's included;
// 0 means one per core.
func NewPool(threads int) *Pool {
	if threads <= 0 {
		threads = runtime.NumCPU()
	}
	p := &Pool{threads: threads}
	p.wake = sync.NewCond(&p.mu)
	for w := 1; w < threads; w++ {
		p.done.Add(1)
		go p.worker(w)
	}
	return p
}

// Threads returns the number of threads.
func (p *Pool) Threads() int { return p.threads }

// Run calls fn(worker, task) for each task in [0, n), on all threads at once,
// and returns when the last call has returned. worker, in [0, Threads), names
// the thread. Only one Run may be under way.
func (p *Pool) Run(n int, fn func(worker, task int)) { p.RunBlocks(n, 1, fn) }

// RunBlocks is Run for small tasks: a thread takes block neighbours at once. Give
// it tasks that write to the same cache lines.
func (p *Pool) RunBlocks(n, block int, fn func(worker, task int)) {
	blocks := (n + block - 1) / block
	if p.threads == 1 || blocks <= 1 {
		for i := range n {
			fn(0, i)
		}
		return
	}
	p.fn, p.items, p.block = fn, n, block
	p.left.Store(int64(blocks))
	section := p.ticket.Load()>>32 + 1
	p.ticket.Store(section<<32 | uint64(blocks))
	if p.sleeping.Load() > 0 {
		p.mu.Lock()
		p.wake.Broadcast()
		p.mu.Unlock()
	}
	p.work(0)
	for p.left.Load() > 0 {
		pause()
	}
}

// work takes tasks until none is left.
func (p *Pool) work(worker int) {
	for {
		t := p.ticket.Load()
		n := uint32(t)
		if n == 0 {
			return
		}
		if p.ticket.CompareAndSwap(t, t-1) {
			// The block is ours, so the section cannot end and fn is stable.
			from := int(n-1) * p.block
			for i := from; i < min(p.items, from+p.block); i++ {
				p.fn(worker, i)
			}
			p.left.Add(-1)
		}
	}
}

func (p *Pool) worker(w int) {
	defer p.done.Done()
	for {
		p.work(w)
		if !p.spin() {
			p.sleep()
		}
		if p.closed.Load() {
			return
		}
	}
}

// spin waits for a task and tells whether there is one.
func (p *Pool) spin() bool {
	var start time.Time
	for i := 0; ; i++ {
		if uint32(p.ticket.Load()) != 0 || p.closed.Load() {
			return true
		}
		pause()
		switch {
		case i == 16:
			start = time.Now()
		case i > 16 && i%16 == 0 && time.Since(start) > spinFor:
			return false
		}
	}
}

func (p *Pool) sleep() {
	p.mu.Lock()
	p.sleeping.Add(1)
	for uint32(p.ticket.Load()) == 0 && !p.closed.Load() {
		p.wake.Wait()
	}
	p.sleeping.Add(-1)
	p.mu.Unlock()
}

// Close ends the threads. No Run may be under way or follow.
func (p *Pool) Close() {
	p.closed.Store(true)
	p.mu.Lock()
	p.wake.Broadcast()
	p.mu.Unlock()
	p.done.Wait()
}

// pause passes a few dozen cycles. It is a call to a Go function that is not
// inlined, whose prologue is where the scheduler can stop the thread: a loop
// inside assembly would hold up garbage collection for as long as it spins.
//
//go:noinline
func pause() {
	for range 8 {
		spinHint()
	}
}
