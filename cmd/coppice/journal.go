package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/runtime"
)

func (a *app) journalCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "journal FILE",
		Short: "Show what a journal holds",
		Args:  exactly("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			info, err := readJournal(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(info)
			}
			h := info.Header
			fmt.Fprintf(a.out, "run %s of program %s (%s) on %s, begun %s\n", oneLine(h.Run), oneLine(h.Program), oneLine(h.GraphHash), oneLine(h.Model), h.Created.Format("2006-01-02 15:04:05"))
			fmt.Fprintf(a.out, "%d finished tasks\n", info.Results)
			for _, t := range info.Started {
				fmt.Fprintf(a.out, "call %s was started and has no result\n", oneLine(t))
			}
			switch {
			case info.Error != "":
				fmt.Fprintf(a.out, "ended: %s\n", oneLine(info.Error))
			case info.Ended:
				fmt.Fprintln(a.out, "ended")
			default:
				fmt.Fprintf(a.out, "not ended: coppice resume %s\n", args[0])
			}
			if info.Torn > 0 {
				fmt.Fprintf(a.out, "%d bytes at the end were not written completely and will be cut\n", info.Torn)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.AddCommand(a.settleCmd())
	return c
}

// readJournal is runtime.ReadJournal for a file named at a command line.
func readJournal(path string) (*runtime.JournalInfo, error) {
	info, err := runtime.ReadJournal(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("there is no journal %s: 'coppice run PROGRAM --journal %s' begins one", path, path)
	}
	return info, err
}

func (a *app) settleCmd() *cobra.Command {
	var (
		result string
		again  bool
	)
	c := &cobra.Command{
		Use:   "settle FILE TASK --result JSON | --again",
		Short: "Say what became of a call whose outcome is unknown",
		Long: `Say what became of a call whose outcome is unknown: it had begun when the process
died, and it is marked as one that must not be made twice. Look whether it
happened, then give its result, or have it made again. The run can then be
resumed.`,
		Args: exactly("FILE", "TASK"),
		RunE: func(cmd *cobra.Command, args []string) error {
			given := cmd.Flags().Changed("result")
			if given == again {
				return usagef("give --result JSON or --again")
			}
			s := runtime.Settlement{Again: again}
			if given {
				if !json.Valid([]byte(result)) {
					return usagef("--result %q is not JSON: a text needs quotes of its own, as in --result '\"done\"'", result)
				}
				s.Result = json.RawMessage(result)
			}
			if _, err := readJournal(args[0]); err != nil {
				return err
			}
			return runtime.Settle(args[0], args[1], s)
		},
	}
	c.Flags().StringVar(&result, "result", "", "the call happened and returned this JSON value")
	c.Flags().BoolVar(&again, "again", false, "the call did not happen: make it when the run goes on")
	return c
}
