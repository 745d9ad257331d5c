// Command coppice runs branching agent programs: on the model it carries, on
// any GGUF file, or on a remote engine by URL.
//
// With --json a command prints one JSON document on standard output; logs and
// progress go to standard error. The exit code is 0 only on success, 1 if the
// work failed, 2 if the command or its input was wrong, 130 if interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

// usageError is a mistake of the caller: exit code 2.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

func main() {
	// The threads of the engine keep their processors while they wait for each
	// other. One more leaves room for the rest: network, events, the collector.
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
	// The first interrupt ends the work in order (a journal stays resumable);
	// the second one ends the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// exitCode maps an error to the process's exit code.
func exitCode(ctx context.Context, err error) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		return 2
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return 130
	}
	return 1
}
