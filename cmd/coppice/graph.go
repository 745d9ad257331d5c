package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/lang"
)

func (a *app) graphCmd() *cobra.Command {
	var mermaid, dot, yaml bool
	c := &cobra.Command{
		Use:   "graph PROGRAM",
		Short: "Show a program as data or as a picture",
		Long:  "Check a program and print it: as JSON, or as asked for by a flag.",
		Args:  exactly("PROGRAM"),
		RunE: func(_ *cobra.Command, args []string) error {
			g, _, err := loadProgram(args[0])
			if err != nil {
				return err
			}
			var out []byte
			switch {
			case mermaid:
				out = []byte(lang.Mermaid(g))
			case dot:
				out = []byte(lang.DOT(g))
			case yaml:
				out, err = g.YAML()
			default:
				out, err = g.JSON()
			}
			if err != nil {
				return err
			}
			if n := len(out); n > 0 && out[n-1] != '\n' {
				out = append(out, '\n')
			}
			_, err = fmt.Fprint(a.out, a.harmless(string(out)))
			return err
		},
	}
	c.Flags().BoolVar(&mermaid, "mermaid", false, "print a Mermaid diagram")
	c.Flags().BoolVar(&dot, "dot", false, "print a Graphviz DOT diagram")
	c.Flags().BoolVar(&yaml, "yaml", false, "print YAML")
	c.Flags().Bool("json", true, "print JSON (the default)")
	c.MarkFlagsMutuallyExclusive("mermaid", "dot", "yaml")
	return c
}
