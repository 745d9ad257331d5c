package main

import (
	"context"
	"fmt"
	"time"

	"github.com/coppice-run/coppice/cache"
)

// benchRadix times the prefix tree in the shapes of the published peer figures:
// a 6,000-token prompt in 60 nodes, 64 new tokens after it, and the eviction of
// one leaf among 10,000.
//
// The peer is SGLang's Rust tree core, measured on a machine of this kind, not
// in this run: its figures stand there to compare orders of magnitude.
func benchRadix(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	const (
		nodes  = 60
		run    = 100 // tokens of a node
		leaves = 10_000
		fresh  = 64
	)
	ns := cache.Namespace{Model: "bench"}
	prompt := make([]cache.Token, nodes*run)
	for i := range prompt {
		prompt[i] = cache.Token(i % 1000)
	}
	pages := func(tokens int) int { return (tokens + cache.PageTokens - 1) / cache.PageTokens }

	// chain cuts the prompt into nodes by ending a short branch at each cut.
	build := func() (*cache.Cache, error) {
		c := cache.New(pages(len(prompt)) + (nodes+leaves+4000)*(1+pages(fresh)))
		insert := func(tokens []cache.Token) error {
			h := c.Match(ns, tokens)
			own, ok := c.Alloc(nil, pages(len(tokens))-h.Len()/cache.PageTokens)
			if !ok {
				return fmt.Errorf("bench radix: out of pages")
			}
			table := append(h.Pages(nil, 0)[:h.Len()/cache.PageTokens:h.Len()/cache.PageTokens], own...)
			c.Extend(h, tokens[h.Len():], table)
			c.Release(own)
			c.Unpin(h)
			return nil
		}
		if err := insert(prompt); err != nil {
			return nil, err
		}
		for n := 1; n < nodes; n++ {
			branch := append(append([]cache.Token(nil), prompt[:n*run]...), -2)
			if err := insert(branch); err != nil {
				return nil, err
			}
		}
		for n := range leaves {
			leaf := append([]cache.Token(nil), prompt[:run]...)
			for i := range fresh {
				leaf = append(leaf, cache.Token(2000+n*7+i))
			}
			if err := insert(leaf); err != nil {
				return nil, err
			}
		}
		return c, nil
	}

	var match, insert, evict []float64
	rows := func() []benchRow { // of the runs that are complete
		var rows goalRows
		rows.add("match 6,000 tokens over 60 nodes (limit: goal)", match, 15, 20.5)
		rows.add("insert 64 new tokens after them (limit: goal)", insert, 10, 181)
		rows.add("evict one leaf of 10,000 (limit: goal)", evict, 5, 84)
		return rows
	}
	progress := a.steps(o.runs)
	for k := range o.runs {
		progress.next("a tree of %d nodes and %d leaves, run %d", nodes, leaves, k+1)
		if err := ctx.Err(); err != nil {
			return rows(), err
		}
		c, err := build()
		if err != nil {
			return rows(), err
		}
		const n = 1000
		start := time.Now()
		for range n {
			c.Unpin(c.Match(ns, prompt))
		}
		match = append(match, micros(time.Since(start), n))

		long := make([]cache.Token, len(prompt)+fresh)
		copy(long, prompt)
		var spent time.Duration
		for i := range n {
			for j := range fresh {
				long[len(prompt)+j] = cache.Token(5_000_000 + i*fresh + j)
			}
			h := c.Match(ns, long)
			own, ok := c.Alloc(nil, pages(len(long))-h.Len()/cache.PageTokens)
			if !ok {
				return rows(), fmt.Errorf("bench radix: out of pages")
			}
			table := append(h.Pages(nil, 0)[:h.Len()/cache.PageTokens], own...)
			t := time.Now()
			c.Extend(h, long[h.Len():], table)
			spent += time.Since(t)
			c.Release(own)
			c.Unpin(h)
		}
		insert = append(insert, micros(spent, n))

		// Take all free pages first, so that each Alloc evicts.
		free, _ := c.Alloc(nil, c.Stats().Free)
		one := pages(fresh)
		start = time.Now()
		for range n {
			if _, ok := c.Alloc(free[:0], one); !ok {
				return rows(), fmt.Errorf("bench radix: nothing to evict")
			}
		}
		evict = append(evict, micros(time.Since(start), n))
	}
	return rows(), nil
}

func micros(d time.Duration, n int) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(n) }
