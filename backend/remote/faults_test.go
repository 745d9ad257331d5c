package remote

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// TestEveryDialectLivesWithFaults: each fault of a server, in each dialect and for chats
// as for raw prompts: what passes gets another attempt, after the time that the server
// asks for; what stays is an error; nothing hangs, and nothing of it is taken for an
// answer.
func TestEveryDialectLivesWithFaults(t *testing.T) {
	page := func(kind, body string) http.HandlerFunc { return exactly(kind, body) }
	cut := func(w http.ResponseWriter, _ *http.Request) { // in the middle of a line
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"del")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	for _, fault := range []struct {
		name   string
		h      http.HandlerFunc
		waited time.Duration // at least
		final  bool          // another attempt would be no better, or need not be made
	}{
		{"429 with Retry-After", status(429, "Retry-After", "7"), 7 * second, false},
		{"500", status(500), 0, false},
		{"hangs", hang, 30 * second, false},
		{"cut in a line", cut, 0, false},
		{"reset", reset, 0, false},
		{"not JSON in a stream", page("text/event-stream", "data: {nope}\n\n"), 0, true},
		{"JSON of something else", page("application/json", `{"hello": [1]}`), 0, true},
		{"a web page", page("text/html", "<html></html>"), 0, true},
		{"no choices", page("application/json", `{"choices":[]}`), 0, true},
		{"null", page("application/json", `null`), 0, true},
		{"400", status(400), 0, true},
	} {
		for _, scheme := range []string{"openai+http", "vllm+http", "sglang+http", "llama+http", "ollama+http", "anthropic+http"} {
			for kind, turns := range map[string][]backend.Turn{"chat": user("hi"), "raw": {{Role: backend.Raw, Parts: []backend.Part{{Text: "hi"}}}}} {
				if kind == "raw" && (scheme == "ollama+http" || scheme == "anthropic+http") {
					continue // they have no raw prompts
				}
				t.Run(fault.name+" "+scheme+" "+kind, func(t *testing.T) {
					bubble(t, func(t *testing.T) {
						f := (&fake{answer: []string{"hel", "lo"}, faults: []http.HandlerFunc{fault.h, nil, fault.h, fault.h}}).start(t)
						b := f.open(scheme, Options{FirstByte: 30 * second, Idle: 5 * second, Retry: Retry{Attempts: 2}})
						ask := func() (*backend.Result, string, error) {
							var got deltas
							res, err := b.Generate(t.Context(), &backend.Request{ID: "node", Turns: turns, MaxTokens: 5}, got.emit)
							return res, got.all(), err
						}
						began := time.Now()
						res, shown, err := ask()
						var e *Error
						switch {
						case err == nil && res.Part.Text == "hello" && shown == "hello":
							if d := time.Since(began); d < fault.waited || d > fault.waited+5*second {
								t.Errorf("after %v", d)
							}
						case !fault.final || !errors.As(err, &e) || shown != "":
							t.Fatalf("%+v, %v, handed out %q", res, err, shown)
						default: // it was not asked again
							if _, _, err := ask(); err != nil {
								t.Errorf("the next request: %v", err)
							}
						}
						if res, shown, err := ask(); !errors.As(err, &e) || e.Attempts > 2 || shown != "" {
							t.Errorf("a fault that stays: %+v, %v, handed out %q", res, err, shown)
						}
					})
				})
			}
		}
	}
}
