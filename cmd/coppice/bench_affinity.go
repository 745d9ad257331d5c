package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/workflows"
)

// runsOfAffinity runs go on at the same time, each with its own long prompt and this
// many branches over it, of turnsOfAffinity turns each.
const (
	runsOfAffinity     = 8
	branchesOfAffinity = 8
	turnsOfAffinity    = 4
)

// benchAffinity measures what affinity saves: the tokens that the same runs compute in
// one process, and what two workers that have an engine each compute beyond that, with
// and without it. Without it each task goes to whichever worker takes it first: the
// next one of a run mostly to the worker that had the last, but the branches of a fork
// to both.
func benchAffinity(ctx context.Context, c *workflows.Client, store workflows.Store) ([]benchRow, error) {
	g, err := branchesProgram()
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%d runs of %d branches over a long prompt, tokens ", runsOfAffinity, branchesOfAffinity)
	alone := 0
	err = withEngines(ctx, 1, func(engines []backend.Backend) error {
		alone, err = together(func(i int) (*runtime.Report, error) {
			return runtime.RunGraph(ctx, engines[0], g, nil, longPrompt(i))
		})
		return err
	})
	rows := []benchRow{{What: what + "computed in one process", Value: float64(alone), Unit: "tokens"}}
	again := map[bool]float64{}
	for _, affinity := range []bool{true, false} {
		if err != nil {
			return nil, err
		}
		queue := fmt.Sprint("affinity-", affinity)
		err = withEngines(ctx, 2, func(engines []backend.Backend) error {
			for _, be := range engines {
				w, err := workflows.NewWorker(c, workflows.Config{Queue: queue, Backend: be, Store: store, Affinity: affinity})
				if err != nil {
					return err
				}
				if err := w.Start(); err != nil {
					return err
				}
				defer w.Stop()
			}
			n, err := together(func(i int) (*runtime.Report, error) {
				r, err := workflows.Start(ctx, c, g, longPrompt(i), workflows.StartOptions{Name: fmt.Sprint(queue, "-", i), Queue: queue, HomeWait: time.Minute})
				if err != nil {
					return nil, err
				}
				return r.Report(ctx)
			})
			again[affinity] = float64(n - alone)
			return err
		})
	}
	return append(rows,
		benchRow{What: what + "recomputed on two workers with affinity", Value: again[true], Unit: "tokens"},
		benchRow{What: what + "recomputed on two workers without", Value: again[false], Unit: "tokens"},
	), err
}

// withEngines calls f with engines that have caches of their own.
func withEngines(ctx context.Context, n int, f func([]backend.Backend) error) error {
	m := &modelFlags{model: "sapling"}
	var engines []backend.Backend
	for range n {
		be, err := m.open(ctx)
		if err != nil {
			return err
		}
		defer be.Close()
		engines = append(engines, be)
	}
	return f(engines)
}

// together makes the runs at the same time, and returns what they computed.
func together(run func(i int) (*runtime.Report, error)) (computed int, err error) {
	reports, errs := make([]*runtime.Report, runsOfAffinity), make([]error, runsOfAffinity)
	var all sync.WaitGroup
	for i := range reports {
		all.Go(func() { reports[i], errs[i] = run(i) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, err
	}
	for _, r := range reports {
		computed += r.Usage.ComputedTokens
	}
	return computed, nil
}

// branchesProgram looks at a long text in branches that talk over several turns.
func branchesProgram() (*lang.Graph, error) {
	return lang.Define("branches", func(p *lang.Program) lang.Var[[]string] {
		p.System(lang.In[string](p, "text"))
		p.User("Begin.")
		p.Gen("first", lang.MaxTokens(4))
		looks := make([]int, branchesOfAffinity)
		for i := range looks {
			looks[i] = i
		}
		return lang.Fork(p, "looks", lang.Each(looks...), func(p *lang.Branch, look lang.Var[int]) lang.Var[string] {
			p.User("Look ", look, ".")
			p.Repeat("rounds", turnsOfAffinity, func(p *lang.Program, round lang.Var[int]) lang.Cond {
				p.User("Turn ", round, ".")
				p.Gen("said", lang.MaxTokens(4))
				return lang.Cond{}
			})
			return lang.Calc[string]("said")
		})
	}).Compile()
}

// longPrompt are the inputs of a run: nothing of its text is another's.
func longPrompt(i int) lang.Args {
	return lang.Args{"text": fmt.Sprint(i, " is the team. ") + strings.Repeat("A pod that restarts was killed, or has no image. ", 40)}
}
