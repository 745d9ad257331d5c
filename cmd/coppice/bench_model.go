package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/compute"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// speedOptions say what the benchmarks of whole models measure.
type speedOptions struct {
	models   []string
	threads  []int
	depths   []int
	prompt   int
	tokens   int
	branches []int
	shared   int
	resident int
}

func (o *speedOptions) register(c *cobra.Command) {
	f := c.Flags()
	f.StringSliceVar(&o.models, "models", nil, "decode, prefill, peers: models to measure (default: that of --model)")
	f.IntSliceVar(&o.threads, "thread-counts", nil, "decode, prefill: numbers of threads (default: that of --threads)")
	f.IntSliceVar(&o.depths, "depths", []int{0, 3000}, "decode, prefill, peers: tokens that are computed before")
	f.IntVar(&o.prompt, "prompt-tokens", 512, "prefill, peers: tokens of a prompt")
	f.IntVar(&o.tokens, "tokens", 128, "decode, peers: tokens to generate")
	f.IntSliceVar(&o.branches, "branches", []int{1, 8, 32}, "decode, peers: sequences over one shared prompt")
	f.IntVar(&o.shared, "shared-tokens", 6000, "decode, peers: tokens of that prompt, 0 for none of it")
	f.IntVar(&o.resident, "resident-tokens", 0, "decode, prefill: measure again with this many tokens of other prompts in the cache")
}

// check refuses what cannot be measured and fills in the defaults.
func (o *benchOptions) check() error {
	s := &o.speed
	if _, err := o.compute(); err != nil {
		return err
	}
	if len(s.models) == 0 {
		s.models = []string{o.model}
	}
	if len(s.threads) == 0 {
		s.threads = []int{o.threads}
	}
	for i, n := range s.threads {
		switch {
		case n < 0:
			return usagef("--thread-counts holds %d", n)
		case n == 0:
			s.threads[i] = runtime.NumCPU()
		}
	}
	for _, d := range s.depths {
		if d < 0 {
			return usagef("--depths holds %d", d)
		}
	}
	for _, b := range s.branches {
		if b < 1 {
			return usagef("--branches holds %d, it must be at least 1", b)
		}
	}
	if s.prompt < 1 || s.tokens < 2 || s.shared < 0 || s.resident < 0 {
		return usagef("--prompt-tokens must be at least 1, --tokens at least 2, the other counts not negative")
	}
	return nil
}

// subject is a model under measurement, in an engine of its own.
type subject struct {
	name   string
	eng    *engine.Engine
	mod    *model.Model
	limits compute.Limits
	load   time.Duration   // from the file to packed weights
	bytes  int             // of the file
	plain  []backend.Token // ids that are neither control tokens nor empty
	rng    *rand.Rand
}

// openSubject loads a model with room for the given number of tokens, and
// measures the machine beside it.
func openSubject(name string, kv model.KVType, threads, tokens int) (*subject, error) {
	m := modelFlags{model: name}
	f, err := m.openGGUF()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	limits, err := compute.MeasureLimits(threads)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	mod, err := model.Load(f, model.Options{Threads: threads, KV: kv})
	if err != nil {
		return nil, err
	}
	load := time.Since(start)
	s, err := newSubject(f, mod, tokens)
	if err != nil {
		mod.Close()
		return nil, err
	}
	s.load, s.bytes = load, f.Size()
	s.name, s.limits = strings.TrimSuffix(filepath.Base(name), ".gguf"), limits
	if mod.KVType() != model.BFloat16 {
		s.name += ", kv " + string(mod.KVType())
	}
	return s, nil
}

func newSubject(f *gguf.File, mod *model.Model, tokens int) (*subject, error) {
	s := &subject{mod: mod, rng: rand.New(rand.NewPCG(1, 2))}
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		return nil, err
	}
	for i := range tok.Size() {
		if id := backend.Token(i); !tok.IsControl(id) && len(tok.Bytes(id)) > 0 {
			s.plain = append(s.plain, id)
		}
	}
	if len(s.plain) == 0 {
		return nil, fmt.Errorf("the vocabulary holds nothing but control tokens")
	}
	em, err := engine.FromModel(mod)
	if err != nil {
		return nil, err
	}
	s.eng, err = engine.Load(f, engine.Config{Model: em, Tokenizer: tok, Pages: (tokens+model.PageSize-1)/model.PageSize + 64}, model.Options{})
	return s, err
}

func (s *subject) close() { s.eng.Close() }

// text returns n random ids.
func (s *subject) text(n int) []backend.Token {
	ids := make([]backend.Token, n)
	for i := range ids {
		ids[i] = s.plain[s.rng.IntN(len(s.plain))]
	}
	return ids
}

// timing says when a generation gave its tokens.
type timing struct {
	first time.Time // of the first piece
	early int       // tokens in it
	end   time.Time
	usage backend.Usage
}

func (s *subject) request(ids []backend.Token, n int) *backend.Request {
	return &backend.Request{
		ID:        "bench",
		Turns:     []backend.Turn{{Role: backend.Raw, Parts: []backend.Part{{Text: "-", Tokens: ids, Model: s.eng.Info().Fingerprint}}}},
		MaxTokens: n, IgnoreEOS: true,
	}
}

// ask generates n tokens after ids, and listens to each.
func (s *subject) ask(ctx context.Context, ids []backend.Token, n int) (timing, error) {
	var t timing
	r, err := s.eng.Generate(ctx, s.request(ids, n), func(d backend.Delta) {
		if t.first.IsZero() && len(d.Tokens) > 0 {
			t.first, t.early = time.Now(), len(d.Tokens)
		}
	})
	t.end = time.Now()
	if err != nil {
		return t, err
	}
	t.usage = r.Usage
	return t, nil
}

// prepare computes ids, so that what begins with them finds them in the cache.
func (s *subject) prepare(ctx context.Context, ids []backend.Token) error {
	if len(ids) == 0 {
		return nil
	}
	_, err := s.ask(ctx, ids, 1)
	return err
}

// fill puts n tokens of other prompts into the cache.
func (s *subject) fill(ctx context.Context, n int) error {
	for n > 0 {
		part := min(n, 2048, s.mod.Config().ContextLength-2)
		if err := s.prepare(ctx, s.text(part)); err != nil {
			return err
		}
		n -= part
	}
	return nil
}

// fits tells whether so many tokens fit in the context.
func (s *subject) fits(tokens int) bool { return tokens < s.mod.Config().ContextLength }

// decode returns the tokens per second of one sequence after ids, from the end of the
// pass that gave the first of n to that of the last pass. Nobody listens, as where a
// program wants the whole answer: to wake a listener is work of its own.
func (s *subject) decode(ctx context.Context, ids []backend.Token, n int) (float64, error) {
	var first, end time.Time
	ctx = backend.WithTrace(ctx, &backend.Trace{Step: func(st backend.Step) {
		if end = st.End; st.Prompt {
			first = end
		}
	}})
	if _, err := s.eng.Generate(ctx, s.request(ids, n), nil); err != nil {
		return 0, err
	}
	if n < 2 || !end.After(first) {
		return 0, fmt.Errorf("%d tokens came in one pass: measure more of them", n)
	}
	return float64(n-1) / end.Sub(first).Seconds(), nil
}

// decodeTo is decode with a listener, from the first piece that it gets to the end.
func (s *subject) decodeTo(ctx context.Context, ids []backend.Token, n int) (float64, error) {
	t, err := s.ask(ctx, ids, n)
	if err != nil {
		return 0, err
	}
	if t.early >= n {
		return 0, fmt.Errorf("all %d tokens came as one piece: measure more of them", n)
	}
	return float64(n-t.early) / t.end.Sub(t.first).Seconds(), nil
}

// prefill returns the tokens per second of a prompt of n tokens after ids, which
// are in the cache.
func (s *subject) prefill(ctx context.Context, ids []backend.Token, n int) (float64, error) {
	prompt := append(slices.Clone(ids), s.text(n)...)
	start := time.Now()
	t, err := s.ask(ctx, prompt, 1)
	if err != nil {
		return 0, err
	}
	if t.usage.ComputedTokens > n+1 {
		return 0, fmt.Errorf("%d tokens were computed, not %d: the cache lost the others", t.usage.ComputedTokens, n)
	}
	return float64(n) / t.end.Sub(start).Seconds(), nil
}

// step returns the seconds of one step of so many sequences, which share ids but
// for the last token.
func (s *subject) step(ctx context.Context, ids []backend.Token, branches, n int) (float64, error) {
	times := make([]timing, branches)
	errs := make([]error, branches)
	prompts := make([][]backend.Token, branches)
	for i := range prompts {
		prompts[i] = append(slices.Clone(ids), s.plain[i%len(s.plain)])
	}
	var wg sync.WaitGroup
	for i := range branches {
		wg.Go(func() { times[i], errs[i] = s.ask(ctx, prompts[i], n) })
	}
	wg.Wait()
	var first, end time.Time
	early := 0
	for i, t := range times {
		if errs[i] != nil {
			return 0, errs[i]
		}
		if t.first.After(first) {
			first, early = t.first, t.early
		}
		if t.end.After(end) {
			end = t.end
		}
	}
	if early >= n {
		return 0, fmt.Errorf("all %d tokens came as one piece: measure more of them", n)
	}
	return end.Sub(first).Seconds() / float64(n-early), nil
}

// limitRows are the machine's peaks as rows.
func limitRows(l compute.Limits) []benchRow {
	row := func(what, unit string, v float64) benchRow {
		return benchRow{What: fmt.Sprintf("machine, %d threads: %s", l.Threads, what), Value: v, Unit: unit}
	}
	return []benchRow{
		row("read bandwidth", "GB/s", l.ReadGBs),
		row("8-bit dot products", "GMAC/s", l.Int8GMACs),
		row("bfloat16 dot products", "GMAC/s", l.BF16GMACs),
		row("float32 multiply-adds", "GMAC/s", l.F32GMACs),
	}
}

// loadRow is the time to read a model's file and to pack its weights for the kernels,
// beside that of reading and writing so many bytes once. The first run on a file also
// waits for the disk.
func (s *subject) loadRow() benchRow {
	limit := 2 * float64(s.bytes) / (s.limits.ReadGBs * 1e9)
	return benchRow{What: s.label("load (limit: read and write bandwidth)"), Value: s.load.Seconds(), Unit: "s", Limit: ptr(limit), Ratio: ptr(limit / s.load.Seconds())}
}

// decodeBytes is what is read for a token of one sequence that sees depth positions:
// weights, keys and values.
func (s *subject) decodeBytes(depth int) float64 {
	w := s.mod.Work(depth)
	return float64(w.WeightBytes + w.KVBytes)
}

// prefillLimit is the tokens per second at which the multiply-adds of a prompt
// are done at the machine's peaks: matrices as 8-bit dot products, attention as
// bfloat16 ones. Over keys and values in 8 bits a score is an 8-bit product, and a
// weight of two parts with a value two of them.
func (s *subject) prefillLimit(depth, n int) float64 {
	w := s.mod.Work(depth + (n+1)/2)
	attention := s.limits.BF16GMACs
	if s.mod.KVType() == model.Int8 {
		attention = s.limits.Int8GMACs / 1.5
	}
	seconds := (float64(n)*float64(w.MatrixMACs)+float64(w.OutputMACs))/(s.limits.Int8GMACs*1e9) +
		float64(n)*float64(w.AttentionMACs)/(attention*1e9)
	return float64(n) / seconds
}
