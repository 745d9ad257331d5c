package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/workflows"
)

// termsFlags say how a run's requests are carried out, for nodes that say
// nothing of it themselves, and what it may use.
type termsFlags struct {
	timeout   time.Duration
	retries   int
	fallbacks []string
	budget    lang.Budget
	prices    runtime.Prices
}

func (f *termsFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.DurationVar(&f.timeout, "timeout", 0, "bound on each attempt at a node, e.g. 30s")
	fl.IntVar(&f.retries, "retries", 0, "attempts at a request that fails in ways that may pass (default: the backend's own policy)")
	f.registerFallbacks(c)
	fl.IntVar(&f.budget.Tokens, "budget-tokens", 0, "stop when that many tokens went through a model")
	fl.IntVar(&f.budget.Generated, "budget-generated", 0, "stop when that many tokens were generated")
	fl.DurationVar(&f.budget.Time, "budget-time", 0, "stop after that time")
	fl.Float64Var(&f.budget.Cost, "budget-cost", 0, "stop when that much money is spent, at the prices given")
	fl.Float64Var(&f.prices.Input, "price-input", 0, "price of a million tokens of prompts")
	fl.Float64Var(&f.prices.Cached, "price-cached", 0, "price of a million tokens of prompts from a cache")
	fl.Float64Var(&f.prices.Output, "price-output", 0, "price of a million generated tokens")
}

func (f *termsFlags) registerFallbacks(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.fallbacks, "fallback", nil, "another engine as NAME=URL, asked when the first cannot answer; repeatable")
}

// options opens the fallbacks. close closes them, whatever the error.
func (f *termsFlags) options(ctx context.Context, m *modelFlags) (opts []runtime.Option, close func() error, err error) {
	close = func() error { return nil }
	if err := f.check(); err != nil {
		return nil, close, err
	}
	if f.timeout > 0 {
		opts = append(opts, runtime.WithTimeout(f.timeout))
	}
	if f.retries > 0 {
		opts = append(opts, runtime.WithRetry(lang.Retry{Attempts: f.retries}))
	}
	if f.budget != (lang.Budget{}) {
		opts = append(opts, runtime.WithBudget(f.budget))
	}
	if f.prices != (runtime.Prices{}) {
		opts = append(opts, runtime.WithPrices(f.prices))
	}
	list, close, err := f.backends(ctx, m)
	for _, b := range list {
		opts = append(opts, runtime.WithFallback(b.Name, b.Backend))
	}
	return opts, close, err
}

func (f *termsFlags) check() error {
	if f.timeout < 0 || f.retries < 0 || f.budget.Tokens < 0 || f.budget.Generated < 0 || f.budget.Time < 0 || f.budget.Cost < 0 {
		return usagef("--timeout, --retries and --budget-… take positive numbers")
	}
	return nil
}

// backends opens the fallbacks. close closes them, whatever the error.
func (f *termsFlags) backends(ctx context.Context, m *modelFlags) (list []workflows.Fallback, close func() error, err error) {
	close = func() error {
		var errs []error
		for _, b := range list {
			errs = append(errs, b.Backend.Close())
		}
		return errors.Join(errs...)
	}
	for _, s := range f.fallbacks {
		name, url, ok := strings.Cut(s, "=")
		if !ok || name == "" || url == "" {
			return list, close, usagef("--fallback %q: write it as NAME=URL", s)
		}
		be, err := open.Backend(ctx, url, m.options())
		if err != nil {
			return list, close, err
		}
		list = append(list, workflows.Fallback{Name: name, Backend: be})
	}
	return list, close, nil
}

// start returns what a durable run is told.
func (f *termsFlags) start() workflows.StartOptions {
	o := workflows.StartOptions{Retry: workflows.Retry{Attempts: f.retries}, Timeout: f.timeout}
	if f.budget != (lang.Budget{}) {
		o.Budget = &f.budget
	}
	if f.prices != (runtime.Prices{}) {
		o.Prices = &f.prices
	}
	return o
}
