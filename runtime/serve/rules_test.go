package serve

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/coppice-run/coppice/backend/puppet"
)

// Rules about single tokens reach the engine, and are refused by name where they
// make no sense or the model takes none.
func TestTokenRules(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	for _, x := range []struct {
		more tree
		text string
	}{
		{tree{}, "bcdef"},
		{tree{"allowed_token_ids": []any{113}}, "qqqqq"},
		{tree{"bad_words": []any{"de"}}, "bcd*"},
		{tree{"bad_words": "c"}, "b*"},
		{tree{"stop": "e", "include_stop_str_in_output": true}, "bcde"},
		{tree{"stop_token_ids": []any{101}, "include_stop_str_in_output": true}, "bcde"},
	} {
		body := tree{"prompt": "a", "max_tokens": 5, "temperature": 0}
		for k, v := range x.more {
			body[k] = v
		}
		got := at(c.ok("/v1/completions", body), "choices", 0, "text").(string)
		if want, open := strings.CutSuffix(x.text, "*"); got != want && !open || !strings.HasPrefix(got, want) || open && got == "bcdef" {
			t.Errorf("%v: %q, want %q", x.more, got, x.text)
		}
		body["stream"] = true
		var said strings.Builder
		for _, e := range c.stream("/v1/completions", body) {
			said.WriteString(at(e, "choices", 0, "text").(string))
		}
		if said.String() != got {
			t.Errorf("%v: streamed %q, whole %q", x.more, said.String(), got)
		}
	}
	// An end token that is named ends the text also where others are ignored.
	for _, x := range []struct {
		more tree
		text string
		stop any
	}{
		{tree{}, "z", nil},
		{tree{"stop_token_ids": []any{256}}, "z", nil}, // as it would anyway
		{tree{"ignore_eos": true, "stop_token_ids": []any{256}}, "z", 256.0},
		{tree{"ignore_eos": true, "stop_token_ids": []any{256}, "guided_regex": "z"}, "z", nil},
	} {
		body := tree{"prompt": "y", "max_tokens": 3, "temperature": 0}
		for k, v := range x.more {
			body[k] = v
		}
		got := at(c.ok("/v1/completions", body), "choices", 0)
		if at(got, "text") != x.text || at(got, "stop_reason") != x.stop || at(got, "finish_reason") != "stop" {
			t.Errorf("%v: %v", x.more, got)
		}
	}
	if got := c.ok("/v1/completions", tree{"prompt": "y", "max_tokens": 3, "temperature": 0, "ignore_eos": true}); at(got, "choices", 0, "finish_reason") != "length" {
		t.Error(got)
	}
	got := c.ok("/generate", tree{"text": "y", "sampling_params": tree{"temperature": 0, "ignore_eos": true, "stop_token_ids": []any{256}}})
	if got["text"] != "z" || at(got, "meta_info", "finish_reason", "matched") != 256.0 {
		t.Error(got)
	}
	got = c.ok("/v1/chat/completions", ask("y", "ignore_eos", true, "stop_token_ids", []any{256}, "temperature", 0, "tool_choice", tree{"type": "function", "function": tree{"name": "f"}},
		"tools", []any{tree{"type": "function", "function": tree{"name": "f", "parameters": tree{"type": "object", "maxProperties": 0}}}}))
	if at(got, "choices", 0, "finish_reason") != "stop" || at(got, "choices", 0, "stop_reason") != nil {
		t.Error(got)
	}
	got = c.ok("/generate", tree{"text": "a", "sampling_params": tree{"temperature": 0, "stop": "e", "no_stop_trim": true, "max_new_tokens": 9}})
	if got["text"] != "bcde" || at(got, "meta_info", "finish_reason", "matched") != "e" {
		t.Error(got)
	}
	got = c.ok("/generate", tree{"text": "a", "sampling_params": tree{"temperature": 0, "stop_token_ids": []any{101}}})
	if got["text"] != "bcd" || at(got, "meta_info", "finish_reason", "matched") != 101.0 {
		t.Error(got)
	}
	for param, v := range map[string]any{
		"allowed_token_ids": []any{}, "stop_token_ids": []any{-1}, "bad_words": []any{""}, "logprob_token_ids": []any{1}, "repetition_detection": tree{"max_pattern_size": 3},
	} {
		c.refused("/v1/completions", tree{"prompt": "a", param: v}, 400, param)
	}
	long := strings.Repeat("x", maxStopLength+1)
	c.refused("/v1/completions", tree{"prompt": "a", "stop": long}, 400, "stop")
	c.refused("/v1/completions", tree{"prompt": "a", "bad_words": []any{"y", long}}, 400, "bad_words")
	c.refused("/generate", tree{"text": "a", "sampling_params": tree{"stop": []any{long}}}, 400, "sampling_params.stop")
	// A penalty so small that logits would not be finite.
	c.refused("/v1/completions", tree{"prompt": "a", "repetition_penalty": 1e-300}, 400, "repetition_penalty")
	c.refused("/generate", tree{"text": "a", "sampling_params": tree{"repetition_penalty": 1e-44}}, 400, "sampling_params.repetition_penalty")
	for _, penalty := range []float64{minRepetitionPenalty, 100} {
		c.ok("/v1/completions", tree{"prompt": "a", "repetition_penalty": penalty, "max_tokens": 20})
	}
	c.refused("/v1/completions", tree{"prompt": "a", "allowed_token_ids": []any{9999}}, 400, "allowed_token_ids")
	c.refused("/v1/completions", tree{"prompt": "a", "allowed_token_ids": "a"}, 400, "allowed_token_ids")
	// A rule that leaves a constraint nothing is the request's fault.
	if status, out := c.post("/v1/completions", tree{"prompt": "a", "allowed_token_ids": []any{113}, "guided_regex": "xyz"}); status != 400 {
		t.Error(status, out)
	}
	m := puppet.New()
	m.OnAny().Reply("x")
	bare := serveFor(t, m, nil)
	for param, v := range map[string]any{"allowed_token_ids": []any{1}, "stop_token_ids": []any{1}, "bad_words": []any{"x"}, "close_at_limit": true} {
		bare.refused("/v1/chat/completions", ask("a", param, v), 400, param)
	}
	bare.ok("/v1/chat/completions", ask("a", "stop_token_ids", []any{256})) // the end token stops it anyway
}

// Of best_of choices the likeliest are shown.
func TestBestOf(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	body := tree{"prompt": []any{"a", "m"}, "n": 2, "best_of": 6, "seed": 3, "temperature": 2, "max_tokens": 4, "logprobs": 0}
	got := c.ok("/v1/completions", body)
	all := c.ok("/v1/completions", tree{"prompt": []any{"a", "m"}, "n": 6, "seed": 3, "temperature": 2, "max_tokens": 4, "logprobs": 0})
	mean := func(doc tree, i int) float64 {
		sum := 0.0
		list := at(doc, "choices", i, "logprobs", "token_logprobs").([]any)
		for _, x := range list {
			sum += x.(float64)
		}
		return sum / float64(len(list))
	}
	if n := len(got["choices"].([]any)); n != 4 {
		t.Fatalf("%d choices", n)
	}
	for p := range 2 {
		best := math.Inf(-1)
		for i := range 6 {
			best = max(best, mean(all, p*6+i))
		}
		if a, b := mean(got, p*2), mean(got, p*2+1); a != best || b > a {
			t.Errorf("prompt %d: means %v and %v, the best is %v", p, a, b, best)
		}
	}
	if a, b := at(got, "usage", "completion_tokens"), at(all, "usage", "completion_tokens"); a != b {
		t.Errorf("%v tokens used, %v generated", a, b)
	}
	c.refused("/v1/completions", tree{"prompt": "a", "n": 3, "best_of": 2}, 400, "best_of")
	c.refused("/v1/completions", tree{"prompt": "a", "best_of": 2, "stream": true}, 400, "best_of")
	c.refused("/v1/completions", tree{"prompt": "a", "best_of": 4000}, 400, "best_of")
}

// Tokens of log-probabilities may be asked for as ids.
func TestTokensAsIDs(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	got := c.ok("/v1/completions", tree{"prompt": "a", "max_tokens": 1, "temperature": 0, "logprobs": 1, "return_tokens_as_token_ids": true})
	if at(got, "choices", 0, "logprobs", "tokens", 0) != "token_id:98" || at(got, "choices", 0, "logprobs", "top_logprobs", 0, "token_id:98") == nil {
		t.Error(got)
	}
	got = c.ok("/v1/chat/completions", ask("a", "max_tokens", 1, "temperature", 0, "logprobs", true, "top_logprobs", 1, "return_tokens_as_token_ids", true))
	if s := at(got, "choices", 0, "logprobs", "content", 0, "token").(string); !strings.HasPrefix(s, "token_id:") {
		t.Error(got)
	}
}

func TestScore(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c := serveFor(t, e, nil)
	// The chain gives what follows 8 and all else 0.
	likely := math.Exp(8) / (math.Exp(8) + 256)
	for _, x := range []struct {
		body tree
		want [][]float64
	}{
		{tree{"query": "a", "items": []any{"b", "x"}, "label_token_ids": []any{'c', 'y'}}, [][]float64{{likely, likely / math.Exp(8)}, {likely / math.Exp(8), likely}}},
		{tree{"query": "a", "items": "b", "label_token_ids": []any{'c', 'y'}, "apply_softmax": true}, [][]float64{{1 / (1 + math.Exp(-8)), 1 / (1 + math.Exp(8))}}},
		{tree{"query": "a", "items": []any{"x"}, "item_first": true, "label_token_ids": []any{'b'}}, [][]float64{{likely}}},
		{tree{"query": []any{97}, "items": []any{[]any{98}}, "label_token_ids": []any{'c'}}, [][]float64{{likely}}},
		{tree{"query": nil, "items": []any{"b"}, "label_token_ids": []any{'c'}}, [][]float64{{likely}}},
	} {
		got := c.ok("/v1/score", x.body)
		for i, row := range x.want {
			for j, want := range row {
				if p, _ := at(got, "scores", i).([]any)[j].(float64); math.Abs(p-want) > 1e-6 {
					t.Errorf("%v: score %d,%d is %v, want %v", x.body, i, j, p, want)
				}
			}
		}
		if got["object"] != "scoring" || at(got, "usage", "prompt_tokens").(float64) < 1 {
			t.Error(got)
		}
	}
	long := strings.Repeat("a", 300)
	c.ok("/v1/score", tree{"query": long, "items": []any{"b"}, "label_token_ids": []any{1}})
	warm := c.ok("/v1/score", tree{"query": long, "items": []any{"c"}, "label_token_ids": []any{1, 2}})
	if n := at(warm, "usage", "prompt_tokens_details", "cached_tokens").(float64); n < 256 {
		t.Errorf("%v tokens of the query were cached", n)
	}
	for param, body := range map[string]tree{
		"label_token_ids": {"query": "a", "items": []any{"b"}},
		"items":           {"query": "a", "items": []any{}, "label_token_ids": []any{1}},
		"query":           {"query": 5, "items": []any{"b"}, "label_token_ids": []any{1}},
		"model":           {"query": "a", "items": []any{"b"}, "label_token_ids": []any{1}, "model": 4},
	} {
		c.refused("/v1/score", body, 400, param)
	}
	c.refused("/v1/score", tree{"query": "a", "items": []any{[]any{"x"}}, "label_token_ids": []any{1}}, 400, "items")
	c.refused("/v1/score", tree{"query": "a", "items": []any{"b"}, "label_token_ids": []any{999}}, 400, "label_token_ids")
	if e := c.refused("/v1/score", tree{"query": strings.Repeat("a", 600), "items": []any{"b"}, "label_token_ids": []any{1}}, 400, "items"); e["code"] != "context_length_exceeded" {
		t.Error(e)
	}
	serveFor(t, puppet.New(), nil).refused("/v1/score", tree{"query": "a", "items": []any{"b"}, "label_token_ids": []any{1}}, 400, "")
	if st := e.Stats(); st.Held != 0 {
		t.Errorf("%+v", st)
	}
}

// Labels cost no passes of their own, and what one request may ask for is bounded.
func TestScoreIsBounded(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c, rec := tracedFor(t, e)
	c.srv.cfg.Limits.ScoreTokens = 120
	var labels []any
	for i := range 200 {
		labels = append(labels, i)
	}
	got := c.ok("/v1/score", tree{"query": "abc", "items": []any{"d", "e", strings.Repeat("f", 100)}, "label_token_ids": labels})
	if n := len(at(got, "scores", 2).([]any)); n != 200 {
		t.Errorf("%d scores", n)
	}
	if computed := at(got, "usage", "coppice", "computed_tokens").(float64); computed > 4+4+103 {
		t.Errorf("%v tokens computed for prompts of 111", computed)
	}
	spans := named(rec.Ended(), "score chain")
	if len(spans) != 1 {
		t.Fatal(rec.Ended())
	}
	if a := attributes(spans[0]); a["coppice.items"] != int64(3) || a["coppice.labels"] != int64(200) || a["gen_ai.usage.input_tokens"] != int64(111) {
		t.Error(a)
	}
	if err := c.refused("/v1/score", tree{"query": "abc", "items": []any{"d", "e", strings.Repeat("f", 110)}, "label_token_ids": labels}, 400, "items"); !strings.Contains(fmt.Sprint(err["message"]), "120") {
		t.Error(err)
	}
	c.refused("/v1/score", tree{"query": "a", "items": make([]string, maxScoreItems+1), "label_token_ids": labels}, 400, "items")
	c.refused("/v1/score", tree{"query": "a", "items": "b", "label_token_ids": make([]int, maxLabels+1)}, 400, "label_token_ids")
	resp := c.do("GET", "/metrics", nil)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(data), `coppice_scores_total{model_name="chain",status="200"} 1`+"\n") || !strings.Contains(string(data), `vllm:prompt_tokens_total{model_name="chain"} 111`+"\n") {
		t.Error(err, string(data))
	}
}

// Scoring ends when it is aborted and when its client is gone, and is charged.
func TestScoreEnds(t *testing.T) {
	step := make(chan struct{})
	e := newEngine(t, &chain{next: alphabet, step: step})
	pass := sync.OnceFunc(func() { close(step) })
	t.Cleanup(pass)
	c, _ := quotaClient(t, e, keyA+" generations=2 tokens_per_minute=1000")
	c.key = keyA
	var items []any
	for i := range 40 {
		items = append(items, strings.Repeat("x", i+1))
	}
	body := tree{"query": "a", "items": items, "label_token_ids": []any{1}, "request_id": "mine"}
	ask := func(ctx context.Context) <-chan int {
		status := make(chan int, 1)
		go func() {
			resp, err := c.try(ctx, "POST", "/v1/score", body)
			if err != nil {
				status <- 0
				return
			}
			resp.Body.Close()
			status <- resp.StatusCode
		}()
		for {
			if _, out := c.call("GET", "/load", nil); out["server_load"] == 2.0 {
				return status
			}
		}
	}
	aborted := ask(t.Context())
	c.ok("/abort_request", tree{"rid": "score-mine"})
	if status := <-aborted; status != 400 {
		t.Errorf("aborted: %d", status)
	}
	if err := c.srv.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, gone := context.WithCancel(t.Context())
	left := ask(ctx)
	gone()
	<-left
	if err := c.srv.Idle(t.Context()); err != nil {
		t.Fatal(err)
	}
	pass()
	// More items than the key may have at work go one after the other.
	before := c.spent()
	body["items"] = items[:5]
	used := at(c.ok("/v1/score", body), "usage", "prompt_tokens").(float64)
	if got := c.spent() - before; used != 1+2+3+4+5+5 || got < used {
		t.Errorf("%v tokens used, %v paid", used, got)
	}
	if st := e.Stats(); st.Held != 0 || st.Running != 0 {
		t.Errorf("%+v", st)
	}
	var out strings.Builder
	resp := c.do("GET", "/metrics", nil)
	defer resp.Body.Close()
	if _, err := io.Copy(&out, resp.Body); err != nil {
		t.Fatal(err)
	}
	for _, status := range []string{"200", "400", "499"} {
		if !strings.Contains(out.String(), `coppice_scores_total{model_name="chain",status="`+status+`"} 1`+"\n") {
			t.Errorf("no count of those that ended with %s", status)
		}
	}
}

func TestProbabilities(t *testing.T) {
	inf := math.Inf(-1)
	for _, x := range []struct {
		in    []float64
		alone bool
		want  []float64
	}{
		{[]float64{inf, 0}, false, []float64{0, 1}},
		{[]float64{inf, inf}, true, []float64{0.5, 0.5}},
		{[]float64{-2000, -2000}, true, []float64{0.5, 0.5}},
	} {
		for i, p := range probabilities(x.in, x.alone) {
			if p != x.want[i] {
				t.Errorf("%v: %v", x.in, p)
			}
		}
	}
}
