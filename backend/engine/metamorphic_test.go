package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
)

// TestRandomSchedules runs random requests on engines of random shape, with
// aborts, flushes, preemption and pools that hardly hold one of them, and
// compares every result with that of the same request alone on a fresh engine.
// The sums of pages are checked after every step (Config.Check).
// COPPICE_SCHEDULES sets the number of rounds.
func TestRandomSchedules(t *testing.T) {
	rounds := 60
	if n, err := strconv.Atoi(os.Getenv("COPPICE_SCHEDULES")); err == nil {
		rounds = n
	}
	for seed := range rounds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomSchedule(t, rand.New(rand.NewPCG(uint64(seed), 7)), nil, nil) })
	}
	if n := preempted.Load(); n < uint64(rounds)/20 && !t.Failed() {
		t.Errorf("only %d preemptions in %d rounds", n, rounds)
	} else {
		t.Logf("%d preemptions in %d rounds", n, rounds)
	}
	if n := broughtBack.Load(); n < uint64(rounds) && !t.Failed() {
		t.Errorf("only %d pages came back from the second tier in %d rounds", n, rounds)
	} else {
		t.Logf("%d pages came back from the second tier", n)
	}
}

// preempted counts preemptions over all rounds, so that a test of preemption
// that never preempts is noticed.
var preempted atomic.Uint64

// broughtBack counts pages that came back from second tiers.
var broughtBack atomic.Uint64

type call struct {
	gen   *backend.Request
	score *backend.ScoreRequest
	read  *backend.LogprobRequest
	abort int // after so many deltas, 0 for never
}

type outcome struct {
	gen   *backend.Result
	score *backend.ScoreResult
	read  *backend.LogprobResult
	err   error
}

func (c *call) run(ctx context.Context, e *Engine) (o outcome) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if c.score != nil {
		o.score, o.err = e.Score(ctx, c.score)
		return o
	}
	if c.read != nil {
		o.read, o.err = e.Logprobs(ctx, c.read)
		return o
	}
	n := 0
	o.gen, o.err = e.Generate(ctx, c.gen, func(backend.Delta) {
		if n++; n == c.abort {
			cancel()
		}
	})
	return o
}

func randomCall(r *rand.Rand, trunks []string) *call {
	turns := []backend.Turn{user(trunks[r.IntN(len(trunks))])}
	if r.IntN(2) == 0 {
		turns = append(turns, user(fmt.Sprint("branch ", r.IntN(6))))
	}
	switch r.IntN(6) {
	case 0:
		turns = append(turns, backend.Turn{Role: backend.Assistant, Open: true, Parts: []backend.Part{{Text: "So the answer is "}}})
	case 1:
		turns = []backend.Turn{raw(trunks[r.IntN(len(trunks))])}
	}
	salt := ""
	if r.IntN(5) == 0 {
		salt = "tenant"
	}
	priority := max(0, r.IntN(6)-2) - 1
	hints := backend.Hints{Run: []string{"", "a", "b"}[r.IntN(3)], Branch: []string{"", "x"}[r.IntN(2)], Siblings: r.IntN(4), Reused: r.IntN(3) == 0, LastUse: r.IntN(3) == 0}
	if r.IntN(4) == 0 {
		all := []string{"high", "higher", "low", "lower than the rest", "is", "the thing", longText(30) + "a", longText(30) + "b and", longText(30)}
		r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		req := &backend.ScoreRequest{Turns: turns, Options: all[:1+r.IntN(8)], Closed: r.IntN(2) == 0, Salt: salt, Hints: hints, Priority: priority}
		switch len(req.Options) { // no draw of its own: the rounds stay as they are
		case 2, 3:
			req.Method, req.Closed = backend.UnconditionalLikelihoodNormalized, false
		case 4, 5: // of long options there are too many ways for many rounds
			req.Method, req.Options = backend.Exact, []string{"low", "high", "lower", "is"}
		}
		return &call{score: req}
	}
	if r.IntN(8) == 0 {
		ids := encodeText(fakeTokenizer{}, trunks[r.IntN(len(trunks))]+fmt.Sprint(r.IntN(4)))
		return &call{read: &backend.LogprobRequest{Tokens: ids, From: 1 + r.IntN(len(ids)), Top: r.IntN(3), Salt: salt}}
	}
	c := &call{gen: &backend.Request{Turns: turns, MaxTokens: 1 + r.IntN(40+r.IntN(120)), Salt: salt, Hints: hints, Priority: priority, IgnoreEOS: r.IntN(2) == 0}}
	if r.IntN(3) == 0 {
		c.gen.Sampling = backend.Sampling{Temperature: 1, Seed: uint64(r.IntN(3)), TopP: 0.9}
		if r.IntN(2) == 0 {
			c.gen.Sampling.FrequencyPenalty, c.gen.Sampling.RepetitionPenalty = 0.5, 1.2
		}
	}
	if r.IntN(4) == 0 {
		c.gen.Stop = []string{"a", "th"}
	}
	if r.IntN(4) == 0 {
		c.gen.Logprobs = true
	}
	switch r.IntN(8) {
	case 0:
		c.gen.Constraint.JSONSchema = []byte(verdictSchema)
	case 1:
		c.gen.Constraint.Regex = "(the high|low)? (in[a-z]{0,20}|is)"
	case 2:
		c.gen.Constraint.Choices = []string{"high", "higher", "the low"}
	}
	c.gen.NoJump = r.IntN(3) == 0
	if r.IntN(6) == 0 {
		c.abort = 1 + r.IntN(10)
	}
	return c
}

// randomSchedule is one round, on m and for comparison on alone, or on fake
// models.
func randomSchedule(t *testing.T, r *rand.Rand, m, alone Model) {
	trunks := []string{longText(40 + r.IntN(120)), longText(90) + "other", "x"}
	calls := make([]*call, 12+r.IntN(12))
	for i := range calls {
		calls[i] = randomCall(r, trunks)
	}
	var script func([]backend.Token) backend.Token
	if r.IntN(2) == 0 { // a model that often repeats what it read: guesses are right
		script = func(tokens []backend.Token) backend.Token {
			if n := len(tokens); n > 12 && mix(uint64(n))%7 != 0 {
				return tokens[n-12]
			}
			return -1
		}
	}
	var launched sync.WaitGroup // the first pass waits until all have been asked
	launched.Add(1)
	e := newFake(t, func(c *Config, fake *fakeModel) {
		fake.before = func(*model.Batch) error { launched.Wait(); return nil }
		fake.script = script
		if m != nil {
			c.Model = m
		}
		c.Pages = 8 + r.IntN(1+r.IntN(30)) // small ones more often
		c.MaxBatchTokens = []int{1, 2, 5, 17, 64}[r.IntN(5)]
		c.MaxSeqs = []int{1, 2, 5, 16}[r.IntN(4)]
		c.Drafts = []int{0, 1, 5}[r.IntN(3)]
		c.Choices = []int{0, 8, 60}[r.IntN(3)]
		if r.IntN(2) == 0 {
			c.Model = ahead{c.Model, t}
		} else if c.Pages%3 > 0 { // no draw of its own: the rounds stay as they are
			c.TierBytes = int64(c.Pages * (c.Pages % 3) / 2 * c.Model.PageBytes())
		}
	})
	if r.IntN(2) == 0 {
		e.sched.maxOutputs = 1 + r.IntN(3) // before any request
	}
	got := make([]outcome, len(calls))
	var wg sync.WaitGroup
	for i, c := range calls {
		wg.Go(func() { got[i] = c.run(context.Background(), e) })
		if r.IntN(6) == 0 {
			wg.Go(e.Flush)
		}
	}
	for range r.IntN(50) {
		runtime.Gosched()
	}
	launched.Done()
	wg.Wait()
	for i, c := range calls {
		fresh := newFake(t, func(c *Config, fake *fakeModel) {
			c.Pages = e.context / model.PageSize
			fake.script = script
			if alone != nil {
				c.Model = alone
			}
		})
		oracle := &call{score: c.score, read: c.read}
		if c.gen != nil { // without jump-forward: that must make no difference
			req := *c.gen
			req.NoJump = true
			oracle.gen = &req
		}
		want := oracle.run(context.Background(), fresh)
		compareOutcome(t, fmt.Sprintf("call %d", i), c, got[i], want)
	}
	for range 2 { // what was aborted last has been ended
		e.do(func() {})
	}
	preempted.Add(e.Stats().Preempted)
	broughtBack.Add(e.Stats().TierLoaded + e.Stats().TierFetched)
	if st := e.Stats(); st.Held != 0 || st.Waiting+st.Running != 0 || st.Free+st.Evictable != st.Pages {
		t.Errorf("at the end: %+v", st)
	}
}

func compareOutcome(t *testing.T, name string, c *call, got, want outcome) {
	t.Helper()
	if c.abort > 0 && errors.Is(got.err, context.Canceled) {
		return
	}
	if got.err != nil || want.err != nil {
		if !errors.Is(got.err, backend.ErrContextLength) || !errors.Is(want.err, backend.ErrContextLength) {
			t.Errorf("%s: error %v, alone %v", name, got.err, want.err)
		}
		return
	}
	if c.score != nil {
		if !reflect.DeepEqual(got.score.Options, want.score.Options) {
			t.Errorf("%s: scores %+v, alone %+v", name, got.score.Options, want.score.Options)
		}
		if got.score.Usage.Without != want.score.Usage.Without {
			t.Errorf("%s: without %+v, alone %+v", name, got.score.Usage.Without, want.score.Usage.Without)
		}
		return
	}
	if c.read != nil {
		if !reflect.DeepEqual(got.read.Logprobs, want.read.Logprobs) || !reflect.DeepEqual(got.read.Top, want.read.Top) {
			t.Errorf("%s: log-probabilities %+v, alone %+v", name, got.read, want.read)
		}
		return
	}
	g, w := *got.gen, *want.gen
	u := g.Usage
	if u.PromptTokens != w.Usage.PromptTokens || u.CachedTokens > u.PromptTokens || u.CachedTokens == u.PromptTokens && u.ForcedTokens == 0 || u.Without != w.Usage.Without ||
		u.CachedTokens+u.ComputedTokens < u.PromptTokens && len(u.Passes) > 0 || u.SampledTokens+u.ForcedTokens != w.Usage.SampledTokens {
		t.Errorf("%s: usage %+v, alone %+v", name, u, w.Usage)
	}
	g.Usage, w.Usage = backend.Usage{}, backend.Usage{}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("%s: %+v\nalone: %+v", name, g, w)
	}
}

// TestNoGoroutineIsLeft counts goroutines around an engine's life.
func TestNoGoroutineIsLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 3 {
		e, err := New(Config{Model: &fakeModel{context: 512, vocab: fakeVocab}, Tokenizer: fakeTokenizer{}, Fingerprint: "f", Pages: 64})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			ctx, cancel := context.WithCancel(context.Background())
			_, err := e.Generate(ctx, &backend.Request{Turns: []backend.Turn{user(strings.Repeat("x", i))}, MaxTokens: 50}, func(backend.Delta) { cancel() })
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			cancel()
		}
		e.Close()
		e.Close()
	}
	for try := 0; runtime.NumGoroutine() > before; try++ {
		if try > 1_000_000 {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
		runtime.Gosched()
	}
}

// TestManyRequestsOnAPoolForOne: 500 requests at once, each as large as the
// pool, all end.
func TestManyRequestsOnAPoolForOne(t *testing.T) {
	e := newFake(t, func(c *Config, m *fakeModel) { c.Pages, m.context, c.Check = 8, 128, false })
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			r, err := e.Generate(context.Background(), &backend.Request{Turns: []backend.Turn{raw(fmt.Sprint(i, longText(100)))}, IgnoreEOS: true, MaxTokens: 20}, nil)
			if err != nil || r.Usage.SampledTokens != 20 {
				t.Errorf("%d: %v %v", i, r, err)
			}
		})
	}
	wg.Wait()
}
