package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

func (a *app) runCmd() *cobra.Command {
	var (
		m       modelFlags
		in      inputFlags
		terms   termsFlags
		journal string
		seed    uint64
		asJSON  bool
		t       temporalFlags
		durable bool
		name    string

		searchable bool
	)
	c := &cobra.Command{
		Use:   "run PROGRAM",
		Short: "Run a program",
		Long: `Run a program: a .yaml or .json file, or a built-in example (triage).

With --journal every result is kept in a file as it comes. If the process dies,
the same command, or 'coppice resume FILE', goes on from there: nothing that was
finished is done again.

With --durable the run is kept by a Temporal server: the one that --temporal
names, or one of our own on this machine, which is started if need be. The run
has a name; the same command with --name goes on with it.`,
		Example: `  coppice run triage
  coppice run triage --input alert="node-3 stopped answering"
  coppice run prog.yaml --input q=why --journal run.journal --json
  coppice run prog.yaml --backend 'openai+http://127.0.0.1:8000/v1?model=NAME'`,
		Args: exactly("PROGRAM"),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, funcs, err := loadProgram(args[0])
			if err != nil {
				return err
			}
			inputs, err := in.args(g)
			if err != nil {
				return err
			}
			if _, err := g.Bind(inputs); err != nil {
				return usageError{err}
			}
			switch {
			case journal != "" && (durable || t.given(cmd)):
				return usagef("--journal and --durable are two ways to the same end: give one of them")
			case name != "" && !durable && !t.given(cmd):
				return usagef("--name is of durable runs: give --durable too")
			}
			url, err := m.url()
			if err != nil {
				return err
			}
			be, err := m.open(cmd.Context())
			if err != nil {
				return err
			}
			defer be.Close()
			if journal == "" && cmd.Flags().Changed("journal") {
				return usagef("--journal is empty: give the name of a file")
			}
			if durable || t.given(cmd) {
				if err := terms.check(); err != nil {
					return err
				}
				fallback, done, err := terms.backends(cmd.Context(), &m)
				defer done()
				if err != nil {
					return err
				}
				o := terms.start()
				o.Name, o.Seed = name, seed
				o.SearchAttributes = searchable
				t.shared = cmd.Flags().Changed("queue")
				return a.runDurable(cmd.Context(), &t, g, funcs, inputs, be, fallback, o, asJSON)
			}
			opts, done, err := terms.options(cmd.Context(), &m)
			defer done()
			if err != nil {
				return err
			}
			opts = append(opts, runtime.WithSeed(seed), runtime.WithBackendURL(publicURL(url)))
			if journal != "" {
				opts = append(opts, runtime.WithJournal(journal))
			}
			return a.show(g, be.Info(), journal, asJSON, func(sink runtime.Option) (*runtime.Report, error) {
				return runtime.RunGraph(cmd.Context(), be, g, funcs, inputs, append(opts, sink)...)
			})
		},
	}
	m.register(c)
	m.registerAhead(c)
	in.register(c)
	terms.register(c)
	c.Flags().StringVar(&journal, "journal", "", "keep the run in this file and go on with it if it is there")
	t.register(c)
	c.Flags().BoolVar(&durable, "durable", false, "run on Temporal")
	c.Flags().BoolVar(&searchable, "search-attributes", false, "give the durable run the search attributes program, tenant and status, which the namespace must know (our own server does)")
	c.Flags().StringVar(&name, "name", "", "name of the durable run; that of one that is there goes on with it")
	c.Flags().Uint64Var(&seed, "seed", 0, "seed of the run, for nodes that sample")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func (a *app) resumeCmd() *cobra.Command {
	var (
		m      modelFlags
		terms  termsFlags
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "resume JOURNAL",
		Short: "Go on with a run from its journal",
		Long: `Go on with a run from its journal. The program, its inputs and its seed come
from the journal; so does the model, unless --model or --backend names it.
A journal of a finished run gives the same report again, without any call.`,
		Args: exactly("JOURNAL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			info, err := readJournal(args[0])
			if err != nil {
				return err
			}
			g, err := lang.Decode(info.Header.Graph, args[0])
			if err != nil {
				return fmt.Errorf("the program in %s: %w", args[0], err)
			}
			if info.Header.Backend != "" && !cmd.Flags().Changed("model") && !cmd.Flags().Changed("backend") {
				m.backend = info.Header.Backend
			}
			var funcs lang.Funcs
			if load, ok := examples[info.Header.Program]; ok {
				if _, funcs, err = load(); err != nil {
					return err
				}
			}
			be, err := m.open(cmd.Context())
			if err != nil {
				return err
			}
			defer be.Close()
			opts, done, err := terms.options(cmd.Context(), &m)
			defer done()
			if err != nil {
				return err
			}
			return a.show(g, be.Info(), args[0], asJSON, func(sink runtime.Option) (*runtime.Report, error) {
				return runtime.Resume(cmd.Context(), be, args[0], funcs, append(opts, sink)...)
			})
		},
	}
	m.register(c)
	m.registerAhead(c)
	terms.register(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// show carries out a run, shows its branches while it goes, and prints its
// report.
func (a *app) show(g *lang.Graph, model backend.Info, journal string, asJSON bool, do func(sink runtime.Option) (*runtime.Report, error)) error {
	return a.watch(g, model, journal, asJSON, func(sink runtime.Sink) (*runtime.Report, error) { return do(runtime.WithSink(sink)) })
}

// watch is show for runs that take no options.
func (a *app) watch(g *lang.Graph, model backend.Info, journal string, asJSON bool, do func(sink runtime.Sink) (*runtime.Report, error)) error {
	if note := templateNote(model.Template); note != "" && !asJSON {
		fmt.Fprintln(a.errOut, note)
	}
	v := newView(a.errOut, g, model.Model, asJSON)
	report, err := do(v)
	v.close()
	if err != nil {
		if n := v.count(); report != nil && n > 0 && !asJSON {
			fmt.Fprintf(a.errOut, "nodes finished before it ended: %d; %s tokens computed, %s reused\n",
				n, thousands(report.Usage.ComputedTokens), thousands(report.Usage.CachedTokens))
		}
		if journal != "" && report != nil && (errors.Is(err, context.Canceled) || errors.Is(err, runtime.ErrBudget)) {
			return fmt.Errorf("%w; what was finished is kept: coppice resume %s", err, journal)
		}
		return err
	}
	if asJSON {
		return a.printJSON(report)
	}
	return a.printReport(g, report)
}
