package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend/model"
)

// peerOptions say where llama.cpp's tools are.
type peerOptions struct {
	bench, server, batched string
	forkbench              string
	rounds, forks, reply   int
	extra                  []string
}

func (o *peerOptions) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&o.bench, "llama-bench", "llama-bench", "peers: path of the tool")
	f.StringVar(&o.server, "llama-server", "llama-server", "peers: path of the tool")
	f.StringVar(&o.batched, "llama-batched-bench", "llama-batched-bench", "peers: path of the tool")
	f.StringArrayVar(&o.extra, "llama-arg", nil, "peers: one more argument for llama-server, e.g. --swa-full; repeatable")
	f.StringVar(&o.forkbench, "forkbench", "", "peers: Python script of a fork workload to run on both servers instead of the built-in one; it takes --url, asks for the model m and prints a line {\"total\":{\"wall_s\":...}}")
	f.IntVar(&o.rounds, "rounds", 4, "peers: rounds of the fork workload")
	f.IntVar(&o.forks, "fork-branches", 8, "peers: branches of each round")
	f.IntVar(&o.reply, "branch-tokens", 48, "peers: tokens of each branch")
}

// find looks for a tool; an empty path means that it is not there.
func find(name string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	return path
}

// benchPeers runs llama.cpp's tools and coppice in turn on the same model file
// with the same number of threads. The ratio is how much better coppice is.
func benchPeers(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	p := &o.peers
	p.bench, p.server, p.batched = find(p.bench), find(p.server), find(p.batched)
	if p.bench == "" && p.server == "" && p.batched == "" {
		return nil, usagef("none of llama-bench, llama-server and llama-batched-bench was found: name them with --llama-bench and the like")
	}
	if p.rounds < 1 || p.forks < 1 || p.reply < 1 {
		return nil, usagef("--rounds, --fork-branches and --branch-tokens must be at least 1")
	}
	threads := o.threads
	if threads <= 0 {
		threads = runtime.NumCPU()
	}
	var rows []benchRow
	for i, name := range o.speed.models {
		file, remove, err := peerFile(name)
		if err != nil {
			return nil, err
		}
		more, err := a.peerModel(ctx, o, name, file, threads, i == 0)
		remove()
		rows = append(rows, more...)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", name, err)
		}
	}
	return rows, nil
}

// peerFile returns the path of a model, which is written to a file if it is in
// the binary.
func peerFile(name string) (path string, remove func(), err error) {
	data, ok := embedded[name]
	if !ok {
		path, err = modelPath(name)
		return path, func() {}, err
	}
	dir, err := os.MkdirTemp("", "coppice-bench-")
	if err != nil {
		return "", nil, err
	}
	path = filepath.Join(dir, name+".gguf")
	return path, func() { os.RemoveAll(dir) }, os.WriteFile(path, data(), 0o600)
}

func (a *app) peerModel(ctx context.Context, o *benchOptions, name, file string, threads int, machine bool) ([]benchRow, error) {
	s, err := openSubject(name, model.KVType(o.kv), threads, o.speed.room())
	if err != nil {
		return nil, err
	}
	var rows []benchRow
	if machine {
		rows = limitRows(s.limits)
	}
	for _, part := range []func(context.Context, *benchOptions, *subject, string) ([]benchRow, error){a.peerSpeeds, a.peerSteps} {
		more, err := part(ctx, o, s, file)
		rows = append(rows, more...)
		if err != nil {
			s.close()
			return rows, err
		}
	}
	label := s.label
	s.close() // the servers below have the machine to themselves
	more, err := a.peerFork(ctx, o, label, file, threads)
	return append(rows, more...), err
}

// peerSpeeds is decode and prefill by llama-bench and by coppice.
func (a *app) peerSpeeds(ctx context.Context, o *benchOptions, s *subject, file string) (rows []benchRow, err error) {
	p := &o.speed
	if o.peers.bench == "" {
		fmt.Fprintln(a.errOut, "no llama-bench: decode and prefill are left out")
		return nil, nil
	}
	for _, depth := range p.depths {
		if !s.fits(depth + max(p.prompt, p.tokens) + 1) {
			fmt.Fprintln(a.errOut, s.label(fmt.Sprintf("depth %d does not fit in the context of %d", depth, s.mod.Config().ContextLength)))
			continue
		}
		var decode, prefill [2][]float64 // coppice, llama.cpp
		var shares []float64             // of the read bandwidth
		for range o.runs {
			dec, pre, err := llamaBench(ctx, o.peers.bench, file, s.limits.Threads, depth, p.prompt, p.tokens)
			if err != nil {
				return rows, err
			}
			decode[1], prefill[1] = append(decode[1], dec), append(prefill[1], pre)
			own, err := s.decodeMedian(a, ctx, depth, p.tokens, 1)
			if err != nil {
				return rows, err
			}
			shares = append(shares, own.speed/own.limit)
			if pre, err = s.prefillMedian(a, ctx, depth, p.prompt, 1); err != nil {
				return rows, err
			}
			decode[0], prefill[0] = append(decode[0], own.speed), append(prefill[0], pre)
		}
		row := func(what string, limit float64, v [2][]float64) benchRow {
			ours, theirs := median(v[0]), median(v[1])
			return benchRow{What: s.label(what), Value: ours, Unit: "tokens/s", Limit: ptr(limit), Peer: ptr(theirs), Ratio: ptr(ours / theirs)}
		}
		rows = append(rows,
			row(fmt.Sprintf("decode %d at depth %d", p.tokens, depth), median(decode[0])/median(shares), decode),
			row(fmt.Sprintf("prefill %d at depth %d", p.prompt, depth), s.prefillLimit(depth, p.prompt), prefill))
	}
	return rows, nil
}

// llamaBench runs llama-bench once and returns its tokens per second.
func llamaBench(ctx context.Context, tool, file string, threads, depth, prompt, tokens int) (decode, prefill float64, err error) {
	out, err := output(ctx, tool, "-m", file, "-t", strconv.Itoa(threads), "-p", strconv.Itoa(prompt), "-n", strconv.Itoa(tokens),
		"-d", strconv.Itoa(depth), "-r", "1", "-fa", "1", "-o", "json")
	if err != nil {
		return 0, 0, err
	}
	return parseLlamaBench(out)
}

// parseLlamaBench reads the list that llama-bench -o json prints.
func parseLlamaBench(out []byte) (decode, prefill float64, err error) {
	var list []struct {
		Prompt int     `json:"n_prompt"`
		Gen    int     `json:"n_gen"`
		Speed  float64 `json:"avg_ts"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return 0, 0, fmt.Errorf("llama-bench: %w", err)
	}
	for _, r := range list {
		switch {
		case r.Gen > 0 && r.Prompt == 0:
			decode = r.Speed
		case r.Prompt > 0 && r.Gen == 0:
			prefill = r.Speed
		}
	}
	if !(decode > 0) || !(prefill > 0) {
		return 0, 0, fmt.Errorf("llama-bench gave no speed for both prompt and generation: %s", clip(out))
	}
	return decode, prefill, nil
}

// peerSteps is the step of several branches over a shared prompt, by
// llama-batched-bench and by coppice.
func (a *app) peerSteps(ctx context.Context, o *benchOptions, s *subject, file string) ([]benchRow, error) {
	p := &o.speed
	if o.peers.batched == "" {
		fmt.Fprintln(a.errOut, "no llama-batched-bench: steps of branches are left out")
		return nil, nil
	}
	if p.shared == 0 || !s.fits(p.shared+p.tokens+1) {
		return nil, nil
	}
	counts := slices.Clone(p.branches)
	if !slices.Contains(counts, 1) {
		counts = append([]int{1}, counts...)
	}
	slices.Sort(counts)
	const tokens = 32
	theirs := make([][]float64, len(counts))
	for range o.runs {
		steps, err := llamaSteps(ctx, o.peers.batched, file, s.limits.Threads, p.shared, tokens, counts)
		if err != nil {
			return nil, err
		}
		for i, n := range counts {
			theirs[i] = append(theirs[i], steps[n])
		}
	}
	q := *p
	q.branches, q.tokens = counts, tokens
	rows, err := s.branchRows(a, ctx, &q, o.runs)
	if err != nil || len(rows) != len(counts) {
		return nil, err
	}
	for i := range rows {
		peer := median(theirs[i])
		rows[i].What = s.label(fmt.Sprintf("step of %d branches over %d shared tokens", counts[i], p.shared))
		rows[i].Peer, rows[i].Ratio = ptr(peer), ptr(peer/rows[i].Value)
	}
	return rows, nil
}

// llamaSteps runs llama-batched-bench and returns milliseconds a step by number
// of branches.
func llamaSteps(ctx context.Context, tool, file string, threads, shared, tokens int, counts []int) (map[int]float64, error) {
	var list []string
	for _, n := range counts {
		list = append(list, strconv.Itoa(n))
	}
	t := strconv.Itoa(threads)
	out, err := output(ctx, tool, "-m", file, "-t", t, "-tb", t, "-c", strconv.Itoa(shared+slices.Max(counts)*(tokens+8)),
		"-b", "2048", "-ub", "512", "-npp", strconv.Itoa(shared), "-ntg", strconv.Itoa(tokens), "-npl", strings.Join(list, ","),
		"-pps", "-kvu", "-fa", "on", "--output-format", "jsonl")
	if err != nil {
		return nil, err
	}
	return parseLlamaSteps(out, counts)
}

// parseLlamaSteps reads the lines of llama-batched-bench.
func parseLlamaSteps(out []byte, counts []int) (map[int]float64, error) {
	steps := map[int]float64{}
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		var r struct {
			Branches int     `json:"pl"`
			Tokens   int     `json:"tg"`
			Seconds  float64 `json:"t_tg"`
		}
		if json.Unmarshal(sc.Bytes(), &r) == nil && r.Branches > 0 && r.Tokens > 0 && r.Seconds > 0 {
			steps[r.Branches] = 1e3 * r.Seconds / float64(r.Tokens)
		}
	}
	for _, n := range counts {
		if steps[n] == 0 {
			return nil, fmt.Errorf("llama-batched-bench gave no line for %d branches: %s", n, clip(out))
		}
	}
	return steps, nil
}

// output runs a tool and returns what it prints; its log is part of the error.
func output(ctx context.Context, tool string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, tool, args...)
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.Output()
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fmt.Errorf("%s: %w\n%s", filepath.Base(tool), err, clip(log.Bytes()))
	}
	return out, nil
}

// clip is the end of a log, as much as helps.
func clip(b []byte) string {
	const most = 1500
	b = bytes.TrimSpace(b)
	return string(b[max(0, len(b)-most):])
}
