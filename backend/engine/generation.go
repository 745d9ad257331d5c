package engine

import (
	"fmt"
	"math"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
)

// generation is the task of a sequence that grows token by token: it draws
// tokens, appends what the constraint forces, and ends.
type generation struct {
	engine *Engine
	req    *backend.Request
	limit  int // tokens to generate at most
	sample *sampler
	stream *stream
	out    *output[*backend.Result]
	// listened: somebody wants the text as it comes.
	listened bool

	drafts drafts
	rules  *tokenRules // nil without any

	constrained bool
	closing     bool // what is open is closed at the limit
	closed      int  // tokens written for that
	state       grammar.State
	ready       []uint64 // mask of state, if prepared
	prepared    bool

	logprobs []float64
	top      [][]backend.TokenLogprob // beside logprobs, if asked for
	told     int                      // tokens that were sent with theirs
	sampled  int
	forced   int
	ended    bool // an end token was drawn

	finished bool
	reason   backend.FinishReason
	stop     stopAt
	stopped  bool // by stop
	stopID   *backend.Token
	err      error
}

func (g *generation) generated() int { return g.sampled + g.forced }

// draining reports whether the generation is at its end but for the
// log-probabilities of tokens that were forced: those need a pass after all,
// one for all of them.
func (g *generation) draining() bool {
	return g.finished && g.err == nil && g.req.Logprobs && len(g.logprobs) < g.generated()
}

func (g *generation) from(s *sequence) int {
	if g.req.Logprobs {
		return s.prompt - 1 + len(g.logprobs)
	}
	return len(s.tokens) - 1 - g.drafts.n
}

func (g *generation) wants(s *sequence, pos int) bool {
	if pos == len(s.tokens)-1 {
		return !g.finished
	}
	return pos >= g.from(s)
}

// logits draws the token after pos if that is the last one that is certain, and
// else gives the log-probability of the token that is there.
func (g *generation) logits(e *Engine, s *sequence, pos int, logits []float32) {
	if g.drafts.void == e.pass && pos >= g.drafts.from {
		return
	}
	if pos < len(s.tokens)-1-g.drafts.n {
		if !g.req.Logprobs { // of a guess that forced text came after
			return
		}
		g.note(s.tokens[pos+1], logits, logSumExp(logits))
		if g.finished && !g.draining() {
			e.sched.remove(s)
			e.finish(s, nil)
		}
		return
	}
	if g.finished {
		return
	}
	t, err := g.draw(s, pos+1, logits)
	switch {
	case err != nil:
		g.err, g.finished = err, true
	case g.rules.stops(t):
		id := t
		g.ended, g.stopID = true, &id
		g.end(backend.FinishStop)
	case e.isEnd(t):
		g.ended = true
		g.end(backend.FinishStop)
	default:
		g.sampled++
		if !g.drafts.confirm(s, t, e.pass) {
			s.tokens = append(s.tokens, t)
		}
		g.take(t, backend.Sampled)
		g.advance(s, e.pass)
	}
	if g.finished {
		g.drafts.drop(s, e.pass)
		if !g.draining() {
			e.sched.remove(s)
			e.finish(s, g.err)
			return
		}
	} else if e.cfg.Drafts > 0 && len(e.sched.running) <= draftSeqs {
		var state *grammar.State
		if g.constrained && !g.req.NoJump && g.rules == nil {
			state = &g.state
		}
		g.drafts.propose(s, state, e.cfg.Drafts, g.limit-g.generated()-1)
	}
	g.send()
}

// note keeps the log-probability of a token, and the likeliest ones beside it, of
// the model's own logits.
func (g *generation) note(t backend.Token, logits []float32, lse float64) {
	g.logprobs = append(g.logprobs, float64(logits[t])-lse)
	if g.req.Top > 0 {
		g.top = append(g.top, top(logits[:g.engine.tok.Size()], g.req.Top, lse))
	}
}

// send hands on the text that is certain, if somebody listens. Tokens whose
// log-probabilities are wanted wait for them.
func (g *generation) send() {
	switch {
	case !g.listened:
	case g.req.Logprobs:
		g.tell(g.stream.takeFirst(len(g.logprobs)), g.logprobs, g.top)
	default:
		g.out.send(g.stream.take())
	}
}

// tell sends pieces with what is known of their tokens.
func (g *generation) tell(deltas []backend.Delta, logprobs []float64, top [][]backend.TokenLogprob) {
	for i := range deltas {
		d := &deltas[i]
		end := g.told + len(d.Tokens)
		if g.req.Logprobs {
			d.Logprobs = logprobs[g.told:end:end]
		}
		if top != nil {
			d.Top = top[g.told:end:end]
		}
		g.told = end
	}
	g.out.send(deltas)
}

// draw picks the token at position pos of s.
func (g *generation) draw(s *sequence, pos int, logits []float32) (backend.Token, error) {
	lse := 0.0
	if g.req.Logprobs {
		lse = logSumExp(logits)
	}
	var raw []float32
	if g.req.Logprobs {
		raw = append(g.engine.rawLogits[:0], logits...)
		g.engine.rawLogits = raw
	}
	var hidden []backend.Token
	early := g.generated() < g.req.MinTokens
	switch {
	case early:
		hidden = g.engine.end
	case g.req.IgnoreEOS:
		hidden = g.rules.ignored(g.engine.end)
	}
	var allowed []uint64
	if g.constrained {
		allowed = g.mask()
		hide(allowed, hidden)
	} else {
		for _, t := range hidden {
			logits[t] = float32(math.Inf(-1))
		}
	}
	if g.rules != nil {
		// What is behind pos are guesses.
		allowed = g.rules.apply(logits, allowed, g.engine.mask, s.tokens[s.prompt:pos], early)
		if !g.constrained && allowed != nil {
			hide(allowed, hidden)
		}
	}
	t, err := g.sample.pick(logits, allowed, pos)
	if err == errNoLegal && g.rules != nil {
		err = fmt.Errorf("%w: the rules about tokens leave none", backend.ErrInvalid)
	}
	if err != nil {
		return 0, fmt.Errorf("%w: after %d tokens", err, g.generated())
	}
	t = g.close(t, s.tokens[s.prompt:pos])
	if g.req.Logprobs && !g.engine.isEnd(t) && !g.rules.stops(t) {
		g.note(t, raw, lse)
	}
	return t, nil
}

// mask returns what the constraint allows next, in memory that the caller may
// change.
func (g *generation) mask() []uint64 {
	m := g.engine.mask
	if g.prepared {
		copy(m, g.ready)
	} else {
		g.state.Mask(m)
	}
	return m
}

// prepare computes the mask of the next draw before its logits are there.
func (g *generation) prepare() {
	if !g.constrained || g.finished || g.prepared {
		return
	}
	if g.ready == nil {
		g.ready = make([]uint64, len(g.engine.mask))
	}
	g.state.Mask(g.ready)
	g.prepared = true
}

// take adds a token to the output; it is in the sequence already.
func (g *generation) take(t backend.Token, origin backend.Origin) {
	g.sample.saw(t)
	if g.stop, g.stopped = g.stream.push(t, origin); g.stopped {
		g.end(backend.FinishStop)
	}
	if !g.constrained || g.finished {
		return
	}
	if origin == backend.Sampled {
		state, err := g.state.Accept(t)
		if err != nil {
			g.err, g.finished = fmt.Errorf("%w: the constraint refuses token %d that it allowed: %w", backend.ErrUnavailable, t, err), true
			return
		}
		g.state, g.prepared = state, false
	}
}

// advance appends what the constraint forces and ends the generation if it is
// complete or at its limit. It is also called before the sequence is the
// loop's, with pass 0.
func (g *generation) advance(s *sequence, pass uint64) {
	for !g.finished {
		if g.constrained && g.state.Done() {
			g.end(backend.FinishStop)
			return
		}
		if g.generated() >= g.limit {
			g.end(backend.FinishLength)
			return
		}
		if !g.constrained || g.req.NoJump || g.rules != nil {
			return
		}
		tokens, after := g.state.Jump()
		if len(tokens) == 0 {
			return
		}
		for _, t := range tokens {
			if g.generated() >= g.limit {
				g.end(backend.FinishLength)
				return
			}
			g.forced++
			g.drafts.certain(s, t, pass)
			if g.take(t, backend.Forced); g.finished {
				return
			}
		}
		g.state, g.prepared = after, false
	}
}

func (g *generation) end(reason backend.FinishReason) {
	if g.closed > 0 {
		reason = backend.FinishLength
	}
	g.finished, g.reason = true, reason
}

// finish ends the generation. The counters of the engine are the loop's: a
// generation that never got there calls it with its own goroutine and has none
// to add.
func (g *generation) finish(e *Engine, s *sequence, err error) {
	if err != nil {
		g.out.finish(nil, err)
		return
	}
	g.out.finish(g.result(s), nil)
}

// result closes the stream and says what the generation was and cost.
func (g *generation) result(s *sequence) *backend.Result {
	at := -1
	r := &backend.Result{Finish: g.reason, StopToken: g.stopID, Closed: g.closed}
	if g.reason == backend.FinishLength && (g.req.MaxTokens == 0 || g.limit < g.req.MaxTokens) {
		r.ContextFull = g.engine.context
	}
	if g.stopped {
		at, r.Matched = g.stop.at, g.stop.stop
	}
	e := g.stream.finish(at, func(text string) []backend.Token { return encodeText(g.engine.tok, text) })
	r.Part = backend.Part{Text: e.text, Tokens: e.tokens, Model: g.engine.cfg.Fingerprint}
	if len(e.tokens) == 0 {
		r.Part.Model = ""
	}
	if g.req.Logprobs {
		// A token that was cut keeps its log-probability on its first piece.
		known := min(len(g.logprobs), e.kept+1)
		r.Logprobs = make([]float64, len(e.tokens))
		copy(r.Logprobs, g.logprobs[:known])
		if g.req.Top > 0 {
			r.Top = make([][]backend.TokenLogprob, len(e.tokens))
			copy(r.Top, g.top[:known])
		}
	}
	if g.listened {
		g.tell(e.deltas, r.Logprobs, r.Top)
	}
	passes := g.generated()
	if g.ended {
		passes++
	}
	r.Usage = backend.Usage{
		PromptTokens:   s.prompt,
		CachedTokens:   s.usage.cached,
		ComputedTokens: s.usage.computed,
		ForcedTokens:   g.forced,
		SampledTokens:  g.sampled,
		Passes:         s.usage.passes,
		// The first pass computes the prompt, each other one the token before.
		Without: backend.Cost{ComputedTokens: s.prompt + max(passes-1, 0), ForwardPasses: passes},
	}
	return r
}
