package main

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
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
	fl.StringArrayVar(&f.fallbacks, "fallback", nil, "another engine as NAME=URL, asked when the first cannot answer; repeatable")
	fl.IntVar(&f.budget.Tokens, "budget-tokens", 0, "stop when that many tokens went through a model")
	fl.IntVar(&f.budget.Generated, "budget-generated", 0, "stop when that many tokens were generated")
	fl.DurationVar(&f.budget.Time, "budget-time", 0, "stop after that time")
	fl.Float64Var(&f.budget.Cost, "budget-cost", 0, "stop when that much money is spent, at the prices given")
	fl.Float64Var(&f.prices.Input, "price-input", 0, "price of a million tokens of prompts")
	fl.Float64Var(&f.prices.Cached, "price-cached", 0, "price of a million tokens of prompts from a cache")
	fl.Float64Var(&f.prices.Output, "price-output", 0, "price of a million generated tokens")
}

// options opens the fallbacks. close closes them, whatever the error.
func (f *termsFlags) options(ctx context.Context, m *modelFlags) (opts []runtime.Option, close func() error, err error) {
	var opened []backend.Backend
	close = func() error {
		var errs []error
		for _, be := range opened {
			errs = append(errs, be.Close())
		}
		return errors.Join(errs...)
	}
	if f.timeout < 0 || f.retries < 0 || f.budget.Tokens < 0 || f.budget.Generated < 0 || f.budget.Time < 0 || f.budget.Cost < 0 {
		return nil, close, usagef("--timeout, --retries and --budget-… take positive numbers")
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
	for _, s := range f.fallbacks {
		name, url, ok := strings.Cut(s, "=")
		if !ok || name == "" || url == "" {
			return nil, close, usagef("--fallback %q: write it as NAME=URL", name)
		}
		be, err := open.Backend(ctx, url, m.options())
		if err != nil {
			return nil, close, err
		}
		opened = append(opened, be)
		opts = append(opts, runtime.WithFallback(name, be))
	}
	return opts, close, nil
}
