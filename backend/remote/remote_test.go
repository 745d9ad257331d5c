package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coppice-run/coppice/backend"
)

func TestOpenRecognisesWhatTheServerIs(t *testing.T) {
	for owner, want := range map[string]string{
		"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama", "library": "ollama", "someone": "openai", "": "openai",
	} {
		t.Run(want+" from "+owner, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := (&fake{owner: owner}).start(t).open("http", Options{})
				if b.Dialect() != want || b.Info().Model != "toy" || b.Info().ContextLength != 4096 {
					t.Errorf("dialect %s, info %+v", b.Dialect(), b.Info())
				}
			})
		})
	}
}

func TestGatewayWithoutNativeRoutesStaysOpenAI(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{owner: "sglang", routes: map[string]http.HandlerFunc{"/get_model_info": status(404)}}).start(t)
		if b := f.open("http", Options{}); b.Dialect() != "openai" {
			t.Errorf("dialect %s", b.Dialect())
		}
	})
}

func TestOpenAsksForAModelWhereThereAreSeveral(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{models: []string{"one", "two"}}).start(t)
		_, err := Open(t.Context(), "http://fake.test/v1", Options{Transport: f.transport})
		if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "one, two") {
			t.Errorf("error %v", err)
		}
		b := f.open("http", Options{Model: "two"})
		if b.Info().Model != "two" {
			t.Errorf("model %s", b.Info().Model)
		}
	})
}

func TestGenerateInEveryDialect(t *testing.T) {
	for _, d := range []struct {
		scheme  string
		turns   []backend.Turn
		route   string
		ids     bool
		address string
	}{
		{"openai+http", user("hi"), "/v1/chat/completions", false, ""},
		{"openai+http", rawTurns("hi"), "/v1/completions", false, ""},
		{"vllm+http", user("hi"), "/v1/chat/completions", false, ""},
		{"vllm+http", rawTurns("hi"), "/v1/completions", false, ""},
		{"sglang+http", user("hi"), "/v1/chat/completions", false, ""},
		{"sglang+http", rawTurns("hi"), "/generate", true, ""},
		{"llama+http", user("hi"), "/completion", true, ""},
		{"llama+http", rawTurns("hi"), "/completion", true, ""},
		{"ollama+http", user("hi"), "/v1/chat/completions", false, ""},
		{"anthropic+http", user("hi"), "/v1/messages", false, ""},
	} {
		t.Run(d.scheme+d.route, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := (&fake{answer: []string{"the", " ", "low"}, prompt: 10, cached: 4}).start(t)
				b := f.open(d.scheme, Options{})
				var got deltas
				res, err := b.Generate(t.Context(), &backend.Request{Turns: d.turns, MaxTokens: 9}, got.emit)
				if err != nil {
					t.Fatal(err)
				}
				if res.Part.Text != "the low" || got.all() != "the low" || len(got.text) < 3 {
					t.Errorf("text %q, deltas %q", res.Part.Text, got.text)
				}
				if res.Finish != backend.FinishStop || res.Emulated != nil {
					t.Errorf("finish %s, emulated %v", res.Finish, res.Emulated)
				}
				if u := res.Usage; u.PromptTokens != 10 || u.CachedTokens != 4 || u.SampledTokens < 3 || u.ComputedTokens != 6+u.SampledTokens || u.Without.ComputedTokens != 10+u.SampledTokens {
					t.Errorf("usage %+v", u)
				}
				if d.ids != (len(res.Part.Tokens) == len(toyTokens("the low")) && res.Part.Model == b.Info().Fingerprint) {
					t.Errorf("ids %v of model %q", res.Part.Tokens, res.Part.Model)
				}
				if n := len(f.calls(d.route)); n != 1 {
					t.Errorf("%d calls of %s", n, d.route)
				}
			})
		})
	}
}

// A failed call is made again by one layer only, as often as the policy says.
func TestOneOwnerOfRetries(t *testing.T) {
	always := func(h http.HandlerFunc) []http.HandlerFunc {
		out := make([]http.HandlerFunc, 20)
		for i := range out {
			out[i] = h
		}
		return out
	}
	for _, c := range []struct {
		name  string
		fault http.HandlerFunc
		calls int
		kind  error
	}{
		{"500", status(500), 3, backend.ErrUnavailable},
		{"502", status(502), 3, backend.ErrUnavailable},
		{"503", status(503), 3, backend.ErrUnavailable},
		{"429", status(429), 3, backend.ErrOverloaded},
		{"408", status(408), 3, backend.ErrUnavailable},
		{"400", status(400), 1, backend.ErrInvalid},
		{"401", status(401), 1, backend.ErrInvalid},
		{"403", status(403), 1, backend.ErrInvalid},
		{"404", status(404), 1, backend.ErrInvalid},
		{"422", status(422), 1, backend.ErrInvalid},
		{"413", status(413), 1, backend.ErrContextLength},
		{"501", status(501), 1, backend.ErrUnsupported},
		{"redirect", status(302, "Location", "http://other.test/"), 1, backend.ErrInvalid},
		{"connection reset", reset, 3, backend.ErrUnavailable},
	} {
		for _, scheme := range []string{"openai+http", "llama+http"} {
			t.Run(c.name+" "+scheme, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					f := (&fake{faults: always(c.fault)}).start(t)
					b := f.open(scheme, Options{Retry: Retry{Attempts: 3}})
					_, err := b.Generate(t.Context(), &backend.Request{ID: "verdict", Turns: user("hi")}, nil)
					if !errors.Is(err, c.kind) {
						t.Errorf("error %v", err)
					}
					var e *Error
					if !errors.As(err, &e) || e.Attempts != c.calls || e.Retryable() != (c.calls > 1) {
						t.Fatalf("error %+v", e)
					}
					if !strings.Contains(err.Error(), "verdict") {
						t.Errorf("error without the node's name: %v", err)
					}
					if e.Status > 0 && (e.RequestID != "req-1" || e.Code != "c" || !strings.Contains(e.Message, "fault")) {
						t.Errorf("error %+v", e)
					}
					if n := len(f.calls("/v1/chat/completions")) + len(f.calls("/completion")); n != c.calls {
						t.Errorf("%d calls, want %d", n, c.calls)
					}
				})
			})
		}
	}
}

func TestRetryAfterIsWaitedFor(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{answer: []string{"ok"}, faults: []http.HandlerFunc{status(429, "Retry-After", "7")}}).start(t)
		b := f.open("openai+http", Options{})
		began := time.Now()
		res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi")}, nil)
		if err != nil || res.Part.Text != "ok" {
			t.Fatal(res, err)
		}
		if d := time.Since(began); d != 7*second {
			t.Errorf("waited %v", d)
		}
	})
}

func TestRetryAfterBeyondTheBoundFailsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{faults: []http.HandlerFunc{status(429, "Retry-After", "3600")}}).start(t)
		b := f.open("openai+http", Options{})
		began := time.Now()
		_, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi")}, nil)
		var e *Error
		if !errors.As(err, &e) || e.RetryAfter != time.Hour || time.Since(began) != 0 {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
	})
}

func TestCancelWhileWaitingToRetry(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{faults: []http.HandlerFunc{status(429, "Retry-After", "50")}}).start(t)
		b := f.open("openai+http", Options{})
		ctx, cancel := context.WithTimeout(t.Context(), second)
		defer cancel()
		began := time.Now()
		_, err := b.Generate(ctx, &backend.Request{Turns: user("hi")}, nil)
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, backend.ErrOverloaded) || time.Since(began) != second {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
	})
}

func TestBackoffIsBounded(t *testing.T) {
	r := Retry{Attempts: 30}.withDefaults()
	for n := 1; n < 30; n++ {
		for range 20 {
			d, ok := r.wait(n, 0)
			most := min(r.Base<<min(n-1, 20), r.Max)
			if !ok || d < most/2 || d > most {
				t.Fatalf("wait %d: %v", n, d)
			}
		}
	}
	if _, ok := r.wait(30, 0); ok {
		t.Error("one attempt too many")
	}
}

func TestSilentServerIsGivenUp(t *testing.T) {
	for _, scheme := range []string{"openai+http", "llama+http"} {
		t.Run(scheme, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				stall := func(w http.ResponseWriter, r *http.Request) {
					fmt.Fprint(w, ": wait\n\n")
					w.Header().Set("Content-Type", "text/event-stream")
					w.(http.Flusher).Flush()
					<-r.Context().Done()
				}
				typed := func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Content-Type", "text/event-stream")
					stall(w, r)
				}
				f := (&fake{faults: []http.HandlerFunc{hang, typed}}).start(t)
				b := f.open(scheme, Options{FirstByte: 30 * second, Idle: 5 * second, Retry: Retry{Attempts: 1}})
				for _, want := range []TimeoutError{{30 * second, true}, {5 * second, false}} {
					began := time.Now()
					_, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi")}, nil)
					var to *TimeoutError
					if !errors.As(err, &to) || *to != want || !errors.Is(err, backend.ErrUnavailable) {
						t.Errorf("error %v", err)
					}
					if d := time.Since(began); d != want.Waited {
						t.Errorf("after %v, want %v", d, want.Waited)
					}
				}
			})
		})
	}
}

func TestSlowListenerIsNotASilentServer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{answer: []string{"a", "b", "c"}}).start(t)
		b := f.open("openai+http", Options{Idle: 5 * second})
		res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi")}, func(backend.Delta) { time.Sleep(time.Minute) })
		if err != nil || res.Part.Text != "abc" {
			t.Error(res, err)
		}
	})
}

func TestCancelEndsTheServersWork(t *testing.T) {
	for _, scheme := range []string{"openai+http", "sglang+http", "llama+http"} {
		for _, when := range []string{"before the first byte", "in the middle", "by Close"} {
			t.Run(scheme+" "+when, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					gone := make(chan struct{})
					f := (&fake{faults: []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
						if when == "in the middle" {
							sse(w)(m{"content": "a", "text": "a", "choices": []m{{"index": 0, "text": "a", "delta": m{"content": "a"}}}})
						}
						<-r.Context().Done()
						close(gone)
					}}}).start(t)
					b := f.open(scheme, Options{})
					ctx, cancel := context.WithCancel(t.Context())
					failed := make(chan error)
					go func() {
						_, err := b.Generate(ctx, &backend.Request{Turns: rawTurns("hi"), MaxTokens: 9}, nil)
						failed <- err
					}()
					synctest.Wait()
					began := time.Now()
					want := error(context.Canceled)
					if when == "by Close" {
						want = backend.ErrClosed
						b.Close()
					} else {
						cancel()
					}
					if err := <-failed; !errors.Is(err, want) {
						t.Errorf("error %v", err)
					}
					<-gone
					if time.Since(began) != 0 {
						t.Errorf("took %v", time.Since(began))
					}
					cancel()
				})
			})
		}
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	for _, scheme := range []string{"openai+http", "sglang+http", "llama+http"} {
		bubble(t, func(t *testing.T) {
			f := (&fake{answer: []string{"ok"}}).start(t)
			b := f.open(scheme, Options{})
			for range 5 {
				if _, err := b.Generate(t.Context(), &backend.Request{Turns: rawTurns("hi"), MaxTokens: 9}, nil); err != nil {
					t.Fatal(err)
				}
			}
			if f.dials != 1 {
				t.Errorf("%s: %d connections", scheme, f.dials)
			}
		})
	}
}

// A server that leaves the stream open after its end delays nobody for long.
func TestStreamLeftOpenAfterItsEnd(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{faults: []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
			send := sse(w)
			send(m{"choices": []m{{"index": 0, "delta": m{"content": "ok"}, "finish_reason": "stop"}}})
			send("[DONE]")
			<-r.Context().Done()
		}}}).start(t)
		b := f.open("openai+http", Options{})
		began := time.Now()
		res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi")}, nil)
		if err != nil || res.Part.Text != "ok" || time.Since(began) > lastWait {
			t.Errorf("%+v, %v after %v", res, err, time.Since(began))
		}
	})
}

func TestClosedBackendRefuses(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := (&fake{}).start(t).open("http", Options{})
		b.Close()
		if _, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi")}, nil); !errors.Is(err, backend.ErrClosed) {
			t.Error(err)
		}
		if _, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: user("hi"), Options: []string{"a"}}); !errors.Is(err, backend.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestBrokenStream(t *testing.T) {
	for _, c := range []struct {
		name   string
		faults []http.HandlerFunc
		temp   float64
		text   string // wanted; "" if it fails
		calls  int
	}{
		{"nothing handed out: made again", []http.HandlerFunc{cutAfter()}, 1, "hello", 2},
		{"greedy: goes on where it broke", []http.HandlerFunc{cutAfter("he")}, 0, "hello", 2},
		{"greedy, twice, other pieces", []http.HandlerFunc{cutAfter("h"), cutAfter("hell")}, 0, "hello", 3},
		{"a restart that breaks sooner", []http.HandlerFunc{cutAfter("hell"), cutAfter("h")}, 0, "hello", 3},
		{"sampled: what was handed out cannot be repeated", []http.HandlerFunc{cutAfter("he")}, 1, "", 1},
		{"the restart says something else", []http.HandlerFunc{cutAfter("ho")}, 0, "", 2},
		{"the restart says more before it parts", []http.HandlerFunc{cutAfter("hello, you")}, 0, "", 2},
		{"a clean end without a finish", []http.HandlerFunc{exactly("text/event-stream", "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"he\"}}]}\n\n")}, 0, "hello", 2},
		{"half an event", []http.HandlerFunc{exactly("text/event-stream", "data: {\"choi")}, 0, "hello", 2},
		{"an error event", []http.HandlerFunc{exactly("text/event-stream", "data: {\"error\":{\"message\":\"boom\",\"code\":500}}\n\n")}, 0, "hello", 2},
		{"an error event that is final", []http.HandlerFunc{exactly("text/event-stream", "data: {\"error\":{\"message\":\"bad\",\"code\":400}}\n\n")}, 0, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := (&fake{answer: []string{"hel", "lo"}, faults: c.faults}).start(t)
				b := f.open("openai+http", Options{})
				var got deltas
				res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), Sampling: backend.Sampling{Temperature: c.temp}}, got.emit)
				if n := len(f.calls("/v1/chat/completions")); n != c.calls {
					t.Errorf("%d calls, want %d", n, c.calls)
				}
				if c.text == "" {
					if err == nil {
						t.Fatalf("no error; text %q", res.Part.Text)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if res.Part.Text != c.text || got.all() != c.text {
					t.Errorf("text %q, handed out %q", res.Part.Text, got.all())
				}
			})
		})
	}
}

func TestOddAnswers(t *testing.T) {
	const whole = `{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`
	for _, c := range []struct {
		name  string
		fault http.HandlerFunc
		text  string
		err   string
	}{
		{"JSON though a stream was asked for", exactly("application/json", whole), "hello", ""},
		{"a web page", exactly("text/html", "<html>welcome</html>"), "", "text/html"},
		{"JSON of something else", exactly("application/json", `{"hello":1}`), "", "not of this API"},
		{"an event that is not JSON", exactly("text/event-stream", "data: nope\n\n"), "", "not the JSON"},
		{"a line beyond all bounds", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: ")
			junk := strings.Repeat("x", 1<<20)
			for range 40 {
				if _, err := io.WriteString(w, junk); err != nil {
					return
				}
			}
		}, "", "too long"},
		{"comments, CRLF, an event name", exactly("text/event-stream", ": hi\r\n\r\nevent: chunk\r\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"},\"finish_reason\":\"stop\"}]}\r\n\r\n"), "hello", ""},
		{"other choices", exactly("text/event-stream", "data: {\"choices\":[{\"index\":1,\"delta\":{\"content\":\"no\"}},{\"index\":0,\"delta\":{\"content\":\"hello\"},\"finish_reason\":\"stop\"}]}\n\n"), "hello", ""},
		{"a content filter", exactly("text/event-stream", "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"content_filter\"}]}\n\n"), "", "content filter"},
		{"a refusal", exactly("text/event-stream", "data: {\"choices\":[{\"index\":0,\"delta\":{\"refusal\":\"I will not\"}}]}\n\n"), "", "I will not"},
		{"cut after the finish", func(w http.ResponseWriter, _ *http.Request) {
			sse(w)(m{"choices": []m{{"index": 0, "delta": m{"content": "hello"}, "finish_reason": "stop"}}})
			panic(http.ErrAbortHandler)
		}, "hello", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := (&fake{faults: []http.HandlerFunc{c.fault}}).start(t)
				b := f.open("openai+http", Options{Retry: Retry{Attempts: 1}})
				res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi")}, nil)
				if c.err != "" {
					var e *Error
					if err == nil || !strings.Contains(err.Error(), c.err) || !errors.As(err, &e) {
						t.Fatalf("error %v", err)
					}
					return
				}
				if err != nil || res.Part.Text != c.text {
					t.Fatal(res, err)
				}
			})
		})
	}
}

func TestDeltasAreWholeCharacters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := "漢😀é́"
		var events strings.Builder
		for i := range len(s) {
			fmt.Fprintf(&events, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%s\"}}]}\n\n", s[i:i+1])
		}
		events.WriteString("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"\xf0\x9f\"},\"finish_reason\":\"stop\"}]}\n\n")
		f := (&fake{faults: []http.HandlerFunc{exactly("text/event-stream", events.String())}}).start(t)
		b := f.open("openai+http", Options{})
		var got deltas
		res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi")}, got.emit)
		if err != nil {
			t.Fatal(err)
		}
		if want := s + "\uFFFD"; res.Part.Text != want || got.all() != want || len(got.text) != 5 {
			t.Errorf("text %q, deltas %q", res.Part.Text, got.text)
		}
	})
}

func TestLogprobsOfMinusInfinity(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{faults: []http.HandlerFunc{
			exactly("text/event-stream", `data: {"choices":[{"index":0,"delta":{"content":"ab"},"logprobs":{"content":[{"token":"a","logprob":-0.5},{"token":"b","logprob":null}]},"finish_reason":"stop"}]}`+"\n\n"),
			exactly("text/event-stream", `data: {"choices":[{"index":0,"text":"ab","logprobs":{"token_logprobs":[null,-0.5]},"finish_reason":"stop"}]}`+"\n\n"),
		}}).start(t)
		b := f.open("openai+http", Options{})
		for i, want := range []string{"[-0.5 -9999]", "[-9999 -0.5]"} {
			turns := [][]backend.Turn{user("hi"), rawTurns("hi")}[i]
			res, err := b.Generate(t.Context(), &backend.Request{Turns: turns, MaxTokens: 9, Logprobs: true}, nil)
			if err != nil || fmt.Sprint(res.Logprobs) != want {
				t.Error(res, err)
			}
		}
	})
}

func TestKeyIsSentAndNeverShown(t *testing.T) {
	const key = "sk-very-secret"
	bubble(t, func(t *testing.T) {
		f := (&fake{faults: []http.HandlerFunc{func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "bad credentials "+r.Header.Get("Authorization"), http.StatusUnauthorized)
		}}}).start(t)
		b, err := Open(t.Context(), "openai+http://"+key+"@fake.test/v1", Options{Transport: f.transport})
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		_, err = b.Generate(t.Context(), &backend.Request{Turns: user("hi")}, nil)
		if err == nil {
			t.Fatal("no error")
		}
		var e *Error
		errors.As(err, &e)
		for _, s := range []string{err.Error(), fmt.Sprintf("%+v %#v", e, *e), b.String(), fmt.Sprint(b)} {
			if strings.Contains(s, key) {
				t.Errorf("key shown: %s", s)
			}
		}
		if c := f.calls("/v1/chat/completions"); c[0].Auth != "Bearer "+key {
			t.Errorf("authorisation %q", c[0].Auth)
		}
		for _, u := range []string{"foo+http://" + key + "@h", "http://" + key + "@", "http://h:" + key + "/", "http://" + key + "@h?what=1", "http://" + key + "@h/%zz", "http://" + key + "@h?context=" + key} {
			if _, err := Open(t.Context(), u, Options{}); err == nil || strings.Contains(err.Error(), key) {
				t.Errorf("error %v", err)
			}
		}
	})
}

func TestKeyFromTheEnvironment(t *testing.T) {
	t.Setenv("OPENAI_API_KEY", "openai-key")
	for raw, want := range map[string]string{
		"https://api.openai.com/v1": "openai-key", "http://127.0.0.1/v1": "", "https://api.openai.com.evil.example/v1": "", "https://x@api.openai.com/v1": "x",
	} {
		a, err := parseAddress(raw)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.apiKey(&Options{}); got != want {
			t.Errorf("%s: key %q", raw, got)
		}
	}
	t.Setenv("COPPICE_API_KEY", "mine")
	a, _ := parseAddress("http://127.0.0.1/v1")
	if got := a.apiKey(&Options{}); got != "mine" {
		t.Errorf("key %q", got)
	}
}
