package main

import (
	"context"
	"fmt"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/examples/triage"
	"github.com/coppice-run/coppice/lang"
)

// benchJump writes the demo's verdict with and without jump-forward, and with
// choices and copied text computed ahead: the same bytes, fewer forward passes.
func benchJump(_ *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	be, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	defer be.Close()
	g, err := triage.Program.Compile()
	if err != nil {
		return nil, err
	}
	var schema []byte
	g.Walk(func(n *lang.Node) bool {
		if n.Kind == lang.KindJSON {
			schema = n.JSON.Schema
		}
		return true
	})
	text := func(r backend.Role, s string) backend.Turn {
		return backend.Turn{Role: r, Parts: []backend.Part{{Text: s}}}
	}
	write := func(be backend.Backend, noJump bool) (*backend.Result, float64, error) {
		start := time.Now()
		r, err := be.Generate(ctx, &backend.Request{
			ID: "verdict",
			Turns: []backend.Turn{
				text(backend.System, triage.Runbook()),
				text(backend.User, "Alert: "+triage.DefaultAlert),
				text(backend.User, "Give the verdict as JSON."),
			},
			MaxTokens:  160,
			Constraint: backend.Constraint{JSONSchema: schema},
			NoJump:     noJump,
		}, nil)
		return r, time.Since(start).Seconds(), err
	}
	if _, _, err := write(be, false); err != nil { // fill the cache
		return nil, err
	}
	var on, off []float64
	var a, b *backend.Result
	for range o.runs {
		var t float64
		if a, t, err = write(be, false); err != nil {
			return nil, err
		}
		on = append(on, t)
		if b, t, err = write(be, true); err != nil {
			return nil, err
		}
		off = append(off, t)
		if a.Part.Text != b.Part.Text {
			return nil, fmt.Errorf("jump-forward changed the output:\n%s\n%s", a.Part.Text, b.Part.Text)
		}
	}
	tokens := float64(a.Usage.SampledTokens + a.Usage.ForcedTokens)
	pOn, pOff := float64(countPasses(a.Usage.Passes)), float64(countPasses(b.Usage.Passes))
	rows := []benchRow{
		{What: "tokens of the verdict", Value: tokens, Unit: "tokens"},
		{What: "of them forced (ratio: share)", Value: float64(a.Usage.ForcedTokens), Unit: "tokens", Ratio: ptr(float64(a.Usage.ForcedTokens) / tokens)},
		{What: "forward passes without jump-forward", Value: pOff, Unit: "passes"},
		{What: "forward passes with (ratio: fewer by)", Value: pOn, Unit: "passes", Ratio: ptr(pOff / pOn)},
		{What: "time without", Value: 1e3 * median(off), Unit: "ms"},
		{What: "time with (ratio: faster by)", Value: 1e3 * median(on), Unit: "ms", Ratio: ptr(median(off) / median(on))},
	}
	if o.backend != "" {
		return rows, nil
	}
	// Our own engine can also compute, in the pass before, what follows each
	// option of a choice and what was written after the same words before.
	u, err := o.url()
	if err != nil {
		return nil, err
	}
	opts := o.options()
	opts.Engine.Choices, opts.Engine.Drafts = benchChoices, benchDrafts
	ahead, err := open.Backend(ctx, u, opts)
	if err != nil {
		return rows, err
	}
	defer ahead.Close()
	if _, _, err := write(ahead, false); err != nil {
		return rows, err
	}
	var times []float64
	var c *backend.Result
	for range o.runs {
		var t float64
		if c, t, err = write(ahead, false); err != nil {
			return rows, err
		}
		times = append(times, t)
		if a.Part.Text != c.Part.Text {
			return nil, fmt.Errorf("computing ahead changed the output:\n%s\n%s", a.Part.Text, c.Part.Text)
		}
	}
	pC := float64(countPasses(c.Usage.Passes))
	return append(rows,
		benchRow{What: "forward passes with choices and copies computed ahead (ratio: fewer by)", Value: pC, Unit: "passes", Ratio: ptr(pOn / pC)},
		benchRow{What: "tokens without a pass of their own (ratio: share)", Value: tokens - pC, Unit: "tokens", Ratio: ptr((tokens - pC) / tokens)},
		benchRow{What: "tokens computed for it", Value: float64(c.Usage.ComputedTokens), Unit: "tokens"},
		benchRow{What: "time with both (ratio: faster than jump-forward alone by)", Value: 1e3 * median(times), Unit: "ms", Ratio: ptr(median(on) / median(times))},
	), nil
}

const (
	benchChoices = 48 // tokens for the options of one step
	benchDrafts  = 8  // tokens guessed in one step
)
