package workflows

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// Errors that callers match with errors.Is.
var (
	// ErrUnknownRun: there is no run of that name, or its history is gone.
	ErrUnknownRun = errors.New("unknown run")
	// ErrNotWaiting: nobody waits for what was said.
	ErrNotWaiting = errors.New("nothing waits for it")
	// ErrWrongAnswer: what was said is not of the type that is wanted.
	ErrWrongAnswer = errors.New("wrong answer")
	// ErrOtherProgram: a run of that name exists, of another program or other
	// inputs.
	ErrOtherProgram = errors.New("the run is of another program")
	// ErrStuck: no worker that there is can carry the run out. It goes on once one
	// is there that can.
	ErrStuck = errors.New("the run is stuck")
	// ErrNoServer: the server does not answer, or the program coppice-temporal is not
	// there or does not start.
	ErrNoServer = errors.New("no Temporal server")
)

// again says what is done about a class of failures.
type again uint8

const (
	never again = iota // the same would fail again
	later              // it may pass: wait and try again, so often as allowed
)

// classes are the failures that mean something else here than to a single call.
// All others are classified by the one table that all of coppice has, which is
// backend.Retryable. Nothing below an activity repeats anything.
var classes = []struct {
	err   error
	again again
}{
	{runtime.ErrPanic, never},
	{context.Canceled, never}, // by nobody that the attempt knows of
}

// classify says what is done about err. A function that failed may be called
// again, if its node allows it, unless the error says that it is final.
func classify(err error, call bool) again {
	for _, c := range classes {
		if errors.Is(err, c.err) {
			return c.again
		}
	}
	if call {
		var says interface{ Retryable() bool }
		if errors.As(err, &says) && !says.Retryable() {
			return never
		}
		return later
	}
	if backend.Retryable(err) || errors.Is(err, backend.ErrClosed) { // another worker's may be open
		return later
	}
	return never
}

// Retry says how often and how patiently a failed task is made again.
type Retry struct {
	Attempts int           // in all, the first included; those that a worker's death ended do not count; default 5
	Wait     time.Duration // before the second; doubles with each further one; default 500 ms
	// Max bounds a single wait; a server that asks for more is not waited for. 0:
	// one minute, and a server that asks for more is given it.
	Max time.Duration
}

func (r Retry) withDefaults() Retry {
	if r.Attempts <= 0 {
		r.Attempts = 5
	}
	if r.Wait <= 0 {
		r.Wait = 500 * time.Millisecond
	}
	return r
}

// most is the longest wait.
func (r Retry) most() time.Duration {
	if r.Max > 0 {
		return r.Max
	}
	return time.Minute
}

// with returns r with what a node says of itself.
func (r Retry) with(n lang.Retry) Retry {
	if n.Attempts > 0 {
		r.Attempts = n.Attempts
	}
	if n.Wait > 0 {
		r.Wait = n.Wait
	}
	if n.Max > 0 {
		r.Max = n.Max
	}
	r.Wait = min(r.Wait, r.most())
	return r
}

// wait returns how long to wait after the nth failure of a task, and whether to
// try again at all. What a server asks for is given to it unless a bound is set:
// nobody holds a connection meanwhile.
func (r Retry) wait(n int, err error, call bool) (time.Duration, bool) {
	if classify(err, call) == never || n >= r.Attempts {
		return 0, false
	}
	if asked := backend.RetryDelay(err); asked > 0 {
		return asked, r.Max <= 0 || asked <= r.Max
	}
	d := r.Wait
	for range n - 1 {
		if d *= 2; d >= r.most() {
			return r.most(), true
		}
	}
	return d, true
}

// The types of application errors that activities and the workflow fail with;
// for a failed task it is the code of its runtime.Failure.
const (
	typeNoContext  = "context_missing" // the worker's store lacks the parent context
	typeUnknown    = "unknown_outcome" // of a call that must not be made twice
	typeProgram    = "ProgramFailed"
	typeNotWaiting = "NotWaiting"
	typeAnswer     = "WrongAnswer"
)

// longestMessage bounds the bytes of a failure's message: they are in the history.
const longestMessage = 16 << 10

// failed makes of a failed attempt what Temporal is told.
func failed(f *runtime.Failure, wait time.Duration, again bool) error {
	f.Message = clip(f.Message, longestMessage)
	if again {
		return temporal.NewApplicationErrorWithOptions(f.Message, f.Code, temporal.ApplicationErrorOptions{NextRetryDelay: wait})
	}
	return temporal.NewApplicationErrorWithOptions(f.Message, f.Code, temporal.ApplicationErrorOptions{NonRetryable: true})
}

// failure makes of an activity's error the failure of its task.
func failure(err error) *runtime.Failure {
	var app *temporal.ApplicationError
	var timeout *temporal.TimeoutError
	switch {
	case errors.As(err, &app):
		return &runtime.Failure{Code: app.Type(), Message: app.Message()}
	case errors.As(err, &timeout):
		msg := fmt.Sprintf("no result in time (%s)", timeout.TimeoutType())
		if last := timeout.Unwrap(); last != nil {
			msg += "; the last attempt: " + last.Error()
		}
		return &runtime.Failure{Code: "timeout", Message: msg}
	}
	return &runtime.Failure{Code: "error", Message: err.Error()}
}
