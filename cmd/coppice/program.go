package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/examples/triage"
	"github.com/coppice-run/coppice/lang"
)

// examples are the programs that this binary carries.
var examples = map[string]func() (*lang.Graph, lang.Funcs, error){
	"triage": example(triage.Program),
}

func example[T any](d *lang.Def[T]) func() (*lang.Graph, lang.Funcs, error) {
	return func() (*lang.Graph, lang.Funcs, error) {
		g, err := d.Compile()
		if err != nil {
			return nil, nil, err
		}
		return g, d.Funcs(), nil
	}
}

// loadProgram reads a program file, or takes a built-in example by name.
func loadProgram(name string) (*lang.Graph, lang.Funcs, error) {
	if load, ok := examples[name]; ok {
		return load()
	}
	g, err := lang.Load(name)
	if errors.Is(err, fs.ErrNotExist) && filepath.Ext(name) == "" {
		var names []string
		for n := range examples {
			names = append(names, n)
		}
		slices.Sort(names)
		return nil, nil, usagef("no program %q: give a .yaml or .json file, or a built-in example (%s)", name, strings.Join(names, ", "))
	}
	if err != nil {
		return nil, nil, usageError{err}
	}
	return g, nil, nil
}

// inputFlags are --input and --inputs.
type inputFlags struct {
	pairs []string
	file  string
}

func (f *inputFlags) register(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.pairs, "input", nil, "input of the program as k=v, or k=@FILE for a file's text; repeatable")
	c.Flags().StringVar(&f.file, "inputs", "", "inputs as a JSON object in this file; --input wins")
}

func (f *inputFlags) args() (lang.Args, error) {
	args := lang.Args{}
	if f.file != "" {
		data, err := os.ReadFile(f.file)
		if err != nil {
			return nil, usageError{err}
		}
		if err := json.Unmarshal(data, &args); err != nil {
			return nil, usagef("%s: the inputs must be one JSON object: %w", f.file, err)
		}
	}
	for _, p := range f.pairs {
		k, v, ok := strings.Cut(p, "=")
		if !ok || k == "" {
			return nil, usagef("--input %q: write it as name=value", p)
		}
		if path, isFile := strings.CutPrefix(v, "@"); isFile {
			data, err := os.ReadFile(path)
			if err != nil {
				return nil, usageError{fmt.Errorf("--input %s: %w", k, err)}
			}
			v = string(data)
		}
		args[k] = v
	}
	return args, nil
}
