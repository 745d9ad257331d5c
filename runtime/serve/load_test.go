package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gorilla/websocket"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
)

// memory is what the process holds, stacks included, after a collection.
func memory() uint64 {
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// A thousand streams are open at once, half of them on websockets. While the
// device makes a few passes all of them get on, memory stays within bounds, and
// in the end each has all of its text.
func TestManyStreams(t *testing.T) {
	const early, tokens = 5, 40
	streams := 1000
	if testing.Short() {
		streams = 200
	}
	step := make(chan struct{})
	m := &chain{next: func(byte) backend.Token { return 'a' }, step: step}
	e, err := engine.New(engine.Config{Model: m, Tokenizer: byteVocab{}, Fingerprint: "chain-1", Name: "chain", Pages: 8 * streams, MaxSeqs: streams, MaxBatchTokens: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := serveFor(t, e, func(c *Config) { c.Limits.ActiveRuns = streams })
	transport := &http.Transport{MaxIdleConnsPerHost: -1}
	defer transport.CloseIdleConnections()
	c.ok("/v1/programs", fmt.Sprintf("coppice: 1\nname: long\nsteps:\n  - user: go on\n  - gen: {name: x, max_tokens: %d}\n  - return: x\n", tokens))
	before := memory()

	var begun, over sync.WaitGroup
	begun.Add(streams)
	texts := make([]string, streams)
	fail := func(i int, err error) { t.Errorf("stream %d: %v", i, err) }
	// follow reads the text of a stream piece by piece.
	follow := func(i int, next func() (piece string, ok bool, err error)) {
		var b strings.Builder
		told := sync.OnceFunc(begun.Done)
		defer told()
		for {
			piece, ok, err := next()
			if err != nil {
				fail(i, err)
				return
			}
			if !ok {
				texts[i] = b.String()
				return
			}
			if b.WriteString(piece); b.Len() >= early {
				told()
			}
		}
	}
	for i := range streams {
		if i%2 == 0 {
			over.Go(func() {
				body := fmt.Sprintf(`{"prompt":"%d","max_tokens":%d,"ignore_eos":true,"temperature":0,"stream":true}`, i, tokens)
				resp, err := (&http.Client{Transport: transport}).Post(c.url+"/v1/completions", "application/json", strings.NewReader(body))
				if err != nil {
					fail(i, err)
					begun.Done()
					return
				}
				defer resp.Body.Close()
				lines := bufio.NewReader(resp.Body)
				follow(i, func() (string, bool, error) {
					for {
						line, err := lines.ReadString('\n')
						if err != nil {
							return "", false, err
						}
						data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
						if data == "[DONE]" {
							return "", false, nil
						}
						var chunk struct{ Choices []struct{ Text string } }
						if ok {
							err = json.Unmarshal([]byte(data), &chunk)
							return chunk.Choices[0].Text, true, err
						}
					}
				})
			})
			continue
		}
		over.Go(func() {
			conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/v1/ws", nil)
			if err == nil {
				defer conn.Close()
				err = conn.WriteJSON(tree{"type": "start", "program": "long", "seed": i})
			}
			if err != nil {
				fail(i, err)
				begun.Done()
				return
			}
			follow(i, func() (string, bool, error) {
				var m struct {
					Type, Status string
					Event        struct{ Kind, Text string }
				}
				if err := conn.ReadJSON(&m); err != nil {
					return "", false, err
				}
				switch {
				case m.Type == "error" || m.Type == "end" && m.Status != "finished":
					return "", false, fmt.Errorf("%+v", m)
				case m.Event.Kind != "delta":
					return "", m.Type != "end", nil
				}
				return m.Event.Text, true, nil
			})
		})
	}
	// The device works until all streams have begun, and not a pass longer than
	// what was given by then.
	var passes atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	pump := func() {
		defer close(stopped)
		for {
			select {
			case step <- struct{}{}:
				passes.Add(1)
			case <-stop:
				return
			}
		}
	}
	go pump()
	begun.Wait()
	close(stop)
	<-stopped
	used := memory()
	if per := int64(used-min(before, used)) / int64(streams); per > 256<<10 {
		t.Errorf("%d KiB a stream, client and server together", per>>10)
	} else {
		t.Logf("%d KiB a stream, client and server together; %d passes until all had begun", per>>10, passes.Load())
	}
	stop, stopped = make(chan struct{}), make(chan struct{})
	go pump()
	over.Wait()
	close(stop)
	<-stopped
	want := strings.Repeat("a", tokens)
	for i, s := range texts {
		if s != want {
			t.Fatalf("stream %d has %q", i, s)
		}
	}
	if err := c.srv.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if st := e.Stats(); st.Held != 0 || st.Running != 0 || st.Failed != 0 {
		t.Errorf("%+v", st)
	}
}

// mixed is a request of a crowd of good and bad ones.
type mixed struct {
	name, method, path string
	body               string
	status             int
	gone               bool // the client goes away after the first byte
}

// badRequests are bodies that broke servers of this kind, and others like them.
func badRequests() (out []mixed) {
	bad := func(path string, status int, bodies ...string) {
		for i, b := range bodies {
			out = append(out, mixed{fmt.Sprintf("%s bad %d", path, i), "POST", path, b, status, false})
		}
	}
	const msgs = `"messages":[{"role":"user","content":"a"}]`
	chat := func(more ...string) {
		for _, m := range more {
			bad("/v1/chat/completions", 400, "{"+msgs+","+m+"}")
		}
	}
	chat(`"seed":1e40`, `"seed":-9223372036854775809`, `"seed":"4"`, `"seed":0.5`, `"temperature":-0.1`, `"temperature":1e200`, `"temperature":"hot"`,
		`"top_p":0`, `"top_p":1.5`, `"repetition_penalty":0`, `"max_tokens":0`, `"max_tokens":-1`, `"max_tokens":1.5`, `"logit_bias":{"8888888":1}`,
		`"logit_bias":{"a":1}`, `"logit_bias":{"1":1000}`, `"n":0`, `"n":100000`, `"top_logprobs":3`, `"logprobs":true,"top_logprobs":999`,
		`"stop":[""]`, `"stop":7`, `"stream_options":{"include_usage":true}`, `"stream":1`, `"n":1,"n":2`,
		`"guided_regex":"[z-a]"`, `"guided_regex":"("`, `"guided_regex":""`, `"guided_choice":[]`, `"guided_grammar":"root ::= \"a\"\nroot ::= \"b\""`, `"guided_grammar":"root ::= nothing"`,
		`"guided_json":"{"`, `"guided_json":{"type":"object","properties":{"a":{"$ref":"#/properties/a"}},"required":["a"]}`,
		`"response_format":{"type":"yaml"}`, `"response_format":{"type":"json_schema"}`,
		`"tools":[{"type":"function"}]`, `"tools":[{"type":"function","function":{"name":"a b"}}]`, `"tool_choice":"required"`, `"cache_salt":""`, `"functions":[{"name":"f"}]`)
	bad("/v1/chat/completions", 400, ``, `null`, `[]`, `"x"`, `{`, `{"messages":`, "{\"messages\":\"\xff\"}", `{"messages":[]}`, `{"messages":"a"}`, `{"messages":[{}]}`,
		`{"messages":[{"role":"robot","content":"a"}]}`, `{"messages":[{"role":"user"}]}`, `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`,
		strings.Repeat("[", 20000), `{"messages":`+strings.Repeat("[", 20000), `{"messages":[{"role":"user","content":"`+strings.Repeat("x", 2000)+`"}]}`)
	bad("/v1/chat/completions", 404, `{"model":"other",`+msgs+`}`)
	bad("/v1/chat/completions", 413, `{"messages":[{"role":"user","content":"`+strings.Repeat("x", 1<<17)+`"}]}`)
	bad("/v1/completions", 400, `{}`, `{"prompt":[]}`, `{"prompt":{}}`, `{"prompt":[1,"a"]}`, `{"prompt":[999999]}`, `{"prompt":[-1]}`, `{"prompt":"a","suffix":"b"}`, `{"prompt":"a","max_tokens":0}`)
	bad("/v1/responses", 400, `{}`, `{"input":[]}`, `{"input":[{"type":"x"}]}`, `{"input":"a","previous_response_id":"b"}`)
	bad("/generate", 400, `{}`, `{"text":1}`, `{"text":"a","sampling_params":{"unknown":1}}`, `{"text":"a","sampling_params":{"regex":"("}}`)
	bad("/v1/score", 400, `{}`, `{"query":"a","items":["b"],"label_token_ids":[999]}`)
	bad("/tokenize", 400, `{}`, `{"prompt":1}`)
	bad("/v1/programs", 400, ``, `coppice: 1`, "coppice: 1\nname: x\nsteps:\n  - gen: {name: y, max_tokens: many}\n", strings.Repeat("- ", 5000))
	bad("/v1/programs/none/runs", 404, `{}`)
	out = append(out, mixed{name: "method", method: "GET", path: "/v1/chat/completions", status: 405}, mixed{name: "route", method: "GET", path: "/v1/nothing", status: 404},
		mixed{name: "run", method: "GET", path: "/v1/runs/run-none", status: 404}, mixed{name: "socket", method: "GET", path: "/v1/ws", status: 426})
	return out
}

func goodRequests() (out []mixed) {
	for _, r := range [][2]string{
		{"/v1/completions", `{"prompt":"a","max_tokens":9,"temperature":0}`},
		{"/v1/completions", `{"prompt":["p","q"],"max_tokens":5,"temperature":0,"n":2,"logprobs":2,"echo":true}`},
		{"/v1/completions", `{"prompt":"a","max_tokens":20,"temperature":0,"stop":"gh","stream":true}`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"m"}],"max_tokens":9,"seed":4,"temperature":3}`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"m"}],"max_tokens":9,"seed":9223372036854775807,"temperature":2,"stream":true,"n":3,"stream_options":{"include_usage":true}}`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"m"}],"temperature":0,"guided_regex":"(yes|no)"}`},
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"m"}],"temperature":0,"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object","properties":{"ok":{"const":true}},"required":["ok"],"additionalProperties":false}}},"logprobs":true,"top_logprobs":2}`},
		{"/v1/responses", `{"input":"m","max_output_tokens":5,"temperature":0}`},
		{"/generate", `{"text":["a","k"],"sampling_params":{"max_new_tokens":4,"temperature":0}}`},
		{"/v1/score", `{"query":"a","items":["b","c"],"label_token_ids":[99,100]}`},
		{"/tokenize", `{"prompt":"abc"}`},
		{"/v1/programs/looks/runs", `{"inputs":{"topic":"x"},"seed":3,"wait":true}`},
	} {
		out = append(out, mixed{name: r[0] + " good", method: "POST", path: r[0], body: r[1], status: 200})
	}
	return append(out, mixed{name: "health", method: "GET", path: "/health", status: 200},
		mixed{name: "gone", method: "POST", path: "/v1/completions", body: `{"prompt":"a","max_tokens":400,"ignore_eos":true,"stream":true}`, status: 200, gone: true})
}

// told is an answer without what differs from one to the next: names, times and
// what the cache had.
func told(body string) string {
	drop := map[string]bool{
		"id": true, "run": true, "created": true, "created_at": true, "completed_at": true, "finished_at": true, "coppice": true, "e2e_latency": true,
		"cached_tokens": true, "prompt_tokens_details": true, "input_tokens_details": true, "report": true,
	}
	var out []string
	for _, line := range strings.Split(body, "\n") {
		line = strings.TrimPrefix(line, "data: ")
		var doc any
		if json.Unmarshal([]byte(line), &doc) != nil {
			out = append(out, line)
			continue
		}
		var clean func(v any)
		clean = func(v any) {
			switch v := v.(type) {
			case tree:
				for k, x := range v {
					if drop[k] {
						delete(v, k)
					} else {
						clean(x)
					}
				}
			case []any:
				for _, x := range v {
					clean(x)
				}
			}
		}
		clean(doc)
		data, _ := json.Marshal(doc)
		out = append(out, string(data))
	}
	return strings.Join(out, "\n")
}

// joined is the text of a streamed answer by choice: how it was cut may differ.
func joined(body string) string {
	if !strings.HasPrefix(body, "data: ") {
		return told(body)
	}
	texts := map[float64]string{}
	var usage any
	for _, line := range strings.Split(body, "\n") {
		var doc tree
		if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &doc) != nil {
			continue
		}
		choices, _ := doc["choices"].([]any)
		for _, c := range choices {
			i := at(c, "index").(float64)
			for _, s := range []any{at(c, "text"), at(c, "delta", "content"), at(c, "finish_reason")} {
				if s, ok := s.(string); ok {
					texts[i] += s
				}
			}
		}
		if n := at(doc, "usage", "completion_tokens"); n != nil {
			usage = n
		}
	}
	return fmt.Sprint(texts, usage, strings.HasSuffix(body, "data: [DONE]\n\n"))
}

// Two thousand requests, good and bad ones mixed, from many clients: each good
// one gets the answer that it gets alone, each bad one its status, and nothing
// is left behind.
func TestGoodAndBadRequests(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c := serveFor(t, e, func(c *Config) {
		c.Limits.BodyBytes = 1 << 16
		c.Limits.ActiveRuns = 1000
		c.Limits.Runs = 16
	})
	c.ok("/v1/programs", strings.ReplaceAll(looks, "max_tokens: 60", "max_tokens: 4"))
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	send := func(r mixed) (status int, body string, err error) {
		ctx, gone := context.WithCancel(t.Context())
		defer gone()
		req, err := http.NewRequestWithContext(ctx, r.method, c.url+r.path, strings.NewReader(r.body))
		if err != nil {
			return 0, "", err
		}
		resp, err := transport.RoundTrip(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		if r.gone {
			_, err = resp.Body.Read(make([]byte, 1))
			return resp.StatusCode, "", err
		}
		data, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(data), err
	}
	good, bad := goodRequests(), badRequests()
	alone := map[string]string{}
	for _, r := range good {
		_, body, err := send(r)
		if err != nil {
			t.Fatal(r.name, err)
		}
		alone[r.path+r.body] = joined(body)
	}
	total := 2000
	if testing.Short() {
		total = 600
	}
	var next atomic.Int64
	var wrong sync.Map
	var crowd sync.WaitGroup
	for range 24 {
		crowd.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= total {
					return
				}
				r := good[i/2%len(good)]
				if i%2 == 1 {
					r = bad[i/2%len(bad)]
				}
				status, body, err := send(r)
				switch {
				case err != nil && r.status != 413: // a body that is refused may not be read to its end
					wrong.Store(r.name, err)
				case err == nil && status != r.status:
					wrong.Store(r.name, fmt.Sprint(status, body))
				case i%2 == 1 && err == nil && !strings.Contains(body, `"error":{"message":"`):
					wrong.Store(r.name, body)
				case i%2 == 0 && !r.gone && joined(body) != alone[r.path+r.body]:
					wrong.Store(r.name, joined(body)+"\nalone: "+alone[r.path+r.body])
				}
			}
		})
	}
	crowd.Wait()
	wrong.Range(func(name, what any) bool {
		t.Errorf("%s: %.600v", name, what)
		return true
	})
	if err := c.srv.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	transport.CloseIdleConnections()
	c.ok("/v1/completions", tree{"prompt": "a", "max_tokens": 1, "temperature": 0}) // the engine's next step lets go of what was given up
	if st := e.Stats(); st.Held != 0 || st.Running != 0 || st.Waiting != 0 {
		t.Errorf("%+v", st)
	}
	c.srv.aborts.mu.Lock()
	if n := len(c.srv.aborts.jobs); n != 0 {
		t.Errorf("%d jobs are still known", n)
	}
	c.srv.aborts.mu.Unlock()
}
