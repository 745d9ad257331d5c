package runtime

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// named is a backend under the name by which nodes call it; the run's own has
// none.
type named struct {
	name string
	be   backend.Backend
}

// permanent is an error that another attempt would not change.
type permanent struct{ error }

func (p permanent) Unwrap() error   { return p.error }
func (p permanent) Retryable() bool { return false }

// Permanent marks an error of a function as one that another attempt would not
// change, so that a call with retries is not made again.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanent{err}
}

// TimeoutError is the failure of an attempt that took longer than its node
// allows. It is context.DeadlineExceeded.
type TimeoutError struct{ After time.Duration }

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("no result within the timeout of %v", e.After)
}

// Is makes errors.Is(err, context.DeadlineExceeded) true.
func (e *TimeoutError) Is(target error) bool { return target == context.DeadlineExceeded }

// terms returns those of a task, with the run's where the node says nothing.
func (r *runner) terms(t *Task) lang.Terms {
	var terms lang.Terms
	if of := t.Node.Terms(); of != nil {
		terms = *of
	}
	if t.Call != nil && t.Node.Call == nil { // the function of a check
		terms = lang.Terms{Timeout: terms.Timeout}
	}
	if terms.Timeout == 0 {
		terms.Timeout = r.cfg.timeout
	}
	if terms.Retry.Attempts == 0 && t.Call == nil {
		terms.Retry = r.cfg.retry
	}
	return terms
}

// backends returns those that a request is sent to, one after the other has
// failed for good.
func (r *runner) backends(fallback []string) []named {
	out := []named{{be: r.be}}
	if fallback == nil {
		return append(out, r.cfg.fallback...)
	}
	for _, name := range fallback {
		if i := slices.IndexFunc(r.cfg.fallback, func(n named) bool { return n.name == name }); i >= 0 {
			out = append(out, r.cfg.fallback[i])
		}
	}
	return out
}

// carryOut makes attempts at a task until one succeeds or none is left: all at
// the run's backend first, then at each fallback. Most tasks are plain; the way to
// their backend is kept short, so that a goroutine's first stack is enough for it.
func (r *runner) carryOut(ctx context.Context, f *flight) {
	switch t := &f.task; {
	case !r.plain(t):
		f.result = r.insist(ctx, t)
	default:
		if err := r.once(ctx, t, r.be, &f.result); err != nil {
			f.result = Result{Failure: NewFailure(err), Attempts: 1}
		}
	}
}

// plain reports whether there is one attempt at a task, with no bound on its time.
func (r *runner) plain(t *Task) bool {
	if r.cfg.timeout > 0 {
		return false
	}
	terms := t.Node.Terms()
	if terms.Timeout > 0 {
		return false
	}
	if t.Call != nil && t.Node.Call == nil { // the function of a check
		return true
	}
	if terms.Retry.Attempts > 0 {
		return false
	}
	return t.Call != nil || r.cfg.retry.Attempts == 0 && len(r.cfg.fallback) == 0
}

// insist makes attempts at a task as its terms say.
func (r *runner) insist(ctx context.Context, t *Task) Result {
	terms := r.terms(t)
	chain := []named{{}}
	if t.Call == nil {
		chain = r.backends(terms.Fallback)
	}
	attempts := 0
	var first error
	for i, b := range chain {
		res, n, err := r.try(ctx, t, b.be, terms, i < len(chain)-1, attempts)
		attempts += n
		if err == nil {
			if attempts > 1 {
				res.Attempts = attempts
			}
			res.By = b.name
			return res
		}
		last := err // what it is decides, not what those before it were
		if first != nil {
			err = fmt.Errorf("%w; then fallback %s: %w", first, b.name, err)
		}
		first = err
		if ctx.Err() != nil || i == len(chain)-1 || !CanFallBack(last) {
			return Result{Failure: NewFailure(first), Attempts: attempts}
		}
	}
	panic("unreachable")
}

// try makes attempts at one backend. more says that a fallback follows, so that
// an attempt that failed is taken back even if it is the last one here.
func (r *runner) try(ctx context.Context, t *Task, be backend.Backend, terms lang.Terms, more bool, before int) (Result, int, error) {
	own := ctx
	if terms.Retry.Attempts > 0 {
		own = backend.OwnRetries(ctx)
	}
	for n := 1; ; n++ {
		res, err := r.attempt(own, t, be, terms.Timeout)
		if err == nil || ctx.Err() != nil {
			return res, n, err
		}
		wait, again := time.Duration(0), false
		if n < terms.Retry.Attempts && mayRetry(t, err) {
			wait, again = retryWait(terms.Retry, n, backend.RetryDelay(err))
		}
		if again || more && CanFallBack(err) {
			r.retried(t, err, before+n, wait)
		}
		if !again {
			return Result{}, n, err
		}
		if serr := r.cfg.sleep(ctx, wait); serr != nil {
			return Result{}, n, fmt.Errorf("%w; before that: %w", serr, err)
		}
	}
}

// retried tells listeners that an attempt failed and another is made.
func (r *runner) retried(t *Task, err error, attempt int, wait time.Duration) {
	e := t.event(NodeRetried)
	e.Error, e.Attempt, e.Wait = err.Error(), attempt, wait.Seconds()
	r.em.emit(e)
}

// mayRetry reports whether another attempt at a task can be of use after err.
func mayRetry(t *Task, err error) bool {
	if t.Call == nil {
		return backend.Retryable(err)
	}
	if t.Call.Unsafe || errors.Is(err, ErrPanic) || errors.Is(err, context.Canceled) {
		return false
	}
	var says interface{ Retryable() bool }
	return !errors.As(err, &says) || says.Retryable()
}

// CanFallBack reports whether another backend may do what one has failed at for
// this reason. A wrong request is wrong everywhere. Only drivers of a Machine
// need it.
func CanFallBack(err error) bool {
	for _, e := range []error{backend.ErrOverloaded, backend.ErrUnavailable, backend.ErrContextLength, backend.ErrUnsupported, backend.ErrClosed, context.DeadlineExceeded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// retryWait returns how long to wait after failure number n, from 1, and whether
// to go on at all; asked is what the server asked for.
func retryWait(r lang.Retry, n int, asked time.Duration) (time.Duration, bool) {
	first, most := r.Wait, r.Max
	if first <= 0 {
		first = 500 * time.Millisecond
	}
	if most <= 0 {
		most = time.Minute
	}
	if asked > most {
		return 0, false
	}
	if asked > 0 {
		return asked, true
	}
	d := min(first, most)
	for range n - 1 {
		if d *= 2; d >= most {
			d = most
			break
		}
	}
	return d - time.Duration(rand.Int64N(int64(d)/2+1)), true
}

// sleep waits for d or the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// attempt carries a task out once. What does not heed the end of the run is waited
// for by await, which says so.
func (r *runner) attempt(ctx context.Context, t *Task, be backend.Backend, timeout time.Duration) (Result, error) {
	return Within(ctx, timeout, math.MaxInt64, func(ctx context.Context) (res Result, err error) {
		err = r.once(ctx, t, be, &res)
		return res, err
	})
}

// slack is the part of a timeout for which an attempt that is over is waited for, so
// that one which heeds its context has ended before another begins.
const slack = 10

// Within calls f and ends its context after timeout; 0 or less is no bound. What took
// too long is a *TimeoutError, whatever f returns then: it comes at the timeout, or a
// tenth of it later if f does not heed its context, and f is left to itself. At the
// end of ctx f is waited for as long as grace. A panic of f in that time is one of
// Within, with a *PanicError. Only drivers of a Machine need it.
func Within(ctx context.Context, timeout, grace time.Duration, f func(context.Context) (Result, error)) (Result, error) {
	if timeout <= 0 {
		return f(ctx)
	}
	late := &TimeoutError{timeout}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, late)
	defer cancel()
	type answer struct {
		res Result
		err error
		bad *PanicError // handed on
	}
	done := make(chan answer, 1)
	go func() {
		a := answer{err: errExit}
		defer func() {
			if a.err == errExit {
				if v := recover(); v != nil {
					a.bad = &PanicError{Value: v, Stack: debug.Stack()}
				}
			}
			done <- a
		}()
		a.res, a.err = f(ctx)
	}()
	var a answer
	select {
	case a = <-done:
	case <-ctx.Done():
		over := context.Cause(ctx) == late
		if over {
			grace = min(grace, timeout/slack)
		}
		left := time.NewTimer(grace)
		defer left.Stop()
		select {
		case a = <-done:
		case <-left.C:
			a.err = context.Cause(ctx)
		}
		if over && a.bad == nil {
			return Result{}, late
		}
	}
	switch {
	case a.bad != nil:
		panic(a.bad)
	case a.err != nil && context.Cause(ctx) == late:
		return Result{}, late
	}
	return a.res, a.err
}

// errExit is the outcome of work whose goroutine ended without returning.
var errExit = errors.New("the function ended its goroutine (runtime.Goexit)")
