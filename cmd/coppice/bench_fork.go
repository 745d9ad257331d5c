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
// answered with a fixed number of tokens. Beside them stand 8 that begin together
// with nothing computed before, and 8 that share nothing at all.
func benchFork(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	be, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	defer be.Close()
	return forkRows(a, ctx, o, be)
}

func forkRows(a *app, ctx context.Context, o *benchOptions, be backend.Backend) ([]benchRow, error) {
	const answer = 32
	system := backend.Turn{Role: backend.System, Parts: []backend.Part{{Text: triage.Runbook()}}}
	ask := func(ctx context.Context, id, salt, question string) (*backend.Result, error) {
		return be.Generate(ctx, &backend.Request{
			ID:        id,
			Salt:      salt,
			Turns:     []backend.Turn{system, {Role: backend.User, Parts: []backend.Part{{Text: question}}}},
			MaxTokens: answer,
			IgnoreEOS: true,
		}, nil)
	}

	serial := 0
	// together asks n questions at once, with salts that keep what is cached
	// apart, and returns the tokens that all computed and the seconds it took.
	together := func(n int, salt func(i int) string) (computed, seconds float64, err error) {
		results := make([]*backend.Result, n)
		g, ctx := errgroup.WithContext(ctx)
		start := time.Now()
		for i := range n {
			serial++
			id := fmt.Sprintf("n%d-%d", n, serial)
			g.Go(func() error {
				r, err := ask(ctx, id, salt(i), "Question number "+id+": what should be done first?")
				results[i] = r
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return 0, 0, err
		}
		seconds = time.Since(start).Seconds()
		for _, r := range results {
			computed += float64(r.Usage.ComputedTokens)
		}
		return computed, seconds, nil
	}

	sizes := []int{1, 8, 32}
	const cousins = 8
	progress := a.steps(1 + o.runs*len(sizes) + 2)
	progress.next("the shared prompt and a first answer")
	start := time.Now()
	first, err := ask(ctx, "first", "", "What is this?")
	if err != nil {
		return nil, err
	}
	rows := []benchRow{
		{What: "shared prompt and first answer, cold", Value: time.Since(start).Seconds(), Unit: "s"},
		{What: "tokens of that prompt", Value: float64(first.Usage.PromptTokens), Unit: "tokens"},
	}

	times := map[int][]float64{}
	computed := map[int]float64{}
	// shared are the rows of what is measured so far. A size with fewer runs
	// than asked for says so.
	shared := func() (rows []benchRow) {
		for _, n := range sizes {
			if len(times[n]) == 0 {
				break
			}
			few := ""
			if k := len(times[n]); k < o.runs {
				few = fmt.Sprintf(", %d of %d runs", k, o.runs)
			}
			m := median(times[n])
			rows = append(rows,
				benchRow{What: fmt.Sprintf("%d branches, %d tokens each (ratio: to 1 branch)%s", n, answer, few), Value: m, Unit: "s", Ratio: ptr(m / median(times[1]))},
				benchRow{What: fmt.Sprintf("%d branches: tokens computed, each branch", n), Value: computed[n] / float64(n), Unit: "tokens"},
				benchRow{What: fmt.Sprintf("%d branches: tokens computed if none were shared (ratio: saved)", n), Value: float64(n) * float64(first.Usage.PromptTokens+answer), Unit: "tokens",
					Ratio: ptr(float64(n) * float64(first.Usage.PromptTokens+answer) / computed[n])},
			)
		}
		return rows
	}
	for k := range o.runs {
		for _, n := range sizes {
			progress.next("%d branches over the shared prompt, run %d of %d", n, k+1, o.runs)
			sum, seconds, err := together(n, func(int) string { return "" })
			if err != nil {
				return append(rows, shared()...), err
			}
			times[n] = append(times[n], seconds)
			computed[n] = sum
		}
	}
	rows = append(rows, shared()...)
	// Once each: they take long and vary little.
	progress.next("%d branches, prompt not computed before", cousins)
	coldTokens, coldTime, err := together(cousins, func(int) string { return "cold" })
	if err != nil {
		return rows, err
	}
	rows = append(rows,
		benchRow{What: fmt.Sprintf("%d branches, prompt not computed before (ratio: to computed before)", cousins), Value: coldTime, Unit: "s", Ratio: ptr(coldTime / median(times[cousins]))},
		benchRow{What: fmt.Sprintf("%d branches, prompt not computed before: tokens computed, each branch", cousins), Value: coldTokens / cousins, Unit: "tokens"},
	)
	progress.next("%d branches that share nothing", cousins)
	aloneTokens, aloneTime, err := together(cousins, func(i int) string { return fmt.Sprint("alone ", i) })
	if err != nil {
		return rows, err
	}
	return append(rows,
		benchRow{What: fmt.Sprintf("%d branches that share nothing (ratio: to sharing, prompt not computed before)", cousins), Value: aloneTime, Unit: "s", Ratio: ptr(aloneTime / coldTime)},
		benchRow{What: fmt.Sprintf("%d branches that share nothing: tokens computed, each branch", cousins), Value: aloneTokens / cousins, Unit: "tokens"},
	), nil
}
