package engine

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// TestWarmEqualsCold: four times the same prompt, and then beside others, with
// cached prefixes that end around the edges of pages.
func TestWarmEqualsCold(t *testing.T) {
	text := longText(700)
	for _, n := range []int{1, 15, 16, 17, 31, 32, 33, 400} {
		e := newFake(t, nil)
		req := &backend.Request{Turns: []backend.Turn{raw(text)}, MaxTokens: 20, IgnoreEOS: true, Logprobs: true}
		cold := mustGenerate(t, newFake(t, nil), req)
		ids, _ := e.Tokenize(req.Turns, true)
		// A first request that shares exactly n tokens.
		first := append(slices.Clone(ids[:n]), imStart)
		mustGenerate(t, e, &backend.Request{MaxTokens: 1, IgnoreEOS: true, Turns: []backend.Turn{{Role: backend.Raw, Parts: []backend.Part{{Text: "?", Tokens: first, Model: "fake-1"}}}}})
		for try := range 4 {
			warm := mustGenerate(t, e, req)
			if want := n; try == 0 && warm.Usage.CachedTokens != want {
				t.Errorf("prefix %d: %d tokens cached", n, warm.Usage.CachedTokens)
			}
			if !slices.Equal(warm.Part.Tokens, cold.Part.Tokens) || !reflect.DeepEqual(warm.Logprobs, cold.Logprobs) {
				t.Errorf("prefix %d, try %d: %v, cold %v", n, try, warm.Part.Tokens, cold.Part.Tokens)
			}
		}
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				q := *req
				if i > 0 {
					q.Turns = []backend.Turn{raw(fmt.Sprint(text[:100*i], i))}
				}
				r, err := e.Generate(context.Background(), &q, nil)
				if err != nil {
					t.Error(err)
				} else if i == 0 && !slices.Equal(r.Part.Tokens, cold.Part.Tokens) {
					t.Errorf("prefix %d, in a batch: %v, cold %v", n, r.Part.Tokens, cold.Part.Tokens)
				}
			})
		}
		wg.Wait()
	}
}

func TestSaltsShareNothing(t *testing.T) {
	e := newFake(t, nil)
	ask := func(salt string) int {
		return mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{user(longText(200))}, MaxTokens: 1, Salt: salt}).Usage.CachedTokens
	}
	for _, salt := range []string{"", "a", "fake-1", "ab"} {
		if got := ask(salt); got != 0 {
			t.Errorf("salt %q finds %d tokens of others", salt, got)
		}
		if got := ask(salt); got == 0 {
			t.Errorf("salt %q does not find its own", salt)
		}
	}
}

func TestWhatARunReadsAgainStays(t *testing.T) {
	for _, reused := range []bool{true, false} {
		e := newFake(t, func(c *Config, _ *fakeModel) { c.Pages = 40 })
		trunk := []backend.Turn{user(longText(200))}
		mustGenerate(t, e, &backend.Request{Turns: trunk, MaxTokens: 1, Hints: backend.Hints{Run: "r", Reused: reused, LastUse: !reused}})
		others := func() {
			for i := range 6 {
				mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{user(fmt.Sprint(i, longText(250)))}, MaxTokens: 1, Hints: backend.Hints{Run: "other"}})
			}
		}
		others()
		ids, _ := e.Tokenize(trunk, false)
		r := mustGenerate(t, e, &backend.Request{Turns: append(slices.Clone(trunk), user("and?")), MaxTokens: 1, Hints: backend.Hints{Run: "r"}})
		if got := r.Usage.CachedTokens >= len(ids); got != reused {
			t.Errorf("reused %v: %d of %d tokens of the trunk are cached", reused, r.Usage.CachedTokens, len(ids))
		}
		if !reused {
			continue
		}
		e.EndRun("r")
		others()
		others()
		r = mustGenerate(t, e, &backend.Request{Turns: append(slices.Clone(trunk), user("really?")), MaxTokens: 1})
		if r.Usage.CachedTokens >= len(ids) {
			t.Error("the trunk of a run that has ended is kept for ever")
		}
	}
}

// TestLastUseGoesFirst: of two branches, what the one added that nobody reads
// again is evicted before what the other added.
func TestLastUseGoesFirst(t *testing.T) {
	e := newFake(t, func(c *Config, _ *fakeModel) { c.Pages = 18 })
	branch := func(name string, last bool) []backend.Turn {
		turns := []backend.Turn{user(longText(60)), user(name + longText(80))}
		mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 1, Hints: backend.Hints{Run: "r", Siblings: 2, LastUse: last}})
		return turns
	}
	keep := branch("A", false)
	drop := branch("B", true) // younger, and yet the first to go
	mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{raw(longText(200))}, MaxTokens: 1})
	cached := func(turns []backend.Turn) int {
		return mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 1}).Usage.CachedTokens
	}
	if k, d := cached(keep), cached(drop); k <= d {
		t.Errorf("%d tokens of the branch that may be read again are cached, %d of the other", k, d)
	}
}

// TestFlushDuringStreams flushes while streams run, of which some are aborted.
func TestFlushDuringStreams(t *testing.T) {
	e := newFake(t, func(c *Config, _ *fakeModel) { c.Pages = 64 })
	for range 20 {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				n := 0
				e.Generate(ctx, &backend.Request{Turns: []backend.Turn{user(longText(100) + fmt.Sprint(i%3))}, MaxTokens: 30, IgnoreEOS: true}, func(backend.Delta) {
					n++
					if n == 5 {
						e.Flush()
					}
					if n == 10 && i%2 == 0 {
						cancel()
					}
				})
			})
		}
		wg.Wait()
	}
	e.Flush()
	e.Flush()
	if st := e.Stats(); st.Free != st.Pages || st.CachedNodes != 0 {
		t.Errorf("after the last flush: %+v", st)
	}
}
