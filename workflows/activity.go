package workflows

import (
	"context"
	"errors"
	"fmt"
	"time"

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

	Timeout  time.Duration `json:"timeout,omitempty"` // of one request, 0: none
	Retry    Retry         `json:"retry"`
	Fallback []string      `json:"fallback"` // null: all that the worker has

	// First is the id of the run's first history: the name may be used again.
	First string `json:"first,omitempty"`
	// Foresee is for the backend of the worker that it is sent to.
	Foresee *foresight `json:"foresee,omitempty"`
	// Before is what another activity had come to when its worker was lost.
	Before *progress `json:"before,omitempty"`
}

// answer is what an activity returns.
type answer struct {
	Result  runtime.Result `json:"result"`
	Base    string         `json:"base,omitempty"`    // the stored prompt up to the end of what siblings share
	Context string         `json:"context,omitempty"` // the stored prompt
	Queue   string         `json:"queue,omitempty"`   // of the worker that has it in its cache
}

// generate, score and call are the activities. base and delta are what the
// prompt has beyond the parent; base is the part that siblings have in common,
// so that it is stored once for all of them.

func (w *Worker) generate(ctx context.Context, a ask, base, delta *grown, c *backend.Constraint) (*answer, error) {
	if a.Generate == nil {
		return nil, malformed(a, "no request")
	}
	w.foreseen(a.Foresee, time.Now())
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
	req.Progress = at.pub != nil
	res, err := at.request(func(ctx context.Context, be backend.Backend, s *stream) (runtime.Result, error) {
		own := req // a fallback that is late may still read its own
		own.Resume = s.resume
		out, err := runtime.Generate(ctx, be, &own, func(d backend.Delta) { s.delta(ctx, d) })
		return runtime.Result{Generate: out}, err
	})
	return at.done(&answer{Result: res, Base: shared, Context: hash}, err)
}

func (w *Worker) score(ctx context.Context, a ask, base, delta *grown) (*answer, error) {
	if a.Score == nil {
		return nil, malformed(a, "no request")
	}
	w.foreseen(a.Foresee, time.Now())
	turns, shared, hash, err := w.prompt(a.Parent, base, delta)
	if err != nil {
		return nil, err
	}
	at := w.attempt(ctx, &a)
	defer at.stop()
	req := *a.Score
	req.Turns = turns
	res, err := at.request(func(ctx context.Context, be backend.Backend, _ *stream) (runtime.Result, error) {
		own := req
		out, err := runtime.Score(ctx, be, &own)
		return runtime.Result{Score: out}, err
	})
	return at.done(&answer{Result: res, Base: shared, Context: hash}, err)
}

func (w *Worker) call(ctx context.Context, a ask) (*answer, error) {
	if a.Call == nil {
		return nil, malformed(a, "no call")
	}
	w.foreseen(a.Foresee, time.Now())
	at := w.attempt(ctx, &a)
	defer at.stop()
	at.event(runtime.NodeStarted)
	res, err := safely(func() (runtime.Result, error) {
		return runtime.Within(at.ctx, a.Timeout, grace, func(ctx context.Context) (runtime.Result, error) {
			v, err := runtime.CallFunc(runtime.WithTask(ctx, runtime.Task{ID: a.Task, Call: a.Call}), w.cfg.Funcs, a.Call)
			return runtime.Result{Value: v}, err
		})
	})
	return at.done(&answer{Result: res}, err)
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
