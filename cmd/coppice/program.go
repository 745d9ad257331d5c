package main

import (
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
	texts []string
	file  string
}

func (f *inputFlags) register(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.pairs, "input", nil, "input of the program as k=v; repeatable; v is JSON where the program wants no string")
	c.Flags().StringArrayVar(&f.texts, "input-file", nil, "input as k=FILE: the text of a file; repeatable")
	c.Flags().StringVar(&f.file, "inputs", "", "inputs as a JSON object in this file; --input wins")
}

// args are the inputs for g. A value is text if its input is a string, otherwise JSON;
// of an input of any type it is JSON if it can be read so.
func (f *inputFlags) args(g *lang.Graph) (lang.Args, error) {
	loose := map[string]bool{}
	for _, in := range g.Inputs {
		loose[in.Name] = in.Type.Kind == lang.TypeAny
	}
	args := lang.Args{}
	if f.file != "" {
		data, err := os.ReadFile(f.file)
		if err != nil {
			return nil, usageError{err}
		}
		v, err := lang.DecodeValue(data)
		given, ok := v.(map[string]any)
		if err == nil && !ok {
			err = errors.New("it is something else")
		}
		if err != nil {
			return nil, usagef("%s: the inputs must be one JSON object: %w", f.file, err)
		}
		args = given
	}
	seen := map[string]bool{}
	set := func(flag, pair string, value func(k, v string) (any, error)) error {
		k, text, ok := strings.Cut(pair, "=")
		if !ok || k == "" {
			return usagef("%s %q: write it as name=value", flag, pair)
		}
		if seen[k] {
			return usagef("%s %s: it is given twice", flag, k)
		}
		seen[k] = true
		v, err := value(k, text)
		if err != nil {
			return usageError{fmt.Errorf("%s %s: %w", flag, k, err)}
		}
		args[k] = v
		return nil
	}
	for _, p := range f.pairs {
		if err := set("--input", p, func(k, v string) (any, error) {
			if loose[k] {
				if x, err := lang.DecodeValue([]byte(v)); err == nil {
					return x, nil
				}
			}
			return v, nil
		}); err != nil {
			return nil, err
		}
	}
	for _, p := range f.texts {
		err := set("--input-file", p, func(_, path string) (any, error) {
			data, err := os.ReadFile(path)
			return string(data), err
		})
		if err != nil {
			return nil, err
		}
	}
	return args, nil
}
