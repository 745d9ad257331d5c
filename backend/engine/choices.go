package engine

import (
	"math/bits"
	"slices"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/cache"
	"github.com/coppice-run/coppice/grammar"
)

// Where a constraint leaves few tokens, such as the values of an enum, what
// follows each of them is computed in the pass that decides between them:
//
//	tokens   ... certain
//	rows     ... certain                          the sequence's own: decides
//	         ... certain  "high"  '","oom":'      one row an option, with the
//	         ... certain  "low"   '","oom":'      text that it forces
//
// The row of the option that is drawn becomes the sequence's: its pages take
// the place of the sequence's last ones, and its logits decide what follows, so
// the choice needed no pass of its own. Options of options are rows too, as far
// as the budget goes. A draw decides as it would without: the logits of a
// position depend on the tokens before it alone, so the output is the same.
//
// The rows live in one step: their pages are taken before it and given back
// after it, but for those that became a sequence's.
type branch struct {
	seq     *sequence
	base    int             // position of the first token of the row
	tokens  []backend.Token // of the row
	pages   []int32         // of the row, own from the one of base on
	outputs []int           // tokens of the row whose logits are wanted
	logits  int             // the first of its buffers
}

const (
	maxOptions = 6 // tokens that count as few
	choiceSeqs = 4 // with more sequences in a step, passes are full enough
)

// path is the tokens of one option, from the choice on.
type path struct {
	tokens  []backend.Token
	outputs []int // tokens after which there is a choice or a draw
}

// options are the ways on from g's state, nil where they are too many or longer
// than budget in all; each row repeats overhead tokens.
func (g *generation) options(state grammar.State, budget, overhead int) []path {
	mask := g.engine.mask
	state.Mask(mask)
	n := 0
	for _, w := range mask {
		if n += bits.OnesCount64(w); n > maxOptions {
			return nil
		}
	}
	var tokens []backend.Token
	for i, w := range mask {
		for ; w != 0; w &= w - 1 {
			tokens = append(tokens, backend.Token(i*64+bits.TrailingZeros64(w)))
		}
	}
	var out []path
	var after []grammar.State
	for _, t := range tokens {
		if g.engine.isEnd(t) {
			continue
		}
		next, err := state.Accept(t)
		if err != nil {
			return nil
		}
		forced, next := next.Jump()
		if next.Done() {
			continue // nothing is left to compute
		}
		p := path{tokens: append([]backend.Token{t}, forced...)}
		p.outputs = []int{len(p.tokens) - 1}
		if budget -= overhead + len(p.tokens); budget < 0 {
			return nil
		}
		out = append(out, p)
		after = append(after, next)
	}
	// Options of options, in place of the option's own row.
	for i, next := range after {
		p := out[i]
		more := g.options(next, budget, overhead+len(p.tokens))
		if len(more) == 0 {
			continue
		}
		for k, m := range more {
			budget -= overhead + len(p.tokens) + len(m.tokens)
			q := path{tokens: slices.Concat(p.tokens, m.tokens)}
			if k == 0 {
				q.outputs = append(q.outputs, p.outputs...)
			}
			for _, o := range m.outputs {
				q.outputs = append(q.outputs, len(p.tokens)+o)
			}
			if k == 0 {
				budget += overhead + len(p.tokens) // that row is gone
				out[i] = q
				continue
			}
			out = append(out, q)
		}
	}
	return out
}

// branchOut makes the rows of the options of the sequences in a plan.
func (e *Engine) branchOut(plan []work) {
	e.branches = e.branches[:0]
	if e.cfg.Choices == 0 || len(plan) > choiceSeqs {
		return
	}
	budget := e.cfg.Choices
	for _, w := range plan {
		s := w.seq
		g, ok := s.task.(*generation)
		if !ok || s.alone || !g.constrained || g.finished || g.rules != nil || g.req.NoJump || g.req.Logprobs || g.drafts.n > 0 ||
			s.computed < s.prompt || s.computed+w.n != len(s.tokens) || g.generated()+1 >= g.limit {
			continue
		}
		for _, p := range g.options(g.state, budget, w.n) {
			budget -= w.n + len(p.tokens)
			if b, ok := e.branch(s, p); ok {
				e.branches = append(e.branches, b)
			}
		}
	}
}

// branch takes the pages of one row, if there are some to spare.
func (e *Engine) branch(s *sequence, p path) (branch, bool) {
	b := branch{seq: s, base: s.computed, tokens: slices.Concat(s.tokens[s.computed:], p.tokens)}
	pending := len(s.tokens) - s.computed
	for _, o := range p.outputs {
		b.outputs = append(b.outputs, pending+o)
	}
	first := b.base / cache.PageTokens
	need := pagesFor(b.base+len(b.tokens)) - first
	if b.base+len(b.tokens) > e.context || e.sched.cache.Available() < need+2*len(e.sched.running) {
		return b, false
	}
	pages, ok := e.sched.cache.Alloc(slices.Clone(s.pages[:first]), need)
	if !ok {
		return b, false
	}
	b.pages = pages
	if n := b.base % cache.PageTokens; n > 0 {
		e.sched.copyPage(pages[first], s.pages[first], n)
	}
	return b, true
}

// own are the pages of a row that no other has.
func (b *branch) own() []int32 { return b.pages[b.base/cache.PageTokens:] }

// addBranches appends the rows to the batch.
func (e *Engine) addBranches() {
	used := e.batch.Outputs()
	for i := range e.branches {
		b := &e.branches[i]
		b.logits = used
		used += len(b.outputs)
		e.batch.Rows = append(e.batch.Rows, model.Row{Tokens: b.tokens, Start: b.base, Pages: b.pages, Outputs: b.outputs})
	}
	for len(e.buffers) < used {
		e.buffers = append(e.buffers, make([]float32, e.cfg.Model.VocabSize()))
	}
}

// follow lets sequences go on in the rows of what they drew, and gives back the
// pages of the other rows. computed tells whether the pass was a success.
func (e *Engine) follow(computed bool) {
	for i := range e.branches {
		b := &e.branches[i]
		if b.pages == nil || !computed {
			continue
		}
		b.seq.usage.computed += len(b.tokens)
		e.totals.Computed += uint64(len(b.tokens))
	}
	if computed {
		for i := range e.branches {
			if i == 0 || e.branches[i].seq != e.branches[i-1].seq {
				e.adopt(e.branches[i].seq)
			}
		}
	}
	for i := range e.branches {
		if b := &e.branches[i]; b.pages != nil {
			e.sched.cache.Release(b.own())
			b.pages = nil
		}
	}
}

// adopt lets s go on in the rows of its options, from one choice to the next.
func (e *Engine) adopt(s *sequence) {
	g := s.task.(*generation)
	for !s.ended && s.h != nil && s.computed < len(s.tokens) {
		g.drafts.drop(s, e.pass) // what the rows know is no guess
		// The row with the most of the tokens, and of those the one with logits.
		var best *branch
		most, out := 0, -1
		for i := range e.branches {
			b := &e.branches[i]
			if b.seq != s || b.tokens == nil {
				continue
			}
			n := commonPrefix(b.tokens, s.tokens[b.base:])
			o := -1
			if b.base+n == len(s.tokens) {
				o = slices.Index(b.outputs, n-1)
			}
			if n > most || n == most && o >= 0 && out < 0 {
				best, most, out = b, n, o
			}
		}
		if best == nil {
			return
		}
		end := best.base + most
		if out < 0 {
			// What follows its last token was not asked for, or in a row that found
			// no pages: that token is computed again.
			end = min(end, len(s.tokens)-1)
		}
		if end <= s.computed {
			return
		}
		if best.pages != nil {
			first := best.base / cache.PageTokens
			e.sched.cache.Release(s.pages[first:])
			s.pages = append(s.pages[:first], best.own()...)
			best.pages = nil // they are the sequence's
		}
		s.computed = end
		if out < 0 {
			return
		}
		e.totals.Chosen++
		e.current = s
		g.logits(e, s, s.computed-1, e.buffers[best.logits+out])
		e.current = nil
	}
}
