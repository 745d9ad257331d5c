package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// byteVocab is the vocabulary of package puppet and of the engines of these
// tests: the 256 bytes and an end token.
type byteVocab struct{}

func (byteVocab) Size() int { return 257 }
func (byteVocab) EncodePieces(pieces []tokenizer.Piece) (ids []backend.Token) {
	for _, p := range pieces {
		ids = append(ids, puppet.Tokens(p.Text)...)
	}
	return ids
}
func (byteVocab) WithBOS(ids []backend.Token) []backend.Token { return ids }
func (byteVocab) Bytes(id backend.Token) []byte {
	if id < 0 || id > 255 {
		return nil
	}
	return []byte{byte(id)}
}
func (byteVocab) Text(id backend.Token) string {
	if id == puppet.EOS {
		return "<end>"
	}
	return fmt.Sprintf("<0x%02X>", id)
}
func (byteVocab) IsControl(id backend.Token) bool { return id == puppet.EOS }
func (byteVocab) EndTokens() []backend.Token      { return []backend.Token{puppet.EOS} }
func (byteVocab) BOS() (backend.Token, bool)      { return 0, false }
func (byteVocab) EOS() (backend.Token, bool)      { return puppet.EOS, true }
func (byteVocab) AddBOS() bool                    { return false }
func (byteVocab) AddSpacePrefix() bool            { return false }

// chain is a model that writes after each byte the one that next gives it.
type chain struct {
	next func(byte) backend.Token
	step chan struct{} // if set, each pass takes one from it
}

func (*chain) VocabSize() int                       { return 257 }
func (*chain) ContextLength() int                   { return 512 }
func (*chain) PageBytes() int                       { return 1 }
func (m *chain) NewKV(pages int) (engine.KV, error) { return m, nil }
func (*chain) CopyPage(dst, src int32, tokens int)  {}
func (*chain) Close()                               {}
func (m *chain) Forward(b *model.Batch, logits [][]float32) error {
	if m.step != nil {
		<-m.step
	}
	out := 0
	for _, row := range b.Rows {
		for _, i := range row.Outputs {
			clear(logits[out])
			logits[out][m.next(byte(row.Tokens[i]))] = 8
			out++
		}
	}
	return nil
}

// newEngine runs a chain.
func newEngine(t testing.TB, m *chain) *engine.Engine {
	e, err := engine.New(engine.Config{Model: m, Tokenizer: byteVocab{}, Fingerprint: "chain-1", Name: "chain", Pages: 256, Check: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// alphabet writes the letter after the last one, and ends after z.
func alphabet(b byte) backend.Token {
	if b >= 'a' && b < 'z' {
		return backend.Token(b + 1)
	}
	if b == 'z' {
		return puppet.EOS
	}
	return 'a'
}

// client talks to a server under test.
type client struct {
	t   testing.TB
	srv *Server
	url string
	key string
}

// serveFor starts a server that ends with the test, and checks that it leaves
// nothing behind.
func serveFor(t testing.TB, be backend.Backend, change func(*Config)) *client {
	t.Helper()
	cfg := Config{Backend: be, Vocabulary: byteVocab{}, Version: "test"}
	if change != nil {
		change(&cfg)
	}
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewServer(srv)
	t.Cleanup(func() {
		srv.Close()
		ts.CloseClientConnections()
		ts.Close()
		noneLeft(t)
	})
	return &client{t: t, srv: srv, url: ts.URL}
}

// noneLeft checks that no goroutine of this package is at work.
func noneLeft(t testing.TB) {
	var stacks string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); goruntime.Gosched() {
		buf := make([]byte, 1<<20)
		stacks = string(buf[:goruntime.Stack(buf, true)])
		if !strings.Contains(stacks, "serve.(*Server).") && !strings.Contains(stacks, "serve.(*socket).") {
			return
		}
	}
	t.Errorf("goroutines are left:\n%s", stacks)
}

func (c *client) do(method, path string, body any, header ...string) *http.Response {
	c.t.Helper()
	return c.doCtx(c.t.Context(), method, path, body, header...)
}

func (c *client) doCtx(ctx context.Context, method, path string, body any, header ...string) *http.Response {
	c.t.Helper()
	resp, err := c.try(ctx, method, path, body, header...)
	if err != nil {
		c.t.Fatal(err)
	}
	return resp
}

func (c *client) try(ctx context.Context, method, path string, body any, header ...string) (*http.Response, error) {
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		data, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, r)
	if err != nil {
		return nil, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	return http.DefaultClient.Do(req)
}

// tree is a JSON document.
type tree = map[string]any

// post returns the status and the answer of a POST.
func (c *client) post(path string, body any) (int, tree) {
	c.t.Helper()
	return c.call("POST", path, body)
}

func (c *client) call(method, path string, body any) (int, tree) {
	c.t.Helper()
	resp := c.do(method, path, body)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var out tree
	if len(data) > 0 {
		if err := json.Unmarshal(data, &out); err != nil {
			c.t.Fatalf("%s %s: %v in %q", method, path, err, data)
		}
	}
	return resp.StatusCode, out
}

// ok is post for requests that must succeed.
func (c *client) ok(path string, body any) tree {
	c.t.Helper()
	status, out := c.post(path, body)
	if status/100 != 2 {
		c.t.Fatalf("POST %s: %d %v", path, status, out)
	}
	return out
}

// refused checks the status and the field that an error names.
func (c *client) refused(path string, body any, status int, param string) tree {
	c.t.Helper()
	got, out := c.post(path, body)
	if got != status {
		c.t.Errorf("POST %s %v: %d %v, want %d", path, body, got, out, status)
		return tree{}
	}
	e, _ := out["error"].(tree)
	if p, _ := e["param"].(string); p != param || e["message"] == "" || e["type"] == "" {
		c.t.Errorf("POST %s %v: error %v, want param %q", path, body, e, param)
	}
	return e
}

// stream returns the events of a streamed answer, without the last, [DONE].
func (c *client) stream(path string, body any) []tree {
	c.t.Helper()
	resp := c.do("POST", path, body)
	defer resp.Body.Close()
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		data, _ := io.ReadAll(resp.Body)
		c.t.Fatalf("POST %s: %d %s", path, resp.StatusCode, data)
	}
	events, done := readSSE(c.t, resp.Body)
	if done != 1 {
		c.t.Errorf("%d times [DONE]", done)
	}
	return events
}

func readSSE(t testing.TB, r io.Reader) (events []tree, done int) {
	t.Helper()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if data == "[DONE]" {
			done++
			continue
		}
		if done > 0 {
			t.Errorf("after [DONE]: %s", data)
		}
		var e tree
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatalf("%v in %q", err, data)
		}
		events = append(events, e)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return events, done
}

// at reads a place in a document: at(doc, "choices", 0, "message").
func at(v any, path ...any) any {
	for _, p := range path {
		switch p := p.(type) {
		case string:
			m, _ := v.(tree)
			v = m[p]
		case int:
			l, _ := v.([]any)
			if p >= len(l) {
				return nil
			}
			v = l[p]
		}
	}
	return v
}

// ask is a chat of one message, with more fields.
func ask(text string, more ...any) tree {
	body := tree{"messages": []any{tree{"role": "user", "content": text}}}
	for i := 0; i+1 < len(more); i += 2 {
		body[more[i].(string)] = more[i+1]
	}
	return body
}

// chatText joins the text of a choice of a streamed chat.
func chatText(events []tree, index int) string {
	var b strings.Builder
	for _, e := range events {
		if c := at(e, "choices", 0); c != nil && int(at(c, "index").(float64)) == index {
			s, _ := at(c, "delta", "content").(string)
			b.WriteString(s)
		}
	}
	return b.String()
}

func stringReader(s string) io.Reader { return strings.NewReader(s) }

// decode reads an answer of another form than an object.
func decode(t testing.TB, resp *http.Response, v any) {
	t.Helper()
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		t.Fatal(resp.Status, err)
	}
}
