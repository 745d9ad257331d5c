package serve

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

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
	log     *runtime.Log
	asks    *questions
	cancel  context.CancelCauseFunc
	done    chan struct{} // closed when the run is over; what follows is set then
	report  *runtime.Report
	err     error
	ended   time.Time

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

// Statuses of a run.
const (
	runRunning   = "running"
	runWaiting   = "waiting" // running, and something of it waits for an answer
	runFinished  = "finished"
	runFailed    = "failed"
	runCancelled = "cancelled"
)

func (r *run) status() string {
	switch {
	case r.over():
		return r.outcome()
	case r.asks.any():
		return runWaiting
	}
	return runRunning
}

// outcome is the status of a run that is over, or whose err is set.
func (r *run) outcome() string {
	switch {
	case r.err == nil:
		return runFinished
	case cancelled(r.err):
		return runCancelled
	}
	return runFailed
}

// cancelled reports whether somebody wanted a run to end that ended with err.
func cancelled(err error) bool {
	return errors.Is(err, errCancelled) || errors.Is(err, errOrphaned) || errors.Is(err, errDraining)
}

// runInfo is a run as clients see it.
type runInfo struct {
	ID       string          `json:"id"`
	Object   string          `json:"object"`
	Program  string          `json:"program"`
	Status   string          `json:"status"`
	Created  int64           `json:"created_at"`
	Finished int64           `json:"finished_at,omitempty"`
	Waiting  []waitingTask   `json:"waiting,omitempty"`
	Report   *runtime.Report `json:"report,omitempty"`
	Error    *errorObject    `json:"error,omitempty"`
}

func (r *run) info(whole bool) runInfo {
	out := runInfo{ID: r.id, Object: "run", Program: r.program, Status: r.status(), Created: r.created.Unix()}
	if out.Status == runRunning || out.Status == runWaiting {
		if whole {
			out.Waiting = r.asks.waiting()
		}
		return out
	}
	out.Finished = r.ended.Unix()
	if whole {
		out.Report = r.report
	}
	if r.err != nil {
		o := toError(r.err).body().Error
		o.Message = r.err.Error() // the program is the client's own
		out.Error = &o
	}
	return out
}

// runRequest is what is asked of a run.
type runRequest struct {
	program  Program
	inputs   lang.Args
	seed     uint64
	salt     string
	attached bool
	trace    trace.SpanContext // whose trace the run belongs to
	chat     string            // that the run answers
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
	q.salt = t.salt(readSalt(f, "cache_salt"))
	return q
}

// start begins a run.
func (s *Server) start(t *tenant, q runRequest) (*run, error) {
	if _, err := q.program.Graph.Bind(q.inputs); err != nil {
		return nil, badRequest("inputs", "%v", err)
	}
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
	ctx, cancel := context.WithCancelCause(s.ctx)
	r := &run{
		id: "run-" + randomID()[:20], program: q.program.Graph.Name, created: time.Now(),
		log: runtime.NewLog(s.cfg.Limits.Deltas), asks: newQuestions(), cancel: cancel, done: make(chan struct{}),
		grace: s.cfg.Limits.OrphanGrace, attached: q.attached, chat: q.chat,
	}
	t.remember(r, s.cfg.Limits.Runs)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer cancel(nil)
		s.carryOut(ctx, t, r, q)
	}()
	return r, nil
}

// remember keeps a run and forgets the oldest that are over. t.mu is held.
func (t *tenant) remember(r *run, keep int) {
	t.runs[r.id] = r
	t.order = append(t.order, r)
	extra := len(t.order) - t.active() - keep
	kept := t.order[:0]
	for _, x := range t.order {
		if extra > 0 && x.over() {
			extra--
			delete(t.runs, x.id)
			continue
		}
		kept = append(kept, x)
	}
	clear(t.order[len(kept):])
	t.order = kept
}

// runSink counts what the events of a run tell and passes them on.
type runSink struct {
	m    *metrics
	t    *runTrace
	obs  map[string]*observation // of the nodes at work, by task
	log  *runtime.Log
	run  *run
	work *workClock
	last uint64
	over bool
	why  func() error // why the run was cancelled, nil if it was not
}

func (k *runSink) Emit(e runtime.Event) {
	if e.Kind == runtime.RunFailed && cancelled(k.why()) {
		e.Status = runtime.Cancelled
	}
	k.last = e.Seq
	k.over = e.Kind == runtime.RunFinished || e.Kind == runtime.RunFailed
	k.t.event(&e)
	k.run.asks.event(&e)
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
		if o != nil && e.Finish != "" {
			o.finished(e.Finish, u)
		} else {
			k.m.count(u)
		}
	}
	k.log.Emit(e)
}

// carryOut runs a program to its end. However it ends, so does its log.
func (s *Server) carryOut(ctx context.Context, t *tenant, r *run, q runRequest) {
	limits := s.cfg.Limits.ProgramLimits
	ctx, spans := s.traces.run(ctx, q.trace, r)
	if spans != nil {
		ctx = backend.WithTrace(ctx, &backend.Trace{Step: spans.step})
	}
	work := newWorkClock(limits.Time, limits.Waiting, func() { r.cancel(errTimeout) })
	defer work.stop()
	sink := &runSink{m: s.metrics, t: spans, obs: map[string]*observation{}, log: r.log, run: r, work: work, why: func() error { return context.Cause(ctx) }}
	report, err := func() (report *runtime.Report, err error) {
		defer func() {
			if v := recover(); v != nil {
				s.cfg.Log.Error("panic in a run", "run", r.id, "panic", v, "stack", string(debug.Stack()))
				err = &runtime.PanicError{Value: v}
			}
		}()
		return runtime.RunGraph(ctx, s.metered(t.quota), q.program.Graph, q.program.Funcs, q.inputs,
			runtime.WithRun(r.id), runtime.WithSeed(q.seed), runtime.WithSalt(q.salt), runtime.WithSink(sink),
			runtime.WithConcurrency(limits.Concurrency), runtime.WithAnswers(r.asks.ask),
			runtime.WithLimits(runtime.Limits{Nodes: limits.Nodes, Branches: limits.Branches, Text: limits.TextBytes}))
	}()
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		err = fmt.Errorf("%w: %w", cause, err)
	}
	if !sink.over {
		msg := "the run ended early"
		if err != nil {
			msg = err.Error()
		}
		r.log.Emit(runtime.Event{Seq: sink.last + 1, Time: time.Now(), Kind: runtime.RunFailed, Error: msg})
	}
	if e, ok := s.be.(interface{ EndRun(string) }); ok {
		e.EndRun(r.id)
	}
	r.asks.end()
	r.report, r.err, r.ended = report, err, time.Now()
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

// run finds a run of the tenant's.
func (t *tenant) run(id string) (*run, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.runs[id]; r != nil {
		return r, nil
	}
	return nil, notFound("run_not_found", "there is no run %q", clip(id))
}

// sayable is an event that JSON can hold: a select's scores may be infinite.
func sayable(e runtime.Event) runtime.Event {
	for i, sc := range e.Scores {
		lp, p := finite(sc.Logprob), sc.P
		if math.IsNaN(p) || math.IsInf(p, 0) {
			p = 0
		}
		if lp != sc.Logprob || p != sc.P {
			scores := slices.Clone(e.Scores)
			scores[i].Logprob, scores[i].P = lp, p
			e.Scores = scores
		}
	}
	return e
}

// startRun is POST /v1/programs/{name}/runs. It answers at once with 202, with
// "wait" when the run is over, with "stream" by its events.
func (s *Server) startRun(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	t := tenantOf(r.Context())
	q := readRun(r.Context(), f, t)
	wait, stream := f.flag("wait", false), f.flag("stream", false)
	if wait && stream {
		f.fail("wait", "and stream exclude each other")
	}
	if err := f.err(); err != nil {
		return err
	}
	if q.program, _, err = s.program(t, r.PathValue("name")); err != nil {
		return err
	}
	x, err := s.start(t, q)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/runs/"+x.id)
	w.Header().Set("X-Request-Id", x.id)
	switch {
	case stream:
		return s.sendEvents(w, r, x, 0)
	case wait:
		select {
		case <-x.done:
			writeJSON(w, http.StatusOK, x.info(true))
		case <-r.Context().Done(): // the run goes on
			return r.Context().Err()
		}
	default:
		writeJSON(w, http.StatusAccepted, x.info(true))
	}
	return nil
}

func (s *Server) listRuns(w http.ResponseWriter, r *http.Request) error {
	t := tenantOf(r.Context())
	list := []runInfo{}
	t.mu.Lock()
	for i := len(t.order) - 1; i >= 0; i-- { // newest first
		list = append(list, t.order[i].info(false))
	}
	t.mu.Unlock()
	writeJSON(w, http.StatusOK, struct {
		Object string    `json:"object"`
		Data   []runInfo `json:"data"`
	}{"list", list})
	return nil
}

func (s *Server) showRun(w http.ResponseWriter, r *http.Request) error {
	x, err := tenantOf(r.Context()).run(r.PathValue("id"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, x.info(true))
	return nil
}

// cancelRun is POST /v1/runs/{id}/cancel. It answers when the run is over.
func (s *Server) cancelRun(w http.ResponseWriter, r *http.Request) error {
	x, err := tenantOf(r.Context()).run(r.PathValue("id"))
	if err != nil {
		return err
	}
	x.cancel(errCancelled)
	select {
	case <-x.done:
	case <-r.Context().Done():
		return r.Context().Err()
	}
	writeJSON(w, http.StatusOK, x.info(true))
	return nil
}

// runEvents is GET /v1/runs/{id}/events.
func (s *Server) runEvents(w http.ResponseWriter, r *http.Request) error {
	x, err := tenantOf(r.Context()).run(r.PathValue("id"))
	if err != nil {
		return err
	}
	from := r.Header.Get("Last-Event-ID")
	if q := r.URL.Query().Get("after"); q != "" {
		from = q
	}
	after := uint64(0)
	if from != "" {
		if after, err = strconv.ParseUint(from, 10, 63); err != nil {
			return badRequest("Last-Event-ID", "%q is no number of an event", clip(from))
		}
	}
	return s.sendEvents(w, r, x, after)
}

// sendEvents streams the events of a run after a number. A client that has them
// all gets 204, which tells an EventSource not to come again.
func (s *Server) sendEvents(w http.ResponseWriter, r *http.Request, x *run, after uint64) error {
	defer x.watch()()
	if missing, over := x.log.Since(after); over && len(missing) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	events := make(chan runtime.Event, 64)
	go func() {
		defer close(events)
		for e := range x.log.Events(ctx, after) {
			select {
			case events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	out := s.newSSE(w)
	out.comment("run " + x.id)
	alive := time.NewTicker(s.cfg.Limits.PingEvery)
	defer alive.Stop()
	for out.flush() == nil {
		select {
		case e, ok := <-events:
			for more := true; more; {
				if !ok {
					out.flush()
					return nil
				}
				out.numbered(e.Seq, sayable(e))
				select {
				case e, ok = <-events:
				default:
					more = false
				}
			}
		case <-alive.C:
			out.comment("alive")
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}
