package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// bubble runs a test with a fake clock. It also is the check for leaks: a
// goroutine that outlives f fails the test.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// pipes is a listener whose connections are in memory.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.conns <- a:
		return b, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// recorded is a request that the fake got.
type recorded struct {
	Path string
	Auth string
	Body map[string]any
	Raw  string
}

// fake is a server that speaks every dialect over a toy model: the next token
// and its probability follow from the prompt, the answer is fixed.
type fake struct {
	t      testing.TB
	owner  string // owned_by in the model list
	models []string
	// answer is what the model says: pieces as they stream.
	answer []string
	finish string // default stop
	prompt int    // prompt tokens to report
	cached int
	// faults answer the first generations in the place of the model; nil ones
	// let it through.
	faults []http.HandlerFunc
	routes map[string]http.HandlerFunc // over the default ones

	mu        sync.Mutex
	got       []recorded
	dials     int
	transport *http.Transport
}

// start serves f until the test ends.
func (f *fake) start(t testing.TB) *fake {
	f.t = t
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	srv := &http.Server{Handler: f, ErrorLog: log.New(io.Discard, "", 0)}
	go srv.Serve(l)
	f.transport = &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		f.mu.Lock()
		f.dials++
		f.mu.Unlock()
		return l.dial(ctx, network, addr)
	}}
	t.Cleanup(func() {
		f.transport.CloseIdleConnections()
		srv.Close()
	})
	return f
}

// open returns a backend on f.
func (f *fake) open(scheme string, opts Options) *Backend {
	f.t.Helper()
	opts.Transport = f.transport
	b, err := Open(f.t.Context(), scheme+"://fake.test/v1", opts)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { b.Close() })
	return b
}

// calls returns the requests of a path so far.
func (f *fake) calls(path string) []recorded {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []recorded
	for _, r := range f.got {
		if r.Path == path {
			out = append(out, r)
		}
	}
	return out
}

func isGeneration(path string) bool {
	switch path {
	case "/v1/chat/completions", "/v1/completions", "/generate", "/completion", "/v1/messages":
		return true
	}
	return false
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	rec := recorded{Path: r.URL.Path, Auth: r.Header.Get("Authorization"), Raw: string(raw)}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &rec.Body); err != nil {
			f.t.Errorf("%s: body is not JSON: %v", r.URL.Path, err)
		}
	}
	f.mu.Lock()
	f.got = append(f.got, rec)
	var fault http.HandlerFunc
	if isGeneration(r.URL.Path) && len(f.faults) > 0 {
		fault, f.faults = f.faults[0], f.faults[1:]
	}
	f.mu.Unlock()
	if fault != nil {
		fault(w, r)
		return
	}
	if h := f.routes[r.URL.Path]; h != nil {
		h(w, r)
		return
	}
	f.route(w, r, rec.Body)
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

type m = map[string]any

func (f *fake) route(w http.ResponseWriter, r *http.Request, body map[string]any) {
	switch r.URL.Path {
	case "/v1/models":
		models := f.models
		if models == nil {
			models = []string{"toy"}
		}
		var data []m
		for _, id := range models {
			data = append(data, m{"id": id, "owned_by": f.owner, "max_model_len": 4096, "meta": m{"n_vocab": len(toyVocab)}})
		}
		reply(w, m{"data": data})
	case "/version":
		reply(w, m{"version": "0.12.0"})
	case "/api/version":
		reply(w, m{"version": "0.9"})
	case "/get_model_info":
		reply(w, m{"model_path": "toy", "tokenizer_path": "toy", "weight_version": "1"})
	case "/server_info":
		reply(w, m{"context_length": 4096})
	case "/props":
		reply(w, m{"default_generation_settings": m{"n_ctx": 4096}, "model_path": "toy.gguf", "eos_token": "<end>"})
	case "/apply-template":
		reply(w, m{"prompt": toyTemplate(body["messages"].([]any), true, true)})
	case "/tokenize":
		text, ok := body["prompt"].(string)
		if !ok {
			text, ok = body["content"].(string)
		}
		if !ok {
			begin, _ := body["add_generation_prompt"].(bool)
			leave, _ := body["continue_final_message"].(bool)
			text = toyTemplate(body["messages"].([]any), begin, leave)
		}
		if body["parse_special"] == false {
			reply(w, m{"tokens": toyPlain(text)})
			return
		}
		reply(w, m{"tokens": toyTokens(text)})
	case "/detokenize":
		var b strings.Builder
		for _, id := range body["tokens"].([]any) {
			b.WriteString(toyVocab[int(id.(float64))])
		}
		reply(w, m{"content": b.String()})
	case "/v1/chat/completions":
		f.streamOpenAI(w, func(text string) m { return m{"delta": m{"content": text}} }, body)
	case "/v1/completions":
		if _, ok := body["prompt_logprobs"]; ok {
			replyVLLMScore(w, body)
			return
		}
		f.streamOpenAI(w, func(text string) m { return m{"text": text} }, body)
	case "/generate":
		f.serveSGLang(w, body)
	case "/v1/messages":
		f.serveMessages(w)
	case "/completion":
		if list, ok := body["prompt"].([]any); ok && !slices.ContainsFunc(list, func(x any) bool { _, id := x.(float64); return id }) {
			f.t.Errorf("%q is several prompts to the server, which answers each", list)
		}
		f.serveLlama(w, body)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func (f *fake) reason() string {
	if f.finish == "" {
		return "stop"
	}
	return f.finish
}

// sse begins a stream and returns a function that sends one event.
func sse(w http.ResponseWriter) func(v any) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	return func(v any) {
		b, ok := v.(string)
		if !ok {
			j, _ := json.Marshal(v)
			b = string(j)
		}
		fmt.Fprintf(w, "data: %s\n\n", b)
		w.(http.Flusher).Flush()
	}
}

func (f *fake) streamOpenAI(w http.ResponseWriter, choice func(string) m, body map[string]any) {
	send := sse(w)
	for _, p := range f.answer {
		c := choice(p)
		c["index"] = 0
		c["finish_reason"] = nil
		send(m{"choices": []m{c}})
	}
	c := choice("")
	c["index"], c["finish_reason"] = 0, f.reason()
	send(m{"choices": []m{c}})
	send(m{"choices": []m{}, "usage": m{"prompt_tokens": f.prompt, "completion_tokens": len(f.answer), "prompt_tokens_details": m{"cached_tokens": f.cached}}})
	send("[DONE]")
}

func (f *fake) serveSGLang(w http.ResponseWriter, body map[string]any) {
	if s := body["sampling_params"].(map[string]any); s["max_new_tokens"] == 0.0 {
		replySGLangScore(w, body)
		return
	}
	send := sse(w)
	var text string
	var ids []int
	for i, p := range f.answer {
		text += p
		ids = append(ids, toyTokens(p)...)
		meta := m{"prompt_tokens": f.prompt, "completion_tokens": len(ids), "cached_tokens": f.cached, "finish_reason": nil}
		if i == len(f.answer)-1 {
			ids = append(ids, toyEnd)
			meta["completion_tokens"] = len(ids)
			meta["finish_reason"] = m{"type": f.reason(), "matched": toyEnd}
		}
		send(m{"text": text, "output_ids": ids, "meta_info": meta})
	}
	send("[DONE]")
}

func (f *fake) serveLlama(w http.ResponseWriter, body map[string]any) {
	if body["stream"] == false {
		replyLlamaProbs(w, body)
		return
	}
	send := sse(w)
	for _, p := range f.answer {
		send(m{"content": p, "tokens": toyTokens(p), "stop": false})
	}
	stop := map[string]string{"stop": "eos", "length": "limit"}[f.reason()]
	send(m{"content": "", "tokens": []int{toyEnd}, "stop": false})
	send(m{"content": "", "tokens": []int{}, "stop": true, "stop_type": stop, "tokens_evaluated": f.prompt,
		"tokens_predicted": len(f.answer), "timings": m{"cache_n": f.cached, "prompt_n": f.prompt - f.cached}})
}

// The toy vocabulary joins "> b" across a prompt's end, as real ones do.
var toyVocab = append(strings.Split("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;!?=>_-<\n\"{}[]/", ""),
	"<end>", "<user>", "<assistant>", "th", "he", "=>", "=> b", "low", "high")

var toyEnd = slices.Index(toyVocab, "<end>")

func toyTokens(text string) []int { return toyTokenise(text, true) }

// toyPlain reads the names of control tokens as text.
func toyPlain(text string) []int { return toyTokenise(text, false) }

func toyTokenise(text string, special bool) []int {
	var ids []int
	for text != "" {
		best := -1
		for id, v := range toyVocab {
			if !special && len(v) > 2 && v[0] == '<' {
				continue
			}
			if strings.HasPrefix(text, v) && (best < 0 || len(v) > len(toyVocab[best])) {
				best = id
			}
		}
		if best < 0 {
			panic(fmt.Sprintf("the toy vocabulary cannot write %q", text))
		}
		ids = append(ids, best)
		text = text[len(toyVocab[best]):]
	}
	return ids
}

func toyTemplate(msgs []any, begin, leaveOpen bool) string {
	var b strings.Builder
	for i, x := range msgs {
		msg := x.(map[string]any)
		role := msg["role"].(string)
		if role != "assistant" {
			role = "user"
		}
		b.WriteString("<" + role + ">" + msg["content"].(string))
		if i == len(msgs)-1 && leaveOpen && role == "assistant" {
			return b.String()
		}
		b.WriteString("<end>")
	}
	if begin {
		b.WriteString("<assistant>")
	}
	return b.String()
}

// toyLogprob is a made-up probability that depends on the whole prefix.
func toyLogprob(prefix []int, id int) float64 {
	h := uint32(2166136261)
	for _, x := range append(slices.Clone(prefix), id) {
		h = (h ^ uint32(x)) * 16777619
	}
	return -float64(h%1000+1) / 100
}

// toySum is the log-probability of text[from:] by hand.
func toySum(ids []int, from int) (sum float64) {
	for i := from; i < len(ids); i++ {
		sum += toyLogprob(ids[:i], ids[i])
	}
	return sum
}

func ints(v any) (out []int) {
	for _, x := range v.([]any) {
		out = append(out, int(x.(float64)))
	}
	return out
}

func replyVLLMScore(w http.ResponseWriter, body map[string]any) {
	var choices []m
	n := 0
	for i, p := range body["prompt"].([]any) {
		ids := ints(p)
		n += len(ids)
		probs := []any{nil}
		for j := 1; j < len(ids); j++ {
			probs = append(probs, m{fmt.Sprint(ids[j]): m{"logprob": toyLogprob(ids[:j], ids[j])}})
		}
		choices = append(choices, m{"index": i, "prompt_logprobs": probs})
	}
	slices.Reverse(choices) // the index counts, not the order
	reply(w, m{"choices": choices, "usage": m{"prompt_tokens": n, "completion_tokens": len(choices)}})
}

func replySGLangScore(w http.ResponseWriter, body map[string]any) {
	bad := false
	one := func(text any) m {
		var ids []int
		if s, ok := text.(string); ok {
			ids = toyTokens(s)
		} else {
			ids = ints(text)
		}
		meta := m{"prompt_tokens": len(ids), "completion_tokens": 0, "finish_reason": m{"type": "length", "length": 0}}
		if body["return_logprob"] == true {
			start := int(body["logprob_start_len"].(float64))
			if start >= len(ids) {
				bad = true
				return nil
			}
			lps := []any{[]any{nil, ids[start], nil}}
			for j := start + 1; j < len(ids); j++ {
				lps = append(lps, []any{toyLogprob(ids[:j], ids[j]), ids[j], nil})
			}
			meta["input_token_logprobs"] = lps
		}
		return m{"text": "", "meta_info": meta}
	}
	if s, ok := body["text"].(string); ok {
		reply(w, one(s))
		return
	}
	var out []m
	texts, ok := body["text"].([]any)
	if !ok {
		texts = body["input_ids"].([]any)
	}
	for _, s := range texts {
		out = append(out, one(s))
	}
	if bad {
		w.WriteHeader(http.StatusBadRequest)
		reply(w, m{"error": m{"message": "logprob_start_len is higher than the number of input tokens"}})
		return
	}
	reply(w, out)
}

func replyLlamaProbs(w http.ResponseWriter, body map[string]any) {
	ids := ints(body["prompt"])
	var top []m
	for id := range toyVocab {
		top = append(top, m{"id": id, "logprob": toyLogprob(ids, id)})
	}
	slices.SortFunc(top, func(a, b m) int {
		if a["logprob"].(float64) > b["logprob"].(float64) {
			return -1
		}
		return 1
	})
	n := min(len(top), int(body["n_probs"].(float64)))
	reply(w, m{"content": "a", "stop": true, "stop_type": "limit", "tokens_evaluated": len(ids), "tokens_predicted": 1,
		"completion_probabilities": []m{{"id": top[0]["id"], "logprob": top[0]["logprob"], "top_logprobs": top[:n]}}})
}

// Faults.

func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.Header().Set("X-Request-Id", "req-1")
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"error":{"message":"fault %d","type":"t","code":"c"}}`, code)
	}
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func reset(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// cutAfter streams chat pieces and then breaks the connection.
func cutAfter(pieces ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		send := sse(w)
		for _, p := range pieces {
			send(m{"choices": []m{{"index": 0, "delta": m{"content": p}}}})
		}
		panic(http.ErrAbortHandler)
	}
}

// body answers with exactly this.
func exactly(contentType, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		io.WriteString(w, text)
	}
}

func user(s string) []backend.Turn {
	return []backend.Turn{text(backend.System, "Be brief."), text(backend.User, s)}
}

func rawTurns(s string) []backend.Turn { return []backend.Turn{text(backend.Raw, s)} }

// deltas collects what emit got.
type deltas struct {
	text   []string
	tokens []backend.Token
}

func (d *deltas) emit(x backend.Delta) {
	d.text = append(d.text, x.Text)
	d.tokens = append(d.tokens, x.Tokens...)
}

func (d *deltas) all() string { return strings.Join(d.text, "") }

const second = time.Second
