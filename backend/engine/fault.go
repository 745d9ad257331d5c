package engine

import (
	"fmt"
	"slices"

	"github.com/coppice-run/coppice/backend"
)

// What goes wrong in the loop is of one of four kinds, and takes with it no more than
// it must:
//
//	a pass fails, or panics       its sequences are computed again, each in a pass of its
//	                              own without guesses; whose own pass fails too ends
//	                              with the error
//	what is done for one request  that one ends with an error
//	panics
//	all else panics, a check of   nobody ends: all begin again from their tokens, but for
//	the pages among it            those that did so maxRestarts times
//	a second tier fails           its pages are lost, see safeTier
//
// A panic leaves pages and tree in a state that nobody knows, so the cache is thrown
// away.

// maxRestarts bounds how often a sequence begins again on account of panics that are
// nobody's in particular.
const maxRestarts = 8

// guard runs f; a panic in it is dealt with like one in a step.
func (e *Engine) guard(f func()) {
	defer func() {
		if r := recover(); r != nil {
			e.rebuild(r)
		}
	}()
	f()
}

// spoiled deals with a pass that failed.
func (e *Engine) spoiled(err error) {
	for _, w := range e.steps {
		q := w.seq
		if q.ended || e.left(q) {
			continue
		}
		if e.itsOwn(q) {
			e.sched.remove(q)
			e.finish(q, err)
			continue
		}
		q.land()
		q.suspect()
		e.sched.unguess(q)
	}
}

// itsOwn reports whether the pass under way computes what q needs for certain, and
// nothing else: no other sequence, no guess and no row ahead.
func (e *Engine) itsOwn(q *sequence) bool {
	g, ok := q.task.(*generation)
	return len(e.steps) == 1 && (q.alone || !ok || g.drafts.n == 0 && len(e.branches) == 0)
}

// suspect lets q be alone until it is past the place where a pass with it failed. A
// pass before that, as where it begins again, says nothing of the fault: two of which
// one fails would go on together, and fail, for ever.
func (q *sequence) suspect() { q.alone, q.fault = true, max(q.fault, q.computed) }

// isolate leaves one sequence in a plan in which one is to be alone.
func (s *scheduler) isolate(plan []work) []work {
	i := slices.IndexFunc(plan, func(w work) bool { return w.seq.alone })
	if i < 0 || len(plan) == 1 {
		return plan
	}
	s.plan = append(plan[:0], plan[i])
	return s.plan
}

// rebuild is the answer to a panic: the cache is thrown away, and who has no fault in
// it begins again.
func (e *Engine) rebuild(reason any) {
	e.cfg.Log.Error("engine: panic in a step", "panic", reason, "stack", stack())
	e.totals.Rebuilt++
	var err error
	if cause, ok := reason.(error); ok {
		err = fmt.Errorf("%w: internal error: %w", backend.ErrUnavailable, cause)
	} else {
		err = fmt.Errorf("%w: internal error: %v", backend.ErrUnavailable, reason)
	}
	culprit, computing := e.current, e.computing
	e.current, e.computing = nil, false
	e.await()
	old := e.sched
	all := slices.Concat(old.running, old.waiting)
	e.totals.Preempted += uint64(old.preempt)
	tier := old.cache.TierStats()
	e.totals.TierSaved += tier.Saved
	e.totals.TierLoaded += tier.Loaded
	e.totals.TierFetched += tier.Fetched
	e.totals.TierFailed += tier.Failed
	e.sched = e.newScheduler()
	e.sched.step = old.step
	e.sched.outlook.habits, e.sched.outlook.all = old.outlook.habits, old.outlook.all
	if computing {
		for _, w := range e.steps {
			if !w.seq.ended && e.itsOwn(w.seq) {
				culprit = w.seq
			}
			w.seq.suspect()
		}
	}
	var failed []*sequence
	for _, q := range all {
		q.reached = max(q.reached, q.computed)
		q.h, q.pages, q.owned, q.computed, q.detached = nil, nil, 0, 0, false
		q.land()
		if culprit == nil && !computing {
			q.restarts++
		}
		if q == culprit || q.restarts > maxRestarts {
			failed = append(failed, q)
		} else {
			e.sched.enqueue(q)
		}
	}
	for _, q := range failed {
		e.finish(q, err)
	}
	if culprit == nil || slices.Contains(all, culprit) {
		return
	}
	if culprit.ended { // just now, and did not come to tell
		culprit.task.finish(e, culprit, err)
	} else {
		e.finish(culprit, err)
	}
}
