package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build says what this binary was made from.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit"` // empty if unknown
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func buildInfo() build {
	b := build{Version: "devel", Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				b.Commit += "+changes"
			}
		}
	}
	return b
}

func (a *app) versionCmd() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  exactly(),
		RunE: func(*cobra.Command, []string) error {
			b := buildInfo()
			if asJSON {
				return a.printJSON(b)
			}
			fmt.Fprintf(a.out, "coppice %s %s %s %s/%s\n", b.Version, b.Commit, b.Go, b.OS, b.Arch)
			return nil
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}
