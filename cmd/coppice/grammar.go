package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/tokenizer"
	"github.com/coppice-run/coppice/grammar"
	"github.com/coppice-run/coppice/grammar/grammarbench"
)

func (a *app) grammarCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "grammar",
		Short: "Check, time and draw grammars",
		Args:  exactly(),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.grammarCheckCmd(), a.grammarBenchCmd(), a.grammarShowCmd())
	return c
}

// openLines opens a file of JSON lines, which may be compressed with gzip.
func openLines(path string) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, usageError{err}
	}
	if !strings.HasSuffix(path, ".gz") {
		return f, nil
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		f.Close()
		return nil, usagef("%s: %w", path, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

func (a *app) grammarCheckCmd() *cobra.Command {
	var (
		jsonl, schema, instances string
		model                    string
		o                        grammar.CheckOptions
		asJSON                   bool
	)
	c := &cobra.Command{
		Use:   "check --jsonl F | --schema S --instances I",
		Short: "Compare what schemas accept with what tests say",
		Long: `Compare what schemas accept with what tests say.

F holds lines {"id","schema","tests":[{"valid","data"}]}, where a test may carry
"text", the exact JSON text, instead of "data". S is one schema and I lines of
such tests, or of values that it must accept. Files may end in .gz.

With --model every accepted text is also written token by token, as the model's
tokenizer writes it, each token out of the mask before it.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var in io.Reader
			switch {
			case jsonl != "" && schema == "" && instances == "":
				f, err := openLines(jsonl)
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			case jsonl == "" && schema != "" && instances != "":
				line, err := oneSchema(schema, instances)
				if err != nil {
					return err
				}
				in = bytes.NewReader(line)
			default:
				return usagef("give --jsonl F, or --schema S and --instances I")
			}
			if model != "" {
				vocab, err := modelVocab(&modelFlags{model: model})
				if err != nil {
					return err
				}
				o.Vocab = vocab
			}
			r, err := grammar.Check(cmd.Context(), in, o)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(r)
			}
			for _, f := range r.Failures {
				fmt.Fprintf(a.out, "%s test %v: %s at %v: %s\n", f.ID, f.Test, f.Kind, f.At, f.Why)
			}
			fmt.Fprintf(a.out, "%d schemas: %d all right, %d refused; %d wrong accepts, %d wrong rejects\n",
				r.Schemas, r.AllRight, r.Refused, r.WrongAccepts, r.WrongRejects)
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&jsonl, "jsonl", "", "schemas with their tests, one a line")
	f.StringVar(&schema, "schema", "", "one schema")
	f.StringVar(&instances, "instances", "", "its tests or values that it must accept, one a line")
	f.StringVar(&model, "model", "", "check tokens too: a .gguf file, a name from 'coppice models'")
	f.BoolVar(&o.AnyOrder, "any-order", false, "let properties come in any order")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// modelVocab is the vocabulary of a model file.
func modelVocab(m *modelFlags) (*grammar.Vocab, error) {
	f, err := m.openGGUF()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		return nil, err
	}
	return engine.NewVocab(tok, tok.EndTokens())
}

// oneSchema makes a line of --jsonl of a schema and its tests. A test may be a
// bare value, which is then one that must be accepted.
func oneSchema(schema, instances string) ([]byte, error) {
	s, err := os.ReadFile(schema)
	if err != nil {
		return nil, usageError{err}
	}
	if !json.Valid(s) {
		return nil, usagef("%s is not JSON", schema)
	}
	f, err := openLines(instances)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var tests []json.RawMessage
	dec := json.NewDecoder(f)
	for {
		var t json.RawMessage
		if err := dec.Decode(&t); err == io.EOF {
			break
		} else if err != nil {
			return nil, usagef("%s, test %d: %w", instances, len(tests)+1, err)
		}
		if len(tests) == 0 && bytes.HasPrefix(t, []byte("[")) {
			var list []json.RawMessage
			if err := json.Unmarshal(t, &list); err != nil {
				return nil, err
			}
			tests = list
			continue
		}
		tests = append(tests, t)
	}
	for i, t := range tests {
		var test struct {
			Valid      *bool
			Data, Text json.RawMessage
		}
		if json.Unmarshal(t, &test) != nil || test.Valid == nil || test.Data == nil && test.Text == nil {
			tests[i] = fmt.Appendf(nil, `{"valid":true,"data":%s}`, t)
		}
	}
	var b bytes.Buffer
	b.WriteString(`{"id":"schema","schema":`)
	if err := json.Compact(&b, s); err != nil {
		return nil, err
	}
	b.WriteString(`,"tests":[`)
	for i, t := range tests {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := json.Compact(&b, t); err != nil {
			return nil, err
		}
	}
	b.WriteString("]}\n")
	return b.Bytes(), nil
}

func (a *app) grammarBenchCmd() *cobra.Command {
	var (
		jsonl, tok string
		asJSON     bool
	)
	c := &cobra.Command{
		Use:   "bench --jsonl F --tokenizer tokenizer.json",
		Short: "Time compiling and masks over many schemas",
		Args:  exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			tf, err := os.Open(tok)
			if err != nil {
				return usageError{err}
			}
			defer tf.Close()
			t, err := grammarbench.ReadTokenizer(tf)
			if err != nil {
				return usagef("%s: %w", tok, err)
			}
			f, err := openLines(jsonl)
			if err != nil {
				return err
			}
			defer f.Close()
			r, err := grammarbench.Run(cmd.Context(), f, t)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(r)
			}
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', tabwriter.AlignRight)
			fmt.Fprintln(w, "us\tp50\tp90\tp99\tmax\t")
			for _, q := range []struct {
				what string
				q    grammarbench.Quantiles
			}{{"compile", r.CompileUS}, {"first mask", r.FirstMaskUS}, {"mask", r.MaskUS}, {"commit", r.CommitUS}} {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t\n", q.what, number(q.q.P50), number(q.q.P90), number(q.q.P99), number(q.q.Max))
			}
			if err := w.Flush(); err != nil {
				return err
			}
			fmt.Fprintf(a.out, "%d schemas, %d compiled; vocabulary of %d in %.0f ms; %.1f%% of tokens forced\n",
				r.Schemas, r.Compiled, r.Vocab, r.VocabMS, 100*r.ForcedShare)
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&jsonl, "jsonl", "", "schemas, one a line")
	f.StringVar(&tok, "tokenizer", "", "a tokenizer.json")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	_ = c.MarkFlagRequired("jsonl")
	_ = c.MarkFlagRequired("tokenizer")
	return c
}
