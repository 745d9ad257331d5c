package workflows

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/runtime"
)

// The names of activities, as Temporal shows them.
const (
	activityGenerate = "generate"
	activityScore    = "score"
	activityCall     = "call"
)

// ask is what an activity is asked, but for the prompt.
type ask struct {
	Run    string `json:"run"`
	Task   string `json:"task"`
	Branch string `json:"branch,omitempty"`
	Node   string `json:"node"`
	Does   string `json:"does"`
	// Parent is the stored context that the prompt begins with.
	Parent string `json:"parent,omitempty"`

	Generate *backend.Request      `json:"generate,omitempty"` // without turns and constraint
	Score    *backend.ScoreRequest `json:"score,omitempty"`    // without turns
	Call     *runtime.Call         `json:"call,omitempty"`

	Timeout  time.Duration `json:"timeout,omitempty"` // of one attempt, 0: none
	Retry    Retry         `json:"retry"`
	Fallback []string      `json:"fallback"` // null: all that the worker has
}

// answer is what an activity returns.
type answer struct {
	Result  runtime.Result `json:"result"`
	Base    string         `json:"base,omitempty"`    // the stored prompt up to the end of what siblings share
	Context string         `json:"context,omitempty"` // the stored prompt
	Queue   string         `json:"queue,omitempty"`   // of the worker that has it in its cache
}

// progress is what a heartbeat carries from one attempt to the next.
type progress struct {
	// Failed counts attempts that failed by themselves.
	Failed int `json:"failed,omitempty"`
	// Tokens of Model were generated so far.
	Tokens []backend.Token `json:"tokens,omitempty"`
	Model  string          `json:"model,omitempty"`
}

// generate, score and call are the activities. base and delta are what the
// prompt has beyond the parent; base is the part that siblings have in common,
// so that it is stored once for all of them.

func (w *Worker) generate(ctx context.Context, a ask, base, delta *grown, c *backend.Constraint) (*answer, error) {
	if a.Generate == nil {
		return nil, malformed(a, "no request")
	}
	turns, shared, hash, err := w.prompt(a.Parent, base, delta)
	if err != nil {
		return nil, err
	}
	at := w.attempt(ctx, &a)
	defer at.stop()
	req := *a.Generate
	req.Turns = turns
	if c != nil {
		req.Constraint = *c
	}
	info := w.cfg.Backend.Info()
	req.Resume = at.resume(info)
	at.event(runtime.NodeStarted, nil)
	out, err := safely(func() (*answer, error) {
		var res *backend.Result
		by, err := at.send(func(be backend.Backend) (err error) {
			res, err = be.Generate(backend.OwnRetries(at.ctx), &req, at.delta)
			if err == nil && res == nil {
				err = fmt.Errorf("the backend returned neither result nor error: %w", backend.ErrUnavailable)
			}
			return err
		})
		return &answer{Result: runtime.Result{Generate: res, By: by}, Base: shared, Context: hash}, err
	})
	return at.done(out, err)
}

func (w *Worker) score(ctx context.Context, a ask, base, delta *grown) (*answer, error) {
	if a.Score == nil {
		return nil, malformed(a, "no request")
	}
	turns, shared, hash, err := w.prompt(a.Parent, base, delta)
	if err != nil {
		return nil, err
	}
	at := w.attempt(ctx, &a)
	defer at.stop()
	req := *a.Score
	req.Turns = turns
	at.event(runtime.NodeStarted, nil)
	out, err := safely(func() (*answer, error) {
		var res *backend.ScoreResult
		by, err := at.send(func(be backend.Backend) (err error) {
			res, err = be.Score(backend.OwnRetries(at.ctx), &req)
			if err == nil && (res == nil || len(res.Options) != len(req.Options)) {
				err = fmt.Errorf("the backend did not return a score for each of %d options: %w", len(req.Options), backend.ErrUnavailable)
			}
			return err
		})
		return &answer{Result: runtime.Result{Score: res, By: by}, Base: shared, Context: hash}, err
	})
	return at.done(out, err)
}

func (w *Worker) call(ctx context.Context, a ask) (*answer, error) {
	if a.Call == nil {
		return nil, malformed(a, "no call")
	}
	at := w.attempt(ctx, &a)
	defer at.stop()
	at.event(runtime.NodeStarted, nil)
	out, err := safely(func() (*answer, error) {
		v, err := runtime.CallFunc(runtime.WithTask(at.ctx, runtime.Task{ID: a.Task, Call: a.Call}), w.cfg.Funcs, a.Call)
		if err != nil {
			return nil, err
		}
		return &answer{Result: runtime.Result{Value: v}}, nil
	})
	return at.done(out, err)
}

func malformed(a ask, what string) error {
	return temporal.NewNonRetryableApplicationError(fmt.Sprintf("%s: the activity has %s", a.Task, what), "invalid", nil)
}

// prompt puts the prompt together and stores it, and returns the hashes of the
// part that siblings share and of the whole.
func (w *Worker) prompt(parent string, base, delta *grown) (turns []backend.Turn, shared, whole string, err error) {
	_, shared, err = w.contexts.grow(parent, base)
	if err == nil {
		turns, whole, err = w.contexts.grow(shared, delta)
	}
	if errors.Is(err, ErrMissing) {
		err = temporal.NewNonRetryableApplicationError(err.Error(), typeNoContext, err)
	}
	return turns, shared, whole, err
}

// safely runs f; a panic in it is an error.
func safely(f func() (*answer, error)) (out *answer, err error) {
	returned := false
	defer func() {
		if !returned {
			v := recover()
			if v == nil {
				v = "the function ended its goroutine (runtime.Goexit)"
			}
			out, err = nil, &runtime.PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	out, err = f()
	returned = true
	return out, err
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

	mu     sync.Mutex
	p      progress
	offset int
}

// attempt starts to beat at once, before there is anything to tell: a long
// prefill, or a queue before it, is no reason to give an attempt up.
func (w *Worker) attempt(ctx context.Context, a *ask) *attempt {
	at := &attempt{w: w, ask: a, outer: ctx, over: make(chan struct{})}
	if activity.HasHeartbeatDetails(ctx) {
		var p progress
		if activity.GetHeartbeatDetails(ctx, &p) == nil {
			at.p = p
		}
	}
	if a.Timeout > 0 {
		at.ctx, at.cancel = context.WithTimeout(ctx, a.Timeout)
	} else {
		at.ctx, at.cancel = context.WithCancel(ctx)
	}
	at.pub = w.events.of(a.Run)
	at.beat()
	every := activity.GetInfo(ctx).HeartbeatTimeout / 3
	if every <= 0 {
		every = w.cfg.Heartbeat / 3
	}
	at.beats.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				at.beat()
			case <-activity.GetWorkerStopChannel(ctx):
				at.beat()
				at.cancel()
				return
			case <-at.over:
				return
			}
		}
	})
	return at
}

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

// resume returns what an earlier attempt generated, if the model is the same.
func (at *attempt) resume(info backend.Info) []backend.Token {
	at.mu.Lock()
	defer at.mu.Unlock()
	tokens := at.p.Tokens
	if info.Fingerprint == "" || at.p.Model != info.Fingerprint {
		tokens = nil
	}
	// The backend streams them again, or others.
	at.p.Model, at.p.Tokens = info.Fingerprint, nil
	return tokens
}

// delta notes and publishes a piece of text.
func (at *attempt) delta(d backend.Delta) {
	if d.PromptTokens > 0 {
		return
	}
	at.mu.Lock()
	at.p.Tokens = append(at.p.Tokens, d.Tokens...)
	offset := at.offset
	at.offset += len(d.Text)
	at.mu.Unlock()
	if at.pub == nil || at.ctx.Err() != nil {
		return
	}
	at.pub.emit(runtime.Event{
		Kind: runtime.TextDelta, Task: at.ask.Task, Node: at.ask.Node, Branch: at.ask.Branch,
		Text: d.Text, Offset: offset, Tokens: d.Tokens, Forced: d.Origin == backend.Forced,
	})
}

func (at *attempt) event(kind runtime.EventKind, res *runtime.Result) {
	if at.pub == nil {
		return
	}
	at.pub.emit(runtime.Event{Kind: kind, Task: at.ask.Task, Node: at.ask.Node, Branch: at.ask.Branch, Does: at.ask.Does})
}

// send sends a request to the backend and, where that has failed for good, to the
// fallbacks in their order, once each. It returns the name of the one that
// answered.
func (at *attempt) send(f func(backend.Backend) error) (by string, err error) {
	first := f(at.w.cfg.Backend)
	if first == nil || at.ctx.Err() != nil {
		return "", first
	}
	at.mu.Lock()
	tried := at.p.Failed + 1
	at.mu.Unlock()
	if _, again := at.ask.Retry.wait(tried, first, false); again || !canFallBack(first) {
		return "", first
	}
	for _, b := range at.w.cfg.Fallback {
		if at.ask.Fallback != nil && !slices.Contains(at.ask.Fallback, b.Name) {
			continue
		}
		err := f(b.Backend)
		if err == nil {
			return b.Name, nil
		}
		first = fmt.Errorf("%w; then fallback %s: %w", first, b.Name, err)
		if at.ctx.Err() != nil || !canFallBack(err) {
			break
		}
	}
	return "", first
}

// canFallBack reports whether another backend may do what one has failed at for
// this reason. A wrong request is wrong everywhere.
func canFallBack(err error) bool {
	for _, e := range []error{backend.ErrOverloaded, backend.ErrUnavailable, backend.ErrContextLength, backend.ErrUnsupported, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
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
	select {
	case <-activity.GetWorkerStopChannel(at.outer):
		// The worker goes, not the run: another worker goes on.
		if at.ctx.Err() != nil && !errors.Is(at.ctx.Err(), context.DeadlineExceeded) {
			at.beat()
			return nil, temporal.NewApplicationErrorWithOptions("the worker stopped", "closed", temporal.ApplicationErrorOptions{NextRetryDelay: 10 * time.Millisecond})
		}
	default:
	}
	if at.outer.Err() != nil && errors.Is(err, context.Canceled) {
		return nil, at.outer.Err()
	}
	if errors.Is(at.ctx.Err(), context.DeadlineExceeded) && at.ask.Timeout > 0 {
		err = fmt.Errorf("no result within %v: %w", at.ask.Timeout, context.DeadlineExceeded)
	}
	at.mu.Lock()
	if classify(err, at.ask.Call != nil) == later {
		at.p.Failed++
	}
	tried := at.p.Failed
	at.mu.Unlock()
	at.beat() // the count goes to the next attempt
	return nil, failed(err, at.ask.Retry, max(tried, 1), at.ask.Call != nil)
}
