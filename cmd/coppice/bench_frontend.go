package main

import (
	"context"
	"fmt"
	goruntime "runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// benchFrontend measures what the runtime itself costs: whole programs on a
// backend that answers at once.
//
// The peer is SGLang's Python frontend with a null backend, measured on a
// machine of this kind, not in this run.
func benchFrontend(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	one := lang.Define("one", func(p *lang.Program) lang.Var[string] {
		p.User("Say something.")
		return p.Gen("answer", lang.MaxTokens(8))
	})
	fork := lang.Define("fork", func(p *lang.Program) lang.Var[string] {
		p.User("Look at it.")
		looks := lang.Fork(p, "looks", lang.Each("1", "2", "3", "4", "5", "6", "7", "8"),
			func(b *lang.Branch, n lang.Var[string]) lang.Var[string] {
				b.User("Side ", n, ".")
				return b.Gen("look", lang.MaxTokens(8))
			})
		p.User("Looks:\n", lang.Join(looks, "\n"))
		return p.Gen("answer", lang.MaxTokens(8))
	})
	be := puppet.Null{}
	defer be.Close()
	var single, forked []float64
	var crowd []benchRow
	rows := func() []benchRow { // of the runs that are complete
		var rows goalRows
		rows.add("one gen (limit: goal)", single, 10, 144)
		rows.add("fork(8) + join + gen (limit: goal)", forked, 100, 2200)
		return append(rows, crowd...)
	}
	progress := a.steps(2*o.runs + 1)
	for range o.runs {
		progress.next("programs of one gen")
		t, err := timeProgram(ctx, be, one, 3000)
		if err != nil {
			return rows(), err
		}
		single = append(single, t)
		progress.next("programs of eight branches")
		if t, err = timeProgram(ctx, be, fork, 1000); err != nil {
			return rows(), err
		}
		forked = append(forked, t)
	}
	progress.next("%d runs at once", heldRuns)
	held, err := holdRuns(ctx, heldRuns)
	if err != nil {
		return rows(), err
	}
	crowd = []benchRow{{
		What:  "memory of 10,000 runs of 20 nodes that all wait for their last answer (limit: goal)",
		Value: held, Unit: "MiB", Limit: ptr(1024.0), Ratio: ptr(1024 / held),
	}}
	return rows(), nil
}

const heldRuns = 10_000

// holder is a backend that answers at once but for the last node of a program: those
// answers it keeps back until every run waits for its own.
type holder struct {
	puppet.Null
	left atomic.Int64
	full chan struct{} // closed when all are there
	open chan struct{} // closed when they may go on
}

func (c *holder) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	if req.ID == "last" {
		if c.left.Add(-1) == 0 {
			close(c.full)
		}
		select {
		case <-c.open:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return c.Null.Generate(ctx, req, emit)
}

// holdRuns runs a program of 20 nodes n times at once, and returns the memory in MiB
// that the process takes more when all of them are at the last node.
func holdRuns(ctx context.Context, n int) (float64, error) {
	d := lang.Define("held", func(p *lang.Program) lang.Var[string] {
		p.System("You look after servers.")
		for i := range 8 {
			p.User("Question ", strconv.Itoa(i), ".")
			p.Gen("answer"+strconv.Itoa(i), lang.MaxTokens(8))
		}
		p.User("Sum it up.")
		return p.Gen("last", lang.MaxTokens(8))
	})
	g, err := d.Compile()
	if err != nil {
		return 0, err
	}
	be := &holder{full: make(chan struct{}), open: make(chan struct{})}
	be.left.Store(int64(n))
	before := residentBytes()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, n)
	for range n {
		go func() {
			_, err := runtime.RunGraph(ctx, be, g, nil, nil)
			errs <- err
		}()
	}
	var after float64
	select {
	case <-be.full:
		after = residentBytes()
	case err := <-errs: // nothing ends before that
		return 0, fmt.Errorf("a run ended early: %w", err)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	close(be.open)
	for range n {
		if err := <-errs; err != nil {
			return 0, err
		}
	}
	return max(after-before, 0) / (1 << 20), nil
}

// residentBytes is what the Go runtime holds of the machine's memory, garbage included.
func residentBytes() float64 {
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return float64(m.Sys - m.HeapReleased)
}

// timeProgram runs a compiled program n times, one after the other, and returns
// the microseconds of one run.
func timeProgram(ctx context.Context, be backend.Backend, d *lang.Def[string], n int) (float64, error) {
	g, err := d.Compile()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	for range n {
		if _, err := runtime.RunGraph(ctx, be, g, nil, nil); err != nil {
			return 0, err
		}
	}
	return micros(time.Since(start), n), nil
}
