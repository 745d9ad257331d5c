package serve

import (
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
)

// talker is a device that costs nothing: it says a number of words at once.
type talker struct {
	puppet.Null
	words int
}

var word = backend.Delta{Text: "word ", Tokens: []backend.Token{1}}

func (b talker) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	for range b.words {
		emit(word)
	}
	return &backend.Result{
		Part:   backend.Part{Text: strings.Repeat(word.Text, b.words)},
		Finish: backend.FinishStop,
		Usage:  backend.Usage{PromptTokens: 10, SampledTokens: b.words},
	}, nil
}

// BenchmarkStream is what the server itself costs for a streamed token.
func BenchmarkStream(b *testing.B) {
	srv, err := New(Config{Backend: talker{words: 1000}})
	if err != nil {
		b.Fatal(err)
	}
	ts := httptest.NewServer(srv)
	defer func() { ts.Close(); srv.Close() }()
	c := &client{t: b, srv: srv, url: ts.URL}
	body := ask("go on", "stream", true)
	b.ReportAllocs()
	for b.Loop() {
		resp := c.doCtx(b.Context(), "POST", "/v1/chat/completions", body)
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkRequest is what the server adds to a request.
func BenchmarkRequest(b *testing.B) {
	srv, err := New(Config{Backend: talker{words: 1}})
	if err != nil {
		b.Fatal(err)
	}
	defer srv.Close()
	c := &client{t: b, srv: srv}
	b.ReportAllocs()
	for b.Loop() {
		c.record("POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"go on"}],"stream":true}`)
	}
}

// failing says a word and fails when that was seen.
type failing struct {
	puppet.Null
	seen chan struct{}
}

func (b failing) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	emit(word)
	<-b.seen
	return nil, backend.ErrUnavailable
}
