package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
)

// TestAbortsAtRandomSteps: 500 requests at once on a pool for a few; at random
// steps some of those at work are given up. The pages are recounted after every
// step (Config.Check), the others get what they would get alone, and nothing is
// left in the end. It is one round with and one without a device, or rounds with
// other random numbers for as long as COPPICE_ABORTS says, e.g. 10m.
func TestAbortsAtRandomSteps(t *testing.T) {
	var long time.Duration
	if s := os.Getenv("COPPICE_ABORTS"); s != "" {
		var err error
		if long, err = time.ParseDuration(s); err != nil {
			t.Fatalf("COPPICE_ABORTS: %v", err)
		}
	}
	const requests = 500
	alone := newFake(t, nil)
	want := make([][]backend.Token, 10) // by kind of request
	ask := func(i int) *backend.Request {
		return &backend.Request{ID: fmt.Sprint(i), Turns: []backend.Turn{raw(longText(30+10*(i%10)) + "?")}, MaxTokens: 12, IgnoreEOS: true}
	}
	for i := range want {
		want[i] = mustGenerate(t, alone, ask(i)).Part.Tokens
	}
	start := time.Now()
	for round := 0; !t.Failed() && (round < 2 || time.Since(start) < long); round++ {
		device := round%2 == 1
		t.Run(fmt.Sprintf("round %d, device %v", round, device), func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 9+uint64(round/2)))
			var mu sync.Mutex
			cancels := map[int]context.CancelFunc{}
			before := func(*model.Batch) error {
				mu.Lock()
				defer mu.Unlock()
				for i, cancel := range cancels {
					if r.IntN(400) == 0 {
						cancel()
						delete(cancels, i)
					}
				}
				return nil
			}
			e := newFake(t, func(c *Config, m *fakeModel) {
				c.Pages, c.MaxBatchTokens, c.MaxSeqs = 40, 96, 24
				m.before = before
				if device {
					c.Model = ahead{c.Model, t}
				}
			})
			var aborted atomic.Int64
			var wg sync.WaitGroup
			for i := range requests {
				ctx, cancel := context.WithCancel(context.Background())
				mu.Lock()
				cancels[i] = cancel
				mu.Unlock()
				wg.Go(func() {
					defer cancel()
					res, err := e.Generate(ctx, ask(i), nil)
					mu.Lock()
					delete(cancels, i)
					mu.Unlock()
					switch {
					case errors.Is(err, context.Canceled):
						aborted.Add(1)
					case err != nil:
						t.Errorf("%d: %v", i, err)
					case !slices.Equal(res.Part.Tokens, want[i%len(want)]):
						t.Errorf("%d: %v, alone %v", i, res.Part.Tokens, want[i%len(want)])
					}
				})
			}
			wg.Wait()
			for range 2 { // what was given up last has been ended
				e.do(func() {})
			}
			st := e.Stats()
			if st.Held != 0 || st.Running+st.Waiting != 0 || st.Free+st.Evictable != st.Pages || st.Rebuilt != 0 {
				t.Errorf("at the end: %+v", st)
			}
			if n := aborted.Load(); n == 0 || n == requests || st.Finished < uint64(requests-n) {
				t.Errorf("%d of %d aborted, %d finished", n, requests, st.Finished)
			}
			t.Logf("%d aborted, %d preempted, %d steps", aborted.Load(), st.Preempted, st.Steps)
		})
	}
}

// TestNobodyStarvesInACrowd: 500 requests, urgent ones among them, wait for a pool
// that holds one or two; some would not fit into it at all and are refused, some are
// given up at random steps. The pages are recounted after every step, nothing is left
// in the end, and who has waited for 64 steps begins no more than a few after anybody
// who came later.
func TestNobodyStarvesInACrowd(t *testing.T) {
	const requests, slack = 500, 16 // steps that one may be held back for a prefix
	r := rand.New(rand.NewPCG(5, 8))
	var mu sync.Mutex
	cancels := map[int]context.CancelFunc{}
	atWork, all := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(atWork) })
	e := newFake(t, func(c *Config, m *fakeModel) {
		c.Pages, c.MaxBatchTokens, c.MaxSeqs = 8, 64, 6
		m.before = func(*model.Batch) error {
			first()
			<-all
			mu.Lock()
			defer mu.Unlock()
			for i := range requests { // in the same order each time
				if cancel := cancels[i]; cancel != nil && r.IntN(2000) == 0 {
					cancel()
					delete(cancels, i)
				}
			}
			return nil
		}
	})
	var wg sync.WaitGroup
	began := make([]uint64, requests)
	var aborted, refused atomic.Int64
	for i := range requests {
		ctx, cancel := context.WithCancel(t.Context())
		req := &backend.Request{
			ID: fmt.Sprint(i), Turns: []backend.Turn{raw(fmt.Sprint(i%7, longText(20+i*13%80)))},
			MaxTokens: 1 + i%9, IgnoreEOS: true, Priority: i % 3,
		}
		if i%20 == 1 {
			req.Turns = []backend.Turn{raw(longText(600))} // more than the pool
		}
		mu.Lock()
		cancels[i] = cancel
		mu.Unlock()
		taken := make(chan struct{})
		in := sync.OnceFunc(func() { close(taken) })
		ctx = backend.WithTrace(ctx, &backend.Trace{Queued: func(string) { in() }})
		wg.Go(func() {
			defer cancel()
			defer in()
			res, err := e.Generate(ctx, req, nil)
			mu.Lock()
			delete(cancels, i)
			mu.Unlock()
			switch {
			case errors.Is(err, context.Canceled):
				aborted.Add(1)
			case errors.Is(err, backend.ErrContextLength) && i%20 == 1:
				refused.Add(1)
			case err != nil:
				t.Errorf("%d: %v", i, err)
			default:
				began[i] = res.Usage.Passes[0].From
			}
		})
		<-taken // they arrive in this order
		if i == 0 {
			<-atWork
		}
	}
	close(all)
	wg.Wait()
	if refused.Load() != requests/20 || aborted.Load() == 0 {
		t.Errorf("%d refused, %d aborted", refused.Load(), aborted.Load())
	}
	var waits []uint64
	late := uint64(0)
	for i, b := range began {
		if b == 0 {
			continue
		}
		waits = append(waits, b)
		for j := i + 1; j < requests; j++ {
			c := began[j]
			if c <= uint64(e.sched.ageLimit) || c > b {
				continue
			}
			if late = max(late, b-c); late > slack {
				t.Fatalf("request %d began in pass %d, request %d, which came later, in pass %d", i, b, j, c)
			}
		}
	}
	for range 2 { // what was given up last has been ended
		e.do(func() {})
	}
	st := e.Stats()
	if st.Held != 0 || st.Running+st.Waiting != 0 || st.Free+st.Evictable != st.Pages || st.Rebuilt != 0 {
		t.Errorf("at the end: %+v", st)
	}
	slices.Sort(waits)
	n := len(waits)
	t.Logf("%d steps, %d preempted, %d aborted; began after %d steps at the median, %d at p99, %d at most; at most %d steps after a later one",
		st.Steps, st.Preempted, aborted.Load(), waits[n/2], waits[n*99/100], waits[n-1], late)
}

// TestTotalBytes: model, logits, keys and values stay within the budget.
func TestTotalBytes(t *testing.T) {
	m := tinyModel(t, 1)
	sized := m.(keptOpen).Model.(*cpuModel)
	cfg := Config{Model: sized, Tokenizer: fakeTokenizer{}, Fingerprint: "f", MaxSeqs: 8}
	logits := int64(cfg.maxOutputs() * sized.VocabSize() * 4)
	alone := sized.Bytes() + logits
	cfg.TotalBytes = alone + int64(10*sized.PageBytes()) + 5
	c := cfg
	if err := c.setDefaults(); err != nil || c.Pages != 10 {
		t.Errorf("%d pages (%v), want 10", c.Pages, err)
	}
	for pages := 1; pages < 300; pages += 7 {
		c = cfg
		c.TotalBytes = alone + int64(pages*sized.PageBytes())
		if err := c.setDefaults(); err != nil || model.ReservedPages(c.Pages) > pages {
			t.Errorf("a budget of %d pages: a pool of %d, %d are reserved (%v)", pages, c.Pages, model.ReservedPages(c.Pages), err)
		}
	}
	c = cfg
	c.MemoryBytes = 1 << 20
	if err := c.setDefaults(); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("two bounds of memory: %v", err)
	}
	c = cfg
	c.Pages = 11
	if err := c.setDefaults(); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("11 pages do not fit: %v", err)
	}
	c = cfg
	c.TotalBytes = alone
	if err := c.setDefaults(); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), fmt.Sprint(alone)) {
		t.Error(err)
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
