package serve

import (
	"math"
	"net/http"
	"testing"

	"github.com/coppice-run/coppice/backend/puppet"
)

func TestGenerate(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c := serveFor(t, e, nil)
	greedy := tree{"temperature": 0, "max_new_tokens": 3}
	got := c.ok("/generate", tree{"text": "ab", "sampling_params": greedy, "rid": "r1"})
	if got["text"] != "cde" || at(got, "meta_info", "id") != "r1" || at(got, "meta_info", "finish_reason", "type") != "length" || at(got, "meta_info", "finish_reason", "length") != 3.0 {
		t.Error(got)
	}
	if at(got, "output_ids", 2) != float64('e') || at(got, "meta_info", "prompt_tokens") != 2.0 || at(got, "meta_info", "completion_tokens") != 3.0 {
		t.Error(got)
	}
	got = c.ok("/generate", tree{"input_ids": []any{97}, "sampling_params": tree{"temperature": 0, "stop": []any{"de"}}})
	if got["text"] != "bc" || at(got, "meta_info", "finish_reason", "matched") != "de" {
		t.Error(got)
	}
	// A list gives a list in the same order, and n of each.
	resp := c.do("POST", "/generate", tree{"text": []any{"a", "m", "w"}, "sampling_params": tree{"temperature": 0, "max_new_tokens": 2, "n": 2}})
	var list []tree
	decode(t, resp, &list)
	for i, want := range []string{"bc", "bc", "no", "no", "xy", "xy"} {
		if list[i]["text"] != want || list[i]["index"] != float64(i) {
			t.Error(i, list[i])
		}
	}
}

// Nothing is generated, and the prompt is in the cache.
func TestGenerateNothing(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	got := c.ok("/generate", tree{"text": "abcdefghijklmnopqrst", "sampling_params": tree{"max_new_tokens": 0}})
	if got["text"] != "" || at(got, "meta_info", "completion_tokens") != 0.0 {
		t.Error(got)
	}
	got = c.ok("/generate", tree{"text": "abcdefghijklmnopqrst", "sampling_params": tree{"max_new_tokens": 1, "temperature": 0}})
	if got["text"] != "u" || at(got, "meta_info", "cached_tokens") != 19.0 {
		t.Error(got)
	}
	c.call("POST", "/load", nil)
	resp := c.do("POST", "/flush_cache", nil)
	resp.Body.Close()
	got = c.ok("/generate", tree{"text": "abcdefghijklmnopqrst", "sampling_params": tree{"max_new_tokens": 1}})
	if resp.StatusCode != 200 || at(got, "meta_info", "cached_tokens") != 0.0 {
		t.Error(got)
	}
	m := puppet.New()
	m.OnAny().Reply("x")
	bare := serveFor(t, m, nil)
	if got := bare.ok("/generate", tree{"text": "a", "sampling_params": tree{"max_new_tokens": 0}}); got["text"] != "" || at(got, "meta_info", "completion_tokens") != 0.0 {
		t.Error(got)
	}
}

// Each event holds all of the text so far.
func TestGenerateStream(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	events := c.stream("/generate", tree{"text": "a", "stream": true, "sampling_params": tree{"temperature": 0, "max_new_tokens": 6}})
	last := ""
	for i, e := range events {
		text := e["text"].(string)
		if len(text) < len(last) || text[:len(last)] != last || (at(e, "meta_info", "finish_reason") != nil) != (i == len(events)-1) {
			t.Errorf("event %d: %v after %q", i, e, last)
		}
		last = text
	}
	if last != "bcdefg" {
		t.Error(last)
	}
}

func TestGenerateLogprobs(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	sure := 8 - math.Log(math.Exp(8)+256)
	for start, inputs := range map[int]int{-1: 0, 0: 3, 1: 2, 2: 1, 3: 0} {
		for _, n := range []int{0, 2} {
			got := c.ok("/generate", tree{
				"text": "abc", "return_logprob": true, "logprob_start_len": start, "top_logprobs_num": 2, "return_text_in_logprobs": true,
				"sampling_params": tree{"temperature": 0, "max_new_tokens": n},
			})
			in, out := at(got, "meta_info", "input_token_logprobs").([]any), at(got, "meta_info", "output_token_logprobs").([]any)
			if len(in) != inputs || len(out) != n || at(got, "meta_info", "output_token_logprobs_length") != float64(n) {
				t.Errorf("from %d, %d new: %v", start, n, got)
				continue
			}
			for i, e := range in {
				id := "abc"[len("abc")-inputs+i]
				lp := at(e, 0)
				if first := start == 0 && i == 0; first != (lp == nil) || !first && math.Abs(lp.(float64)-sure) > 1e-3 || at(e, 1) != float64(id) || at(e, 2) != string(id) {
					t.Errorf("from %d: input %d: %v", start, i, e)
				}
			}
			if n > 0 && (at(out[0], 2) != "d" || len(at(got, "meta_info", "output_top_logprobs", 0).([]any)) != 2) {
				t.Errorf("from %d: %v", start, got)
			}
		}
	}
}

func TestGenerateRefuses(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	sp := func(name string, v any) tree { return tree{"text": "a", "sampling_params": tree{name: v}} }
	for param, body := range map[string]any{
		"sampling_params.top_p":          sp("top_p", 7),
		"sampling_params.max_tokens":     sp("max_tokens", 7),
		"sampling_params.max_new_tokens": sp("max_new_tokens", -1),
		"sampling_params.regex":          sp("regex", "(a"),
		"sampling_params.json_schema":    sp("json_schema", "{"),
		"sampling_params.stop_regex":     sp("stop_regex", "(a"),
		"sampling_params.logit_bias":     sp("logit_bias", tree{"99999": 1}),
		"sampling_params.min_new_tokens": tree{"text": "a", "sampling_params": tree{"min_new_tokens": 9, "max_new_tokens": 3}},
		"text":                           tree{},
		"input_ids":                      tree{"input_ids": []any{999}},
		"session_params":                 tree{"text": "a", "session_params": tree{"id": "x"}},
		"image_data":                     tree{"text": "a", "image_data": "x"},
		"rid":                            tree{"text": "a", "rid": "a b"},
		"sampling_params":                tree{"text": "a", "sampling_params": []any{}},
	} {
		c.refused("/generate", body, 400, param)
	}
	c.refused("/generate", tree{"text": "a", "input_ids": []any{97}}, 400, "text")
	c.refused("/generate", tree{"text": []any{"a", 1}}, 400, "text")
	got := c.ok("/generate", tree{"text": "a", "sampling_params": tree{"regex": "[xy]{2}", "json_schema": nil, "top_k": 1 << 30, "temperature": 0}, "image_data": nil, "unknown": 1})
	if len(got["text"].(string)) != 2 {
		t.Error(got)
	}
}

func TestInfoForSGLang(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), func(c *Config) { c.Names = []string{"chain-of-letters"} })
	for _, path := range []string{"/get_model_info", "/server_info", "/get_server_info"} {
		if status, got := c.call("GET", path, nil); status != 200 || got["model_path"] != "chain-of-letters" {
			t.Error(path, status, got)
		}
	}
}

func TestAbort(t *testing.T) {
	m, gate := puppet.New(), puppet.NewGate()
	m.SetGate(gate)
	m.OnAny().Reply("x")
	c := serveFor(t, m, nil)
	status := make(chan int, 2)
	for range 2 { // of one name
		go func() {
			resp, err := c.try(t.Context(), "POST", "/generate", tree{"text": "a", "rid": "victim"})
			if err != nil {
				status <- 0
				return
			}
			resp.Body.Close()
			status <- resp.StatusCode
		}()
	}
	if err := gate.HeldCount(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	c.ok("/abort_request", tree{"rid": "other"})
	c.ok("/abort_request", tree{"rid": "victim"})
	for range 2 {
		if got := <-status; got != http.StatusBadRequest {
			t.Error(got)
		}
	}
	c.refused("/abort_request", tree{}, 400, "rid")
}
