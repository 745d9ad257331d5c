package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/compute"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// app is what every command shares: its streams. There is no global state.
type app struct {
	in     io.Reader
	out    io.Writer // results only
	errOut io.Writer // logs, progress, errors
	screen bool      // out is a terminal
}

// run executes one command line and returns the exit code.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	results := &firstError{w: out}
	a := &app{in: in, out: results, errOut: errOut, screen: isTerminal(out)}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(results)
	root.SetErr(errOut)
	started := false
	wrap(root, &started)
	err := compute.CheckTier(os.Getenv("COPPICE_CPU"))
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err != nil && (!started || inputIsWrong(err)) {
		err = usageError{err}
	}
	if err == nil {
		err = results.err
	}
	if err != nil {
		fmt.Fprintf(errOut, "coppice: %s\n", noControls(err.Error()))
	}
	return exitCode(ctx, err)
}

// inputIsWrong reports whether an error is one of what a command was given, and
// so the same if it is given again: exit code 2.
func inputIsWrong(err error) bool {
	for _, e := range []error{
		backend.ErrInvalid, backend.ErrUnsupported,
		runtime.ErrJournalMismatch, runtime.ErrNoJournal, runtime.ErrJournalFormat, runtime.ErrNeedsScript,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	var program lang.Errors // it calls a function that is not here
	return errors.As(err, &program)
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
  coppice explain prog.yaml              what it will cost, before any call

The exit code is 0 if all went well, 1 if the work failed, 2 if the command or
what it was given is wrong, 130 if it was interrupted.`,
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
	add("program", a.runCmd(), a.resumeCmd(), a.batchCmd(), a.explainCmd(), a.graphCmd(), a.journalCmd(), a.workerCmd(), a.approveCmd(), a.cancelCmd())
	add("model", a.serveCmd(), a.modelsCmd(), a.devicesCmd(), a.pullCmd(), a.tokenizeCmd(), a.generateCmd(), a.logitsCmd())
	add("measure", a.benchCmd(), a.perplexityCmd(), a.grammarCmd())
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

// isTerminal reports whether w writes to a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// printJSON writes v as one document, keeping <, > and & as they are.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
