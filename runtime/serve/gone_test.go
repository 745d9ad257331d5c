package serve

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/puppet"
)

// A client that goes away ends its work, whether it streams or waits, has begun
// or not; the next request finds all as it was.
func TestClientGone(t *testing.T) {
	for _, stream := range []bool{false, true} {
		m, gate := puppet.New(), puppet.NewGate()
		m.SetGate(gate)
		m.OnAny().Reply("ok")
		c := serveFor(t, m, nil)
		ctx, gone := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			resp, err := c.try(ctx, "POST", "/v1/chat/completions", ask("x", "stream", stream, "n", 2))
			if err == nil {
				resp.Body.Close()
			}
			ended <- err
		}()
		if err := gate.HeldCount(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		gone()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if err := c.srv.Idle(t.Context()); err != nil {
			t.Fatal(err)
		}
		gate.Open()
		c.ok("/v1/chat/completions", ask("x"))
	}
}

// In the midst of a stream the engine stops within a step and holds no pages.
func TestClientGoneInTheMidst(t *testing.T) {
	step := make(chan struct{})
	e := newEngine(t, &chain{next: func(byte) backend.Token { return 'a' }, step: step})
	c := serveFor(t, e, nil)
	ctx, gone := context.WithCancel(t.Context())
	go func() {
		for range 6 {
			step <- struct{}{}
		}
	}()
	resp := c.doCtx(ctx, "POST", "/v1/completions", tree{"prompt": "a", "max_tokens": 400, "stream": true, "temperature": 0})
	lines := bufio.NewScanner(resp.Body)
	for n := 0; n < 3 && lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "data: ") {
			n++
		}
	}
	gone()
	resp.Body.Close()
	if err := c.srv.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() { // as many passes as the engine wants
		for {
			select {
			case step <- struct{}{}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	got := c.ok("/v1/completions", tree{"prompt": "b", "max_tokens": 2, "temperature": 0})
	if at(got, "choices", 0, "text") != "aa" {
		t.Error(got)
	}
	if st := e.Stats(); st.Sampled > 12 || st.Held != 0 || st.Running != 0 {
		t.Errorf("%+v", st)
	}
}

// A client that goes away while its request waits for the engine takes it out of
// the queue.
func TestClientGoneInTheQueue(t *testing.T) {
	step := make(chan struct{})
	e, err := engine.New(engine.Config{Model: &chain{next: alphabet, step: step}, Tokenizer: byteVocab{}, Fingerprint: "chain-1", Name: "chain", Pages: 64, MaxSeqs: 1, Check: true})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := serveFor(t, e, nil)
	first := make(chan tree, 1)
	go func() {
		_, out := c.post("/v1/completions", tree{"prompt": "a", "max_tokens": 3, "temperature": 0})
		first <- out
	}()
	step <- struct{}{} // the first is at work
	ctx, gone := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		resp, err := c.try(ctx, "POST", "/v1/completions", tree{"prompt": "m", "max_tokens": 300, "ignore_eos": true})
		if err == nil {
			resp.Body.Close()
		}
		ended <- err
	}()
	until := func(want float64) {
		for {
			if _, out := c.call("GET", "/load", nil); out["server_load"] == want {
				return
			}
		}
	}
	until(2) // both are in
	gone()
	<-ended
	until(1) // the server has noticed
	go func() {
		for {
			select {
			case step <- struct{}{}:
			case <-t.Context().Done():
				return
			}
		}
	}()
	if out := <-first; at(out, "choices", 0, "text") != "bcd" {
		t.Error(out)
	}
	if err := c.srv.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if st := e.Stats(); st.Sampled != 3 || st.Held != 0 || st.Waiting != 0 || st.Running != 0 {
		t.Errorf("%+v", st)
	}
}

// A full queue is said at once, with a time to come again.
func TestQueueLimit(t *testing.T) {
	m, gate := puppet.New(), puppet.NewGate()
	m.SetGate(gate)
	m.OnAny().Reply("ok")
	c := serveFor(t, m, func(c *Config) { c.Limits.Generations = 3 })
	ended := make(chan int, 1)
	go func() {
		resp, err := c.try(t.Context(), "POST", "/v1/chat/completions", ask("x", "n", 2))
		if err != nil {
			ended <- 0
			return
		}
		resp.Body.Close()
		ended <- resp.StatusCode
	}()
	if err := gate.HeldCount(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	resp := c.do("POST", "/v1/chat/completions", ask("x", "n", 2))
	resp.Body.Close()
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" {
		t.Error(resp.Status, resp.Header)
	}
	gate.Open()
	if status := <-ended; status != 200 {
		t.Error(status)
	}
	c.ok("/v1/chat/completions", ask("x", "n", 3))
}

func TestTimeLimit(t *testing.T) {
	m := puppet.New()
	m.OnAny().Wait(make(chan struct{})).Reply("never")
	c := serveFor(t, m, func(c *Config) { c.Limits.RequestTime = time.Millisecond })
	for _, stream := range []bool{false, true} {
		if e := c.refused("/v1/chat/completions", ask("x", "stream", stream), http.StatusGatewayTimeout, ""); e["code"] != "timeout" {
			t.Error(e)
		}
	}
}

// What a backend says becomes a status that clients act on; what went wrong
// inside is not shown.
func TestErrorsOfBackends(t *testing.T) {
	for _, x := range []struct {
		err    error
		status int
		code   any
	}{
		{backend.ErrInvalid, 400, nil},
		{backend.ErrUnsupported, 400, nil},
		{&backend.ContextLengthError{Prompt: 9, Context: 8}, 400, "context_length_exceeded"},
		{backend.ErrOverloaded, 429, "overloaded"},
		{backend.ErrUnavailable, 503, "unavailable"},
		{backend.ErrClosed, 503, "unavailable"},
		{errors.New("secret detail"), 500, "internal_error"},
	} {
		m := puppet.New()
		m.OnAny().Fail(x.err)
		c := serveFor(t, m, nil)
		for _, stream := range []bool{false, true} {
			status, out := c.post("/v1/chat/completions", ask("x", "stream", stream))
			if status != x.status || at(out, "error", "code") != x.code || strings.Contains(at(out, "error", "message").(string), "secret") {
				t.Errorf("%v: %d %v", x.err, status, out)
			}
		}
	}
	m := puppet.New()
	m.OnAny().Panic("boom")
	c := serveFor(t, m, nil)
	if status, _ := c.post("/v1/chat/completions", ask("x")); status != 500 {
		t.Error(status)
	}
	if status, _ := c.call("GET", "/health", nil); status != 200 {
		t.Error(status)
	}
}

// A failure in the midst of a stream is an event of it.
func TestErrorInAStream(t *testing.T) {
	m := puppet.New()
	first := make(chan struct{})
	m.OnFunc(func(p *puppet.Prompt) bool { return strings.HasSuffix(p.ID, "/0") }).Reply("here")
	m.OnAny().Wait(first).FailCall(1, backend.ErrUnavailable).Reply("x")
	c := serveFor(t, m, nil)
	resp := c.do("POST", "/v1/chat/completions", ask("x", "n", 2, "stream", true))
	defer resp.Body.Close()
	close(first)
	events, done := readSSE(t, resp.Body)
	if resp.StatusCode != 200 || done != 1 || at(events[len(events)-1], "error", "type") != "server_error" {
		t.Error(resp.Status, events, done)
	}
}

func TestDrain(t *testing.T) {
	m, gate := puppet.New(), puppet.NewGate()
	m.SetGate(gate)
	m.OnAny().Reply("done")
	c := serveFor(t, m, nil)
	answer := make(chan tree, 1)
	go func() {
		_, out := c.post("/v1/chat/completions", ask("x"))
		answer <- out
	}()
	if err := gate.HeldCount(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	c.srv.Drain()
	if status, _ := c.call("GET", "/health", nil); status != 503 {
		t.Error(status)
	}
	if status, _ := c.post("/v1/chat/completions", ask("y")); status != 503 {
		t.Error(status)
	}
	gate.Open()
	if out := <-answer; at(out, "choices", 0, "message", "content") != "done" {
		t.Error(out)
	}
}

// A body is not inflated, so that it has a bound, and the client is told so.
func TestBodiesAreNotInflated(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("x")
	c := serveFor(t, m, nil)
	for encoding, want := range map[string]int{"gzip": 400, "br": 400, "identity": 200, "": 200} {
		req, err := http.NewRequest("POST", c.url+"/v1/chat/completions", strings.NewReader(`{"messages":[{"role":"user","content":"x"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Encoding", encoding)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if text := readAll(t, resp); resp.StatusCode != want || want == 400 && !strings.Contains(text, "Content-Encoding") {
			t.Errorf("%q: %d %s", encoding, resp.StatusCode, text)
		}
	}
}

// A client that never sends the body it has promised is not waited for.
func TestBodiesThatNeverCome(t *testing.T) {
	c := serveFor(t, looksModel(), func(c *Config) { c.Limits.ReadTime = 10 * time.Millisecond })
	for _, line := range []string{"GET /v1/models", "POST /none", "POST /v1/completions", "POST /v1/programs", "PUT /v1/models", "GET /metrics", "POST /ping"} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, line+" HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(time.Minute))
		if answer, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) || !strings.HasPrefix(string(answer), "HTTP/1.1 ") {
			t.Errorf("%s: %v after %q", line, err, answer)
		}
		conn.Close()
	}
}
