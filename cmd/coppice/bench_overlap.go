package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/sim"
)

// benchOverlap measures how long a device waits for the engine: a simulated one
// with steps of 10 ms, and 5 ms of planning for each, with and without planning
// the next step while the device works. On the wall clock, so all that the engine
// really does is in it; and on a virtual one, where only those times count.
func benchOverlap(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	const (
		step, plan = 10 * time.Millisecond, 5 * time.Millisecond
		sequences  = 8
		tokens     = 100
	)
	idle := func(sequential, virtual bool) (float64, error) {
		e, d, err := sim.New(sim.Options{Step: step, Plan: plan, Sequential: sequential, Virtual: virtual})
		if err != nil {
			return 0, err
		}
		defer e.Close()
		g, ctx := errgroup.WithContext(ctx)
		for i := range sequences {
			g.Go(func() error {
				_, err := e.Generate(ctx, &backend.Request{
					ID:        fmt.Sprint("sequence ", i),
					Turns:     []backend.Turn{{Parts: []backend.Part{{Text: fmt.Sprint("sequence ", i)}}}},
					MaxTokens: tokens,
				}, nil)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return 0, err
		}
		return 100 * d.Usage().IdleShare(), nil
	}
	var rows []benchRow
	progress := a.steps(2 * o.runs * 2)
	for _, virtual := range []bool{false, true} {
		var shares [2][]float64
		for range o.runs {
			for i, sequential := range []bool{true, false} {
				progress.next("a simulated device, planned ahead: %v, virtual clock: %v", !sequential, virtual)
				v, err := idle(sequential, virtual)
				if err != nil {
					return rows, err
				}
				shares[i] = append(shares[i], v)
			}
		}
		clock := "wall clock"
		if virtual {
			clock = "virtual clock"
		}
		rows = append(rows,
			benchRow{What: "device idle, steps of 10 ms and 5 ms of planning, one after the other, " + clock, Value: median(shares[0]), Unit: "%"},
			benchRow{What: "device idle, planned while the device works (limit: goal), " + clock, Value: median(shares[1]), Unit: "%", Limit: ptr(1)})
	}
	return rows, nil
}
