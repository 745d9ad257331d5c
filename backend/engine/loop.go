package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// loop is the one goroutine that computes. Each round takes in what arrived,
// plans a step, runs the model on it, and hands the logits to the tasks, which
// draw tokens and send text.
func (e *Engine) loop() {
	defer close(e.done)
	for e.receive() {
		e.round()
		e.publish()
	}
	e.await()
	all := slices.Concat(e.sched.running, e.sched.waiting)
	for _, s := range all {
		e.guard(func() { e.sched.remove(s) })
		e.finish(s, backend.ErrClosed)
	}
	e.mu.Lock()
	inbox, jobs := e.inbox, e.jobs
	e.inbox, e.jobs = nil, nil
	e.stats = e.snapshot()
	e.mu.Unlock()
	for _, s := range inbox {
		e.finish(s, backend.ErrClosed)
	}
	for _, job := range jobs {
		e.guard(job)
	}
}

// receive takes in new sequences and runs jobs. It waits while there is nothing
// to do and reports false when the engine is to end.
func (e *Engine) receive() bool {
	for {
		if e.cfg.Before != nil {
			e.cfg.Before()
		}
		e.mu.Lock()
		closed, inbox, jobs := e.closed, e.inbox, e.jobs
		if !closed {
			e.inbox, e.jobs = nil, nil
		}
		e.mu.Unlock()
		if closed {
			return false
		}
		// Jobs go first: one may say what a branch does until its request, which
		// follows in the inbox.
		for _, job := range jobs {
			e.guard(job)
		}
		for _, s := range inbox {
			e.takeIn(s)
		}
		if len(jobs) > 0 {
			e.publish()
		}
		if e.wait != nil || len(e.sched.running)+len(e.sched.waiting) > 0 {
			return true
		}
		e.idle()
	}
}

// takeIn lets a new sequence wait.
func (e *Engine) takeIn(s *sequence) {
	e.current = s
	e.guard(func() {
		if s.hints.Run != "" {
			e.sched.outlook.back(e.sched.cache, s.owner())
		}
		e.sched.enqueue(s)
	})
	e.current = nil
}

// idle waits until something arrives. Meanwhile it brings back what absent branches are
// expected to read soon.
func (e *Engine) idle() {
	var due <-chan time.Time
	var wait time.Duration
	more := false
	e.guard(func() {
		var fetched int
		if fetched, wait, more = e.sched.fetchIdle(); fetched > 0 {
			e.publish()
		}
	})
	if more {
		t := time.NewTimer(wait)
		defer t.Stop()
		due = t.C
	}
	select {
	case <-e.wake:
	case <-due:
	}
}

// round runs one step.
func (e *Engine) round() {
	defer func() {
		if r := recover(); r != nil {
			e.rebuild(r)
		}
	}()
	if e.device != nil {
		e.roundAhead()
		return
	}
	e.reap()
	plan := e.plan()
	if len(plan) == 0 {
		if len(e.sched.running)+len(e.sched.waiting) > 0 {
			e.unstick()
		}
		e.check()
		return
	}
	e.step(plan)
	e.check()
}

// plan makes the plan of a step.
func (e *Engine) plan() []work {
	plan := e.sched.next()
	if e.cfg.Planning != nil {
		e.cfg.Planning()
	}
	if len(e.sched.failed) > 0 {
		e.endFailed()
		plan = e.sched.plan
	}
	return e.sched.isolate(plan)
}

// reap ends the sequences whose callers have gone.
func (e *Engine) reap() {
	for _, list := range [...][]*sequence{e.sched.running, e.sched.waiting} {
		if !slices.ContainsFunc(list, func(s *sequence) bool { return s.gone() != nil }) {
			continue
		}
		for _, s := range slices.Clone(list) {
			if err := s.gone(); err != nil {
				e.sched.remove(s)
				e.finish(s, err)
			}
		}
	}
}

// endFailed ends the sequences that the scheduler could not serve.
func (e *Engine) endFailed() {
	failed := e.sched.failed
	e.sched.failed = nil
	for _, f := range failed {
		e.sched.remove(f.seq)
		e.finish(f.seq, f.err)
	}
}

// unstick is called when there are sequences and none of them can go on, which
// the scheduler rules out unless one of them was just preempted or ended. If it
// happens again and again the first one is given up.
func (e *Engine) unstick() {
	if e.sched.idle++; e.sched.idle < 3 {
		return
	}
	e.sched.idle = 0
	s := slices.Concat(e.sched.running, e.sched.waiting)[0]
	e.cfg.Log.Error("engine: no sequence can go on", "request", s.id)
	e.sched.remove(s)
	e.finish(s, fmt.Errorf("%w: the scheduler found no way to go on", backend.ErrUnavailable))
}

// step runs the model on a plan and delivers what it computed.
func (e *Engine) step(plan []work) {
	e.take(plan)
	e.branchOut(plan)
	e.batchOf(plan)
	e.addBranches()
	start := time.Now()
	e.computing = true
	err := e.kv.Forward(&e.batch, e.buffers[:e.batch.Outputs()])
	e.computing = false
	e.deliver(err, start)
	e.follow(err == nil)
}

// take notes the works of a step, which outlast the scheduler's plan.
func (e *Engine) take(plan []work) {
	e.sched.idle = 0
	e.steps = append(e.steps[:0], plan...)
}

// batchOf fills in the rows of a plan and makes room for their logits.
func (e *Engine) batchOf(plan []work) {
	rows := e.batch.Rows[:0]
	outputs := 0
	for _, w := range plan {
		s := w.seq
		rows = slices.Grow(rows, 1)[:len(rows)+1]
		row := &rows[len(rows)-1]
		row.Tokens = s.tokens[s.computed : s.computed+w.n]
		row.Start = s.computed
		row.Pages = s.pages
		row.Outputs = row.Outputs[:0]
		for i := range w.n {
			if s.task.wants(s, s.computed+i) {
				row.Outputs = append(row.Outputs, i)
				outputs++
			}
		}
	}
	e.batch.Rows = rows
	for len(e.buffers) < outputs {
		e.buffers = append(e.buffers, make([]float32, e.cfg.Model.VocabSize()))
	}
}

// deliver ends a step, which failed if err is set: the sequences of e.steps get
// what was computed of them, but for those that left the step meanwhile.
func (e *Engine) deliver(err error, start time.Time) {
	if err != nil {
		e.spoiled(fmt.Errorf("%w: forward pass: %w", backend.ErrUnavailable, err))
		return
	}
	e.pass++
	e.recent.add(e.steps, e.pass, start)
	e.tell(start)
	// All of it is computed before any task sees a logit: a task may end its
	// sequence, or start others.
	for i, w := range e.steps {
		if e.left(w.seq) {
			e.steps[i].n = 0
			continue
		}
		w.seq.land()
		w.seq.usage.pass(e.id, e.pass, w.n)
		e.totals.Computed += uint64(w.n)
		e.sched.progress(w.seq, w.n)
		w.seq.alone = w.seq.alone && w.seq.computed <= w.seq.fault
		if g, ok := w.seq.task.(*generation); ok && g.listened && g.req.Progress && w.seq.prefilling() {
			g.out.send([]backend.Delta{{PromptDone: w.seq.computed, PromptTokens: w.seq.prompt}})
		}
	}
	used := 0
	for i, w := range e.steps {
		row := &e.batch.Rows[i]
		for _, o := range row.Outputs {
			logits := e.buffers[used]
			used++
			if w.seq.ended || w.n == 0 {
				continue
			}
			e.current = w.seq
			w.seq.task.logits(e, w.seq, row.Start+o, logits)
			e.current = nil
		}
	}
}

// tell says to those who follow requests of a plan that its pass is done.
func (e *Engine) tell(start time.Time) {
	plan := e.steps
	if !slices.ContainsFunc(plan, func(w work) bool { return w.seq.trace != nil }) {
		return
	}
	st := backend.Step{Engine: e.id, Pass: e.pass, Start: start, End: time.Now(), Sequences: len(plan)}
	for _, w := range plan {
		st.Batch += w.n
	}
	for _, w := range plan {
		if t := w.seq.trace; t != nil && t.Step != nil && !e.left(w.seq) {
			st.Request, st.Tokens, st.Prompt = w.seq.id, w.n, w.seq.computed < w.seq.prompt
			e.current = w.seq
			t.Step(st)
			e.current = nil
		}
	}
}

// finish ends a sequence that is out of the scheduler already.
func (e *Engine) finish(s *sequence, err error) {
	if s.ended {
		return
	}
	s.ended = true
	if !s.child {
		e.mu.Lock()
		e.waiting--
		e.mu.Unlock()
	}
	if !s.child {
		e.totals.Cached += uint64(s.usage.cached)
	}
	if g, ok := s.task.(*generation); ok {
		e.totals.Forced += uint64(g.forced)
		e.totals.Sampled += uint64(g.sampled)
	}
	if err != nil {
		e.totals.Failed++
	} else if !s.child {
		e.totals.Finished++
	}
	if !s.child {
		// Who has the result must find it in the counters.
		e.publish()
	}
	s.task.finish(e, s, err)
}

// check verifies the pages: when asked for after every step, and always, in
// brief, when the engine goes idle.
func (e *Engine) check() {
	if e.cfg.Check {
		if err := e.sched.check(); err != nil {
			panic(err)
		}
	}
	if len(e.sched.running) > 0 {
		return
	}
	if st := e.sched.cache.Stats(); st.Held != 0 || st.Handles != 0 {
		panic(fmt.Sprintf("%d pages and %d handles are held by nobody", st.Held, st.Handles))
	}
}
