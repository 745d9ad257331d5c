package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/coppice-run/coppice/backend/compute"
	"github.com/coppice-run/coppice/backend/model"
)

// eachSubject calls f for every model and number of threads, after the rows of
// the machine's limits.
func (o *benchOptions) eachSubject(f func(s *subject) ([]benchRow, error)) ([]benchRow, error) {
	var rows []benchRow
	seen := map[int]bool{}
	for _, name := range o.speed.models {
		for _, threads := range o.speed.threads {
			s, err := openSubject(name, model.KVType(o.kv), threads, o.speed.room())
			if err != nil {
				return rows, err
			}
			if !seen[threads] {
				seen[threads] = true
				rows = append(rows, limitRows(s.limits)...)
			}
			rows = append(rows, s.loadRow())
			more, err := f(s)
			s.close()
			rows = append(rows, more...)
			if err != nil {
				return rows, fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return rows, nil
}

// room is the number of tokens that the cache must hold.
func (o *speedOptions) room() int {
	n := o.resident
	for _, d := range o.depths {
		n += d + 16
	}
	branches := 0
	if o.shared > 0 && len(o.branches) > 0 {
		n += o.shared
		branches = slices.Max(o.branches)
	}
	return n + 8*o.prompt + (branches+4)*(o.tokens+64)
}

func (s *subject) label(what string) string {
	return fmt.Sprintf("%s, %d threads: %s", s.name, s.limits.Threads, what)
}

// benchDecode measures one sequence at several depths, beside what reading the
// weights and the cache takes, and steps of many sequences over a shared prompt.
func benchDecode(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	p := &o.speed
	return o.eachSubject(func(s *subject) (rows []benchRow, err error) {
		for _, depth := range p.depths {
			if !s.fits(depth + p.tokens + 1) {
				fmt.Fprintln(a.errOut, s.label(fmt.Sprintf("depth %d does not fit in the context of %d", depth, s.mod.Config().ContextLength)))
				continue
			}
			v, err := s.decodeMedian(a, ctx, depth, p.tokens, o.runs)
			if err != nil {
				return rows, err
			}
			bytes := s.decodeBytes(depth + p.tokens/2)
			rows = append(rows,
				benchRow{What: s.label(fmt.Sprintf("decode at depth %d (limit: read bandwidth before and after)", depth)), Value: v.speed, Unit: "tokens/s", Limit: ptr(v.limit), Ratio: ptr(v.speed / v.limit)},
				benchRow{What: s.label(fmt.Sprintf("weights and cache read at depth %d", depth)), Value: v.speed * bytes / 1e9, Unit: "GB/s", Limit: ptr(v.limit * bytes / 1e9), Ratio: ptr(v.speed / v.limit)},
				benchRow{What: s.label(fmt.Sprintf("decode at depth %d, each token to a listener (ratio: to without)", depth)), Value: v.speed * v.heard, Unit: "tokens/s", Ratio: ptr(v.heard)},
			)
		}
		more, err := s.branchRows(a, ctx, p, o.runs)
		if err != nil {
			return rows, err
		}
		rows = append(rows, more...)
		if p.resident == 0 {
			return rows, nil
		}
		depth := p.depths[0]
		before, err := s.decodeMedian(a, ctx, depth, p.tokens, o.runs)
		if err == nil {
			err = s.fill(ctx, p.resident)
		}
		if err != nil {
			return rows, err
		}
		after, err := s.decodeMedian(a, ctx, depth, p.tokens, o.runs)
		if err != nil {
			return rows, err
		}
		return append(rows, benchRow{What: s.label(fmt.Sprintf("decode at depth %d with %d unused tokens in the cache (ratio: to without)", depth, p.resident)), Value: after.speed, Unit: "tokens/s", Ratio: ptr(after.speed / before.speed)}), nil
	})
}

// A paced speed stands beside what the machine allowed at the time.
type paced struct {
	speed, limit float64 // tokens per second
	heard        float64 // share of the speed that is left with a listener
}

// readFor is how long the bandwidth is measured before and after each run.
const readFor = 150 * time.Millisecond

// decodeMedian is the median speed after a prompt of depth tokens. Its limit comes from
// the median of the share that each run reached of the read bandwidth, which is
// measured right before and after it: on a shared machine it changes by the second,
// and a single peak is not what a run of half a second could have had.
func (s *subject) decodeMedian(a *app, ctx context.Context, depth, n, runs int) (v paced, err error) {
	ids := s.text(max(1, depth))
	if err := s.prepare(ctx, ids); err != nil {
		return v, err
	}
	meter, err := compute.NewReadMeter(s.limits.Threads)
	if err != nil {
		return v, err
	}
	defer meter.Close()
	var shares, heard []float64
	v.speed, err = a.medianOf(runs, s.label(fmt.Sprintf("decode at depth %d", depth)), func() (float64, error) {
		before := meter.Rate(readFor)
		speed, err := s.decode(ctx, ids, n)
		if err != nil {
			return 0, err
		}
		limit := (before + meter.Rate(readFor)) / 2 * 1e9 / s.decodeBytes(depth+n/2)
		shares = append(shares, speed/limit)
		with, err := s.decodeTo(ctx, ids, n)
		heard = append(heard, with/speed)
		return speed, err
	})
	if err == nil {
		v.limit, v.heard = v.speed/median(shares), median(heard)
	}
	return v, err
}

// medianOf is the median of runs measurements of what.
func (a *app) medianOf(runs int, what string, measure func() (float64, error)) (float64, error) {
	var v []float64
	progress := a.steps(runs)
	for range runs {
		progress.next("%s", what)
		x, err := measure()
		if err != nil {
			return 0, err
		}
		v = append(v, x)
	}
	return median(v), nil
}

// branchRows measures steps of several sequences over a shared prompt.
func (s *subject) branchRows(a *app, ctx context.Context, p *speedOptions, runs int) (rows []benchRow, err error) {
	if p.shared == 0 || len(p.branches) == 0 {
		return nil, nil
	}
	if !s.fits(p.shared + p.tokens + 1) {
		fmt.Fprintln(a.errOut, s.label(fmt.Sprintf("a shared prompt of %d does not fit in the context of %d", p.shared, s.mod.Config().ContextLength)))
		return nil, nil
	}
	ids := s.text(p.shared)
	if err := s.prepare(ctx, ids); err != nil {
		return nil, err
	}
	counts := p.branches
	if !slices.Contains(counts, 1) {
		counts = append([]int{1}, counts...)
	}
	times := make([][]float64, len(counts))
	progress := a.steps(runs * len(counts))
	for range runs {
		for i, n := range counts {
			progress.next("%s", s.label(fmt.Sprintf("step of %d branches", n)))
			v, err := s.step(ctx, ids, n, min(p.tokens, 32))
			if err != nil {
				return nil, err
			}
			times[i] = append(times[i], v)
		}
	}
	one := median(times[slices.Index(counts, 1)])
	for i, n := range counts {
		v := median(times[i])
		rows = append(rows, benchRow{What: s.label(fmt.Sprintf("step of %d branches over %d shared tokens (ratio: to a step of 1)", n, p.shared)), Value: 1e3 * v, Unit: "ms", Ratio: ptr(v / one)})
	}
	return rows, nil
}

// benchPrefill measures prompts at several depths, beside what their multiply-adds
// take at the machine's peaks.
func benchPrefill(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	p := &o.speed
	return o.eachSubject(func(s *subject) (rows []benchRow, err error) {
		for _, depth := range p.depths {
			if !s.fits(depth + p.prompt + 1) {
				fmt.Fprintln(a.errOut, s.label(fmt.Sprintf("depth %d does not fit in the context of %d", depth, s.mod.Config().ContextLength)))
				continue
			}
			v, err := s.prefillMedian(a, ctx, depth, p.prompt, o.runs)
			if err != nil {
				return rows, err
			}
			limit := s.prefillLimit(depth, p.prompt)
			rows = append(rows, benchRow{What: s.label(fmt.Sprintf("prefill %d at depth %d (limit: dot products)", p.prompt, depth)), Value: v, Unit: "tokens/s", Limit: ptr(limit), Ratio: ptr(v / limit)})
		}
		if s.mod.Config().Experts == 0 {
			row, err := s.productRow(o.runs)
			if err != nil {
				return rows, err
			}
			rows = append(rows, row)
		}
		if p.resident == 0 {
			return rows, nil
		}
		before, err := s.prefillMedian(a, ctx, 0, p.prompt, o.runs)
		if err == nil {
			err = s.fill(ctx, p.resident)
		}
		if err != nil {
			return rows, err
		}
		after, err := s.prefillMedian(a, ctx, 0, p.prompt, o.runs)
		if err != nil {
			return rows, err
		}
		return append(rows, benchRow{What: s.label(fmt.Sprintf("prefill %d with %d unused tokens in the cache (ratio: to without)", p.prompt, p.resident)), Value: after, Unit: "tokens/s", Ratio: ptr(after / before)}), nil
	})
}

// productRow measures the matrix products of prompts alone.
func (s *subject) productRow(runs int) (benchRow, error) {
	const tokens = 256
	var v []float64
	for range runs {
		d, err := s.mod.Products(tokens)
		if err != nil {
			return benchRow{}, err
		}
		v = append(v, tokens*float64(s.mod.Work(1).MatrixMACs)/float64(d.Nanoseconds()))
	}
	m := median(v)
	return benchRow{What: s.label("matrix products alone (limit: 8-bit dot products)"), Value: m, Unit: "GMAC/s", Limit: ptr(s.limits.Int8GMACs), Ratio: ptr(m / s.limits.Int8GMACs)}, nil
}

// prefillMedian is the median speed of prompts of n tokens, each another, after
// depth tokens in the cache.
func (s *subject) prefillMedian(a *app, ctx context.Context, depth, n, runs int) (float64, error) {
	ids := s.text(depth)
	if err := s.prepare(ctx, ids); err != nil {
		return 0, err
	}
	return a.medianOf(runs, s.label(fmt.Sprintf("prefill %d at depth %d", n, depth)), func() (float64, error) { return s.prefill(ctx, ids, n) })
}
