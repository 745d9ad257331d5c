package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/cache"
)

var _ backend.LogprobScorer = (*Engine)(nil)

// reading is the task of a sequence that is only read: nothing is generated.
// Its log-probabilities come from logits that are the same as those that a
// generation of the same tokens was drawn from.
type reading struct {
	req *backend.LogprobRequest
	res backend.LogprobResult
	out *output[*backend.LogprobResult]
}

// Logprobs implements [backend.LogprobScorer].
func (e *Engine) Logprobs(ctx context.Context, req *backend.LogprobRequest) (*backend.LogprobResult, error) {
	res, err := e.read(ctx, req)
	if err != nil {
		return nil, wrap(req.ID, err)
	}
	return res, nil
}

func (e *Engine) read(ctx context.Context, req *backend.LogprobRequest) (*backend.LogprobResult, error) {
	r, err := e.submitReading(ctx, req)
	if err != nil {
		return nil, err
	}
	res, err := r.out.wait(ctx, nil)
	if err != nil && ctx.Err() != nil {
		err = ctxError(ctx)
	}
	return res, err
}

// submitReading hands a copy of the request to the loop.
func (e *Engine) submitReading(ctx context.Context, asked *backend.LogprobRequest) (_ *reading, err error) {
	q := *asked
	req := &q
	defer e.recovered(req.ID, &err)
	n := len(req.Tokens)
	switch {
	case ctx.Err() != nil:
		return nil, ctxError(ctx)
	case n == 0:
		return nil, fmt.Errorf("%w: no tokens", backend.ErrInvalid)
	case req.From < 1 || req.From > n:
		return nil, fmt.Errorf("%w: from is %d, of %d tokens", backend.ErrInvalid, req.From, n)
	case req.Top < 0 || req.Top > e.tok.Size():
		return nil, fmt.Errorf("%w: top is %d, the vocabulary has %d", backend.ErrInvalid, req.Top, e.tok.Size())
	case n > e.context:
		return nil, &backend.ContextLengthError{Prompt: n, Context: e.context}
	}
	for _, list := range [...][]backend.Token{req.Tokens, req.Next} {
		for _, t := range list {
			if t < 0 || int(t) >= e.tok.Size() {
				return nil, fmt.Errorf("%w: token %d, the vocabulary has %d", backend.ErrInvalid, t, e.tok.Size())
			}
		}
	}
	r := &reading{req: req, out: newOutput[*backend.LogprobResult]()}
	s := &sequence{
		id:     req.ID,
		ctx:    ctx,
		ns:     cache.Namespace{Model: e.cfg.Fingerprint, Salt: req.Salt},
		task:   r,
		tokens: slices.Clone(req.Tokens),
		prompt: n,
	}
	return r, e.submit(s)
}

// from moves on as logits come: a sequence that is preempted reads no place
// twice.
func (r *reading) from(*sequence) int { return r.req.From - 1 + len(r.res.Logprobs) }

func (r *reading) wants(s *sequence, pos int) bool { return pos >= r.from(s) }

func (r *reading) logits(e *Engine, s *sequence, pos int, logits []float32) {
	if next := pos + 1; next < len(s.tokens) {
		lse := logSumExp(logits)
		lp := float64(logits[s.tokens[next]]) - lse
		if lp != lp {
			e.sched.remove(s)
			e.finish(s, errNaN)
			return
		}
		r.res.Logprobs = append(r.res.Logprobs, lp)
		if r.req.Top > 0 {
			r.res.Top = append(r.res.Top, top(logits[:e.tok.Size()], r.req.Top, lse))
		}
		return
	}
	var err error
	if len(r.req.Next) > 0 {
		lse := logSumExp(logits)
		r.res.Next = make([]float64, len(r.req.Next))
		for i, t := range r.req.Next {
			if r.res.Next[i] = float64(logits[t]) - lse; r.res.Next[i] != r.res.Next[i] {
				err = errNaN
			}
		}
	}
	e.sched.remove(s)
	e.finish(s, err)
}

func (r *reading) finish(_ *Engine, s *sequence, err error) {
	if err != nil {
		r.out.finish(nil, err)
		return
	}
	r.res.Usage = backend.Usage{
		PromptTokens:   s.prompt,
		CachedTokens:   s.usage.cached,
		ComputedTokens: s.usage.computed,
		Passes:         s.usage.passes,
		Without:        backend.Cost{ComputedTokens: s.prompt, ForwardPasses: 1},
	}
	r.out.finish(&r.res, nil)
}

// top returns the n likeliest tokens, of those that tie the one with the lower
// id first.
func top(logits []float32, n int, lse float64) []backend.TokenLogprob {
	out := make([]backend.TokenLogprob, 0, n+1)
	for i, l := range logits {
		lp := float64(l) - lse
		if len(out) == n && !(lp > out[n-1].Logprob) {
			continue
		}
		at := len(out)
		for at > 0 && lp > out[at-1].Logprob {
			at--
		}
		out = slices.Insert(out, at, backend.TokenLogprob{Token: backend.Token(i), Logprob: lp})
		out = out[:min(len(out), n)]
	}
	return out
}
