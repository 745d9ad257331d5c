package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/tokenizer"
	"github.com/coppice-run/coppice/cache"
	"github.com/coppice-run/coppice/grammar"
)

// Model is what the engine needs of a model. [FromModel] makes one of a
// *model.Model.
type Model interface {
	VocabSize() int
	ContextLength() int
	// NewKV returns a pool of pages of model.PageSize tokens.
	NewKV(pages int) (KV, error)
	// PageBytes is the memory of one page.
	PageBytes() int
	Close()
}

// Coster is a Model that knows what a pass costs.
type Coster interface {
	// TokenCost is what one more token costs in a pass of a few, at a depth, as a
	// share of a pass of one token.
	TokenCost(depth int) float64
}

// usualCost is that of a model that does not know.
const usualCost = 0.1

// KV holds keys and values, and computes on them. The engine uses it from one
// goroutine.
type KV interface {
	// Forward computes the rows of a batch; logits has one slice of VocabSize
	// for each output of each row, in order. What a row computes must not
	// depend on the other rows, nor on how its sequence was cut into rows. After
	// an error the rows are computed again, each sequence in a batch of its own.
	Forward(batch *model.Batch, logits [][]float32) error
	// CopyPage copies the first tokens positions of page src to page dst.
	CopyPage(dst, src int32, tokens int)
	Close()
}

// Launcher is a KV that computes on a device of its own: the engine plans the
// next step while the device works on one.
type Launcher interface {
	KV
	// Launch starts what Forward does and returns a function that waits for its
	// end. Until that has returned, batch and logits belong to the device; no
	// other method is called.
	Launch(batch *model.Batch, logits [][]float32) (wait func() error)
}

// Tokenizer is what the engine needs of a tokenizer; *tokenizer.Tokenizer is
// one.
type Tokenizer interface {
	Size() int
	EncodePieces(pieces []tokenizer.Piece) []backend.Token
	Bytes(id backend.Token) []byte
	IsControl(id backend.Token) bool
	EndTokens() []backend.Token
	BOS() (backend.Token, bool)
	EOS() (backend.Token, bool)
	AddBOS() bool
	AddSpacePrefix() bool
}

// Config says what an engine is made of. Model, Tokenizer and Fingerprint are
// needed, the rest has defaults.
type Config struct {
	Model     Model
	Tokenizer Tokenizer
	// Template writes the turns. Without one, turns are plain text: the role, a
	// colon and the content on lines of their own.
	Template Template
	which    backend.Template // which one it is, as far as known
	Name     string           // of the model, for people
	// Fingerprint changes whenever the weights or the tokenizer do. The engine's
	// own, see Info, also tells how keys and values are held, since that changes
	// tokens too: of a model.KVType other than BFloat16 it begins with its name.
	Fingerprint string

	// Pages is the size of the KV pool in pages of 16 tokens. Without it,
	// MemoryBytes decides, 1 GiB if that is 0 too; never more than MaxSeqs
	// whole contexts need, and whole groups, see model.PageGroup.
	Pages       int
	MemoryBytes int64
	// TotalBytes bounds the model, the logits of a step, keys and values together;
	// 0 for no bound. With it MemoryBytes is 0: what the model leaves is for keys
	// and values.
	TotalBytes int64
	// TierBytes is memory beside MemoryBytes for pages that are evicted: they are kept
	// there and copied back, not computed again. None by default. It is for a KV that is
	// [Tiered] and no Launcher; with TotalBytes it is part of them.
	TierBytes int64
	// MaxBatchTokens is the number of tokens a step computes at most, 512 by
	// default. A long prompt is cut into such pieces.
	MaxBatchTokens int
	// MaxSeqs is the number of sequences that run at once, 64 by default; more
	// wait.
	MaxSeqs int
	// MaxWaiting is the number of requests that may wait, 4096 by default; more
	// are refused with backend.ErrOverloaded.
	MaxWaiting int
	// Drafts is the number of tokens to guess ahead, none by default: what
	// followed the same few tokens earlier in the sequence. Guesses are computed
	// in the same pass and kept where they are right, so text that is copied
	// takes fewer passes; the output is the same. None are made where the last
	// ones were right too seldom for what a token costs, see [Coster], and with
	// more than a few sequences running.
	Drafts int
	// Choices is the number of tokens that a step may compute for what follows
	// the options of a constraint that leaves few, such as the values of an enum;
	// none by default. Deciding between them then takes no pass of its own; the
	// output is the same. It is worth its tokens where a pass of a few tokens
	// costs about as much as one of one. A Launcher does without.
	Choices int
	// Planning is called at the end of the planning of each step, in the goroutine
	// that computes: a simulation of slow planning. Nil for none.
	Planning func()
	// Before is called before each round, in the goroutine that computes, and before
	// it takes in what has arrived: a simulation brings its clients there. Nil for
	// none.
	Before func()
	// Clock tells the time since some start, by which the engine learns how long
	// runs stay away. Nil for the system's.
	Clock func() time.Duration
	// Check recounts all pages after every step; if the sum is wrong the cache is
	// thrown away and all begin again from their tokens. For tests.
	Check bool
	// Log receives what no request can be told. The default drops it.
	Log *slog.Logger
}

func (c *Config) setDefaults() error {
	switch {
	case c.Model == nil:
		return errors.New("engine: no model")
	case c.Tokenizer == nil:
		return errors.New("engine: no tokenizer")
	case c.Fingerprint == "":
		return errors.New("engine: no fingerprint")
	case c.Tokenizer.Size() > c.Model.VocabSize():
		return fmt.Errorf("engine: the tokenizer has %d tokens and the model %d", c.Tokenizer.Size(), c.Model.VocabSize())
	case c.Pages < 0 || c.MemoryBytes < 0 || c.TotalBytes < 0 || c.TierBytes < 0 || c.MaxBatchTokens < 0 || c.MaxSeqs < 0 || c.MaxWaiting < 0 || c.Drafts < 0 || c.Choices < 0:
		return errors.New("engine: a limit is negative")
	case c.MemoryBytes > 0 && c.TotalBytes > 0:
		return fmt.Errorf("engine: %w: MemoryBytes for keys and values and TotalBytes for all are both set: choose one", backend.ErrInvalid)
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxBatchTokens, 512)
	def(&c.MaxSeqs, 64)
	def(&c.MaxWaiting, 4096)
	if err := c.budget(); err != nil {
		return err
	}
	if c.Pages == 0 {
		if c.MemoryBytes == 0 {
			c.MemoryBytes = 1 << 30
		}
		all := c.MaxSeqs * (pagesFor(c.Model.ContextLength()) + 1)
		c.Pages = int(min(c.MemoryBytes/int64(c.Model.PageBytes()), int64(all)))
		if c.Pages == 0 {
			return fmt.Errorf("engine: %d bytes of memory for keys and values, and a page of 16 tokens takes %d", c.MemoryBytes, c.Model.PageBytes())
		}
		c.Pages = model.WholePages(c.Pages) // what is reserved is within the budget too
	}
	if c.Clock == nil {
		start := time.Now()
		c.Clock = func() time.Duration { return time.Since(start) }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// budget sets MemoryBytes to what TotalBytes leaves.
func (c *Config) budget() error {
	if c.TotalBytes == 0 {
		return nil
	}
	used := int64(c.maxOutputs()) * int64(c.Model.VocabSize()) * 4
	if m, ok := c.Model.(interface{ Bytes() int64 }); ok {
		used += m.Bytes()
	}
	page := int64(c.Model.PageBytes())
	used += c.TierBytes
	left := c.TotalBytes - used
	if need := page * int64(model.ReservedPages(max(1, c.Pages))); left < need {
		return fmt.Errorf("engine: %w: %d bytes of memory in all, and %s takes %d; keys and values need at least %d more",
			backend.ErrInvalid, c.TotalBytes, c.fixed(), used, need)
	}
	c.MemoryBytes = left
	return nil
}

// fixed names what takes memory besides keys and values.
func (c *Config) fixed() string {
	if c.TierBytes > 0 {
		return "the model with what TierBytes sets aside"
	}
	return "the model alone"
}

// maxOutputs is the number of logits of a step.
func (c *Config) maxOutputs() int { return max(c.MaxSeqs, 32) }

// Engine runs a model. It is safe for concurrent use.
type Engine struct {
	cfg      Config
	id       uint64
	tok      Tokenizer
	end      []backend.Token // ends a turn, ascending
	context  int             // tokens a sequence may have
	compiler *compiler
	grammars *grammars
	byText   func() *byText // of the vocabulary
	maxWays  int            // see maxWays

	mu      sync.Mutex
	inbox   []*sequence
	jobs    []func()
	arrived uint64
	waiting int // requests accepted and not yet finished
	closed  bool
	stats   Stats
	wake    chan struct{}
	done    chan struct{}
	recent  passRing

	// What follows belongs to the loop.
	kv        KV
	tier      Tier // nil without one
	slots     int  // of it
	sched     *scheduler
	device    Launcher     // kv, if it works by itself
	wait      func() error // for the step in flight, nil without one
	launched  uint64       // number of the step in flight
	start     time.Time    // of it
	copies    []pageCopy   // to be done before the next launch
	tables    [][]int32    // pages of the rows in flight
	pass      uint64
	computing bool      // a pass is under way, as far as the loop has to do with it
	current   *sequence // for which something is done that no other has a part in
	batch     model.Batch
	steps     []work
	branches  []branch // options of the step under way
	buffers   [][]float32
	mask      []uint64
	rawLogits []float32
	totals    Stats
}

// New starts an engine. Close it when done; that closes the model too.
func New(cfg Config) (*Engine, error) {
	e, err := build(cfg)
	if err == nil {
		go e.loop()
	}
	return e, err
}

// build is New without the loop.
func build(cfg Config) (*Engine, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	kv, err := cfg.Model.NewKV(cfg.Pages)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	if t := kvType(cfg.Model); t != model.BFloat16 {
		cfg.Fingerprint = string(t) + "-" + cfg.Fingerprint
	}
	e := &Engine{
		cfg:  cfg,
		id:   rand.Uint64() | 1,
		tok:  cfg.Tokenizer,
		kv:   kv,
		wake: make(chan struct{}, 1),
		done: make(chan struct{}),
	}
	if e.cfg.Template == nil {
		e.cfg.Template, e.cfg.which = plainTurns{}, backend.PlainTemplate
	}
	tmpl := e.cfg.Template
	e.end = endTokens(cfg.Tokenizer, tmpl)
	e.context = min(cfg.Model.ContextLength(), cfg.Pages*cache.PageTokens)
	e.compiler = newCompiler(cfg.Tokenizer, tmpl, cfg.Fingerprint, 64<<20)
	e.maxWays = maxWays
	e.byText = sync.OnceValue(func() *byText { return newByText(e.tok, e.isEnd) })
	e.grammars = newGrammars(sync.OnceValues(func() (*grammar.Vocab, error) { return NewVocab(e.tok, e.end) }))
	e.mask = make([]uint64, (cfg.Model.VocabSize()+63)/64)
	e.device, _ = kv.(Launcher)
	if err := e.openTier(); err != nil {
		kv.Close()
		return nil, err
	}
	e.sched = e.newScheduler()
	e.stats = e.snapshot()
	return e, nil
}

// tokenCost is what one more token costs in a pass, see [Coster].
func (e *Engine) tokenCost(depth int) float64 {
	if c, ok := e.cfg.Model.(Coster); ok {
		return c.TokenCost(depth)
	}
	return usualCost
}

// kvType is how a model of our own holds keys and values.
func kvType(m Model) model.KVType {
	if own, ok := m.(interface{ KVType() model.KVType }); ok {
		return own.KVType()
	}
	return model.BFloat16
}

func (e *Engine) newScheduler() *scheduler {
	copyPage := e.kv.CopyPage
	if e.device != nil {
		e.copies = e.copies[:0]
		copyPage = e.copyLater
	}
	c := cache.New(e.cfg.Pages)
	if e.tier != nil {
		c.SetTier(e.tier, e.slots)
	}
	return &scheduler{
		cache:      c,
		outlook:    newOutlook(e.cfg.Clock),
		copyPage:   copyPage,
		budget:     e.cfg.MaxBatchTokens,
		maxSeqs:    e.cfg.MaxSeqs,
		maxOutputs: e.cfg.maxOutputs(),
		minShare:   cache.PageTokens,
		ageLimit:   64,
	}
}

// endTokens is the union of what the tokenizer knows to end a text and what the
// template ends an assistant's turn with.
func endTokens(tok Tokenizer, tmpl Template) []backend.Token {
	end := slices.Clone(tok.EndTokens())
	asked := []backend.Turn{{Role: backend.User, Parts: []backend.Part{{Text: "question"}}}}
	if a, err := tmpl.Turn(asked, backend.Assistant); err == nil {
		for _, id := range tok.EncodePieces(a.Close) {
			if tok.IsControl(id) {
				end = append(end, id)
				break
			}
		}
	}
	slices.Sort(end)
	return slices.Compact(end)
}

func (e *Engine) isEnd(t backend.Token) bool {
	_, ok := slices.BinarySearch(e.end, t)
	return ok
}

// hide takes tokens out of a mask, unless nothing else is in it.
func hide(mask []uint64, tokens []backend.Token) {
	var had [8]backend.Token
	hidden := had[:0]
	for _, t := range tokens {
		if mask[t/64]&(1<<(t%64)) != 0 {
			mask[t/64] &^= 1 << (t % 64)
			hidden = append(hidden, t)
		}
	}
	for _, w := range mask {
		if w != 0 {
			return
		}
	}
	for _, t := range hidden {
		mask[t/64] |= 1 << (t % 64)
	}
}

// Info describes the model and what the engine can do: everything.
func (e *Engine) Info() backend.Info {
	return backend.Info{
		Model:         e.cfg.Name,
		Fingerprint:   e.cfg.Fingerprint,
		ContextLength: e.context,
		Template:      e.cfg.which,
		ToolFormat:    toolFormat(e.cfg.Template),
		Capabilities: backend.Capabilities{
			JSONSchema: true, Regex: true, EBNF: true, Choices: true, Score: true,
			TokenIDs: true, ForkHints: true, Logprobs: true, Seed: true, Raw: true, TokenRules: true, Tags: true,
			OpenTurns: true, ScoreTokens: true, ScoreExact: true, CloseAtLimit: true,
		},
	}
}

// Tokenize returns the ids of a prompt.
func (e *Engine) Tokenize(turns []backend.Turn, open bool) ([]backend.Token, error) {
	p, err := e.compiler.compile(turns, open)
	if err != nil {
		return nil, err
	}
	return p.ids, nil
}

// Flush forgets all cached prefixes. Requests that run are not disturbed.
func (e *Engine) Flush() {
	e.do(func() { e.sched.cache.Flush() })
}

// Foresee implements [backend.Foreseer].
func (e *Engine) Foresee(run, branch string, a backend.Absence) {
	if run == "" {
		return
	}
	now := e.cfg.Clock()
	e.post(func() { e.sched.outlook.foresee(e.sched.cache, cache.Owner{Run: run, Branch: branch}, a, now) })
}

// EndRun implements [backend.Foreseer]: what was kept for the run is ordinary
// cache now.
func (e *Engine) EndRun(run string) {
	e.post(func() { e.sched.outlook.endRun(e.sched.cache, run) })
}

// post lets the loop run f before the next step, and waits for nothing.
func (e *Engine) post(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.jobs = append(e.jobs, f)
		e.signal()
	}
}

// do runs f on the loop and waits for it.
func (e *Engine) do(f func()) {
	ran := make(chan struct{})
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.jobs = append(e.jobs, func() { defer close(ran); f() })
	e.mu.Unlock()
	e.signal()
	<-ran
}

func (e *Engine) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Close stops the engine: requests that are not finished end with
// backend.ErrClosed. It returns when the loop has ended.
func (e *Engine) Close() error {
	e.mu.Lock()
	was := e.closed
	e.closed = true
	e.mu.Unlock()
	e.signal()
	<-e.done
	if !was {
		if e.tier != nil {
			e.tier.Close()
		}
		e.kv.Close()
		e.cfg.Model.Close()
	}
	return nil
}

// submit hands a sequence to the loop.
func (e *Engine) submit(s *sequence) error {
	s.trace, s.left = backend.TraceOf(s.ctx), new(atomic.Bool)
	if err := e.accept(s); err != nil {
		return err
	}
	if s.trace != nil && s.trace.Queued != nil {
		s.trace.Queued(s.id)
	}
	return nil
}

func (e *Engine) accept(s *sequence) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return backend.ErrClosed
	case e.waiting >= e.cfg.MaxWaiting:
		return fmt.Errorf("%w: %d requests wait already", backend.ErrOverloaded, e.waiting)
	}
	e.waiting++
	e.arrived++
	s.order = e.arrived
	e.inbox = append(e.inbox, s)
	e.signal()
	return nil
}

// wrap puts a request's name before its error.
func wrap(id string, err error) error {
	if err == nil || id == "" {
		return err
	}
	return fmt.Errorf("%s: %w", id, err)
}

// ctxError is the error of a cancelled request.
func ctxError(ctx context.Context) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, ctx.Err()) {
		return fmt.Errorf("%w: %w", ctx.Err(), cause)
	}
	return ctx.Err()
}

// stack is the stack of a recovered panic, for the log.
func stack() string { return string(debug.Stack()) }
