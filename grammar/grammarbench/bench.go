package grammarbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-run/coppice/grammar"
)

// Quantiles of durations, in microseconds.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
	Mean float64 `json:"mean"`
	N    int     `json:"n"`
}

// Report is what [Run] measured. Times are of one goroutine.
type Report struct {
	Schemas  int `json:"schemas"`
	Compiled int `json:"compiled"`
	Vocab    int `json:"vocab"`

	CompileUS   Quantiles `json:"compile_us"`
	FirstMaskUS Quantiles `json:"first_mask_us"` // compiling and the first mask
	MaskUS      Quantiles `json:"mask_us"`
	CommitUS    Quantiles `json:"commit_us"`
	JumpUS      Quantiles `json:"jump_us"` // commit with planning of forced tokens

	// ForcedShare is the share of tokens of accepted valid texts that needed no
	// model call; ForcedBytes the share of bytes that were forced; NonCanonical
	// the texts whose canonical tokens a plan stood in the way of.
	ForcedShare  float64            `json:"forced_share"`
	ForcedBytes  float64            `json:"forced_bytes_share"`
	ForcedBySet  map[string]float64 `json:"forced_share_by_set"`
	ForcedTools  float64            `json:"forced_share_tools"` // of the sets of tool calls: BFCL, Glaive, JME, MCP
	NonCanonical int                `json:"non_canonical"`
	// The same with VocabOptions.Eager.
	EagerShare        float64 `json:"eager_share"`
	EagerTools        float64 `json:"eager_share_tools"`
	EagerNonCanonical int     `json:"eager_non_canonical"`
	Texts             int     `json:"texts"`

	VocabMS float64 `json:"vocab_ms"`
	VocabMB float64 `json:"vocab_mb"`
	RSSMB   float64 `json:"rss_mb"`

	Slow []string `json:"slow"` // the slowest masks and compiles
}

type line struct {
	ID     string          `json:"id"`
	Set    string          `json:"set"`
	Schema json.RawMessage `json:"schema"`
	Tests  []lineTest      `json:"tests"`
}

type lineTest struct {
	Valid bool            `json:"valid"`
	Data  json.RawMessage `json:"data"`
}

type slow struct {
	us   float64
	what string
}

// Run reads lines {"id","set","schema","tests":[{"valid","data"}]}, compiles
// every schema, and walks the compact text of every test up to where it leaves
// the grammar, asking for a mask before every token.
func Run(ctx context.Context, jsonl io.Reader, tok *Tokenizer) (*Report, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	rep := &Report{Vocab: len(tok.Tokens), ForcedBySet: map[string]float64{}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := begin()
	vocab, err := grammar.NewVocab(tok.Tokens, grammar.VocabOptions{EndTokens: tok.End})
	if err != nil {
		return nil, err
	}
	rep.VocabMS = start.us() / 1e3
	runtime.GC()
	runtime.ReadMemStats(&after)
	rep.VocabMB = float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / (1 << 20)
	planned, err := grammar.NewVocab(tok.Tokens, grammar.VocabOptions{EndTokens: tok.End, Encode: tok.Encode})
	if err != nil {
		return nil, err
	}
	eager, err := grammar.NewVocab(tok.Tokens, grammar.VocabOptions{EndTokens: tok.End, Encode: tok.Encode, Eager: true})
	if err != nil {
		return nil, err
	}
	r := &runner{rep: rep, tok: tok, vocab: vocab, planned: planned, eager: eager, bits: make([]uint64, vocab.MaskWords()), sets: map[string]*[4]int{}}
	if err := eachLine(jsonl, func(l *line) error { return r.schema(ctx, l) }); err != nil {
		return nil, err
	}
	rep.CompileUS, rep.FirstMaskUS = QuantilesOf(r.compile), QuantilesOf(r.first)
	rep.MaskUS, rep.CommitUS, rep.JumpUS = QuantilesOf(r.mask), QuantilesOf(r.commit), QuantilesOf(r.jump)
	if r.total > 0 {
		rep.ForcedShare = float64(r.forced) / float64(r.total)
		rep.ForcedBytes = float64(r.forcedBytes) / float64(r.bytes)
	}
	var tools, all [4]int
	for s, n := range r.sets {
		for i, x := range n {
			all[i] += x
			if strings.HasPrefix(s, "BFCL") || strings.HasPrefix(s, "Glaive") || strings.HasPrefix(s, "JME") || strings.HasPrefix(s, "MCP") {
				tools[i] += x
			}
		}
		rep.ForcedBySet[s] = float64(n[0]) / float64(max(n[1], 1))
	}
	rep.ForcedTools = float64(tools[0]) / float64(max(tools[1], 1))
	rep.EagerTools = float64(tools[2]) / float64(max(tools[3], 1))
	rep.EagerShare = float64(all[2]) / float64(max(all[3], 1))
	slices.SortFunc(r.slow, func(a, b slow) int { return int(b.us - a.us) })
	for _, s := range r.slow[:min(25, len(r.slow))] {
		rep.Slow = append(rep.Slow, fmt.Sprintf("%.0f us %s", s.us, s.what))
	}
	rep.RSSMB = rss()
	return rep, nil
}

// eachLine calls f for every line.
func eachLine(jsonl io.Reader, f func(*line) error) error {
	in := bufio.NewReaderSize(jsonl, 1<<20)
	for n := 1; ; n++ {
		text, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(text)) > 0 {
			var l line
			if err := json.Unmarshal(text, &l); err != nil {
				return fmt.Errorf("line %d: %w", n, err)
			}
			if err := f(&l); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

type runner struct {
	rep            *Report
	tok            *Tokenizer
	vocab, planned *grammar.Vocab
	eager          *grammar.Vocab
	bits           []uint64

	compile, first, mask, commit, jump []float64
	total, forced, bytes, forcedBytes  int
	spelled                            int                // tokens that are forced, or that State.Likely knew
	sets                               map[string]*[4]int // forced and all tokens; the same when eager
	slow                               []slow
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// span measures one piece of work: wall time, or the thread's processor time
// where that is known and the wall time is so long that it may hold waiting.
type span struct {
	wall time.Time
	cpu  time.Duration
}

func begin() span { return span{cpu: threadTime(), wall: time.Now()} }

func (s span) us() float64 {
	d := time.Since(s.wall)
	if cpu := threadTime(); d > 50*time.Microsecond && cpu > 0 {
		d = min(d, cpu-s.cpu)
	}
	return us(d)
}

func (r *runner) note(d float64, limit float64, what string) {
	if d > limit {
		r.slow = append(r.slow, slow{d, what})
	}
}

func (r *runner) schema(ctx context.Context, l *line) error {
	r.rep.Schemas++
	spec := grammar.Spec{JSONSchema: l.Schema}
	start := begin()
	g, err := grammar.Compile(ctx, spec, r.vocab)
	d := start.us()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.compile = append(r.compile, d)
	r.note(d, 20_000, "compile "+l.ID)
	if err != nil {
		return nil
	}
	r.rep.Compiled++
	g.Start().Mask(r.bits)
	r.first = append(r.first, start.us())
	pg, err := grammar.Compile(ctx, spec, r.planned)
	if err != nil {
		return err
	}
	eg, err := grammar.Compile(ctx, spec, r.eager)
	if err != nil {
		return err
	}
	for i, t := range l.Tests {
		text, err := grammar.Canonical(t.Data)
		if err != nil {
			return fmt.Errorf("%s, test %d: %w", l.ID, i, err)
		}
		ids := r.tok.Encode(text)
		r.walk(g, l.ID, ids)
		if t.Valid && g.Match(text) {
			r.force(pg, l.Set, ids, len(text))
			r.forceEager(eg, l.Set, ids)
		}
	}
	return nil
}

func (r *runner) walk(g *grammar.Grammar, id string, ids []int32) {
	s := g.Start()
	for k, t := range ids {
		start := begin()
		s.Mask(r.bits)
		d := start.us()
		start = begin()
		next, err := s.Accept(t)
		commit := start.us()
		r.mask = append(r.mask, d)
		r.note(d, 300, "mask "+id+" token "+strconv.Itoa(k)+" "+strconv.Quote(string(r.tok.Tokens[t])))
		legal := r.bits[t>>6]&(1<<(t&63)) != 0
		if legal != (err == nil) {
			panic(fmt.Sprintf("grammarbench: %s token %d: mask says %v, Accept says %v", id, k, legal, err))
		}
		if err != nil {
			return
		}
		r.commit = append(r.commit, commit)
		s = next
	}
}

func (r *runner) force(g *grammar.Grammar, set string, ids []int32, size int) {
	r.rep.Texts++
	r.bytes += size
	forced, likely, known := 0, 0, 0 // known: tokens up to here were likely
	s := g.Start()
	for k := 0; k < len(ids); {
		if f := s.Forced(); len(f) > 0 {
			// Count each forced byte once: at the place where it is next.
			r.forcedBytes += min(len(f), len(r.tok.Tokens[ids[k]]))
		}
		plan, after := s.Jump()
		for j, t := range plan {
			if k+j >= len(ids) || ids[k+j] != t {
				r.rep.NonCanonical++
				return
			}
			if j > 0 {
				r.forcedBytes += len(r.tok.Tokens[t])
			}
		}
		forced += len(plan)
		if k += len(plan); k >= len(ids) {
			break
		}
		if k >= known {
			for _, t := range after.Likely() {
				if known = max(known, k); known >= len(ids) || ids[known] != t {
					break
				}
				known++
				likely++
			}
		}
		start := begin()
		next, err := after.Accept(ids[k])
		r.jump = append(r.jump, start.us())
		if err != nil {
			r.rep.NonCanonical++
			return
		}
		s = next
		k++
	}
	r.forced += forced
	r.spelled += forced + likely
	r.total += len(ids)
	n := r.set(set)
	n[0] += forced
	n[1] += len(ids)
}

func (r *runner) set(name string) *[4]int {
	n := r.sets[name]
	if n == nil {
		n = new([4]int)
		r.sets[name] = n
	}
	return n
}

// forceEager counts the fed tokens up to where they leave the canonical ones.
func (r *runner) forceEager(g *grammar.Grammar, set string, ids []int32) {
	n := r.set(set)
	s := g.Start()
	for k := 0; k < len(ids); k++ {
		var plan []int32
		plan, s = s.Jump()
		for _, t := range plan {
			if k >= len(ids) || ids[k] != t {
				r.rep.EagerNonCanonical++
				return
			}
			n[2]++
			n[3]++
			k++
		}
		if k >= len(ids) {
			return
		}
		next, err := s.Accept(ids[k])
		if err != nil {
			r.rep.EagerNonCanonical++
			return
		}
		s = next
		n[3]++
	}
}

// QuantilesOf are the quantiles of x, zero when it is empty.
func QuantilesOf(x []float64) Quantiles {
	if len(x) == 0 {
		return Quantiles{}
	}
	x = slices.Clone(x)
	slices.Sort(x)
	at := func(q float64) float64 { return x[min(len(x)-1, int(q*float64(len(x))))] }
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return Quantiles{at(.5), at(.9), at(.99), at(.999), x[len(x)-1], sum / float64(len(x)), len(x)}
}

// rss is the resident memory of this process in MiB, 0 where unknown.
func rss() float64 {
	raw, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for l := range strings.SplitSeq(string(raw), "\n") {
		if f := strings.Fields(l); len(f) >= 2 && f[0] == "VmRSS:" {
			kb, _ := strconv.ParseFloat(f[1], 64)
			return kb / 1024
		}
	}
	return 0
}
