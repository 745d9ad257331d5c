package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// forkOutcome is what the fork workload took on one server.
type forkOutcome struct {
	Wall      float64 `json:"wall_s"`
	Computed  float64 `json:"prefilled"` // prompt tokens that were not cached
	Generated float64 `json:"gen"`
}

// peerFork runs the fork workload on llama-server and on 'coppice serve', each
// started for the run and cold.
func (a *app) peerFork(ctx context.Context, o *benchOptions, label func(string) string, file string, threads int) ([]benchRow, error) {
	p := &o.peers
	if p.server == "" {
		fmt.Fprintln(a.errOut, "no llama-server: the fork workload is left out")
		return nil, nil
	}
	job, err := newForkJob(o, file)
	if err != nil {
		return nil, err
	}
	if job == nil {
		fmt.Fprintln(a.errOut, label("the fork workload does not fit in the context"))
		return nil, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := strconv.Itoa(threads)
	own := []string{self, "serve", "--model", file, "--threads", t}
	if o.kv != "" {
		own = append(own, "--kv", o.kv)
	}
	if p.forkbench != "" {
		own = append(own, "--served-model-name", "m") // which the script asks for; llama-server takes any name
	}
	var all [2][]forkOutcome // coppice, llama.cpp
	progress := a.steps(2 * o.runs)
	for range o.runs {
		for i, args := range [][]string{
			1: append([]string{p.server, "-m", file, "-t", t, "-tb", t, "-np", "1", "-c", strconv.Itoa(job.context), "-fa", "on"}, p.extra...),
			0: own,
		} {
			progress.next("%s", label("fork workload on "+filepath.Base(args[0])))
			out, err := a.runFork(ctx, job, i == 0, args)
			if err != nil {
				return nil, fmt.Errorf("fork workload on %s: %w", args[0], err)
			}
			all[i] = append(all[i], out)
		}
	}
	pick := func(i int, f func(forkOutcome) float64) float64 {
		var v []float64
		for _, x := range all[i] {
			v = append(v, f(x))
		}
		return median(v)
	}
	row := func(what, unit string, f func(forkOutcome) float64) benchRow {
		ours, theirs := pick(0, f), pick(1, f)
		r := benchRow{What: label("fork workload, " + what), Value: ours, Unit: unit, Peer: ptr(theirs)}
		if ours > 0 {
			r.Ratio = ptr(theirs / ours)
		}
		return r
	}
	return []benchRow{
		row(job.name, "s", func(f forkOutcome) float64 { return f.Wall }),
		row("prompt tokens computed", "tokens", func(f forkOutcome) float64 { return f.Computed }),
		row("tokens generated", "tokens", func(f forkOutcome) float64 { return f.Generated }),
	}, nil
}

// runFork starts a server, runs the job on it and ends it.
func (a *app) runFork(ctx context.Context, job *forkJob, ours bool, args []string) (out forkOutcome, err error) {
	addr, err := freeAddr()
	if err != nil {
		return out, err
	}
	if ours {
		args = append(args, "--addr", addr)
	} else {
		host, port, _ := net.SplitHostPort(addr)
		args = append(args, "--host", host, "--port", port)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = 10 * time.Second
	var log lockedBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return out, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // it is killed in the end; before that, the client's error tells more
	}()
	defer func() {
		cancel()
		<-ended
	}()
	url := "http://" + addr
	if err := awaitReady(ctx, url, ended); err != nil {
		return out, fmt.Errorf("%w\n%s", err, clip(log.bytes()))
	}
	if out, err = job.run(ctx, url); err != nil {
		return out, fmt.Errorf("%w\n%s", err, clip(log.bytes()))
	}
	return out, nil
}

// freeAddr is an address that nobody listens on now.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// awaitReady waits until a server answers that it is well.
func awaitReady(ctx context.Context, url string, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil); err == nil {
			if resp, err := http.DefaultClient.Do(req); err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					return nil
				}
			}
		}
		select {
		case <-ended:
			return errors.New("the server ended before it was ready")
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// lockedBuffer collects what a process prints.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) bytes() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Clone(l.b.Bytes())
}

// forkClient speaks the OpenAI API as an ordinary program does.
type forkClient struct {
	url  string
	chat bool // the model has a chat template
	mu   sync.Mutex
	sum  forkOutcome
}

type chatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ask sends one request and returns the text.
func (c *forkClient) ask(ctx context.Context, messages []chatMessage, tokens int, schema json.RawMessage) (string, error) {
	body := map[string]any{"model": "bench", "temperature": 0, "max_tokens": tokens, "cache_prompt": true}
	path := "/v1/chat/completions"
	if c.chat {
		body["messages"] = messages
	} else {
		path = "/v1/completions"
		var b strings.Builder
		for _, m := range messages {
			fmt.Fprintf(&b, "%s:\n%s\n\n", m.Role, m.Content)
		}
		body["prompt"] = b.String() + "assistant:\n"
	}
	if schema != nil {
		body["response_format"] = map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "decision", "strict": true, "schema": schema}}
	} else {
		body["ignore_eos"] = true
	}
	data, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(data))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err = io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %s", path, resp.Status, clip(data))
	}
	return c.read(data)
}

// read takes the text and the usage from a response.
func (c *forkClient) read(data []byte) (string, error) {
	var r struct {
		Choices []struct {
			Text    string
			Message chatMessage
		}
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Gen     int `json:"completion_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Timings *struct {
			Computed int `json:"prompt_n"`
		}
	}
	if err := json.Unmarshal(data, &r); err != nil || len(r.Choices) == 0 {
		return "", fmt.Errorf("an answer without choices: %s", clip(data))
	}
	computed := r.Usage.Prompt - r.Usage.Details.Cached
	if r.Timings != nil {
		computed = r.Timings.Computed
	}
	c.mu.Lock()
	c.sum.Computed += float64(computed)
	c.sum.Generated += float64(r.Usage.Gen)
	c.mu.Unlock()
	if c.chat {
		return r.Choices[0].Message.Content, nil
	}
	return r.Choices[0].Text, nil
}

// run does the rounds: branches at once, then a join that reads all of them.
func (j *forkJob) run(ctx context.Context, url string) (forkOutcome, error) {
	if j.script != "" {
		return j.runScript(ctx, url)
	}
	c := &forkClient{url: url, chat: j.chat}
	turns := []chatMessage{{"system", j.prefix}}
	start := time.Now()
	for round := range j.rounds {
		texts := make([]string, j.branches)
		g, gctx := errgroup.WithContext(ctx)
		for b := range j.branches {
			g.Go(func() (err error) {
				msgs := append(turns[:len(turns):len(turns)], chatMessage{"user", j.question(round, b)})
				texts[b], err = c.ask(gctx, msgs, j.reply, nil)
				return err
			})
		}
		if err := g.Wait(); err != nil {
			return c.sum, err
		}
		join := chatMessage{"user", j.join(round, texts)}
		turns = append(turns[:len(turns):len(turns)], join)
		text, err := c.ask(ctx, turns, 128, j.schema)
		if err != nil {
			return c.sum, err
		}
		turns = append(turns, chatMessage{"assistant", text})
	}
	c.sum.Wall = time.Since(start).Seconds()
	return c.sum, nil
}

// runScript runs a script of the user's on the server.
func (j *forkJob) runScript(ctx context.Context, url string) (forkOutcome, error) {
	var r struct{ Total *forkOutcome }
	out, err := output(ctx, "python3", j.script, "--url", url, "--branches", strconv.Itoa(j.branches), "--rounds", strconv.Itoa(j.rounds), "--branch-tokens", strconv.Itoa(j.reply))
	if err != nil {
		return forkOutcome{}, err
	}
	for line := range bytes.Lines(out) {
		if json.Unmarshal(line, &r) == nil && r.Total != nil && r.Total.Wall > 0 {
			return *r.Total, nil
		}
	}
	return forkOutcome{}, fmt.Errorf("%s printed no line with a total: %s", j.script, clip(out))
}
