package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/grammar"
)

// grammarShowCmd draws the automaton of one grammar.
func (a *app) grammarShowCmd() *cobra.Command {
	var (
		schema, regex, ebnf, lark string
		choices                   []string
		anyOrder, mermaid, dot    bool
		indent, places            int
	)
	c := &cobra.Command{
		Use:   "show --schema F | --regex R | --ebnf F | --lark F | --choice A --choice B",
		Short: "Draw the automaton of a grammar",
		Long: `Draw the automaton of a grammar, breadth first from its start, as a Graphviz DOT
diagram or, with --mermaid, as a Mermaid one. A circle is a place, doubled where
the text may end; its number says how many readings of the text are followed at
once. An arrow is the bytes that lead on; a thick one is text that is forced.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if places < 1 {
				return usagef("--places is %d, it must be at least 1", places)
			}
			spec := grammar.Spec{Regex: regex, AnyOrder: anyOrder, Whitespace: grammar.Whitespace{Indent: indent}}
			if cmd.Flags().Changed("choice") {
				spec.Choices = choices
			}
			for _, f := range []struct {
				path string
				set  func(text []byte)
			}{
				{schema, func(t []byte) { spec.JSONSchema = t }},
				{ebnf, func(t []byte) { spec.EBNF = string(t) }},
				{lark, func(t []byte) { spec.Lark = string(t) }},
			} {
				if f.path == "" {
					continue
				}
				text, err := os.ReadFile(f.path)
				if err != nil {
					return usageError{err}
				}
				f.set(text)
			}
			g, err := grammar.Compile(cmd.Context(), spec, grammar.ByteVocab())
			if err != nil {
				return err
			}
			for _, n := range g.Notes() {
				fmt.Fprintln(cmd.ErrOrStderr(), "note:", n)
			}
			out := g.Dot(places)
			if mermaid {
				out = g.Mermaid(places)
			}
			_, err = fmt.Fprintln(a.out, strings.TrimSuffix(out, "\n"))
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&schema, "schema", "", "file of a JSON Schema")
	f.StringVar(&regex, "regex", "", "pattern that the whole text matches")
	f.StringVar(&ebnf, "ebnf", "", "file of a grammar in GBNF notation")
	f.StringVar(&lark, "lark", "", "file of a grammar in Lark notation")
	f.StringArrayVar(&choices, "choice", nil, "text to choose, once for each")
	f.BoolVar(&anyOrder, "any-order", false, "let properties come in any order")
	f.IntVar(&indent, "indent", 0, "write members on lines of their own, so many blanks deeper")
	f.IntVar(&places, "places", 60, "places to draw at most")
	f.BoolVar(&mermaid, "mermaid", false, "print a Mermaid diagram")
	f.BoolVar(&dot, "dot", false, "print a Graphviz DOT diagram (the default)")
	c.MarkFlagsOneRequired("schema", "regex", "ebnf", "lark", "choice")
	c.MarkFlagsMutuallyExclusive("schema", "regex", "ebnf", "lark", "choice")
	c.MarkFlagsMutuallyExclusive("mermaid", "dot")
	return c
}
