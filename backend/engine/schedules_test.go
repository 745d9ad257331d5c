package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/sapling"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// TestRandomSchedules runs random requests on engines of random shape, with
// aborts, flushes, preemption, faults of the model and pools that hardly hold one
// request, and compares every result with that of the same request alone on an
// empty cache. The sums of pages are checked after every step (Config.Check).
// The model is a fake one, which computes what no model does: it notices each
// wrong page, position and copy.
func TestRandomSchedules(t *testing.T) { schedules(t, 60, []*stand{fakeStand}) }

// TestRandomSchedulesOfAModel is TestRandomSchedules with real forward passes:
// of a random transformer with both ways to hold keys and values and in the
// arithmetic of llama.cpp, and of the embedded model.
func TestRandomSchedulesOfAModel(t *testing.T) {
	tiny := func(o model.Options) func(testing.TB, int) (Model, Tokenizer, Template) {
		return func(tb testing.TB, threads int) (Model, Tokenizer, Template) {
			o.Threads = threads
			return tinyModelOf(tb, 2, 2048, o), fakeTokenizer{}, chatML{}
		}
	}
	embedded := func(o model.Options) func(testing.TB, int) (Model, Tokenizer, Template) {
		return func(tb testing.TB, threads int) (Model, Tokenizer, Template) {
			o.Threads = threads
			return saplingModel(tb, o)
		}
	}
	schedules(t, 40, []*stand{
		{name: "ggml", share: 1, load: tiny(model.Options{Arithmetic: model.GGML})},
		{name: "sapling bf16", share: 1, load: embedded(model.Options{})},
		{name: "sapling q8", share: 1, load: embedded(model.Options{KV: model.Int8})},
		{name: "bf16", share: 24, load: tiny(model.Options{})},
		{name: "q8", share: 23, load: tiny(model.Options{KV: model.Int8})},
	})
}

// saplingModel is the embedded model, to be used by several engines.
func saplingModel(tb testing.TB, o model.Options) (Model, Tokenizer, Template) {
	tb.Helper()
	f, err := gguf.Parse(sapling.GGUF())
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		tb.Fatal(err)
	}
	tmpl, _, err := templateOf(f, tok)
	if err != nil {
		tb.Fatal(err)
	}
	m, err := model.Load(f, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(m.Close)
	own, err := FromModel(m)
	if err != nil {
		tb.Fatal(err)
	}
	return keptOpen{own}, tok, tmpl
}

// stand is where rounds with one kind of model run. What rounds share makes them
// cheap: models, compiled constraints, and the results of requests alone, which
// come from a list, so that many rounds compare with the same ones.
type stand struct {
	name  string
	share int // of the rounds
	// load gives a model that computes with so many threads; nil for a fake one.
	load func(tb testing.TB, threads int) (Model, Tokenizer, Template)

	tb       testing.TB // of all rounds
	models   [3]Model   // by threads
	tok      Tokenizer
	tmpl     Template
	grammars *grammars
	alone    map[[2]int]*Engine // by pages and script
	known    map[known]outcome
	held     [][]backend.Token // of the request that is alone
}

// known names a request of the list alone on a pool of so many pages.
type known struct{ call, pages, script int }

var fakeStand = &stand{name: "fake", share: 1}

// schedules runs so many rounds by default. COPPICE_SCHEDULES sets another number,
// and COPPICE_SCHEDULES_FROM the seed of the first.
func schedules(t *testing.T, rounds int, stands []*stand) {
	number := func(name string, def int) int {
		s := os.Getenv(name)
		if s == "" {
			return def
		}
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	rounds = number("COPPICE_SCHEDULES", rounds)
	from := number("COPPICE_SCHEDULES_FROM", 0)
	var byShare []*stand
	for _, s := range stands {
		s.open(t)
		for range s.share {
			byShare = append(byShare, s)
		}
	}
	var sum tally
	done := map[string]int{}
	seed := from
	// How often what happens is left to chance: rounds that hold too little of something
	// are followed by more.
	for ; !t.Failed() && (seed < from+rounds || seed < from+4*rounds && len(sum.lacks(rounds)) > 0); seed++ {
		s := byShare[seed%len(byShare)]
		t.Run(fmt.Sprint(s.name, " ", seed), func(t *testing.T) { s.round(t, uint64(seed), &sum) })
		done[s.name]++
	}
	t.Logf("seeds %d to %d, rounds %v: %+v", from, seed-1, done, sum)
	if os.Getenv("COPPICE_SCHEDULES") != "" {
		fmt.Printf("seeds from %d, rounds %v: %+v, failed: %v\n", from, done, sum, t.Failed())
	}
	if t.Failed() {
		return
	}
	for _, what := range sum.lacks(rounds) {
		t.Errorf("only %s in %d rounds", what, seed-from)
	}
}

// tally counts what happened in rounds.
type tally struct{ Calls, Aborted, Failed, Resumed, Preempted, Tier, Saved, Rebuilt, TierFaults int }

// lacks says what so many rounds should hold and these do not: a test of preemption that
// never preempts is noticed, and so on. A few rounds may hold nothing.
func (sum *tally) lacks(rounds int) (out []string) {
	if rounds < 40 {
		return nil
	}
	for _, n := range []struct {
		what       string
		got, least int
	}{
		{"preemptions", sum.Preempted, rounds / 20},
		{"pages from the second tier", sum.Tier, rounds},
		{"aborts", sum.Aborted, rounds},
		{"failed requests", sum.Failed, rounds / 20},
		{"resumed requests", sum.Resumed, rounds / 10},
		{"rounds with more tokens than passes", sum.Saved, max(1, rounds/100)},
		{"panics", sum.Rebuilt, max(1, rounds/100)},
		{"faults of the tier", sum.TierFaults, rounds / 100}, // in a few rounds there may be none
	} {
		if n.got < n.least {
			out = append(out, fmt.Sprintf("%d %s", n.got, n.what))
		}
	}
	return out
}

// open loads what the rounds share.
func (s *stand) open(tb testing.TB) {
	s.tok, s.tmpl = fakeTokenizer{}, chatML{}
	if s.load != nil {
		for threads := 1; threads <= 2; threads++ {
			s.models[threads], s.tok, s.tmpl = s.load(tb, threads)
		}
	}
	s.alone, s.known = map[[2]int]*Engine{}, map[known]outcome{}
	s.tb, s.grammars = tb, nil
}

// engine makes one with the shared parts; scripted is for fake models only.
func (s *stand) engine(tb testing.TB, script int, threads int, change func(*Config)) *Engine {
	e := newFake(tb, func(c *Config, fake *fakeModel) {
		if script == 1 { // a model that often repeats what it read: guesses are right
			fake.script = func(tokens []backend.Token) backend.Token {
				if n := len(tokens); n > 12 && mix(uint64(n))%7 != 0 {
					return tokens[n-12]
				}
				return -1
			}
		}
		if s.load != nil {
			c.Model = s.models[threads]
		}
		c.Tokenizer, c.Template = s.tok, s.tmpl
		change(c)
	})
	if s.grammars == nil {
		s.grammars = e.grammars
	}
	e.grammars = s.grammars
	return e
}

// engineAlone is the engine on which requests are alone.
func (s *stand) engineAlone(pages, script int) *Engine {
	key := [2]int{pages, script}
	if s.alone[key] == nil {
		s.alone[key] = s.engine(s.tb, script, 1, func(c *Config) { c.Pages, c.Model = pages, heard{c.Model, &s.held} })
	}
	return s.alone[key]
}

// A round has requests of one family of the list: their prompts begin alike.
const families, familySize = 16, 120

// call returns a request of the list.
func (s *stand) call(n int) *call {
	f := n / familySize
	trunks := []string{longText(40 + 8*f), longText(90) + "other", "x"}
	return randomCall(rand.New(rand.NewPCG(uint64(n), 11)), s.tok, trunks)
}

// want is the outcome of a request alone, on an empty cache, without jump-forward
// and without a guess, on a pool of so many pages.
func (s *stand) want(n, pages, script int) outcome {
	c := s.call(n)
	big := s.engineAlone(128, script)
	if need, err := c.tokens(big); err != nil {
		s.tb.Fatal(err)
	} else if need < pages*model.PageSize {
		pages = 128 // any that is large enough gives the same
	}
	key := known{n, pages, script}
	if o, ok := s.known[key]; ok {
		return o
	}
	if c.gen != nil {
		c.gen.NoJump = true
	}
	e := s.engineAlone(pages, script)
	s.held = nil
	o := c.run(context.Background(), e, nil)
	e.Flush() // after the last pass
	o.held = s.held
	s.known[key] = o
	return o
}

// round is one engine and what is asked of it.
func (s *stand) round(t *testing.T, seed uint64, sum *tally) {
	r := rand.New(rand.NewPCG(seed, 7))
	pages := []int{8, 9, 10, 12, 14, 17, 21, 27, 38}[r.IntN(1+r.IntN(9))]
	script := 0
	if s.load == nil {
		script = r.IntN(2)
	}
	family := r.IntN(families)
	calls, want := make([]*call, 12+r.IntN(12)), []outcome{}
	for i := range calls {
		n := family*familySize + r.IntN(familySize)
		calls[i] = s.call(n)
		want = append(want, s.want(n, pages, script))
		calls[i].vary(r, want[i])
		if calls[i].gen != nil && calls[i].gen.Resume != nil {
			sum.Resumed++
		}
	}
	w := &world{fault: noFault, when: 1 + r.IntN(20)}
	if r.IntN(4) == 0 {
		w.fault = r.IntN(faultKinds)
	}
	w.launch.Add(1)
	e := s.engine(t, script, 1+r.IntN(2), func(c *Config) {
		c.Pages = pages
		c.MaxBatchTokens = []int{1, 2, 5, 17, 64}[r.IntN(5)]
		c.MaxSeqs = []int{1, 2, 5, 16}[r.IntN(4)]
		c.Drafts = []int{0, 1, 5}[r.IntN(3)]
		c.Choices = []int{0, 8, 60}[r.IntN(3)]
		c.Model = watched{c.Model, w}
		c.Before, c.Planning = w.step, w.plan
		if r.IntN(2) == 0 {
			c.Model = ahead{c.Model, t}
		} else if n := r.IntN(3); n > 0 {
			c.TierBytes = int64((pages*n/2 + 1) * c.Model.PageBytes())
		}
	})
	if w.fault != noFault {
		expectRebuild[t.Name()] = true
	}
	if r.IntN(2) == 0 {
		e.sched.maxOutputs = 1 + r.IntN(3) // before any request
	}
	got := make([]outcome, len(calls))
	var wg sync.WaitGroup
	for i, c := range calls {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if r.IntN(8) == 0 {
			c.aborts = true
			w.at(r.IntN(60), cancel)
		}
		wg.Go(func() { got[i] = c.run(ctx, e, cancel) })
		switch r.IntN(12) {
		case 0, 1:
			wg.Go(e.Flush)
		case 2:
			wg.Go(func() { e.Foresee("a", "x", backend.Absence{Doing: "tool"}) })
		case 3:
			wg.Go(func() { e.Foresee("b", "", backend.Absence{Gone: true}) })
		case 4:
			wg.Go(func() { e.EndRun("a") })
		}
	}
	for range r.IntN(50) {
		runtime.Gosched()
	}
	w.launch.Done()
	wg.Wait()
	failed := 0
	for i, c := range calls {
		sum.Calls++
		switch {
		case c.aborts && errors.Is(got[i].err, context.Canceled):
			sum.Aborted++
		case errors.Is(got[i].err, errFault) && errors.Is(got[i].err, backend.ErrUnavailable) && w.mayFail(want[i], failed):
			failed++
		default:
			compareOutcome(t, fmt.Sprintf("call %d", i), c, got[i], want[i])
		}
	}
	for range 2 { // what was aborted last has been ended
		e.do(func() {})
	}
	st := e.Stats()
	sum.Failed += failed
	sum.Rebuilt += int(st.Rebuilt)
	sum.TierFaults += int(st.TierFailed)
	sum.Preempted += int(st.Preempted)
	sum.Tier += int(st.TierLoaded + st.TierFetched)
	if st.Sampled > st.Steps {
		sum.Saved++
	}
	if st.Held != 0 || st.Waiting+st.Running != 0 || st.Free+st.Evictable != st.Pages {
		t.Errorf("at the end: %+v", st)
	}
}
