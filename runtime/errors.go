package runtime

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// Errors that callers match with errors.Is.
var (
	// ErrUnknownTask: a result names a task that the machine never had.
	ErrUnknownTask = errors.New("unknown task")
	// ErrFinishedTask: a result names a task that has its result already.
	ErrFinishedTask = errors.New("task is finished already")
	// ErrCancelledTask: a result names a task that is no longer wanted.
	ErrCancelledTask = errors.New("task was cancelled")
	// ErrBadResult: a result does not fit its task.
	ErrBadResult = errors.New("result does not fit the task")
	// ErrLimit: the program did more than the limits of its run allow.
	ErrLimit = errors.New("limit of the run exceeded")
	// ErrTruncated: a generation that had to be JSON, or to match a pattern or a
	// grammar, was cut at its length limit.
	ErrTruncated = errors.New("cut at the length limit")
	// ErrPanic: a function panicked.
	ErrPanic = lang.ErrPanic
	// ErrUnknownOutcome: a call that must not be repeated was started by an
	// earlier process and has no recorded result.
	ErrUnknownOutcome = errors.New("unknown outcome")
)

// NodeError is the failure of one node.
type NodeError struct {
	Task string   // instance id, e.g. "looks[1]/finding"
	Node string   // id in the program, e.g. "looks/finding"
	Pos  lang.Pos // where the author wrote it
	Err  error
}

func (e *NodeError) Error() string {
	var b strings.Builder
	writePos(&b, e.Pos)
	b.WriteString(e.Task)
	b.WriteString(": ")
	msg := e.Err.Error()
	if e.Task != "" { // backends name the request, whose id is the task's
		msg = strings.TrimPrefix(msg, e.Task+": ")
	}
	b.WriteString(msg)
	return b.String()
}

// Unwrap returns the cause.
func (e *NodeError) Unwrap() error { return e.Err }

func writePos(b *strings.Builder, p lang.Pos) {
	if p.File != "" || p.Line != 0 {
		fmt.Fprintf(b, "%s:%d: ", p.File, p.Line)
	}
}

// BranchError is the failure of one branch of a fork.
type BranchError struct {
	Branch string // instance id, e.g. "looks[1]"
	Label  string // the item or the name of the arm
	Err    error
}

func (e *BranchError) Error() string {
	return fmt.Sprintf("branch %s (%s): %v", e.Branch, oneLine(e.Label, 80), e.Err)
}

// Unwrap returns the cause.
func (e *BranchError) Unwrap() error { return e.Err }

// ForkError is the failure of a fork: those of its branches that made it fail,
// in the order of the branches.
type ForkError struct {
	Policy   string // of the fork
	Of       int    // branches that the fork has
	Branches []*BranchError
}

func (e *ForkError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d branches failed", len(e.Branches), e.Of)
	if e.Policy != "" && e.Policy != policyAll {
		fmt.Fprintf(&b, " (policy %s)", e.Policy)
	}
	for i, br := range e.Branches {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString("; ")
		}
		b.WriteString(br.Error())
	}
	return b.String()
}

// Unwrap returns the failures of the branches.
func (e *ForkError) Unwrap() []error {
	errs := make([]error, len(e.Branches))
	for i, b := range e.Branches {
		errs[i] = b
	}
	return errs
}

// Failure says why a task has no result, in a form that can be stored. It
// unwraps to the error that it stands for: in the process where the task failed
// to the very error, after a restore to the sentinel of its code.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	cause   error
}

// codeError is the code of errors of no class, e.g. what a function returned.
const codeError = "error"

// codes are the classes of failures that survive a restore.
var codes = []struct {
	code string
	err  error
}{
	{"unsupported", backend.ErrUnsupported},
	{"context_length", backend.ErrContextLength},
	{"invalid", backend.ErrInvalid},
	{"overloaded", backend.ErrOverloaded},
	{"unavailable", backend.ErrUnavailable},
	{"closed", backend.ErrClosed},
	{"panic", ErrPanic},
	{"no_answer", ErrNoAnswer},
	{"budget", ErrBudget},
	{"timeout", context.DeadlineExceeded},
	{"cancelled", context.Canceled},
}

// NewFailure returns the failure that stands for err.
func NewFailure(err error) *Failure {
	f := &Failure{Code: codeError, Message: err.Error(), cause: err}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			f.Code = c.code
			break
		}
	}
	return f
}

func (f *Failure) Error() string { return f.Message }

// Unwrap returns what the failure stands for.
func (f *Failure) Unwrap() error {
	if f.cause != nil {
		return f.cause
	}
	for _, c := range codes {
		if f.Code == c.code {
			return c.err
		}
	}
	return nil
}

// PanicError is what a function that panicked returns instead.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Is makes errors.Is(err, ErrPanic) true.
func (e *PanicError) Is(target error) bool { return target == ErrPanic }

// failedTasks returns the ids of the tasks whose failures make up err.
func failedTasks(err error) []string {
	var ids []string
	var walk func(err error)
	walk = func(err error) {
		switch e := err.(type) {
		case nil:
		case *NodeError:
			if _, ok := e.Err.(*Failure); ok {
				ids = append(ids, e.Task)
				return
			}
			walk(e.Err)
		case *ForkError:
			for _, b := range e.Branches {
				walk(b.Err)
			}
		case *ProgramError:
			if _, ok := e.Err.(*Failure); ok {
				ids = append(ids, e.Task)
				return
			}
			walk(e.Err)
		case interface{ Unwrap() error }: // a script's own words around it
			walk(e.Unwrap())
		case interface{ Unwrap() []error }:
			for _, err := range e.Unwrap() {
				walk(err)
			}
		}
	}
	walk(err)
	return ids
}
