package main

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// tokenLogit is one candidate for the next token.
type tokenLogit struct {
	ID    tokenizer.Token `json:"id"`
	Logit float32         `json:"logit"`
	Text  string          `json:"text"`
}

func (a *app) logitsCmd() *cobra.Command {
	var (
		m      modelFlags
		prompt string
		top    int
		asJSON bool
	)
	c := &cobra.Command{
		Use:   "logits --prompt TEXT",
		Short: "Show the logits of the token after a prompt",
		Long: `Show the highest logits of the token after a prompt, as the model gives them:
one forward pass over the prompt, no sampling. The text of a control token
becomes that token; the beginning-of-text token is added if the model wants it.`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			if top < 1 {
				return usagef("--top is %d, it must be at least 1", top)
			}
			opts, err := m.compute()
			if err != nil {
				return err
			}
			f, err := m.openGGUF()
			if err != nil {
				return err
			}
			defer f.Close()
			tok, err := tokenizer.FromGGUF(f)
			if err != nil {
				return err
			}
			ids := encodePrompt(tok, prompt)
			logits, err := nextLogits(f, opts, ids)
			if err != nil {
				return err
			}
			order := make([]tokenLogit, len(logits))
			for i, v := range logits {
				order[i] = tokenLogit{ID: tokenizer.Token(i), Logit: v}
			}
			slices.SortFunc(order, func(x, y tokenLogit) int {
				return cmp.Or(cmp.Compare(y.Logit, x.Logit), cmp.Compare(x.ID, y.ID))
			})
			order = order[:min(top, len(order))]
			for i := range order {
				order[i].Text = tok.Text(order[i].ID)
			}
			if asJSON {
				return a.printJSON(struct {
					IDs []tokenizer.Token `json:"ids"`
					Top []tokenLogit      `json:"top"`
				}{ids, order})
			}
			for _, t := range order {
				fmt.Fprintf(a.out, "%7d  %10.5f  %q\n", t.ID, t.Logit, t.Text)
			}
			return nil
		},
	}
	m.register(c)
	c.Flags().StringVar(&prompt, "prompt", "", "the prompt")
	c.Flags().IntVar(&top, "top", 10, "how many logits to show")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	_ = c.MarkFlagRequired("prompt")
	return c
}

// encodePrompt tokenises a prompt typed at a command line.
func encodePrompt(tok *tokenizer.Tokenizer, text string) []tokenizer.Token {
	ids := tok.Encode(text, true)
	if bos, ok := tok.BOS(); ok && tok.AddBOS() && (len(ids) == 0 || ids[0] != bos) {
		ids = append([]tokenizer.Token{bos}, ids...)
	}
	return ids
}

// nextLogits runs one forward pass and returns the logits after the last token.
func nextLogits(f *gguf.File, opts model.Options, ids []tokenizer.Token) ([]float32, error) {
	if len(ids) == 0 {
		return nil, usagef("the prompt is empty: there is no token to go on from")
	}
	mod, err := model.Load(f, opts)
	if err != nil {
		return nil, err
	}
	defer mod.Close()
	cfg := mod.Config()
	if len(ids) > cfg.ContextLength {
		return nil, usagef("the prompt has %d tokens and the model's context holds %d", len(ids), cfg.ContextLength)
	}
	pages := (len(ids) + model.PageSize - 1) / model.PageSize
	kv, err := mod.NewKV(pages)
	if err != nil {
		return nil, err
	}
	defer kv.Close()
	table := make([]int32, pages)
	for i := range table {
		table[i] = int32(i)
	}
	logits := make([]float32, cfg.Vocab)
	batch := &model.Batch{Rows: []model.Row{{Tokens: ids, Pages: table, Outputs: []int{len(ids) - 1}}}}
	if err := mod.Forward(kv, batch, [][]float32{logits}); err != nil {
		return nil, err
	}
	return logits, nil
}
