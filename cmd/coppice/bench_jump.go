package main

import (
	"context"
	"fmt"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/examples/triage"
	"github.com/coppice-run/coppice/lang"
)

// benchJump writes the demo's verdict with and without jump-forward: the same
// bytes, fewer forward passes.
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
	write := func(noJump bool) (*backend.Result, float64, error) {
		start := time.Now()
		r, err := be.Generate(ctx, &backend.Request{
			ID: "verdict",
			Turns: []backend.Turn{
				text(backend.System, "You are on call."),
				text(backend.User, "Alert: "+triage.DefaultAlert),
				text(backend.User, "Give the verdict as JSON."),
			},
			MaxTokens:  160,
			Constraint: backend.Constraint{JSONSchema: schema},
			NoJump:     noJump,
		}, nil)
		return r, time.Since(start).Seconds(), err
	}
	if _, _, err := write(false); err != nil { // fill the cache
		return nil, err
	}
	var on, off []float64
	var a, b *backend.Result
	for range o.runs {
		var t float64
		if a, t, err = write(false); err != nil {
			return nil, err
		}
		on = append(on, t)
		if b, t, err = write(true); err != nil {
			return nil, err
		}
		off = append(off, t)
		if a.Part.Text != b.Part.Text {
			return nil, fmt.Errorf("jump-forward changed the output:\n%s\n%s", a.Part.Text, b.Part.Text)
		}
	}
	tokens := float64(a.Usage.SampledTokens + a.Usage.ForcedTokens)
	pOn, pOff := float64(countPasses(a.Usage.Passes)), float64(countPasses(b.Usage.Passes))
	return []benchRow{
		{What: "tokens of the verdict", Value: tokens, Unit: "tokens"},
		{What: "of them forced (ratio: share)", Value: float64(a.Usage.ForcedTokens), Unit: "tokens", Ratio: ptr(float64(a.Usage.ForcedTokens) / tokens)},
		{What: "forward passes without jump-forward", Value: pOff, Unit: "passes"},
		{What: "forward passes with (ratio: fewer by)", Value: pOn, Unit: "passes", Ratio: ptr(pOff / pOn)},
		{What: "time without", Value: 1e3 * median(off), Unit: "ms"},
		{What: "time with (ratio: faster by)", Value: 1e3 * median(on), Unit: "ms", Ratio: ptr(median(off) / median(on))},
	}, nil
}
