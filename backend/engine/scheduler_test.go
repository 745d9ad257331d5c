package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
)

// together starts all requests before the first pass and returns the results.
func together(t *testing.T, e *Engine, reqs []*backend.Request) []*backend.Result {
	t.Helper()
	out := make([]*backend.Result, len(reqs))
	var wg sync.WaitGroup
	for i, req := range reqs {
		wg.Go(func() {
			var err error
			if out[i], err = e.Generate(context.Background(), req, nil); err != nil {
				t.Errorf("%d: %v", i, err)
				out[i] = &backend.Result{}
			}
		})
	}
	wg.Wait()
	return out
}

// hold makes the passes of e wait until n sequences have arrived.
func hold(e **Engine, n int) func(*model.Batch) error {
	return func(*model.Batch) error {
		for {
			(*e).mu.Lock()
			arrived := (*e).arrived
			(*e).mu.Unlock()
			if int(arrived) >= n {
				return nil
			}
		}
	}
}

func TestPreemptedSequencesWriteTheSame(t *testing.T) {
	var reqs []*backend.Request
	var want []*backend.Result
	big := newFake(t, nil)
	for i := range 6 {
		reqs = append(reqs, &backend.Request{
			Turns: []backend.Turn{raw(fmt.Sprint(i, longText(60)))}, MaxTokens: 100, IgnoreEOS: true,
			Sampling: backend.Sampling{Temperature: 1, Seed: uint64(i), FrequencyPenalty: 0.1},
		})
		want = append(want, mustGenerate(t, big, reqs[i]))
	}
	var e *Engine
	e = newFake(t, func(c *Config, m *fakeModel) { c.Pages, m.before = 20, hold(&e, 6) })
	got := together(t, e, reqs)
	for i := range reqs {
		if !slices.Equal(got[i].Part.Tokens, want[i].Part.Tokens) {
			t.Errorf("request %d: %v, want %v", i, got[i].Part.Tokens, want[i].Part.Tokens)
		}
		if u := got[i].Usage; u.SampledTokens != 100 || u.PromptTokens != want[i].Usage.PromptTokens || u.Without != want[i].Usage.Without {
			t.Errorf("request %d: %+v", i, u)
		}
	}
	if e.Stats().Preempted == 0 {
		t.Error("nothing was preempted")
	}
}

func TestDecodeGoesOnDuringLongPrefill(t *testing.T) {
	var e *Engine
	var rows []string
	e = newFake(t, func(c *Config, m *fakeModel) {
		c.MaxBatchTokens = 32
		held := hold(&e, 2)
		m.before = func(b *model.Batch) error {
			_ = held(b)
			var line []string
			for _, r := range b.Rows {
				line = append(line, fmt.Sprint(len(r.Tokens)))
			}
			rows = append(rows, strings.Join(line, "+"))
			return nil
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		e.Generate(context.Background(), &backend.Request{Turns: []backend.Turn{raw("short")}, MaxTokens: 30, IgnoreEOS: true}, nil)
	})
	hold(&e, 1)(nil)
	wg.Go(func() {
		e.Generate(context.Background(), &backend.Request{Turns: []backend.Turn{raw(longText(700))}, MaxTokens: 2, IgnoreEOS: true}, nil)
	})
	wg.Wait()
	// The short one prefills and then takes one token of every step.
	if !slices.Contains(rows[:4], "1+31") {
		t.Errorf("steps %v, want 1+31 among the first", rows)
	}
}

func TestLongestPrefixFirstButNobodyStarves(t *testing.T) {
	s := &scheduler{ageLimit: 10}
	q := func(order uint64, peek int, run string) *sequence {
		return &sequence{order: order, peek: peek, peekAt: 1, hints: backend.Hints{Run: run}, tokens: make([]backend.Token, 100), task: &scoring{}}
	}
	cold, hot, a1, b1, a2 := q(1, 0, ""), q(2, 90, ""), q(3, 50, "a"), q(4, 50, "b"), q(5, 50, "a")
	preempted := q(6, 10, "")
	preempted.admitted = true
	s.waiting = []*sequence{cold, hot, a1, b1, a2, preempted}
	s.cache = newFake(t, nil).sched.cache
	if got, want := s.order(), []*sequence{preempted, hot, a1, a2, b1, cold}; !slices.Equal(got, want) {
		for _, q := range got {
			t.Log(q.order)
		}
		t.Error("want 6 2 3 5 4 1")
	}
	s.step = 11
	if got := s.order(); got[0] != cold {
		t.Errorf("after 11 steps request %d is first, want the oldest", got[0].order)
	}
}

func TestUrgentRequestsGoFirst(t *testing.T) {
	s := &scheduler{ageLimit: 10}
	s.cache = newFake(t, nil).sched.cache
	q := func(order uint64, peek, priority int) *sequence {
		return &sequence{order: order, peek: peek, peekAt: 1, priority: priority, tokens: make([]backend.Token, 100), task: &scoring{}}
	}
	cold, hot, urgent, later := q(1, 0, 0), q(2, 90, 0), q(3, 0, 2), q(4, 95, -1)
	s.waiting = []*sequence{cold, hot, urgent, later}
	if got, want := s.order(), []*sequence{urgent, hot, cold, later}; !slices.Equal(got, want) {
		t.Error("want 3 2 1 4")
	}
	// One that arrived behind a crowd is looked at too.
	for i := range 3 * scanLimit {
		s.waiting = append(s.waiting, q(uint64(5+i), 0, 0))
	}
	last := q(9999, 0, 3)
	s.waiting = append(s.waiting, last)
	if got := s.order(); got[0] != last || got[1] != urgent || len(got) != scanLimit {
		t.Errorf("%d and %d go first of %d", got[0].order, got[1].order, len(got))
	}
	// So is one of the crowd's end that has run before.
	preempted := s.waiting[len(s.waiting)-2]
	preempted.admitted = true
	if got := s.order(); got[0] != preempted || got[1] != last {
		t.Errorf("%d and %d go first", got[0].order, got[1].order)
	}
	preempted.admitted = false
	// Nobody starves behind urgent ones.
	s.step = 11
	last.since, urgent.since = 11, 11
	if got := s.order(); got[0] != cold {
		t.Errorf("after 11 steps request %d is first, want the oldest", got[0].order)
	}
}

// queue sends requests to an engine, one after the other while the first pass of the
// first one is under way, and returns the pass in which each began.
func queue(t *testing.T, change func(*Config), reqs []*backend.Request) []uint64 {
	t.Helper()
	atWork, all := make(chan struct{}), make(chan struct{})
	e := newFake(t, func(c *Config, m *fakeModel) {
		change(c)
		first := sync.OnceFunc(func() { close(atWork) })
		m.before = func(*model.Batch) error { first(); <-all; return nil }
	})
	began := make([]uint64, len(reqs))
	var wg sync.WaitGroup
	for i, req := range reqs {
		arrived := make(chan struct{})
		ctx := backend.WithTrace(t.Context(), &backend.Trace{Queued: func(string) { close(arrived) }})
		wg.Go(func() {
			res, err := e.Generate(ctx, req, nil)
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			began[i] = res.Usage.Passes[0].From
		})
		<-arrived
		if i == 0 {
			<-atWork
		}
	}
	close(all)
	wg.Wait()
	return began
}

func TestPriorityOfRequests(t *testing.T) {
	ask := func(text string, tokens, priority int) *backend.Request {
		return &backend.Request{Turns: []backend.Turn{raw(text)}, MaxTokens: tokens, IgnoreEOS: true, Priority: priority}
	}
	one := func(c *Config) { c.MaxSeqs = 1 }
	began := queue(t, one, []*backend.Request{ask("first", 8, 0), ask("low", 1, -1), ask("middle", 1, 0), ask("high", 1, 5), ask("middle too", 1, 0)})
	if !(began[0] < began[3] && began[3] < began[2] && began[2] < began[4] && began[4] < began[1]) {
		t.Errorf("begun in the passes %d, want the first, then by priority and arrival", began)
	}
	// One that is not urgent waits for 64 steps and those that came before it, not more.
	const many = 200
	reqs := []*backend.Request{ask("first", 8, 0), ask("low", 1, -1)}
	for i := range many {
		reqs = append(reqs, ask(fmt.Sprint("high ", i), 1, 1))
	}
	began = queue(t, one, reqs)
	if waited := began[1] - began[0]; waited < 60 || waited > 80 {
		t.Errorf("the one that is not urgent waited for %d passes", waited)
	}
	// An urgent one that does not fit is not overtaken by a small one.
	began = queue(t, func(c *Config) { c.Pages = 12 }, []*backend.Request{ask("first "+longText(100), 40, 0), ask("high "+longText(240), 4, 1), ask("low", 1, 0)})
	if began[1] < began[0]+40 || began[2] < began[1] {
		t.Errorf("begun in the passes %d, want the second when the first has ended, and not the third before it", began)
	}
}

func TestPoolSmallerThanARequest(t *testing.T) {
	e := newFake(t, func(c *Config, m *fakeModel) { c.Pages = 4 })
	if got := e.Info().ContextLength; got != 64 {
		t.Errorf("context %d on a pool of 64 tokens", got)
	}
	_, err := e.Generate(context.Background(), &backend.Request{Turns: []backend.Turn{raw(longText(300))}}, nil)
	if err == nil || !strings.Contains(err.Error(), "memory") {
		t.Errorf("%v, want an error that says what to do", err)
	}
	r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{raw("hello")}, IgnoreEOS: true})
	if r.Finish != backend.FinishLength || r.Usage.PromptTokens+r.Usage.SampledTokens != 64 {
		t.Errorf("%+v", r)
	}
}

// TestPathOfPartlySharedPages: a prefix may pin more pages than it uses; with
// a pool that just holds the sequence it is not allowed to matter.
func TestPathOfPartlySharedPages(t *testing.T) {
	e := newFake(t, func(c *Config, m *fakeModel) { c.Pages = 6 })
	text := longText(120)
	ids, _ := e.Tokenize([]backend.Turn{raw(text)}, true)
	want := byHand(e.fake(), ids, 8)
	for n := 4; n < len(text); n += 9 { // each leaves a node that ends inside a page
		mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{raw(text[:n] + "~")}, MaxTokens: 1, IgnoreEOS: true})
	}
	r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{raw(text)}, MaxTokens: 8, IgnoreEOS: true})
	if !slices.Equal(r.Part.Tokens, want) {
		t.Errorf("%v, want %v", r.Part.Tokens, want)
	}
}

func TestOverload(t *testing.T) {
	var e *Engine
	e = newFake(t, func(c *Config, m *fakeModel) { c.MaxWaiting, m.before = 2, hold(&e, 3) })
	var wg sync.WaitGroup
	errs := make(chan error, 3)
	for range 3 {
		wg.Go(func() {
			_, err := e.Generate(context.Background(), &backend.Request{Turns: []backend.Turn{user("x")}, MaxTokens: 1}, nil)
			errs <- err
			if err != nil {
				e.mu.Lock()
				e.arrived++ // let the others go
				e.mu.Unlock()
			}
		})
	}
	wg.Wait()
	failed := 0
	for range 3 {
		if err := <-errs; err != nil {
			failed++
			if !strings.Contains(err.Error(), backend.ErrOverloaded.Error()) {
				t.Error(err)
			}
		}
	}
	if failed != 1 {
		t.Errorf("%d of 3 refused, want 1", failed)
	}
}
