package future

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
)

func mustRun(t *testing.T, l Load) *Trace {
	t.Helper()
	tr, err := Run(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// TestKnownFuture: of what the best choice would save on the same trace, the
// engine saves nearly all, and far more than one that knows nothing.
func TestKnownFuture(t *testing.T) {
	l := Load{Agents: 16, Rounds: 4, Pages: 1 << 11}
	all := mustRun(t, l)
	reused, of := all.Reused()
	if o, lru := all.Replay(Oracle), all.Replay(LRU); reused != o || o != lru || reused >= of {
		t.Errorf("with room for all %d of %d tokens are reused, by the oracle %d, by LRU %d", reused, of, o, lru)
	}
	l.Pages = all.WorkingSet() / 4 / 16
	l.Pause = func(r *rand.Rand, usual time.Duration) time.Duration {
		return time.Duration(float64(usual) * (0.9 + 0.2*r.Float64()))
	}
	known := mustRun(t, l)
	reused, of = known.Reused()
	best, lru := known.Replay(Oracle), known.Replay(LRU)
	t.Logf("of %d tokens: %d reused, oracle %d, LRU %d", of, reused, best, lru)
	if reused > best || float64(reused) < 0.95*float64(best) {
		t.Errorf("%d tokens reused, the oracle reuses %d", reused, best)
	}
	l.Blind = true
	unknown := mustRun(t, l)
	blind, _ := unknown.Reused()
	best, lru = unknown.Replay(Oracle), unknown.Replay(LRU)
	t.Logf("of %d tokens: %d reused, oracle %d, LRU %d", of, blind, best, lru)
	if blind > best || lru > best || float64(blind) > 0.9*float64(reused) {
		t.Errorf("an engine that is told nothing reuses %d tokens (oracle %d, LRU %d), one that knows %d", blind, best, lru, reused)
	}
}

// TestExponentialPauses: where how long a pause took so far says nothing of what is
// left of it, the engine saves what can be saved by who knows what is usual.
func TestExponentialPauses(t *testing.T) {
	l := Load{Agents: 16, Rounds: 4, Pages: 1 << 11}
	l.Pages = mustRun(t, l).WorkingSet() / 4 / 16
	l.Pause = func(r *rand.Rand, usual time.Duration) time.Duration {
		return time.Duration(float64(usual) * r.ExpFloat64())
	}
	tr := mustRun(t, l)
	reused, of := tr.Reused()
	best, usual := tr.Replay(Oracle), tr.Replay(Usual)
	t.Logf("of %d tokens: %d reused, oracle %d, by what is usual %d", of, reused, best, usual)
	if usual > best || float64(reused) < 0.95*float64(usual) {
		t.Errorf("%d tokens reused, %d by what is usual, the oracle reuses %d", reused, usual, best)
	}
}

// TestSecondTier: what the pool has no room for comes back from a tier as large, most of
// it before it is asked for, and nearly as much is reused as by an oracle with room for
// both.
func TestSecondTier(t *testing.T) {
	l := Load{Agents: 16, Rounds: 8, Pages: 1 << 12, Pause: LogNormal}
	l.Pages = mustRun(t, l).WorkingSet() / 4 / 16
	alone, _ := mustRun(t, l).Reused()
	l.Tier = l.Pages
	tr := mustRun(t, l)
	reused, of := tr.Reused()
	best := tr.Replay(Oracle)
	t.Logf("of %d tokens: %d reused, oracle %d, %d without the tier; %d pages came back before they were asked for, %d then", of, reused, best, alone, tr.Fetched, tr.Loaded)
	if reused > best || float64(reused) < 0.95*float64(best) || float64(reused) < 1.05*float64(alone) {
		t.Errorf("%d tokens reused, %d without the tier, the oracle reuses %d", reused, alone, best)
	}
	if tr.Fetched < tr.Loaded {
		t.Errorf("%d pages came back before they were asked for, %d then", tr.Fetched, tr.Loaded)
	}
}

// TestSameTraceEachTime: what runs in many goroutines is the same each time.
func TestSameTraceEachTime(t *testing.T) {
	l := Load{Agents: 8, Rounds: 4, Pages: 300, Tier: 100, Seed: 7}
	a, b := mustRun(t, l), mustRun(t, l)
	if len(a.passes) != len(b.passes) {
		t.Fatalf("%d passes, then %d", len(a.passes), len(b.passes))
	}
	for i := range a.passes {
		if len(a.passes[i]) != len(b.passes[i]) {
			t.Fatalf("pass %d: %d rows, then %d", i, len(a.passes[i]), len(b.passes[i]))
		}
		for k, x := range a.passes[i] {
			if y := b.passes[i][k]; x.n != y.n || x.r.prompt != y.r.prompt || x.r.cached != y.r.cached {
				t.Fatalf("pass %d, row %d: %d tokens of a prompt of %d, then %d of %d", i, k, x.n, x.r.prompt, y.n, y.r.prompt)
			}
		}
	}
}

func TestCancelledRun(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("enough")
	l := Load{Agents: 8, Rounds: 50, Pages: 1 << 12}
	n := 0
	l.Pause = func(_ *rand.Rand, usual time.Duration) time.Duration {
		if n++; n == 20 {
			cancel(gone)
		}
		return usual
	}
	if _, err := Run(ctx, l); !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}

// TestReplay: three prompts in turn on a cache for two of them. The least recently
// used is always the one that comes next; who knows that keeps one.
func TestReplay(t *testing.T) {
	tr := &Trace{Tokens: 22}
	for i := range 9 {
		r := &request{prompt: 11}
		for k := range 11 {
			r.tokens = append(r.tokens, backend.Token(100*(i%3)+k))
		}
		r.tokens = append(r.tokens, 7) // drawn, never computed
		tr.add(uint64(i+1), r, 11)
	}
	if got := tr.WorkingSet(); got != 3*12 {
		t.Errorf("working set of %d tokens", got)
	}
	if got := tr.Replay(LRU); got != 0 {
		t.Errorf("LRU reuses %d tokens", got)
	}
	// 11 tokens belong to the prompt at work. The last one of a prompt is computed in
	// any case, so of the other 11 tokens 10 are of one prompt and 1 of the other:
	// three times the whole prompt is found, and three times that one token.
	if got := tr.Replay(Oracle); got != 33 {
		t.Errorf("the oracle reuses %d tokens", got)
	}
	tr.Tokens = 36
	if a, b := tr.Replay(LRU), tr.Replay(Oracle); a != 60 || b != 60 {
		t.Errorf("with room for all: %d and %d", a, b)
	}
}
