package compute

import (
	"slices"
	"sync/atomic"
	"testing"
)

// TestRunBlocks: each task is done once, and the neighbours of a block by one thread.
func TestRunBlocks(t *testing.T) {
	p := NewPool(3)
	defer p.Close()
	for _, n := range []int{0, 1, 7, 8, 9, 100} {
		for _, block := range []int{1, 3, 8, 200} {
			by := make([]atomic.Int32, n)
			p.RunBlocks(n, block, func(worker, i int) { by[i].Add(int32(10 + worker)) })
			for i := range by {
				v := by[i].Load()
				if v < 10 || v > 12 {
					t.Fatalf("%d tasks in blocks of %d: task %d gives %d", n, block, i, v)
				}
				if first := i - i%block; v != by[first].Load() {
					t.Errorf("%d tasks in blocks of %d: %d and %d are done by different threads", n, block, first, i)
				}
			}
		}
	}
	var order []int
	one := NewPool(1)
	defer one.Close()
	one.RunBlocks(4, 2, func(_, i int) { order = append(order, i) })
	if !slices.Equal(order, []int{0, 1, 2, 3}) {
		t.Error(order)
	}
}

// TestSections: sections follow each other without a task lost or done twice, though
// threads are late for some, and however many tasks there are.
func TestSections(t *testing.T) {
	p := NewPool(4)
	defer p.Close()
	counts := make([]atomic.Int32, 3*maxBlocks)
	check := func(n int) {
		t.Helper()
		p.Run(n, func(_, i int) { counts[i].Add(1) })
		for i := range n {
			if counts[i].Swap(0) != 1 {
				t.Fatalf("section of %d tasks: task %d is not done once", n, i)
			}
		}
	}
	for i := range 3000 {
		check(1 + i%9)
	}
	for _, n := range []int{maxBlocks - 1, maxBlocks, maxBlocks + 1, len(counts)} {
		check(n)
	}
}

// TestSteal: a thread that is held up in one task does not hold up those behind it;
// if it did, the test would not end.
func TestSteal(t *testing.T) {
	p := NewPool(2)
	defer p.Close()
	var others atomic.Int32
	rest := make(chan struct{})
	p.Run(10, func(_, i int) {
		if i == 0 {
			<-rest // first of the first lane; ends when all others are done
		} else if others.Add(1) == 9 {
			close(rest)
		}
	})
}

// TestPanicOfATask: it is that of Run, in whichever thread it happens, and the pool goes
// on.
func TestPanicOfATask(t *testing.T) {
	for _, threads := range []int{1, 3} {
		p := NewPool(threads)
		for bad := range 40 {
			var calls atomic.Int32
			func() {
				defer func() {
					if r := recover(); r != bad {
						t.Errorf("%d threads: panic %v, want %d", threads, r, bad)
					}
				}()
				p.Run(40, func(_, i int) {
					calls.Add(1)
					if i == bad {
						panic(i)
					}
				})
			}()
			if n := calls.Load(); threads > 1 && n != 40 {
				t.Errorf("%d of 40 tasks were done", n)
			}
			calls.Store(0)
			p.Run(100, func(_, i int) { calls.Add(1) })
			if n := calls.Load(); n != 100 {
				t.Errorf("after a panic %d of 100 tasks are done", n)
			}
		}
		p.Close()
	}
}
