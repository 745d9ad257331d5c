package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/workflows"
)

// runsOfAffinity runs go on at the same time, each with its own long prompt.
const runsOfAffinity = 8

// benchAffinity measures what affinity saves: the tokens that the same runs compute in
// one process, and on two workers that have an engine each, with and without it.
func benchAffinity(ctx context.Context, c *workflows.Client, store workflows.Store) ([]benchRow, error) {
	g, err := turnsProgram(8)
	if err != nil {
		return nil, err
	}
	var rows []benchRow
	row := func(what string, tokens int) {
		rows = append(rows, benchRow{What: fmt.Sprintf("%d runs of 8 turns, tokens computed %s", runsOfAffinity, what), Value: float64(tokens), Unit: "tokens"})
	}
	err = withEngines(ctx, 1, func(engines []backend.Backend) error {
		n, err := together(func(i int) (*runtime.Report, error) {
			return runtime.RunGraph(ctx, engines[0], g, nil, turnsOf(i))
		})
		row("in one process", n)
		return err
	})
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
				r, err := workflows.Start(ctx, c, g, turnsOf(i), workflows.StartOptions{Name: fmt.Sprint(queue, "-", i), Queue: queue})
				if err != nil {
					return nil, err
				}
				return r.Report(ctx)
			})
			row("on two workers "+map[bool]string{true: "with affinity", false: "without"}[affinity], n)
			return err
		})
	}
	return rows, err
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

// turnsProgram is a talk of n turns over a long text.
func turnsProgram(n int) (*lang.Graph, error) {
	return lang.Define("turns", func(p *lang.Program) lang.Var[string] {
		p.System(lang.In[string](p, "text"))
		p.Repeat("rounds", n, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			p.User("Turn ", round, ".")
			p.Gen("said", lang.MaxTokens(4))
			return lang.Cond{}
		})
		return lang.Calc[string]("said")
	}).Compile()
}

// turnsOf are the inputs of a run: nothing of its text is another's.
func turnsOf(i int) lang.Args {
	return lang.Args{"text": fmt.Sprint(i, " is the team. ") + strings.Repeat("A pod that restarts was killed, or has no image. ", 20)}
}
