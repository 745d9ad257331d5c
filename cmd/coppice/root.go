package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend"
)

// app is what every command shares: its streams. There is no global state.
type app struct {
	in     io.Reader
	out    io.Writer // results only
	errOut io.Writer // logs, progress, errors
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	results := &firstError{w: out}
	a := &app{in: in, out: results, errOut: errOut}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(results)
	root.SetErr(errOut)
	started := false
	wrap(root, &started)
	err := root.ExecuteContext(ctx)
	if err != nil && (!started || errors.Is(err, backend.ErrInvalid)) {
		err = usageError{err}
	}
	if err == nil {
		err = results.err
	}
	if err != nil {
		fmt.Fprintf(errOut, "coppice: %v\n", err)
	}
	return exitCode(ctx, err)
}

// firstError keeps the first error of a writer, so that a result that could not
// be written is a failure whatever printed it.
type firstError struct {
	w   io.Writer
	err error
}

func (f *firstError) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if f.err == nil && err != nil {
		f.err = fmt.Errorf("writing the result: %w", err)
	}
	return n, err
}

// wrap notes when a command's own work begins: errors before that are of the
// command line.
func wrap(c *cobra.Command, started *bool) {
	if work := c.RunE; work != nil {
		c.RunE = func(cmd *cobra.Command, args []string) error {
			*started = true
			return work(cmd, args)
		}
	}
	for _, sub := range c.Commands() {
		wrap(sub, started)
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "coppice",
		Short: "Run branching agent programs",
		Long: `coppice runs agent programs that branch: it computes a shared prompt once,
decodes all branches in one batch, jumps over forced text, and can stop and go
on at any point.

  coppice run triage                     the built-in example on the built-in model
  coppice run prog.yaml --input q=why    a program file
  coppice explain prog.yaml              what it will cost, before any call`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddGroup(
		&cobra.Group{ID: "program", Title: "Programs:"},
		&cobra.Group{ID: "model", Title: "Models:"},
		&cobra.Group{ID: "measure", Title: "Measure and check:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("program", a.runCmd(), a.resumeCmd(), a.explainCmd(), a.graphCmd(), a.journalCmd())
	add("model", a.serveCmd(), a.modelsCmd(), a.tokenizeCmd(), a.generateCmd(), a.logitsCmd())
	add("measure", a.benchCmd(), a.grammarCmd())
	root.AddCommand(a.versionCmd())
	return root
}

// exactly is cobra.ExactArgs with a message that names the arguments.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return usagef("%s takes %d argument(s) (%v), got %d; see %s --help",
			cmd.CommandPath(), len(names), names, len(args), cmd.CommandPath())
	}
}

// printJSON writes v as one document, keeping <, > and & as they are.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
