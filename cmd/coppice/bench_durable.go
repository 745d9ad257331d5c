package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/workflows"
	"github.com/coppice-run/coppice/workflows/devserver"
)

// stepsOfDurable are the nodes of the program that benchDurable runs, and
// runsOfDurable how many runs it makes at the same time.
const (
	stepsOfDurable = 100
	runsOfDurable  = 500
)

// benchDurable measures what durability adds to a node: on a model that answers
// at once, the same program in process, with a journal and on our own Temporal
// server. The target is 8 ms a node on that server. Behind that come many runs at a
// time, and what affinity saves.
func benchDurable(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	progress := a.steps(4*o.runs + 3)
	progress.next("a Temporal server and a worker")
	serial, err := durableProgram(stepsOfDurable)
	if err != nil {
		return nil, err
	}
	small, err := durableProgram(4)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "coppice-bench")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s, err := devserver.Use(ctx, filepath.Join(dir, "temporal"), devserver.Options{})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	store, err := workflows.OpenDir(filepath.Join(dir, "store"))
	if err != nil {
		return nil, err
	}
	c, err := workflows.Dial(ctx, workflows.DialOptions{Address: s.Address, Store: store})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	w, err := workflows.NewWorker(c, workflows.Config{Backend: puppet.Null{}, Store: store})
	if err != nil {
		return nil, err
	}
	if err := w.Start(); err != nil {
		return nil, err
	}
	defer w.Stop()
	durable := func(g *lang.Graph, name string) error {
		r, err := workflows.Start(ctx, c, g, nil, workflows.StartOptions{Name: name})
		if err != nil {
			return err
		}
		_, err = r.Report(ctx)
		return err
	}
	if err := durable(small, "warm"); err != nil {
		return nil, err
	}

	bare, stop, err := bareSteps(ctx, c)
	if err != nil {
		return nil, err
	}
	defer stop()

	const target = 8.0
	var plain, journal, steps, temporal []float64
	nodes := func() []benchRow { // of the runs that are complete
		var rows []benchRow
		if len(plain) > 0 {
			rows = append(rows, benchRow{What: "a node in process", Value: median(plain), Unit: "ms"})
		}
		if len(journal) > 0 {
			rows = append(rows, benchRow{What: "a node with a journal", Value: median(journal), Unit: "ms"})
		}
		if len(steps) > 0 {
			rows = append(rows, benchRow{What: "a bare activity on our Temporal server", Value: median(steps), Unit: "ms"})
		}
		if len(temporal) > 0 {
			t := median(temporal)
			rows = append(rows,
				benchRow{What: "a node on our Temporal server (limit: goal)", Value: t, Unit: "ms", Limit: ptr(target), Ratio: ptr(target / t)},
				benchRow{What: "a node above a bare activity", Value: t - median(steps), Unit: "ms"})
		}
		return rows
	}
	for i := range o.runs {
		for _, m := range []struct {
			what string
			to   *[]float64
			run  func() error
		}{
			{"in process", &plain, func() error {
				_, err := runtime.RunGraph(ctx, puppet.Null{}, serial, nil, nil)
				return err
			}},
			{"with a journal", &journal, func() error {
				_, err := runtime.RunGraph(ctx, puppet.Null{}, serial, nil, nil, runtime.WithJournal(filepath.Join(dir, fmt.Sprint("journal", i))))
				return err
			}},
			{"of a bare workflow", &steps, func() error { return bare(stepsOfDurable) }},
			{"on the Temporal server", &temporal, func() error { return durable(serial, fmt.Sprint("serial-", i)) }},
		} {
			progress.next("%d nodes %s", stepsOfDurable, m.what)
			begin := time.Now()
			if err := m.run(); err != nil {
				return nodes(), err
			}
			*m.to = append(*m.to, time.Since(begin).Seconds()*1000/stepsOfDurable)
		}
	}

	progress.next("%d runs of 4 nodes at a time", runsOfDurable)
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	begin := time.Now()
	errs := make(chan error, runsOfDurable)
	var all sync.WaitGroup
	for i := range runsOfDurable {
		all.Go(func() {
			if err := durable(small, fmt.Sprint("many-", i)); err != nil {
				errs <- err
			}
		})
	}
	all.Wait()
	took := time.Since(begin)
	goruntime.ReadMemStats(&after)
	close(errs)
	for err := range errs {
		return nodes(), fmt.Errorf("of %d runs at a time: %w", runsOfDurable, err)
	}
	rows := append(nodes(),
		benchRow{What: fmt.Sprintf("%d runs of 4 nodes at a time, one worker", runsOfDurable), Value: took.Seconds(), Unit: "s"},
		benchRow{What: "heap that they left", Value: float64(after.HeapInuse-min(before.HeapInuse, after.HeapInuse)) / 1e6, Unit: "MB"},
	)
	progress.next("what affinity saves")
	more, err := benchAffinity(ctx, c, store)
	return append(rows, more...), err
}

// bareSteps returns a function that runs a workflow of n activities, one after the
// other, which do nothing: what the server and the SDK take by themselves.
func bareSteps(ctx context.Context, c *workflows.Client) (run func(n int) error, stop func(), err error) {
	const queue = "bare"
	w := worker.New(c.Client, queue, worker.Options{})
	w.RegisterActivityWithOptions(func(context.Context, int) (int, error) { return 0, nil }, activity.RegisterOptions{Name: "nothing"})
	w.RegisterWorkflowWithOptions(func(ctx workflow.Context, n int) error {
		ctx = workflow.WithActivityOptions(ctx, workflow.ActivityOptions{StartToCloseTimeout: time.Minute})
		for i := range n {
			if err := workflow.ExecuteActivity(ctx, "nothing", i).Get(ctx, nil); err != nil {
				return err
			}
		}
		return nil
	}, workflow.RegisterOptions{Name: "bare"})
	if err := w.Start(); err != nil {
		return nil, nil, err
	}
	run = func(n int) error {
		r, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{TaskQueue: queue}, "bare", n)
		if err != nil {
			return err
		}
		return r.Get(ctx, nil)
	}
	if err := run(4); err != nil { // warm
		w.Stop()
		return nil, nil, err
	}
	return run, w.Stop, nil
}

// durableProgram is n generations one after the other.
func durableProgram(n int) (*lang.Graph, error) {
	return lang.Define("steps", func(p *lang.Program) lang.Var[string] {
		p.System("Go on.")
		p.Repeat("rounds", n, func(p *lang.Program, round lang.Var[int]) lang.Cond {
			p.User("Step ", round, ".")
			p.Gen("said", lang.MaxTokens(4))
			return lang.Cond{}
		})
		return lang.Calc[string]("said")
	}).Compile()
}
