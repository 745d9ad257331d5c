package grammarbench

import (
	"context"
	"fmt"
	"io"

	"github.com/coppice-run/coppice/grammar"
)

// ForcedCount is how many tokens the valid texts of one schema have, how many of
// them a plan of forced tokens gave, and how many that plan or
// [grammar.State.Likely]: those need no pass of their own in an engine that
// computes what is likely together with the token before it.
type ForcedCount struct {
	ID, Set                 string
	Texts                   int // that were accepted
	Tokens, Forced, Spelled int
}

// Forced reads lines as [Run] does and counts the forced tokens of the valid
// texts. Schemas that are refused have no count. It fails if a plan is not what
// the tokenizer makes of the whole text.
func Forced(ctx context.Context, jsonl io.Reader, tok *Tokenizer) ([]ForcedCount, error) {
	vocab, err := grammar.NewVocab(tok.Tokens, grammar.VocabOptions{EndTokens: tok.End, Encode: tok.Encode})
	if err != nil {
		return nil, err
	}
	var out []ForcedCount
	err = eachLine(jsonl, func(l *line) error {
		g, err := grammar.Compile(ctx, grammar.Spec{JSONSchema: l.Schema}, vocab)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return nil
		}
		r := &runner{rep: &Report{}, tok: tok, sets: map[string]*[4]int{}}
		for i, t := range l.Tests {
			text, err := grammar.Canonical(t.Data)
			if err != nil {
				return fmt.Errorf("%s, test %d: %w", l.ID, i, err)
			}
			if t.Valid && g.Match(text) {
				r.force(g, l.Set, tok.Encode(text), len(text))
			}
		}
		if r.rep.NonCanonical > 0 {
			return fmt.Errorf("%s: forced tokens that are not the tokenizer's own", l.ID)
		}
		out = append(out, ForcedCount{l.ID, l.Set, r.rep.Texts, r.total, r.forced, r.spelled})
		return nil
	})
	return out, err
}
