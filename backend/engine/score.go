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
// Options that share a long beginning share a row for it and go on from its
// last logits, as all do from the prompt's.
//
// The boundary is where the options begin to differ from the prompt when prompt
// and option are tokenised as one text. If that is before the prompt's end
// (text "is ", option "high", tokens "is", " high"), all options are scored
// from there.
//
// For the unconditional method the options are scored once more with nothing
// before them, by rows of the same kind. For the exact one the other ways to
// write the options follow, see ways.
type scoring struct {
	trunk   *sequence
	options []scored
	prefix  int // length of the prompt up to the boundary
	out     *output[*backend.ScoreResult]
	left    int // rows not finished
	usage   usage
	healed  bool
	closed  bool
	method  backend.ScoreMethod
	ways    *ways // of the exact method
	without backend.Cost
	model   string
}

// scored is one option.
type scored struct {
	text     string
	tokens   []backend.Token // from the boundary on, the end of the turn last if closed
	logprobs []float64
	alone    []float64 // with nothing before them, if that is wanted
}

// scoreRow is the task of a sequence that reads tokens [first, to) after the
// boundary, which are the same in all options of its group.
type scoreRow struct {
	*scoring
	group []int
	first int
	to    int
	alone bool // nothing stands before the boundary
}

// wayRow is the task of a sequence whose last logits are read for ways.
type wayRow struct {
	*scoring
	at *way
}

// rowWorth is the number of tokens that a row of their own must save before
// options share one: it costs a pass.
const rowWorth = 16

// Score implements [backend.Backend]. The rows of an option never depend on the
// others, so a score is the same whatever else is asked for, from the same boundary on.
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
	sc, err := e.submitScore(ctx, req)
	if err != nil {
		return nil, err
	}
	res, err := sc.out.wait(ctx, nil)
	if err != nil && ctx.Err() != nil {
		err = ctxError(ctx)
	}
	return res, err
}

// submitScore hands a score to the loop.
func (e *Engine) submitScore(ctx context.Context, req *backend.ScoreRequest) (_ *scoring, err error) {
	defer e.recovered(req.ID, &err)
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
	sc := &scoring{out: newOutput[*backend.ScoreResult](), closed: req.Closed, method: req.Method, model: e.cfg.Fingerprint}
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
	sc.trunk = &sequence{
		id:       req.ID,
		ctx:      ctx,
		ns:       cache.Namespace{Model: e.cfg.Fingerprint, Salt: req.Salt},
		hints:    req.Hints,
		priority: req.Priority,
		task:     sc,
		tokens:   p.ids[:sc.prefix:sc.prefix],
		prompt:   sc.prefix,
	}
	return sc, e.submit(sc.trunk)
}

func checkOptions(req *backend.ScoreRequest) error {
	if err := req.Method.Check(); err != nil {
		return err
	}
	if req.Closed && !req.Method.Ends() {
		return fmt.Errorf("%w: %s compares the tokens of options, so the end of the turn cannot be scored with it", backend.ErrInvalid, req.Method)
	}
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
	var last backend.Token
	if req.Closed {
		var err error
		if last, err = e.turnEnd(p.close); err != nil {
			return err
		}
		end = []backend.Token{last}
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
		// Nothing is asked after the last token.
		sc.apart(sc.prefix + len(tokens) - 1)
		if req.Method == backend.UnconditionalLikelihoodNormalized {
			sc.options[i].alone = make([]float64, len(tokens))
			if len(tokens) > 1 {
				sc.apart(len(tokens) - 1)
			}
		}
	}
	if req.Method == backend.Exact {
		var err error
		sc.ways, err = newWays(e, last, req, sc.options)
		return err
	}
	return nil
}

// apart counts a call of so many tokens that would be made without sharing.
func (sc *scoring) apart(tokens int) {
	sc.without.ComputedTokens += tokens
	sc.without.ForwardPasses++
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

// logits is called once, after the prompt.
func (sc *scoring) logits(e *Engine, s *sequence, pos int, logits []float32) {
	group := make([]int, len(sc.options))
	for i := range group {
		group[i] = i
	}
	e.sched.remove(s)
	if !sc.read(group, 0, logits, false) {
		e.finish(s, errNaN)
		return
	}
	sc.branch(e, s, group, 0, false)
	if sc.method == backend.UnconditionalLikelihoodNormalized {
		sc.branch(e, s, slices.Clone(group), 0, true)
	}
	e.finish(s, nil)
}

// read takes the log-probability of token i of the options in group from the
// logits before it. It reports false if one is not a number.
func (sc *scoring) read(group []int, i int, logits []float32, alone bool) bool {
	lse := logSumExp(logits)
	if lse != lse {
		return false
	}
	for _, g := range group {
		o := &sc.options[g]
		if i >= len(o.tokens) {
			continue
		}
		lps := o.logprobs
		if alone {
			lps = o.alone
		}
		lps[i] = float64(logits[o.tokens[i]]) - lse
		if lps[i] != lps[i] {
			return false
		}
	}
	if sc.ways != nil {
		sc.ways.read(sc.options[group[0]].tokens[:i], logits, lse)
	}
	return true
}

// branch starts the rows of a group that agrees on its first depth tokens, and
// whose next token is scored already. s has computed those tokens.
func (sc *scoring) branch(e *Engine, s *sequence, group []int, depth int, alone bool) {
	for len(group) > 0 {
		// The options that go on as the first of the group does.
		next := sc.options[group[0]].tokens
		var part, rest []int
		shared := len(next)
		for _, g := range group {
			n := 0
			if t := sc.options[g].tokens; len(next) > depth && len(t) > depth {
				n = commonPrefix(next[depth:], t[depth:])
			}
			if g != group[0] && n == 0 {
				rest = append(rest, g)
				continue
			}
			part = append(part, g)
			if g != group[0] {
				shared = min(shared, depth+n)
			}
		}
		group = rest
		if len(part) > 1 && (shared-depth)*(len(part)-1) >= rowWorth {
			sc.start(e, s, &scoreRow{sc, part, depth, shared, alone})
			continue
		}
		for _, g := range part {
			if to := len(sc.options[g].tokens) - 1; to > depth {
				sc.start(e, s, &scoreRow{sc, []int{g}, depth, to, alone})
			}
		}
	}
}

// start gives the scheduler a row.
func (sc *scoring) start(e *Engine, s *sequence, r *scoreRow) {
	tokens := sc.options[r.group[0]].tokens[:r.to]
	if !r.alone {
		tokens = slices.Concat(sc.trunk.tokens, tokens)
	}
	sc.enqueue(e, s, r, slices.Clone(tokens))
}

// enqueue is for a sequence of the request that s belongs to.
func (sc *scoring) enqueue(e *Engine, s *sequence, t task, tokens []backend.Token) {
	sc.left++
	e.sched.enqueue(&sequence{
		id: s.id, ctx: s.ctx, left: s.left, ns: s.ns, order: s.order,
		hints:  backend.Hints{Run: s.hints.Run, LastUse: s.hints.LastUse},
		task:   t,
		tokens: tokens,
		prompt: len(tokens),
		front:  true, child: true,
	})
}

func (sc *scoring) finish(e *Engine, s *sequence, err error) {
	sc.usage.computed += s.usage.computed
	sc.usage.passes = append(sc.usage.passes, s.usage.passes...)
	if err != nil {
		s.left.Store(true) // no other row of it is of use
		sc.out.finish(nil, err)
		return
	}
	if sc.left > 0 || sc.ways != nil && sc.explore(e, s) {
		return
	}
	sc.out.finish(sc.result(), nil)
}

// explore starts rows for the ways to write options that are worth it, if there
// are any left.
func (sc *scoring) explore(e *Engine, s *sequence) bool {
	w := sc.ways
	if w.usual == nil {
		for _, o := range sc.options {
			w.usual = append(w.usual, sum(o.logprobs))
		}
	}
	next := w.level(e.context - sc.prefix)
	for _, at := range next {
		sc.apart(sc.prefix + at.tokens)
		sc.enqueue(e, s, &wayRow{sc, at}, slices.Concat(sc.trunk.tokens, at.path()))
	}
	return len(next) > 0
}

func sum(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}

func (r *scoreRow) from(*sequence) int {
	if r.alone {
		return r.first
	}
	return r.prefix + r.first
}

func (r *scoreRow) wants(s *sequence, pos int) bool { return pos >= r.from(s) }

func (r *scoreRow) logits(e *Engine, s *sequence, pos int, logits []float32) {
	i := pos - r.from(s) + r.first + 1 // the token after pos
	if !r.read(r.group, i, logits, r.alone) {
		e.sched.remove(s)
		e.finish(s, errNaN)
		return
	}
	if i == r.to {
		r.left--
		e.sched.remove(s)
		if len(r.group) > 1 {
			r.branch(e, s, r.group, r.to, r.alone)
		}
		e.finish(s, nil)
	}
}

func (r *wayRow) logits(e *Engine, s *sequence, _ int, logits []float32) {
	lse := logSumExp(logits)
	e.sched.remove(s)
	if lse != lse {
		e.finish(s, errNaN)
		return
	}
	r.ways.expand(r.at, logits, lse)
	r.left--
	e.finish(s, nil)
}

func (sc *scoring) result() *backend.ScoreResult {
	res := &backend.ScoreResult{}
	for i, o := range sc.options {
		ids := o.tokens
		if sc.closed {
			ids = ids[:len(ids)-1]
		}
		s := backend.OptionScore{Part: backend.Part{Text: o.text, Tokens: ids}, Logprobs: o.logprobs, Unconditional: o.alone, Sum: sum(o.logprobs)}
		if !sc.healed && len(ids) > 0 {
			s.Part.Model = sc.model
		}
		if sc.ways != nil {
			s.Sum = sc.ways.total[i]
		}
		res.Options = append(res.Options, s)
	}
	if sc.ways != nil {
		res.Emulated = sc.ways.doubts()
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
		Without:        sc.without,
	}
	return res
}
