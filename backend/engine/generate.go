package engine

import (
	"context"
	"fmt"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/cache"
)

var (
	_ backend.Backend   = (*Engine)(nil)
	_ backend.Tokenizer = (*Engine)(nil)
)

// Generate implements [backend.Backend].
func (e *Engine) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	res, err := e.generate(ctx, req, emit)
	if err != nil {
		return nil, wrap(req.ID, err)
	}
	return res, nil
}

func (e *Engine) generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	if err := ctx.Err(); err != nil {
		return nil, ctxError(ctx)
	}
	if err := e.checkRequest(req); err != nil {
		return nil, err
	}
	p, err := e.compiler.compile(req.Turns, true)
	if err != nil {
		return nil, err
	}
	if err := e.checkLength(len(p.ids)); err != nil {
		return nil, err
	}
	g := &generation{
		engine: e,
		req:    req,
		limit:  e.context - len(p.ids),
		sample: newSampler(req.Sampling, p.ids),
		stream: newStream(e.tok.Bytes, req.Stop),
		out:    newOutput[*backend.Result](),

		listened: emit != nil,
	}
	if req.MaxTokens > 0 {
		g.limit = min(g.limit, req.MaxTokens)
	}
	if !req.Constraint.IsZero() {
		compiled, err := e.grammars.get(ctx, req.Constraint)
		if err != nil {
			if ctx.Err() != nil {
				err = ctxError(ctx)
			}
			return nil, err
		}
		g.constrained, g.state = true, compiled.Start()
	}
	s := &sequence{
		id:     req.ID,
		ctx:    ctx,
		ns:     cache.Namespace{Model: e.cfg.Fingerprint, Salt: req.Salt},
		hints:  req.Hints,
		task:   g,
		tokens: p.ids,
		prompt: len(p.ids),
	}
	g.advance(s, 0) // what is forced from the start goes with the prompt
	if g.finished && !g.draining() {
		g.finish(e, s, g.err)
	} else {
		g.send()
		if err := e.submit(s); err != nil {
			return nil, err
		}
	}
	res, err := g.out.wait(ctx, emit)
	if err != nil && ctx.Err() != nil {
		err = ctxError(ctx)
	}
	return res, err
}

// checkRequest reports the first field of a request that makes no sense.
func (e *Engine) checkRequest(req *backend.Request) error {
	switch {
	case req.MaxTokens < 0:
		return fmt.Errorf("%w: max_tokens is %d", backend.ErrInvalid, req.MaxTokens)
	case req.MinTokens < 0:
		return fmt.Errorf("%w: min_tokens is %d", backend.ErrInvalid, req.MinTokens)
	case req.MaxTokens > 0 && req.MinTokens > req.MaxTokens:
		return fmt.Errorf("%w: min_tokens %d is more than max_tokens %d", backend.ErrInvalid, req.MinTokens, req.MaxTokens)
	}
	for i, stop := range req.Stop {
		if stop == "" {
			return fmt.Errorf("%w: stop string %d is empty", backend.ErrInvalid, i)
		}
	}
	return checkSampling(&req.Sampling, e.cfg.Model.VocabSize())
}

// checkLength reports a prompt that leaves no room for a token.
func (e *Engine) checkLength(prompt int) error {
	if prompt < e.context {
		return nil
	}
	err := &backend.ContextLengthError{Prompt: prompt, Context: e.context}
	if have := e.cfg.Model.ContextLength(); e.context < have {
		return fmt.Errorf("%w (the model has %d, but the memory for keys and values holds no more: give the engine more)", err, have)
	}
	return err
}
