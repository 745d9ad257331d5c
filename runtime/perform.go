package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// perform carries out a task and hands over its outcome, whatever happens: a panic
// is an error, and so is a goroutine that ends itself.
func (r *runner) perform(ctx context.Context, f *flight) {
	returned := false
	defer func() {
		if !returned {
			f.result = Result{Failure: NewFailure(broken(recover()))}
		}
		r.hand(f)
	}()
	r.carryOut(ctx, f)
	returned = true
}

// hand gives the outcome of a flight to whoever runs the machine, if it still does.
func (r *runner) hand(f *flight) {
	f.result.Task = f.task.ID
	if err := f.result.Normalize(); err != nil {
		f.result = Result{Task: f.task.ID, Failure: NewFailure(err), Attempts: f.result.Attempts}
	}
	select {
	case r.outcomes <- f:
	case <-r.gone:
	}
}

// broken is the error of work that did not return; v is what it panicked with, if it
// did.
func broken(v any) error {
	if v == nil {
		return errExit
	}
	if p, ok := v.(*PanicError); ok { // of an attempt with a timeout
		return p
	}
	return &PanicError{Value: v, Stack: debug.Stack()}
}

// once carries a task out, with no regard to its terms, and sets what came of it.
func (r *runner) once(ctx context.Context, t *Task, be backend.Backend, res *Result) (err error) {
	switch {
	case t.Generate != nil:
		req := t.Generate
		if r.em != nil {
			asking := *req
			asking.Progress = true
			req = &asking
		}
		res.Generate, err = Generate(ctx, be, req, r.em.deltas(ctx, t))
	case t.Score != nil:
		res.Score, err = Score(ctx, be, t.Score)
	default:
		res.Value, err = r.call(ctx, t)
	}
	return err
}

// call calls the function of a task.
func (r *runner) call(ctx context.Context, t *Task) (json.RawMessage, error) {
	funcs := r.funcs
	if t.fn != nil {
		funcs = lang.Funcs{t.Call.Func: *t.fn}
	}
	return CallFunc(WithTask(ctx, *t), funcs, t.Call)
}

// Generate sends a generation to a backend once. Tags are left out for one that
// cannot hold the model to them, which the result then says, and a backend that
// returns nothing at all has failed. Only drivers of a Machine need it.
func Generate(ctx context.Context, be backend.Backend, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	if req.Constraint.Tags != nil {
		return generateTags(ctx, be, req, emit)
	}
	res, err := be.Generate(ctx, req, emit)
	if err == nil && res == nil {
		return nil, errNothing
	}
	return res, err
}

var errNothing = fmt.Errorf("the backend returned neither result nor error: %w", backend.ErrUnavailable)

// generateTags is Generate for free text with tagged parts.
func generateTags(ctx context.Context, be backend.Backend, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	untagged := !be.Info().Capabilities.Tags
	if untagged {
		free := *req
		free.Constraint.Tags = nil
		req = &free
	}
	res, err := be.Generate(ctx, req, emit)
	switch {
	case err != nil:
		return nil, err
	case res == nil:
		return nil, errNothing
	case untagged:
		tagless := *res
		tagless.Emulated = append(tagless.Emulated[:len(tagless.Emulated):len(tagless.Emulated)], "tags: asked for in the prompt only, and read leniently")
		return &tagless, nil
	}
	return res, nil
}

// Score sends a request for scores to a backend once. A backend that does not
// return one for each option has failed. Only drivers of a Machine need it.
func Score(ctx context.Context, be backend.Backend, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	res, err := be.Score(ctx, req)
	switch {
	case err != nil:
		return nil, err
	case res == nil:
		return nil, errNothing
	case len(res.Options) != len(req.Options):
		return nil, fmt.Errorf("the backend returned %d scores for %d options: %w", len(res.Options), len(req.Options), backend.ErrUnavailable)
	}
	return res, nil
}

// CallFunc calls a function and returns its result as JSON, which is what a
// Result holds. It does not recover panics.
func CallFunc(ctx context.Context, funcs lang.Funcs, c *Call) (json.RawMessage, error) {
	f, ok := funcs[c.Func]
	if !ok || f.Call == nil {
		return nil, fmt.Errorf("no function %q is registered", c.Func)
	}
	v, err := f.Call(ctx, c.Args)
	if err != nil {
		return nil, err
	}
	if v, err = lang.Normalize(v); err != nil {
		return nil, fmt.Errorf("the result of %s cannot be stored: %w", c.Func, err)
	}
	return lang.FormatJSON(v, f.Result), nil
}
