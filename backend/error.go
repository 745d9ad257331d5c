package backend

import (
	"errors"
	"fmt"
)

// Errors that callers match with errors.Is.
var (
	// ErrUnsupported: the backend cannot do what was asked. Not retryable.
	ErrUnsupported = errors.New("not supported by this backend")
	// ErrContextLength: prompt (plus what must be generated) exceeds the
	// context. Not retryable.
	ErrContextLength = errors.New("prompt longer than the context")
	// ErrInvalid: the request itself is wrong. Not retryable.
	ErrInvalid = errors.New("invalid request")
	// ErrOverloaded: no room now. Retryable.
	ErrOverloaded = errors.New("backend overloaded")
	// ErrUnavailable: the backend cannot be reached or failed inside.
	// Retryable.
	ErrUnavailable = errors.New("backend unavailable")
	// ErrClosed: the backend was closed.
	ErrClosed = errors.New("backend closed")
)

// ContextLengthError reports both counts of a prompt that does not fit.
type ContextLengthError struct {
	Prompt  int // tokens of the prompt
	Context int // tokens of the model's context
}

func (e *ContextLengthError) Error() string {
	return fmt.Sprintf("the prompt has %d tokens and the model's context holds %d: shorten the prompt or use a model with a longer context", e.Prompt, e.Context)
}

// Is makes errors.Is(err, ErrContextLength) true.
func (e *ContextLengthError) Is(target error) bool { return target == ErrContextLength }
