package backend

import (
	"context"
	"errors"
	"time"
)

// Retryable reports whether the call that failed with err may succeed if it is
// made again. An error in err's chain with a method Retryable() bool decides;
// without one ErrOverloaded, ErrUnavailable and a deadline are retryable.
func Retryable(err error) bool {
	var r interface{ Retryable() bool }
	if errors.As(err, &r) {
		return r.Retryable()
	}
	return errors.Is(err, ErrOverloaded) || errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}

// RetryDelay returns how long a server asked to be left alone before the next
// call, 0 if err says nothing of it. Errors say so by a method
// RetryDelay() time.Duration.
func RetryDelay(err error) time.Duration {
	var r interface{ RetryDelay() time.Duration }
	if errors.As(err, &r) {
		return max(0, r.RetryDelay())
	}
	return 0
}

type ownRetries struct{}

// OwnRetries tells backends that the caller repeats failed calls itself, so that
// they make one attempt each and the two do not multiply.
func OwnRetries(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownRetries{}, true)
}

// RetriesOwned reports whether the caller repeats failed calls itself.
func RetriesOwned(ctx context.Context) bool { return ctx.Value(ownRetries{}) != nil }
