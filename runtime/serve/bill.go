package serve

import (
	"context"
	"sync"

	"github.com/coppice-run/coppice/backend"
)

// bill is what one request to a backend uses of its tenant's tokens. One that
// ends well pays what the backend has counted: its prompt and what was generated.
// One that ends early, by an error or because nobody waits any more, pays what was
// seen of it: the part of the prompt that was computed, or all of it once
// something was generated, and what was generated.
type bill struct {
	quota  *quota
	shared *promptBill
	// prompt counts the tokens of the prompt, where nobody else has.
	prompt func() int
	// silent: the backend does not tell of its passes.
	silent bool

	mu    sync.Mutex
	read  int // tokens of the prompt that went through passes
	drawn int // passes after the prompt; each of them gives a token at least
	told  int // tokens that came as deltas
	early bool
}

// promptBill is what was paid for a prompt, which counts once however many
// choices it has.
type promptBill struct {
	mu   sync.Mutex
	paid int
}

// due is what is still to be paid of n tokens.
func (p *promptBill) due(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	more := max(0, n-p.paid)
	p.paid += more
	return more
}

func (s *Server) newBill(q *quota, shared *promptBill, prompt func() int) *bill {
	_, tells := s.be.(statser)
	return &bill{quota: q, shared: shared, prompt: prompt, silent: !tells}
}

// watch returns a context whose requests the bill is told of.
func (b *bill) watch(ctx context.Context) context.Context {
	outer := backend.TraceOf(ctx)
	return backend.WithTrace(ctx, &backend.Trace{Step: func(st backend.Step) {
		b.step(st)
		if outer != nil && outer.Step != nil {
			outer.Step(st)
		}
	}})
}

// step takes in a pass. The pass that was at work when its request ended early
// comes after that.
func (b *bill) step(st backend.Step) {
	b.mu.Lock()
	defer b.mu.Unlock()
	late := 0
	if st.Prompt {
		b.read += st.Tokens
	} else if b.drawn++; b.drawn > b.told {
		late = 1
	}
	if b.early {
		b.quota.spend(b.shared.due(b.read) + late)
	}
}

// delta takes in what was generated.
func (b *bill) delta(d backend.Delta) {
	n := len(d.Tokens)
	if n == 0 && d.Text != "" { // a backend without ids sends a piece a token
		n = 1
	}
	b.mu.Lock()
	b.told += n
	b.mu.Unlock()
}

// pay ends a bill with what the backend has counted: the tokens of the prompt,
// and those made behind it.
func (b *bill) pay(prompt, made int) { b.quota.spend(b.shared.due(prompt) + made) }

// seen is what is known of a request that ended early: the tokens of its prompt that
// went through passes, or all of them once something was generated, those that
// were computed in all, and those that were generated.
func (b *bill) seen() (prompt, computed, made int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	made = max(b.told, b.drawn)
	prompt = b.read
	if made > 0 {
		prompt = max(prompt, b.prompt())
	}
	return prompt, b.read + b.drawn, made
}

// leave ends the bill of a request without a result; gone says that whoever asked
// has given it up.
func (b *bill) leave(gone bool) {
	if b.quota.limits.TokensPerMinute == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	made := max(b.told, b.drawn)
	if made > 0 || gone && b.silent {
		b.read = max(b.read, b.prompt())
	}
	b.early = true
	b.quota.spend(b.shared.due(b.read) + made)
}

// estimate is about how many tokens a prompt has that nobody counts.
func estimate(turns []backend.Turn) int {
	bytes := 0
	for _, t := range turns {
		for _, p := range t.Parts {
			bytes += len(p.Text)
		}
	}
	return (bytes + 3) / 4
}

// meter is the backend of a run, whose tenant pays for each request, also for
// those that fail and are tried again, or are cancelled; metrics count those too.
type meter struct {
	backend.Backend
	s     *Server
	quota *quota
}

// Foresee implements [backend.Foreseer].
func (m *meter) Foresee(run, branch string, a backend.Absence) {
	if f, ok := m.Backend.(backend.Foreseer); ok {
		f.Foresee(run, branch, a)
	}
}

// EndRun implements [backend.Foreseer].
func (m *meter) EndRun(run string) {
	if f, ok := m.Backend.(backend.Foreseer); ok {
		f.EndRun(run)
	}
}

// checkingMeter is a meter of a backend that checks constraints.
type checkingMeter struct {
	*meter
	backend.ConstraintChecker
}

// metered returns the backend for the runs of a tenant.
func (s *Server) metered(q *quota) backend.Backend {
	m := &meter{s.be, s, q}
	if c, ok := s.be.(backend.ConstraintChecker); ok {
		return checkingMeter{m, c}
	}
	return m
}

func (m *meter) bill(turns []backend.Turn) *bill {
	return m.s.newBill(m.quota, &promptBill{}, func() int {
		if t, ok := m.Backend.(backend.Tokenizer); ok {
			if ids, err := t.Tokenize(turns, true); err == nil {
				return len(ids)
			}
		}
		return estimate(turns)
	})
}

// left ends the bill of a request without a result. What it took is in no event of
// the run.
func (m *meter) left(ctx context.Context, b *bill) {
	b.leave(ctx.Err() != nil)
	m.s.metrics.spent(b.seen())
}

// Generate implements [backend.Backend].
func (m *meter) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (res *backend.Result, err error) {
	b := m.bill(req.Turns)
	defer func() { // of a panic too
		if err != nil || res == nil {
			m.left(ctx, b)
			return
		}
		b.pay(res.Usage.PromptTokens, res.Usage.SampledTokens+res.Usage.ForcedTokens)
	}()
	return m.Backend.Generate(b.watch(ctx), req, func(d backend.Delta) {
		b.delta(d)
		if emit != nil {
			emit(d)
		}
	})
}

// Score implements [backend.Backend]. Options are computed behind the prompt.
func (m *meter) Score(ctx context.Context, req *backend.ScoreRequest) (res *backend.ScoreResult, err error) {
	b := m.bill(req.Turns)
	defer func() {
		if err != nil || res == nil {
			m.left(ctx, b)
			return
		}
		u := &res.Usage
		b.pay(u.PromptTokens, max(0, u.ComputedTokens-(u.PromptTokens-u.CachedTokens)))
	}()
	return m.Backend.Score(b.watch(ctx), req)
}
