package remote

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// TestLive runs against the server that COPPICE_REMOTE_URL names. It asks for
// what the server's capabilities promise and checks that it holds.
func TestLive(t *testing.T) {
	raw := os.Getenv("COPPICE_REMOTE_URL")
	if raw == "" {
		t.Skip("COPPICE_REMOTE_URL is not set: name a server, e.g. llama+http://127.0.0.1:8080")
	}
	b, err := Open(t.Context(), raw, Options{FirstByte: 2 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	info := b.Info()
	caps := info.Capabilities
	t.Logf("%v: %+v, emulates %v", b, info, b.Emulations())
	ask := func(t *testing.T, r *backend.Request) *backend.Result {
		t.Helper()
		if r.MaxTokens == 0 {
			r.MaxTokens = 64
		}
		var got deltas
		began := time.Now()
		res, err := b.Generate(t.Context(), r, got.emit)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%q %s %q %+v %v in %v", res.Part.Text, res.Finish, res.Matched, res.Usage, res.Emulated, time.Since(began).Round(time.Millisecond))
		if got.all() != res.Part.Text {
			t.Errorf("handed out %q", got.all())
		}
		if res.Usage.PromptTokens == 0 || res.Usage.SampledTokens == 0 && res.Part.Text != "" {
			t.Errorf("no usage: %+v", res.Usage)
		}
		return res
	}
	question := user("Name one colour.")
	t.Run("chat", func(t *testing.T) {
		_, err := b.Generate(t.Context(), &backend.Request{Turns: question, MaxTokens: 1}, nil)
		if e := (*Error)(nil); errors.As(err, &e) && e.Status == 404 && caps.Raw {
			question = rawTurns("Question: Name one colour.\nAnswer:")
			t.Skip("the server has its native routes only; the rest is asked raw")
		}
		if res := ask(t, &backend.Request{Turns: question}); res.Part.Text == "" {
			t.Error("no text")
		}
	})
	t.Run("limit", func(t *testing.T) {
		if res := ask(t, &backend.Request{Turns: question, MaxTokens: 1}); res.Finish != backend.FinishLength {
			t.Error(res.Finish)
		}
	})
	t.Run("raw", func(t *testing.T) {
		if !caps.Raw {
			t.Skip("the server takes no raw prompts")
		}
		turns := rawTurns("One, two, three, four,")
		res := ask(t, &backend.Request{Turns: turns, Stop: []string{"seven"}, MaxTokens: 16})
		if strings.Contains(res.Part.Text, "seven") {
			t.Error("the stop string leaked")
		}
		if caps.TokenIDs && res.Matched == "" && len(res.Part.Tokens) == 0 {
			t.Error("no ids")
		}
		turns[0].Parts = append(turns[0].Parts, res.Part)
		ask(t, &backend.Request{Turns: turns, MaxTokens: 4})
	})
	t.Run("a turn after an answer", func(t *testing.T) {
		if !caps.JSONSchema || isRawPrompt(question) {
			t.Skip("the server has no schemas, or no chats")
		}
		turns := append(slices.Clone(question), text(backend.Assistant, "red"))
		res := ask(t, &backend.Request{Turns: turns, MaxTokens: 80, Constraint: backend.Constraint{JSONSchema: []byte(`{"type":"object","properties":{"again":{"type":"boolean"}},"required":["again"],"additionalProperties":false}`)}})
		if !json.Valid([]byte(res.Part.Text)) {
			t.Errorf("%q is no JSON", res.Part.Text)
		}
	})
	t.Run("open turn", func(t *testing.T) {
		if !b.d.continues || question[0].Role == backend.Raw {
			t.Skip("the server continues no open turn")
		}
		ask(t, &backend.Request{Turns: append(question[:2:2], backend.Turn{Role: backend.Assistant, Parts: []backend.Part{{Text: "One colour is"}}, Open: true}), MaxTokens: 8})
	})
	t.Run("schema", func(t *testing.T) {
		if !caps.JSONSchema {
			t.Skip("the server has no schemas")
		}
		schema := []byte(`{"type":"object","properties":{"colour":{"enum":["red","green"]},"bright":{"type":"boolean"}},"required":["colour","bright"],"additionalProperties":false}`)
		res := ask(t, &backend.Request{Turns: question, Constraint: backend.Constraint{JSONSchema: schema}})
		if check, err := schemaCheck(schema); err != nil {
			t.Fatal(err)
		} else if _, err := check(res.Part.Text); err != nil {
			t.Error(err)
		}
	})
	t.Run("regex", func(t *testing.T) {
		if !caps.Regex {
			t.Skip("the server has no regex")
		}
		res := ask(t, &backend.Request{Turns: question, Constraint: backend.Constraint{Regex: `(red|green) [0-9]{2}`}})
		if !regexp.MustCompile(`^(red|green) [0-9]{2}$`).MatchString(res.Part.Text) {
			t.Errorf("%q", res.Part.Text)
		}
	})
	t.Run("choice and score", func(t *testing.T) {
		if !caps.Choices {
			t.Skip("the server has no choices")
		}
		options := []string{"red", "reddish", "green"}
		res := ask(t, &backend.Request{Turns: question, Constraint: backend.Constraint{Choices: options}})
		if !strings.Contains("red reddish green", res.Part.Text) {
			t.Errorf("%q", res.Part.Text)
		}
		for _, closed := range []bool{false, true} {
			s, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: question, Options: options, Closed: closed})
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("closed %v: %+v", closed, s)
		}
	})
	t.Run("context length", func(t *testing.T) {
		if info.ContextLength == 0 || info.ContextLength > 1<<15 {
			t.Skip("the context is unknown or long")
		}
		_, err := b.Generate(t.Context(), &backend.Request{Turns: append(question[:len(question)-1:len(question)-1], text(question[0].Role, strings.Repeat("word ", info.ContextLength+8))), MaxTokens: 4}, nil)
		if !errors.Is(err, backend.ErrContextLength) {
			t.Errorf("error %v", err)
		}
	})
}

// isRawPrompt reports whether turns are none of a chat.
func isRawPrompt(turns []backend.Turn) bool { raw, _ := isRaw(turns); return raw }
