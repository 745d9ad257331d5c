package main

import (
	"fmt"

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
			info, err := runtime.ReadJournal(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(info)
			}
			h := info.Header
			fmt.Fprintf(a.out, "run %s of program %s (%s) on %s, begun %s\n", h.Run, h.Program, h.GraphHash, h.Model, h.Created.Format("2006-01-02 15:04:05"))
			fmt.Fprintf(a.out, "%d finished tasks\n", info.Results)
			for _, t := range info.Started {
				fmt.Fprintf(a.out, "call %s was started and has no result\n", t)
			}
			switch {
			case info.Error != "":
				fmt.Fprintf(a.out, "ended: %s\n", info.Error)
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
	return c
}
