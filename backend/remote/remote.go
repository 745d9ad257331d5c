package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/anthropics/anthropic-sdk-go"

	"github.com/coppice-run/coppice/backend"
)

// Options adjust a [Backend]. The zero value is right for most servers.
type Options struct {
	// Model is the model to ask for if the URL names none.
	Model string
	// APIKey is sent if the URL holds none.
	APIKey string
	Retry  Retry
	// FirstByte bounds the wait for the first byte of an answer, the time that
	// the request is queued and its prompt computed included. 0 means 10
	// minutes.
	FirstByte time.Duration
	// Idle bounds the silence between two pieces of an answer. 0 means 2
	// minutes.
	Idle time.Duration
	// Tries bounds the answers that are asked for until one passes a check
	// made here. 0 means 3.
	Tries int
	// NoEmulation refuses what the server cannot do itself.
	NoEmulation bool
	// Transport carries the requests instead of one made for the Backend.
	Transport http.RoundTripper
}

// Backend is a model on a server. Make one with [Open].
type Backend struct {
	srv  *server
	oai  *openAI
	d    *dialect
	opts Options
	info backend.Info

	ownTransport *http.Transport // nil if the options brought one
	guided       bool            // vLLM before structured_outputs
	canTokenize  bool            // SGLang with /tokenize
	vocabulary   int             // llama-server: number of tokens, 0 if unknown
	endToken     string          // llama-server: the text of the end token

	messages      *anthropic.MessageService
	longest       int         // anthropic: the longest answer, 0 if unknown
	plainSampling atomic.Bool // anthropic: the model takes no temperature

	life context.Context // ends with Close
	end  context.CancelFunc
}

var _ backend.Backend = (*Backend)(nil)

// Open returns the model at a URL, see the package comment. It asks the server
// what it is, unless the URL says probe=false or names OpenAI's own service:
// a server that cannot be reached, or a model that it does not have, is an
// error here and not in the middle of a run.
func Open(ctx context.Context, rawURL string, opts Options) (*Backend, error) {
	a, err := parseAddress(rawURL)
	if err != nil {
		return nil, err
	}
	if a.attempts > 0 {
		opts.Retry.Attempts = a.attempts
	}
	opts.Retry = opts.Retry.withDefaults()
	if opts.FirstByte <= 0 {
		opts.FirstByte = 10 * time.Minute
	}
	if opts.Idle <= 0 {
		opts.Idle = 2 * time.Minute
	}
	if opts.Tries <= 0 {
		opts.Tries = 3
	}
	b := &Backend{opts: opts, d: a.dialect}
	b.life, b.end = context.WithCancel(context.Background())
	next := opts.Transport
	if next == nil {
		b.ownTransport = newTransport()
		next = b.ownTransport
	}
	b.srv = &server{address: a, key: a.apiKey(&opts)}
	b.srv.http = &http.Client{
		Transport: &patience{next: next, first: opts.FirstByte, idle: opts.Idle},
		// A redirected POST would arrive as a GET, and the key elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if b.d.name == "anthropic" {
		b.messages = newMessages(b.srv)
	} else {
		b.oai = newOpenAI(b.srv)
	}
	b.info.Model = a.model
	if b.info.Model == "" {
		b.info.Model = opts.Model
	}
	b.info.ContextLength = a.context
	if err := b.probe(ctx); err != nil {
		b.Close()
		return nil, err
	}
	b.info.Capabilities = b.d.capabilities(!opts.NoEmulation)
	b.info.Capabilities.TokenIDs = b.info.Fingerprint != ""
	return b, nil
}

// Info describes the model as far as the server told.
func (b *Backend) Info() backend.Info { return b.info }

// Dialect returns the name of the dialect that is spoken.
func (b *Backend) Dialect() string { return b.d.name }

// String names the backend, without its key.
func (b *Backend) String() string {
	return b.d.name + "+" + strings.TrimSuffix(b.srv.base.String(), "/") + "?model=" + b.info.Model
}

// Emulations tells what Generate and Score do themselves because the server
// does not, in the words that begin the entries of Result.Emulated.
func (b *Backend) Emulations() []string {
	if b.opts.NoEmulation {
		return nil
	}
	var out []string
	for _, m := range []struct {
		name string
		how  method
	}{{"json_schema", b.d.jsonSchema}, {"regex", b.d.regex}, {"choices", b.d.choices}} {
		switch m.how {
		case retried:
			out = append(out, m.name+": validated")
		case asSchema:
			out = append(out, m.name+": a one-field schema")
		}
	}
	if !b.d.scores() && b.d.choices != none {
		out = append(out, "score: a constrained choice")
	}
	return out
}

// Close ends the work in progress with backend.ErrClosed and frees the
// connections.
func (b *Backend) Close() error {
	b.end()
	if b.ownTransport != nil {
		b.ownTransport.CloseIdleConnections()
	}
	return nil
}

// enter returns a context that also ends when b is closed, with
// backend.ErrClosed as its cause.
func (b *Backend) enter(ctx context.Context) (context.Context, func(), error) {
	if b.life.Err() != nil {
		return nil, nil, fmt.Errorf("remote: %w", backend.ErrClosed)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(b.life, func() { cancel(backend.ErrClosed) })
	return ctx, func() { stop(); cancel(nil) }, nil
}

// call is one request as it goes on the wire.
type call struct {
	req    *backend.Request
	d      *dialect
	model  string
	turns  []backend.Turn
	raw    bool
	guided bool

	how    method // of the constraint
	kind   string // name of the constraint
	strict bool   // of a schema
	// check returns the result's text for an answer, or why the answer is not
	// what the constraint allows; nil: the server is relied on.
	check func(answer string) (text string, err error)
	// hold keeps the answer back until it was checked.
	hold bool
	// notes go to Result.Emulated.
	notes []string
}

// maxTokens is the limit to send: a choice in a schema needs a few more.
func (c *call) maxTokens() int {
	if c.req.MaxTokens > 0 && c.how == asSchema {
		return c.req.MaxTokens + 16
	}
	return c.req.MaxTokens
}

// wireSchema returns the schema to send, nil for none.
func (c *call) wireSchema() any {
	switch {
	case c.how == asSchema:
		return choiceSchema(c.req.Constraint.Choices)
	case c.how == native && c.kind == "json_schema":
		return rawJSON(c.req.Constraint.JSONSchema)
	}
	return nil
}

// plan checks a request against the dialect and returns what to send. It does
// no I/O, so that what is refused costs nothing.
func (b *Backend) plan(r *backend.Request) (*call, error) {
	c := &call{req: r, d: b.d, model: b.info.Model, guided: b.guided, strict: true}
	if r.MaxTokens < 0 || r.MinTokens < 0 || r.MaxTokens > 0 && r.MinTokens > r.MaxTokens {
		return nil, invalidf("the limits of tokens are wrong: at least %d, at most %d", r.MinTokens, r.MaxTokens)
	}
	if slices.Contains(r.Stop, "") {
		return nil, invalidf("a stop string is empty")
	}
	if err := b.d.check(r); err != nil {
		return nil, err
	}
	if k := &r.Constraint; len(k.Choices) > 0 && r.MaxTokens == 0 {
		// A choice is finite: no token is shorter than a byte. The server's own
		// limit might be.
		bounded := *r
		bounded.MaxTokens = 16
		for _, s := range k.Choices {
			bounded.MaxTokens = max(bounded.MaxTokens, len(s)+16)
		}
		r, c.req = &bounded, &bounded
	}
	var err error
	if c.turns, c.raw, err = b.d.checkTurns(r.Turns); err != nil {
		return nil, err
	}
	if !c.raw && answered(c.turns) && !b.d.newAfterAssistant {
		if b.opts.NoEmulation {
			return nil, unsupportedf("the %s dialect cannot begin an assistant turn after another and emulation is off; put a user turn between them", b.d.name)
		}
		c.turns = append(slices.Clip(c.turns), text(backend.User, goOn))
		c.notes = append(c.notes, betweenNote)
	}
	if !b.d.toolRole && slices.ContainsFunc(c.turns, func(t backend.Turn) bool { return t.Role == backend.Tool }) {
		if b.opts.NoEmulation {
			return nil, unsupportedf("the %s dialect wants a tool's turn to name its call, which a prompt here does not, and emulation is off", b.d.name)
		}
		c.notes = append(c.notes, "tool turns: sent as user turns")
	}
	if c.d.name == "anthropic" {
		if err := b.planAnthropic(c); err != nil {
			return nil, err
		}
	}
	if c.raw && r.MaxTokens == 0 && !b.fills() {
		return nil, invalidf("the %s dialect needs MaxTokens with a raw prompt: it has a small limit of its own otherwise", b.d.name)
	}
	if r.Constraint.IsZero() {
		return c, nil
	}
	if err := b.planConstraint(c); err != nil {
		return nil, err
	}
	return c, nil
}

// fills reports whether a raw prompt can be generated from without a limit, up
// to what is left of the context.
func (b *Backend) fills() bool {
	switch b.d.name {
	case "vllm", "llama":
		return true
	case "sglang":
		return b.canTokenize && b.info.ContextLength > 0
	}
	return false
}

// planConstraint fills in how c's constraint is enforced and checked.
func (b *Backend) planConstraint(c *call) error {
	k := &c.req.Constraint
	set := 0
	for _, is := range []bool{len(k.JSONSchema) > 0, k.Regex != "", k.EBNF != "", len(k.Choices) > 0} {
		if is {
			set++
		}
	}
	if set > 1 {
		return invalidf("a request has one constraint at most, this one has %d", set)
	}
	c.how, c.kind = c.d.method(k)
	if c.d.name == "anthropic" && c.kind == "json_schema" && !isOutputSchema(k.JSONSchema) {
		c.how = retried
	}
	switch {
	case c.how == none:
		return unsupportedf("the %s dialect has no %s; use a backend that has it", c.d.name, c.kind)
	case (c.how == retried || c.how == asSchema) && b.opts.NoEmulation:
		return unsupportedf("the %s dialect has no %s of its own and emulation is off", c.d.name, c.kind)
	case c.raw && !c.d.continues: // plain OpenAI completions
		return unsupportedf("the %s dialect takes constraints with chat turns only, not with a raw prompt", c.d.name)
	}
	c.hold = !c.d.trusted || c.how == asSchema
	var err error
	switch c.kind {
	case "json_schema":
		if c.d.completionField && !isStrictSchema(k.JSONSchema) {
			// OpenAI refuses such a schema if strict, and enforces it loosely
			// if not.
			c.strict, c.hold = false, true
		}
		if c.check, err = schemaCheck(k.JSONSchema); err != nil && (c.hold || errors.Is(err, errNotJSON)) {
			return invalidf("the JSON Schema cannot be used: %v", err)
		}
	case "regex":
		if c.how == retried {
			if c.check, err = regexCheck(k.Regex); err != nil {
				return unsupportedf("the %s dialect has no regex and this one cannot be checked here: %v", c.d.name, err)
			}
		} else if c.how == asGrammar {
			if _, err := regexGrammar(k.Regex); err != nil {
				return err
			}
		}
	case "choices":
		c.check = choiceCheck(k.Choices, c.how == asSchema)
	}
	return nil
}

// Generate runs req on the server. Text that emit gets is valid UTF-8 and is
// never taken back.
func (b *Backend) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	ctx, leave, err := b.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if !req.Tokens.IsZero() {
		return nil, named(req.ID, fmt.Errorf("remote: %w: rules about single tokens", backend.ErrUnsupported))
	}
	c, err := b.plan(req)
	if err != nil {
		return nil, named(req.ID, err)
	}
	res, err := b.generateChecked(ctx, c, emit)
	if err != nil {
		return nil, named(req.ID, err)
	}
	return res, nil
}

// contextFull is the context's length if it ended a generation: servers say
// "length" for that as for the limit that was asked for.
func (b *Backend) contextFull(limit int, r *backend.Result) int {
	n, generated := b.info.ContextLength, r.Usage.SampledTokens
	switch {
	case r.Finish != backend.FinishLength || n == 0 || r.Usage.PromptTokens == 0:
		return 0
	case limit > 0 && generated >= limit || r.Usage.PromptTokens+generated < n-1: // some stop one short of it
		return 0
	}
	return n
}

// run makes one generation with retries.
func (b *Backend) run(ctx context.Context, c *call, emit func(backend.Delta)) (*backend.Result, error) {
	col := &collector{emit: emit, stops: c.req.Stop}
	repeatable := c.req.Sampling.Temperature == 0 || c.d.seed
	var res *backend.Result
	err := b.opts.Retry.do(ctx, func() error {
		col.restart()
		err := b.stream(ctx, c, col)
		if err == nil {
			if res, err = col.end(); err != nil {
				err = b.srv.diverged("the restarted stream", err)
			}
		}
		return err
	}, func() bool { return !col.handedOut() || repeatable })
	if err != nil {
		return nil, err
	}
	res.Emulated = append(res.Emulated, c.notes...)
	res.ContextFull = b.contextFull(c.req.MaxTokens, res)
	if res.Part.Tokens != nil {
		res.Part.Model = b.info.Fingerprint
	}
	return res, nil
}

// stream makes one attempt on the route that the dialect has for the prompt.
func (b *Backend) stream(ctx context.Context, c *call, col *collector) error {
	switch {
	case c.d.name == "llama":
		return b.generateLlama(ctx, c, col)
	case c.d.name == "anthropic":
		return b.generateAnthropic(ctx, c, col)
	case c.d.name == "sglang" && c.raw:
		return b.generateSGLang(ctx, c, col)
	case c.raw:
		return b.oai.generateRaw(ctx, c, col)
	}
	return b.oai.generateChat(ctx, c, col)
}

// named puts the request's id into an error.
func named(id string, err error) error {
	var e *Error
	if id == "" {
		return err
	}
	if errors.As(err, &e) {
		e.ID = id
		return err
	}
	return fmt.Errorf("%s: %w", id, err)
}
