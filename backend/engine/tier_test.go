package engine

import (
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
)

// TestWhatWasEvictedComesBack: with a second tier a prompt that was evicted is not
// computed again, and what follows it is the same bit for bit, with each way to hold
// keys and values.
func TestWhatWasEvictedComesBack(t *testing.T) {
	for _, kind := range []model.KVType{model.BFloat16, model.Int8} {
		m := tinyModelOf(t, 2, 512, model.Options{Threads: 1, KV: kind})
		ask := func(i int) *backend.Request {
			return &backend.Request{Turns: []backend.Turn{raw(fmt.Sprint(i, longText(300)))}, MaxTokens: 24, IgnoreEOS: true, Logprobs: true}
		}
		var computed [2]uint64
		var first []*backend.Result
		for round, tier := range []int64{0, 200} {
			e := newFake(t, func(c *Config, _ *fakeModel) {
				c.Model, c.Pages, c.TierBytes = m, 32, tier*int64(m.PageBytes())
			})
			for i := range 12 { // four prompts, three times, in a pool for one or two
				r := mustGenerate(t, e, ask(i%4))
				if round == 0 && i < 4 {
					first = append(first, r)
				}
				if w := first[i%4]; !reflect.DeepEqual(r.Part, w.Part) || !reflect.DeepEqual(r.Logprobs, w.Logprobs) {
					t.Fatalf("%s, tier of %d pages, request %d: %v, want %v", kind, tier, i, r.Part, w.Part)
				}
			}
			st := e.Stats()
			computed[round] = st.Computed
			if tier > 0 && (st.TierLoaded == 0 || st.TierUsed == 0 || st.TierPages != 200) || tier == 0 && st.TierSaved != 0 {
				t.Errorf("%s: %+v", kind, st)
			}
		}
		if computed[1] > computed[0]*6/10 {
			t.Errorf("%s: %d tokens computed with a tier, %d without", kind, computed[1], computed[0])
		}
	}
}

// TestPagesComeBackBeforeTheyAreAskedFor: the engine knows when a branch is back. What
// was evicted meanwhile is there by then, and not before.
func TestPagesComeBackBeforeTheyAreAskedFor(t *testing.T) {
	var now atomic.Int64
	e := newFake(t, func(c *Config, _ *fakeModel) {
		c.Pages, c.TierBytes = 40, 100*1024
		c.Clock = func() time.Duration { return time.Duration(now.Load()) }
	})
	agent := backend.Hints{Run: "r", Branch: "a"}
	ask := func(text string, h backend.Hints) *backend.Result {
		return mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{user(text)}, MaxTokens: 1, Hints: h})
	}
	prompt := "agent " + longText(250)
	n := ask(prompt, agent).Usage.PromptTokens
	e.Foresee("r", "a", backend.Absence{Doing: "sleep", For: 40 * time.Second})
	other := func(i int) { // its branch is back in a moment, so it is worth more
		h := backend.Hints{Run: "s", Branch: fmt.Sprint(i)}
		ask(fmt.Sprint(i, longText(400)), h)
	}
	other(1)
	other(2)
	e.do(func() {})
	if st := e.Stats(); st.TierSaved == 0 || st.TierFetched != 0 {
		t.Fatalf("%+v, want pages of the agent in the tier", st)
	}
	e.EndRun("s")
	now.Store(int64(39500 * time.Millisecond))
	e.do(func() {}) // the loop wakes and finds that it is nearly time
	e.do(func() {})
	st := e.Stats()
	if st.TierFetched == 0 || st.TierLoaded != 0 {
		t.Fatalf("%+v, want pages that came back by themselves", st)
	}
	now.Store(int64(40 * time.Second))
	r := ask(prompt+" and then?", agent)
	if got := e.Stats(); got.TierLoaded != 0 || r.Usage.CachedTokens < n-16 {
		t.Errorf("%d of %d tokens were there, %d pages came as they were needed", r.Usage.CachedTokens, n, got.TierLoaded)
	}
}

// TestATierStaysWithinItsBytes: of a model of our own, the memory that is reserved too.
func TestATierStaysWithinItsBytes(t *testing.T) {
	sized := tinyModel(t, 1).(keptOpen).Model.(*cpuModel)
	for _, slots := range []int{1, 3, 33, 130, 200} {
		kv, err := sized.NewKV(1)
		if err != nil {
			t.Fatal(err)
		}
		e := &Engine{cfg: Config{Model: sized, TierBytes: int64(slots*sized.PageBytes() + 7)}, kv: kv}
		if err := e.openTier(); err != nil {
			t.Fatal(err)
		}
		if e.slots < slots*4/5 || model.ReservedPages(e.slots) > slots {
			t.Errorf("%d of %d pages, %d are reserved", e.slots, slots, model.ReservedPages(e.slots))
		}
		e.tier.Close()
		kv.Close()
	}
}

func TestTiersThatCannotBe(t *testing.T) {
	for name, set := range map[string]func(*Config){
		"a device of its own": func(c *Config) { c.Model, c.TierBytes = ahead{c.Model, t}, 1<<20 },
		"less than a page":    func(c *Config) { c.TierBytes = 1023 },
		"more than all":       func(c *Config) { c.TierBytes, c.TotalBytes = 1<<21, 1<<20 },
	} {
		c := Config{Model: &fakeModel{context: 512, vocab: fakeVocab}, Tokenizer: fakeTokenizer{}, Fingerprint: "f"}
		set(&c)
		if e, err := New(c); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
			if e != nil {
				e.Close()
			}
		}
	}
}
