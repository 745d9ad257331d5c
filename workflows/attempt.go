package workflows

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// grace is how long a request or call whose time is over is waited for.
const grace = 2 * time.Second

// progress is what a heartbeat carries from one attempt to the next.
type progress struct {
	// Tries counts the requests that failed by themselves, Failed those at the
	// backend that is asked now.
	Tries  int `json:"tries,omitempty"`
	Failed int `json:"failed,omitempty"`
	// By is the fallback that is asked now, Why the failures that led to it.
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`
	// Tokens of Model were generated so far.
	Tokens []backend.Token `json:"tokens,omitempty"`
	Model  string          `json:"model,omitempty"`
}

// attempt is one attempt at an activity: its heartbeat, its end and its events.
type attempt struct {
	w      *Worker
	ask    *ask
	ctx    context.Context // of the work; ends early if the worker does
	outer  context.Context
	cancel context.CancelFunc
	pub    *publisher
	over   chan struct{}
	beats  sync.WaitGroup

	mu  sync.Mutex
	p   progress
	now *stream // of the backend that is asked
}

// attempt beats from its start on, before there is anything to tell: a long prefill,
// or a queue before it, is no reason to give an attempt up. The first beat is due when
// a third of the time has passed in which a worker may be silent; short steps end
// before that and cost the server nothing.
func (w *Worker) attempt(ctx context.Context, a *ask) *attempt {
	at := &attempt{w: w, ask: a, outer: ctx, over: make(chan struct{})}
	if a.Before != nil {
		at.p = *a.Before
	}
	if activity.HasHeartbeatDetails(ctx) {
		var p progress
		if activity.GetHeartbeatDetails(ctx, &p) == nil {
			at.p = p
		}
	}
	at.ctx, at.cancel = context.WithCancel(ctx)
	at.pub = w.events.of(a.Run, a.First)
	every := activity.GetInfo(ctx).HeartbeatTimeout / 3
	if every <= 0 {
		every = w.cfg.Heartbeat / 3
	}
	at.beats.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		stop := activity.GetWorkerStopChannel(ctx)
		var leave <-chan time.Time
		for {
			select {
			case <-tick.C:
				at.beat()
			case <-stop:
				at.beat()
				if !at.unsafe() {
					at.cancel()
					return
				}
				// What nobody may repeat has a little more time to end.
				stop = nil
				timer := time.NewTimer(w.cfg.Stop / 2)
				defer timer.Stop()
				leave = timer.C
			case <-leave:
				at.cancel()
				return
			case <-at.over:
				return
			}
		}
	})
	return at
}

func (at *attempt) unsafe() bool { return at.ask.Call != nil && at.ask.Call.Unsafe }

func (at *attempt) beat() {
	at.mu.Lock()
	p := at.p
	at.mu.Unlock()
	activity.RecordHeartbeat(at.outer, p)
}

func (at *attempt) stop() {
	close(at.over)
	at.cancel()
	at.beats.Wait()
}

// chain returns the backends that a request is sent to, one after the other has
// failed for good: the worker's own, which has no name, and the fallbacks.
func (at *attempt) chain() ([]Fallback, error) {
	chain := []Fallback{{Backend: at.w.cfg.Backend}}
	if at.ask.Fallback == nil {
		return append(chain, at.w.cfg.Fallback...), nil
	}
	for _, name := range at.ask.Fallback {
		i := slices.IndexFunc(at.w.cfg.Fallback, func(f Fallback) bool { return f.Name == name })
		if i < 0 {
			names := make([]string, len(at.w.cfg.Fallback))
			for i, f := range at.w.cfg.Fallback {
				names[i] = f.Name
			}
			has := "none"
			if len(names) > 0 {
				has = strings.Join(names, ", ")
			}
			return nil, fmt.Errorf("no fallback %q: the worker has %s; start it with --fallback %s=URL: %w", name, has, name, backend.ErrInvalid)
		}
		chain = append(chain, at.w.cfg.Fallback[i])
	}
	return chain, nil
}

// request makes attempts at a request until one succeeds or the next must wait:
// at the backend that is asked now, then at those behind it.
func (at *attempt) request(f func(context.Context, backend.Backend, *stream) (runtime.Result, error)) (runtime.Result, error) {
	at.event(runtime.NodeStarted)
	chain, err := at.chain()
	if err != nil {
		return runtime.Result{}, err
	}
	// A worker may lack the one that another had come to.
	i := max(0, slices.IndexFunc(chain, func(f Fallback) bool { return f.Name == at.p.By }))
	for ; ; i++ {
		b := chain[i]
		s := at.stream(b)
		res, err := safely(func() (runtime.Result, error) {
			return runtime.Within(backend.OwnRetries(at.ctx), at.ask.Timeout, grace, func(ctx context.Context) (runtime.Result, error) {
				return f(ctx, b.Backend, s)
			})
		})
		if err == nil {
			res.By = b.Name
			if at.p.Tries > 0 {
				res.Attempts = at.p.Tries + 1
			}
			return res, nil
		}
		if i == len(chain)-1 || at.ctx.Err() != nil || !runtime.CanFallBack(err) {
			return res, err
		}
		if _, again := at.ask.Retry.wait(at.p.Failed+1, err, false); again {
			return res, err
		}
		at.fallBack(chain[i+1].Name, err)
	}
}

// fallBack goes on to another backend: nothing of what the one before it wrote
// counts.
func (at *attempt) fallBack(name string, err error) {
	at.mu.Lock()
	tries := at.p.Tries + 1
	at.p = progress{Tries: tries, By: name, Why: short(at.after(err), 1000)}
	at.now = nil
	at.mu.Unlock()
	at.retried(err, tries, 0)
}

// after puts what led to the backend that is asked now before its failure.
func (at *attempt) after(err error) string {
	if at.p.By == "" {
		return err.Error()
	}
	return fmt.Sprintf("%s; then fallback %s: %v", at.p.Why, at.p.By, err)
}

func (at *attempt) retried(err error, tries int, wait time.Duration) {
	e := at.about(runtime.NodeRetried)
	e.Error, e.Attempt, e.Wait = err.Error(), tries, wait.Seconds()
	at.pub.emit(e)
}

func (at *attempt) about(kind runtime.EventKind) runtime.Event {
	return runtime.Event{Kind: kind, Task: at.ask.Task, Node: at.ask.Node, Branch: at.ask.Branch, Does: at.ask.Does}
}

func (at *attempt) event(kind runtime.EventKind) { at.pub.emit(at.about(kind)) }

// stream is what one backend streams in answer to one request.
type stream struct {
	at     *attempt
	resume []backend.Token // of an earlier attempt, at the same model
	got    []backend.Token
	offset int
}

// stream begins the stream of a backend. What an earlier attempt generated counts
// if the model is the same.
func (at *attempt) stream(b Fallback) *stream {
	info := b.Backend.Info()
	at.mu.Lock()
	s := &stream{at: at}
	if info.Fingerprint != "" && at.p.Model == info.Fingerprint {
		s.resume = at.p.Tokens
	}
	// They stay in the heartbeat until the stream has caught up: a worker that
	// dies before that loses nothing.
	at.p.Model, at.p.By, at.p.Tokens = info.Fingerprint, b.Name, s.resume
	at.now = s
	at.mu.Unlock()
	return s
}

// delta notes and publishes a piece of text.
func (s *stream) delta(ctx context.Context, d backend.Delta) {
	at := s.at
	if ctx.Err() != nil {
		return
	}
	if d.PromptTokens > 0 {
		e := at.about(runtime.PromptProgress)
		e.Does, e.Done, e.Total = "", d.PromptDone, d.PromptTokens
		at.pub.emit(e)
		return
	}
	at.mu.Lock()
	if at.now != s { // its time is over
		at.mu.Unlock()
		return
	}
	before := len(s.got)
	s.got = append(s.got, d.Tokens...)
	switch n := len(s.got); {
	case len(s.resume) == 0:
		at.p.Tokens = s.got
	case !slices.Equal(s.got[:min(n, len(s.resume))], s.resume[:min(n, len(s.resume))]):
		// The backend began anew, and differently.
		s.resume, at.p.Tokens = nil, s.got
	case n >= len(s.resume):
		s.resume, at.p.Tokens = nil, s.got
	}
	e := at.about(runtime.TextDelta)
	e.Does, e.Text, e.Tokens, e.Forced = "", d.Text, d.Tokens, d.Origin == backend.Forced
	e.Offset, e.Done = s.offset, before
	s.offset += len(d.Text)
	at.mu.Unlock()
	at.pub.emit(e)
}

// done ends the attempt: with its answer, with the end that somebody asked for,
// or with a failure that says whether and when to try again.
func (at *attempt) done(out *answer, err error) (*answer, error) {
	if err == nil {
		out.Result.Task = at.ask.Task
		if err = out.Result.Normalize(); err == nil {
			out.Queue = at.w.queue
			return out, nil
		}
	}
	call := at.ask.Call != nil
	select {
	case <-activity.GetWorkerStopChannel(at.outer):
		// The worker goes, not the run: another worker goes on.
		if at.ctx.Err() == nil {
			break
		}
		at.beat()
		if at.unsafe() {
			return nil, temporal.NewNonRetryableApplicationError("the worker stopped while the call was under way", typeUnknown, nil)
		}
		return nil, temporal.NewApplicationErrorWithOptions("the worker stopped", "closed", temporal.ApplicationErrorOptions{NextRetryDelay: 10 * time.Millisecond})
	default:
	}
	if at.outer.Err() != nil && errors.Is(err, context.Canceled) {
		return nil, at.outer.Err()
	}
	at.mu.Lock()
	if classify(err, call) == later {
		at.p.Failed++
		at.p.Tries++
	}
	f := runtime.NewFailure(err)
	f.Message = at.after(err)
	tries := at.p.Tries
	wait, again := at.ask.Retry.wait(max(at.p.Failed, 1), err, call)
	again = again && !at.unsafe()
	at.now = nil
	at.mu.Unlock()
	at.beat() // the count goes to the next attempt
	if again {
		at.retried(err, tries, wait)
	}
	return nil, failed(f, wait, again)
}

// safely runs f; a panic in it is an error.
func safely(f func() (runtime.Result, error)) (out runtime.Result, err error) {
	returned := false
	defer func() {
		if returned {
			return
		}
		var p *runtime.PanicError
		switch v := recover().(type) {
		case *runtime.PanicError: // of a call with a timeout
			p = v
		case nil:
			p = &runtime.PanicError{Value: "the function ended its goroutine (runtime.Goexit)", Stack: debug.Stack()}
		default:
			p = &runtime.PanicError{Value: v, Stack: debug.Stack()}
		}
		out, err = runtime.Result{}, p
	}()
	out, err = f()
	returned = true
	return out, err
}

// does says what carrying out a task is: its node's kind, or call for the
// function of a check.
func does(t *runtime.Task) string {
	if t.Call != nil {
		return string(lang.KindCall)
	}
	return string(t.Node.Kind)
}
