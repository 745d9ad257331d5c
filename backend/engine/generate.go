package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/cache"
	"github.com/coppice-run/coppice/grammar"
)

var (
	_ backend.Backend   = (*Engine)(nil)
	_ backend.Tokenizer = (*Engine)(nil)

	_ backend.ConstraintChecker = (*Engine)(nil)
	_ backend.Foreseer          = (*Engine)(nil)
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
	g, s, err := e.submitGeneration(ctx, req, emit != nil)
	if err != nil {
		return nil, err
	}
	if s.left != nil {
		defer s.left.Store(true) // whoever panics in emit has left too
	}
	res, err := g.out.wait(ctx, emit)
	if err != nil && ctx.Err() != nil {
		err = ctxError(ctx)
	}
	return res, err
}

// recovered makes an error of a panic in the goroutine of a caller: it is that of one
// request.
func (e *Engine) recovered(id string, err *error) {
	if r := recover(); r != nil {
		e.cfg.Log.Error("engine: panic in a request", "request", id, "panic", r, "stack", stack())
		*err = fmt.Errorf("%w: internal error: %v", backend.ErrUnavailable, r)
	}
}

// submitGeneration hands a generation to the loop, unless it ends at once. The request
// is copied: the loop may look at it for a step after the caller has left.
func (e *Engine) submitGeneration(ctx context.Context, asked *backend.Request, listened bool) (_ *generation, _ *sequence, err error) {
	r := *asked
	req := &r
	defer e.recovered(req.ID, &err)
	if ctx.Err() != nil {
		return nil, nil, ctxError(ctx)
	}
	if err := e.checkRequest(req); err != nil {
		return nil, nil, err
	}
	p, err := e.compiler.compile(req.Turns, true)
	if err != nil {
		return nil, nil, err
	}
	if err := e.checkLength(len(p.ids)); err != nil {
		return nil, nil, err
	}
	patterns, err := backend.CompileStops(req.Tokens.StopRegex)
	if err != nil {
		return nil, nil, err
	}
	g := &generation{
		engine: e,
		req:    req,
		limit:  e.context - len(p.ids),
		sample: newSampler(req.Sampling, p.ids),
		stream: newStream(e.shown(req.ShowControl), req.Stop),
		out:    newOutput[*backend.Result](),
		drafts: drafts{cost: e.tokenCost(len(p.ids))},

		listened: listened,
	}
	if req.MaxTokens > 0 {
		g.limit = min(g.limit, req.MaxTokens)
	}
	var compiled *grammar.Grammar
	if !req.Constraint.IsZero() {
		if compiled, err = e.grammars.get(ctx, req.Constraint); err != nil {
			if ctx.Err() != nil {
				err = ctxError(ctx)
			}
			return nil, nil, err
		}
	}
	s := &sequence{
		id:       req.ID,
		ctx:      ctx,
		ns:       cache.Namespace{Model: e.cfg.Fingerprint, Salt: req.Salt},
		hints:    req.Hints,
		priority: req.Priority,
		task:     g,
		tokens:   p.ids,
		prompt:   len(p.ids),
	}
	g.stream.patterns = patterns
	g.rules = newTokenRules(&req.Tokens, e.cfg.Model.VocabSize(), e.end)
	g.begin(s, compiled)
	if g.finished && !g.draining() {
		g.finish(e, s, g.err)
	} else {
		g.send()
		if err := e.submit(s); err != nil {
			return nil, nil, err
		}
	}
	return g, s, nil
}

// shown is what tokens stand for in a text; control tokens for their names, if they
// are to be shown and the tokenizer knows them.
func (e *Engine) shown(control bool) func(backend.Token) []byte {
	names, ok := e.tok.(interface{ Text(backend.Token) string })
	if !control || !ok {
		return e.tok.Bytes
	}
	return func(t backend.Token) []byte {
		if e.tok.IsControl(t) {
			return []byte(names.Text(t))
		}
		return e.tok.Bytes(t)
	}
}

// begin starts the constraint, if there is one, and appends what it forces from
// the start, which goes with the prompt. It runs in the goroutine of the caller.
func (g *generation) begin(s *sequence, compiled *grammar.Grammar) {
	if compiled != nil {
		g.constrained, g.state, g.closing = true, compiled.Start(), g.req.CloseAtLimit
	}
	g.advance(s, 0)
	g.replay(s)
}

// replay appends what an earlier attempt generated, as if it had just been drawn.
// What does not fit, since the model or the request is another, is not used.
func (g *generation) replay(s *sequence) {
	// The log-probabilities of the earlier attempt are lost, and which of its tokens
	// closed the text is not known.
	if g.req.Logprobs || g.closing {
		return
	}
	for {
		made := s.tokens[s.prompt:]
		n := len(made)
		if g.finished || n >= len(g.req.Resume) || !slices.Equal(made, g.req.Resume[:n]) {
			return
		}
		t := g.req.Resume[n]
		if t < 0 || int(t) >= g.engine.cfg.Model.VocabSize() || g.engine.isEnd(t) || !g.rules.permits(t, made) {
			return
		}
		if g.constrained {
			if _, err := g.state.Accept(t); err != nil {
				return
			}
		}
		g.sampled++
		s.tokens = append(s.tokens, t)
		g.take(t, backend.Sampled)
		g.advance(s, 0)
	}
}

// CheckConstraint implements [backend.ConstraintChecker]. What it compiles is
// kept for the requests that follow.
func (e *Engine) CheckConstraint(ctx context.Context, c backend.Constraint) error {
	if c.IsZero() {
		return nil
	}
	if _, err := e.grammars.get(ctx, c); err != nil {
		if ctx.Err() != nil {
			err = ctxError(ctx)
		}
		return err
	}
	return nil
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
	if req.Top < 0 || req.Top > e.tok.Size() {
		return fmt.Errorf("%w: top is %d, the vocabulary has %d", backend.ErrInvalid, req.Top, e.tok.Size())
	}
	for i, stop := range req.Stop {
		if stop == "" {
			return fmt.Errorf("%w: stop string %d is empty", backend.ErrInvalid, i)
		}
	}
	if err := checkTokenRules(&req.Tokens, e.cfg.Model.VocabSize()); err != nil {
		return err
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
