package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/tokenizer"
	"github.com/coppice-run/coppice/grammar"
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
				est, err := newEstimator(cmd.Context(), be, &m)
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

// estimator counts tokens for an explanation with the model's own tokenizer.
type estimator struct {
	ctx   context.Context
	be    backend.Tokenizer
	vocab *grammar.Vocab
}

func newEstimator(ctx context.Context, be backend.Backend, m *modelFlags) (*estimator, error) {
	t, ok := be.(backend.Tokenizer)
	if !ok {
		return nil, fmt.Errorf("%s shows no token ids: %w", be.Info().Model, backend.ErrUnsupported)
	}
	vocab, err := modelVocab(m)
	if err != nil {
		return nil, err
	}
	return &estimator{ctx, t, vocab}, nil
}

// vocabOf is a tokenizer's vocabulary as package grammar takes it.
func vocabOf(tok *tokenizer.Tokenizer) (*grammar.Vocab, error) {
	tokens := make([][]byte, tok.Size())
	for i := range tokens {
		if id := tokenizer.Token(i); !tok.IsControl(id) {
			tokens[i] = append([]byte(nil), tok.Bytes(id)...)
		}
	}
	return grammar.NewVocab(tokens, grammar.VocabOptions{
		EndTokens: tok.EndTokens(),
		Encode:    func(text []byte) []int32 { return tok.Encode(string(text), false) },
	})
}

// Tokenize is the ids of a prompt.
func (e *estimator) Tokenize(turns []lang.Turn, open bool) ([]int32, error) {
	list := make([]backend.Turn, len(turns))
	for i, t := range turns {
		list[i] = backend.Turn{Role: backend.Role(t.Role), Open: t.Open}
		if t.Text != "" {
			list[i].Parts = []backend.Part{{Text: t.Text}}
		}
	}
	return e.be.Tokenize(list, open)
}

// Constrained says what is known of a constrained text: the tokens forced at
// its beginning at least, and how it looks.
func (e *estimator) Constrained(c lang.Constraint) (lang.Shape, error) {
	spec := grammar.Spec{JSONSchema: c.Schema, Regex: c.Regex, EBNF: c.EBNF}
	g, err := grammar.Compile(e.ctx, spec, e.vocab)
	if err != nil {
		return lang.Shape{}, err
	}
	first, next := g.Start().Jump()
	text, err := shapeOf(e.ctx, spec)
	if err != nil {
		return lang.Shape{}, err
	}
	if n := len(first); n > 0 && next.Done() { // nothing is left to choose
		return lang.Shape{Tokens: lang.Range{Min: n, Max: n}, Forced: lang.Range{Min: n, Max: n}, Text: text}, nil
	}
	return lang.Shape{
		Tokens: lang.Range{Min: len(first) + 1, Max: len(first) + 1, Open: true},
		Forced: lang.Range{Min: len(first), Max: len(first), Open: true},
		Text:   text,
	}, nil
}

// shapeOf draws a JSON text of the grammar along a shortest way from one forced
// stretch to the next, with … for what the model chooses. Only a schema's text is
// drawn: of what is forced after a choice, that is what stands between values.
func shapeOf(ctx context.Context, spec grammar.Spec) (string, error) {
	bytes := grammar.ByteVocab()
	g, err := grammar.Compile(ctx, spec, bytes)
	if err != nil {
		return "", err
	}
	const (
		maxText   = 2000 // bytes of the drawing
		maxStates = 4000 // looked at in one search
	)
	s := g.Start()
	forced := s.Forced()
	text := string(forced)
	if len(spec.JSONSchema) == 0 {
		return text + "…", nil
	}
	mask := make([]uint64, bytes.MaskWords())
	for len(text) < maxText {
		if s, err = s.AcceptBytes(forced); err != nil {
			return "", err
		}
		if s.Done() {
			return text, nil
		}
		way, next, ok := nextForced(s, mask, maxStates)
		if !ok {
			break
		}
		s, forced = next, next.Forced()
		after := string(way) + string(forced)
		text += "…" + after[max(strings.IndexAny(after, `",:}]`), 0):]
	}
	return text + "…", nil
}

// nextForced is the nearest state after s in which something is forced or the
// text is over, and the bytes that lead to it; breadth first.
func nextForced(s grammar.State, mask []uint64, limit int) (way []byte, next grammar.State, ok bool) {
	type place struct {
		grammar.State
		way []byte
	}
	queue := []place{{State: s}}
	seen := map[string]bool{string(s.Encode()): true}
	for len(queue) > 0 && len(seen) < limit {
		at := queue[0]
		queue = queue[1:]
		at.Mask(mask)
		for c := range 256 {
			if mask[c/64]>>(c%64)&1 == 0 {
				continue
			}
			next, err := at.AcceptBytes([]byte{byte(c)})
			if err != nil {
				continue
			}
			way := append(at.way[:len(at.way):len(at.way)], byte(c))
			if next.Done() || len(next.Forced()) > 1 {
				return way, next, true
			}
			if key := string(next.Encode()); !seen[key] {
				seen[key] = true
				queue = append(queue, place{next, way})
			}
		}
	}
	return nil, s, false
}
