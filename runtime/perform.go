package runtime

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// perform carries out a task and sends its outcome, whatever happens: a panic
// is an error, and so is a goroutine that ends itself.
func (r *runner) perform(ctx context.Context, t *Task) {
	o := outcome{task: t}
	returned := false
	defer func() {
		if !returned {
			err := errExit
			if v := recover(); v != nil {
				if p, ok := v.(*PanicError); ok { // of an attempt with a timeout
					err = p
				} else {
					err = &PanicError{Value: v, Stack: debug.Stack()}
				}
			}
			o.result = Result{Failure: NewFailure(err)}
		}
		o.result.Task = t.ID
		if err := o.result.Normalize(); err != nil {
			o.result = Result{Task: t.ID, Failure: NewFailure(err), Attempts: o.result.Attempts}
		}
		select {
		case r.outcomes <- o:
		case <-r.gone:
		}
	}()
	o.result = r.carryOut(ctx, t)
	returned = true
}

// once carries a task out, with no regard to its terms.
func (r *runner) once(ctx context.Context, t *Task, be backend.Backend) (Result, error) {
	switch {
	case t.Generate != nil:
		req := t.Generate
		untagged := req.Constraint.Tags != nil && !be.Info().Capabilities.Tags
		if untagged {
			free := *req
			free.Constraint.Tags = nil
			req = &free
		}
		if r.em != nil {
			asking := *req
			asking.Progress = true
			req = &asking
		}
		res, err := be.Generate(ctx, req, r.em.deltas(ctx, t))
		if err == nil && res == nil {
			err = fmt.Errorf("the backend returned neither result nor error: %w", backend.ErrUnavailable)
		}
		if err == nil && untagged {
			tagless := *res
			tagless.Emulated = append(tagless.Emulated[:len(tagless.Emulated):len(tagless.Emulated)], "tags: asked for in the prompt only, and read leniently")
			res = &tagless
		}
		return Result{Generate: res}, err
	case t.Score != nil:
		res, err := be.Score(ctx, t.Score)
		switch {
		case err == nil && res == nil:
			err = fmt.Errorf("the backend returned neither result nor error: %w", backend.ErrUnavailable)
		case err == nil && len(res.Options) != len(t.Score.Options):
			err = fmt.Errorf("the backend returned %d scores for %d options: %w", len(res.Options), len(t.Score.Options), backend.ErrUnavailable)
		}
		return Result{Score: res}, err
	}
	funcs := r.funcs
	if t.fn != nil {
		funcs = lang.Funcs{t.Call.Func: *t.fn}
	}
	v, err := CallFunc(WithTask(ctx, *t), funcs, t.Call)
	return Result{Value: v}, err
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
