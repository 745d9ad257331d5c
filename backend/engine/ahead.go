package engine

import (
	"time"

	"github.com/coppice-run/coppice/cache"
)

// A device that works by itself is given one step while the next is planned:
//
//	device   [ step 1 ------------ ][ step 2 ------------ ][ step 3
//	engine     plan 2 .. wait ..... draw, fit, launch 2 | plan 3 ..
//
// The plan of step 2 does not know what step 1 will bring. It takes for certain
// that what is in flight will be computed, and that a generation whose last token
// is in flight goes on with one more. When the tokens are there the plan is made
// to fit: what has ended leaves it, what has more to compute (forced text, drafts)
// gets it if there are pages. Masks are made meanwhile as well. So the device
// waits only while tokens are drawn.
//
// Pages that are taken away from a sequence in flight may be given to another at
// once: the device does one step after the other, and copies wait until the step
// is done. What was computed for that sequence then is of no use.

// pageCopy is a call of KV.CopyPage.
type pageCopy struct {
	dst, src int32
	tokens   int
}

func (e *Engine) copyLater(dst, src int32, tokens int) {
	e.copies = append(e.copies, pageCopy{dst, src, tokens})
}

// roundAhead is round for a device that works by itself.
func (e *Engine) roundAhead() {
	e.reap()
	plan := e.plan()
	if e.wait != nil {
		for _, w := range e.steps {
			if g, ok := w.seq.task.(*generation); ok && !e.left(w.seq) {
				g.prepare()
			}
		}
		wait := e.wait
		e.wait = nil
		e.computing = true
		err := wait()
		e.computing = false
		e.deliver(err, e.start)
		plan = e.sched.isolate(e.sched.settle())
		if len(plan) == 0 && len(e.sched.running)+len(e.sched.waiting) > 0 {
			plan = e.plan()
		}
	}
	switch {
	case len(plan) > 0:
		e.launch(plan)
	case len(e.sched.running)+len(e.sched.waiting) > 0:
		e.unstick()
	}
	e.check()
}

// launch gives a plan to the device.
func (e *Engine) launch(plan []work) {
	e.take(plan)
	e.batchOf(plan)
	for _, c := range e.copies {
		e.kv.CopyPage(c.dst, c.src, c.tokens)
	}
	e.copies = e.copies[:0]
	e.launched++
	for i, w := range plan {
		q := w.seq
		// What the device reads must not change under it.
		row := &e.batch.Rows[i]
		if i == len(e.tables) {
			e.tables = append(e.tables, nil)
		}
		e.tables[i] = append(e.tables[i][:0], row.Pages[:pagesFor(q.computed+w.n)]...)
		row.Pages = e.tables[i]
		q.flight, q.step = w.n, e.launched
		if g, ok := q.task.(*generation); ok && !g.finished && q.planned() == len(q.tokens) && g.generated()+1 < g.limit {
			q.expect = 1
		}
	}
	e.start = time.Now()
	e.computing = true
	e.wait = e.device.Launch(&e.batch, e.buffers[:e.batch.Outputs()])
	e.computing = false
}

// left reports whether a sequence of e.steps has left the step since it was
// launched.
func (e *Engine) left(q *sequence) bool { return e.device != nil && q.step != e.launched }

// await waits for the step in flight, if there is one. What it computed is dropped.
func (e *Engine) await() {
	if e.wait == nil {
		return
	}
	wait := e.wait
	e.wait = nil
	defer func() { _ = recover() }() // as little as its error
	_ = wait()                       // those who wait for it begin again, or end with an error
}

// settle makes the plan fit what the step before it brought. It preempts nobody.
func (s *scheduler) settle() []work {
	budget := s.budget
	for _, w := range s.plan {
		budget -= w.n
	}
	s.outputs = 0
	kept := s.plan[:0]
	for _, w := range s.plan {
		q := w.seq
		if q.h == nil {
			continue
		}
		n := 0
		for most := min(q.pending(), w.n+max(0, budget)); n < most; n++ {
			if at := q.computed + n; at == len(q.pages)*cache.PageTokens {
				var ok bool
				if q.pages, ok = s.cache.Alloc(q.pages, 1); !ok {
					break
				}
			}
			if q.wants(q.computed + n) {
				if s.outputs == s.maxOutputs {
					break
				}
				s.outputs++
			}
		}
		if budget -= n - w.n; n > 0 {
			kept = append(kept, work{q, n})
		}
	}
	s.plan = kept
	return kept
}
