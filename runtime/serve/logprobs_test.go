package serve

import (
	"bufio"
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
)

// toldPiece is what a piece of a streamed answer says, with its tokens.
type toldPiece struct {
	text   string
	tokens string // their bytes
	count  int
	top    int // likeliest ones beside the first
}

// scoredRoutes are the ways to ask for a stream with log-probabilities, and what
// an event of each tells. Those of "whole" repeat what came before.
var scoredRoutes = []struct {
	path  string
	body  tree
	whole bool
	read  func(e tree) (toldPiece, bool)
}{
	{"/v1/chat/completions", tree{"messages": []any{tree{"role": "user", "content": "x"}}, "logprobs": true, "top_logprobs": 2}, false, func(e tree) (o toldPiece, ok bool) {
		list, _ := at(e, "choices", 0, "logprobs", "content").([]any)
		o.text, _ = at(e, "choices", 0, "delta", "content").(string)
		return o.chat(list), len(list) > 0
	}},
	{"/v1/responses", tree{"input": "x", "top_logprobs": 2}, false, func(e tree) (o toldPiece, ok bool) {
		list, _ := e["logprobs"].([]any)
		o.text, _ = e["delta"].(string)
		return o.chat(list), e["type"] == "response.output_text.delta"
	}},
	{"/v1/completions", tree{"prompt": ".", "logprobs": 2, "max_tokens": 40}, false, func(e tree) (o toldPiece, ok bool) {
		list, _ := at(e, "choices", 0, "logprobs", "tokens").([]any)
		o.text, _ = at(e, "choices", 0, "text").(string)
		for _, x := range list {
			o.tokens += x.(string)
		}
		o.count = len(list)
		top, _ := at(e, "choices", 0, "logprobs", "top_logprobs", 0).(tree)
		o.top = len(top)
		return o, len(list) > 0
	}},
	{"/generate", tree{"text": ".", "return_logprob": true, "top_logprobs_num": 2, "return_text_in_logprobs": true, "sampling_params": tree{"temperature": 0}}, true, func(e tree) (o toldPiece, ok bool) {
		list, _ := at(e, "meta_info", "output_token_logprobs").([]any)
		o.text, _ = e["text"].(string)
		for _, x := range list {
			o.tokens += at(x, 2).(string)
		}
		o.count = len(list)
		top, _ := at(e, "meta_info", "output_top_logprobs", 0).([]any)
		o.top = len(top)
		return o, true
	}},
}

// chat reads the tokens of chats and responses.
func (o toldPiece) chat(list []any) toldPiece {
	for _, x := range list {
		for _, b := range at(x, "bytes").([]any) {
			o.tokens += string(rune(byte(b.(float64))))
		}
	}
	if o.count = len(list); o.count > 0 {
		o.top = len(at(list[0], "top_logprobs").([]any))
	}
	return o
}

// Each piece of a stream has the log-probabilities of its tokens, while the model is
// still at work on those after it.
func TestLogprobsComeWithTheirText(t *testing.T) {
	for _, route := range scoredRoutes {
		step := make(chan struct{})
		c := serveFor(t, newEngine(t, &chain{next: alphabet, step: step}), nil)
		pass := make(chan struct{}, 1) // one at a time, then all
		go func() {
			for range pass {
				step <- struct{}{}
			}
			close(step)
		}()
		body := tree{"stream": true, "temperature": 0}
		for k, v := range route.body {
			body[k] = v
		}
		pass <- struct{}{}
		resp := c.do("POST", route.path, body)
		lines := bufio.NewScanner(resp.Body)
		var said strings.Builder
		n := 0
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok || data == "[DONE]" {
				continue
			}
			var e tree
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Fatal(err)
			}
			o, ok := route.read(e)
			if !ok {
				continue
			}
			if o.text != o.tokens || o.count != len(o.text) || o.count > 0 && o.top != 2 {
				t.Errorf("%s: %+v of %s", route.path, o, data)
			}
			if route.whole {
				said.Reset()
			}
			said.WriteString(o.text)
			switch n++; { // the model waits for its next pass, and this was told all the same
			case n < 4:
				pass <- struct{}{}
			case n == 4:
				close(pass)
			}
		}
		resp.Body.Close()
		if got := said.String(); n < 4 || got != "abcdefghijklmnopqrstuvwxyz" {
			t.Errorf("%s: %d pieces, %q", route.path, n, got)
		}
	}
}

// Streamed or not the log-probabilities are the same, whatever ends the text, and so
// are those of a backend that tells them only at the end.
func TestLogprobsOfStreamsAreThoseOfAnswers(t *testing.T) {
	const text = "a é🚀<tool_call>\n{\"name\": \"f\"}\n</tool_call> b"
	late := puppet.New()
	late.OnAny().Reply(text)
	for _, be := range []backend.Backend{late, &lateScores{late}} {
		c := serveFor(t, be, nil)
		for _, more := range []tree{{}, {"n": 2}, {"stop": "🚀"}, {"stop": "🚀", "include_stop_str_in_output": true}, {"max_tokens": 4}} {
			chat := ask("x", "logprobs", true, "tools", []any{tree{"type": "function", "function": tree{"name": "f"}}})
			raw := tree{"prompt": "x", "logprobs": 0, "max_tokens": 100}
			for k, v := range more {
				chat[k], raw[k] = v, v
			}
			plain, rawPlain := c.ok("/v1/chat/completions", chat), c.ok("/v1/completions", raw)
			chat["stream"], raw["stream"] = true, true
			events, rawEvents := c.stream("/v1/chat/completions", chat), c.stream("/v1/completions", raw)
			for i := range plain["choices"].([]any) {
				var list []any
				for _, e := range events {
					if at(e, "choices", 0, "index") == float64(i) {
						more, _ := at(e, "choices", 0, "logprobs", "content").([]any)
						list = append(list, more...)
					}
				}
				if want := at(plain, "choices", i, "logprobs", "content"); !reflect.DeepEqual(list, want) {
					t.Errorf("%T %v: streamed %v, want %v", be, more, list, want)
				}
				if got, want := chatText(events, i), at(plain, "choices", i, "message", "content"); got != want {
					t.Errorf("%T %v: streamed %q, want %q", be, more, got, want)
				}
				said := ""
				joined := map[string][]any{}
				for _, e := range rawEvents {
					if at(e, "choices", 0, "index") != float64(i) {
						continue
					}
					said += at(e, "choices", 0, "text").(string)
					for _, name := range []string{"tokens", "token_logprobs", "text_offset"} {
						more, _ := at(e, "choices", 0, "logprobs", name).([]any)
						joined[name] = append(joined[name], more...)
					}
				}
				for name, got := range joined {
					if want := at(rawPlain, "choices", i, "logprobs", name); !reflect.DeepEqual(got, want) {
						t.Errorf("%T %v: streamed %s %v, want %v", be, more, name, got, want)
					}
				}
				if want := at(rawPlain, "choices", i, "text"); said != want || !utf8.ValidString(said) {
					t.Errorf("%T %v: streamed %q, want %q", be, more, said, want)
				}
			}
		}
	}
}

// A prompt that is repeated comes first, with its log-probabilities.
func TestLogprobsOfAStreamThatRepeatsThePrompt(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	body := tree{"prompt": "abd", "max_tokens": 3, "echo": true, "logprobs": 1, "temperature": 0}
	plain := c.ok("/v1/completions", body)
	body["stream"] = true
	text, tokens := "", []any{}
	for _, e := range c.stream("/v1/completions", body) {
		text += at(e, "choices", 0, "text").(string)
		tokens = append(tokens, at(e, "choices", 0, "logprobs", "tokens").([]any)...)
	}
	if text != "abdefg" || !reflect.DeepEqual(tokens, at(plain, "choices", 0, "logprobs", "tokens")) {
		t.Errorf("%q, %v", text, tokens)
	}
}

// lateScores knows log-probabilities at the end only.
type lateScores struct{ *puppet.Model }

func (m *lateScores) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	return m.Model.Generate(ctx, req, func(d backend.Delta) {
		d.Logprobs = nil
		emit(d)
	})
}
