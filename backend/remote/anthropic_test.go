package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// message writes events of the Messages API, each with its name.
func message(w http.ResponseWriter) func(typ string, v m) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.WriteHeader(http.StatusOK)
	return func(typ string, v m) {
		if v == nil {
			v = m{}
		}
		v["type"] = typ
		b, _ := json.Marshal(v)
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", typ, b)
		w.(http.Flusher).Flush()
	}
}

// start and end are the first and the last events of an answer.
func (f *fake) startMessage(send func(string, m)) {
	send("message_start", m{"message": m{"role": "assistant", "content": []m{}, "usage": m{
		"input_tokens": f.prompt - f.cached, "cache_read_input_tokens": f.cached, "cache_creation_input_tokens": 0, "output_tokens": 1}}})
	send("ping", nil)
}

func endMessage(send func(string, m), reason string, more m, tokens int) {
	delta := m{"stop_reason": reason}
	for k, v := range more {
		delta[k] = v
	}
	send("message_delta", m{"delta": delta, "usage": m{"output_tokens": tokens}})
	send("message_stop", nil)
}

func sendText(send func(string, m), index int, pieces ...string) {
	send("content_block_start", m{"index": index, "content_block": m{"type": "text", "text": ""}})
	for _, p := range pieces {
		send("content_block_delta", m{"index": index, "delta": m{"type": "text_delta", "text": p}})
	}
	send("content_block_stop", m{"index": index})
}

func (f *fake) serveMessages(w http.ResponseWriter) {
	send := message(w)
	f.startMessage(send)
	sendText(send, 0, f.answer...)
	endMessage(send, map[string]string{"stop": "end_turn", "length": "max_tokens"}[f.reason()], nil, len(f.answer))
}

// anthropicError is the body of an error, as an answer.
func anthropicError(status int, typ, msg string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Request-Id", "req_1")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(m{"type": "error", "error": m{"type": typ, "message": msg}})
	}
}

// TestMessagesOnTheWire: what a request is in the Messages API.
func TestMessagesOnTheWire(t *testing.T) {
	turn := text
	picture := backend.Turn{Role: backend.User, Parts: []backend.Part{{Text: "Look: "}, {Image: "data:image/png;base64,AAAA"}, {Image: "https://host/a.png"}, {Text: "well"}}}
	old := turn(backend.Assistant, "The answer is")
	old.Open = true
	schema := `{"type":"object","properties":{"b":{"type":"integer"},"a":{"type":"string"}},"required":["b","a"],"additionalProperties":false}`
	for name, c := range map[string]struct {
		model string
		req   backend.Request
		want  string // JSON
		notes []string
	}{
		"plain": {"claude-x", backend.Request{Turns: user("hi"), MaxTokens: 9, Stop: []string{"END"}, Sampling: backend.Sampling{Temperature: 0.5, TopP: 0.9, TopK: 40}},
			`{"model":"claude-x","max_tokens":9,"stream":true,"system":[{"type":"text","text":"Be brief."}],"messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],
			"stop_sequences":["END"],"temperature":0.5,"top_p":0.9,"top_k":40}`, nil},
		"greedy, without a limit, read again": {"claude-x", backend.Request{Turns: []backend.Turn{turn(backend.User, "a"), turn(backend.Assistant, "b"), turn(backend.Assistant, ""), turn(backend.User, "c")}, Hints: backend.Hints{Reused: true}},
			`{"model":"claude-x","max_tokens":4096,"stream":true,"temperature":0,"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"text","text":"b"}]},
			{"role":"user","content":[{"type":"text","text":"c","cache_control":{"type":"ephemeral"}}]}]}`, nil},
		"pictures": {"claude-x", backend.Request{Turns: []backend.Turn{picture}, MaxTokens: 9},
			`{"model":"claude-x","max_tokens":9,"stream":true,"temperature":0,"messages":[{"role":"user","content":[{"type":"text","text":"Look: "},{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}},
			{"type":"image","source":{"type":"url","url":"https://host/a.png"}},{"type":"text","text":"well"}]}]}`, nil},
		"system turns later, a tool's turn, an assistant turn before": {"claude-x", backend.Request{Turns: []backend.Turn{turn(backend.User, "a"), turn(backend.System, "b"), turn(backend.Tool, "c"), turn(backend.Assistant, "d")}, MaxTokens: 9},
			`{"model":"claude-x","max_tokens":9,"stream":true,"temperature":0,"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"user","content":[{"type":"text","text":"b"}]},
			{"role":"user","content":[{"type":"text","text":"Tool result:\nc"}]},{"role":"assistant","content":[{"type":"text","text":"d"}]},{"role":"user","content":[{"type":"text","text":"Go on."}]}]}`,
			[]string{betweenNote, "tool turns: sent as user turns", "system turns after the first user turn: sent as user turns"}},
		"system alone": {"claude-x", backend.Request{Turns: []backend.Turn{turn(backend.System, "a")}, MaxTokens: 9},
			`{"model":"claude-x","max_tokens":9,"stream":true,"temperature":0,"system":[{"type":"text","text":"a"}],"messages":[{"role":"user","content":[{"type":"text","text":"Go on."}]}]}`,
			[]string{"no user turn: one was put in"}},
		"an open turn": {"claude-sonnet-4-5-20250929", backend.Request{Turns: []backend.Turn{turn(backend.User, "a"), old}, MaxTokens: 9},
			`{"model":"claude-sonnet-4-5-20250929","max_tokens":9,"stream":true,"temperature":0,"messages":[{"role":"user","content":[{"type":"text","text":"a"}]},{"role":"assistant","content":[{"type":"text","text":"The answer is"}]}]}`, nil},
		"a schema": {"claude-x", backend.Request{Turns: []backend.Turn{turn(backend.User, "a")}, MaxTokens: 9, Constraint: backend.Constraint{JSONSchema: []byte(schema)}},
			`{"model":"claude-x","max_tokens":9,"stream":true,"temperature":0,"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"output_config":{"format":{"type":"json_schema","schema":` + schema + `}}}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := (&fake{answer: []string{`{"b":1,`, `"a":"x"}`}, models: []string{c.model}}).start(t)
				b := f.open("anthropic+http", Options{APIKey: "secret"})
				res, err := b.Generate(t.Context(), &c.req, nil)
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(res.Emulated, c.notes) {
					t.Errorf("emulated %q", res.Emulated)
				}
				got := f.calls("/v1/messages")[0]
				var want any
				if err := json.Unmarshal([]byte(c.want), &want); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(any(got.Body), want) {
					t.Errorf("sent %s", got.Raw)
				}
				if name == "a schema" && !strings.Contains(got.Raw, schema) {
					t.Errorf("the schema's keys have another order: %s", got.Raw)
				}
				if got.Auth != "Bearer secret" { // a server of another house
					t.Errorf("authorization %q", got.Auth)
				}
			})
		})
	}
}

// TestMessagesRefused: what the dialect does not have, before a byte is sent.
func TestMessagesRefused(t *testing.T) {
	open := func(s string) backend.Turn {
		x := text(backend.Assistant, s)
		x.Open = true
		return x
	}
	bubble(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			model string
			req   backend.Request
			want  error
			says  string
		}{
			"a raw prompt":         {"claude-x", backend.Request{Turns: rawTurns("a")}, backend.ErrUnsupported, "raw prompt"},
			"log-probabilities":    {"claude-x", backend.Request{Turns: user("a"), Logprobs: true}, backend.ErrUnsupported, "logprobs"},
			"a grammar":            {"claude-x", backend.Request{Turns: user("a"), Constraint: backend.Constraint{EBNF: `root ::= "a"`}}, backend.ErrUnsupported, "ebnf"},
			"a bias":               {"claude-x", backend.Request{Turns: user("a"), Sampling: backend.Sampling{LogitBias: map[backend.Token]float64{1: 1}}}, backend.ErrUnsupported, "logit_bias"},
			"a temperature of two": {"claude-x", backend.Request{Turns: user("a"), Sampling: backend.Sampling{Temperature: 2}}, backend.ErrUnsupported, "0 to 1"},
			"an open turn":         {"claude-opus-4-6", backend.Request{Turns: []backend.Turn{text(backend.User, "a"), open("b")}}, backend.ErrUnsupported, "open assistant turn"},
			"white space at its end": {"claude-sonnet-4-5", backend.Request{Turns: []backend.Turn{text(backend.User, "a"), open("b ")}}, backend.ErrUnsupported,
				"white space"},
			"an assistant turn first": {"claude-x", backend.Request{Turns: []backend.Turn{text(backend.Assistant, "a"), text(backend.User, "b")}}, backend.ErrUnsupported, "begins with an assistant turn"},
		} {
			f := (&fake{models: []string{c.model}}).start(t)
			b := f.open("anthropic+http", Options{})
			_, err := b.Generate(t.Context(), &c.req, nil)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) || len(f.calls("/v1/messages")) > 0 {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestMessagesErrors: each error of the Messages API, as a status and in the middle of a
// stream, is one of ours; what passes is asked again.
func TestMessagesErrors(t *testing.T) {
	for _, c := range []struct {
		status int
		typ    string
		msg    string
		kind   error
		again  bool
	}{
		{529, "overloaded_error", "Overloaded", backend.ErrOverloaded, true},
		{429, "rate_limit_error", "too many tokens a minute", backend.ErrOverloaded, true},
		{500, "api_error", "Internal server error", backend.ErrUnavailable, true},
		{504, "timeout_error", "Request timed out", backend.ErrUnavailable, true},
		{400, "invalid_request_error", "messages: text is missing", backend.ErrInvalid, false},
		{401, "authentication_error", "invalid x-api-key", backend.ErrInvalid, false},
		{402, "billing_error", "no credit", backend.ErrInvalid, false},
		{403, "permission_error", "not yours", backend.ErrInvalid, false},
		{404, "not_found_error", "model: claude-y", backend.ErrInvalid, false},
		{413, "request_too_large", "too large", backend.ErrContextLength, false},
		{400, "invalid_request_error", "prompt is too long: 201234 tokens > 200000 maximum", backend.ErrContextLength, false},
		{400, "invalid_request_error", "input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000", backend.ErrContextLength, false},
	} {
		for kind, h := range map[string]http.HandlerFunc{
			"status": anthropicError(c.status, c.typ, c.msg),
			"stream": func(w http.ResponseWriter, _ *http.Request) {
				message(w)("error", m{"error": m{"type": c.typ, "message": c.msg}})
			},
		} {
			t.Run(fmt.Sprint(c.status, " ", c.typ, " ", kind), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := (&fake{answer: []string{"ok"}, faults: []http.HandlerFunc{h, nil, h, h}}).start(t)
					b := f.open("anthropic+http", Options{Retry: Retry{Attempts: 2}})
					req := &backend.Request{Turns: user("hi"), MaxTokens: 9}
					res, err := b.Generate(t.Context(), req, nil)
					if c.again {
						if err != nil || res.Part.Text != "ok" {
							t.Fatalf("not asked again: %v", err)
						}
						_, err = b.Generate(t.Context(), req, nil)
					}
					var e *Error
					if !errors.As(err, &e) || !errors.Is(err, c.kind) || e.Retryable() != c.again || e.Status != c.status || e.Type != c.typ {
						t.Fatalf("%+v: %v", e, err)
					}
					var long *backend.ContextLengthError
					if strings.Contains(c.msg, "maximum") && (!errors.As(err, &long) || long.Prompt != 201234 || long.Context != 200000) {
						t.Errorf("counts %+v", long)
					}
				})
			})
		}
	}
	bubble(t, func(t *testing.T) { // and not before the server's time
		f := (&fake{answer: []string{"ok"}, faults: []http.HandlerFunc{anthropicError(529, "overloaded_error", "Overloaded", "Retry-After", "12")}}).start(t)
		b := f.open("anthropic+http", Options{})
		began := time.Now()
		if _, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), MaxTokens: 9}, nil); err != nil || time.Since(began) < 12*second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestMessagesAnswers: thoughts are not of the text, several blocks are one text, and an
// answer's end is what the server says it is.
func TestMessagesAnswers(t *testing.T) {
	f := &fake{prompt: 10}
	answer := func(reason string, more m, pieces ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			send := message(w)
			f.startMessage(send)
			send("content_block_start", m{"index": 0, "content_block": m{"type": "thinking", "thinking": ""}})
			send("content_block_delta", m{"index": 0, "delta": m{"type": "thinking_delta", "thinking": "hm"}})
			send("content_block_delta", m{"index": 0, "delta": m{"type": "signature_delta", "signature": "x"}})
			send("content_block_stop", m{"index": 0})
			for i, p := range pieces {
				sendText(send, i+1, p)
			}
			send("something_new", m{"delta": m{"text": "no"}, "x": 1})
			endMessage(send, reason, more, 7)
		}
	}
	cut := func(w http.ResponseWriter, _ *http.Request) {
		send := message(w)
		f.startMessage(send)
		sendText(send, 0, "hel")
		panic(http.ErrAbortHandler)
	}
	for name, c := range map[string]struct {
		h      http.HandlerFunc
		stop   []string
		text   string
		finish backend.FinishReason
		match  string
		err    string
	}{
		"its end":        {answer("end_turn", nil, "hel", "lo"), nil, "hello", backend.FinishStop, "", ""},
		"the limit":      {answer("max_tokens", nil, "hel", "lo"), nil, "hello", backend.FinishLength, "", ""},
		"the context":    {answer("model_context_window_exceeded", nil, "hello"), nil, "hello", backend.FinishLength, "", ""},
		"a stop string":  {answer("stop_sequence", m{"stop_sequence": "END"}, "hello"), []string{"END"}, "hello", backend.FinishStop, "END", ""},
		"a new line":     {answer("end_turn", nil, "hel", "lo\nand", " more"), []string{"\n"}, "hello", backend.FinishStop, "\n", ""},
		"two new lines":  {answer("end_turn", nil, "hel", "lo\n", "\nand more"), []string{"END", "\n\n"}, "hello", backend.FinishStop, "\n\n", ""},
		"one is not two": {answer("end_turn", nil, "hel", "lo\n", "x"), []string{"\n\n"}, "hello\nx", backend.FinishStop, "", ""},
		"a refusal":      {answer("refusal", m{"stop_details": m{"explanation": "not that"}}, "hel"), nil, "", "", "", "refused"},
		"a pause":        {answer("pause_turn", nil, "hel"), nil, "", "", "", "paused"},
		"cut":            {cut, nil, "", "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := (&fake{faults: []http.HandlerFunc{c.h}, prompt: 10}).start(t)
				b := f.open("anthropic+http", Options{Retry: Retry{Attempts: 1}})
				var got deltas
				res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), MaxTokens: 9, Stop: c.stop}, got.emit)
				if c.text == "" {
					var e *Error
					if !errors.As(err, &e) || !strings.Contains(err.Error(), c.err) {
						t.Fatalf("%+v, %v", res, err)
					}
					return
				}
				if err != nil || res.Part.Text != c.text || got.all() != c.text || res.Finish != c.finish || res.Matched != c.match {
					t.Fatalf("%+v, deltas %q, %v", res, got.text, err)
				}
				here := slices.ContainsFunc(c.stop, blank)
				if u := res.Usage; u.PromptTokens != 10 || u.SampledTokens != 7 && !(here && u.SampledTokens >= 2) {
					t.Errorf("usage %+v", u)
				}
				if here != slices.Contains(res.Emulated, "stop: strings of white space are looked for here") {
					t.Errorf("emulated %q", res.Emulated)
				}
			})
		})
	}
}

// TestModelsWithoutTemperature: a model that takes no sampling options is asked without
// them, once it has said so, and the result says that; with emulation off it is an error.
func TestModelsWithoutTemperature(t *testing.T) {
	no := anthropicError(400, "invalid_request_error", "`temperature` is deprecated for this model.")
	bubble(t, func(t *testing.T) {
		f := (&fake{answer: []string{"ok"}, faults: []http.HandlerFunc{no}}).start(t)
		b := f.open("anthropic+http", Options{})
		for range 2 {
			res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), MaxTokens: 9}, nil)
			if err != nil || res.Part.Text != "ok" || !slices.Equal(res.Emulated, []string{plainNote}) {
				t.Fatalf("%+v, %v", res, err)
			}
		}
		calls := f.calls("/v1/messages")
		if len(calls) != 3 {
			t.Fatalf("%d calls", len(calls))
		}
		for i, c := range calls {
			if _, has := c.Body["temperature"]; has != (i == 0) {
				t.Errorf("call %d: %s", i, c.Raw)
			}
		}

		f = (&fake{faults: []http.HandlerFunc{no}}).start(t)
		b = f.open("anthropic+http", Options{NoEmulation: true})
		if _, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), MaxTokens: 9}, nil); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%v", err)
		}
		// A wrong value is the caller's.
		f = (&fake{faults: []http.HandlerFunc{anthropicError(400, "invalid_request_error", "temperature: range: 0..1")}}).start(t)
		b = f.open("anthropic+http", Options{})
		if _, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), MaxTokens: 9}, nil); !errors.Is(err, backend.ErrInvalid) || len(f.calls("/v1/messages")) != 1 {
			t.Errorf("%v", err)
		}
	})
}

// TestAnthropicsOwnService: the key goes in its own header, the model is asked for by any
// of its names, and what it says of itself bounds requests.
func TestAnthropicsOwnService(t *testing.T) {
	bubble(t, func(t *testing.T) {
		t.Setenv("COPPICE_API_KEY", "")
		t.Setenv("ANTHROPIC_API_KEY", "sk-ant-1")
		var mu []string
		seen := func(w http.ResponseWriter, r *http.Request) {
			mu = append(mu, r.URL.Path, r.Header.Get("X-Api-Key"), r.Header.Get("Authorization"), r.Header.Get("Anthropic-Version"))
		}
		f := &fake{answer: []string{"ok"}}
		f.routes = map[string]http.HandlerFunc{
			"/v1/models/claude-x": func(w http.ResponseWriter, r *http.Request) {
				seen(w, r)
				reply(w, m{"id": "claude-x-20260101", "type": "model", "max_input_tokens": 200000, "max_tokens": 64000})
			},
			"/v1/models/claude-y": anthropicError(404, "not_found_error", "model: claude-y"),
			"/v1/messages": func(w http.ResponseWriter, r *http.Request) {
				seen(w, r)
				f.serveMessages(w)
			},
		}
		f.start(t)
		b, err := Open(t.Context(), "anthropic+http://api.anthropic.com?model=claude-x", Options{Transport: f.transport})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		if b.Info().ContextLength != 200000 || b.Dialect() != "anthropic" {
			t.Errorf("%+v", b.Info())
		}
		if _, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi")}, nil); err != nil {
			t.Fatal(err)
		}
		want := []string{"/v1/models/claude-x", "sk-ant-1", "", messagesVersion, "/v1/messages", "sk-ant-1", "", messagesVersion}
		if !slices.Equal(mu, want) {
			t.Errorf("sent %q", mu)
		}
		if got := f.calls("/v1/messages")[0].Body["max_tokens"]; got != 64000.0 {
			t.Errorf("max_tokens %v", got)
		}
		for url, says := range map[string]string{
			"anthropic+http://api.anthropic.com":                "name the model",
			"anthropic+http://api.anthropic.com?model=claude-y": "name one of the server's models",
		} {
			if _, err := Open(t.Context(), url, Options{Transport: f.transport, Retry: Retry{Attempts: 1}}); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: %v", url, err)
			}
		}
	})
}

// TestConstraintsOfTheMessagesAPI: a schema that the server enforces goes there; another,
// or one for an old model, is told in words and checked here; choices are in a schema,
// and a select becomes one.
func TestConstraintsOfTheMessagesAPI(t *testing.T) {
	strict := `{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`
	for name, c := range map[string]struct {
		model, answer string
		k             backend.Constraint
		format        bool
		text          string
		emulated      string
	}{
		"enforced":           {"claude-x", `{"n":1}`, backend.Constraint{JSONSchema: []byte(strict)}, true, `{"n":1}`, ""},
		"a bound":            {"claude-x", `{"n":1}`, backend.Constraint{JSONSchema: []byte(strings.Replace(strict, `"integer"`, `"integer","minimum":0`, 1))}, false, `{"n":1}`, "json_schema: validated, 1 try"},
		"open":               {"claude-x", `{"n":1}`, backend.Constraint{JSONSchema: []byte(`{"type":"object"}`)}, false, `{"n":1}`, "json_schema: validated, 1 try"},
		"of an old model":    {"claude-3-5-haiku-20241022", "```json\n{\"n\":1}\n```", backend.Constraint{JSONSchema: []byte(strict)}, false, `{"n":1}`, "json_schema: validated, 1 try"},
		"a regex":            {"claude-x", `a1`, backend.Constraint{Regex: `[a-z][0-9]`}, false, `a1`, "regex: validated, 1 try"},
		"choices":            {"claude-x", `{"choice":"low"}`, backend.Constraint{Choices: []string{"low", "high"}}, true, `low`, "choices: a one-field schema"},
		"choices of old one": {"claude-sonnet-4-20250514", `low`, backend.Constraint{Choices: []string{"low", "high"}}, false, `low`, "choices: validated, 1 try"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := (&fake{answer: []string{c.answer}, models: []string{c.model}}).start(t)
				b := f.open("anthropic+http", Options{})
				res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), MaxTokens: 50, Constraint: c.k}, nil)
				if err != nil || res.Part.Text != c.text || strings.Join(res.Emulated, ",") != c.emulated {
					t.Fatalf("%+v, %v", res, err)
				}
				if _, has := f.calls("/v1/messages")[0].Body["output_config"]; has != c.format {
					t.Errorf("sent %s", f.calls("/v1/messages")[0].Raw)
				}
				if len(c.k.Choices) == 0 {
					return
				}
				s, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: user("hi"), Options: c.k.Choices})
				if err != nil || s.Options[0].Sum != 0 || s.Options[1].Sum != NotChosen || len(s.Emulated) == 0 {
					t.Errorf("score %+v, %v", s, err)
				}
			})
		})
	}
}

// TestMessagesThatAreNone: what is not an answer of the Messages API is an error.
func TestMessagesThatAreNone(t *testing.T) {
	for name, body := range map[string]string{
		"no events":     "",
		"without names": "data: {\"type\":\"message_stop\"}\n\n",
		"no end":        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n",
		"stop only":     "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		"other types":   "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":[1,{\"text\":3}]}\n\n",
		"not JSON":      "event: message_start\ndata: {nope}\n\n",
	} {
		bubble(t, func(t *testing.T) {
			f := (&fake{faults: []http.HandlerFunc{exactly("text/event-stream", body)}}).start(t)
			b := f.open("anthropic+http", Options{Retry: Retry{Attempts: 1}})
			var e *Error
			if res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), MaxTokens: 9}, nil); !errors.As(err, &e) {
				t.Errorf("%s: %+v, %v", name, res, err)
			}
		})
	}
}
