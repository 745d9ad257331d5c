package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/examples/triage"
)

// benchFork measures what branches cost over one shared prompt: the demo's
// runbook, computed once, then 1, 8 and 32 questions about it at once, each
// answered with a fixed number of tokens.
func benchFork(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	const answer = 32
	be, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	defer be.Close()

	system := backend.Turn{Role: backend.System, Parts: []backend.Part{{Text: triage.Runbook()}}}
	ask := func(id, question string) (*backend.Result, error) {
		return be.Generate(ctx, &backend.Request{
			ID:        id,
			Turns:     []backend.Turn{system, {Role: backend.User, Parts: []backend.Part{{Text: question}}}},
			MaxTokens: answer,
			IgnoreEOS: true,
		}, nil)
	}

	start := time.Now()
	first, err := ask("first", "What is this?")
	if err != nil {
		return nil, err
	}
	cold := time.Since(start).Seconds()
	rows := []benchRow{
		{What: "shared prompt and first answer, cold", Value: cold, Unit: "s"},
		{What: "tokens of that prompt", Value: float64(first.Usage.PromptTokens), Unit: "tokens"},
	}

	sizes := []int{1, 8, 32}
	times := map[int][]float64{}
	computed := map[int]float64{}
	serial := 0
	for range o.runs {
		for _, n := range sizes {
			results := make([]*backend.Result, n)
			g, _ := errgroup.WithContext(ctx)
			start := time.Now()
			for i := range n {
				serial++
				id := fmt.Sprintf("n%d-%d", n, serial)
				g.Go(func() error {
					r, err := ask(id, "Question number "+id+": what should be done first?")
					results[i] = r
					return err
				})
			}
			if err := g.Wait(); err != nil {
				return nil, err
			}
			times[n] = append(times[n], time.Since(start).Seconds())
			sum := 0
			for _, r := range results {
				sum += r.Usage.ComputedTokens
			}
			computed[n] = float64(sum)
		}
		fmt.Fprint(a.errOut, ".")
	}
	fmt.Fprintln(a.errOut)
	one := median(times[1])
	for _, n := range sizes {
		m := median(times[n])
		rows = append(rows,
			benchRow{What: fmt.Sprintf("%d branches, %d tokens each (ratio: to 1 branch)", n, answer), Value: m, Unit: "s", Ratio: ptr(m / one)},
			benchRow{What: fmt.Sprintf("%d branches: tokens computed, each branch", n), Value: computed[n] / float64(n), Unit: "tokens"},
			benchRow{What: fmt.Sprintf("%d branches: tokens computed if none were shared (ratio: saved)", n), Value: float64(n) * float64(first.Usage.PromptTokens+answer), Unit: "tokens",
				Ratio: ptr(float64(n) * float64(first.Usage.PromptTokens+answer) / computed[n])},
		)
	}
	return rows, nil
}
