package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

func (a *app) explainCmd() *cobra.Command {
	var (
		m      modelFlags
		in     inputFlags
		asJSON bool
		fix    bool
	)
	c := &cobra.Command{
		Use:   "explain PROGRAM",
		Short: "Say what a program will cost, before any call",
		Long: `Say what a program will cost before any call: the trunk that all branches share,
the branches, what will be computed and what reused, what a schema forces, and
layouts that break reuse. Inputs that are not given make ranges. A program that
the model cannot run is refused as 'coppice run' refuses it.

What the same would cost without sharing is reckoned for calls that know nothing
of each other: each computes its whole prompt, and a select is one call for each
of its options. Tokens are counted with the model's tokenizer; a remote engine's are reckoned
from the lengths of texts.

With --fix the program is printed as YAML with a layout that shares more: text that
is the same in every run (or branch) stands before text that is not. What was
moved, what it saves and what is left is said in comments above it. Every request has
the same texts in its context, in another order; read the result before you use it.`,
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
			o := lang.ExplainOptions{Inputs: inputs, Remote: m.backend != ""}
			if m.backend == "" {
				be, err := m.open(cmd.Context())
				if err != nil {
					return err
				}
				defer be.Close()
				if err := runtime.CanRun(cmd.Context(), g, be); err != nil {
					return err
				}
				o.Context = be.Info().ContextLength
				est, err := runtime.NewEstimator(cmd.Context(), be)
				if err != nil {
					return err
				}
				o.Estimator = est
			}
			if fix {
				return a.printFix(g, o, asJSON)
			}
			x, err := lang.Explain(g, o)
			if err != nil {
				return usageError{err}
			}
			var missing lang.Errors
			errors.As(g.Link(funcs), &missing)
			for _, e := range missing {
				x.Notes = append(x.Notes, "this command cannot run it: "+e.Error())
			}
			if asJSON {
				return a.printJSON(x)
			}
			_, err = fmt.Fprint(a.out, noControls(x.String()))
			return err
		},
	}
	m.register(c)
	in.register(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&fix, "fix", false, "print the program with a layout that shares more")
	return c
}

// printFix prints a program with a better layout, with what was done in comments.
func (a *app) printFix(g *lang.Graph, o lang.ExplainOptions, asJSON bool) error {
	r, err := lang.Fix(g, o)
	if err != nil {
		return usageError{err}
	}
	if asJSON {
		return a.printJSON(r)
	}
	doc, err := r.Graph.YAML()
	if err != nil {
		return err
	}
	for line := range strings.Lines(r.String()) {
		if _, err := fmt.Fprint(a.out, "# ", line); err != nil {
			return err
		}
	}
	_, err = a.out.Write(doc)
	return err
}
