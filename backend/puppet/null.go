package puppet

import (
	"context"

	"github.com/coppice-run/coppice/backend"
)

// Null answers every generation with the text "ok" and every score with the
// first option, at once and without looking at the request. It measures what a
// runtime costs by itself.
type Null struct{}

var nullTokens = Tokens("ok")

// Info implements backend.Backend.
func (Null) Info() backend.Info {
	return backend.Info{Model: "null", Fingerprint: "null-1", Capabilities: everything}
}

// Generate implements backend.Backend.
func (Null) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if emit != nil {
		emit(backend.Delta{Text: "ok", Tokens: nullTokens})
	}
	return &backend.Result{
		Part:   backend.Part{Text: "ok", Tokens: nullTokens, Model: "null-1"},
		Finish: backend.FinishStop,
	}, nil
}

// Score implements backend.Backend.
func (Null) Score(ctx context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	res := &backend.ScoreResult{Options: make([]backend.OptionScore, len(req.Options))}
	for i, o := range req.Options {
		res.Options[i] = backend.OptionScore{Part: backend.Part{Text: o}, Sum: -float64(i)}
	}
	return res, nil
}

// Close implements backend.Backend.
func (Null) Close() error { return nil }
