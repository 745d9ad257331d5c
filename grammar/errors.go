package grammar

import (
	"errors"
	"fmt"
	"strconv"
)

// The kinds of [Error], for errors.Is.
var (
	// ErrInvalid: the source is malformed (a broken pattern, a keyword of the
	// wrong type, a reference to nowhere).
	ErrInvalid = errors.New("invalid grammar")
	// ErrUnsupported: the source is well formed and asks for something that
	// this package does not enforce.
	ErrUnsupported = errors.New("unsupported in a grammar")
	// ErrUnsatisfiable: no text satisfies the source.
	ErrUnsatisfiable = errors.New("grammar that nothing satisfies")
	// ErrTooLarge: compiling the source would exceed a limit of [Limits].
	ErrTooLarge = errors.New("grammar too large")
	// ErrRejected: a token or text that the grammar does not allow here.
	ErrRejected = errors.New("not allowed by the grammar")
)

// Error tells what is wrong with a grammar and where.
type Error struct {
	Kind    error  // one of ErrInvalid, ErrUnsupported, ErrUnsatisfiable, ErrTooLarge
	Source  string // "schema", "regex", "ebnf", "lark", "choices", "sequence", "tags" or "spec"
	Pointer string // JSON pointer into the schema ("" is its root); "line N, column M" of EBNF and Lark, "offset N" of a pattern
	Keyword string // the schema keyword, when one is to blame
	Msg     string
}

func (e *Error) Error() string {
	at := e.Pointer
	if e.Source == "schema" {
		at = "#" + at
	}
	if at != "" {
		at = " at " + at
	}
	kw := ""
	if e.Keyword != "" {
		kw = e.Keyword + ": "
	}
	return fmt.Sprintf("%s%s: %s%s (%v)", e.Source, at, kw, e.Msg, e.Kind)
}

// Unwrap returns the kind.
func (e *Error) Unwrap() error { return e.Kind }

func offset(n int) string { return "offset " + strconv.Itoa(n) }
