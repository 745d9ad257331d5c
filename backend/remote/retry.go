package remote

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// Retry says how often and how patiently a failed call is made again. Only
// failures that [Error.Retryable] reports are.
type Retry struct {
	// Attempts is the number of calls in all, the first included; 0 means 4,
	// and 1 leaves retries to the caller.
	Attempts int
	// Base is the wait before the second call; it doubles with each further
	// one, less a random part of up to half. 0 means 500 ms.
	Base time.Duration
	// Max bounds a single wait. A server that asks for more in Retry-After is
	// not waited for: the call fails and its error says what was asked. 0 means
	// one minute.
	Max time.Duration
}

func (r Retry) withDefaults() Retry {
	if r.Attempts <= 0 {
		r.Attempts = 4
	}
	if r.Base <= 0 {
		r.Base = 500 * time.Millisecond
	}
	if r.Max <= 0 {
		r.Max = time.Minute
	}
	return r
}

// wait returns how long to wait after failure number n (from 1), and whether
// to try again at all. asked is what the server asked for, 0 if nothing.
func (r Retry) wait(n int, asked time.Duration) (time.Duration, bool) {
	if n >= r.Attempts || asked > r.Max {
		return 0, false
	}
	if asked > 0 {
		return asked, true
	}
	d := r.Base
	for range n - 1 {
		d *= 2
		if d >= r.Max {
			d = r.Max
			break
		}
	}
	return d - time.Duration(rand.Int64N(int64(d)/2+1)), true
}

// do calls f until it succeeds, fails for good, or the attempts are used up.
// may, if not nil, is asked before each further call and can refuse it.
func (r Retry) do(ctx context.Context, f func() error, may func() bool) error {
	if backend.RetriesOwned(ctx) {
		r.Attempts = 1
	}
	for n := 1; ; n++ {
		err := f()
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return interrupted(ctx, err)
		}
		var e *Error
		if !errors.As(err, &e) {
			return err
		}
		e.Attempts = n
		if !e.Retryable() || may != nil && !may() {
			return err
		}
		d, again := r.wait(n, e.RetryAfter)
		if !again {
			return err
		}
		t := time.NewTimer(d)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return interrupted(ctx, err)
		}
	}
}

// interrupted is the error of a call whose context ended around the failure err.
func interrupted(ctx context.Context, err error) error {
	why := ctx.Err()
	if context.Cause(ctx) == backend.ErrClosed {
		why = backend.ErrClosed
	}
	if errors.Is(err, why) {
		return err
	}
	return fmt.Errorf("remote: %w; before that: %w", why, err)
}

// retryAfter reads the header fields by which servers ask for patience; 0 if
// there is none that can be read.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(strings.TrimSpace(h.Get("Retry-After-Ms")), 64); err == nil && ms > 0 {
		return seconds(ms / 1000)
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		return seconds(s)
	}
	if t, err := http.ParseTime(v); err == nil {
		return max(0, t.Sub(now))
	}
	return 0
}

// seconds turns a number from the wire into a duration without overflow.
func seconds(s float64) time.Duration {
	const year = 365 * 24 * 3600
	if !(s > 0) { // also NaN
		return 0
	}
	return time.Duration(min(s, year) * float64(time.Second))
}
