package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/tokenizer"
	"github.com/coppice-run/coppice/runtime"
)

// generated is the JSON of 'coppice generate'.
type generated struct {
	Text   string               `json:"text"`
	IDs    []backend.Token      `json:"ids"`
	Finish backend.FinishReason `json:"finish"`
	Usage  runtime.Usage        `json:"usage"`
}

func (a *app) generateCmd() *cobra.Command {
	var (
		m                modelFlags
		req              backend.Request
		prompt, schema   string
		system           string
		chatTurn, asJSON bool
	)
	c := &cobra.Command{
		Use:   "generate --prompt TEXT",
		Short: "Generate text from one prompt",
		Long: `Generate text from one prompt and print it as it comes.

The prompt is raw text in which the text of a control token is that token; with
--chat it is a user's message in the model's chat template.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if schema != "" {
				data, err := os.ReadFile(schema)
				if err != nil {
					return usageError{err}
				}
				req.Constraint.JSONSchema = data
			}
			be, err := m.open(cmd.Context())
			if err != nil {
				return err
			}
			defer be.Close()
			req.ID = "generate"
			if note := templateNote(be.Info().Template); note != "" && chatTurn && !asJSON {
				fmt.Fprintln(a.errOut, note)
			}
			switch {
			case chatTurn:
				if system != "" {
					req.Turns = append(req.Turns, backend.Turn{Role: backend.System, Parts: []backend.Part{{Text: system}}})
				}
				req.Turns = append(req.Turns, backend.Turn{Role: backend.User, Parts: []backend.Part{{Text: prompt}}})
			case m.backend != "":
				req.Turns = []backend.Turn{{Role: backend.Raw, Parts: []backend.Part{{Text: prompt}}}}
			default:
				part, err := m.rawPart(prompt, be.Info().Fingerprint)
				if err != nil {
					return err
				}
				req.Turns = []backend.Turn{{Role: backend.Raw, Parts: []backend.Part{part}}}
			}
			ctx, cancel := context.WithCancelCause(cmd.Context())
			defer cancel(nil)
			var emit func(backend.Delta)
			if !asJSON {
				emit = func(d backend.Delta) {
					if _, err := fmt.Fprint(a.out, a.harmless(d.Text)); err != nil {
						cancel(err) // nobody reads it any more
					}
				}
			}
			res, err := be.Generate(ctx, &req, emit)
			if err != nil && ctx.Err() != nil && cmd.Context().Err() == nil {
				return fmt.Errorf("writing the result: %w", context.Cause(ctx))
			}
			if err != nil {
				return err
			}
			if asJSON {
				ids := res.Part.Tokens
				if ids == nil {
					ids = []backend.Token{}
				}
				return a.printJSON(generated{res.Part.Text, ids, res.Finish, usageOf(res.Usage)})
			}
			fmt.Fprintln(a.out)
			u := res.Usage
			fmt.Fprintf(a.errOut, "%d tokens: %d sampled, %d forced; prompt %d, of it %d cached\n",
				u.SampledTokens+u.ForcedTokens, u.SampledTokens, u.ForcedTokens, u.PromptTokens, u.CachedTokens)
			return nil
		},
	}
	m.register(c)
	m.registerAhead(c)
	f := c.Flags()
	f.StringVar(&prompt, "prompt", "", "the prompt")
	f.BoolVar(&chatTurn, "chat", false, "the prompt is a user's message")
	f.StringVar(&system, "system", "", "system message before it (with --chat)")
	f.IntVar(&req.MaxTokens, "max-tokens", 128, "limit of generated tokens")
	f.StringVar(&schema, "json-schema", "", "the output is a JSON value of the schema in this file")
	f.StringVar(&req.Constraint.Regex, "regex", "", "the output matches this pattern")
	f.StringVar(&req.Constraint.EBNF, "ebnf", "", "the output is derived from this grammar")
	f.StringArrayVar(&req.Constraint.Choices, "choice", nil, "the output is one of these")
	f.StringArrayVar(&req.Stop, "stop", nil, "end at this text")
	f.BoolVar(&req.NoJump, "no-jump", false, "give every forced token a forward pass of its own")
	f.BoolVar(&req.IgnoreEOS, "ignore-eos", false, "go on after the end of the turn")
	f.Float64Var(&req.Sampling.Temperature, "temperature", 0, "0 is greedy")
	f.IntVar(&req.Sampling.TopK, "top-k", 0, "draw from the k likeliest tokens (0: all)")
	f.Float64Var(&req.Sampling.TopP, "top-p", 0, "draw from the likeliest tokens that hold this much probability (0: all)")
	f.Float64Var(&req.Sampling.MinP, "min-p", 0, "leave out tokens less likely than this part of the likeliest (0: none)")
	f.Uint64Var(&req.Sampling.Seed, "seed", 0, "seed of the sampler")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	c.MarkFlagsMutuallyExclusive("json-schema", "regex", "ebnf", "choice")
	_ = c.MarkFlagRequired("prompt")
	return c
}

// rawPart tokenises a prompt typed at a command line with the model's own
// tokenizer, control tokens included; a backend takes plain text of a program
// as plain text only.
func (m *modelFlags) rawPart(prompt, fingerprint string) (backend.Part, error) {
	f, err := m.openGGUF()
	if err != nil {
		return backend.Part{}, err
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		return backend.Part{}, err
	}
	return backend.Part{Text: prompt, Tokens: encodePrompt(tok, prompt), Model: fingerprint}, nil
}

// usageOf is a request's usage in the form of a run's.
func usageOf(u backend.Usage) runtime.Usage {
	return runtime.Usage{
		PromptTokens: u.PromptTokens, ComputedTokens: u.ComputedTokens, CachedTokens: u.CachedTokens,
		ForcedTokens: u.ForcedTokens, SampledTokens: u.SampledTokens,
		ForwardPasses: countPasses(u.Passes), Without: u.Without,
	}
}

// countPasses counts the forward passes of spans that do not overlap.
func countPasses(spans []backend.Span) (n int) {
	for _, s := range spans {
		n += int(s.To - s.From + 1)
	}
	return n
}
