package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"
	"weak"

	"go.opentelemetry.io/otel/trace"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// run is a run of a program. It belongs to the server, not to the connection
// that started it: it goes on until it is over, is cancelled, or, if it is
// attached, nobody has watched it for a while.
type run struct {
	id      string
	program string
	chat    string // that it answers, of a client of the AI SDK
	created time.Time
	log     *runtime.Log // nil of a run of an earlier process that is over
	asks    *questions
	cancel  context.CancelCauseFunc
	files   *runFiles       // nil if nothing of it is kept
	left    context.Context // over when it is interrupted: then the log gets no more
	leave   context.CancelFunc
	again   func()        // tells that it is where an earlier process left it; may be called twice
	begun   chan struct{} // closed then; nil of a run that began here
	done    chan struct{} // closed when the run is over; what follows is set then
	report  *runtime.Report
	err     error
	was     string       // its status where err does not tell
	problem *errorObject // the same of err
	ended   time.Time
	claimed bool                      // somebody replaces it; the tenant's lock is for it
	past    weak.Pointer[runtime.Log] // of a run of an earlier process, while somebody reads it

	deltas   int // kept for readers that come late
	grace    time.Duration
	mu       sync.Mutex
	attached bool
	watchers int
	orphan   *time.Timer // runs while an attached run has no watcher
}

var (
	errCancelled = errors.New("the run was cancelled")
	errOrphaned  = errors.New("the run was cancelled because nobody watched it")
)

func (r *run) over() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// wait waits for the end of the run.
func (r *run) wait(ctx context.Context) error {
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watch notes that somebody follows the run; the result ends that.
func (r *run) watch() (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers++
	if r.orphan != nil {
		r.orphan.Stop()
		r.orphan = nil
	}
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.watchers--; r.watchers == 0 {
			r.expire()
		}
	})
}

// expire starts the clock of an attached run that nobody watches. One that waits
// for an answer lives on: whoever answers need not watch. r.mu is held.
func (r *run) expire() {
	if !r.attached || r.over() {
		return
	}
	if r.orphan != nil {
		r.orphan.Stop()
	}
	r.orphan = time.AfterFunc(r.grace, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		switch {
		case r.watchers > 0:
		case r.asks.any(): // answered tells
			r.orphan = nil
		default:
			r.cancel(errOrphaned)
		}
	})
}

// answered is called when one of the run's questions is over: if nobody watches,
// its clock begins again.
func (r *run) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watchers == 0 && r.orphan == nil {
		r.expire()
	}
}

// newRun returns a run that is not begun.
func (s *Server) newRun(id, program string) *run {
	r := &run{
		id: id, program: program, created: time.Now(), log: runtime.NewLog(s.cfg.Limits.Deltas), asks: newQuestions(),
		cancel: func(error) {}, again: func() {}, done: make(chan struct{}), deltas: s.cfg.Limits.Deltas, grace: s.cfg.Limits.OrphanGrace,
	}
	r.left, r.leave = context.WithCancel(context.Background())
	return r
}

// runRequest is what is asked of a run.
type runRequest struct {
	program   Program
	builtIn   bool // it is served to all
	inputs    lang.Args
	seed      uint64
	salt      string
	cacheSalt string          // the part of salt that the client gave
	takeUp    *takeUp         // of a run that an earlier process began
	begun     bool            // by an earlier process, and carried out elsewhere
	told      []runtime.Event // of that, by the earlier process
	end       *runtime.Event  // the last of that, if its end was told
	attached  bool
	trace     trace.SpanContext // whose trace the run belongs to
	chat      string            // that the run answers
}

// readRun reads what a run is given.
func readRun(ctx context.Context, f *fields, t *tenant) (q runRequest) {
	q.trace = trace.SpanContextFromContext(ctx)
	q.inputs = lang.Args{}
	if in := f.object("inputs"); in != nil {
		for name, raw := range in.members {
			v, err := lang.DecodeValue(raw)
			if err != nil {
				in.fail(name, "cannot be read: %v", err)
			}
			q.inputs[name] = v
		}
	}
	q.seed = uint64(f.whole("seed", 0, math.MinInt64, math.MaxInt64))
	q.cacheSalt = readSalt(f, "cache_salt")
	q.salt = t.salt(q.cacheSalt, "")
	return q
}

// start begins a run.
func (s *Server) start(t *tenant, q runRequest) (*run, error) {
	vars, err := q.program.Graph.Bind(q.inputs)
	if err != nil {
		return nil, badRequest("inputs", "%v", err)
	}
	r := s.newRun("run-"+randomID()[:20], q.program.Graph.Name)
	r.attached, r.chat = q.attached, q.chat
	ctx, cancel := context.WithCancelCause(s.ctx)
	r.cancel = cancel
	gone, err := s.enter(t, r)
	if err != nil {
		s.removeRuns(gone)
		cancel(nil)
		return nil, err
	}
	if t.shelf != nil {
		if err := s.keep(t, r, &q, vars); err != nil {
			cancel(nil)
			t.mu.Lock()
			delete(t.runs, r.id)
			t.order = slices.DeleteFunc(t.order, func(x *run) bool { return x == r })
			t.mu.Unlock()
			s.removeRuns(gone)
			s.wg.Done()
			return nil, s.notKept(err)
		}
	}
	go func() {
		defer s.wg.Done()
		defer cancel(nil)
		s.removeRuns(gone)
		s.carryOut(ctx, t, r, q)
	}()
	return r, nil
}

// enter takes a new run in, or says why not. It returns the runs that are
// forgotten for it. Whoever called it calls s.wg.Done.
func (s *Server) enter(t *tenant, r *run) (gone []*run, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return nil, errDraining
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	most := s.cfg.Limits.ActiveRuns
	if own := t.quota.limits.ActiveRuns; own > 0 {
		most = min(most, own)
	}
	if t.active() >= most {
		s.metrics.refused.Inc()
		return nil, &Error{Status: http.StatusTooManyRequests, Type: typeRate, Code: "too_many_runs", RetryAfter: time.Second, Message: fmt.Sprintf("%d runs are at work already", most)}
	}
	if err := t.quota.begin(0); err != nil {
		s.metrics.refused.Inc()
		return nil, err
	}
	gone = t.forget(&s.cfg.Limits, time.Now())
	if t.full(0) {
		return gone, t.errFull()
	}
	t.runs[r.id] = r
	t.order = append(t.order, r)
	s.wg.Add(1)
	s.putAway(t)
	return gone, nil
}

// inMemory is how many finished runs of a tenant, the newest, have their events and
// reports in memory though they are kept in files.
const inMemory = 128

// putAway frees what older runs hold in memory and their files have. t.mu is held.
func (s *Server) putAway(t *tenant) {
	newer := 0
	for i := len(t.order) - 1; i >= 0; i-- {
		x := t.order[i]
		if !x.over() || x.files == nil || x.log == nil || x.files.meta.Status == "" {
			continue
		}
		if newer++; newer > inMemory {
			t.order[i] = s.keptRun(x.files)
			t.runs[x.id] = t.order[i]
		}
	}
}

// keep makes the files of a new run.
func (s *Server) keep(t *tenant, r *run, q *runRequest, vars map[string]any) error {
	g := q.program.Graph
	graph, err := g.JSON()
	if err != nil {
		return err
	}
	files, err := t.shelf.create(runMeta{
		Run: r.id, Program: r.program, BuiltIn: q.builtIn, Graph: graph, Inputs: g.EncodeInputs(vars), Seed: q.seed,
		CacheSalt: q.cacheSalt, Chat: q.chat, Attached: q.attached, Elsewhere: s.cfg.Runner != nil, Created: r.created,
	})
	t.mu.Lock() // the run is known already
	r.files = files
	t.mu.Unlock()
	return err
}

// forget forgets the oldest runs that are over, beyond the number, the age and the
// bytes that are kept, and returns them. One that was interrupted is not over for those
// who may take it up again. t.mu is held.
func (t *tenant) forget(l *Limits, now time.Time) (gone []*run) {
	ended := func(x *run) bool { return x.over() && !x.interrupted() }
	over := int64(0) // bytes that are kept and may not be
	if most := t.quota.limits.KeptBytes; most > 0 {
		over = t.keptBytes() - int64(most)
	}
	extra := -l.Runs
	for _, x := range t.order {
		if ended(x) {
			extra++
		}
	}
	kept := t.order[:0]
	for _, x := range t.order {
		if ended(x) && (extra > 0 || over > 0 || l.RunAge > 0 && now.Sub(x.ended) > l.RunAge) {
			extra--
			over -= x.keptBytes()
			delete(t.runs, x.id)
			gone = append(gone, x)
			continue
		}
		kept = append(kept, x)
	}
	clear(t.order[len(kept):])
	t.order = kept
	return gone
}

// weigh measures a run at work. Where its tenant keeps more than it may, runs that are
// over are deleted, and if that is not enough this one ends.
func (s *Server) weigh(t *tenant, r *run) {
	r.files.measure()
	t.mu.Lock()
	gone := t.forget(&s.cfg.Limits, time.Now())
	full := t.full(0)
	t.mu.Unlock()
	s.removeRuns(gone)
	if full {
		r.cancel(t.errFull())
	}
}

// runSink counts what the events of a run tell and passes them on.
type runSink struct {
	m      *metrics
	t      *runTrace
	obs    map[string]*observation // of the nodes at work, by task
	run    *run
	work   *workClock
	takeUp *takeUp // nil of a run that began here
	weigh  func()  // is called when the run has kept some more; nil where nothing bounds it
	grown  int64   // bytes of events since
	step   int64   // bytes of events that are some more
	quota  *quota  // that pays for what is used elsewhere, or nil
	last   uint64  // number of the last event that was told
	end    *runtime.Event
	broken error // why nothing more can be told
}

func (k *runSink) Emit(e runtime.Event) {
	k.t.event(&e)
	k.run.asks.event(&e)
	if k.takeUp != nil && k.takeUp.there(&e) {
		k.run.again()
	}
	switch e.Kind {
	case runtime.RunWaits:
		k.work.set(true)
	case runtime.NodeStarted:
		if e.Does == string(lang.KindWait) || e.Does == string(lang.KindSleep) {
			break
		}
		k.work.set(false)
		if k.obs[e.Task] == nil { // else it is tried again
			k.obs[e.Task] = k.m.begin()
		}
	case runtime.TextDelta:
		if o := k.obs[e.Task]; o != nil {
			o.delta(backend.Delta{Tokens: e.Tokens})
		}
	case runtime.NodeFinished, runtime.NodeCancelled:
		if e.Restored > 0 { // it was counted when it happened
			break
		}
		k.work.set(false)
		if e.Does == string(lang.KindWait) {
			k.run.answered()
		}
		o := k.obs[e.Task]
		delete(k.obs, e.Task)
		if e.Cost == nil {
			break
		}
		u := e.Cost
		if k.quota != nil {
			k.quota.spend(u.PromptTokens + u.SampledTokens + u.ForcedTokens)
		}
		if o != nil && e.Finish != "" {
			o.finished(e.Finish, u)
		} else {
			k.m.count(u)
		}
	case runtime.RunFinished, runtime.RunFailed:
		k.end = &e // carryOut knows whether it is the end
		return
	}
	k.tell(e)
}

// tell passes an event on to the run's readers.
func (k *runSink) tell(e runtime.Event) {
	if k.takeUp == nil {
		k.note(e)
		return
	}
	for _, e := range k.takeUp.next(e) {
		k.note(e)
	}
}

// note keeps an event and shows it. One that cannot be kept is not shown, nor are
// those after it: the run is interrupted.
func (k *runSink) note(e runtime.Event) {
	if k.broken != nil {
		return
	}
	if f := k.run.files; f != nil {
		size := f.events.size
		err := f.events.append(e)
		if k.grown += f.events.size - size; k.weigh != nil && k.grown >= k.step {
			k.grown = 0
			defer k.weigh()
		}
		if err == nil && f.events.size > f.events.most {
			events, _ := kept(k.run.log)
			err = f.events.rewrite(append(events, e))
		}
		if err != nil {
			k.broken = &keepError{"what happens in the run", err}
			k.run.cancel(k.broken)
			return
		}
	}
	k.last = e.Seq
	k.run.log.Emit(e)
}

// carryOut runs a program to its end. However it ends, so does its log, unless
// the run is interrupted.
func (s *Server) carryOut(ctx context.Context, t *tenant, r *run, q runRequest) {
	ctx, spans := s.traces.run(ctx, q.trace, r)
	if spans != nil {
		ctx = backend.WithTrace(ctx, &backend.Trace{Step: spans.step})
	}
	limits := s.cfg.Limits.ProgramLimits
	if s.cfg.Runner != nil { // such runs may take days: what bounds them is said by their programs
		limits.Time, limits.Waiting = math.MaxInt64, math.MaxInt64
	}
	work := newWorkClock(limits.Time, limits.Waiting, func() { r.cancel(errTimeout) })
	defer work.stop()
	sink := &runSink{m: s.metrics, t: spans, obs: map[string]*observation{}, run: r, work: work, takeUp: q.takeUp}
	if q.takeUp != nil {
		sink.last = q.takeUp.last
	}
	if most := int64(t.quota.limits.KeptBytes); most > 0 && r.files != nil {
		sink.weigh, sink.step = func() { s.weigh(t, r) }, min(1<<20, max(4<<10, most/1024))
	}
	var report *runtime.Report
	var err error
	if s.cfg.Runner != nil {
		report, err = s.runElsewhere(ctx, t, r, q, sink)
	} else {
		report, err = s.runProgram(ctx, t, r, q, sink)
	}
	cause := context.Cause(ctx)
	if err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	interrupted := r.files != nil && q.end == nil && interrupts(cause, err, q.takeUp != nil && report == nil)
	if !interrupted && q.end == nil {
		end := sink.end
		if end == nil {
			end = &runtime.Event{Seq: sink.last + 1, Time: time.Now(), Kind: runtime.RunFailed, Error: "the run ended early"}
			if err != nil {
				end.Error = err.Error()
			}
		}
		if end.Status = ""; end.Kind == runtime.RunFailed && cancelled(err) {
			end.Status = runtime.Cancelled
		}
		if sink.tell(*end); sink.broken != nil {
			interrupted, err = true, sink.broken
		}
	}
	r.asks.end()
	r.again()
	r.report, r.err, r.ended = report, err, time.Now()
	switch {
	case q.end != nil: // only the report was missing
		out := outcomeTold(*q.end, r.id)
		unknown := cause != nil || errors.Is(err, ErrAway)
		if report != nil {
			out.report = report
		}
		if out.status == runFailed && err != nil && !unknown {
			out.problem = problemOf(err, q.end.Error)
		}
		r.ends(out)
		r.err = nil
		if unknown { // the next process asks for it again
			s.cfg.Log.Error("the report of a run that is over cannot be had yet", "run", r.id, "error", err)
			r.files.events.close()
		} else {
			s.writeEnd(r, out)
		}
	case interrupted:
		switch {
		case cause == error(errSuspended):
			err = cause
		case sink.broken != nil:
			err = sink.broken
		}
		r.interrupt(err)
		r.files.events.close()
		if !errors.Is(err, errSuspended) {
			s.cfg.Log.Error("a run was interrupted; it goes on when the server starts again, or by /v1/runs/{id}/resume", "run", r.id, "error", err)
		}
	case r.files != nil:
		s.writeEnd(r, runOutcome{r.outcome(), r.ended, r.failure(), report})
	}
	// Who sees the end of the run must find it counted.
	spans.end(r.outcome(), err)
	s.metrics.runs.WithLabelValues(r.outcome()).Inc()
	r.mu.Lock()
	if r.orphan != nil {
		r.orphan.Stop()
	}
	close(r.done)
	r.mu.Unlock()
}

// writeEnd keeps how a run ended.
func (s *Server) writeEnd(r *run, out runOutcome) {
	if err := r.files.finish(out, r.log); err != nil {
		s.cfg.Log.Error("the end of a run cannot be kept yet", "run", r.id, "error", err)
	}
}

// runProgram begins a run, or goes on with its journal.
func (s *Server) runProgram(ctx context.Context, t *tenant, r *run, q runRequest, sink runtime.Sink) (report *runtime.Report, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.cfg.Log.Error("panic in a run", "run", r.id, "panic", v, "stack", string(debug.Stack()))
			err = &runtime.PanicError{Value: v}
		}
	}()
	limits := s.cfg.Limits.ProgramLimits
	opts := []runtime.Option{
		runtime.WithRun(r.id), runtime.WithSeed(q.seed), runtime.WithSalt(q.salt), runtime.WithSink(sink),
		runtime.WithConcurrency(limits.Concurrency), runtime.WithAnswers(r.asks.ask),
	}
	be := s.metered(t.quota)
	if q.takeUp != nil {
		if _, err := runtime.ReadJournal(r.files.journal()); err == nil {
			return runtime.Resume(ctx, be, r.files.journal(), q.program.Funcs, opts...)
		} // else nothing was recorded, or it says why once more
	}
	if r.files != nil {
		opts = append(opts, runtime.WithJournal(r.files.journal()))
	}
	opts = append(opts, runtime.WithLimits(runtime.Limits{Nodes: limits.Nodes, Branches: limits.Branches, Text: limits.TextBytes}))
	return runtime.RunGraph(ctx, be, q.program.Graph, q.program.Funcs, q.inputs, opts...)
}

// run finds a run of the tenant's.
func (t *tenant) run(ctx context.Context, id string) (*run, error) {
	t.mu.Lock()
	r := t.runs[id]
	t.mu.Unlock()
	if r == nil {
		return nil, notFound("run_not_found", "there is no run %q", clip(id))
	}
	return r, r.taken(ctx)
}

// taken waits until a run of an earlier process is where that left it, a moment
// after the server's start.
func (r *run) taken(ctx context.Context) error {
	if r.begun == nil {
		return nil
	}
	select {
	case <-r.begun:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
