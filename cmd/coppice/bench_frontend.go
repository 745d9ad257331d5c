package main

import (
	"context"
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
	rows := func() []benchRow { // of the runs that are complete
		var rows goalRows
		rows.add("one gen (limit: goal)", single, 10, 144)
		rows.add("fork(8) + join + gen (limit: goal)", forked, 100, 2200)
		return rows
	}
	progress := a.steps(2 * o.runs)
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
	return rows(), nil
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
