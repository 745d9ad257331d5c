package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/open"
	"github.com/coppice-run/coppice/grammar"
)

// jumpPrompts are put before each schema of --schemas.
var jumpPrompts = []string{
	"Write JSON that fits the schema.",
	"Pods restart since noon and the node is low on memory. Fill in the form.",
	"Grüße, 世界: invent an example with many details, as JSON.",
	"Answer briefly.",
}

const jumpManyTokens = 60 // of one text at most

// manyCounts is what texts of many schemas say together.
type manyCounts struct {
	schemas, refused, texts       int
	tokens, forced, noChoice      int
	passesOn, passesOff, passesUp int
}

// jumpMany writes schemas of --jsonl with each of some prompts: as usual,
// without jump-forward, and with guesses and choices computed ahead. It fails
// if text, tokens or end of any differ.
func jumpMany(ctx context.Context, o *benchOptions, be backend.Backend) ([]benchRow, error) {
	g := &o.grammar
	if g.jsonl == "" || g.prompts < 1 || g.prompts > len(jumpPrompts) {
		return nil, usagef("--schemas needs --jsonl and 1 to %d --prompts", len(jumpPrompts))
	}
	in, err := openLines(g.jsonl)
	if err != nil {
		return nil, err
	}
	schemas, err := someSchemas(in, g.schemas)
	in.Close()
	if err != nil {
		return nil, err
	}
	ahead := be
	if o.backend == "" {
		u, err := o.url()
		if err != nil {
			return nil, err
		}
		opts := o.options()
		opts.Engine.Drafts, opts.Engine.Choices = defaultDrafts, benchChoices
		if ahead, err = open.Backend(ctx, u, opts); err != nil {
			return nil, err
		}
		defer ahead.Close()
	}
	var n manyCounts
	for _, s := range schemas {
		n.schemas++
		for _, p := range jumpPrompts[:g.prompts] {
			err := n.write(ctx, be, ahead, p, s)
			if errors.Is(err, backend.ErrUnsupported) || errors.Is(err, backend.ErrInvalid) {
				n.refused++
				break
			}
			if err != nil {
				return n.rows(), err
			}
		}
	}
	return n.rows(), nil
}

// write compares the texts of one schema and prompt.
func (n *manyCounts) write(ctx context.Context, be, ahead backend.Backend, prompt string, schema []byte) error {
	req := backend.Request{
		ID:         "jump",
		Turns:      []backend.Turn{{Role: backend.User, Parts: []backend.Part{{Text: prompt}}}},
		MaxTokens:  jumpManyTokens,
		Constraint: backend.Constraint{JSONSchema: schema},
	}
	on, err := be.Generate(ctx, &req, nil)
	if err != nil {
		return err
	}
	guessed, err := ahead.Generate(ctx, &req, nil)
	if err != nil {
		return err
	}
	req.NoJump = true
	var pieces []piece
	off, err := be.Generate(ctx, &req, collect(&pieces))
	if err != nil {
		return err
	}
	for what, r := range map[string]*backend.Result{"jump-forward": on, "computing ahead": guessed} {
		if r.Part.Text != off.Part.Text || !slices.Equal(r.Part.Tokens, off.Part.Tokens) || r.Finish != off.Finish {
			return fmt.Errorf("%s changed the output of schema %s behind %q:\n%q %v %s\n%q %v %s", what, schema, prompt,
				r.Part.Text, r.Part.Tokens, r.Finish, off.Part.Text, off.Part.Tokens, off.Finish)
		}
	}
	bound, err := withoutChoice(ctx, schema, pieces)
	if err != nil {
		return err
	}
	n.texts++
	n.tokens += on.Usage.SampledTokens + on.Usage.ForcedTokens
	n.forced += on.Usage.ForcedTokens
	n.noChoice += bound
	n.passesOn += countPasses(on.Usage.Passes)
	n.passesOff += countPasses(off.Usage.Passes)
	n.passesUp += countPasses(guessed.Usage.Passes)
	return nil
}

func (n *manyCounts) rows() []benchRow {
	if n.texts == 0 {
		return nil
	}
	share := func(x int) *float64 { return ptr(float64(x) / float64(max(n.tokens, 1))) }
	return []benchRow{
		{What: "schemas, each with all prompts", Value: float64(n.schemas - n.refused), Unit: "schemas"},
		{What: "schemas refused", Value: float64(n.refused), Unit: "schemas"},
		{What: "texts that are the same with and without", Value: float64(n.texts), Unit: "texts"},
		{What: "their tokens", Value: float64(n.tokens), Unit: "tokens"},
		{What: "of them forced (ratio: share)", Value: float64(n.forced), Unit: "tokens", Ratio: share(n.forced)},
		{What: "of them without a choice, however they are cut (ratio: share)", Value: float64(n.noChoice), Unit: "tokens", Ratio: share(n.noChoice)},
		{What: "their passes without jump-forward", Value: float64(n.passesOff), Unit: "passes"},
		{What: "with (ratio: fewer by)", Value: float64(n.passesOn), Unit: "passes", Ratio: ptr(float64(n.passesOff) / float64(max(n.passesOn, 1)))},
		{What: "with guesses and choices ahead (ratio: fewer by)", Value: float64(n.passesUp), Unit: "passes", Ratio: ptr(float64(n.passesOff) / float64(max(n.passesUp, 1)))},
	}
}

// someSchemas is n schemas of lines {"set","schema"}, of all sets in turn.
func someSchemas(in io.Reader, n int) ([][]byte, error) {
	bySet := map[string][][]byte{}
	var sets []string
	sc := bufio.NewReaderSize(in, 1<<20)
	for line := 1; ; line++ {
		text, err := sc.ReadBytes('\n')
		if len(strings.TrimSpace(string(text))) > 0 {
			var l struct {
				Set    string          `json:"set"`
				Schema json.RawMessage `json:"schema"`
			}
			if err := json.Unmarshal(text, &l); err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			if bySet[l.Set] == nil {
				sets = append(sets, l.Set)
			}
			bySet[l.Set] = append(bySet[l.Set], l.Schema)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(sets)
	var out [][]byte
	for more := true; more; {
		more = false
		for _, s := range sets {
			if list := bySet[s]; len(list) > 0 && len(out) < n {
				out, bySet[s], more = append(out, list[0]), list[1:], true
			}
		}
	}
	return out, nil
}

// piece is what a generation streamed at once.
type piece struct {
	text   string
	tokens int
}

// collect is a receiver of a stream that keeps its pieces; tokens that end
// within a character belong to the piece that ends it.
func collect(pieces *[]piece) func(backend.Delta) {
	open := 0
	return func(d backend.Delta) {
		open += len(d.Tokens)
		if d.Text != "" {
			*pieces = append(*pieces, piece{d.Text, open})
			open = 0
		}
	}
}

// withoutChoice is how many tokens of a text hold nothing but what the schema
// leaves no choice in where they begin. No way to cut the text into the same
// tokens can force more of them.
func withoutChoice(ctx context.Context, schema []byte, pieces []piece) (int, error) {
	g, err := grammar.Compile(ctx, grammar.Spec{JSONSchema: schema}, grammar.ByteVocab())
	if err != nil {
		return 0, err
	}
	n, s := 0, g.Start()
	for _, p := range pieces {
		if strings.HasPrefix(string(s.Forced()), p.text) {
			n += p.tokens
		}
		if s, err = s.AcceptBytes([]byte(p.text)); err != nil {
			return 0, fmt.Errorf("%q: %w", p.text, err)
		}
	}
	return n, nil
}
