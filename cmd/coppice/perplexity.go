package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/tokenizer"
	"github.com/coppice-run/coppice/examples/triage"
)

// perplexity is the JSON of 'coppice perplexity'.
type perplexity struct {
	Model   string `json:"model"`
	Tokens  int    `json:"tokens"`  // that were predicted
	Context int    `json:"context"` // tokens of a window
	KV      string `json:"kv"`      // how keys and values were held
	scored
	// Float32 is the same with attention in float32, if asked for; Off is how much
	// higher the perplexity is than that, as a part of it.
	Float32 *scored  `json:"float32_attention,omitempty"`
	Off     *float64 `json:"off,omitempty"`
	// BFloat16 and OffBFloat16 are the same for keys and values in bfloat16, where
	// KV is something else.
	BFloat16    *scored  `json:"bf16,omitempty"`
	OffBFloat16 *float64 `json:"off_bf16,omitempty"`
}

type scored struct {
	Perplexity float64 `json:"perplexity"`
	NLL        float64 `json:"nll"` // mean negative log-probability of a token, in nats
	Seconds    float64 `json:"seconds"`
}

func (a *app) perplexityCmd() *cobra.Command {
	var (
		m               modelFlags
		file            string
		window          int
		compare, asJSON bool
	)
	c := &cobra.Command{
		Use:   "perplexity",
		Short: "Measure how well a model predicts a text",
		Long: `Measure how well a model predicts a text: the built-in example's runbook, or a file.
The text is cut into windows; each token after the first of a window is predicted
from those before it in the window.

With --compare the same is computed with attention in float32, which is slow, to
tell what the rounding of keys, values and weights to bfloat16 costs; with --kv q8
too, what holding them in 8 bits costs beside both.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := m.compute()
			if err != nil {
				return err
			}
			text := triage.Runbook()
			if file != "" {
				data, err := os.ReadFile(file)
				if err != nil {
					return usageError{err}
				}
				text = string(data)
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
			ids := tok.Encode(text, false)
			if window < 2 || len(ids) < 2 {
				return usagef("a window of %d tokens on a text of %d: both must be at least 2", window, len(ids))
			}
			kv, err := model.ParseKVType(string(opts.KV))
			if err != nil {
				return err
			}
			r := perplexity{Model: f.Name(), Context: window, KV: string(kv)}
			if r.scored, r.Tokens, err = score(cmd.Context(), f, tok, ids, window, opts); err != nil {
				return err
			}
			beside := func(o model.Options) (*scored, *float64, error) {
				o.Threads = opts.Threads
				other, _, err := score(cmd.Context(), f, tok, ids, window, o)
				return &other, ptr(r.Perplexity/other.Perplexity - 1), err
			}
			if compare && kv != model.BFloat16 {
				if r.BFloat16, r.OffBFloat16, err = beside(model.Options{}); err != nil {
					return err
				}
			}
			if compare {
				if r.Float32, r.Off, err = beside(model.Options{Float32Attention: true}); err != nil {
					return err
				}
			}
			if asJSON {
				return a.printJSON(r)
			}
			fmt.Fprintf(a.out, "%s: perplexity %.4f over %d tokens in windows of %d, %.1f s\n", r.Model, r.Perplexity, r.Tokens, window, r.Seconds)
			if r.BFloat16 != nil {
				fmt.Fprintf(a.out, "with keys and values in bfloat16: %.4f, %.1f s; %s is %+.3f%% off\n", r.BFloat16.Perplexity, r.BFloat16.Seconds, kv, 100**r.OffBFloat16)
			}
			if r.Float32 != nil {
				fmt.Fprintf(a.out, "with attention in float32: %.4f, %.1f s; %s is %+.3f%% off\n", r.Float32.Perplexity, r.Float32.Seconds, kv, 100**r.Off)
			}
			return nil
		},
	}
	m.register(c)
	c.Flags().StringVar(&file, "file", "", "text to read (default: the built-in runbook)")
	c.Flags().IntVar(&window, "context", 512, "tokens of a window")
	c.Flags().BoolVar(&compare, "compare", false, "compare with attention in float32")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// score predicts the tokens of a text and returns how many.
func score(ctx context.Context, f *gguf.File, tok *tokenizer.Tokenizer, ids []tokenizer.Token, window int, o model.Options) (scored, int, error) {
	mod, err := model.Load(f, o)
	if err != nil {
		return scored{}, 0, err
	}
	defer mod.Close()
	cfg := mod.Config()
	window = min(window, cfg.ContextLength)
	pages := (window + model.PageSize - 1) / model.PageSize
	kv, err := mod.NewKV(pages)
	if err != nil {
		return scored{}, 0, err
	}
	defer kv.Close()
	table := make([]int32, pages)
	for i := range table {
		table[i] = int32(i)
	}
	const piece = 64 // tokens a step: each has logits of its own
	logits := make([][]float32, piece)
	for i := range logits {
		logits[i] = make([]float32, cfg.Vocab)
	}
	var bos []tokenizer.Token
	if id, ok := tok.BOS(); ok && tok.AddBOS() {
		bos = []tokenizer.Token{id}
	}
	start := time.Now()
	sum, n := 0.0, 0
	for len(ids) > 1 {
		take := min(window-len(bos), len(ids))
		tokens := append(bos[:len(bos):len(bos)], ids[:take]...)
		ids = ids[take:]
		for at := 0; at < len(tokens)-1; at += piece {
			if err := ctx.Err(); err != nil {
				return scored{}, 0, err
			}
			part := tokens[at:min(at+piece, len(tokens)-1)]
			row := model.Row{Tokens: part, Start: at, Pages: table}
			for i := range part {
				row.Outputs = append(row.Outputs, i)
			}
			if err := mod.Forward(kv, &model.Batch{Rows: []model.Row{row}}, logits[:len(part)]); err != nil {
				return scored{}, 0, err
			}
			for i := range part {
				sum += negLogProb(logits[i], tokens[at+i+1])
				n++
			}
		}
	}
	if n == 0 {
		return scored{}, 0, usagef("no window has a token to predict: give a larger --context")
	}
	nll := sum / float64(n)
	return scored{Perplexity: math.Exp(nll), NLL: nll, Seconds: time.Since(start).Seconds()}, n, nil
}

// negLogProb is the negative log-probability of a token, in nats.
func negLogProb(logits []float32, id tokenizer.Token) float64 {
	top := float64(logits[0])
	for _, v := range logits {
		top = max(top, float64(v))
	}
	sum := 0.0
	for _, v := range logits {
		sum += math.Exp(float64(v) - top)
	}
	return top + math.Log(sum) - float64(logits[id])
}
