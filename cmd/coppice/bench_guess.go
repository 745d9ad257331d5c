package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/examples/triage"
)

// guessRows write free texts with guesses, as commands do by default, and without:
// where guesses are seldom right they must not cost much.
func (o *benchOptions) guessRows(ctx context.Context) (rows []benchRow, err error) {
	u, err := o.url()
	if err != nil {
		return nil, err
	}
	var with [2]backend.Backend
	for i, n := range []int{0, defaultDrafts} {
		opts := o.options()
		opts.Engine.Drafts, opts.Engine.Choices = n, 0
		if with[i], err = open.Backend(ctx, u, opts); err != nil {
			return nil, err
		}
		defer with[i].Close()
	}
	user := func(s string) backend.Turn {
		return backend.Turn{Role: backend.User, Parts: []backend.Part{{Text: s}}}
	}
	alert := []backend.Turn{{Role: backend.System, Parts: []backend.Part{{Text: triage.Runbook()}}}, user("Alert: " + triage.DefaultAlert)}
	for _, text := range []struct {
		what     string
		ask      string
		sampling backend.Sampling
	}{
		{"a free text, greedy", "Tell in your own words what happened.", backend.Sampling{}},
		{"a free text, drawn at temperature 1", "Tell in your own words what happened.", backend.Sampling{Temperature: 1, Seed: 1}},
		{"a text that copies", "Repeat the alert word by word, three times.", backend.Sampling{}},
	} {
		var times [2][]float64
		var res [2]*backend.Result
		for run := range o.runs + 1 { // the first fills the cache
			for i, be := range with {
				start := time.Now()
				res[i], err = be.Generate(ctx, &backend.Request{ID: text.what, Turns: append(slices.Clip(alert), user(text.ask)), MaxTokens: 128, IgnoreEOS: true, Sampling: text.sampling}, nil)
				if err != nil {
					return rows, err
				}
				if run > 0 {
					times[i] = append(times[i], time.Since(start).Seconds())
				}
			}
			if res[0].Part.Text != res[1].Part.Text {
				return rows, fmt.Errorf("guesses changed the output of %s:\n%s\n%s", text.what, res[0].Part.Text, res[1].Part.Text)
			}
		}
		without, guessed := float64(countPasses(res[0].Usage.Passes)), float64(countPasses(res[1].Usage.Passes))
		rows = append(rows,
			benchRow{What: text.what + ", with guesses: forward passes (ratio: fewer by)", Value: guessed, Unit: "passes", Ratio: ptr(without / guessed)},
			benchRow{What: text.what + ", with guesses: time (ratio: faster by)", Value: 1e3 * median(times[1]), Unit: "ms", Ratio: ptr(median(times[0]) / median(times[1]))},
		)
	}
	return rows, nil
}
