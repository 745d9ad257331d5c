package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/examples/triage"
	"github.com/coppice-run/coppice/grammar/grammarbench"
	"github.com/coppice-run/coppice/lang"
)

// benchJump writes the demo's verdict with and without jump-forward, and with
// choices and copied text computed ahead: the same bytes, fewer forward passes.
// With --schemas it writes many schemas on the model, see jumpMany; with --tokenizer it counts forced tokens with another vocabulary too.
func benchJump(_ *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	be, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	defer be.Close()
	g, err := triage.Program.Compile()
	if err != nil {
		return nil, err
	}
	var schema []byte
	g.Walk(func(n *lang.Node) bool {
		if n.Kind == lang.KindJSON {
			schema = n.JSON.Schema
		}
		return true
	})
	text := func(r backend.Role, s string) backend.Turn {
		return backend.Turn{Role: r, Parts: []backend.Part{{Text: s}}}
	}
	if o.grammar.schemas > 0 {
		return jumpMany(ctx, o, be)
	}
	var pieces []piece
	write := func(be backend.Backend, noJump bool) (*backend.Result, float64, error) {
		start := time.Now()
		pieces = nil
		r, err := be.Generate(ctx, &backend.Request{
			ID: "verdict",
			Turns: []backend.Turn{
				text(backend.System, triage.Runbook()),
				text(backend.User, "Alert: "+triage.DefaultAlert),
				text(backend.User, "Give the verdict as JSON."),
			},
			MaxTokens:  160,
			Constraint: backend.Constraint{JSONSchema: schema},
			NoJump:     noJump,
		}, collect(&pieces))
		return r, time.Since(start).Seconds(), err
	}
	if _, _, err := write(be, false); err != nil { // fill the cache
		return nil, err
	}
	var on, off []float64
	var a, b *backend.Result
	for range o.runs {
		var t float64
		if a, t, err = write(be, false); err != nil {
			return nil, err
		}
		on = append(on, t)
		if b, t, err = write(be, true); err != nil {
			return nil, err
		}
		off = append(off, t)
		if a.Part.Text != b.Part.Text {
			return nil, fmt.Errorf("jump-forward changed the output:\n%s\n%s", a.Part.Text, b.Part.Text)
		}
	}
	// The last one was without jump-forward: a piece is a token.
	noChoice, err := withoutChoice(ctx, schema, pieces)
	if err != nil {
		return nil, err
	}
	tokens := float64(a.Usage.SampledTokens + a.Usage.ForcedTokens)
	pOn, pOff := float64(countPasses(a.Usage.Passes)), float64(countPasses(b.Usage.Passes))
	rows := []benchRow{
		{What: "tokens of the verdict", Value: tokens, Unit: "tokens"},
		{What: "of them forced (ratio: share)", Value: float64(a.Usage.ForcedTokens), Unit: "tokens", Ratio: ptr(float64(a.Usage.ForcedTokens) / tokens)},
		{What: "of them without a choice, however they are cut (ratio: share)", Value: float64(noChoice), Unit: "tokens", Ratio: ptr(float64(noChoice) / tokens)},
		{What: "forward passes without jump-forward", Value: pOff, Unit: "passes"},
		{What: "forward passes with (ratio: fewer by)", Value: pOn, Unit: "passes", Ratio: ptr(pOff / pOn)},
		{What: "time without", Value: 1e3 * median(off), Unit: "ms"},
		{What: "time with (ratio: faster by)", Value: 1e3 * median(on), Unit: "ms", Ratio: ptr(median(off) / median(on))},
	}
	// Our own engine can also compute, in the pass before, what was written
	// after the same words before and what follows each option of a choice.
	for _, also := range []struct {
		what            string
		drafts, choices int
	}{
		{"guesses, as by default", defaultDrafts, 0},
		{"guesses and choices ahead", defaultDrafts, benchChoices},
	} {
		if o.backend != "" {
			break
		}
		u, err := o.url()
		if err != nil {
			return rows, err
		}
		opts := o.options()
		opts.Engine.Drafts, opts.Engine.Choices = also.drafts, also.choices
		ahead, err := open.Backend(ctx, u, opts)
		if err != nil {
			return rows, err
		}
		var times []float64
		var c *backend.Result
		for i := range o.runs + 1 { // the first fills the cache
			var t float64
			if c, t, err = write(ahead, false); err != nil {
				break
			}
			if i > 0 {
				times = append(times, t)
			}
			if a.Part.Text != c.Part.Text {
				err = fmt.Errorf("computing ahead changed the output:\n%s\n%s", a.Part.Text, c.Part.Text)
				break
			}
		}
		ahead.Close()
		if err != nil {
			return rows, err
		}
		pC := float64(countPasses(c.Usage.Passes))
		rows = append(rows,
			benchRow{What: "with " + also.what + ": forward passes (ratio: fewer by)", Value: pC, Unit: "passes", Ratio: ptr(pOff / pC)},
			benchRow{What: "with " + also.what + ": tokens without a pass of their own (ratio: share)", Value: tokens - pC, Unit: "tokens", Ratio: ptr((tokens - pC) / tokens)},
			benchRow{What: "with " + also.what + ": tokens computed", Value: float64(c.Usage.ComputedTokens), Unit: "tokens"},
			benchRow{What: "with " + also.what + ": time (ratio: faster by)", Value: 1e3 * median(times), Unit: "ms", Ratio: ptr(median(off) / median(times))},
		)
	}
	if o.backend == "" {
		more, err := o.guessRows(ctx)
		if rows = append(rows, more...); err != nil {
			return rows, err
		}
	}
	if o.grammar.tokenizer == "" {
		return rows, nil
	}
	more, err := jumpBeside(ctx, &o.grammar, schema, a.Part.Text)
	return append(rows, more...), err
}

const benchChoices = 48 // tokens for the options of one step

// jumpBeside counts the forced tokens of the verdict, and of the texts of
// --jsonl, with the vocabulary of --tokenizer, and what llguidance's
// fast-forward gives of the same texts, where both take them.
func jumpBeside(ctx context.Context, g *grammarBenchOptions, schema []byte, verdict string) ([]benchRow, error) {
	tok, err := g.readTokenizer()
	if err != nil {
		return nil, err
	}
	const verdictID = "verdict of triage"
	first, err := json.Marshal(map[string]any{"id": verdictID, "set": "", "schema": json.RawMessage(schema), "tests": []any{map[string]any{"valid": true, "data": json.RawMessage(verdict)}}})
	if err != nil {
		return nil, err
	}
	lines := append(first, '\n')
	if g.jsonl != "" {
		f, err := openLines(g.jsonl)
		if err != nil {
			return nil, err
		}
		rest, err := io.ReadAll(f)
		f.Close()
		if err != nil {
			return nil, err
		}
		lines = append(lines, rest...)
	}
	ours, err := grammarbench.Forced(ctx, bytes.NewReader(lines), tok)
	if err != nil {
		return nil, err
	}
	var theirs map[string]peerForced
	if g.runner != "" {
		if theirs, err = g.peerForced(ctx, lines); err != nil {
			return nil, fmt.Errorf("llguidance: %w", err)
		}
	}
	groups := []struct {
		what string
		in   func(c *grammarbench.ForcedCount) bool
	}{
		{"the verdict", func(c *grammarbench.ForcedCount) bool { return c.ID == verdictID }},
		{"tool calls of --jsonl", func(c *grammarbench.ForcedCount) bool { return isToolSet(c.Set) }},
		{"all of --jsonl", func(c *grammarbench.ForcedCount) bool { return c.ID != verdictID }},
	}
	var rows []benchRow
	for _, group := range groups {
		texts, tokens, forced, spelled, fast := 0, 0, 0, 0, 0
		for i := range ours {
			c := &ours[i]
			if !group.in(c) {
				continue
			}
			if g.runner != "" {
				t, ok := theirs[c.ID]
				if !ok || t.N != c.Texts || t.Tokens != c.Tokens {
					continue // refused by one of us
				}
				fast += t.Fast
			}
			texts, tokens, forced, spelled = texts+c.Texts, tokens+c.Tokens, forced+c.Forced, spelled+c.Spelled
		}
		if tokens == 0 {
			continue
		}
		for _, count := range []struct {
			what   string
			tokens int
		}{{"forced", forced}, {"forced, or likely and right", spelled}} {
			r := benchRow{What: fmt.Sprintf("%s, %s, %d texts of %d tokens: %s", filepath.Base(g.tokenizer), group.what, texts, tokens, count.what), Value: 100 * float64(count.tokens) / float64(tokens), Unit: "%"}
			if g.runner != "" {
				r.What += " (peer: llguidance)"
				r.Peer = ptr(100 * float64(fast) / float64(tokens))
				if fast > 0 {
					r.Ratio = ptr(float64(count.tokens) / float64(fast))
				}
			}
			rows = append(rows, r)
		}
	}
	return rows, nil
}

// isToolSet reports whether a set of schemas is one of tool calls.
func isToolSet(set string) bool {
	for _, s := range []string{"BFCL", "Glaive", "JME", "MCP"} {
		if strings.HasPrefix(set, s) {
			return true
		}
	}
	return false
}

// peerForced is what the runner counts over the texts of one schema: how many
// there were, their tokens, and those that fast-forward gave.
type peerForced struct {
	N      int `json:"n"`
	Tokens int `json:"tok"`
	Fast   int `json:"ff_tok"`
}

// peerForced lets the runner count, by schema.
func (g *grammarBenchOptions) peerForced(ctx context.Context, lines []byte) (map[string]peerForced, error) {
	dir, err := os.MkdirTemp("", "coppice-bench-jump-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	f, _, err := g.runPeer(ctx, dir, bytes.NewReader(lines), "llg:fixedws", "--ff", "--no-masks")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]peerForced{}
	for in := json.NewDecoder(f); ; {
		var l struct {
			ID string      `json:"id"`
			FF *peerForced `json:"ff"`
		}
		if err := in.Decode(&l); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, fmt.Errorf("what the runner wrote: %w", err)
		}
		if l.FF != nil {
			out[l.ID] = *l.FF
		}
	}
}
