package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/errgroup"

	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/sim"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime/serve"
)

// simulated starts a server on a device whose steps take 10 ms.
func simulated(sequences int) (*listening, *engine.Engine, error) {
	e, _, err := sim.New(sim.Options{Step: 10 * time.Millisecond, Engine: engine.Config{MaxSeqs: sequences, MaxWaiting: 8 * sequences, Pages: 12 * sequences, MaxBatchTokens: 4096}})
	if err != nil {
		return nil, nil, err
	}
	long := lang.Define("long", func(p *lang.Program) lang.Var[string] {
		p.User("Go on.")
		return p.Gen("text", lang.MaxTokens(streamTokens))
	})
	g, err := long.Compile()
	if err != nil {
		e.Close()
		return nil, nil, err
	}
	l, err := startServer(serve.Config{
		Backend: e, Programs: []serve.Program{{Graph: g}},
		Limits: serve.Limits{Generations: 8 * sequences, ActiveRuns: sequences, Sockets: sequences, BodyBytes: 1 << 20},
	})
	if err != nil {
		e.Close()
		return nil, nil, err
	}
	return l, e, nil
}

// streamTokens is the length of each of many streams.
const streamTokens = 64

// resident is the memory in use, stacks included, after a collection.
func resident() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// benchStreams opens many streams at once, half of them on websockets.
func benchStreams(ctx context.Context, streams int) ([]benchRow, error) {
	l, e, err := simulated(streams)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	defer l.close()
	c := loader(streams)
	defer c.CloseIdleConnections()
	before := resident()
	got := make([]atomic.Int64, streams)
	var begun sync.WaitGroup
	begun.Add(streams)
	g, ctx := errgroup.WithContext(ctx)
	first := make(chan struct{}) // closed when the first stream is at its end
	firstOver := sync.OnceFunc(func() { close(first) })
	for i := range streams {
		told := sync.OnceFunc(begun.Done)
		piece := func() {
			got[i].Add(1)
			told()
		}
		g.Go(func() error {
			defer told()
			defer firstOver()
			if i%2 == 0 {
				return followSSE(ctx, c, l.url, i, piece)
			}
			return followSocket(ctx, l.url, piece)
		})
	}
	begun.Wait()
	open := resident()
	<-first
	counts := make([]int64, streams)
	for i := range got {
		counts[i] = got[i].Load()
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := l.srv.Idle(ctx); err != nil {
		return nil, err
	}
	name := fmt.Sprintf("%d open streams, half of them websockets: ", streams)
	return []benchRow{
		{What: name + "memory of one, client and server", Value: max(0, open-before) / float64(streams) / 1024, Unit: "KiB"},
		{What: name + "pieces of the slowest when the first is done", Value: float64(slices.Min(counts)), Unit: "pieces", Limit: ptr(float64(slices.Max(counts)))},
		{What: name + "pages held at the end", Value: float64(e.Stats().Held), Unit: "pages", Limit: ptr(0)},
	}, nil
}

func followSSE(ctx context.Context, c *http.Client, url string, i int, piece func()) error {
	resp, err := postJSON(ctx, c, url+"/v1/chat/completions", chatBody("", fmt.Sprintf("stream %d", i), streamTokens))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	over := false
	for lines.Scan() {
		switch data, ok := strings.CutPrefix(lines.Text(), "data: "); {
		case data == "[DONE]":
			over = true
		case ok:
			piece()
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if !over {
		return fmt.Errorf("a stream ended early")
	}
	return nil
}

func followSocket(ctx context.Context, url string, piece func()) error {
	conn, _, err := websocket.DefaultDialer.DialContext(ctx, "ws"+strings.TrimPrefix(url, "http")+"/v1/ws", nil)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.WriteJSON(map[string]any{"type": "start", "program": "long"}); err != nil {
		return err
	}
	for {
		var m struct {
			Type, Status string
			Event        struct{ Kind string }
			Error        any
		}
		if err := conn.ReadJSON(&m); err != nil {
			return err
		}
		switch {
		case m.Type == "end" && m.Status == "finished":
			return nil
		case m.Type == "end" || m.Type == "error":
			return fmt.Errorf("a run ended: %+v", m)
		case m.Event.Kind == "delta":
			piece()
		}
	}
}

// crowdRequest is one of the mix.
type crowdRequest struct {
	path, body string
	status     int
	gone       bool // the client goes away after the first byte
}

var crowd = []crowdRequest{
	{"/v1/completions", `{"prompt":"one","max_tokens":6,"ignore_eos":true,"temperature":0}`, 200, false},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"two"}],"max_tokens":6,"ignore_eos":true,"temperature":0,"seed":3}`, 200, false},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"three"}],"temperature":0,"guided_regex":"(yes|no)"}`, 200, false},
	{"/v1/responses", `{"input":"four","max_output_tokens":6,"ignore_eos":true,"temperature":0}`, 200, false},
	{"/generate", `{"text":"five","sampling_params":{"max_new_tokens":6,"ignore_eos":true,"temperature":0}}`, 200, false},
	{"/v1/completions", `{"prompt":"six","max_tokens":4000,"ignore_eos":true,"stream":true}`, 200, true},
	{"/v1/chat/completions", `{"messages":`, 400, false},
	{"/v1/chat/completions", `{"messages":[]}`, 400, false},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"seed":1e300}`, 400, false},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"guided_regex":"[z-a]"}`, 400, false},
	{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"guided_json":"{"}`, 400, false},
	{"/v1/chat/completions", `{"model":"none","messages":[{"role":"user","content":"x"}]}`, 404, false},
	{"/v1/completions", `{"prompt":"` + strings.Repeat("long ", 4000) + `"}`, 400, false},
	{"/v1/completions", `{"prompt":"` + strings.Repeat("x", 2<<20) + `"}`, 413, false},
	{"/generate", `{"text":"x","sampling_params":{"no_such":1}}`, 400, false},
	{"/v1/programs", "coppice: 1\nname: x\nsteps:\n  - no_such: y\n", 400, false},
	{"/v1/nothing", `{}`, 404, false},
}

// benchMix sends good and bad requests together and counts what is not as it
// should be.
func benchMix(ctx context.Context, requests int, soak time.Duration) ([]benchRow, error) {
	l, e, err := simulated(64)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	defer l.close()
	c := loader(64)
	send := func(r crowdRequest) (status int, text string, err error) {
		ctx, gone := context.WithCancel(ctx)
		defer gone()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+r.path, strings.NewReader(r.body))
		if err != nil {
			return 0, "", err
		}
		resp, err := c.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		if r.gone {
			resp.Body.Read(make([]byte, 1))
			return resp.StatusCode, "", nil
		}
		data, err := io.ReadAll(resp.Body)
		return resp.StatusCode, answerText(data), err
	}
	alone := make([]string, len(crowd))
	for i, r := range crowd {
		if r.status != 200 || r.gone {
			continue
		}
		status, text, err := send(r)
		if err != nil || status != 200 || text == "" {
			return nil, fmt.Errorf("%s: %d %q %v", r.path, status, text, err)
		}
		alone[i] = text
	}
	c.CloseIdleConnections()
	if err := l.srv.Idle(ctx); err != nil {
		return nil, err
	}
	goroutines, memory := runtime.NumGoroutine(), resident()
	var next, wrong atomic.Int64
	end := time.Now().Add(soak)
	g, gctx := errgroup.WithContext(ctx)
	for range 32 {
		g.Go(func() error {
			for gctx.Err() == nil {
				n := int(next.Add(1)) - 1
				if n >= requests && !time.Now().Before(end) {
					return nil
				}
				i := n % len(crowd)
				status, text, err := send(crowd[i])
				// A body that is refused may not be read to its end.
				if err != nil && crowd[i].status != 413 || err == nil && (status != crowd[i].status || alone[i] != "" && text != alone[i]) {
					wrong.Add(1)
				}
			}
			return gctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := l.srv.Idle(ctx); err != nil {
		return nil, err
	}
	c.CloseIdleConnections()
	// Connections that were closed take their goroutines with them soon.
	left := runtime.NumGoroutine()
	for wait := time.Now().Add(5 * time.Second); left > goroutines && time.Now().Before(wait); left = runtime.NumGoroutine() {
		time.Sleep(10 * time.Millisecond)
	}
	sent := int(next.Load()) - 32
	name := fmt.Sprintf("%d good and bad requests: ", sent)
	st := e.Stats()
	return []benchRow{
		{What: name + "wrong answers or statuses", Value: float64(wrong.Load()), Unit: "requests", Limit: ptr(0)},
		{What: name + "goroutines left", Value: float64(max(0, left-goroutines)), Unit: "goroutines", Limit: ptr(0)},
		{What: name + "pages held at the end", Value: float64(st.Held), Unit: "pages", Limit: ptr(0)},
		{What: name + "memory more than before", Value: max(0, resident()-memory) / (1 << 20), Unit: "MiB"},
	}, nil
}

// answerText is what an answer says, in whatever form it comes.
func answerText(data []byte) string {
	var a struct {
		Text    any // of a response it is how it is written
		Choices []struct {
			Text    string
			Message struct{ Content string }
		}
		Output []struct{ Content []struct{ Text string } }
	}
	if json.Unmarshal(data, &a) != nil {
		return ""
	}
	var b strings.Builder
	if text, ok := a.Text.(string); ok {
		b.WriteString(text)
	}
	for _, x := range a.Choices {
		b.WriteString(x.Text + x.Message.Content)
	}
	for _, o := range a.Output {
		for _, x := range o.Content {
			b.WriteString(x.Text)
		}
	}
	return b.String()
}
