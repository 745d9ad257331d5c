package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/tokenizer"
	"github.com/coppice-run/coppice/cache"
)

// scoring scores options after a prompt. The prompt is one sequence, whose last
// logits give the first token of every option; then the options that have more
// tokens are sequences of their own, which share the prompt and go through one
// pass together:
//
//	prompt ......... | common boundary
//	                 +-- " high"          no row: its logits are the prompt's
//	                 +-- " cri" "tical"   a row of one token
//	                 +-- " lo" "w" "er"   a row of two
//
// The boundary is where the options begin to differ from the prompt when prompt
// and option are tokenised as one text. If that is before the prompt's end
// (text "is ", option "high", tokens "is", " high"), all options are scored
// from there.
type scoring struct {
	trunk   *sequence
	options []scored
	prefix  int // length of the prompt up to the boundary
	cancel  context.CancelFunc
	out     *output[*backend.ScoreResult]
	left    int // rows not finished
	usage   usage
	healed  bool
	closed  bool
	model   string
}

// scored is one option.
type scored struct {
	text     string
	tokens   []backend.Token // from the boundary on, the end of the turn last if closed
	logprobs []float64
}

// scoreRow is the task of an option's sequence.
type scoreRow struct {
	*scoring
	option int
}

// Score implements [backend.Backend]. The rows of an option never depend on the
// others, so a score is the same whatever else is asked for.
//
// Where a boundary had to be moved into the prompt (see above), the ids of a
// part are those scored and cannot be appended to the prompt: its Model is
// empty, so that the text counts when the part is used.
func (e *Engine) Score(ctx context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	res, err := e.score(ctx, req)
	if err != nil {
		return nil, wrap(req.ID, err)
	}
	return res, nil
}

func (e *Engine) score(ctx context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	if ctx.Err() != nil {
		return nil, ctxError(ctx)
	}
	if err := checkOptions(req); err != nil {
		return nil, err
	}
	p, err := e.compiler.compile(req.Turns, true)
	if err != nil {
		return nil, err
	}
	sc := &scoring{out: newOutput[*backend.ScoreResult](), closed: req.Closed, model: e.cfg.Fingerprint}
	if err := sc.cut(e, p, req); err != nil {
		return nil, err
	}
	longest := 0
	for _, o := range sc.options {
		longest = max(longest, len(o.tokens))
	}
	if err := e.checkLength(sc.prefix + longest - 1); err != nil {
		return nil, err
	}
	rowCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	sc.cancel = cancel
	sc.trunk = &sequence{
		id:     req.ID,
		ctx:    rowCtx,
		ns:     cache.Namespace{Model: e.cfg.Fingerprint, Salt: req.Salt},
		hints:  req.Hints,
		task:   sc,
		tokens: p.ids[:sc.prefix:sc.prefix],
		prompt: sc.prefix,
	}
	if err := e.submit(sc.trunk); err != nil {
		return nil, err
	}
	res, err := sc.out.wait(ctx, nil)
	if err != nil && ctx.Err() != nil {
		err = ctxError(ctx)
	}
	return res, err
}

func checkOptions(req *backend.ScoreRequest) error {
	if len(req.Options) == 0 {
		return fmt.Errorf("%w: no options to score", backend.ErrInvalid)
	}
	seen := make(map[string]bool, len(req.Options))
	for _, o := range req.Options {
		switch {
		case seen[o]:
			return fmt.Errorf("%w: the option %q is there twice", backend.ErrInvalid, o)
		case o == "" && !req.Closed:
			return fmt.Errorf("%w: an empty option has no score unless the end of the turn is scored too", backend.ErrInvalid)
		}
		seen[o] = true
	}
	return nil
}

// cut finds the boundary and the tokens of the options after it.
func (sc *scoring) cut(e *Engine, p *prompt, req *backend.ScoreRequest) error {
	var end []backend.Token
	if req.Closed {
		id, err := e.turnEnd(p.close)
		if err != nil {
			return err
		}
		end = []backend.Token{id}
	}
	base := p.ids[:len(p.ids)-p.tail.ids]
	whole := make([][]backend.Token, len(req.Options)) // after base
	sc.prefix = len(p.ids)
	for i, o := range req.Options {
		whole[i] = e.compiler.encode(append(slices.Clone(p.tail.pieces), tokenizer.Piece{Text: o}), p.tail.middle)
		sc.prefix = min(sc.prefix, len(base)+commonPrefix(whole[i], p.ids[len(base):]))
	}
	sc.healed = sc.prefix < len(p.ids)
	if sc.prefix == 0 || p.tail.pieces == nil {
		// Nothing before the boundary could give the first logits.
		sc.prefix, sc.healed = len(p.ids), false
		base = p.ids
		for i, o := range req.Options {
			whole[i] = encodeText(e.tok, o)
		}
	}
	for i, o := range req.Options {
		tokens := append(slices.Clone(whole[i][sc.prefix-len(base):]), end...)
		sc.options = append(sc.options, scored{text: o, tokens: tokens, logprobs: make([]float64, len(tokens))})
	}
	return nil
}

// turnEnd is the token that ends a turn.
func (e *Engine) turnEnd(close []tokenizer.Piece) (backend.Token, error) {
	for _, id := range e.tok.EncodePieces(close) {
		if e.tok.IsControl(id) {
			return id, nil
		}
	}
	if id, ok := e.tok.EOS(); ok {
		return id, nil
	}
	if len(e.end) > 0 {
		return e.end[0], nil
	}
	return 0, fmt.Errorf("%w: the model has no token that ends a turn, so a closed option cannot be scored", backend.ErrUnsupported)
}

func (sc *scoring) from(s *sequence) int { return len(s.tokens) - 1 }

func (sc *scoring) wants(s *sequence, pos int) bool { return pos == len(s.tokens)-1 }

// logits is called once, after the prompt: it gives the first token of every
// option and starts the rows of the longer ones.
func (sc *scoring) logits(e *Engine, s *sequence, pos int, logits []float32) {
	lse := logSumExp(logits)
	for i := range sc.options {
		o := &sc.options[i]
		o.logprobs[0] = float64(logits[o.tokens[0]]) - lse
		if len(o.tokens) > 1 {
			sc.left++
		}
	}
	e.sched.remove(s)
	if err := finiteFirst(sc.options); err != nil {
		e.finish(s, err)
		return
	}
	for i, o := range sc.options {
		if len(o.tokens) == 1 {
			continue
		}
		row := &sequence{
			id: s.id, ctx: s.ctx, ns: s.ns, order: s.order,
			hints:  backend.Hints{Run: s.hints.Run, LastUse: s.hints.LastUse},
			task:   &scoreRow{sc, i},
			tokens: slices.Concat(s.tokens, o.tokens[:len(o.tokens)-1]),
			front:  true, child: true,
		}
		row.prompt = len(row.tokens)
		e.sched.enqueue(row)
	}
	e.finish(s, nil)
}

// finiteFirst reports logits that are not numbers.
func finiteFirst(options []scored) error {
	for _, o := range options {
		if o.logprobs[0] != o.logprobs[0] {
			return errNaN
		}
	}
	return nil
}

func (sc *scoring) finish(_ *Engine, s *sequence, err error) {
	sc.usage.computed += s.usage.computed
	sc.usage.passes = append(sc.usage.passes, s.usage.passes...)
	if err != nil {
		sc.cancel()
		sc.out.finish(nil, err)
		return
	}
	if sc.left == 0 {
		sc.out.finish(sc.result(), nil)
	}
}

func (r *scoreRow) from(*sequence) int { return r.prefix }

func (r *scoreRow) wants(_ *sequence, pos int) bool { return pos >= r.prefix }

func (r *scoreRow) logits(e *Engine, s *sequence, pos int, logits []float32) {
	o := &r.options[r.option]
	i := pos - r.prefix + 1 // the token after pos
	o.logprobs[i] = float64(logits[o.tokens[i]]) - logSumExp(logits)
	if o.logprobs[i] != o.logprobs[i] {
		e.sched.remove(s)
		e.finish(s, errNaN)
		return
	}
	if i == len(o.tokens)-1 {
		r.left--
		e.sched.remove(s)
		e.finish(s, nil)
	}
}

func (sc *scoring) result() *backend.ScoreResult {
	res := &backend.ScoreResult{}
	without := backend.Cost{ForwardPasses: len(sc.options)}
	for _, o := range sc.options {
		ids := o.tokens
		if sc.closed {
			ids = ids[:len(ids)-1]
		}
		s := backend.OptionScore{Part: backend.Part{Text: o.text, Tokens: ids}, Logprobs: o.logprobs}
		if !sc.healed && len(ids) > 0 {
			s.Part.Model = sc.model
		}
		for _, lp := range o.logprobs {
			s.Sum += lp
		}
		res.Options = append(res.Options, s)
		without.ComputedTokens += sc.prefix + len(o.tokens)
	}
	passes := sc.usage.passes
	slices.SortFunc(passes, func(a, b backend.Span) int { return cmp.Compare(a.From, b.From) })
	var merged []backend.Span
	for _, sp := range passes {
		merged = addSpan(merged, sp)
	}
	res.Usage = backend.Usage{
		PromptTokens:   sc.prefix,
		CachedTokens:   sc.trunk.usage.cached,
		ComputedTokens: sc.usage.computed,
		Passes:         merged,
		Without:        without,
	}
	return res
}
