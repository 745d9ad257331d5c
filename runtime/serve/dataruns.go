package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"weak"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// errSuspended ends the runs of a server that keeps them, when it stops.
var errSuspended = &Error{
	Status: http.StatusServiceUnavailable, Type: typeServer, Code: "draining", RetryAfter: 5 * time.Second,
	Message: "the server is shutting down; the run goes on when it is started again",
}

// openData opens the folder that outlives the process and takes up what is in it.
func (s *Server) openData() error {
	if s.cfg.Data == "" {
		return nil
	}
	var err error
	if s.store, err = openStore(s.cfg.Data); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	bad := func(file string, err error) {
		s.cfg.Log.Warn("what is kept there cannot be used and is left as it is", "file", file, "error", err)
	}
	goOn := 0
	for _, t := range s.tenants.all {
		t.shelf = s.store.shelf(t)
		for _, g := range t.shelf.programs(bad) {
			p := Program{Graph: g, Funcs: s.cfg.Funcs}
			if err := s.checkProgram(context.Background(), p); err != nil {
				bad("program "+g.Name, err)
				continue
			}
			t.programs[g.Name] = p
			if data, err := g.JSON(); err == nil {
				t.sizes[g.Name] = len(data)
			}
		}
		runs := t.shelf.runs(bad)
		slices.SortFunc(runs, func(a, b *runFiles) int {
			return cmp.Or(a.meta.Created.Compare(b.meta.Created), cmp.Compare(a.meta.Run, b.meta.Run))
		})
		for _, f := range runs {
			var r *run
			if f.meta.Status != "" {
				r = s.keptRun(f)
			} else {
				r = s.resume(t, f)
			}
			if !r.over() {
				goOn++
			}
			t.runs[r.id] = r
			t.order = append(t.order, r)
		}
		s.removeRuns(t.forget(&s.cfg.Limits, time.Now()))
	}
	s.cfg.Log.Info("programs and runs are kept", "folder", s.cfg.Data, "going_on", goOn)
	if old := s.cfg.Limits.RunAge; old > 0 {
		s.wg.Go(func() { s.removeOld(min(old, time.Hour)) })
	}
	return nil
}

// removeOld removes runs that are too old, every now and then.
func (s *Server) removeOld(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
		for _, t := range s.tenants.all {
			t.mu.Lock()
			gone := t.forget(&s.cfg.Limits, time.Now())
			t.mu.Unlock()
			s.removeRuns(gone)
		}
	}
}

// removeRuns deletes the files of runs that are forgotten.
func (s *Server) removeRuns(gone []*run) {
	for _, r := range gone {
		if err := r.files.remove(); err != nil {
			s.cfg.Log.Warn("the files of a run cannot be deleted", "run", r.id, "error", err)
		}
	}
}

// keptRun is a run that is over, as its files have it. Its events and its report
// are read when they are asked for.
func (s *Server) keptRun(f *runFiles) *run {
	r := s.newRun(f.meta.Run, f.meta.Program)
	r.chat, r.created, r.files = f.meta.Chat, f.meta.Created, f
	r.was, r.problem, r.ended = f.meta.Status, f.meta.Error, f.meta.Ended
	r.log = nil
	close(r.done)
	return r
}

// resume goes on with a run of an earlier process.
func (s *Server) resume(t *tenant, f *runFiles) *run { return s.goOn(t, f, nil) }

// goOn goes on with a run of an earlier process, or, where unwanted says why, sees to
// its end.
func (s *Server) goOn(t *tenant, f *runFiles, unwanted error) *run {
	r := s.newRun(f.meta.Run, f.meta.Program)
	r.chat, r.created, r.attached, r.files = f.meta.Chat, f.meta.Created, f.meta.Attached, f
	up := newTakeUp()
	var err error
	f.events, err = openEvents(f.path("events"), func(e runtime.Event) {
		up.told(e)
		r.log.Emit(e)
	})
	if err == nil && f.events.damaged > 0 {
		s.cfg.Log.Warn("lines of a run's events cannot be read any more and are left out", "run", r.id, "lines", f.events.damaged)
	}
	elsewhere := f.meta.Elsewhere && s.cfg.Runner != nil
	over := err == nil && up.over.Seq != 0 // its end was told, and nobody lived to write it down
	if over && !f.meta.Elsewhere {
		f.finish(s.outcomeOf(f, up.over), r.log)
		return s.keptRun(f)
	}
	q := runRequest{seed: f.meta.Seed, salt: t.salt(f.meta.CacheSalt, ""), takeUp: up}
	if elsewhere {
		q.takeUp, q.begun = nil, true
		if over {
			q.end = &up.over
		}
		q.told, _ = r.log.Since(0)
		for i := range q.told {
			r.asks.event(&q.told[i])
		}
	}
	switch {
	case err != nil:
	case f.meta.Elsewhere && s.cfg.Runner == nil && over:
		// The next process that reaches who carried it out gets its report.
		f.events.close()
		r.ends(outcomeTold(up.over, r.id))
		close(r.done)
		return r
	case f.meta.Elsewhere && s.cfg.Runner == nil:
		err = errElsewhere
	case s.cfg.Runner != nil && !elsewhere:
		err = errHere
	default:
		q.program, q.inputs, err = s.programOf(f)
	}
	if err != nil {
		if f.events != nil {
			f.events.close()
		}
		r.interrupt(&keepError{"the run", err})
		close(r.done)
		return r
	}
	ctx, cancel := context.WithCancelCause(s.ctx)
	r.cancel = cancel
	if unwanted != nil {
		cancel(unwanted)
	}
	if len(up.asked) > 0 && !elsewhere {
		r.begun = make(chan struct{})
		r.again = sync.OnceFunc(func() { close(r.begun) })
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer cancel(nil)
		s.carryOut(ctx, t, r, q)
	}()
	r.mu.Lock()
	r.expire()
	r.mu.Unlock()
	return r
}

// programOf returns the program of a run and its inputs. The functions of a
// program that is served to all are those that it has now.
func (s *Server) programOf(f *runFiles) (p Program, inputs lang.Args, err error) {
	if p.Graph, err = lang.Decode(f.meta.Graph, "program"); err != nil {
		return p, nil, err
	}
	p.Funcs = s.cfg.Funcs
	if f.meta.BuiltIn {
		for _, x := range s.cfg.Programs {
			if x.Graph.Name == f.meta.Program {
				p.Funcs = x.Funcs
			}
		}
	}
	inputs, err = p.Graph.DecodeInputs(f.meta.Inputs)
	return p, inputs, err
}

// outcomeTold is how a run ended whose last event is end, as far as that says it.
func outcomeTold(end runtime.Event, run string) runOutcome {
	out := runOutcome{status: runFinished, ended: end.Time}
	if end.Kind == runtime.RunFailed {
		out.status, out.problem = runFailed, &errorObject{Message: end.Error, Type: typeServer}
		if end.Status == runtime.Cancelled {
			out.status, out.problem = runCancelled, problemOf(context.Canceled, end.Error)
		}
	}
	if end.Value != nil {
		out.report = &runtime.Report{Run: run, Value: end.Value}
		if end.Usage != nil {
			out.report.Usage = *end.Usage
		}
	}
	return out
}

// ends notes how the run ended.
func (r *run) ends(out runOutcome) {
	r.was, r.problem, r.ended, r.report = out.status, out.problem, out.ended, out.report
}

// outcomeOf finds out how a run ended whose last event is end.
func (s *Server) outcomeOf(f *runFiles, end runtime.Event) runOutcome {
	out := outcomeTold(end, f.meta.Run)
	if data, err := os.Open(f.journal()); err == nil {
		defer data.Close()
		l := s.cfg.Limits.ProgramLimits
		nobody := runtime.SinkFunc(func(runtime.Event) {})
		if report, err := runtime.Replay(data, nobody, runtime.Limits{Nodes: l.Nodes, Branches: l.Branches, Text: l.TextBytes}); err == nil {
			out.report = report
		}
	}
	return out
}

// runOutcome is how a run ended.
type runOutcome struct {
	status  string
	ended   time.Time
	problem *errorObject
	report  *runtime.Report // nil if the run never began
}

// finish writes down how a run ended. Until that has worked the next process
// takes the run for one that is not over, and finds its end among its events.
func (f *runFiles) finish(out runOutcome, log *runtime.Log) error {
	// Known here even where it cannot be written: what is asked about the run meanwhile.
	f.meta.Status, f.meta.Ended, f.meta.Error = out.status, out.ended, out.problem
	err := f.events.sync()
	if events, all := kept(log); err == nil && !all {
		err = f.events.rewrite(events)
	}
	f.events.close()
	defer f.measure()
	if err == nil && out.report != nil {
		var data []byte
		if data, err = encode(out.report); err == nil {
			err = writeWhole(f.path("report.json"), data)
		}
	}
	if err != nil {
		return err
	}
	return f.writeMeta()
}

// notKept is what a client is told whose request asks for something that cannot be
// kept. Where and why is for the log.
func (s *Server) notKept(err error) error {
	s.cfg.Log.Error("a request is refused, since what it asks for cannot be kept", "error", errors.Unwrap(err))
	var k *keepError
	if errors.As(err, &k) {
		return k.refusal()
	}
	return err
}

// interrupts tells whether a run that ended with err is to go on in another
// process: the server stopped, or what keeps the run failed it. unbegun says that
// an earlier process began the run and this one could not.
func interrupts(cause, err error, unbegun bool) bool {
	var (
		journal *runtime.JournalError
		keep    *keepError
		panics  *runtime.PanicError
	)
	switch {
	case err == nil:
		return false
	case cause == error(errSuspended), errors.Is(err, ErrAway):
		return true
	case cause != nil && !errors.As(cause, &keep):
		return false // somebody wanted its end
	case errors.As(err, &panics):
		return false
	}
	return unbegun || errors.As(cause, &keep) || errors.As(err, &journal) || errors.Is(err, runtime.ErrUnknownOutcome)
}

// interrupt notes that the run does not go on in this process. Its readers are
// told of nothing more.
func (r *run) interrupt(err error) {
	r.was, r.err, r.ended = runInterrupted, err, time.Now()
	var keep *keepError
	why := &Error{Type: typeServer, Code: "cannot_go_on", Message: err.Error()}
	switch {
	case err == error(errSuspended):
		why = errSuspended
	case errors.As(err, &keep):
		why = keep.refusal()
	}
	o := why.body().Error
	if r.files != nil {
		r.files.measure()
		o.Message = strings.ReplaceAll(o.Message, r.files.dir+string(os.PathSeparator), "")
	}
	r.problem = &o
	r.leave()
}

// interrupted reports whether the run is over in this process alone.
func (r *run) interrupted() bool { return r.over() && r.was == runInterrupted }

// broke reports whether the run was interrupted. Who reads its events sees their end a
// moment before the run is over.
func (r *run) broke(ctx context.Context) bool {
	return r.left.Err() != nil && r.wait(ctx) == nil && r.interrupted()
}

// suspended reports whether that is because the server stops.
func (r *run) suspended() bool { return r.err == error(errSuspended) }

// stopped is the answer to who waits for a run that was interrupted.
func (r *run) stopped() *Error {
	return &Error{
		Status: http.StatusServiceUnavailable, Type: typeServer, Code: "run_interrupted", RetryAfter: 5 * time.Second,
		Message: fmt.Sprintf("run %s was interrupted: %s", r.id, r.problem.Message),
	}
}

// history is the log of the run's events, read from its file if it is not here.
// Those who read it at about the same time share it.
func (r *run) history() *runtime.Log {
	if r.log != nil {
		return r.log
	}
	r.mu.Lock()
	log := r.past.Value()
	r.mu.Unlock()
	if log == nil {
		log = r.readHistory()
		r.mu.Lock()
		r.past = weak.Make(log)
		r.mu.Unlock()
	}
	return log
}

func (r *run) readHistory() *runtime.Log {
	log := runtime.NewLog(r.deltas)
	last := runtime.Event{}
	if f, err := os.Open(r.files.path("events")); err == nil {
		defer f.Close()
		readEvents(f, func(e runtime.Event) {
			last = e
			log.Emit(e)
		})
	}
	if last.Kind != runtime.RunFinished && last.Kind != runtime.RunFailed {
		log.Emit(runtime.Event{Seq: last.Seq + 1, Time: r.ended, Kind: runtime.RunFailed, Error: "the events of the run cannot be read any more"})
	}
	return log
}

// told yields the events of a log as they come, until the run is over, here or
// for good, and for ctx.
func (r *run) told(ctx context.Context, log *runtime.Log, after uint64) iter.Seq[runtime.Event] {
	return func(yield func(runtime.Event) bool) {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		detach := context.AfterFunc(r.left, stop)
		defer detach()
		for e := range log.Events(ctx, after) {
			if !yield(e) {
				return
			}
		}
	}
}

// reported is the run's report as JSON holds it.
func (r *run) reported() any {
	switch {
	case r.report != nil:
		return r.report
	case r.files == nil || r.was == runInterrupted:
		return nil
	}
	if data, err := os.ReadFile(r.files.path("report.json")); err == nil && json.Valid(data) {
		return json.RawMessage(data)
	}
	return nil
}

// resumeRun is POST /v1/runs/{id}/resume: a run that was interrupted goes on.
func (s *Server) resumeRun(w http.ResponseWriter, r *http.Request) error {
	t := tenantOf(r.Context())
	x, err := t.run(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	x, err = s.replace(t, x, s.resume)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusAccepted, x.info(true))
	return nil
}

// replace puts another in the place of a run that was interrupted. No lock is held
// while other works on files: a disk that hangs holds up nobody else.
func (s *Server) replace(t *tenant, x *run, other func(*tenant, *runFiles) *run) (*run, error) {
	if err := s.claim(t, x); err != nil {
		return nil, err
	}
	defer s.wg.Done()
	f := &runFiles{dir: x.files.dir, meta: x.files.meta}
	f.measure()
	y := other(t, f)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.runs[x.id] = y
	t.order[slices.Index(t.order, x)] = y // it is still there: what is interrupted is not forgotten
	return y, nil
}

// claim gives one caller the right to replace a run that was interrupted. Whoever
// got it calls s.wg.Done.
func (s *Server) claim(t *tenant, x *run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return errDraining
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if !x.interrupted() || t.runs[x.id] != x || x.claimed {
		how := x.status()
		if x.claimed {
			how = "being taken up or given up already"
		}
		return &Error{Status: http.StatusConflict, Type: typeInvalid, Code: "not_interrupted", Message: fmt.Sprintf("run %s is %s; only one that was interrupted can be resumed", x.id, how)}
	}
	x.claimed = true
	s.wg.Add(1)
	return nil
}

// abandon ends a run that was interrupted, for good.
func (s *Server) abandon(_ *tenant, f *runFiles) *run {
	now := time.Now()
	log, last := runtime.NewLog(s.cfg.Limits.Deltas), uint64(0)
	var err error
	f.events, err = openEvents(f.path("events"), func(e runtime.Event) {
		last = e.Seq
		log.Emit(e)
	})
	if err == nil {
		end := runtime.Event{Seq: last + 1, Time: now, Kind: runtime.RunFailed, Status: runtime.Cancelled, Error: errCancelled.Error()}
		if err = f.events.append(end); err == nil {
			log.Emit(end)
			err = f.finish(s.outcomeOf(f, end), log)
		} else {
			f.events.close()
		}
	}
	if err != nil {
		r := s.newRun(f.meta.Run, f.meta.Program)
		r.chat, r.created, r.files, r.log = f.meta.Chat, f.meta.Created, f, log
		r.interrupt(&keepError{"the end of the run", err})
		close(r.done)
		return r
	}
	return s.keptRun(f)
}
