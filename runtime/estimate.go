package runtime

import (
	"context"
	"fmt"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
	"github.com/coppice-run/coppice/lang"
)

// estimator counts tokens for an explanation as a backend does.
type estimator struct {
	ctx   context.Context
	be    backend.Tokenizer
	vocab *grammar.Vocab
}

// vocabulary is a backend that tells the tokens which it generates.
type vocabulary interface {
	Vocab() (*grammar.Vocab, error)
}

// NewEstimator returns what [lang.Explain] counts tokens with to foresee what a run on
// the backend will measure. The error is backend.ErrUnsupported for one that does not
// show its tokens, as servers do not: there texts are reckoned by their length. ctx
// bounds the compiling of grammars, for as long as the estimator is used.
func NewEstimator(ctx context.Context, be backend.Backend) (lang.Estimator, error) {
	t, shows := be.(backend.Tokenizer)
	v, tells := be.(vocabulary)
	if !shows || !tells {
		return nil, fmt.Errorf("%s shows no token ids: %w", be.Info().Model, backend.ErrUnsupported)
	}
	vocab, err := v.Vocab()
	if err != nil {
		return nil, err
	}
	return &estimator{ctx, t, vocab}, nil
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
