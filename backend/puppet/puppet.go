package puppet

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
)

// Model is a backend that answers by rules; the first that matches answers. It
// is safe for concurrent use.
type Model struct {
	info backend.Info
	gate *Gate

	mu     sync.Mutex
	rules  []*Rule
	calls  map[string]int // finished or not, by request ID
	log    []Call
	closed bool
	cost   meter

	grammars map[string]*grammar.Grammar
}

// Call is a request that a model received.
type Call struct {
	ID      string
	Prompt  string // as [Render] writes it
	Request *backend.Request
	Score   *backend.ScoreRequest
}

// Fingerprint is the model fingerprint of a Model, unless SetInfo changes it.
const Fingerprint = "puppet-1"

var everything = backend.Capabilities{
	Tags: true, JSONSchema: true, Regex: true, EBNF: true, Choices: true, Score: true,
	TokenIDs: true, ForkHints: true, Logprobs: true, Seed: true, Raw: true,
	OpenTurns: true, ScoreTokens: true, ScoreExact: true, Images: true,
}

// New returns a model without rules. It can do everything.
func New() *Model {
	return &Model{
		calls:    map[string]int{},
		grammars: map[string]*grammar.Grammar{},
		info: backend.Info{
			Model:        "puppet",
			Fingerprint:  Fingerprint,
			Capabilities: everything,
		},
	}
}

// SetInfo lets f change what the model says of itself, to take capabilities
// away for example. It must be called before the first request.
func (m *Model) SetInfo(f func(info *backend.Info)) { f(&m.info) }

// SetGate makes every request pass g before it is answered. It must be called
// before the first request.
func (m *Model) SetGate(g *Gate) { m.gate = g }

// Info implements backend.Backend.
func (m *Model) Info() backend.Info { return m.info }

// Close implements backend.Backend. Later calls fail with backend.ErrClosed.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

// Calls returns how many requests with that ID came in.
func (m *Model) Calls(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.calls[id]
}

// Log returns all requests so far in the order they came in.
func (m *Model) Log() []Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Call(nil), m.log...)
}

// begin notes a request and finds its rule.
func (m *Model) begin(p *Prompt) (*Rule, error) {
	p.Text = Render(p.Turns)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, fmt.Errorf("puppet: request %q: %w", p.ID, backend.ErrClosed)
	}
	m.calls[p.ID]++
	p.Call = m.calls[p.ID]
	m.log = append(m.log, Call{ID: p.ID, Prompt: p.Text, Request: p.Request, Score: p.Score})
	for _, r := range m.rules {
		if r.match(p) {
			return r, nil
		}
	}
	return nil, fmt.Errorf("puppet: request %q: no rule for the prompt %q: %w", p.ID, p.Text, backend.ErrInvalid)
}

// pass waits for what holds the request back and fails it if the script says
// so.
func (m *Model) pass(ctx context.Context, r *Rule, p *Prompt) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("puppet: request %q: %w", p.ID, err)
	}
	if m.gate != nil {
		if err := m.gate.wait(ctx, p.ID); err != nil {
			return fmt.Errorf("puppet: request %q: %w", p.ID, err)
		}
	}
	for _, ch := range r.wait {
		select {
		case <-ch:
		case <-ctx.Done():
			return fmt.Errorf("puppet: request %q: %w", p.ID, ctx.Err())
		}
	}
	r.mu.Lock()
	r.calls++
	err := r.fail[r.calls]
	if err == nil {
		err = r.fail[0]
	}
	r.mu.Unlock()
	if r.panicky != nil {
		panic(r.panicky)
	}
	return err
}

// Generate implements backend.Backend.
func (m *Model) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	if !req.Tokens.IsZero() {
		return nil, fmt.Errorf("puppet: request %q: rules about single tokens: %w", req.ID, backend.ErrUnsupported)
	}
	p := &Prompt{ID: req.ID, Turns: req.Turns, Request: req}
	r, err := m.begin(p)
	if err != nil {
		return nil, err
	}
	if err := m.pass(ctx, r, p); err != nil {
		return nil, err
	}
	if r.reply == nil {
		return nil, fmt.Errorf("puppet: request %q: the rule for it has no reply: %w", p.ID, backend.ErrInvalid)
	}
	text, err := r.reply(p)
	if err != nil {
		return nil, err
	}
	out, err := m.shape(ctx, req, text)
	if err != nil {
		return nil, err
	}
	res := &backend.Result{
		Part:    backend.Part{Text: out.text, Tokens: Tokens(out.text), Model: m.info.Fingerprint},
		Finish:  out.finish,
		Matched: out.matched,
	}
	if req.Logprobs {
		res.Logprobs = make([]float64, len(res.Part.Tokens))
	}
	m.mu.Lock()
	res.Usage = m.cost.generate(p.Text, len(out.text), out.forcedTokens())
	m.mu.Unlock()
	if r.finish != "" {
		res.Finish = r.finish
	}
	if r.edit != nil {
		r.edit(p, res)
	}
	if emit != nil {
		out.stream(res.Logprobs, emit)
	}
	return res, nil
}

// output is a text cut to a request's limits.
type output struct {
	text    string
	forced  []bool // by byte; nil: none
	finish  backend.FinishReason
	matched string
}

// shape cuts text to the limits of req.
func (m *Model) shape(ctx context.Context, req *backend.Request, text string) (output, error) {
	out := output{text: text, finish: backend.FinishStop}
	at := len(text)
	for _, s := range req.Stop {
		if s == "" {
			continue
		}
		if i := strings.Index(text, s); i >= 0 && i < at {
			at, out.matched = i, s
		}
	}
	out.text = text[:at]
	if !req.Constraint.IsZero() {
		var err error
		if out.text, out.forced, err = m.constrain(ctx, req, out.text); err != nil {
			return output{}, err
		}
	}
	if n := req.MaxTokens; n > 0 && len(out.text) > n {
		for n > 0 && !utf8.RuneStart(out.text[n]) {
			n--
		}
		out.text, out.finish, out.matched = out.text[:n], backend.FinishLength, ""
		if out.forced != nil {
			out.forced = out.forced[:n]
		}
	}
	return out, nil
}

func (o *output) forcedTokens() int {
	n := 0
	for _, f := range o.forced {
		if f {
			n++
		}
	}
	return n
}

// stream emits the text a character at a time; a run of forced ones is one
// piece. A byte is a token, whose log-probability is in lps if it was asked for.
func (o *output) stream(lps []float64, emit func(backend.Delta)) {
	for i := 0; i < len(o.text); {
		_, n := utf8.DecodeRuneInString(o.text[i:])
		origin := backend.Sampled
		if o.forced != nil && o.forced[i] {
			origin = backend.Forced
			for i+n < len(o.text) && o.forced[i+n] {
				_, k := utf8.DecodeRuneInString(o.text[i+n:])
				n += k
			}
		}
		piece := o.text[i : i+n]
		d := backend.Delta{Text: piece, Tokens: Tokens(piece), Origin: origin}
		if len(lps) == len(o.text) {
			d.Logprobs = lps[i : i+n]
		}
		emit(d)
		i += n
	}
}

// Score implements backend.Backend.
func (m *Model) Score(ctx context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	p := &Prompt{ID: req.ID, Turns: req.Turns, Score: req}
	r, err := m.begin(p)
	if err != nil {
		return nil, err
	}
	if err := m.pass(ctx, r, p); err != nil {
		return nil, err
	}
	if r.score == nil {
		return nil, fmt.Errorf("puppet: request %q: the rule for it has no scores: %w", p.ID, backend.ErrUnsupported)
	}
	res := &backend.ScoreResult{Options: make([]backend.OptionScore, len(req.Options))}
	fed := 0
	for i, o := range req.Options {
		lps := r.score(p, o)
		sum := 0.0
		for _, lp := range lps {
			sum += lp
		}
		res.Options[i] = backend.OptionScore{
			Part:     backend.Part{Text: o, Tokens: Tokens(o), Model: m.info.Fingerprint},
			Logprobs: lps,
			Sum:      sum,
		}
		if r.alone != nil && req.Method == backend.UnconditionalLikelihoodNormalized {
			res.Options[i].Unconditional = r.alone(o)
		}
		if fed += len(o); !req.Closed && len(o) > 0 {
			fed-- // nothing is asked after the last token
		}
	}
	m.mu.Lock()
	res.Usage = m.cost.score(p.Text, fed, len(req.Options))
	m.mu.Unlock()
	return res, nil
}

// Tokenize implements backend.Tokenizer.
func (m *Model) Tokenize(turns []backend.Turn, open bool) ([]backend.Token, error) {
	text := Render(turns)
	if n := len(turns); !open && n > 0 && !turns[n-1].Open && turns[n-1].Role != backend.Raw {
		text = strings.TrimSuffix(text, "assistant: ")
	}
	return Tokens(text), nil
}
