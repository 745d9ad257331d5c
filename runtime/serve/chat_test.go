package serve

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/puppet"
)

func TestChat(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("The Glomma.")
	c := serveFor(t, m, nil)
	got := c.ok("/v1/chat/completions", ask("Name a river.", "model", "puppet", "user", "u", "metadata", tree{"a": "b"}))
	if at(got, "object") != "chat.completion" || at(got, "model") != "puppet" || !strings.HasPrefix(at(got, "id").(string), "chatcmpl-") {
		t.Error(got)
	}
	want := tree{"role": "assistant", "content": "The Glomma.", "refusal": nil}
	if msg := at(got, "choices", 0, "message"); !reflect.DeepEqual(msg, want) || at(got, "choices", 0, "finish_reason") != "stop" {
		t.Error(got)
	}
	u := at(got, "usage").(tree)
	if u["completion_tokens"] != 11.0 || u["total_tokens"].(float64) != u["prompt_tokens"].(float64)+11 || at(u, "coppice", "computed_tokens").(float64) < 11 {
		t.Error(u)
	}
	if again := c.ok("/v1/chat/completions", ask("Name a river.")); at(again, "usage", "prompt_tokens_details", "cached_tokens").(float64) == 0 {
		t.Error("the second request finds nothing in the cache:", again)
	}
}

// Parts are joined in order, whoever speaks; a developer is a system.
func TestContentOfParts(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("ok")
	c := serveFor(t, m, nil)
	part := func(texts ...string) (out []any) {
		out = []any{}
		for _, s := range texts {
			out = append(out, tree{"type": "text", "text": s})
		}
		return out
	}
	c.ok("/v1/chat/completions", tree{"messages": []any{
		tree{"role": "developer", "content": part("Be ", "kind.")},
		tree{"role": "user", "content": part("Where ", "is ", "Bergen?")},
		tree{"role": "assistant", "content": nil, "tool_calls": []any{tree{"id": "c1", "type": "function", "function": tree{"name": "map", "arguments": `{"q":"Bergen"}`}}}},
		tree{"role": "tool", "tool_call_id": "c1", "content": part("60 ", "N")},
		tree{"role": "user", "content": part()},
	}})
	want := "system: Be kind.\nuser: Where is Bergen?\nassistant: <tool_call>\n{\"name\": \"map\", \"arguments\": {\"q\":\"Bergen\"}}\n</tool_call>\ntool: 60 N\nuser: \nassistant: "
	if got := m.Log()[0].Prompt; got != want {
		t.Errorf("prompt %q\nwant   %q", got, want)
	}
	for _, bad := range []any{
		tree{"role": "user", "content": []any{tree{"type": "image_url", "image_url": tree{"url": "x"}}}},
		tree{"role": "user", "content": []any{tree{"type": "text"}}},
		tree{"role": "user", "content": 7}, tree{"role": "user"}, tree{"role": "bard", "content": "x"}, tree{"content": "x"}, "x",
	} {
		status, out := c.post("/v1/chat/completions", tree{"messages": []any{bad}})
		if p, _ := at(out, "error", "param").(string); status != 400 || !strings.HasPrefix(p, "messages.0") {
			t.Errorf("%v: %d %v", bad, status, out)
		}
	}
}

// The chunk with the usage comes after all others and has no choices; before it
// usage is null, and nobody who did not ask sees the field at all.
func TestUsageOfAStream(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("one two three")
	c := serveFor(t, m, nil)
	for _, n := range []int{1, 2} {
		events := c.stream("/v1/chat/completions", ask("Count.", "stream", true, "n", n, "stop", " three", "stream_options", tree{"include_usage": true}))
		last := len(events) - 1
		for i, e := range events {
			u, there := e["usage"]
			if !there || (u == nil) != (i < last) {
				t.Errorf("n=%d: chunk %d of %d has usage %v", n, i, last+1, u)
			}
		}
		if ch := events[last]["choices"].([]any); len(ch) != 0 || at(events[last], "usage", "completion_tokens") != float64(n*len("one two")) {
			t.Errorf("n=%d: %v", n, events[last])
		}
	}
	for _, e := range c.stream("/v1/chat/completions", ask("Count.", "stream", true)) {
		if _, there := e["usage"]; there {
			t.Error("usage was not asked for:", e)
		}
	}
}

// Each of several choices begins with a role, ends once, and says what it says
// without a stream.
func TestChoicesOfAStream(t *testing.T) {
	m := puppet.New()
	m.OnFunc(func(p *puppet.Prompt) bool { return strings.HasSuffix(p.ID, "/1") }).Reply("long, long answer")
	m.OnFunc(func(p *puppet.Prompt) bool { return strings.HasSuffix(p.ID, "/2") }).Reply("no")
	m.OnAny().Reply("short")
	c := serveFor(t, m, nil)
	body := ask("How long?", "n", 3, "seed", 11, "max_tokens", 9)
	plain := c.ok("/v1/chat/completions", body)
	body["stream"] = true
	events := c.stream("/v1/chat/completions", body)
	seeds := map[uint64]bool{}
	for i := range 3 {
		var roles, ends int
		var reason any
		for _, e := range events {
			ch := at(e, "choices", 0)
			if int(at(ch, "index").(float64)) != i {
				continue
			}
			if at(ch, "delta", "role") != nil {
				roles++
			}
			if r := at(ch, "finish_reason"); r != nil {
				ends++
				reason = r
			} else if ends > 0 {
				t.Errorf("choice %d goes on after its end", i)
			}
		}
		want := at(plain, "choices", i)
		if roles != 1 || ends != 1 || chatText(events, i) != at(want, "message", "content") || reason != at(want, "finish_reason") {
			t.Errorf("choice %d: %d roles, %d ends, %v %q, without stream %v", i, roles, ends, reason, chatText(events, i), want)
		}
		seeds[m.Log()[i].Request.Sampling.Seed] = true
	}
	if len(seeds) != 3 {
		t.Error("choices share a seed:", seeds)
	}
	if p := at(plain, "usage", "prompt_tokens"); p != float64(len("user: How long?\nassistant: ")) {
		t.Errorf("the prompt of three choices counts %v tokens", p)
	}
}

// Numbers that make no sense are refused by name, and the server goes on.
func TestOddNumbers(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("fine")
	c := serveFor(t, m, nil)
	for field, values := range map[string][]string{
		"seed":                  {"36893488147419103232", "-36893488147419103232", `"12"`, "0.5", "[]", "1e400"},
		"temperature":           {"-0.1", "1e200", `"hot"`, "true"},
		"top_p":                 {"0", "1.01", "-1", "{}"},
		"min_p":                 {"-0.5", "2"},
		"top_k":                 {"-2", "1.5"},
		"repetition_penalty":    {"0", "-1"},
		"presence_penalty":      {"2.5"},
		"frequency_penalty":     {"-3"},
		"max_tokens":            {"0", "-1", "1e99", `"many"`},
		"max_completion_tokens": {"0", "-7"},
		"n":                     {"0", "-1", "5000"},
		"logit_bias":            {`{"100000": 1}`, `{"one": 1}`, `{"-1": 1}`, "[1]"},
		"top_logprobs":          {"3", "-1", "21"},
		"stream":                {"1", `"yes"`},
		"stop":                  {`[""]`, `""`, "[1]", "7"},
		"min_tokens":            {"-1"},
	} {
		for _, v := range values {
			body := fmt.Sprintf(`{"messages":[{"role":"user","content":"x"}],%q:%s}`, field, v)
			c.refused("/v1/chat/completions", body, 400, field)
		}
	}
	c.refused("/v1/chat/completions", ask("x", "logit_bias", tree{"5": 101}), 400, "logit_bias.5")
	for _, seed := range []string{"-1", "9223372036854775807", "-9223372036854775808", "0", "4.0", "null"} {
		c.ok("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"seed":`+seed+`}`)
	}
	for _, body := range []string{
		"", "x", "[]", "null", `"a"`, `{"messages":[]}`, `{"messages":{}}`, "{}", `{"messages":[{"role":"user","content":"x"}]`, `{"messages":[{"role":"user","content":"x"}]} x`,
		"{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", `{"messages":[{"role":"user","content":"x"}],"temperature":NaN}`,
		strings.Repeat(`{"messages":`, 9000), strings.Repeat(`[`, 100000),
	} {
		if status, out := c.post("/v1/chat/completions", body); status != 400 {
			t.Errorf("%.60q: %d %v", body, status, out)
		}
	}
	c.refused("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"seed":1,"seed":2}`, 400, "seed")
	if got := c.ok("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"Max_Tokens":1,"SEED":"x"}`); at(got, "choices", 0, "message", "content") != "fine" {
		t.Error("a field in other letters was read:", got)
	}
}

// The newer name of the limit wins; null is no limit.
func TestLimits(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("abcdefghij")
	c := serveFor(t, m, nil)
	for body, want := range map[string]int{
		`"max_completion_tokens":4`:                      4,
		`"max_tokens":4`:                                 4,
		`"max_tokens":9,"max_completion_tokens":2`:       2,
		`"max_tokens":2,"max_completion_tokens":9`:       9,
		`"max_tokens":null,"max_completion_tokens":3`:    3,
		`"max_tokens":3,"max_completion_tokens":null`:    3,
		`"max_tokens":null,"max_completion_tokens":null`: 10,
		`"n":1`: 10,
	} {
		got := c.ok("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],`+body+`}`)
		text, reason := at(got, "choices", 0, "message", "content").(string), at(got, "choices", 0, "finish_reason")
		if len(text) != want || (reason == "length") != (want < 10) {
			t.Errorf("%s: %q, %v", body, text, reason)
		}
	}
}

// A prompt that does not fit is told apart by its code, with both counts, before
// a stream begins.
func TestPromptTooLong(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c := serveFor(t, e, nil)
	context := e.Info().ContextLength
	for _, stream := range []bool{false, true} {
		for _, n := range []int{context + 1, context} {
			e := c.refused("/v1/completions", tree{"prompt": strings.Repeat("a", n), "stream": stream, "max_tokens": 8}, 400, "prompt")
			msg, _ := e["message"].(string)
			if e["code"] != "context_length_exceeded" || !strings.Contains(msg, fmt.Sprint(n)) || !strings.Contains(msg, fmt.Sprint(context)) {
				t.Error(n, stream, e)
			}
			e = c.refused("/v1/chat/completions", ask(strings.Repeat("a", n), "stream", stream), 400, "messages")
			if e["code"] != "context_length_exceeded" {
				t.Error(n, stream, e)
			}
		}
	}
	got := c.ok("/v1/completions", tree{"prompt": strings.Repeat("a", context-1), "max_tokens": 8, "temperature": 0})
	if at(got, "choices", 0, "text") != "b" || at(got, "choices", 0, "finish_reason") != "length" {
		t.Error(got)
	}
	small := serveFor(t, e, func(c *Config) { c.Limits.BodyBytes = 1000 })
	small.refused("/v1/chat/completions", ask(strings.Repeat("a", 2000)), 413, "")
}

// Log-probabilities have the true bytes of tokens that are parts of characters.
func TestLogprobsOfPartsOfCharacters(t *testing.T) {
	const text = "é🚀!"
	e := newEngine(t, &chain{next: func(b byte) backend.Token {
		if b == ':' {
			return backend.Token(text[0])
		}
		if i := strings.IndexByte(text, b); i >= 0 && i+1 < len(text) {
			return backend.Token(text[i+1])
		}
		return puppet.EOS
	}})
	c := serveFor(t, e, nil)
	body := ask("x:", "logprobs", true, "top_logprobs", 2, "temperature", 0, "continue_final_message", true)
	body["messages"] = []any{tree{"role": "assistant", "content": "so:"}}
	check := func(how string, content []any, said string) {
		t.Helper()
		var all []byte
		for i, x := range content {
			for _, b := range at(x, "bytes").([]any) {
				all = append(all, byte(b.(float64)))
			}
			if top := at(x, "top_logprobs").([]any); len(top) != 2 || !reflect.DeepEqual(at(top[0], "bytes"), at(x, "bytes")) {
				t.Errorf("%s: token %d: %v", how, i, x)
			}
		}
		if string(all) != text || said != text {
			t.Errorf("%s: bytes %q, text %q", how, all, said)
		}
	}
	plain := c.ok("/v1/chat/completions", body)
	check("plain", at(plain, "choices", 0, "logprobs", "content").([]any), at(plain, "choices", 0, "message", "content").(string))
	if tok := at(plain, "choices", 0, "logprobs", "content", 0, "token"); tok != `\xc3` {
		t.Errorf("token %q", tok)
	}
	body["stream"] = true
	var content []any
	events := c.stream("/v1/chat/completions", body)
	for _, e := range events {
		if l, _ := at(e, "choices", 0, "logprobs", "content").([]any); l != nil {
			content = append(content, l...)
		}
	}
	check("stream", content, chatText(events, 0))
}

// Tokens that a constraint excludes have no logarithm of a probability; the
// answer is JSON all the same.
func TestLogprobsUnderAConstraint(t *testing.T) {
	e := newEngine(t, &chain{next: alphabet})
	c := serveFor(t, e, nil)
	schema := tree{"type": "object", "properties": tree{"done": tree{"const": false}}, "required": []any{"done"}, "additionalProperties": false}
	got := c.ok("/v1/chat/completions", ask("x", "logprobs", true, "top_logprobs", 4,
		"response_format", tree{"type": "json_schema", "json_schema": tree{"name": "d", "strict": true, "schema": schema}}))
	if at(got, "choices", 0, "message", "content") != `{"done":false}` || len(at(got, "choices", 0, "logprobs", "content").([]any)) != 14 {
		t.Error(got)
	}
	if finite(math.Inf(-1)) != leastLogprob || finite(-3) != -3 {
		t.Error("minus infinity is not shown as a number")
	}
	bare := puppet.New()
	bare.OnAny().Reply("x")
	serveFor(t, bare, nil).refused("/v1/chat/completions", ask("x", "logprobs", true, "top_logprobs", 1), 400, "top_logprobs")
	serveFor(t, bare, func(c *Config) { c.Vocabulary = nil }).refused("/v1/chat/completions", ask("x", "logprobs", true), 400, "logprobs")
}

// With the model's template a chat is what the template prints, and text of a
// message is never a control token.
func TestTemplate(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("hi")
	tmpl, err := chat.Builtin(chat.ChatML)
	if err != nil {
		t.Fatal(err)
	}
	c := serveFor(t, m, func(c *Config) { c.Template = tmpl })
	c.ok("/v1/chat/completions", ask("hey"))
	c.ok("/v1/chat/completions", tree{"messages": []any{tree{"role": "user", "content": "hey"}, tree{"role": "assistant", "content": "So"}}, "continue_final_message": true})
	want := "<|im_start|>user\nhey<|im_end|>\n<|im_start|>assistant\n"
	if got := m.Log(); got[0].Prompt != want || got[1].Prompt != want+"So" {
		t.Errorf("%q\n%q", got[0].Prompt, got[1].Prompt)
	}
	ids := c.ok("/tokenize", ask("hey"))
	text := c.ok("/detokenize", tree{"tokens": ids["tokens"]})
	if text["prompt"] != want || ids["count"] != float64(len(want)) {
		t.Error(ids, text)
	}
}

// Constraints in every dialect reach the model; bad ones are refused by name and
// harm nobody.
func TestConstraints(t *testing.T) {
	m := puppet.New()
	m.OnAny().ReplyFunc(func(p *puppet.Prompt) (string, error) {
		switch k := p.Request.Constraint; {
		case k.Regex != "" || len(k.Choices) > 0 || k.EBNF != "":
			return "b", nil
		case len(k.JSONSchema) > 0:
			return `{"z":1,"a":2}`, nil
		}
		return "free", nil
	})
	c := serveFor(t, m, nil)
	schema := json.RawMessage(`{"type":"object","properties":{"z":{"type":"integer"},"a":{"type":"integer"}},"required":["z","a"],"additionalProperties":false}`)
	good := []tree{
		{"structured_outputs": tree{"regex": "(a|b)"}}, {"guided_regex": "(a|b)"}, {"regex": "(a|b)"},
		{"structured_outputs": tree{"choice": []any{"a", "b"}}}, {"guided_choice": []any{"a", "b"}},
		{"structured_outputs": tree{"grammar": `root ::= "a" | "b"`}}, {"guided_grammar": `root ::= "a" | "b"`}, {"ebnf": `root ::= "a" | "b"`},
		{"structured_outputs": tree{"json": schema}}, {"guided_json": schema}, {"guided_json": string(schema)}, {"json_schema": string(schema)},
		{"response_format": tree{"type": "json_schema", "json_schema": tree{"name": "s", "schema": schema}}},
		{"response_format": tree{"type": "json_object"}}, {"structured_outputs": tree{"json_object": true}},
		{"response_format": tree{"type": "text"}},
	}
	for _, g := range good {
		got := c.ok("/v1/chat/completions", ask("x", pairs(g)...))
		text := at(got, "choices", 0, "message", "content")
		if k := m.Log()[len(m.Log())-1].Request.Constraint; k.IsZero() != (text == "free") {
			t.Errorf("%v: constraint %+v, answer %q", g, k, text)
		}
	}
	for _, b := range []struct {
		param string
		body  tree
	}{
		{"structured_outputs.regex", tree{"structured_outputs": tree{"regex": "[b-a]"}}},
		{"structured_outputs.regex", tree{"structured_outputs": tree{"regex": ""}}},
		{"guided_regex", tree{"guided_regex": "(a"}},
		{"structured_outputs.choice", tree{"structured_outputs": tree{"choice": []any{}}}},
		{"guided_choice", tree{"guided_choice": "a"}},
		{"guided_grammar", tree{"guided_grammar": "root ::= \"a\"\nroot ::= \"b\""}},
		{"ebnf", tree{"ebnf": `root ::= root "x" | other`}},
		{"response_format", tree{"response_format": tree{"type": "json_schema", "json_schema": tree{"name": "s", "schema": tree{"type": "string", "pattern": "(?=x"}}}}},
		{"response_format.json_schema.schema", tree{"response_format": tree{"type": "json_schema", "json_schema": tree{"name": "s"}}}},
		{"response_format.type", tree{"response_format": tree{"type": "xml"}}},
		{"guided_json", tree{"guided_json": "{"}},
		{"regex", tree{"regex": "a", "guided_choice": []any{"a"}}},
		{"structured_outputs.structural_tag", tree{"structured_outputs": tree{"structural_tag": "x"}}},
		{"structural_tag.structures", tree{"structural_tag": tree{"triggers": []any{"<"}}}},
		{"structural_tag.triggers", tree{"structural_tag": tree{"structures": []any{tree{"begin": "<a>", "end": "</a>"}}}}},
		{"structural_tag.structures.0.begin", tree{"structural_tag": tree{"triggers": []any{"<"}, "structures": []any{tree{}}}}},
		{"structural_tag", tree{"structural_tag": tree{"triggers": []any{"<b"}, "structures": []any{tree{"begin": "<a>", "end": "</a>"}}}}},
		{"response_format.format.type", tree{"response_format": tree{"type": "structural_tag", "format": tree{"type": "sequence"}}}},
		{"response_format.format.tags.0.content.type", tree{"response_format": tree{"type": "structural_tag", "format": tree{
			"type": "triggered_tags", "triggers": []any{"<"}, "tags": []any{tree{"begin": "<a>", "end": "</a>", "content": tree{"type": "or"}}}}}}},
	} {
		c.refused("/v1/chat/completions", ask("x", pairs(b.body)...), 400, b.param)
		if status, _ := c.call("GET", "/health", nil); status != 200 {
			t.Fatal("the server is not well any more")
		}
	}
	if got := c.ok("/v1/chat/completions", ask("x", "guided_regex", "(a|b)")); at(got, "choices", 0, "message", "content") != "b" {
		t.Error(got)
	}
}

func pairs(m tree) (out []any) {
	for k, v := range m {
		out = append(out, k, v)
	}
	return out
}

func TestModelsByName(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("x")
	c := serveFor(t, m, func(c *Config) { c.Names = []string{"one", "two"} })
	_, list := c.call("GET", "/v1/models", nil)
	if at(list, "data", 0, "id") != "one" || at(list, "data", 1, "id") != "two" {
		t.Error(list)
	}
	if got := c.ok("/v1/chat/completions", ask("x", "model", "two")); got["model"] != "one" {
		t.Error(got)
	}
	if e := c.refused("/v1/chat/completions", ask("x", "model", "three"), 404, "model"); e["code"] != "model_not_found" {
		t.Error(e)
	}
	if status, _ := c.call("GET", "/v1/models/two", nil); status != 200 {
		t.Error(status)
	}
	if status, _ := c.call("GET", "/v1/models/a/b", nil); status != 404 {
		t.Error(status)
	}
}

// TestWhatElseAMemberMayBe: a member that may be a string or a list is told to be either.
func TestWhatElseAMemberMayBe(t *testing.T) {
	c := serveFor(t, puppet.New(), nil)
	for path, body := range map[string]tree{
		"/v1/chat/completions": {"messages": []any{tree{"role": "user", "content": 5}}},
		"/generate":            {"text": 5},
	} {
		_, out := c.post(path, body)
		if text, _ := at(out, "error", "message").(string); !strings.Contains(text, "a string or a list of") {
			t.Errorf("%s: %q", path, text)
		}
	}
}
