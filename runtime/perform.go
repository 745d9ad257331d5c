package runtime

import (
	"context"
	"encoding/json"
	"errors"
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
			err := error(errors.New("the function ended its goroutine (runtime.Goexit)"))
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			}
			o.result = Result{Failure: NewFailure(err)}
		}
		o.result.Task = t.ID
		if err := o.result.Normalize(); err != nil {
			o.result = Result{Task: t.ID, Failure: NewFailure(err)}
		}
		select {
		case r.outcomes <- o:
		case <-r.gone:
		}
	}()
	o.result = r.carryOut(ctx, t)
	returned = true
}

func (r *runner) carryOut(ctx context.Context, t *Task) Result {
	switch {
	case t.Generate != nil:
		req := t.Generate
		if r.em != nil {
			asking := *req
			asking.Progress = true
			req = &asking
		}
		res, err := r.be.Generate(ctx, req, r.em.deltas(ctx, t))
		if err == nil && res == nil {
			err = fmt.Errorf("the backend returned neither result nor error: %w", backend.ErrUnavailable)
		}
		if err != nil {
			return Result{Failure: NewFailure(err)}
		}
		return Result{Generate: res}
	case t.Score != nil:
		res, err := r.be.Score(ctx, t.Score)
		switch {
		case err == nil && res == nil:
			err = fmt.Errorf("the backend returned neither result nor error: %w", backend.ErrUnavailable)
		case err == nil && len(res.Options) != len(t.Score.Options):
			err = fmt.Errorf("the backend returned %d scores for %d options: %w", len(res.Options), len(t.Score.Options), backend.ErrUnavailable)
		}
		if err != nil {
			return Result{Failure: NewFailure(err)}
		}
		return Result{Score: res}
	}
	v, err := CallFunc(WithTask(ctx, *t), r.funcs, t.Call)
	if err != nil {
		return Result{Failure: NewFailure(err)}
	}
	return Result{Value: v}
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
