package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/runtime/serve"
)

// serveBenchOptions say how the server is loaded.
type serveBenchOptions struct {
	urls     []string
	streams  int
	requests int
	soak     time.Duration

	against         []string
	ours            string
	clients, tokens int
}

func (o *serveBenchOptions) register(c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVar(&o.urls, "url", nil, "serve: another OpenAI-compatible server to measure beside, as http://host:port; repeatable")
	f.IntVar(&o.streams, "streams", 1000, "serve: streams that are open at once")
	f.IntVar(&o.requests, "requests", 2000, "serve: good and bad requests in the mix")
	f.StringArrayVar(&o.against, "against", nil, "serve: send the same requests in turn to our server and to this one, as http://host:port, and print ratios; repeatable")
	f.StringVar(&o.ours, "ours", "", "serve: with --against, our server, as http://host:port; without it one is started on --model")
	f.IntVar(&o.clients, "clients", 8, "serve: with --against, clients at once")
	f.IntVar(&o.tokens, "answer-tokens", 64, "serve: with --against, tokens of an answer")
	f.DurationVar(&o.soak, "soak", 0, "serve: go on with the mix for that long")
}

// benchServe measures what the server costs by itself, on a device that answers
// at once, and how it bears many streams and bad requests, on a simulated one.
// Client and server are one process and share its processors, as they do on a
// small machine; the figures of other servers are of this same client.
func benchServe(a *app, ctx context.Context, o *benchOptions) ([]benchRow, error) {
	p := &o.serve
	if len(p.against) > 0 {
		return benchAgainst(a, ctx, o)
	}
	if p.streams < 2 || p.requests < 1 {
		return nil, usagef("--streams is %d and --requests %d; they are to be at least 2 and 1", p.streams, p.requests)
	}
	own, err := startServer(serve.Config{Backend: nullDevice{}})
	if err != nil {
		return nil, err
	}
	defer own.close()
	bare, err := listenOn(http.HandlerFunc(oneEvent))
	if err != nil {
		return nil, err
	}
	defer bare.close()

	const goalTokens, goalFirst = 20_000, 100
	var tokens, first, floor []float64
	progress := a.steps(o.runs + len(p.urls) + 2)
	for range o.runs {
		progress.next("a device that costs nothing: tokens of 32 streams, the first token of one")
		v, err := streamedTokens(ctx, own.url, "", 32, 500)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, v)
		if v, err = timeToFirst(ctx, own.url, "", 300); err != nil {
			return nil, err
		}
		first = append(first, v)
		if v, err = timeToFirst(ctx, bare.url, "", 300); err != nil {
			return nil, err
		}
		floor = append(floor, v)
	}
	added := median(first) - median(floor)
	rows := []benchRow{
		{What: "streamed tokens on a device that costs nothing, 32 streams (limit: goal)", Value: median(tokens), Unit: "tokens/s", Limit: ptr(goalTokens), Ratio: ptr(median(tokens) / goalTokens)},
		{What: "added to the time to the first token (limit: goal)", Value: added, Unit: "us", Limit: ptr(goalFirst), Ratio: ptr(goalFirst / max(added, 1))},
		{What: "first token over HTTP, in all", Value: median(first), Unit: "us"},
		{What: "of it HTTP itself: a handler that writes one event", Value: median(floor), Unit: "us"},
	}
	for _, url := range p.urls {
		url = strings.TrimSuffix(url, "/")
		progress.next("%s", url)
		model, err := firstModel(ctx, url)
		if err != nil {
			return rows, err
		}
		v, err := streamedTokens(ctx, url, model, 32, 100)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", url, err)
		}
		t, err := timeToFirst(ctx, url, model, 20)
		if err != nil {
			return rows, fmt.Errorf("%s: %w", url, err)
		}
		rows = append(rows,
			benchRow{What: "streamed tokens of " + url + ", 32 streams, its device included", Value: v, Unit: "tokens/s"},
			benchRow{What: "first token of " + url + ", its device included", Value: t, Unit: "us"})
	}
	progress.next("%d streams", p.streams)
	more, err := benchStreams(ctx, p.streams)
	if err != nil {
		return rows, err
	}
	rows = append(rows, more...)
	progress.next("%d requests, good and bad", p.requests)
	if more, err = benchMix(ctx, p.requests, p.soak); err != nil {
		return rows, err
	}
	return append(rows, more...), nil
}

// nullDevice says as many words as it may, at once.
type nullDevice struct{ puppet.Null }

func (nullDevice) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	word := backend.Delta{Text: "word "}
	n := max(1, req.MaxTokens)
	for range n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if emit != nil {
			emit(word)
		}
	}
	return &backend.Result{
		Part:   backend.Part{Text: strings.Repeat(word.Text, n)},
		Finish: backend.FinishLength,
		Usage:  backend.Usage{PromptTokens: 1, SampledTokens: n},
	}, nil
}

// oneEvent answers as little as a stream can be.
func oneEvent(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"word \"}}]}\n\ndata: [DONE]\n\n")
}

// listening is a server on a free port of the loopback interface.
type listening struct {
	url  string
	http *http.Server
	srv  *serve.Server // nil for other handlers
	done chan error
}

func listenOn(h http.Handler) (*listening, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &listening{url: "http://" + ln.Addr().String(), http: &http.Server{Handler: h}, done: make(chan error, 1)}
	go func() { l.done <- l.http.Serve(ln) }()
	return l, nil
}

func startServer(cfg serve.Config) (*listening, error) {
	srv, err := serve.New(cfg)
	if err != nil {
		return nil, err
	}
	l, err := listenOn(srv)
	if err != nil {
		srv.Close()
		return nil, err
	}
	l.srv = srv
	return l, nil
}

func (l *listening) close() {
	if l.srv != nil {
		l.srv.Close()
	}
	l.http.Close()
	<-l.done
}

// loader is a client with enough connections.
func loader(conns int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConns: conns, MaxIdleConnsPerHost: conns, DisableCompression: true}}
}

func chatBody(model, text string, tokens int) string {
	name, _ := json.Marshal(model)
	quoted, _ := json.Marshal(text)
	return fmt.Sprintf(`{"model":%s,"messages":[{"role":"user","content":%s}],"max_tokens":%d,"temperature":0,"stream":true,"stream_options":{"include_usage":true}}`, name, quoted, tokens)
}

// post sends a request that must be answered with 200.
func postJSON(ctx context.Context, c *http.Client, url, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	// A server may close a connection that served often enough: the client then asks
	// again on another. The key is for net/http alone, which does not send it.
	req.Header["Idempotency-Key"] = nil
	resp, err := c.Do(req)
	if err == nil && resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
		resp.Body.Close()
		err = fmt.Errorf("POST %s: %s: %s", url, resp.Status, text)
	}
	return resp, err
}

var usageMark = []byte(`"completion_tokens":`)

// streamedTokens is the tokens per second of some streams together, each with a
// number of tokens, as counted by the server's usage.
func streamedTokens(ctx context.Context, url, model string, streams, tokens int) (float64, error) {
	c := loader(streams)
	defer c.CloseIdleConnections()
	var total atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for i := range streams {
		g.Go(func() error {
			for round := range 4 {
				resp, err := postJSON(ctx, c, url+"/v1/chat/completions", chatBody(model, fmt.Sprintf("stream %d, round %d", i, round), tokens))
				if err != nil {
					return err
				}
				lines := bufio.NewScanner(resp.Body)
				lines.Buffer(make([]byte, 0, 16<<10), 1<<20)
				for lines.Scan() {
					if !bytes.Contains(lines.Bytes(), usageMark) {
						continue
					}
					var e struct {
						Usage struct {
							Completion int64 `json:"completion_tokens"`
						}
					}
					if json.Unmarshal(bytes.TrimPrefix(lines.Bytes(), []byte("data: ")), &e) == nil {
						total.Add(e.Usage.Completion)
					}
				}
				resp.Body.Close()
				if err := lines.Err(); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	return float64(total.Load()) / time.Since(start).Seconds(), nil
}

var contentMark = []byte(`"content":"`)

// timeToFirst is the median time in microseconds until the first text of an
// answer is there, one request after the other on one connection.
func timeToFirst(ctx context.Context, url, model string, requests int) (float64, error) {
	c := loader(1)
	defer c.CloseIdleConnections()
	var times []float64
	for i := range requests + 10 {
		start := time.Now()
		resp, err := postJSON(ctx, c, url+"/v1/chat/completions", chatBody(model, fmt.Sprintf("request %d", i), 1))
		if err != nil {
			return 0, err
		}
		seen := time.Duration(0)
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if at := bytes.Index(lines.Bytes(), contentMark); seen == 0 && at >= 0 && lines.Bytes()[at+len(contentMark)] != '"' {
				seen = time.Since(start)
			}
		}
		resp.Body.Close()
		if err := lines.Err(); err != nil {
			return 0, err
		}
		if seen == 0 {
			return 0, fmt.Errorf("%s answered without a text", url)
		}
		if i >= 10 { // the first ones open the connection and warm up
			times = append(times, float64(seen.Nanoseconds())/1e3)
		}
	}
	return median(times), nil
}
