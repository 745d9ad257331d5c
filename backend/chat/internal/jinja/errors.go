package jinja

import (
	"errors"
	"fmt"
)

// ErrLimit marks errors of templates that take too many steps, too much memory or go
// too deep.
var ErrLimit = errors.New("template exceeds a limit")

// Error is a fault of a template, in its text or when it runs.
type Error struct {
	Line int // in the template, from 1
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("template line %d: %v", e.Line, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Raised is the error of a template that called raise_exception.
type Raised struct{ Message string }

func (e *Raised) Error() string { return e.Message }

func limitf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrLimit, fmt.Sprintf(format, args...))
}

// at adds the line to an error that has none yet.
func at(line int, err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &Error{line, err}
}
