package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
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

// stepsOfDurable are the nodes of the program that benchDurable runs, runsOfDurable how
// many runs it makes at the same time, and programsOfDurable how many programs one run
// has open at a time.
const (
	stepsOfDurable    = 100
	runsOfDurable     = 500
	programsOfDurable = 1000
)

// benchDurable measures what durability adds to a node: on a model that answers
// at once, the same program in process, with a journal and on our own Temporal
// server, which keeps all in memory or syncs each write to the disk. The target is 8 ms
// a node on a server where a bare activity takes 5: that is one in memory. Behind that
// come many runs at a time, many programs of one run, and what affinity saves.
func benchDurable(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	progress := a.steps(6*o.runs + 4)
	progress.next("two Temporal servers and their workers")
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
	memory, err := newDurableSite(ctx, filepath.Join(dir, "memory"), small, true)
	if err != nil {
		return nil, err
	}
	defer memory.close()
	disk, err := newDurableSite(ctx, filepath.Join(dir, "disk"), small, false)
	if err != nil {
		return nil, err
	}
	defer disk.close()

	const target = 8.0
	var plain, journal []float64
	nodes := func() []benchRow { // of the runs that are complete
		var rows []benchRow
		if len(plain) > 0 {
			rows = append(rows, benchRow{What: "a node in process", Value: median(plain), Unit: "ms"})
		}
		if len(journal) > 0 {
			rows = append(rows, benchRow{What: "a node with a journal", Value: median(journal), Unit: "ms"})
		}
		for _, s := range []*durableSite{memory, disk} {
			if len(s.nodes) == 0 {
				continue
			}
			bare, node := median(s.steps), median(s.nodes)
			row := benchRow{What: "a node there", Value: node, Unit: "ms"}
			if s == memory {
				row.What += " (limit: goal)"
				row.Limit, row.Ratio = ptr(target), ptr(target/node)
			}
			rows = append(rows, benchRow{What: "a bare activity on our Temporal server, " + s.what, Value: bare, Unit: "ms"}, row,
				benchRow{What: "a node there above a bare activity", Value: node - bare, Unit: "ms"})
		}
		return rows
	}
	for i := range o.runs {
		type part struct {
			what string
			to   *[]float64
			run  func() error
		}
		parts := []part{
			{"in process", &plain, func() error {
				_, err := runtime.RunGraph(ctx, puppet.Null{}, serial, nil, nil)
				return err
			}},
			{"with a journal", &journal, func() error {
				_, err := runtime.RunGraph(ctx, puppet.Null{}, serial, nil, nil, runtime.WithJournal(filepath.Join(dir, fmt.Sprint("journal", i))))
				return err
			}},
		}
		for _, s := range []*durableSite{memory, disk} {
			parts = append(parts,
				part{"of a bare workflow, " + s.what, &s.steps, func() error { return s.bare(stepsOfDurable) }},
				part{"on the Temporal server, " + s.what, &s.nodes, func() error { return s.run(ctx, serial, fmt.Sprint("serial-", i), nil) }})
		}
		for _, m := range parts {
			progress.next("%d nodes %s", stepsOfDurable, m.what)
			begin := time.Now()
			if err := m.run(); err != nil {
				return nodes(), err
			}
			*m.to = append(*m.to, time.Since(begin).Seconds()*1000/stepsOfDurable)
		}
	}
	rows := nodes()

	progress.next("%d runs of 4 nodes at a time", runsOfDurable)
	var before, after goruntime.MemStats
	goruntime.ReadMemStats(&before)
	begin := time.Now()
	errs := make(chan error, runsOfDurable)
	var all sync.WaitGroup
	for i := range runsOfDurable {
		all.Go(func() {
			if err := disk.run(ctx, small, fmt.Sprint("many-", i), nil); err != nil {
				errs <- err
			}
		})
	}
	all.Wait()
	took := time.Since(begin)
	goruntime.ReadMemStats(&after)
	close(errs)
	for err := range errs {
		return rows, fmt.Errorf("of %d runs at a time: %w", runsOfDurable, err)
	}
	rows = append(rows,
		benchRow{What: fmt.Sprintf("%d runs of 4 nodes at a time, one worker", runsOfDurable), Value: took.Seconds(), Unit: "s"},
		benchRow{What: "heap that they left", Value: float64(after.HeapInuse-min(before.HeapInuse, after.HeapInuse)) / 1e6, Unit: "MB"},
	)

	progress.next("a run of %d programs", programsOfDurable)
	programs, err := programsProgram()
	if err != nil {
		return rows, err
	}
	begin = time.Now()
	if err := disk.run(ctx, programs, "programs", lang.Args{"n": programsOfDurable}); err != nil {
		return rows, fmt.Errorf("of %d programs: %w", programsOfDurable, err)
	}
	rows = append(rows, benchRow{What: fmt.Sprintf("a run of %d programs of one node each", programsOfDurable), Value: time.Since(begin).Seconds(), Unit: "s"})

	progress.next("what affinity saves")
	more, err := benchAffinity(ctx, disk.client, disk.store)
	return append(rows, more...), err
}

// durableSite is a Temporal server with a worker, and a worker of bare activities.
type durableSite struct {
	what   string
	client *workflows.Client
	store  workflows.Store
	bare   func(n int) error
	close  func()

	steps, nodes []float64 // ms each, of the runs that were measured
}

// newDurableSite starts a server and its workers, and warms them with a run of warm.
func newDurableSite(ctx context.Context, dir string, warm *lang.Graph, memory bool) (_ *durableSite, err error) {
	s := &durableSite{what: "each write synced to the disk"}
	if memory {
		s.what = "in memory"
	}
	var closers []func()
	s.close = func() {
		for _, f := range slices.Backward(closers) {
			f()
		}
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	server, err := devserver.Use(ctx, filepath.Join(dir, "temporal"), devserver.Options{Memory: memory})
	if err != nil {
		return nil, err
	}
	closers = append(closers, func() { server.Close() })
	if s.store, err = workflows.OpenDir(filepath.Join(dir, "store")); err != nil {
		return nil, err
	}
	if s.client, err = workflows.Dial(ctx, workflows.DialOptions{Address: server.Address, Store: s.store}); err != nil {
		return nil, err
	}
	closers = append(closers, s.client.Close)
	w, err := workflows.NewWorker(s.client, workflows.Config{Backend: puppet.Null{}, Store: s.store})
	if err != nil {
		return nil, err
	}
	if err := w.Start(); err != nil {
		return nil, err
	}
	closers = append(closers, w.Stop)
	if err := s.run(ctx, warm, "warm", nil); err != nil {
		return nil, err
	}
	bare, stop, err := bareSteps(ctx, s.client)
	if err != nil {
		return nil, err
	}
	s.bare = bare
	closers = append(closers, stop)
	return s, nil
}

// run runs a program to its end.
func (s *durableSite) run(ctx context.Context, g *lang.Graph, name string, args lang.Args) error {
	r, err := workflows.Start(ctx, s.client, g, args, workflows.StartOptions{Name: name})
	if err != nil {
		return err
	}
	_, err = r.Report(ctx)
	return err
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

// programsProgram is n programs of one generation each, at the same time.
func programsProgram() (*lang.Graph, error) {
	leaf := lang.Define("leaf", func(p *lang.Program) lang.Var[string] {
		p.User("Say ", lang.In[int](p, "who"), ".")
		return p.Gen("said", lang.MaxTokens(4))
	})
	return lang.Define("programs", func(p *lang.Program) lang.Var[int] {
		n := lang.In[int](p, "n")
		lang.Fork(p, "all", lang.Over(lang.Calc[[]int]("1..n")), func(b *lang.Branch, who lang.Var[int]) lang.Var[string] {
			return lang.Run(b, "it", leaf, lang.Args{"who": who})
		})
		return n
	}).Compile()
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
