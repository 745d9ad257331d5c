package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
)

// byHand is greedy decoding with nothing of the engine in it.
func byHand(m *fakeModel, prompt []backend.Token, n int) (out []backend.Token) {
	logits := make([]float32, m.vocab)
	tokens := slices.Clone(prompt)
	for len(out) < n {
		m.fill(tokens, logits)
		best := 0
		for i, l := range logits {
			if l > logits[best] {
				best = i
			}
		}
		if backend.Token(best) == imEnd {
			break
		}
		tokens = append(tokens, backend.Token(best))
		out = append(out, backend.Token(best))
	}
	return out
}

func TestGreedyEqualsByHand(t *testing.T) {
	for _, chunk := range []int{1, 3, 16, 512} {
		e := newFake(t, func(c *Config, _ *fakeModel) { c.MaxBatchTokens = chunk })
		for _, n := range []int{1, 15, 16, 17, 100} {
			turns := []backend.Turn{raw(longText(n))}
			ids, err := e.Tokenize(turns, true)
			if err != nil {
				t.Fatal(err)
			}
			want := byHand(e.fake(), ids, 40)
			for try := range 3 { // cold, then warm
				r := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 40})
				if !slices.Equal(r.Part.Tokens, want) && r.Finish != backend.FinishLength {
					t.Errorf("chunk %d, prompt %d, try %d: %v, want %v", chunk, n, try, r.Part.Tokens, want)
				}
				u := r.Usage
				if u.PromptTokens != len(ids) || try > 0 && u.CachedTokens != len(ids)-1 {
					t.Errorf("chunk %d, prompt %d, try %d: %+v", chunk, n, try, u)
				}
			}
		}
	}
}

func TestTrunkIsComputedOnceForForks(t *testing.T) {
	for _, hint := range []int{0, 32} {
		e := newFake(t, func(c *Config, m *fakeModel) { c.Pages, c.MaxBatchTokens, m.context = 512, 64, 4096 })
		trunk := longText(3000)
		trunkIDs, _ := e.Tokenize([]backend.Turn{{Role: backend.User, Parts: []backend.Part{{Text: trunk}}}}, false)
		var wg sync.WaitGroup
		var mu sync.Mutex
		generated, own := 0, 0
		for i := range 32 {
			wg.Go(func() {
				turns := []backend.Turn{user(trunk), user("branch " + string(rune('A'+i)))}
				ids, _ := e.Tokenize(turns, true)
				r, err := e.Generate(context.Background(), &backend.Request{
					Turns: turns, MaxTokens: 5, IgnoreEOS: true,
					Hints: backend.Hints{Run: "r", Siblings: hint},
				}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				own += len(ids) - len(trunkIDs)
				generated += len(r.Part.Tokens)
			})
		}
		wg.Wait()
		// Every branch computes what is its own, which begins alike for a few
		// tokens, and all but the last of what it writes.
		got, limit := e.fake().tokens, len(trunkIDs)+own+generated
		if got > limit {
			t.Errorf("siblings %d: %d tokens computed, at most %d are needed (trunk %d)", hint, got, limit, len(trunkIDs))
		}
	}
}

func TestCachedTokensCoverPromptAndReply(t *testing.T) {
	e := newFake(t, nil)
	turns := []backend.Turn{user(longText(300))}
	r := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 30, IgnoreEOS: true})
	turns = append(turns, backend.Turn{Role: backend.Assistant, Parts: []backend.Part{r.Part}}, user("and then?"))
	before := r.Usage.PromptTokens + len(r.Part.Tokens)
	r = mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 3, IgnoreEOS: true})
	if r.Usage.CachedTokens != before-1 {
		t.Errorf("cached %d of %d tokens before, want all but the last", r.Usage.CachedTokens, before)
	}
}

func TestUsageAddsUp(t *testing.T) {
	e := newFake(t, nil)
	r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{user("hello there")}, MaxTokens: 10, IgnoreEOS: true})
	u := r.Usage
	want := backend.Usage{
		PromptTokens: u.PromptTokens, ComputedTokens: u.PromptTokens + 9, SampledTokens: 10,
		Passes:  []backend.Span{{Engine: e.id, From: 1, To: 10}},
		Without: backend.Cost{ComputedTokens: u.PromptTokens + 9, ForwardPasses: 10},
	}
	if u.PromptTokens != want.PromptTokens || u.ComputedTokens != want.ComputedTokens || u.SampledTokens != want.SampledTokens ||
		!slices.Equal(u.Passes, want.Passes) || u.Without != want.Without || u.CachedTokens != 0 {
		t.Errorf("usage %+v, want %+v", u, want)
	}
	if st := e.Stats(); st.Steps != 10 || int(st.Computed) != u.ComputedTokens || st.Sampled != 10 {
		t.Errorf("stats %+v", st)
	}
}

func TestSeededSamplingIsRepeatable(t *testing.T) {
	e := newFake(t, nil)
	ask := func(seed uint64) []backend.Token {
		return mustGenerate(t, e, &backend.Request{
			Turns: []backend.Turn{user("x")}, MaxTokens: 20, IgnoreEOS: true,
			Sampling: backend.Sampling{Temperature: 2, TopP: 0.95, TopK: 50, Seed: seed},
		}).Part.Tokens
	}
	a, b, c := ask(1), ask(1), ask(2)
	if !slices.Equal(a, b) {
		t.Errorf("seed 1 twice: %v and %v", a, b)
	}
	if slices.Equal(a, c) {
		t.Error("seeds 1 and 2 draw the same")
	}
}

func TestContextLength(t *testing.T) {
	e := newFake(t, func(c *Config, m *fakeModel) { m.context = 100 })
	ids, _ := e.Tokenize([]backend.Turn{raw(longText(99))}, true)
	_, err := e.Generate(context.Background(), &backend.Request{ID: "n1", Turns: []backend.Turn{raw(longText(400))}}, nil)
	var cl *backend.ContextLengthError
	if !errors.As(err, &cl) || cl.Context != 100 || !errors.Is(err, backend.ErrContextLength) || !strings.HasPrefix(err.Error(), "n1: ") {
		t.Errorf("too long a prompt: %v", err)
	}
	r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{raw(longText(99))}, IgnoreEOS: true})
	if r.Finish != backend.FinishLength || r.Usage.SampledTokens != 100-len(ids) {
		t.Errorf("finish %q after %d tokens on a prompt of %d, context 100", r.Finish, r.Usage.SampledTokens, len(ids))
	}
	if r.ContextFull != 100 {
		t.Errorf("it is not said that the context is full: %+v", r)
	}
	for limit, full := range map[int]int{4: 0, 100 - len(ids): 0, 100: 100} {
		r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{raw(longText(99))}, MaxTokens: limit, IgnoreEOS: true})
		if r.Finish != backend.FinishLength || r.ContextFull != full {
			t.Errorf("at most %d tokens: %+v", limit, r)
		}
	}
	if e.fake().tokens > 400 {
		t.Errorf("%d tokens computed", e.fake().tokens)
	}
}

func TestInvalidRequests(t *testing.T) {
	e := newFake(t, nil)
	ok := []backend.Turn{user("x")}
	for name, req := range map[string]*backend.Request{
		"role":        {Turns: []backend.Turn{{Role: "robot"}}},
		"open":        {Turns: []backend.Turn{{Role: backend.User, Open: true}, user("x")}},
		"max":         {Turns: ok, MaxTokens: -1},
		"min":         {Turns: ok, MinTokens: -1},
		"min over":    {Turns: ok, MinTokens: 5, MaxTokens: 3},
		"stop":        {Turns: ok, Stop: []string{"a", ""}},
		"temperature": {Turns: ok, Sampling: backend.Sampling{Temperature: -1}},
		"top_p":       {Turns: ok, Sampling: backend.Sampling{TopP: 1.5}},
		"bias":        {Turns: ok, Sampling: backend.Sampling{LogitBias: map[backend.Token]float64{9999: 1}}},
		"two":         {Turns: ok, Constraint: backend.Constraint{Regex: "a", Choices: []string{"b"}}},
		"token":       {Turns: []backend.Turn{{Role: backend.User, Parts: []backend.Part{{Text: "x", Tokens: []backend.Token{5000}, Model: "fake-1"}}}}},
	} {
		if _, err := e.Generate(context.Background(), req, nil); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if e.fake().passes != 0 {
		t.Error("an invalid request was computed")
	}
}

func TestEmptyPrompt(t *testing.T) {
	e := newFake(t, nil)
	for _, turns := range [][]backend.Turn{nil, {raw("")}, {{Role: backend.Raw, Open: true}}} {
		if r := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 2, IgnoreEOS: true}); r.Usage.SampledTokens != 2 {
			t.Errorf("%+v: %+v", turns, r)
		}
	}
}

func TestCancelEndsWork(t *testing.T) {
	gate := make(chan struct{})
	e := newFake(t, func(_ *Config, m *fakeModel) {
		m.before = func(*model.Batch) error { <-gate; return nil }
	})
	ctx, cancel := context.WithCancel(context.Background())
	got := make(chan error, 1)
	n := 0
	go func() {
		_, err := e.Generate(ctx, &backend.Request{Turns: []backend.Turn{user("x")}, IgnoreEOS: true}, func(backend.Delta) {
			if n++; n == 3 {
				cancel()
			}
		})
		got <- err
	}()
	for {
		select {
		case gate <- struct{}{}:
			continue
		case err := <-got:
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
		}
		break
	}
	close(gate)
	e.Flush()
	e.Flush() // the loop has been around
	if st := e.Stats(); st.Running != 0 || st.Held != 0 {
		t.Errorf("%+v", st)
	}
}

func TestAbortedPrefillLeavesOnlyWhatWasComputed(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	e := newFake(t, func(c *Config, m *fakeModel) {
		c.MaxBatchTokens = 64
		m.before = func(*model.Batch) error { cancel(); return nil }
	})
	turns := []backend.Turn{user(longText(1000))}
	if _, err := e.Generate(ctx, &backend.Request{Turns: turns}, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	ids, _ := e.Tokenize(turns, true)
	want := byHand(e.fake(), ids, 10)
	r := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 10})
	if !slices.Equal(r.Part.Tokens, want) || r.Usage.CachedTokens > 64 {
		t.Errorf("%v cached %d, want %v", r.Part.Tokens, r.Usage.CachedTokens, want)
	}
}

func TestModelErrorAndPanicFailOnlyTheirRequests(t *testing.T) {
	expectRebuild[t.Name()] = true
	bad := 0
	e := newFake(t, func(c *Config, m *fakeModel) {
		m.before = func(*model.Batch) error {
			switch bad {
			case 1:
				bad = 0
				return errors.New("out of order")
			case 2:
				bad = 0
				panic("boom")
			}
			return nil
		}
	})
	turns := []backend.Turn{user("hello")}
	want := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 8})
	for i := 1; i <= 2; i++ {
		bad = i
		if _, err := e.Generate(context.Background(), &backend.Request{Turns: turns}, nil); !errors.Is(err, backend.ErrUnavailable) {
			t.Errorf("fault %d: %v", i, err)
		}
		if r := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 8}); !slices.Equal(r.Part.Tokens, want.Part.Tokens) {
			t.Errorf("after fault %d: %v, want %v", i, r.Part.Tokens, want.Part.Tokens)
		}
	}
	if st := e.Stats(); st.Rebuilt != 1 {
		t.Errorf("%+v", st)
	}
}

func TestNaNFailsTheRequestAlone(t *testing.T) {
	var e *Engine
	e = newFake(t, func(_ *Config, m *fakeModel) {
		m.before = hold(&e, 2)
		m.script = func(tokens []backend.Token) backend.Token {
			if slices.Contains(tokens, 'N') {
				return notANumber
			}
			return -1
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := e.Generate(context.Background(), &backend.Request{ID: "sick", Turns: []backend.Turn{user("N")}}, nil)
		if !errors.Is(err, errNaN) || !strings.HasPrefix(err.Error(), "sick: ") {
			t.Error(err)
		}
	})
	wg.Go(func() {
		r, err := e.Generate(context.Background(), &backend.Request{Turns: []backend.Turn{user("n")}, MaxTokens: 9, IgnoreEOS: true}, nil)
		if err != nil || r.Usage.SampledTokens != 9 {
			t.Error(r, err)
		}
	})
	wg.Wait()
	if _, err := e.Score(context.Background(), &backend.ScoreRequest{Turns: []backend.Turn{user("N")}, Options: []string{"a", "bc"}}); !errors.Is(err, errNaN) {
		t.Error(err)
	}
}

// TestColdRequestIsNotStarved: requests with a long cached prefix keep coming,
// more than can run; one without gets its turn all the same.
func TestColdRequestIsNotStarved(t *testing.T) {
	e, arrive := stepped(t, Config{Pages: 256, MaxSeqs: 2})
	n := 0
	submit := func(text string) *generation {
		n++
		return arrive(text, 8).task.(*generation)
	}
	hot := longText(300)
	submit(hot)
	for range 6 {
		e.receive()
		e.round()
	}
	cold := submit("cold")
	for step := 0; !cold.finished; step++ {
		for len(e.sched.waiting) < 6 {
			submit(fmt.Sprint(hot, n))
			e.receive()
		}
		e.receive()
		e.round()
		if step > e.sched.ageLimit+20 {
			t.Fatalf("not served within %d steps, %d others were", step, n)
		}
	}
	if n < 12 {
		t.Errorf("only %d others came: no test of anything", n)
	}
}

func TestLogprobs(t *testing.T) {
	for _, constraint := range []backend.Constraint{{}, {JSONSchema: []byte(verdictSchema)}, {Choices: []string{"the high"}}} {
		req := &backend.Request{Turns: []backend.Turn{user("x")}, MaxTokens: 40, Logprobs: true, Constraint: constraint}
		e := newFake(t, nil)
		r := mustGenerate(t, e, req)
		ids, _ := e.Tokenize(req.Turns, true)
		want := scoreByHand(e.fake(), ids, r.Part.Tokens)
		if len(want) != len(r.Logprobs) {
			t.Fatalf("%d log-probabilities for %d tokens", len(r.Logprobs), len(want))
		}
		for i := range want {
			if math.Abs(want[i]-r.Logprobs[i]) > 1e-6 {
				t.Errorf("token %d: %v, want %v", i, r.Logprobs[i], want[i])
			}
		}
		if !constraint.IsZero() && (r.Usage.ForcedTokens == 0 || passes(r.Usage) > r.Usage.SampledTokens+1) {
			t.Errorf("usage %+v", r.Usage)
		}
	}
}

func TestCloseEndsRequests(t *testing.T) {
	started := make(chan struct{})
	var once sync.Once
	e := newFake(t, func(_ *Config, m *fakeModel) {
		m.before = func(*model.Batch) error { once.Do(func() { close(started) }); return nil }
	})
	got := make(chan error, 1)
	go func() {
		_, err := e.Generate(context.Background(), &backend.Request{Turns: []backend.Turn{user("x")}, IgnoreEOS: true}, nil)
		got <- err
	}()
	<-started
	e.Close()
	if err := <-got; err != nil && !errors.Is(err, backend.ErrClosed) {
		t.Error(err)
	}
	if _, err := e.Generate(context.Background(), &backend.Request{Turns: []backend.Turn{user("x")}}, nil); !errors.Is(err, backend.ErrClosed) {
		t.Error(err)
	}
	e.Flush()
}
