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

	section uint32 // number of the current one
	lanes   []lane
	ahead   []Ahead // of each thread, or nil
	fetch   fetcher // of the caller's thread
	_       [64]byte
	left    atomic.Int64 // blocks not yet finished
	_       [120]byte

	broken atomic.Pointer[panicked] // by the first task of the section that panicked

	sleeping atomic.Int32
	closed   atomic.Bool
	mu       sync.Mutex
	wake     *sync.Cond
	done     sync.WaitGroup
}

// A lane holds the blocks of one thread that are not yet taken: their section's
// number in the upper half, then the end and the start of the range. The thread
// takes blocks from the start, so that it reads weights in the order in which they
// lie; threads that have none left take them from the end. Either is one
// compare-and-swap, so a thread that was late for a section cannot take a block
// of it.
//
// All that a thread must know of a section lies in its lane, so that it waits for
// one cache line only.
type lane struct {
	state atomic.Uint64

	// Of the section, to be read by who has taken a block of it.
	fn    func(worker, task int)
	items int
	block int // items that are taken at once

	ahead atomic.Pointer[Ahead] // what the thread reads after it

	_ [88]byte
}

// panicked is what a task panicked with.
type panicked struct{ value any }

// maxBlocks is the number of blocks that a lane can count.
const maxBlocks = 1<<16 - 1

// spinFor is how long an idle thread stays awake: longer than what lies between two
// steps of a model. To wake a thread whose processor sleeps takes a virtual machine
// so long that decoding was 10 to 15% slower at a tenth of this.
const spinFor = 500 * time.Microsecond

// NewPool starts a pool of the given number of threads, the caller's included;
// 0 means one per core.
func NewPool(threads int) *Pool {
	if threads <= 0 {
		threads = runtime.NumCPU()
	}
	p := &Pool{threads: threads, lanes: make([]lane, threads)}
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
// the thread. Only one Run may be under way. A panic in a call is Run's own, once the
// other calls have returned.
func (p *Pool) Run(n int, fn func(worker, task int)) { p.RunBlocks(n, 1, fn) }

// RunBlocks is Run for small tasks: a thread takes block neighbours at once. Give
// it tasks that write to the same cache lines.
func (p *Pool) RunBlocks(n, block int, fn func(worker, task int)) {
	block = max(block, (n+maxBlocks-1)/maxBlocks)
	blocks := (n + block - 1) / block
	if p.threads == 1 || blocks <= 1 {
		for i := range n {
			fn(0, i)
		}
		return
	}
	p.left.Store(int64(blocks))
	p.section++
	for w := range p.lanes {
		from, to := w*blocks/p.threads, (w+1)*blocks/p.threads
		l := &p.lanes[w]
		l.fn, l.items, l.block = fn, n, block
		l.ahead.Store(p.aheadOf(w))
		l.state.Store(uint64(p.section)<<32 | uint64(to)<<16 | uint64(from))
	}
	if p.sleeping.Load() > 0 {
		p.mu.Lock()
		p.wake.Broadcast()
		p.mu.Unlock()
	}
	p.work(0)
	for p.left.Load() > 0 {
		if !p.fetch.step(p.aheadOf(0)) {
			pause()
		}
	}
	if p.broken.Load() != nil {
		panic(p.broken.Swap(nil).value)
	}
}

// work takes blocks until none is left, its own first.
func (p *Pool) work(worker int) {
	for !p.tryWork(worker) {
	}
}

// tryWork is work up to a panic; it reports false after one.
func (p *Pool) tryWork(worker int) (done bool) {
	n := 0
	defer func() {
		if !done {
			p.broken.CompareAndSwap(nil, &panicked{recover()})
		}
		if n > 0 {
			p.left.Add(int64(-n))
		}
	}()
	for w := range p.lanes {
		l := &p.lanes[(worker+w)%len(p.lanes)]
		for {
			b, ok := l.take(w == 0)
			if !ok {
				break
			}
			// The block is ours, so the section cannot end and the rest of l is stable.
			n++
			from := b * l.block
			for i := from; i < min(l.items, from+l.block); i++ {
				l.fn(worker, i)
			}
		}
	}
	return true
}

// take takes the first or the last block.
func (l *lane) take(first bool) (block int, ok bool) {
	for {
		s := l.state.Load()
		from, to := s&maxBlocks, s>>16&maxBlocks
		if from >= to {
			return 0, false
		}
		next, b := s+1, from
		if !first {
			next, b = s-1<<16, to-1
		}
		if l.state.CompareAndSwap(s, next) {
			return int(b), true
		}
	}
}

func (p *Pool) worker(w int) {
	defer p.done.Done()
	l, seen := &p.lanes[w], uint32(0)
	var fetch fetcher
	for {
		if !p.spin(l, seen, &fetch) {
			p.sleep(l, seen)
		}
		if p.closed.Load() {
			return
		}
		seen = l.section()
		p.work(w)
	}
}

func (l *lane) section() uint32 { return uint32(l.state.Load() >> 32) }

// spin waits for a section after the one seen and tells whether there is one.
func (p *Pool) spin(l *lane, seen uint32, fetch *fetcher) bool {
	var start time.Time
	for i := 1; ; i++ {
		if l.section() != seen || p.closed.Load() {
			return true
		}
		if fetch.step(l.ahead.Load()) {
			continue
		}
		pause()
		if i%64 == 0 {
			if start.IsZero() {
				start = time.Now()
			} else if time.Since(start) > spinFor {
				return false
			}
		}
	}
}

func (p *Pool) sleep(l *lane, seen uint32) {
	p.mu.Lock()
	p.sleeping.Add(1)
	for l.section() == seen && !p.closed.Load() {
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

// pause passes some hundred cycles. It is a call to a Go function that is not
// inlined, whose prologue is where the scheduler can stop the thread: a loop
// inside assembly would hold up garbage collection for as long as it spins.
//
//go:noinline
func pause() {
	for range 2 {
		spinHint()
	}
}
