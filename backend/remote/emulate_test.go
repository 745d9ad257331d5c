package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
)

// answers makes a fake's answers differ from call to call.
func answers(list ...string) []http.HandlerFunc {
	var out []http.HandlerFunc
	for _, s := range list {
		out = append(out, func(w http.ResponseWriter, _ *http.Request) {
			send := sse(w)
			send(m{"choices": []m{{"index": 0, "delta": m{"content": s}, "finish_reason": "stop"}}})
			send(m{"choices": []m{}, "usage": m{"prompt_tokens": 10, "completion_tokens": 5}})
			send("[DONE]")
		})
	}
	return out
}

func TestEmulation(t *testing.T) {
	schema := backend.Constraint{JSONSchema: []byte(orderedSchema)}
	regex := backend.Constraint{Regex: `[0-9]+`}
	choice := backend.Constraint{Choices: []string{"low", "high"}}
	for _, c := range []struct {
		name     string
		k        backend.Constraint
		answers  []string
		text     string // "" if it fails
		emulated string
		calls    int
	}{
		{"schema enforced by the server", schema, []string{`{"z":1,"a":1}`}, `{"z":1,"a":1}`, "[]", 1},
		{"schema in a fence", schema, []string{"```json\n{\"z\":1,\"a\":1}\n```"}, `{"z":1,"a":1}`, "[]", 1},
		{"schema ignored by the server", schema, []string{`Sure!`, `{"z":"1","a":1}`, `{"z":1,"a":1}`}, `{"z":1,"a":1}`, "[json_schema: not enforced by the server; validated, 3 tries]", 3},
		{"schema never kept", schema, []string{"a", "b", "c", "d"}, "", "", 3},
		{"regex at once", regex, []string{"42\n"}, "42", "[regex: validated, 1 try]", 1},
		{"regex later", regex, []string{"forty-two", "42"}, "42", "[regex: validated, 2 tries]", 2},
		{"choice", choice, []string{`{"choice":"high"}`}, "high", "[choices: a one-field schema]", 1},
		{"choice said plainly", choice, []string{"high"}, "high", "[choices: a one-field schema]", 1},
		{"choice missed", choice, []string{"medium", `{"choice":"low"}`}, "low", "[choices: a one-field schema, 2 tries]", 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := (&fake{faults: answers(c.answers...)}).start(t)
				b := f.open("openai+http", Options{})
				var got deltas
				res, err := b.Generate(t.Context(), &backend.Request{ID: "v", Turns: user("hi"), Constraint: c.k}, got.emit)
				calls := f.calls("/v1/chat/completions")
				if len(calls) != c.calls {
					t.Errorf("%d calls", len(calls))
				}
				if c.text == "" {
					if !errors.Is(err, backend.ErrUnsupported) || len(got.text) > 0 {
						t.Errorf("error %v, handed out %q", err, got.text)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if res.Part.Text != c.text || got.all() != c.text || fmt.Sprint(res.Emulated) != c.emulated {
					t.Errorf("result %+v, handed out %q", res, got.text)
				}
				if res.Usage.PromptTokens != 10*c.calls || res.Usage.SampledTokens != 5*c.calls {
					t.Errorf("usage %+v", res.Usage)
				}
				if c.calls > 1 {
					last := calls[len(calls)-1].Raw
					if !strings.Contains(last, "does not fit") || !strings.Contains(last, "Answer with") {
						t.Errorf("the model was not told what is wrong: %s", last)
					}
				}
			})
		})
	}
}

func TestNoEmulation(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{answer: []string{"no JSON"}}).start(t)
		b := f.open("openai+http", Options{NoEmulation: true})
		for _, k := range []backend.Constraint{{JSONSchema: []byte(orderedSchema)}, {Regex: "a"}, {Choices: []string{"a"}}} {
			if _, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), Constraint: k}, nil); !errors.Is(err, backend.ErrUnsupported) {
				t.Error(err)
			}
		}
		if _, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: user("hi"), Options: []string{"a"}}); !errors.Is(err, backend.ErrUnsupported) {
			t.Error(err)
		}
		c := b.Info().Capabilities
		if !c.JSONSchema || c.Regex || c.Choices || c.Score || b.Emulations() != nil {
			t.Errorf("capabilities %+v", c)
		}
	})
}

func TestServerThatDoesNotEnforceIsFoundOut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{answer: []string{"free text"}}).start(t)
		b := f.open("vllm+http", Options{})
		_, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), Constraint: backend.Constraint{JSONSchema: []byte(orderedSchema)}}, nil)
		if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "did not enforce") {
			t.Error(err)
		}
	})
}

func TestAnswerCutByTheLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := (&fake{answer: []string{`{"z":`}, finish: "length"}).start(t)
		b := f.open("openai+http", Options{})
		res, err := b.Generate(t.Context(), &backend.Request{Turns: user("hi"), MaxTokens: 2, Constraint: backend.Constraint{JSONSchema: []byte(orderedSchema)}}, nil)
		if err != nil || res.Finish != backend.FinishLength || res.Part.Text != `{"z":` {
			t.Error(res, err)
		}
		_, err = b.Generate(t.Context(), &backend.Request{Turns: user("hi"), MaxTokens: 2, Constraint: backend.Constraint{Choices: []string{"low"}}}, nil)
		if !errors.Is(err, backend.ErrInvalid) {
			t.Error(err)
		}
	})
}

func TestToolTurns(t *testing.T) {
	turns := append(user("hi"), text(backend.Assistant, "call"), text(backend.Tool, "42"))
	for scheme, role := range map[string]string{"openai+http": "user", "vllm+http": "tool"} {
		bubble(t, func(t *testing.T) {
			f := (&fake{answer: []string{"ok"}}).start(t)
			b := f.open(scheme, Options{})
			res, err := b.Generate(t.Context(), &backend.Request{Turns: turns}, nil)
			if err != nil {
				t.Fatal(err)
			}
			msgs := f.calls("/v1/chat/completions")[0].Body["messages"].([]any)
			if got := msgs[3].(map[string]any)["role"]; got != role || (role == "user") != (len(res.Emulated) == 1) {
				t.Errorf("%s: role %v, emulated %v", scheme, got, res.Emulated)
			}
		})
	}
}

// Scores are compared with sums made by hand over the toy model. The prompt
// ends in "=>", which the vocabulary joins with " b" of one of the options.
func TestScoreByHand(t *testing.T) {
	const prompt = "pick =>"
	options := []string{" both", " call_db", "low"}
	heal := len(toyTokens("pick "))
	for _, scheme := range []string{"vllm+http", "sglang+http", "llama+http"} {
		t.Run(scheme, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := (&fake{}).start(t).open(scheme, Options{})
				res, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: rawTurns(prompt), Options: options})
				if err != nil {
					t.Fatal(err)
				}
				for i, o := range options {
					ids := toyTokens(prompt + o)
					got := res.Options[i]
					if want := toySum(ids, heal); math.Abs(got.Sum-want) > 1e-9 || len(got.Logprobs) != len(ids)-heal || got.Part.Text != o || got.Part.Tokens != nil {
						t.Errorf("%q: %+v, want sum %v", o, got, want)
					}
				}
				if res.Usage.PromptTokens == 0 || res.Emulated != nil {
					t.Errorf("usage %+v, emulated %v", res.Usage, res.Emulated)
				}
				// Without a join the ids are the options' own.
				res, err = b.Score(t.Context(), &backend.ScoreRequest{Turns: rawTurns("pick "), Options: []string{"low", "high"}})
				if err != nil {
					t.Fatal(err)
				}
				if ids := res.Options[1].Part.Tokens; scheme != "vllm+http" && fmt.Sprint(ids) != fmt.Sprint(toyTokens("high")) {
					t.Errorf("ids %v", ids)
				}
				if _, err := json.Marshal(res); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The methods by single tokens are had where the server tells of them: the options
// once more with nothing before them. What cannot be had is refused.
func TestScoreMethods(t *testing.T) {
	options := []string{"low", "lower", "q"}
	for _, scheme := range []string{"vllm+http", "sglang+http", "llama+http"} {
		t.Run(scheme, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := (&fake{}).start(t).open(scheme, Options{})
				for _, m := range []backend.ScoreMethod{backend.TokenLengthNormalized, backend.GreedyTokenSelection, backend.UnconditionalLikelihoodNormalized} {
					res, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: rawTurns("pick "), Options: options, Method: m})
					if err != nil {
						t.Fatal(err)
					}
					for i, o := range options {
						got := res.Options[i]
						if want := toySum(toyTokens("pick "+o), len(toyTokens("pick "))); math.Abs(got.Sum-want) > 1e-9 {
							t.Errorf("%s %q: %v, want %v", m, o, got.Sum, want)
						}
						ids := toyTokens(o)
						if m != backend.UnconditionalLikelihoodNormalized {
							if got.Unconditional != nil {
								t.Errorf("%s: %+v", m, got)
							}
							continue
						}
						if len(got.Unconditional) != len(ids) || got.Unconditional[0] != 0 {
							t.Fatalf("%s %q: %+v", m, o, got)
						}
						sum := 0.0
						for _, lp := range got.Unconditional {
							sum += lp
						}
						if want := toySum(ids, 1); math.Abs(sum-want) > 1e-9 {
							t.Errorf("%s %q: %v alone, want %v", m, o, sum, want)
						}
					}
					if _, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: rawTurns("pick "), Options: options, Method: m, Closed: true}); !errors.Is(err, backend.ErrInvalid) {
						t.Errorf("%s closed: %v", m, err)
					}
				}
				if _, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: rawTurns("pick "), Options: options, Method: backend.Exact}); !errors.Is(err, backend.ErrUnsupported) {
					t.Errorf("exact: %v", err)
				}
				if c := b.Info().Capabilities; c.ScoreExact || c.ScoreTokens != (scheme != "sglang+http") {
					t.Errorf("capabilities %+v", c)
				}
			})
		})
	}
	for _, scheme := range []string{"openai+http", "ollama+http", "sglang+http"} {
		bubble(t, func(t *testing.T) {
			f := (&fake{answer: []string{"low"}}).start(t)
			b := f.open(scheme, Options{})
			_, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: user("hi"), Options: options, Method: backend.TokenLengthNormalized})
			if !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "token_length_normalized") {
				t.Errorf("%s: %v", scheme, err)
			}
			if c := b.Info().Capabilities; c.ScoreTokens || !c.Score {
				t.Errorf("capabilities %+v", c)
			}
		})
	}
}

// A join that reaches further back than the first window widens it.
func TestScoreWidensItsWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := (&fake{}).start(t).open("sglang+http", Options{})
		prompt := strings.Repeat("x", 30) + "<assistant"
		res, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: rawTurns(prompt), Options: []string{">", "!"}})
		if err != nil {
			t.Fatal(err)
		}
		if want := toySum(toyTokens(prompt+"!"), 30); math.Abs(res.Options[1].Sum-want) > 1e-9 {
			t.Errorf("sum %v, want %v", res.Options[1].Sum, want)
		}
	})
}

func TestScoreChatWithTheTurnsEnd(t *testing.T) {
	options := []string{"low", "lower", "high"}
	for _, scheme := range []string{"vllm+http", "llama+http"} {
		t.Run(scheme, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := (&fake{}).start(t).open(scheme, Options{})
				res, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: user("hi"), Options: options, Closed: true})
				if err != nil {
					t.Fatal(err)
				}
				head := "<user>Be brief.<end><user>hi<end><assistant>"
				from := len(toyTokens(head))
				for i, o := range options {
					ids := toyTokens(head + o + "<end>")
					if want := toySum(ids, from); math.Abs(res.Options[i].Sum-want) > 1e-9 || len(res.Options[i].Logprobs) != len(ids)-from {
						t.Errorf("%q: %+v, want %v", o, res.Options[i], want)
					}
					if scheme == "llama+http" && fmt.Sprint(res.Options[i].Part.Tokens) != fmt.Sprint(toyTokens(o)) {
						t.Errorf("%q: ids %v hold more than the option", o, res.Options[i].Part.Tokens)
					}
				}
				if res.Emulated != nil {
					t.Errorf("emulated %v", res.Emulated)
				}
			})
		})
	}
}

func TestScoreByChoice(t *testing.T) {
	for _, c := range []struct {
		scheme string
		turns  []backend.Turn
		closed bool
		answer string
	}{
		{"openai+http", user("hi"), false, `{"choice":"lower"}`},
		{"ollama+http", user("hi"), true, `{"choice":"lower"}`},
		{"sglang+http", user("hi"), false, `lower`},
		{"vllm+http", rawTurns("hi"), true, `lower`},   // the end's id is unknown
		{"sglang+http", rawTurns("hi"), true, `lower`}, // so is it here
	} {
		t.Run(c.scheme, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := (&fake{answer: []string{c.answer}}).start(t).open(c.scheme, Options{})
				res, err := b.Score(t.Context(), &backend.ScoreRequest{Turns: c.turns, Options: []string{"low", "lower"}, Closed: c.closed})
				if err != nil {
					t.Fatal(err)
				}
				if res.Options[0].Sum != NotChosen || res.Options[1].Sum != 0 || !strings.HasPrefix(res.Emulated[0], "score: a constrained choice") {
					t.Errorf("result %+v", res)
				}
				if _, err := json.Marshal(res); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestScoreRefusesBadOptions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := (&fake{}).start(t).open("vllm+http", Options{})
		for _, o := range [][]string{nil, {"a", "b", "a"}} {
			if _, err := b.Score(t.Context(), &backend.ScoreRequest{ID: "sev", Turns: user("hi"), Options: o}); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "sev") {
				t.Error(err)
			}
		}
	})
}

func TestRegexAsGrammar(t *testing.T) {
	for re, want := range map[string]string{
		`abc`:           `root ::= "abc"`,
		`a|bc`:          `root ::= ("a" | "bc")`,
		`^a+$`:          `root ::= ("") (("a")+) ("")`,
		`[^a]`:          "root ::= [\\x00-`b-\\U0010FFFF]",
		`\d{2,3}`:       `root ::= ([0-9]){2,3}`,
		`x{3}`:          `root ::= ("x"){3}`,
		`"\\`:           `root ::= "\"\\"`,
		`(?i)k`:         "root ::= ([Kk\u212a])",
		`[\]\-^]`:       `root ::= [\x2D\]-\x5E]`,
		`(?:ü|\x{1})?é`: "root ::= (([\\x01ü])?) (\"é\")",
		`a.b`:           `root ::= ("a") ([^\n]) ("b")`,
	} {
		got, err := regexGrammar(re)
		if err != nil || got != want {
			t.Errorf("%s: %s (%v), want %s", re, got, err, want)
		}
	}
	for _, re := range []string{`(`, `a\b`, `a^b`, `a$b`, strings.Repeat("(", 2000)} {
		if g, err := regexGrammar(re); !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%.10s: %s, %v", re, g, err)
		}
	}
}

func TestFullContextIsTold(t *testing.T) {
	for _, c := range []struct {
		context, prompt, generated, limit int
		finish                            backend.FinishReason
		want                              int
	}{
		{100, 90, 10, 50, backend.FinishLength, 100},
		{100, 90, 9, 0, backend.FinishLength, 100}, // llama-server stops one short of it
		{100, 90, 10, 10, backend.FinishLength, 0}, // both, but what was asked for came
		{100, 50, 5, 20, backend.FinishLength, 0},
		{100, 90, 10, 50, backend.FinishStop, 0},
		{0, 90, 10, 50, backend.FinishLength, 0}, // not known
		{100, 0, 100, 500, backend.FinishLength, 0},
	} {
		b := &Backend{info: backend.Info{ContextLength: c.context}}
		r := &backend.Result{Finish: c.finish, Usage: backend.Usage{PromptTokens: c.prompt, SampledTokens: c.generated}}
		if got := b.contextFull(c.limit, r); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}
