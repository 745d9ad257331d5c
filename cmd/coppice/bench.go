package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// benchReport is what every benchmark prints.
type benchReport struct {
	Machine string     `json:"machine"`
	Commit  string     `json:"commit"`
	Rows    []benchRow `json:"rows"`
	// Incomplete says why there are not all rows.
	Incomplete string `json:"incomplete,omitempty"`
}

// benchRow is one figure beside its limit and its peer, where there are any.
type benchRow struct {
	What  string   `json:"what"`
	Value float64  `json:"value"`
	Unit  string   `json:"unit"`
	Limit *float64 `json:"limit,omitempty"` // what the machine allows, same unit
	Peer  *float64 `json:"peer,omitempty"`  // what the peer reaches, same unit
	// Ratio is how much better than the peer, or, without one, what part of
	// the limit; of rows that compare two of our own, the row says what.
	Ratio *float64 `json:"ratio,omitempty"`
}

// benchmark is one NAME of 'coppice bench'. An error comes with the rows that
// were measured before it.
type benchmark struct {
	name, short string
	run         func(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error)
}

type benchOptions struct {
	modelFlags
	runs    int
	speed   speedOptions
	peers   peerOptions
	serve   serveBenchOptions
	grammar grammarBenchOptions
}

var benchmarks = []benchmark{
	{"decode", "tokens per second of one sequence and of branches, beside the read bandwidth", benchDecode},
	{"prefill", "tokens per second of prompts, beside the dot-product peak", benchPrefill},
	{"peers", "llama.cpp and coppice in turn: decode, prefill, branches, the fork workload", benchPeers},
	{"overlap", "how long a simulated device waits for the engine", benchOverlap},
	{"fork", "1, 8 and 32 branches over one shared prompt: tokens computed, time", benchFork},
	{"grammar", "compiling and masks over schemas, beside xgrammar and llguidance", benchGrammar},
	{"jump", "the same constrained generation with and without jump-forward", benchJump},
	{"radix", "the prefix tree: match, insert, evict", benchRadix},
	{"durable", "what durability adds to a node: journal, our own Temporal server", benchDurable},
	{"frontend", "what the runtime adds: programs on a backend that answers at once", benchFrontend},
	{"future", "64 agents with tool pauses: tokens reused, beside an oracle and LRU", benchFuture},
	{"serve", "what the server costs, and how it bears many streams and bad requests", benchServe},
}

func (a *app) benchCmd() *cobra.Command {
	var (
		o      benchOptions
		asJSON bool
	)
	var long strings.Builder
	long.WriteString("Measure on this machine. NAME is one of\n\n")
	var names []string
	for _, b := range benchmarks {
		fmt.Fprintf(&long, "  %-10s %s\n", b.name, b.short)
		names = append(names, b.name)
	}
	c := &cobra.Command{
		Use:       "bench NAME",
		Short:     "Measure on this machine",
		Long:      long.String(),
		ValidArgs: names,
		Args:      exactly("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			i := slices.IndexFunc(benchmarks, func(b benchmark) bool { return b.name == args[0] })
			if i < 0 {
				return usagef("no benchmark %q; there are: %s", args[0], strings.Join(names, ", "))
			}
			if o.runs < 1 {
				return usagef("--runs is %d, it must be at least 1", o.runs)
			}
			if err := o.check(); err != nil {
				return err
			}
			rows, err := benchmarks[i].run(a, cmd.Context(), &o)
			return a.reportBench(cmd.Context(), rows, err, asJSON)
		},
	}
	o.register(c)
	o.speed.register(c)
	o.peers.register(c)
	o.grammar.register(c)
	o.serve.register(c)
	c.Flags().IntVar(&o.runs, "runs", 3, "runs of each setting, alternating; the median counts")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// reportBench prints what was measured, also if an error ended it, which is
// returned.
func (a *app) reportBench(ctx context.Context, rows []benchRow, err error, asJSON bool) error {
	r := benchReport{Machine: machine(), Commit: buildInfo().Commit, Rows: rows}
	switch {
	case err != nil && ctx.Err() != nil:
		r.Incomplete = "interrupted"
		err = fmt.Errorf("interrupted, with %d rows complete: %w", len(rows), context.Canceled)
	case err != nil:
		r.Incomplete = err.Error()
	}
	if err != nil && len(rows) == 0 {
		return err
	}
	print := a.printBench
	if asJSON {
		print = func(r benchReport) error { return a.printJSON(r) }
	}
	if perr := print(r); err == nil {
		err = perr
	}
	return err
}

// goalRows are medians in microseconds beside what they should be and what a peer's are.
type goalRows []benchRow

// add appends a row, if anything was measured.
func (r *goalRows) add(what string, v []float64, goal, peer float64) {
	if len(v) > 0 {
		m := median(v)
		*r = append(*r, benchRow{What: what, Value: m, Unit: "us", Limit: ptr(goal), Peer: ptr(peer), Ratio: ptr(peer / m)})
	}
}

// steps tells on standard error which of how many measurements begins.
type steps struct {
	w    io.Writer
	k, n int
}

func (a *app) steps(n int) *steps { return &steps{w: a.errOut, n: n} }

func (s *steps) next(format string, args ...any) {
	s.k++
	fmt.Fprintf(s.w, "%d of %d: %s\n", s.k, s.n, fmt.Sprintf(format, args...))
}

func (a *app) printBench(r benchReport) error {
	fmt.Fprintf(a.out, "%s, commit %s\n\n", r.Machine, r.Commit)
	w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what\tvalue\tunit\tlimit\tpeer\tratio\t")
	opt := func(p *float64) string {
		if p == nil {
			return ""
		}
		return number(*p)
	}
	for _, x := range r.Rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t\n", x.What, number(x.Value), x.Unit, opt(x.Limit), opt(x.Peer), opt(x.Ratio))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if r.Incomplete != "" {
		fmt.Fprintf(a.out, "\nnot all of it: %s\n", oneLine(r.Incomplete))
	}
	return nil
}

// number prints three figures that matter.
func number(v float64) string {
	switch {
	case v == float64(int64(v)):
		return fmt.Sprint(int64(v))
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// machine names the processor and the system.
func machine() string {
	return fmt.Sprintf("%s, %d cores, %s/%s", processor(), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
}

// processor names the processor, as far as the system tells.
func processor() string {
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				return strings.TrimSpace(v)
			}
		}
	}
	return runtime.GOARCH
}

// median of a non-empty list; the list is sorted.
func median(xs []float64) float64 {
	slices.Sort(xs)
	if n := len(xs); n%2 == 0 {
		return (xs[n/2-1] + xs[n/2]) / 2
	}
	return xs[len(xs)/2]
}

func ptr(v float64) *float64 { return &v }
