package serve

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// KeyLimits bound what one key may use. Zero fields mean no bound of its own;
// those of [Limits] hold for all keys together.
type KeyLimits struct {
	Generations       int // at work or waiting at once
	RequestsPerMinute int // that generate, or start a run
	TokensPerMinute   int // of prompts and answers, cached ones included
	ActiveRuns        int // of programs at once, if fewer than Limits.ActiveRuns
	KeptBytes         int // of programs and runs in Config.Data
}

// bucket holds an allowance that fills up evenly over a minute. What is taken
// may be more than it holds: then it must fill up to something before more is
// given. The zero bucket gives without end. Its owner locks it.
type bucket struct {
	size  float64
	level float64
	at    time.Time // of level
}

func newBucket(perMinute int, now time.Time) bucket {
	return bucket{size: float64(perMinute), level: float64(perMinute), at: now}
}

func (b *bucket) fill(now time.Time) {
	if gone := now.Sub(b.at); gone > 0 {
		b.level = min(b.size, b.level+b.size*gone.Minutes())
		b.at = now
	}
}

// wait is the time until the bucket holds n, at most what it can hold; 0 if it
// does.
func (b *bucket) wait(n float64, now time.Time) time.Duration {
	if b.size == 0 {
		return 0
	}
	b.fill(now)
	missing := min(n, b.size) - b.level
	if missing <= 0 {
		return 0
	}
	return time.Duration(math.Ceil(missing / b.size * float64(time.Minute)))
}

func (b *bucket) take(n float64, now time.Time) {
	if b.size == 0 {
		return
	}
	b.fill(now)
	b.level -= n
}

// quota is what a tenant has used of its limits.
type quota struct {
	limits KeyLimits
	now    func() time.Time

	mu       sync.Mutex
	inFlight int
	requests bucket
	tokens   bucket
}

func newQuota(limits KeyLimits, now func() time.Time) *quota {
	q := &quota{limits: limits, now: now}
	q.requests = newBucket(limits.RequestsPerMinute, now())
	q.tokens = newBucket(limits.TokensPerMinute, now())
	return q
}

// begin takes a request of n generations in, or says when to come again. A run
// of a program is a request of none.
func (q *quota) begin(n int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	if limit := q.limits.Generations; limit > 0 && q.inFlight+n > limit {
		return &Error{
			Status: http.StatusTooManyRequests, Type: typeRate, Code: "key_queue_full", RetryAfter: time.Second,
			Message: fmt.Sprintf("%d generations of this key are at work or wait, the limit is %d", q.inFlight, limit),
		}
	}
	if wait := q.requests.wait(1, now); wait > 0 {
		return limited("requests", q.limits.RequestsPerMinute, wait)
	}
	// Nobody knows yet how many tokens this will be; they are taken at the end.
	if wait := q.tokens.wait(1, now); wait > 0 {
		return limited("tokens", q.limits.TokensPerMinute, wait)
	}
	q.requests.take(1, now)
	q.inFlight += n
	return nil
}

func limited(what string, limit int, wait time.Duration) *Error {
	return &Error{
		Status: http.StatusTooManyRequests, Type: typeRate, Code: "rate_limit_exceeded", RetryAfter: wait,
		Message: fmt.Sprintf("this key may use %d %s a minute; try again in %v", limit, what, wait.Round(time.Millisecond)),
	}
}

func (q *quota) end(n int) {
	q.mu.Lock()
	q.inFlight -= n
	q.mu.Unlock()
}

// spend takes tokens that were used.
func (q *quota) spend(tokens int) {
	if q.limits.TokensPerMinute == 0 {
		return
	}
	q.mu.Lock()
	q.tokens.take(float64(tokens), q.now())
	q.mu.Unlock()
}

// headers says what is left, in the headers that OpenAI's clients read.
func (q *quota) headers(h http.Header) {
	if q.limits.RequestsPerMinute == 0 && q.limits.TokensPerMinute == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	for _, x := range []struct {
		name string
		b    *bucket
	}{{"Requests", &q.requests}, {"Tokens", &q.tokens}} {
		if x.b.size == 0 {
			continue
		}
		full := x.b.wait(x.b.size, now)
		h.Set("X-Ratelimit-Limit-"+x.name, strconv.Itoa(int(x.b.size)))
		h.Set("X-Ratelimit-Remaining-"+x.name, strconv.Itoa(max(0, int(x.b.level))))
		h.Set("X-Ratelimit-Reset-"+x.name, full.Round(time.Millisecond).String())
	}
}

// set reads an option of a key in the form name=value.
func (k *Key) set(option string) error {
	name, value, _ := strings.Cut(option, "=")
	var field *int
	switch name {
	case "salt":
		if value == "" {
			return fmt.Errorf("salt is empty")
		}
		k.Salt = value
		return nil
	case "operator":
		if value != "true" && value != "false" {
			return fmt.Errorf("operator is %q, it is to be true or false", value)
		}
		k.Operator = value == "true"
		return nil
	case "generations":
		field = &k.Limits.Generations
	case "requests_per_minute":
		field = &k.Limits.RequestsPerMinute
	case "tokens_per_minute":
		field = &k.Limits.TokensPerMinute
	case "runs":
		field = &k.Limits.ActiveRuns
	case "kept_bytes":
		field = &k.Limits.KeptBytes
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 {
		return fmt.Errorf("%s is %q, it is to be a number from 1 on", name, value)
	}
	*field = n
	return nil
}

// keyOption tells whether a word of a line of keys is an option.
func keyOption(word string) bool {
	name, _, ok := strings.Cut(word, "=")
	switch name {
	case "salt", "operator", "generations", "requests_per_minute", "tokens_per_minute", "runs", "kept_bytes":
		return ok
	}
	return false
}
