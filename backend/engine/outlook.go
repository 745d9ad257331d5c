package engine

import (
	"container/heap"
	"math"
	"slices"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/cache"
)

// outlook knows which branches of runs are away, what they do meanwhile, and from
// earlier times how long that takes. It keeps the claims of the cache: what an
// absent branch will read again, and when.
//
//	request ends --gone--> away --back--> its next request has arrived
//	                       |  ^
//	               foresee +--+  it calls a function, sleeps, waits for a person
//
// A branch that is not back when it was expected is given more time, as much as
// those took that were away as long as it is now, or as much again as it has been
// away. When that is more than horizon, the claim is dropped: what it has computed
// is cache like that of others.
type outlook struct {
	clock func() time.Duration
	away  map[string]map[string]*absence // by run and branch
	due   dueHeap
	// How long things took, by their names, and of all that have one together.
	habits map[string]*habit
	all    habit
}

const (
	horizon   = time.Minute
	maxHabits = 1024
	// firstGuess is how long something takes of which nothing is known.
	firstGuess = time.Second
	// atOnce is what a program takes between two requests.
	atOnce = 10 * time.Millisecond
)

// absence is the time between two requests of a branch.
type absence struct {
	owner cache.Owner
	doing string
	since time.Duration
	due   time.Duration // when to look at it again
	told  bool          // how long it takes was said
	index int           // in the heap
}

func newOutlook(clock func() time.Duration) *outlook {
	return &outlook{clock: clock, away: map[string]map[string]*absence{}, habits: map[string]*habit{}}
}

// owner is whose claim the prompt of q is.
func (q *sequence) owner() cache.Owner { return cache.Owner{Run: q.hints.Run, Branch: q.hints.Branch} }

// gone notes that a request of the owner has ended and the next will come soon,
// unless foresee says otherwise.
func (o *outlook) gone(c *cache.Cache, owner cache.Owner) {
	now := o.clock()
	c.Expect(owner, int64(now))
	o.leave(owner, "", now, now+atOnce)
}

// foresee notes what a branch does until its next request.
func (o *outlook) foresee(c *cache.Cache, owner cache.Owner, a backend.Absence, now time.Duration) {
	if a.Gone {
		o.forget(owner)
		c.Unclaim(owner)
		return
	}
	wait := a.For
	look := wait
	if wait <= 0 {
		wait = o.usual(a.Doing)
		if look = wait; o.habits[a.Doing] != nil && o.habits[a.Doing].n > 0 {
			look = soon(wait)
		}
	}
	o.leave(owner, a.Doing, now, now+look).told = a.For > 0
	if wait > horizon {
		c.Unclaim(owner)
	} else {
		c.Expect(owner, int64(now+wait))
	}
}

// back notes that a request of the owner has arrived. Until it runs, nothing is
// needed sooner than its prefix.
func (o *outlook) back(c *cache.Cache, owner cache.Owner) {
	a := o.away[owner.Run][owner.Branch]
	if a == nil {
		return
	}
	now := o.clock()
	o.forget(owner)
	if !a.told {
		o.learn(a.doing, now-a.since)
	}
	c.Expect(owner, int64(now))
}

// tick looks at those of whom there may be news.
func (o *outlook) tick(c *cache.Cache) {
	if len(o.due) == 0 {
		return
	}
	now := o.clock()
	for len(o.due) > 0 && o.due[0].due <= now {
		a := o.due[0]
		due, at := o.later(a, now)
		if at-now > horizon {
			c.Unclaim(a.owner)
			o.forget(a.owner)
			continue
		}
		c.Expect(a.owner, int64(at))
		a.due = due
		heap.Fix(&o.due, 0)
	}
}

// soon is when to look again at who is expected after a time: what is left of it is not
// what it was less what has passed, unless things always take as long.
func soon(wait time.Duration) time.Duration { return max(wait/8, time.Millisecond) }

// later says when to look again at a branch that is late, and when it is expected
// by then.
func (o *outlook) later(a *absence, now time.Duration) (due, at time.Duration) {
	been := now - a.since
	h := o.habit(a.doing)
	if more, ok := h.left(been); ok {
		return now + soon(more), now + more
	}
	// It is longer away than any before. A little more is no news.
	if grace := max(h.longest(), atOnce) * 3 / 2; been < grace {
		return a.since + grace, now
	}
	h.atLeast = max(h.atLeast, been)
	if h.n == 0 {
		been = 2*h.atLeast - been // who began first is expected first
	}
	return now + been, now + been
}

// leave puts an absence in the place of the one that the owner may have.
func (o *outlook) leave(owner cache.Owner, doing string, now, due time.Duration) *absence {
	o.forget(owner)
	a := &absence{owner: owner, doing: doing, since: now, due: due}
	branches := o.away[owner.Run]
	if branches == nil {
		branches = map[string]*absence{}
		o.away[owner.Run] = branches
	}
	branches[owner.Branch] = a
	heap.Push(&o.due, a)
	return a
}

func (o *outlook) forget(owner cache.Owner) {
	branches := o.away[owner.Run]
	a := branches[owner.Branch]
	if a == nil {
		return
	}
	if delete(branches, owner.Branch); len(branches) == 0 {
		delete(o.away, owner.Run)
	}
	heap.Remove(&o.due, a.index)
}

// endRun forgets the branches of a run.
func (o *outlook) endRun(c *cache.Cache, run string) {
	c.Forget(run)
	for branch := range o.away[run] {
		o.forget(cache.Owner{Run: run, Branch: branch})
	}
}

// usual is how long something takes on the average.
func (o *outlook) usual(doing string) time.Duration {
	switch h := o.habits[doing]; {
	case h != nil && h.n > 0:
		return h.mean()
	case h != nil && h.atLeast > 0:
		return 2 * h.atLeast
	case o.all.n > 0:
		return o.all.mean()
	}
	return firstGuess
}

func (o *outlook) learn(doing string, took time.Duration) {
	if doing != "" {
		o.all.add(took)
	}
	o.habit(doing).add(took)
}

// habit returns what is known of something by its name; when there are too many
// names, what is known of all things.
func (o *outlook) habit(doing string) *habit {
	h := o.habits[doing]
	if h == nil {
		if len(o.habits) >= maxHabits {
			return &o.all
		}
		h = &habit{}
		o.habits[doing] = h
	}
	return h
}

// habit holds how long something took the last times.
type habit struct {
	took [64]time.Duration
	n    int // times in all
	// atLeast is how long it takes at least, as far as can be told before the first
	// time is over.
	atLeast time.Duration
}

func (h *habit) add(d time.Duration) {
	h.took[h.n%len(h.took)] = d
	h.n++
}

func (h *habit) known() []time.Duration { return h.took[:min(h.n, len(h.took))] }

func (h *habit) mean() time.Duration {
	var sum time.Duration
	for _, d := range h.known() {
		sum += d
	}
	return sum / time.Duration(len(h.known()))
}

// left is how much longer something takes that took so long already: the time that a
// page must be kept for each one that is read, if it is kept until the k soonest of those
// that took longer were back and is then given up, for the best k. Where all take about
// as long that is what is left of it; where one takes much longer than the others, that
// one says nothing of the others. It is false if none took longer.
func (h *habit) left(been time.Duration) (time.Duration, bool) {
	var rest [len(h.took)]time.Duration
	n := 0
	for _, d := range h.known() {
		if d > been {
			rest[n] = d - been
			n++
		}
	}
	if n == 0 {
		return 0, false
	}
	slices.Sort(rest[:n])
	best := time.Duration(math.MaxInt64)
	var sum time.Duration
	for k, r := range rest[:n] {
		sum += r
		if 4*(k+1) >= n { // of fewer the soonest is a matter of luck
			best = min(best, (sum+time.Duration(n-k-1)*r)/time.Duration(k+1))
		}
	}
	return max(best, time.Millisecond), true
}

func (h *habit) longest() time.Duration {
	var most time.Duration
	for _, d := range h.known() {
		most = max(most, d)
	}
	return most
}

// dueHeap has the absence that is over first at its root.
type dueHeap []*absence

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *dueHeap) Push(x any) {
	a := x.(*absence)
	a.index = len(*h)
	*h = append(*h, a)
}
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	a := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return a
}
