package engine

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// crowd asks several requests at once, with and without a device of their own, and
// compares those that may not fail with what they are alone. It returns the errors of
// the others.
func crowd(t *testing.T, change func(*Config, *fakeModel), prompts []string, mayFail func(prompt string) bool) []error {
	t.Helper()
	expectRebuild[t.Name()] = true
	ask := func(p string) *backend.Request {
		return &backend.Request{ID: p[:1], Turns: []backend.Turn{raw(p)}, MaxTokens: 30, IgnoreEOS: true}
	}
	alone := newFake(t, nil)
	e := newFake(t, change)
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	for _, p := range prompts {
		want := mustGenerate(t, alone, ask(p))
		wg.Go(func() {
			got, err := e.Generate(t.Context(), ask(p), nil)
			switch {
			case err != nil && mayFail(p):
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			case err != nil:
				t.Errorf("%s: %v", p, err)
			case !slices.Equal(got.Part.Tokens, want.Part.Tokens):
				t.Errorf("%s: %v, alone %v", p, got.Part.Tokens, want.Part.Tokens)
			}
		})
	}
	wg.Wait()
	for range 2 {
		e.do(func() {})
	}
	if st := e.Stats(); st.Held != 0 || st.Running+st.Waiting != 0 || st.Free+st.Evictable != st.Pages {
		t.Errorf("at the end: %+v", st)
	}
	return errs
}

func prompts(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(string(rune('A'+i)), i%3, longText(30+20*i)))
	}
	return out
}

// TestAPassFailsOnlyItsCause: of the requests in a pass that fails, or panics, only the
// one fails that makes it fail each time.
func TestAPassFailsOnlyItsCause(t *testing.T) {
	for _, panics := range []bool{false, true} {
		for _, device := range []bool{false, true} {
			t.Run(fmt.Sprintf("panics %v, device %v", panics, device), func(t *testing.T) {
				errs := crowd(t, func(c *Config, m *fakeModel) {
					c.MaxBatchTokens = 64
					m.before = func(b *model.Batch) error {
						for _, r := range b.Rows {
							if r.Start <= 40 && 40 < r.Start+len(r.Tokens) && slices.Contains(r.Tokens, 'D') || r.Start > 40 && r.Start%16 == 3 && len(r.Tokens) == 1 && r.Tokens[0] == '~' {
								if panics {
									panic(errFault)
								}
								return errFault
							}
						}
						return nil
					}
					if device {
						c.Model = ahead{c.Model, t}
					}
				}, append(prompts(6), "D"+longText(38)+"DDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD"), func(p string) bool { return p[0] == 'D' })
				if len(errs) == 0 {
					t.Error("nothing failed")
				}
				for _, err := range errs {
					if !errors.Is(err, errFault) || !errors.Is(err, backend.ErrUnavailable) {
						t.Error(err)
					}
				}
			})
		}
	}
}

// TestTwoThatBeginAgain: two requests of a pass that panics begin again together, with
// passes that say nothing of the fault before the one that does. It is found, and not
// met again and again.
func TestTwoThatBeginAgain(t *testing.T) {
	expectRebuild[t.Name()] = true
	panics := 0
	gate := make(chan struct{})
	e := newFake(t, func(c *Config, m *fakeModel) {
		c.MaxBatchTokens = 64
		c.Before = func() { <-gate }
		m.before = func(b *model.Batch) error {
			for _, r := range b.Rows {
				if r.Start <= 40 && 40 < r.Start+len(r.Tokens) && r.Tokens[0] == 'D' {
					if panics++; panics > 20 {
						return errFault // or it would go on for ever
					}
					panic(errFault)
				}
			}
			return nil
		}
	})
	errs := map[string]error{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i, p := range []string{"A" + longText(160), strings.Repeat("D", 66)} {
		wg.Go(func() {
			_, err := e.Generate(t.Context(), &backend.Request{ID: p[:1], Turns: []backend.Turn{raw(p)}, MaxTokens: 30, IgnoreEOS: true}, nil)
			mu.Lock()
			errs[p[:1]] = err
			mu.Unlock()
		})
		for n := 0; n <= i; goruntime.Gosched() { // in this order
			e.mu.Lock()
			n = len(e.inbox)
			e.mu.Unlock()
		}
	}
	close(gate)
	wg.Wait()
	for id, err := range errs {
		if failed := id == "D"; errors.Is(err, errFault) != failed || !failed && err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	if panics > 3 {
		t.Errorf("%d passes panicked", panics)
	}
}

// TestPanicsThatAreNobodysFault: a panic between passes costs what was computed, not
// the requests.
func TestPanicsThatAreNobodysFault(t *testing.T) {
	nobody := func(string) bool { return false }
	for _, at := range []int{1, 2, 5, 9} {
		for _, device := range []bool{false, true} {
			t.Run(fmt.Sprintf("plan %d, device %v", at, device), func(t *testing.T) {
				n := 0
				crowd(t, func(c *Config, _ *fakeModel) {
					c.Planning = func() {
						if n++; n == at {
							panic(errFault)
						}
					}
					if device {
						c.Model = ahead{c.Model, t}
					}
				}, prompts(5), nobody)
				if n <= at {
					t.Errorf("%d plans", n)
				}
			})
		}
	}
	t.Run("clock", func(t *testing.T) { // read in plans, as requests arrive, and while nothing runs
		for at := range 30 {
			var n atomic.Int64
			crowd(t, func(c *Config, _ *fakeModel) {
				c.Pages, c.TierBytes = 24, 24<<10
				c.Clock = func() time.Duration {
					if n.Add(1) == int64(at) {
						panic(errFault)
					}
					return time.Duration(n.Load())
				}
			}, prompts(4), nobody)
		}
	})
	t.Run("always", func(t *testing.T) { // then they end, and do not begin again for ever
		errs := crowd(t, func(c *Config, _ *fakeModel) {
			c.Planning = func() { panic(errFault) }
		}, prompts(5), func(string) bool { return true })
		if len(errs) != 5 || !errors.Is(errs[0], errFault) {
			t.Errorf("%v", errs)
		}
	})
}

// TestAWrongSumOfPagesKillsNoWork: when the check of the pages fails, the cache is
// thrown away, and who is at work goes on.
func TestAWrongSumOfPagesKillsNoWork(t *testing.T) {
	expectRebuild[t.Name()] = true
	var e *Engine
	passes := 0
	e = newFake(t, func(_ *Config, m *fakeModel) {
		m.before = func(*model.Batch) error { // in the loop
			if passes++; passes == 90 {
				e.sched.cache.Alloc(nil, 1) // a page that nobody will give back
			}
			return nil
		}
	})
	req := &backend.Request{Turns: []backend.Turn{raw(longText(100))}, MaxTokens: 60, IgnoreEOS: true}
	want := mustGenerate(t, e, req)
	got, err := e.Generate(t.Context(), req, nil)
	if err != nil || !slices.Equal(got.Part.Tokens, want.Part.Tokens) {
		t.Errorf("%v %v, want %v", err, got, want.Part.Tokens)
	}
	e.do(func() {})
	if st := e.Stats(); st.Rebuilt != 1 || st.Free+st.Evictable != st.Pages {
		t.Errorf("%+v", st)
	}
}

// TestPanicInAJob: who waits for one is not left waiting.
func TestPanicInAJob(t *testing.T) {
	expectRebuild[t.Name()] = true
	e := newFake(t, nil)
	req := &backend.Request{Turns: []backend.Turn{raw("go on")}, MaxTokens: 40, IgnoreEOS: true}
	want := mustGenerate(t, e, req)
	once := sync.OnceFunc(func() { e.do(func() { panic(errFault) }) })
	got, err := e.Generate(t.Context(), req, func(backend.Delta) { once() })
	if err != nil || !slices.Equal(got.Part.Tokens, want.Part.Tokens) {
		t.Errorf("%v %v, want %v", err, got, want.Part.Tokens)
	}
}

// TestPanicWhileClosing: an engine ends in order all the same.
func TestPanicWhileClosing(t *testing.T) {
	e, err := build(Config{Model: &fakeModel{context: 512, vocab: fakeVocab}, Tokenizer: fakeTokenizer{}, Template: chatML{}, Fingerprint: "f", Pages: 64})
	if err != nil {
		t.Fatal(err)
	}
	g, s, err := e.submitGeneration(t.Context(), &backend.Request{Turns: []backend.Turn{raw("x")}, IgnoreEOS: true}, false)
	if err != nil {
		t.Fatal(err)
	}
	e.receive()
	e.round()
	s.h = nil // whatever is done with it now is wrong
	e.post(func() { panic(errFault) })
	e.closed = true
	e.loop()
	if _, err := g.out.wait(t.Context(), nil); !errors.Is(err, backend.ErrClosed) {
		t.Error(err)
	}
}

// TestPanicsForOneRequest: what is done for one request alone fails that one, and it is
// told.
func TestPanicsForOneRequest(t *testing.T) {
	t.Run("who follows it", func(t *testing.T) {
		expectRebuild[t.Name()] = true
		e := newFake(t, nil)
		req := &backend.Request{Turns: []backend.Turn{raw(longText(50))}, MaxTokens: 40, IgnoreEOS: true}
		want := mustGenerate(t, e, req)
		ctx := backend.WithTrace(t.Context(), &backend.Trace{Step: func(backend.Step) { panic(errFault) }})
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := e.Generate(ctx, req, nil); !errors.Is(err, errFault) {
				t.Error(err)
			}
		})
		wg.Go(func() {
			got, err := e.Generate(t.Context(), req, nil)
			if err != nil || !slices.Equal(got.Part.Tokens, want.Part.Tokens) {
				t.Errorf("%v %v", err, got)
			}
		})
		wg.Wait()
	})
	t.Run("its result", func(t *testing.T) {
		// Half a character at the end is written as a replacement, and tokenised, in
		// the loop.
		tok := &panickingTokenizer{}
		expectRebuild[t.Name()] = true
		e := newFake(t, func(c *Config, m *fakeModel) {
			c.Tokenizer = tok
			m.script = func([]backend.Token) backend.Token { return 0xe6 }
		})
		req := &backend.Request{Turns: []backend.Turn{raw("x")}, MaxTokens: 4}
		mustGenerate(t, e, req)
		tok.panics.Store(true)
		// The prompt is remembered, so that the tokenizer is first asked at the end.
		if _, err := e.Generate(t.Context(), req, nil); !errors.Is(err, backend.ErrUnavailable) {
			t.Error(err)
		}
		// Another is refused in its own goroutine.
		other := &backend.Request{Turns: []backend.Turn{raw("y")}, MaxTokens: 4}
		if _, err := e.Generate(t.Context(), other, nil); !errors.Is(err, backend.ErrUnavailable) {
			t.Error(err)
		}
		if _, err := e.Score(t.Context(), &backend.ScoreRequest{Turns: other.Turns, Options: []string{"a", "b"}}); !errors.Is(err, backend.ErrUnavailable) {
			t.Error(err)
		}
		tok.panics.Store(false)
		mustGenerate(t, e, other)
		if st := e.Stats(); st.Rebuilt != 1 {
			t.Errorf("%+v", st)
		}
	})
	t.Run("the caller's own function", func(t *testing.T) {
		e := newFake(t, nil)
		func() {
			defer func() {
				if r := recover(); r != errFault {
					t.Errorf("%v: the panic of the caller is not the engine's to keep", r)
				}
			}()
			e.Generate(t.Context(), &backend.Request{Turns: []backend.Turn{raw("x")}, MaxTokens: 2000, IgnoreEOS: true}, func(backend.Delta) { panic(errFault) })
		}()
		for range 2 {
			e.do(func() {})
		}
		if st := e.Stats(); st.Running != 0 || st.Rebuilt != 0 {
			t.Errorf("%+v: who panicked has left", st)
		}
	})
}

type panickingTokenizer struct {
	fakeTokenizer
	panics atomic.Bool
}

func (p *panickingTokenizer) EncodePieces(pieces []tokenizer.Piece) []backend.Token {
	if p.panics.Load() {
		panic(errFault)
	}
	return p.fakeTokenizer.EncodePieces(pieces)
}

// TestATierThatFails: pages that a second tier does not keep or give back are computed
// again, and a tier that only fails is left alone.
func TestATierThatFails(t *testing.T) {
	for _, fault := range []int{tierFails, tierPanics} {
		w := &world{fault: fault}
		e := newFake(t, func(c *Config, _ *fakeModel) {
			c.Pages, c.TierBytes = 32, 200<<10
			c.Model = watched{c.Model, w}
		})
		alone := newFake(t, nil)
		for i := range 24 {
			req := &backend.Request{Turns: []backend.Turn{raw(fmt.Sprint(i%4, longText(300)))}, MaxTokens: 24, IgnoreEOS: true}
			if got, want := mustGenerate(t, e, req), mustGenerate(t, alone, req); !slices.Equal(got.Part.Tokens, want.Part.Tokens) {
				t.Fatalf("fault %d, request %d: %v, want %v", fault, i, got.Part.Tokens, want.Part.Tokens)
			}
		}
		st := e.Stats()
		if st.TierFailed == 0 || st.Rebuilt != 0 {
			t.Errorf("%+v", st)
		}
		if fault == tierPanics && (w.moves != maxTierFaults || st.TierUsed != 0) {
			t.Errorf("the tier was tried %d times: %+v", w.moves, st)
		}
		if fault == tierFails && st.TierLoaded == 0 {
			t.Errorf("what is in the tier does not come back: %+v", st)
		}
	}
}

// TestDeadlinesAreKeptToTheStep: a deadline, or a cancellation, ends a request at once
// where it waits, and after the step that is under way where it computes: no pass
// after that one has a row of it.
func TestDeadlinesAreKeptToTheStep(t *testing.T) {
	const at = 7 // the pass in which it comes
	for _, device := range []bool{false, true} {
		for _, why := range []error{context.Canceled, context.DeadlineExceeded} {
			for _, what := range []string{"decode", "prefill", "score", "wait"} {
				t.Run(fmt.Sprintf("%s, %v, device %v", what, why, device), func(t *testing.T) {
					ctx := &endingContext{Context: t.Context(), done: make(chan struct{}), err: why}
					atWork, arrived := make(chan struct{}), make(chan struct{})
					pass, last, page := 0, 0, int32(-1)
					e := newFake(t, func(c *Config, m *fakeModel) {
						c.MaxBatchTokens, c.MaxSeqs = 16, 2
						if what == "wait" {
							c.MaxSeqs = 1
						}
						m.before = func(b *model.Batch) error {
							if pass++; pass == 1 {
								close(atWork)
								<-arrived
							}
							if pass == at {
								ctx.end()
							}
							for _, r := range b.Rows {
								if r.Start == 0 && r.Tokens[0] == 'N' {
									page = r.Pages[0]
								}
								if r.Pages[0] == page {
									last = pass
								}
							}
							return nil
						}
						if device {
							c.Model = ahead{c.Model, t}
						}
					})
					var wg sync.WaitGroup
					wg.Go(func() { // another, which goes on
						r, err := e.Generate(t.Context(), &backend.Request{Turns: []backend.Turn{raw("other")}, MaxTokens: 40, IgnoreEOS: true}, nil)
						if err != nil || r.Usage.SampledTokens != 40 {
							t.Errorf("the other: %v", err)
						}
					})
					<-atWork
					queued := backend.WithTrace(ctx, &backend.Trace{Queued: func(string) { close(arrived) }})
					text := "N"
					if what == "prefill" || what == "score" {
						text += longText(600)
					}
					var err error
					if what == "score" {
						_, err = e.Score(queued, &backend.ScoreRequest{Turns: []backend.Turn{raw(text)}, Options: []string{"a", "b"}})
					} else {
						_, err = e.Generate(queued, &backend.Request{Turns: []backend.Turn{raw(text)}, MaxTokens: 500, IgnoreEOS: true}, nil)
					}
					if !errors.Is(err, why) {
						t.Errorf("%v, want %v", err, why)
					}
					wg.Wait()
					most := at // the step under way
					if device {
						most++ // and the one that was planned meanwhile
					}
					if last > most || what != "wait" && last < 2 || what == "wait" && last != 0 {
						t.Errorf("its last row is in pass %d; it ended in pass %d", last, at)
					}
					e.do(func() {})
					if st := e.Stats(); st.Running+st.Waiting+st.Held != 0 || st.Failed != 1 || st.Finished != 1 {
						t.Errorf("%+v", st)
					}
				})
			}
		}
	}
	// One that is over before it begins takes no step at all, and is not queued.
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	e := newFake(t, nil)
	if _, err := e.Generate(ctx, &backend.Request{Turns: []backend.Turn{raw("x")}}, nil); !errors.Is(err, context.DeadlineExceeded) || e.Stats().Steps != 0 {
		t.Errorf("%v, %+v", err, e.Stats())
	}
}

// endingContext ends when it is told to, with an error of the test's choice.
type endingContext struct {
	context.Context
	done chan struct{}
	err  error
}

func (c *endingContext) end()                  { close(c.done) }
func (c *endingContext) Done() <-chan struct{} { return c.done }
func (c *endingContext) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}
