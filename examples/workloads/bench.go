package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// show runs a workload and prints its result and what it cost. With alone it makes
// the same calls a second time, on a fresh backend and with nothing shared: one at
// a time, each on a cache of its own, forced text token by token, and a call for each
// option of a select.
func show(ctx context.Context, w workload, connect func() (backend.Backend, error), alone bool, out io.Writer) error {
	be, err := connect()
	if err != nil {
		return err
	}
	defer be.Close()
	rec := &recorder{Backend: be}
	began := time.Now()
	report, err := w.run(ctx, rec)
	if err != nil {
		return err
	}
	took := time.Since(began)
	value, err := json.MarshalIndent(report.Value, "", "  ")
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s\n%s\n\n", w.name, w.about, value)
	u := report.Usage
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	defer t.Flush()
	if !alone {
		fmt.Fprintf(t, "\tthis run\tby itself each\t\n")
		fmt.Fprintf(t, "computed tokens\t%d\t%d\t\n", u.ComputedTokens, u.Without.ComputedTokens)
		fmt.Fprintf(t, "reused\t%d\t0\t\n", u.CachedTokens)
		fmt.Fprintf(t, "forced\t%d\t0\t\n", u.ForcedTokens)
		fmt.Fprintf(t, "passes\t%d\t%d\t\n", u.ForwardPasses, u.Without.ForwardPasses)
		return nil
	}
	other, err := connect()
	if err != nil {
		return err
	}
	defer other.Close()
	began = time.Now()
	a, err := rec.alone(ctx, other)
	if err != nil {
		return err
	}
	aloneTook := time.Since(began)
	fmt.Fprintf(t, "\tthis run\tnothing shared\t\n")
	fmt.Fprintf(t, "computed tokens\t%d\t%d\t\n", u.ComputedTokens, a.ComputedTokens)
	fmt.Fprintf(t, "reused\t%d\t%d\t\n", u.CachedTokens, a.CachedTokens)
	fmt.Fprintf(t, "forced\t%d\t%d\t\n", u.ForcedTokens, a.ForcedTokens)
	fmt.Fprintf(t, "passes\t%d\t%d\t\n", u.ForwardPasses, a.passes)
	fmt.Fprintf(t, "seconds\t%.2f\t%.2f\t\n", took.Seconds(), aloneTook.Seconds())
	return nil
}

// recorder is a backend that keeps what it is asked.
type recorder struct {
	backend.Backend
	mu     sync.Mutex
	gens   []backend.Request
	scores []backend.ScoreRequest
}

func (r *recorder) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	r.mu.Lock()
	r.gens = append(r.gens, *req)
	r.mu.Unlock()
	return r.Backend.Generate(ctx, req, emit)
}

func (r *recorder) Score(ctx context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	r.mu.Lock()
	r.scores = append(r.scores, *req)
	r.mu.Unlock()
	return r.Backend.Score(ctx, req)
}

// total is the usage of calls that share nothing, not even a forward pass.
type total struct {
	backend.Usage
	passes uint64
}

func (t *total) add(u backend.Usage) {
	t.ComputedTokens += u.ComputedTokens
	t.CachedTokens += u.CachedTokens
	t.ForcedTokens += u.ForcedTokens
	for _, s := range u.Passes {
		t.passes += s.To - s.From + 1
	}
}

// alone makes the calls again, one after the other. A salt of its own keeps each
// from finding what another left in the cache.
func (r *recorder) alone(ctx context.Context, be backend.Backend) (sum total, err error) {
	n := 0
	salt := func() string {
		n++
		return fmt.Sprint("alone ", n)
	}
	for _, req := range r.gens {
		req.Salt, req.NoJump, req.Hints = salt(), true, backend.Hints{}
		res, err := be.Generate(ctx, &req, nil)
		if err != nil {
			return sum, err
		}
		sum.add(res.Usage)
	}
	for _, req := range r.scores {
		for _, option := range req.Options {
			one := req
			one.Options, one.Salt, one.Hints = []string{option}, salt(), backend.Hints{}
			res, err := be.Score(ctx, &one)
			if err != nil {
				return sum, err
			}
			sum.add(res.Usage)
		}
	}
	return sum, nil
}

var _ backend.Backend = (*recorder)(nil)
