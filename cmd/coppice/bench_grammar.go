package main

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/grammar"
	"github.com/coppice-run/coppice/grammar/grammarbench"
)

// grammarBenchOptions say what 'bench grammar' measures and against whom.
type grammarBenchOptions struct {
	jsonl, tokenizer string
	runner, python   string
	budget           float64
	schemas, prompts int // jump
}

func (o *grammarBenchOptions) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.jsonl, "jsonl", "", "grammar, jump: schemas with their tests, one a line, may end in .gz")
	f.StringVar(&o.tokenizer, "tokenizer", "", "grammar, jump: a tokenizer.json")
	f.StringVar(&o.runner, "runner", "", "grammar, jump: Python script that measures xgrammar and llguidance; it takes ENGINE TOKENIZER OUT FILE --compact --budget S, for jump also --ff --no-masks, and writes one line of JSON a schema")
	f.StringVar(&o.python, "python", "python3", "grammar, jump: the Python that has both")
	f.IntVar(&o.schemas, "schemas", 0, "jump: write so many schemas of --jsonl with the model instead, with and without jump-forward, and compare")
	f.IntVar(&o.prompts, "prompts", 2, "jump: prompts for each of --schemas")
	f.Float64Var(&o.budget, "runner-seconds", 900, "grammar, jump: seconds for each of them")
}

// peerEngines are the names that the runner knows the peers by.
var peerEngines = []struct{ engine, name string }{{"llg", "llguidance"}, {"xgr", "xgrammar"}}

// grammarFigures is what is compared.
type grammarFigures struct {
	compile, first, mask, commit grammarbench.Quantiles
	schemas, right, wrong        int
	refused                      int
	vocabMS, vocabMB             float64
	micro                        map[string]microFigures // of a peer, by case
}

type microFigures struct {
	compile float64 // us
	mask    grammarbench.Quantiles
}

// benchGrammar measures package grammar over schemas with the vocabulary of a
// tokenizer, then its peers on the same, in one run.
func benchGrammar(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	g := &o.grammar
	if g.jsonl == "" || g.tokenizer == "" {
		return nil, usagef("bench grammar needs --jsonl and --tokenizer")
	}
	ours, tok, err := grammarOurs(ctx, g)
	if err != nil {
		return nil, err
	}
	limits := map[string]float64{"compile p50": 1000, "compile p99": 30_000, "first mask p50": 1500, "mask p50": 5, "mask p90": 40, "mask p99": 200, "mask max": 5000, "commit p50": 0.5, "vocabulary set-up": 1000, "vocabulary memory": 120}
	var rows []benchRow
	add := func(who string, peer *grammarFigures) {
		row := func(what, unit string, get func(*grammarFigures) float64, less bool) {
			r := benchRow{What: what + who, Value: get(ours), Unit: unit}
			if l, ok := limits[what]; ok {
				r.Limit = ptr(l)
			}
			if peer != nil {
				over, under := get(ours), get(peer)
				r.Peer = ptr(under)
				if less {
					over, under = under, over
				}
				// A figure of nothing, say of a peer that refused all, has no ratio.
				if over > 0 && under > 0 {
					r.Ratio = ptr(over / under)
				}
			}
			rows = append(rows, r)
		}
		for _, q := range []struct {
			what string
			get  func(*grammarFigures) *grammarbench.Quantiles
		}{
			{"compile", func(f *grammarFigures) *grammarbench.Quantiles { return &f.compile }},
			{"first mask", func(f *grammarFigures) *grammarbench.Quantiles { return &f.first }},
			{"mask", func(f *grammarFigures) *grammarbench.Quantiles { return &f.mask }},
			{"commit", func(f *grammarFigures) *grammarbench.Quantiles { return &f.commit }},
		} {
			row(q.what+" p50", "us", func(f *grammarFigures) float64 { return q.get(f).P50 }, true)
			row(q.what+" p90", "us", func(f *grammarFigures) float64 { return q.get(f).P90 }, true)
			row(q.what+" p99", "us", func(f *grammarFigures) float64 { return q.get(f).P99 }, true)
			row(q.what+" max", "us", func(f *grammarFigures) float64 { return q.get(f).Max }, true)
		}
		row("vocabulary set-up", "ms", func(f *grammarFigures) float64 { return f.vocabMS }, true)
		row("vocabulary memory", "MB", func(f *grammarFigures) float64 { return f.vocabMB }, true)
		row("schemas with every test right", "schemas", func(f *grammarFigures) float64 { return float64(f.right) }, false)
		row("schemas refused", "schemas", func(f *grammarFigures) float64 { return float64(f.refused) }, true)
		row("wrong accepts", "texts", func(f *grammarFigures) float64 { return float64(f.wrong) }, true)
		if peer != nil {
			row("schemas measured", "schemas", func(f *grammarFigures) float64 { return float64(f.schemas) }, false)
		}
	}
	peers := map[string]*grammarFigures{}
	if g.runner == "" {
		add("", nil)
	} else {
		for _, p := range peerEngines {
			theirs, err := grammarPeer(ctx, g, p.engine)
			if err != nil {
				return rows, fmt.Errorf("%s: %w", p.name, err)
			}
			add(" (peer: "+p.name+")", theirs)
			peers[p.name] = theirs
		}
	}
	micro, err := grammarbench.Micro(ctx, tok)
	if err != nil {
		return rows, err
	}
	for _, m := range micro {
		if m.Error != "" {
			return nil, fmt.Errorf("%s: %s", m.Name, m.Error)
		}
		for _, f := range []struct {
			what  string
			ours  float64
			limit *float64
			get   func(microFigures) float64
		}{
			{"compile", m.CompileUS, nil, func(f microFigures) float64 { return f.compile }},
			{"mask p50", m.MaskUS.P50, nil, func(f microFigures) float64 { return f.mask.P50 }},
			{"mask p99", m.MaskUS.P99, nil, func(f microFigures) float64 { return f.mask.P99 }},
			{"mask max", m.MaskUS.Max, ptr(5000), func(f microFigures) float64 { return f.mask.Max }},
		} {
			rows = append(rows, besideBest(benchRow{What: m.Name + ": " + f.what, Value: f.ours, Unit: "us", Limit: f.limit}, peers, m.Name, f.get))
		}
	}
	return rows, nil
}

// besideBest adds to a row the figure of the peer that does best in a case.
func besideBest(r benchRow, peers map[string]*grammarFigures, name string, get func(microFigures) float64) benchRow {
	best := ""
	for _, p := range peerEngines {
		f, ok := peers[p.name]
		if !ok {
			continue
		}
		m, ok := f.micro[name]
		if v := get(m); ok && v > 0 && (r.Peer == nil || v < *r.Peer) {
			r.Peer, best = ptr(v), p.name
		}
	}
	if r.Peer != nil {
		r.What += " (peer: " + best + ")"
		if r.Value > 0 {
			r.Ratio = ptr(*r.Peer / r.Value)
		}
	}
	return r
}

// grammarOurs measures coppice.
func grammarOurs(ctx context.Context, g *grammarBenchOptions) (*grammarFigures, *grammarbench.Tokenizer, error) {
	tok, err := g.readTokenizer()
	if err != nil {
		return nil, nil, err
	}
	f, err := openLines(g.jsonl)
	if err != nil {
		return nil, nil, err
	}
	r, err := grammarbench.Run(ctx, f, tok)
	f.Close()
	if err != nil {
		return nil, nil, err
	}
	if f, err = openLines(g.jsonl); err != nil {
		return nil, nil, err
	}
	defer f.Close()
	c, err := grammar.Check(ctx, f, grammar.CheckOptions{})
	if err != nil {
		return nil, nil, err
	}
	return &grammarFigures{compile: r.CompileUS, first: r.FirstMaskUS, mask: r.MaskUS, commit: r.CommitUS, schemas: c.Schemas, right: c.AllRight, wrong: c.WrongAccepts,
		refused: c.Refused, vocabMS: r.VocabMS, vocabMB: r.VocabMB}, tok, nil
}

func (g *grammarBenchOptions) readTokenizer() (*grammarbench.Tokenizer, error) {
	f, err := os.Open(g.tokenizer)
	if err != nil {
		return nil, usageError{err}
	}
	defer f.Close()
	tok, err := grammarbench.ReadTokenizer(f)
	if err != nil {
		return nil, usagef("%s: %w", g.tokenizer, err)
	}
	return tok, nil
}

// patternPeer is the runner for the small cases that are no schemas.
//
//go:embed grammarpeer.py
var patternPeer []byte

// patternSeconds is the time that a peer has for one of them; one takes minutes
// for a first mask.
const patternSeconds = 20

// patterns adds to f what a peer makes of the small cases that are no
// schemas; dir is laid out.
func (g *grammarBenchOptions) patterns(ctx context.Context, dir, engine string, f *grammarFigures) error {
	lines, err := grammarbench.MicroPatternLines()
	if err != nil {
		return err
	}
	script, in, out := filepath.Join(dir, "patterns.py"), filepath.Join(dir, "patterns.jsonl"), filepath.Join(dir, "patterns-out.jsonl")
	if err := errors.Join(os.WriteFile(script, patternPeer, 0o600), os.WriteFile(in, lines, 0o600)); err != nil {
		return err
	}
	if _, err := g.runPython(ctx, dir, script, engine, filepath.Join("tok", "t"), out, in, fmt.Sprint(patternSeconds)); err != nil {
		return err
	}
	r, err := os.Open(out)
	if err != nil {
		return err
	}
	defer r.Close()
	more, err := readPeer(r)
	if err != nil {
		return err
	}
	maps.Copy(f.micro, more.micro)
	return nil
}

// runPython runs a script in dir and returns what it said on its standard error.
func (g *grammarBenchOptions) runPython(ctx context.Context, dir string, args ...string) (said string, err error) {
	cmd := exec.CommandContext(ctx, g.python, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, lastLines(stderr.String(), 3))
	}
	return stderr.String(), nil
}

// grammarPeer runs the runner for one peer, in a folder laid out as it wants.
func grammarPeer(ctx context.Context, g *grammarBenchOptions, engine string) (*grammarFigures, error) {
	dir, err := os.MkdirTemp("", "coppice-bench-grammar-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	in, err := openLines(g.jsonl)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	micro, err := grammarbench.MicroLines()
	if err != nil {
		return nil, err
	}
	out, said, err := g.runPeer(ctx, dir, io.MultiReader(bytes.NewReader(micro), in), engine)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	f, err := readPeer(out)
	if err != nil {
		return nil, err
	}
	f.vocabMS, f.vocabMB = vocabSaid(said)
	return f, g.patterns(ctx, dir, engine, f)
}

// vocabSaid is what a runner says on its standard error of setting up the
// vocabulary, zero where it says nothing.
func vocabSaid(said string) (ms, mb float64) {
	for l := range strings.Lines(said) {
		var v struct {
			Seconds float64 `json:"tok_s"`
			MB      float64 `json:"tok_rss_mb"`
		}
		if json.Unmarshal([]byte(l), &v) == nil && v.Seconds > 0 {
			return 1e3 * v.Seconds, v.MB
		}
	}
	return 0, 0
}

// runPeer lets the runner measure lines in dir, opens what it wrote, and returns
// what it said on its standard error.
func (g *grammarBenchOptions) runPeer(ctx context.Context, dir string, lines io.Reader, engine string, more ...string) (out *os.File, said string, err error) {
	if err := layOut(g, dir, lines); err != nil {
		return nil, "", err
	}
	runner, err := filepath.Abs(g.runner)
	if err != nil {
		return nil, "", err
	}
	args := append([]string{runner, engine, "t", "out.jsonl", "in.jsonl", "--compact", "--budget", fmt.Sprint(g.budget)}, more...)
	if said, err = g.runPython(ctx, dir, args...); err != nil {
		return nil, "", err
	}
	out, err = os.Open(filepath.Join(dir, "out.jsonl"))
	return out, said, err
}

// layOut writes in.jsonl and tok/t/{tokenizer,tokenizer_config}.json.
func layOut(g *grammarBenchOptions, dir string, in io.Reader) error {
	lines, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	tokenizer, err := os.ReadFile(g.tokenizer)
	if err != nil {
		return err
	}
	var added struct {
		Added []struct {
			Content string `json:"content"`
		} `json:"added_tokens"`
	}
	if err := json.Unmarshal(tokenizer, &added); err != nil {
		return err
	}
	end := ""
	for _, t := range added.Added {
		if slices.Contains([]string{"eos", "s", "end_of_text", "endoftext", "eot_id", "im_end", "end_of_turn"}, strings.Trim(t.Content, "<|>/")) && t.Content != "<s>" && end == "" {
			end = t.Content
		}
	}
	config, err := json.Marshal(map[string]string{"eos_token": end})
	if err != nil {
		return err
	}
	tok := filepath.Join(dir, "tok", "t")
	if err := os.MkdirAll(tok, 0o700); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "in.jsonl"), lines, 0o600),
		os.WriteFile(filepath.Join(tok, "tokenizer.json"), tokenizer, 0o600),
		os.WriteFile(filepath.Join(tok, "tokenizer_config.json"), config, 0o600),
	)
}

// readPeer reads the runner's lines.
func readPeer(r io.Reader) (*grammarFigures, error) {
	f := &grammarFigures{micro: map[string]microFigures{}}
	var compile, first, mask, commit []float64
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		text, err := in.ReadBytes('\n')
		if len(bytes.TrimSpace(text)) > 0 {
			var l struct {
				ID      string    `json:"id"`
				Set     string    `json:"set"`
				Error   string    `json:"error"`
				Compile float64   `json:"compile_cpu_us"`
				First   float64   `json:"ttfm_cpu_us"`
				Mask    []float64 `json:"mask_us"`
				Commit  []float64 `json:"commit_us"`
				Tests   []struct {
					Valid, Acc, EOS bool
				} `json:"tests"`
			}
			if err := json.Unmarshal(text, &l); err != nil {
				return nil, fmt.Errorf("a line of the runner: %w", err)
			}
			switch {
			case l.Set == grammarbench.MicroSet:
				if l.Error == "" && len(l.Mask) > 0 {
					f.micro[l.ID] = microFigures{l.Compile, grammarbench.QuantilesOf(l.Mask)}
				}
			case l.Error != "":
				f.schemas++
				f.refused++
				compile = append(compile, l.Compile)
			default:
				f.schemas++
				compile = append(compile, l.Compile)
				first = append(first, l.First)
				mask, commit = append(mask, l.Mask...), append(commit, l.Commit...)
				right := true
				for _, t := range l.Tests {
					accepted := t.Acc && t.EOS
					right = right && accepted == t.Valid
					if accepted && !t.Valid {
						f.wrong++
					}
				}
				if right {
					f.right++
				}
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	f.compile, f.first = grammarbench.QuantilesOf(compile), grammarbench.QuantilesOf(first)
	f.mask, f.commit = grammarbench.QuantilesOf(mask), grammarbench.QuantilesOf(commit)
	return f, nil
}

// lastLines is the end of a text.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
