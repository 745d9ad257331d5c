package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coppice-run/coppice/runtime/serve"
)

// benchAgainst sends the same requests in turn to our server and to others with
// OpenAI's API, and compares what a client sees. It is the whole of both servers,
// model included, so they should serve the same model.
func benchAgainst(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	p := &o.serve
	if p.clients < 1 || p.tokens < 2 {
		return nil, usagef("--clients is %d and --answer-tokens %d; they are to be at least 1 and 2", p.clients, p.tokens)
	}
	ours := strings.TrimSuffix(p.ours, "/")
	if ours == "" {
		be, err := o.open(ctx)
		if err != nil {
			return nil, err
		}
		defer be.Close()
		cfg := serve.Config{Backend: be}
		if o.backend == "" {
			if err := o.describe(&cfg); err != nil {
				return nil, err
			}
		}
		own, err := startServer(cfg)
		if err != nil {
			return nil, err
		}
		defer own.close()
		ours = own.url
	}
	var rows []benchRow
	for _, peer := range p.against {
		peer = strings.TrimSuffix(peer, "/")
		urls := [2]string{ours, peer}
		var models [2]string
		for i, url := range urls {
			var err error
			if models[i], err = firstModel(ctx, url); err != nil {
				return nil, err
			}
		}
		var seen [2]loadTimes
		var speed [2][]float64
		for run := range o.runs + 1 {
			for i := range urls { // which one is first changes from run to run
				i = (i + run) % 2
				x, err := drive(ctx, urls[i], models[i], p.clients, p.tokens, run)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", urls[i], err)
				}
				if run == 0 { // it warms up
					continue
				}
				seen[i].add(x)
				speed[i] = append(speed[i], float64(x.tokens)/x.took.Seconds())
			}
			fmt.Fprint(a.errOut, ".")
		}
		rows = append(rows, compareLoads(peer, p.clients, &seen[0], &seen[1], median(speed[0]), median(speed[1]))...)
	}
	return rows, nil
}

// compareLoads are the rows of ours beside a peer. Ratios above 1 are in our
// favour.
func compareLoads(peer string, clients int, ours, theirs *loadTimes, speed, theirSpeed float64) []benchRow {
	what := func(s string) string { return fmt.Sprintf("%s, %d clients, beside %s", s, clients, peer) }
	const least = 1e-6 // ms: below what a clock tells
	times := func(s string, at float64, a, b []float64) benchRow {
		x, y := quantile(a, at), quantile(b, at)
		return benchRow{What: what(s), Value: x, Unit: "ms", Peer: ptr(y), Ratio: ptr(max(y, least) / max(x, least))}
	}
	return []benchRow{
		times("first token, median", .5, ours.first, theirs.first),
		times("first token, 95%", .95, ours.first, theirs.first),
		times("between tokens, median", .5, ours.between, theirs.between),
		times("between tokens, 95%", .95, ours.between, theirs.between),
		times("whole answer, median", .5, ours.whole, theirs.whole),
		times("whole answer, 95%", .95, ours.whole, theirs.whole),
		{What: what("tokens of all clients"), Value: speed, Unit: "tokens/s", Peer: ptr(theirSpeed), Ratio: ptr(speed / theirSpeed)},
		{What: what("tokens that were written (they should be as many)"), Value: float64(ours.tokens), Unit: "tokens", Peer: ptr(float64(theirs.tokens))},
	}
}

// quantile returns the value below which a share of xs lies; 0 of none.
func quantile(xs []float64, share float64) float64 {
	if len(xs) == 0 {
		return 0
	}
	xs = slices.Sorted(slices.Values(xs))
	return xs[min(len(xs)-1, int(share*float64(len(xs))))]
}

// firstModel asks a server what it serves.
func firstModel(ctx context.Context, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/models", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var list struct {
		Data []struct{ ID string }
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list.Data) == 0 {
		return "", fmt.Errorf("%s/v1/models names no model (%s)", url, resp.Status)
	}
	return list.Data[0].ID, nil
}

// loadTimes is what clients saw: in milliseconds, an entry a request.
type loadTimes struct {
	first, between, whole []float64
	tokens                int
	took                  time.Duration
}

func (l *loadTimes) add(x *loadTimes) {
	l.first = append(l.first, x.first...)
	l.between = append(l.between, x.between...)
	l.whole = append(l.whole, x.whole...)
	l.tokens += x.tokens
	l.took += x.took
}

// againstBody is a question of the load: a long text that all requests of a run share,
// and a short one of each client's own. Runs share nothing.
func againstBody(model string, run, client, round, tokens int) string {
	var shared strings.Builder
	for i := range 60 {
		fmt.Fprintf(&shared, "Rule %d of book %d: when service %d is slow, look at its queue first. ", i, run, (i*7+run)%90)
	}
	body, _ := json.Marshal(map[string]any{
		"model": model,
		"messages": []map[string]string{
			{"role": "system", "content": shared.String()},
			{"role": "user", "content": fmt.Sprintf("Client %d asks for the %d. time: which rule holds for service %d?", client, round+1, client*3+round)},
		},
		"max_tokens": tokens, "temperature": 0, "stream": true, "ignore_eos": true,
		"stream_options": map[string]bool{"include_usage": true},
	})
	return string(body)
}

// drive lets each client ask twice, one after the other, all clients at once.
func drive(ctx context.Context, url, model string, clients, tokens, run int) (*loadTimes, error) {
	c := loader(clients)
	defer c.CloseIdleConnections()
	var (
		mu  sync.Mutex
		all loadTimes
	)
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for client := range clients {
		g.Go(func() error {
			for round := range 2 {
				x, err := askOnce(ctx, c, url, againstBody(model, run, client, round, tokens))
				if err != nil {
					return err
				}
				mu.Lock()
				all.add(x)
				mu.Unlock()
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	all.took = time.Since(start)
	return &all, nil
}

// askOnce sends one request and times the pieces of its answer. Where the server
// sends no usage, a piece counts as a token.
func askOnce(ctx context.Context, c *http.Client, url, body string) (*loadTimes, error) {
	start := time.Now()
	resp, err := postJSON(ctx, c, url+"/v1/chat/completions", body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var (
		x           loadTimes
		first, last time.Time
		pieces      int
	)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 16<<10), 1<<20)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok || string(data) == "[DONE]" {
			continue
		}
		var e struct {
			Choices []struct {
				Delta struct {
					Content   string `json:"content"`
					Reasoning string `json:"reasoning_content"`
				} `json:"delta"`
			} `json:"choices"`
			Usage *struct {
				Completion int `json:"completion_tokens"`
			} `json:"usage"`
			Error json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(data, &e); err != nil {
			return nil, fmt.Errorf("an event that is no JSON: %w", err)
		}
		if e.Error != nil {
			return nil, fmt.Errorf("the stream ended with %s", e.Error)
		}
		if len(e.Choices) > 0 && e.Choices[0].Delta.Content+e.Choices[0].Delta.Reasoning != "" {
			last = time.Now()
			if pieces == 0 {
				first = last
			}
			pieces++
		}
		if e.Usage != nil {
			x.tokens = e.Usage.Completion
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if pieces == 0 {
		return nil, fmt.Errorf("the answer has no text")
	}
	if x.tokens == 0 {
		x.tokens = pieces
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	x.first, x.whole = []float64{ms(first.Sub(start))}, []float64{ms(time.Since(start))}
	if x.tokens > 1 {
		x.between = []float64{ms(last.Sub(first)) / float64(x.tokens-1)}
	}
	return &x, nil
}
