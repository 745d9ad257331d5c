package model

import "testing"

// TestShares: the tasks of a section cover its panels in order, each once, whatever
// the threads.
func TestShares(t *testing.T) {
	var s shares
	for threads := 1; threads <= 9; threads++ {
		for _, panels := range []int{0, 1, 2, 7, 8, 15, 16, 17, 36, 60, 192, 3072, 16384} {
			s.divide(panels, threads)
			next := 0
			for i := range s.tasks() {
				p0, p1 := s.task(i)
				if p0 != next || p1 < p0 {
					t.Fatalf("%d panels, %d threads: task %d is %d to %d, want it to start at %d", panels, threads, i, p0, p1, next)
				}
				if left := p1 - p0; i%s.per == s.per-1 && s.per < maxShares && left >= 2*leastShare+1 {
					t.Errorf("%d panels, %d threads: the last task of a part has %d panels", panels, threads, left)
				}
				next = p1
			}
			if next != panels {
				t.Errorf("%d panels, %d threads: the tasks cover %d", panels, threads, next)
			}
		}
	}
}
