package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// Output is the typed result of Run.
type Output[T any] struct {
	// Value is what the program returned.
	Value T `json:"value"`
	*Report
}

// Run runs a program on a backend in this process. Every wait ends with ctx.
//
// If the run started, the output is not nil even where there is an error: its
// Report says how far the run came and what it cost.
func Run[T any](ctx context.Context, be backend.Backend, def *lang.Def[T], args lang.Args, opts ...Option) (*Output[T], error) {
	g, err := def.Compile()
	if err != nil {
		return nil, err
	}
	report, err := RunGraph(ctx, be, g, def.Funcs(), args, opts...)
	if report == nil {
		return nil, err
	}
	out := &Output[T]{Report: report}
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(report.Value, &out.Value); err != nil {
		return out, fmt.Errorf("runtime: the result of %s is no %T: %w", def.Name(), out.Value, err)
	}
	return out, nil
}

// RunGraph is Run for a graph whose result type is not known to Go. funcs are
// the functions that the graph calls.
//
// The program is checked against the functions and the backend before the first
// call. If the run started, the report is not nil even where there is an error.
func RunGraph(ctx context.Context, be backend.Backend, g *lang.Graph, funcs lang.Funcs, args lang.Args, opts ...Option) (*Report, error) {
	if g == nil {
		return nil, errors.New("runtime: no graph")
	}
	cfg := newConfig(opts)
	vars, err := g.Bind(args)
	if err != nil {
		return nil, err
	}
	r := &runner{be: be, funcs: funcs, cfg: cfg, graph: g}
	if err := r.check(ctx); err != nil {
		return nil, err
	}
	if cfg.journal != "" {
		return r.runJournaled(ctx, vars)
	}
	if cfg.run == "" {
		cfg.run = randomName()
	}
	if r.m, err = New(g, vars, cfg.options()); err != nil {
		return nil, err
	}
	return r.run(ctx)
}

// randomName returns a name for a run that has none.
func randomName() string {
	var buf [20]byte
	return string(strconv.AppendUint(append(buf[:0], "run-"...), rand.Uint64(), 16))
}

// Resume goes on with the run that a journal holds. It needs nothing else but
// the functions that the program calls: graph, inputs and seed come from the
// journal. What is finished is not done again; a run that is finished gives its
// report without any call, and be may then be nil.
//
// Options that say what the run is (WithSeed, WithRun, WithLimits) are refused
// if they differ from the journal.
func Resume(ctx context.Context, be backend.Backend, path string, funcs lang.Funcs, opts ...Option) (*Report, error) {
	cfg := newConfig(opts)
	cfg.journal = path
	r := &runner{be: be, funcs: funcs, cfg: cfg}
	return r.resume(ctx)
}

// Option changes how a run goes.
type Option func(*config)

type config struct {
	seed        *uint64
	run         string
	salt        string
	limits      *Limits
	sink        Sink
	concurrency int
	passes      *spanSet // takes those that the run used, if not nil
	journal     string
	backend     string
	grace       time.Duration
	clock       func() time.Time
	answers     Answerer
	fs          fileSystem
	timeout     time.Duration
	retry       lang.Retry
	fallback    []named
	budget      *lang.Budget
	partials    bool
	watch       []partialWatch
	prices      *Prices
	sleep       func(context.Context, time.Duration) error
}

func newConfig(opts []Option) *config {
	c := &config{concurrency: 256, grace: 2 * time.Second, clock: time.Now, fs: osFS{}, sleep: sleep}
	for _, o := range opts {
		o(c)
	}
	return c
}

// options returns what the machine is given.
func (c *config) options() Options {
	o := Options{Run: c.run, Salt: c.salt}
	if c.seed != nil {
		o.Seed = *c.seed
	}
	if c.limits != nil {
		o.Limits = *c.limits
	}
	return o
}

// WithSeed sets the seed from which nodes without one draw theirs; the default
// is 0. Runs with the same seed sample the same tokens.
func WithSeed(seed uint64) Option { return func(c *config) { c.seed = &seed } }

// WithRun names the run; the default is a random name. The name is part of the
// idempotency keys of calls: a second run with the same name claims to be the
// first.
func WithRun(name string) Option { return func(c *config) { c.run = name } }

// WithSalt separates the run's cache entries from those of other salts.
func WithSalt(salt string) Option { return func(c *config) { c.salt = salt } }

// WithLimits bounds what the program may do.
func WithLimits(l Limits) Option { return func(c *config) { c.limits = &l } }

// WithSink sends the run's events to s.
func WithSink(s Sink) Option { return func(c *config) { c.sink = s } }

// WithConcurrency bounds the tasks in flight; the default is 256. Tasks beyond
// it wait in the order of the program, at no cost.
func WithConcurrency(n int) Option {
	return func(c *config) {
		if n > 0 {
			c.concurrency = n
		}
	}
}

// WithJournal keeps the run in a file from which it can go on after a crash. If
// the file exists, the run goes on with it, provided that it is of the same
// program, inputs, seed and model; see [Resume].
func WithJournal(path string) Option { return func(c *config) { c.journal = path } }

// WithBackendURL notes in a new journal where the backend came from, so that the
// run can be resumed from the journal alone. It must hold no secrets.
func WithBackendURL(url string) Option { return func(c *config) { c.backend = url } }

// WithGrace sets how long a run that ends early waits for tasks that do not
// react to the end of their context; the default is 2 s. Tasks that take longer
// are left behind, and the error names them.
func WithGrace(d time.Duration) Option { return func(c *config) { c.grace = d } }

// WithClock sets the clock that events are stamped with; nil leaves them
// without a time.
func WithClock(now func() time.Time) Option { return func(c *config) { c.clock = now } }

// taskKey is the context key of what a function may know of its task.
type taskKey struct{}

type taskInfo struct{ id, key string }

// IdempotencyKey returns the key of the call that ctx belongs to: the same for
// every attempt at the same task of the same run, whatever process makes it, and
// different for all others. A function hands it to the service that has the
// effect, so that the effect happens once. It is empty outside of a call.
func IdempotencyKey(ctx context.Context) string {
	info, _ := ctx.Value(taskKey{}).(taskInfo)
	return info.key
}

// TaskID returns the instance id of the task that ctx belongs to, empty outside
// of a call.
func TaskID(ctx context.Context) string {
	info, _ := ctx.Value(taskKey{}).(taskInfo)
	return info.id
}

// WithTask returns a context for the call of a function, from which
// [IdempotencyKey] and [TaskID] read. Only drivers of a Machine need it.
func WithTask(ctx context.Context, t Task) context.Context {
	info := taskInfo{id: t.ID}
	if t.Call != nil {
		info.key = t.Call.Key
	}
	return context.WithValue(ctx, taskKey{}, info)
}
