package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// runner drives a machine in this process: one goroutine for each task in
// flight, none for a branch or a task that waits. All else happens in the goroutine that
// called Run.
type runner struct {
	be    backend.Backend
	funcs lang.Funcs
	cfg   *config
	graph *lang.Graph
	m     *Machine

	script lang.Scripted // nil for a graph
	stage  *stage        // of script

	j  *journal // nil without
	em *emitter // nil if nobody listens

	ctx      context.Context // of all tasks
	queue    []Task          // ready, not in flight
	idle     []Task          // the same, of those that only wait
	flight   map[string]*flight
	outcomes chan *flight
	gone     chan struct{} // closed when nobody takes outcomes any more
	used     cost          // of the results so far, restored ones included
	restored int
	started  map[string]bool      // tasks that the journal holds as started
	due      map[string]time.Time // ends of sleeps and waits that the journal holds
	asked    map[string]bool      // what a script waits for that the journal holds
	spent    time.Duration        // for how long earlier processes had the run
	waiting  int                  // of flight, tasks that wait
	leaving  int                  // of flight, tasks that were cancelled and have not ended yet
	desk     desk                 // answers to them
	batch    []Result
	taken    []*flight
	bounded  []*bounded  // programs that are steps, with budgets of their own
	late     chan string // tasks of those whose time is over
}

// flight is a task that runs, and then what came of it.
type flight struct {
	task     Task
	cancel   context.CancelFunc
	result   Result
	unwanted bool // the result is none
	leaving  bool // it was cancelled
}

// check refuses what cannot run before anything is called.
func (r *runner) check(ctx context.Context) error {
	if err := r.graph.Link(r.funcs); err != nil {
		return err
	}
	if err := r.checkWaits(); err != nil {
		return err
	}
	if r.be == nil {
		return nil
	}
	if err := r.checkReliable(ctx); err != nil {
		return err
	}
	return CanRun(ctx, r.graph, r.be)
}

// run drives the machine to its end and reports.
func (r *runner) run(ctx context.Context) (*Report, error) {
	r.flight = map[string]*flight{}
	r.outcomes = make(chan *flight, 16)
	r.gone = make(chan struct{})
	defer close(r.gone)
	defer r.stopClocks()
	ctx, stop := r.inTime(ctx)
	defer stop()
	tasks, cancel := context.WithCancel(ctx)
	defer cancel()
	r.ctx = tasks
	if r.em == nil {
		r.listen()
	}

	err := r.loop(ctx)
	cancel()
	if r.stage != nil {
		over := err
		if over == nil {
			over = errScriptOver(r.m)
		}
		r.stage.close(over)
	}
	late := r.await()
	if f, ok := r.be.(backend.Foreseer); ok {
		f.EndRun(r.cfg.run)
	}
	if err != nil && late != nil {
		err = fmt.Errorf("%w (%w)", err, late)
	}
	if err == nil {
		err = r.m.Err()
	}
	report := r.m.Report()
	report.Restored = r.restored
	if r.cfg.passes != nil {
		*r.cfg.passes = r.used.spans
	}
	if r.j != nil {
		if jerr := r.j.end(err); err == nil {
			err = jerr
		}
	}
	if err != nil {
		r.em.emit(Event{Kind: RunFailed, Error: err.Error(), Usage: &report.Usage})
	} else {
		r.em.emit(Event{Kind: RunFinished, Value: report.Value, Usage: &report.Usage})
	}
	return report, err
}

// listen starts the stream of events if somebody listens.
func (r *runner) listen() {
	if r.cfg.sink == nil && r.cfg.watch == nil {
		return
	}
	r.em = &emitter{sink: r.cfg.sink, clock: r.cfg.clock, partials: r.cfg.partials && r.cfg.sink != nil, watch: r.cfg.watch}
	r.em.emit(Event{Kind: RunStarted, Run: r.cfg.run, Program: r.graph.Name, Restored: r.restored})
}

// loop runs until the machine is done or the run cannot go on.
func (r *runner) loop(ctx context.Context) error {
	for {
		if r.stage != nil {
			r.stage.play()
		}
		r.follow()
		if r.m.Done() {
			return nil
		}
		if err := r.overBudget(); err != nil {
			return fmt.Errorf("runtime: run %s was stopped: %w", r.cfg.run, err)
		}
		if err := ctx.Err(); err != nil {
			return r.interrupted(ctx)
		}
		if again, err := r.overspent(); err != nil {
			return err
		} else if again {
			continue
		}
		if err := r.launch(); err != nil {
			return err
		}
		if n := len(r.flight); n > 0 && n == r.waiting {
			r.em.emit(Event{Kind: RunWaits})
		}
		if len(r.flight) == 0 {
			return errors.New("runtime: internal error: the run is not over and nothing is to be done")
		}
		select {
		case f := <-r.outcomes:
			r.taken = append(r.taken[:0], f)
		case id := <-r.late:
			if err := r.outOfTime(id); err != nil {
				return err
			}
			continue
		case <-ctx.Done():
			return r.interrupted(ctx)
		}
		r.gather()
		if err := r.apply(ctx); err != nil {
			return err
		}
	}
}

func (r *runner) interrupted(ctx context.Context) error {
	return fmt.Errorf("runtime: run %s was interrupted: %w", r.cfg.run, context.Cause(ctx))
}

// follow takes over what changed in the machine.
func (r *runner) follow() {
	c := r.m.Changes()
	for _, id := range c.Cancel {
		if f := r.flight[id]; f != nil {
			f.cancel()
			if !f.leaving && !f.task.waits() { // one that does not heed it takes no place of others
				f.leaving = true
				r.leaving++
			}
			r.em.emit(f.task.event(NodeCancelled))
			continue
		}
		r.forget(func(t Task) bool { return t.ID == id })
	}
	r.bound(c.Branches)
	r.farewell(c.Branches)
	if r.em != nil {
		for _, b := range c.Branches {
			if b.ID == "" {
				continue // the trunk's end is the run's
			}
			e := Event{Kind: BranchFinished, Branch: b.ID, Label: b.Label, Status: b.Status}
			if b.Status == Running {
				e.Kind, e.Status = BranchStarted, ""
			}
			if b.Err != nil {
				e.Error = b.Err.Error()
			}
			r.em.emit(e)
		}
	}
	for _, x := range c.Refused {
		r.em.emit(Event{Kind: NodeRefused, Task: x.Task, Node: x.Node, Branch: x.Branch, Error: x.Reason})
	}
	for _, t := range c.Start {
		if t.waits() {
			r.idle = append(r.idle, t)
		} else {
			r.queue = append(r.queue, t)
		}
	}
}

// forget takes tasks out of the queues.
func (r *runner) forget(unwanted func(Task) bool) {
	r.queue = slices.DeleteFunc(r.queue, unwanted)
	r.idle = slices.DeleteFunc(r.idle, unwanted)
}

// launch starts queued tasks up to the bound. Calls are noted in the journal
// before they begin.
func (r *runner) launch() error {
	begin := r.next()
	if len(begin) == 0 {
		return nil
	}
	if r.be == nil && slices.ContainsFunc(begin, func(t Task) bool { return t.Generate != nil || t.Score != nil }) {
		return errors.New("runtime: the run needs a backend to go on, and none was given")
	}
	if r.j != nil {
		if err := r.noteCalls(begin); err != nil {
			return err
		}
	}
	r.m.Together(begin)
	r.foresee(begin)
	for i := range begin {
		f := &flight{task: begin[i], cancel: func() {}}
		ctx := r.ctx
		if f.task.Branch != "" { // only branches are cancelled one by one
			ctx, f.cancel = context.WithCancel(ctx)
		}
		r.flight[f.task.ID] = f
		e := f.task.event(NodeStarted)
		if f.task.waits() {
			r.waiting++
			if w := f.task.Wait; w != nil {
				e.Text, e.Ask = w.Ask, w.Question(r.dueOf(&f.task))
			}
		}
		r.em.emit(e)
		if f.task.waits() {
			r.wait(ctx, f)
		} else {
			go r.perform(ctx, f)
		}
	}
	return nil
}

// next takes from the queues what may begin now: all that only waits, and of
// the rest, in its order, what there is room for.
func (r *runner) next() []Task {
	n := max(0, min(len(r.queue), r.cfg.concurrency-len(r.flight)+r.waiting+r.leaving))
	begin := r.queue[:n:n]
	if len(r.idle) > 0 {
		begin = append(r.idle, begin...)
	}
	r.idle, r.queue = nil, r.queue[n:]
	return begin
}

// noteCalls writes down which calls are about to begin.
func (r *runner) noteCalls(tasks []Task) error {
	var records []record
	for _, t := range tasks {
		if t.Call != nil && !r.started[t.ID] {
			records = append(records, record{Kind: recordStarted, Task: t.ID, Key: t.Call.Key})
		}
		rec := record{Kind: recordWaits, Task: t.ID}
		if after, ends := t.After(); ends && r.due[t.ID].IsZero() {
			rec.Due = r.now().Add(after).UTC()
		}
		if t.Wait != nil && r.stage != nil && !r.asked[t.ID] {
			rec.Wait = &waitRecord{*t.Wait, t.Wait.Type.String()}
		}
		if !rec.Due.IsZero() || rec.Wait != nil {
			records = append(records, rec)
		}
	}
	if len(records) == 0 {
		return nil
	}
	return r.j.append(records...)
}

// gather adds to the outcomes taken those that are there already, so that they
// share a write to the journal.
func (r *runner) gather() {
	for {
		select {
		case f := <-r.outcomes:
			r.taken = append(r.taken, f)
		default:
			return
		}
	}
}

// land ends a flight.
func (r *runner) land(f *flight) {
	f.cancel()
	if f.task.waits() {
		r.waiting--
	}
	if f.leaving {
		r.leaving--
	}
	delete(r.flight, f.task.ID)
}

// apply records the outcomes taken and then gives them to the machine. Failures
// that come from the end of the run itself are not results.
func (r *runner) apply(ctx context.Context) error {
	stopped := ctx.Err() != nil
	if r.stage != nil {
		r.stage.now = r.time()
	}
	r.batch = r.batch[:0]
	for _, f := range r.taken {
		r.land(f)
		if stopped && f.result.Failure != nil || r.m.unwanted(f.task.ID) {
			f.unwanted = true
			continue
		}
		r.batch = append(r.batch, f.result)
	}
	if r.j != nil && len(r.batch) > 0 {
		if err := r.j.results(r.batch, r.stampRecord); err != nil {
			return err
		}
	}
	for _, f := range r.taken {
		if f.unwanted {
			continue
		}
		if err := r.m.Apply(f.result); err != nil {
			if errors.Is(err, ErrCancelledTask) {
				continue // an outcome before it in this batch decided that
			}
			return err
		}
		r.spentBy(f.task.ID)
		r.announce(&f.task, &f.result, false)
		if r.stage != nil {
			r.stage.play()
		}
		r.follow()
	}
	if r.em != nil && len(r.batch) > 0 {
		u := r.used.usage()
		r.em.emit(Event{Kind: UsageSoFar, Usage: &u})
	}
	return nil
}

// announce tells listeners of a result.
func (r *runner) announce(t *Task, res *Result, restored bool) {
	r.used.add(res.usage())
	if r.em == nil || t.Program != nil { // the end of its branch says it
		return
	}
	e := finishedEvent(t, res)
	if restored {
		e.Restored = 1
	}
	r.em.emit(e)
}

// await waits for what is still in flight after the run ended. Results that
// come are kept in the journal, if there is one and it can take them, for a run
// that goes on later.
func (r *runner) await() error {
	if len(r.flight) == 0 {
		return nil
	}
	for _, f := range r.flight {
		f.cancel()
	}
	timer := time.NewTimer(r.cfg.grace)
	defer timer.Stop()
	for len(r.flight) > 0 {
		select {
		case f := <-r.outcomes:
			r.land(f)
			if r.j != nil && f.result.Failure == nil && r.m.Err() == nil && !r.m.Done() {
				r.j.results([]Result{f.result}, r.stampRecord) // an error of it shows at the end
			}
		case <-timer.C:
			ids := make([]string, 0, len(r.flight))
			for id := range r.flight {
				ids = append(ids, id)
			}
			slices.Sort(ids)
			return fmt.Errorf("left behind, since they did not stop within %v: %s", r.cfg.grace, strings.Join(ids, ", "))
		}
	}
	return nil
}

// unwanted reports whether the machine no longer waits for a task.
func (m *Machine) unwanted(id string) bool {
	t := m.tasks[id]
	return t == nil || t.state != taskReady
}
