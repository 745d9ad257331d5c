package serve

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
)

// job is a request of a client: n choices for each of some prompts.
type job struct {
	id       string
	op       string // in traces; that of raw prompts if empty
	tenant   *tenant
	prompts  []prompt
	n        int
	base     backend.Request // of each choice, but for its turns
	top      int             // likeliest tokens wanted beside each
	keepStop bool            // what ended a text is part of it
	// nothing: the prompt is computed and no token generated.
	nothing bool
	// readFrom is the first token of the prompt whose log-probability is
	// wanted; -1 for none.
	readFrom int
	readTop  int

	constraintAt string // the field that the constraint came from
	promptAt     string // the field that the prompt came from
	countAt      string // the field that n came from

	bills []promptBill // by prompt
}

func (j *job) choices() int { return len(j.prompts) * j.n }

// choice is a finished generation of a job.
type choice struct {
	prompt *prompt
	result *backend.Result
	// ids of the prompt and what was read of it, if asked for.
	ids  []backend.Token
	read *backend.LogprobResult
	// thought is the number of tokens that the model took to think.
	thought int
}

// step is something that happened in a job: a piece of a choice, or its end.
type step struct {
	index int
	delta backend.Delta
	end   *choice
	err   error
}

// queue carries steps from backends, which must not be held up, to the goroutine
// that serves the client. It is bounded by what the job may generate.
type queue struct {
	mu    sync.Mutex
	steps []step
	ready chan struct{} // holds one value when there is something
}

func (q *queue) push(s step) {
	q.mu.Lock()
	q.steps = append(q.steps, s)
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

func (q *queue) take(old []step) []step {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := q.steps
	q.steps = old[:0]
	return out
}

// run carries out a job. handle is called with the steps as they come, on this
// goroutine; its error ends the job. When run returns nothing of the job is
// left at work.
func (s *Server) run(ctx context.Context, j *job, handle func([]step) error) error {
	if most := s.most(j.tenant); j.choices() > most {
		at := j.countAt
		if j.n == 1 {
			at = j.promptAt
		}
		return badRequest(at, "%s asks for %d generations, at most %d may be at work at once", at, j.choices(), most)
	}
	release, err := s.admit(j.tenant, j.choices())
	if err != nil {
		return err
	}
	defer release()
	j.bills = make([]promptBill, len(j.prompts))
	ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Limits.RequestTime, errTimeout)
	defer cancel()
	aborted, done := s.aborts.add(jobName{j.tenant, j.id}, cancel)
	defer done()
	ctx, endSpan := s.traces.request(ctx, j)
	ends := make([]*choice, j.choices())

	q := &queue{ready: make(chan struct{}, 1)}
	left := j.choices()
	for i := range left {
		go func() {
			end := step{index: i, err: errors.New("serve: a backend panicked")}
			defer func() {
				if v := recover(); v != nil {
					s.cfg.Log.Error("panic in a backend", "request", j.id, "panic", v, "stack", string(debug.Stack()))
				}
				q.push(end)
			}()
			c, err := s.one(ctx, j, i, func(d backend.Delta) { q.push(step{index: i, delta: d}) })
			end.end, end.err = c, err
		}()
	}
	var failed error
	var spare []step
	for left > 0 {
		<-q.ready
		steps := q.take(spare)
		for _, st := range steps {
			if st.end == nil && st.err == nil {
				continue
			}
			left--
			ends[st.index] = st.end
			if st.err != nil && failed == nil {
				failed = st.err
				cancel()
			}
		}
		if failed == nil {
			if err := handle(steps); err != nil {
				failed = err
				cancel()
			}
		}
		clear(steps)
		spare = steps
	}
	if failed != nil && aborted() {
		failed = errAborted
	} else {
		failed = s.jobError(ctx, j, failed)
	}
	endSpan(ends, failed)
	return failed
}

// errAborted ends a job that a client named in an abort request.
var errAborted = &Error{Status: 400, Type: typeInvalid, Code: "aborted", Message: "the request was aborted"}

// jobError adds to an error what the job knows of its cause.
func (s *Server) jobError(ctx context.Context, j *job, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(context.Cause(ctx), errTimeout) {
		return errTimeout
	}
	e := *toError(err)
	var bad *grammar.Error
	switch {
	case e.Status != 400 || e.Param != "":
	case e.Code == "context_length_exceeded":
		e.Param = j.promptAt
	case errors.As(err, &bad):
		e.Param = j.constraintAt
	}
	if e.Status >= 500 {
		s.cfg.Log.Error("generation failed", "request", j.id, "error", err)
	}
	return &e
}

// one runs one choice.
func (s *Server) one(ctx context.Context, j *job, index int, emit func(backend.Delta)) (*choice, error) {
	c := &choice{prompt: &j.prompts[index/j.n]}
	bill := s.newBill(j.tenant.quota, &j.bills[index/j.n], func() int {
		if ids, err := s.tokens(c.prompt); err == nil {
			return len(ids)
		}
		return estimate(c.prompt.turns)
	})
	defer func() { // however it ends, also by a panic
		if c.result == nil {
			bill.leave(ctx.Err() != nil)
			return
		}
		u := &c.result.Usage
		bill.pay(u.PromptTokens, u.SampledTokens+u.ForcedTokens)
	}()
	req := j.base
	req.ID = j.id
	if j.choices() > 1 {
		req.ID = fmt.Sprintf("%s/%d", j.id, index)
	}
	req.Turns = c.prompt.turns
	req.CloseAtLimit = j.base.CloseAtLimit && !free(j.base.Constraint)
	if k := index % j.n; k > 0 {
		req.Sampling.Seed += uint64(k) * 0x9e3779b97f4a7c15
	}
	if j.n > 1 {
		req.Hints.Siblings = j.n
	}
	req.Top = j.top
	if j.readFrom >= 0 {
		ids, err := s.tokens(c.prompt)
		if err != nil {
			return nil, err
		}
		c.ids = ids
	}
	m := s.metrics.begin()
	x := &steps{choice: -1}
	if s.traces != nil {
		x.tracer, x.ctx = s.traces.tracer, ctx
		if j.choices() > 1 {
			x.choice = index
		}
	}
	ctx = bill.watch(backend.WithTrace(ctx, &backend.Trace{Step: x.add}))
	var err error
	if j.nothing {
		err = s.computeOnly(ctx, c, &req)
	} else {
		c.result, err = s.be.Generate(ctx, &req, func(d backend.Delta) {
			m.delta(d)
			bill.delta(d)
			emit(d)
		})
	}
	x.end()
	if err == nil && j.keepStop {
		s.appendStop(c, j.base.Stop, emit)
	}
	if err == nil {
		err = s.look(ctx, j, c, &req)
	}
	if err != nil {
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = ctx.Err()
		}
		m.failed(err)
		if c.result != nil {
			s.metrics.count(&c.result.Usage)
		} else {
			s.metrics.spent(bill.seen())
		}
		return nil, err
	}
	m.finished(c.result.Finish, &c.result.Usage)
	m.times(x)
	return c, nil
}

// appendStop adds what ended a text to it. What matched a pattern is in it already.
func (s *Server) appendStop(c *choice, stops []string, emit func(backend.Delta)) {
	stop := c.result.Matched
	if !slices.Contains(stops, stop) {
		stop = ""
	}
	if id := c.result.StopToken; id != nil {
		stop = strings.ToValidUTF8(string(s.cfg.Vocabulary.Bytes(*id)), "\ufffd")
	}
	if stop == "" {
		return
	}
	emit(backend.Delta{Text: stop})
	r := *c.result
	r.Part.Text += stop
	c.result = &r
}

// computeOnly puts the prompt in the cache and generates nothing.
func (s *Server) computeOnly(ctx context.Context, c *choice, req *backend.Request) error {
	reader, ok := s.be.(backend.LogprobScorer)
	if !ok {
		once := *req
		once.MaxTokens, once.MinTokens, once.Stop = 1, 0, nil
		once.Constraint = backend.Constraint{}
		res, err := s.be.Generate(ctx, &once, nil)
		if err != nil {
			return err
		}
		res.Usage.SampledTokens, res.Usage.ForcedTokens = 0, 0
		c.result = &backend.Result{Finish: backend.FinishLength, Usage: res.Usage}
		return nil
	}
	ids := c.ids
	if ids == nil {
		var err error
		if ids, err = s.tokens(c.prompt); err != nil {
			return err
		}
	}
	r, err := reader.Logprobs(ctx, &backend.LogprobRequest{ID: req.ID, Tokens: ids, From: len(ids), Salt: req.Salt})
	if err != nil {
		return err
	}
	c.result = &backend.Result{Finish: backend.FinishLength, Usage: r.Usage}
	return nil
}

// look reads the log-probabilities of a prompt.
func (s *Server) look(ctx context.Context, j *job, c *choice, req *backend.Request) error {
	from := max(1, j.readFrom)
	if j.readFrom < 0 || from >= len(c.ids) {
		return nil
	}
	reader, ok := s.be.(backend.LogprobScorer)
	if !ok {
		return badRequest("top_logprobs", "this model does not show the log-probabilities of other tokens")
	}
	r, err := reader.Logprobs(ctx, &backend.LogprobRequest{ID: req.ID, Tokens: c.ids, From: from, Top: j.readTop, Salt: req.Salt})
	if err != nil {
		return err
	}
	u := &c.result.Usage
	u.ComputedTokens += r.Usage.ComputedTokens
	u.Passes = append(slices.Clone(u.Passes), r.Usage.Passes...)
	c.read = r
	return nil
}

// aborts are the jobs at work, for clients that end them by name. A client may
// give several the same.
type aborts struct {
	mu   sync.Mutex
	jobs map[*abort]jobName
}

// jobName is an id that a tenant gave, or got.
type jobName struct {
	tenant *tenant
	id     string
}

type abort struct {
	cancel context.CancelFunc
	hit    bool
}

// add names a job. aborted tells whether it was; done forgets it.
func (a *aborts) add(name jobName, cancel context.CancelFunc) (aborted func() bool, done func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := &abort{cancel: cancel}
	if a.jobs == nil {
		a.jobs = map[*abort]jobName{}
	}
	a.jobs[e] = name
	aborted = func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return e.hit
	}
	return aborted, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.jobs, e)
	}
}

// abort ends the tenant's jobs of that name, or all of its jobs.
func (a *aborts) abort(name jobName, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for e, n := range a.jobs {
		if n == name || all && n.tenant == name.tenant {
			e.hit = true
			e.cancel()
		}
	}
}

// usage is OpenAI's, with what a prefix cache and jump-forward saved.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
	PromptDetails    struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	CompletionDetails struct {
		ReasoningTokens int `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
	Coppice struct {
		ForcedTokens   int `json:"forced_tokens"`
		ForwardPasses  int `json:"forward_passes"`
		ComputedTokens int `json:"computed_tokens"`
		ClosedTokens   int `json:"closed_tokens"` // in place of the model's own, at the limit
	} `json:"coppice"`
}

// usageOf sums choices. A prompt counts once however many choices it has; it
// counts as cached as far as it was for the choice that found the least.
func usageOf(choices []*choice) usage {
	var u usage
	var passes []backend.Span
	cached := map[*prompt]int{}
	for _, c := range choices {
		if c == nil {
			continue
		}
		r := c.result.Usage
		if least, seen := cached[c.prompt]; !seen {
			u.PromptTokens += r.PromptTokens
			cached[c.prompt] = r.CachedTokens
		} else {
			cached[c.prompt] = min(least, r.CachedTokens)
		}
		u.CompletionTokens += r.SampledTokens + r.ForcedTokens
		u.CompletionDetails.ReasoningTokens += c.thought
		u.Coppice.ForcedTokens += r.ForcedTokens
		u.Coppice.ComputedTokens += r.ComputedTokens
		u.Coppice.ClosedTokens += c.result.Closed
		passes = append(passes, r.Passes...)
	}
	for _, n := range cached {
		u.PromptDetails.CachedTokens += n
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	u.Coppice.ForwardPasses = countPasses(passes)
	return u
}

// countPasses counts each pass of an engine once.
func countPasses(spans []backend.Span) int {
	slices.SortFunc(spans, func(a, b backend.Span) int {
		switch {
		case a.Engine != b.Engine && a.Engine < b.Engine, a.Engine == b.Engine && a.From < b.From:
			return -1
		case a == b:
			return 0
		}
		return 1
	})
	n, engine, next := 0, uint64(0), uint64(0)
	for i, sp := range spans {
		if i == 0 || sp.Engine != engine {
			engine, next = sp.Engine, 0
		}
		if sp.To >= max(sp.From, next) {
			n += int(sp.To - max(sp.From, next) + 1)
			next = sp.To + 1
		}
	}
	return n
}

// since is the time from t to now in seconds.
func since(t time.Time) float64 { return time.Since(t).Seconds() }
