package model

import (
	"maps"
	"math/rand/v2"
	"testing"
)

// TestSplit: tasks that are cut cover what they covered before, are cut where page
// groups end only, and none that can still be cut is more than its part of the work. A
// trunk that many branches share is cut, where chains end if that is enough, though there
// are as many tasks as threads want without that.
func TestSplit(t *testing.T) {
	cover := func(tasks []attnTask) map[[2]int]int {
		m := map[[2]int]int{}
		for _, a := range tasks {
			for i := a.first; i < a.first+a.n; i++ {
				for s := a.s0; s < a.s1; s++ {
					m[[2]int{i, s}]++
				}
			}
		}
		return m
	}
	check := func(tasks []attnTask, parts int) []attnTask {
		t.Helper()
		p := plan{tasks: append([]attnTask(nil), tasks...)}
		p.split(parts)
		if !maps.Equal(cover(p.tasks), cover(tasks)) {
			t.Fatalf("%d parts of %v: %v", parts, tasks, p.tasks)
		}
		ends, whole := map[int]bool{}, 0
		for i := range tasks {
			ends[tasks[i].s0], ends[tasks[i].s1] = true, true
			whole += tasks[i].work()
		}
		for i := range p.tasks {
			a := &p.tasks[i]
			if a.s0%groupSpans != 0 && !ends[a.s0] || a.s1%groupSpans != 0 && !ends[a.s1] {
				t.Errorf("%d parts of %v: %v is cut within a group", parts, tasks, *a)
			}
			if end := (a.s0/groupSpans + 1) * groupSpans; end < a.s1 && a.work()*parts > whole {
				t.Errorf("%d parts of %v: %v is more than a part", parts, tasks, *a)
			}
		}
		return p.tasks
	}
	trunk := []attnTask{{first: 0, n: 8, s0: 0, s1: 24}}
	for i := range 8 {
		trunk = append(trunk, attnTask{first: i, n: 1, s0: 24, s1: 25})
	}
	if got := check(trunk, 6); len(got) != len(trunk)+5 {
		t.Errorf("a trunk of 24 spans and its branches are %d tasks: %v", len(got), got)
	}
	check(nil, 6)
	r := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		var tasks []attnTask
		for range 1 + r.IntN(6) {
			s0 := r.IntN(20)
			tasks = append(tasks, attnTask{first: r.IntN(8), n: 1 + r.IntN(32), s0: s0, s1: s0 + 1 + r.IntN(40)})
		}
		check(tasks, 1+r.IntN(12))
	}
}
