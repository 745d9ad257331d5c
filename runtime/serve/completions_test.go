package serve

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/puppet"
)

func TestPrompts(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c := serveFor(t, e, nil)
	ids := []any{97, 98}
	for _, x := range []struct {
		prompt any
		texts  []string
	}{
		{"ab", []string{"cde"}},
		{ids, []string{"cde"}},
		{[]any{"ab", "x"}, []string{"cde", "yz"}},
		{[]any{ids, []any{120}}, []string{"cde", "yz"}},
		{[]any{ids, "f"}, []string{"cde", "ghi"}},
		{"", []string{"abc"}},
	} {
		for _, n := range []int{1, 2} {
			got := c.ok("/v1/completions", tree{"prompt": x.prompt, "max_tokens": 3, "temperature": 0, "n": n})
			choices := got["choices"].([]any)
			if len(choices) != n*len(x.texts) {
				t.Fatalf("%v: %v", x.prompt, got)
			}
			for i, ch := range choices {
				want := x.texts[i/n]
				if at(ch, "text") != want || at(ch, "index") != float64(i) || (at(ch, "finish_reason") == "stop") != (want == "yz") {
					t.Errorf("%v: choice %d: %v", x.prompt, i, ch)
				}
			}
			events := c.stream("/v1/completions", tree{"prompt": x.prompt, "max_tokens": 3, "temperature": 0, "n": n, "stream": true, "stream_options": tree{"include_usage": true}})
			said := make([]string, len(choices))
			for _, e := range events[:len(events)-1] {
				said[int(at(e, "choices", 0, "index").(float64))] += at(e, "choices", 0, "text").(string)
			}
			for i := range said {
				if said[i] != at(choices[i], "text") {
					t.Errorf("%v: streamed %q", x.prompt, said)
				}
			}
			if u := at(events[len(events)-1], "usage"); at(u, "prompt_tokens") != at(got, "usage", "prompt_tokens") || at(u, "completion_tokens") != at(got, "usage", "completion_tokens") {
				t.Errorf("usage %v and %v", u, got["usage"])
			}
		}
	}
	for _, bad := range []any{nil, []any{}, []any{"a", 1}, []any{1, "a"}, []any{[]any{}}, []any{300}, []any{-1}, []any{1.5}, 7, tree{}, []any{[]any{"a"}}} {
		c.refused("/v1/completions", tree{"prompt": bad}, 400, "prompt")
	}
}

// With echo the text and its log-probabilities are those of the prompt and of
// what follows, whether anything is generated or not.
func TestEcho(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c := serveFor(t, e, nil)
	sure := 8 - math.Log(math.Exp(8)+256)
	for _, n := range []int{0, 2} {
		got := c.ok("/v1/completions", tree{"prompt": "abd", "max_tokens": n, "echo": true, "logprobs": 1, "temperature": 0})
		text := "abdef"[:3+n]
		if at(got, "choices", 0, "text") != text || at(got, "usage", "completion_tokens") != float64(n) {
			t.Errorf("%d: %v", n, got)
		}
		lp := at(got, "choices", 0, "logprobs")
		values, offsets := at(lp, "token_logprobs").([]any), at(lp, "text_offset").([]any)
		if len(values) != len(text) || len(offsets) != len(text) || values[0] != nil || at(lp, "top_logprobs", 0) != nil {
			t.Fatalf("%d: %v", n, lp)
		}
		for i := 1; i < len(text); i++ {
			want := sure
			if i == 2 {
				want = sure - 8 // d does not follow b
			}
			if math.Abs(values[i].(float64)-want) > 1e-3 || offsets[i] != float64(i) {
				t.Errorf("%d: token %d: %v at %v, want %v", n, i, values[i], offsets[i], want)
			}
		}
		if top := at(lp, "top_logprobs", 2).(tree); len(top) != 2 || top["c"] == nil || top["d"] == nil {
			t.Errorf("%d: %v", n, top)
		}
	}
	c.refused("/v1/completions", tree{"prompt": "a", "max_tokens": 0}, 400, "max_tokens")
	c.refused("/v1/completions", tree{"prompt": "a", "suffix": "b"}, 400, "suffix")
}

// The log-probabilities of a prompt, as vLLM tells them.
func TestPromptLogprobs(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	for n := range 3 {
		got := c.ok("/v1/completions", tree{"prompt": []any{"abd", "x"}, "max_tokens": 1, "prompt_logprobs": n})
		list := at(got, "choices", 0, "prompt_logprobs").([]any)
		if len(list) != 3 || list[0] != nil || len(at(got, "choices", 1, "prompt_logprobs").([]any)) != 1 {
			t.Fatal(got)
		}
		sure, odd := at(list[1], "98"), at(list[2], "100")
		if at(sure, "logprob").(float64) < -0.2 || at(odd, "logprob").(float64) > -8 || at(sure, "decoded_token") != "b" || at(odd, "rank") != nil {
			t.Error(n, list)
		}
		if n > 0 && (at(sure, "rank") != 1.0 || at(list[2], "99", "rank") != 1.0 || len(list[2].(tree)) != n+1) {
			t.Error(n, list)
		}
	}
	c.refused("/v1/completions", tree{"prompt": "a", "prompt_logprobs": 1, "stream": true}, 400, "prompt_logprobs")
	c.refused("/v1/completions", tree{"prompt": "a", "prompt_logprobs": 99}, 400, "prompt_logprobs")
	got := c.ok("/v1/chat/completions", ask("a", "prompt_logprobs", 0, "max_tokens", 1))
	ids := c.ok("/tokenize", ask("a"))
	if list := at(got, "prompt_logprobs").([]any); len(list) != int(ids["count"].(float64)) || list[0] != nil || at(list, 1) == nil {
		t.Error(got)
	}
	c.refused("/v1/chat/completions", ask("a", "prompt_logprobs", 0, "stream", true), 400, "prompt_logprobs")
}

func TestStops(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c := serveFor(t, e, nil)
	for _, stop := range []any{"ef", []any{"zz", "ef"}} {
		got := c.ok("/v1/completions", tree{"prompt": "a", "stop": stop, "max_tokens": 20, "temperature": 0})
		if at(got, "choices", 0, "text") != "bcd" || at(got, "choices", 0, "finish_reason") != "stop" || at(got, "choices", 0, "stop_reason") != "ef" {
			t.Error(got)
		}
		var said strings.Builder
		for _, e := range c.stream("/v1/completions", tree{"prompt": "a", "stop": stop, "max_tokens": 20, "temperature": 0, "stream": true}) {
			said.WriteString(at(e, "choices", 0, "text").(string))
		}
		if said.String() != "bcd" {
			t.Errorf("streamed %q", said.String())
		}
	}
	if got := c.ok("/v1/completions", tree{"prompt": "y", "stop_token_ids": []any{256}, "temperature": 0}); at(got, "choices", 0, "text") != "z" {
		t.Error(got)
	}
	if got := c.ok("/v1/completions", tree{"prompt": "a", "stop_token_ids": []any{100, 256}, "temperature": 0}); at(got, "choices", 0, "text") != "bc" || at(got, "choices", 0, "stop_reason") != 100.0 {
		t.Error(got)
	}
	many := make([]any, 17)
	for i := range many {
		many[i] = "x"
	}
	c.refused("/v1/completions", tree{"prompt": "a", "stop": many}, 400, "stop")
}

// A seed gives the same text again, and a bias steers it.
func TestSeedAndBias(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c := serveFor(t, e, nil)
	say := func(more ...any) string {
		body := tree{"prompt": "a", "max_tokens": 30, "temperature": 3, "ignore_eos": true}
		for i := 0; i < len(more); i += 2 {
			body[more[i].(string)] = more[i+1]
		}
		return at(c.ok("/v1/completions", body), "choices", 0, "text").(string)
	}
	if a, b := say("seed", 4), say("seed", 4); a != b {
		t.Errorf("%q and %q", a, b)
	}
	if a, b := say("seed", 4), say("seed", 5); a == b {
		t.Errorf("two seeds give %q", a)
	}
	if a, b := say(), say(); a == b {
		t.Errorf("without a seed, %q twice", a)
	}
	if got := say("temperature", 0, "logit_bias", tree{"113": 100}, "max_tokens", 3); got != "qqq" {
		t.Error(got)
	}
	if got := say("top_k", 1, "max_tokens", 2); got != "bc" {
		t.Error(got)
	}
}

// Without a vocabulary a prompt goes to the backend as it is.
func TestNoVocabulary(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("there")
	c := serveFor(t, m, func(c *Config) { c.Vocabulary = nil })
	if got := c.ok("/v1/completions", tree{"prompt": "hello "}); at(got, "choices", 0, "text") != "there" || m.Log()[0].Prompt != "hello " {
		t.Error(got, m.Log())
	}
	c.refused("/v1/completions", tree{"prompt": []any{1}}, 400, "prompt")
	c.refused("/tokenize", tree{"prompt": "x"}, 400, "")
	c.refused("/detokenize", tree{"tokens": []any{1}}, 400, "")
}

func TestTokenize(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	got := c.ok("/tokenize", tree{"prompt": "aé", "return_token_strs": true})
	want := []any{97.0, 195.0, 169.0}
	if !reflect.DeepEqual(got["tokens"], want) || got["count"] != 3.0 || got["max_model_len"] != 512.0 || at(got, "token_strs", 0) != "<0x61>" {
		t.Error(got)
	}
	if back := c.ok("/detokenize", tree{"tokens": want}); back["prompt"] != "aé" {
		t.Error(back)
	}
	if back := c.ok("/detokenize", tree{"tokens": []any{195}}); back["prompt"] != "\ufffd" {
		t.Error(back)
	}
	for _, bad := range []any{"x", []any{"x"}, []any{257}, []any{-1}, []any{1e12}, nil} {
		c.refused("/detokenize", tree{"tokens": bad}, 400, "tokens")
	}
	c.refused("/tokenize", tree{}, 400, "prompt")
	c.refused("/tokenize", tree{"prompt": 5}, 400, "prompt")
}

// What is asked of the prompt does not change what is shown of the output, nor
// the other way round.
func TestLogprobsAreThoseAskedFor(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	ask := func(more tree) tree {
		body := tree{"prompt": "abd", "max_tokens": 2, "temperature": 0, "echo": true, "logprobs": 2}
		for k, v := range more {
			body[k] = v
		}
		return c.ok("/v1/completions", body)
	}
	alone, both := ask(nil), ask(tree{"prompt_logprobs": 9})
	if a, b := at(alone, "choices", 0, "logprobs"), at(both, "choices", 0, "logprobs"); !reflect.DeepEqual(a, b) {
		t.Errorf("logprobs are %v, with prompt_logprobs %v", a, b)
	}
	few, many := ask(tree{"logprobs": nil, "prompt_logprobs": 1}), ask(tree{"logprobs": 9, "prompt_logprobs": 1})
	if a, b := at(few, "choices", 0, "prompt_logprobs"), at(many, "choices", 0, "prompt_logprobs"); !reflect.DeepEqual(a, b) {
		t.Errorf("prompt_logprobs are %v, with logprobs %v", a, b)
	}
}
