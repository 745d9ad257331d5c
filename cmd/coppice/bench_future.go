package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/coppice-run/coppice/cmd/coppice/internal/future"
)

// benchFuture counts what 64 agents with tool pauses need not compute again on a
// cache of a quarter of what they read, beside the best choice of what to evict on
// the same trace (limit) and the least recently used. The rows of an engine that is
// told nothing are traces of their own: what is found decides what comes next.
//
// The first rows are those to look at: agents that use two dozen tools, each with
// log-normal pauses, which is what service times look like. The others show what it
// gives when more or less can be foreseen, and when the agents end before the engine
// has learned how long their tools take. The last rows of each have a second tier as
// large as the cache.
//
// Time is virtual and everything is a count, so one run says all.
func benchFuture(a *app, ctx context.Context, _ *benchOptions) ([]benchRow, error) {
	const agents, many, few = 64, 24, 8
	exponential := func(r *rand.Rand, usual time.Duration) time.Duration {
		return time.Duration(float64(usual) * r.ExpFloat64())
	}
	varied := func(r *rand.Rand, usual time.Duration) time.Duration {
		return time.Duration(float64(usual) * (0.5 + r.Float64()))
	}
	pauses := []struct {
		what   string
		rounds int
		take   func(r *rand.Rand, usual time.Duration) time.Duration
	}{
		{"pauses log-normal", many, future.LogNormal},
		{"pauses as usual", many, nil},
		{"pauses 50% to 150% of usual", many, varied},
		{"pauses exponential, which nobody foresees", many, exponential},
		{"a short life, pauses log-normal", few, future.LogNormal},
		{"a short life, pauses exponential", few, exponential},
	}
	var rows []benchRow
	progress := a.steps(4 * len(pauses))
	for _, p := range pauses {
		load := future.Load{Agents: agents, Rounds: p.rounds, Pause: p.take, Pages: 1 << 16}
		progress.next("%d agents, %s: the working set", agents, p.what)
		all, err := future.Run(ctx, load)
		if err != nil {
			return rows, err
		}
		load.Pages = all.WorkingSet() / 4 / 16
		most, of := all.Reused()
		what := fmt.Sprintf("%d agents, %s: ", agents, p.what)
		rows = append(rows,
			benchRow{What: what + "prompt tokens", Value: float64(of), Unit: "tokens"},
			benchRow{What: what + "reused with room for all", Value: float64(most), Unit: "tokens"},
			benchRow{What: what + "room in the cache (limit: all they read)", Value: float64(load.Pages * 16), Unit: "tokens",
				Limit: ptr(float64(all.WorkingSet())), Ratio: ptr(float64(load.Pages*16) / float64(all.WorkingSet()))})
		for _, load.Blind = range []bool{false, true} {
			how := "the engine knows the programs"
			if load.Blind {
				how = "the engine is told nothing"
			}
			progress.next("%d agents, %s: %s", agents, p.what, how)
			t, err := future.Run(ctx, load)
			if err != nil {
				return rows, err
			}
			reused, _ := t.Reused()
			best := float64(t.Replay(future.Oracle))
			row := func(of string, v float64) benchRow {
				return benchRow{What: what + of, Value: v, Unit: "tokens", Limit: ptr(best), Ratio: ptr(v / best)}
			}
			rows = append(rows, row("reused, "+how+" (limit: oracle on the same trace)", float64(reused)))
			if !load.Blind {
				rows = append(rows, row("reused by LRU on the same trace (limit: the same oracle)", float64(t.Replay(future.LRU))),
					row("reused by who knows how long tools usually take, not how long this time (limit: the same oracle)", float64(t.Replay(future.Usual))))
			}
		}
		load.Blind, load.Tier = false, load.Pages
		progress.next("%d agents, %s: a second tier", agents, p.what)
		t, err := future.Run(ctx, load)
		if err != nil {
			return rows, err
		}
		reused, _ := t.Reused()
		best, back := float64(t.Replay(future.Oracle)), float64(t.Loaded+t.Fetched)
		rows = append(rows,
			benchRow{What: what + "reused with a second tier as large (limit: an oracle with both)", Value: float64(reused), Unit: "tokens", Limit: &best, Ratio: ptr(float64(reused) / best)},
			benchRow{What: what + "back from the tier before they were asked for (limit: all that came back)", Value: float64(t.Fetched), Unit: "pages", Limit: &back, Ratio: ptr(float64(t.Fetched) / max(back, 1))})
	}
	return rows, nil
}
