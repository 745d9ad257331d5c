package serve

import (
	"bufio"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/puppet"
)

// responseTools are weatherTools as /v1/responses has them.
var responseTools = []any{
	tree{"type": "function", "name": "weather", "description": "of a place", "parameters": tree{
		"type": "object", "properties": tree{"place": tree{"type": "string"}}, "required": []any{"place"}, "additionalProperties": false}},
	tree{"type": "function", "name": "now"},
}

// events reads a stream of named events, whose numbers must be dense.
func (c *client) events(path string, body any) (out []tree) {
	c.t.Helper()
	resp := c.do("POST", path, body)
	defer resp.Body.Close()
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		c.t.Fatal(resp.Status)
	}
	return c.readEvents(resp.Body)
}

func (c *client) readEvents(r io.Reader) (out []tree) {
	c.t.Helper()
	name := ""
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if s, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			name = s
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var e tree
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			c.t.Fatal(err)
		}
		if e["type"] != name || e["sequence_number"] != float64(len(out)) {
			c.t.Errorf("event %d is called %q: %v", len(out), name, e)
		}
		out = append(out, e)
	}
	return out
}

// shape is a response without what differs from one to the next.
func shape(r any) string {
	data, _ := json.Marshal(r)
	var doc any
	json.Unmarshal(data, &doc)
	var clean func(v any)
	clean = func(v any) {
		switch v := v.(type) {
		case tree:
			for _, k := range []string{"id", "call_id", "created_at", "completed_at"} {
				delete(v, k)
			}
			if d, ok := v["usage"].(tree); ok { // the second finds more in the cache
				delete(d, "coppice")
				delete(d, "input_tokens_details")
			}
			for _, x := range v {
				clean(x)
			}
		case []any:
			for _, x := range v {
				clean(x)
			}
		}
	}
	clean(doc)
	data, _ = json.Marshal(doc)
	return string(data)
}

func TestResponses(t *testing.T) {
	const said = "Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Rome\"}}\n</tool_call>\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>"
	for _, x := range []struct {
		name   string
		body   tree
		status string
		output []string // type, and text or arguments
	}{
		{"text", tree{"input": "x"}, "completed", []string{"message: " + "plain"}},
		{"cut", tree{"input": "x", "max_output_tokens": 2}, "incomplete", []string{"message: pl"}},
		{"calls", tree{"input": "go", "tools": responseTools}, "completed", []string{"message: Let me look.", `function_call: weather {"place": "Rome"}`, "function_call: now {}"}},
		{"one call", tree{"input": "go", "tools": responseTools, "parallel_tool_calls": false}, "completed", []string{"message: Let me look.", `function_call: weather {"place": "Rome"}`}},
		{"no call", tree{"input": "go", "tools": responseTools, "tool_choice": "none"}, "completed", []string{"message: " + said}},
		{"required", tree{"input": "x", "tools": responseTools, "tool_choice": "required"}, "completed", []string{`function_call: weather {"place":"Rome"}`, "function_call: now {}"}},
		{"named", tree{"input": "x", "tools": responseTools, "tool_choice": tree{"type": "function", "name": "weather"}}, "completed", []string{`function_call: weather {"place":"Rome"}`}},
		{"some allowed", tree{"input": "go", "tools": responseTools, "tool_choice": tree{"type": "allowed_tools", "mode": "auto", "tools": []any{tree{"type": "function", "name": "weather"}}}}, "completed", []string{"message: Let me look.", `function_call: weather {"place": "Rome"}`, "message: \n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>"}},
		{"schema", tree{"input": "x", "text": tree{"format": tree{"type": "json_schema", "name": "s", "strict": true, "schema": tree{"type": "object", "properties": tree{"place": tree{"type": "string"}}, "required": []any{"place"}, "additionalProperties": false}}}}, "completed", []string{`message: {"place":"Rome"}`}},
		{"object", tree{"input": "x", "text": tree{"format": tree{"type": "json_object"}}}, "completed", []string{`message: {"place":"Rome"}`}},
		{"nothing", tree{"input": "silence"}, "completed", []string{"message: "}},
	} {
		m := puppet.New()
		m.OnFunc(func(p *puppet.Prompt) bool { return strings.Contains(p.Text, "user: go") }).Reply(said)
		m.OnFunc(func(p *puppet.Prompt) bool { return strings.Contains(p.Text, "user: silence") }).Reply("")
		inner := toolModel("plain")
		m.OnAny().ReplyFunc(func(p *puppet.Prompt) (string, error) {
			res, err := inner.Generate(t.Context(), &backend.Request{Constraint: p.Request.Constraint}, nil)
			if err != nil {
				return "", err
			}
			return res.Part.Text, nil
		})
		c := serveFor(t, m, nil)
		plain := c.ok("/v1/responses", x.body)
		check := func(plain tree) {
			t.Helper()
			var got []string
			for _, item := range plain["output"].([]any) {
				switch at(item, "type") {
				case "message":
					got = append(got, "message: "+at(item, "content", 0, "text").(string))
				case "function_call":
					got = append(got, "function_call: "+at(item, "name").(string)+" "+at(item, "arguments").(string))
				}
				if at(item, "id") == "" || at(item, "status") != x.status {
					t.Errorf("%s: %v", x.name, item)
				}
			}
			if !reflect.DeepEqual(got, x.output) || plain["status"] != x.status || plain["object"] != "response" {
				t.Errorf("%s: %v, %q", x.name, plain["status"], got)
			}
		}
		check(plain)
		if cut := x.status == "incomplete"; cut != (at(plain, "incomplete_details", "reason") == "max_output_tokens") {
			t.Errorf("%s: %v", x.name, plain["incomplete_details"])
		}

		x.body["stream"] = true
		events := c.events("/v1/responses", x.body)
		checkResponseEvents(t, x.name, events, plain)

		x.body["include"], x.body["stream"] = []any{"message.output_text.logprobs"}, false
		looked := c.ok("/v1/responses", x.body)
		check(looked)
		checkShownTokens(t, x.name, looked)
		x.body["stream"] = true
		checkResponseEvents(t, x.name+" with logprobs", c.events("/v1/responses", x.body), looked)
	}
}

// checkShownTokens checks that a message shows the tokens that its text is of.
func checkShownTokens(t *testing.T, name string, response tree) {
	t.Helper()
	for _, item := range response["output"].([]any) {
		var text []byte
		for _, lp := range anyList(at(item, "content", 0, "logprobs")) {
			for _, b := range anyList(at(lp, "bytes")) {
				text = append(text, byte(b.(float64)))
			}
		}
		if at(item, "type") == "message" && string(text) != at(item, "content", 0, "text") {
			t.Errorf("%s: log-probabilities of %q in %v", name, text, item)
		}
	}
}

func anyList(v any) []any {
	l, _ := v.([]any)
	return l
}

// checkResponseEvents puts the pieces of a streamed response together as clients
// do, and compares with the whole one.
func checkResponseEvents(t *testing.T, name string, events []tree, plain tree) {
	t.Helper()
	if events[0]["type"] != "response.created" || events[1]["type"] != "response.in_progress" || at(events[0], "response", "status") != "in_progress" {
		t.Errorf("%s begins with %v, %v", name, events[0], events[1])
	}
	var items []any
	var open tree
	text := ""
	for _, e := range events[2 : len(events)-1] {
		switch e["type"] {
		case "response.output_item.added":
			if open != nil || e["output_index"] != float64(len(items)) {
				t.Errorf("%s: %v while %v is open", name, e, open)
			}
			open, text = e["item"].(tree), ""
			if open["status"] != "in_progress" {
				t.Errorf("%s: %v", name, open)
			}
		case "response.output_text.delta", "response.function_call_arguments.delta", "response.reasoning_text.delta":
			text += e["delta"].(string)
			if e["item_id"] != open["id"] {
				t.Errorf("%s: %v is of another item than %v", name, e, open)
			}
		case "response.output_text.done", "response.reasoning_text.done":
			if e["text"] != text {
				t.Errorf("%s: %q of the pieces, %v at the end", name, text, e)
			}
		case "response.function_call_arguments.done":
			if e["arguments"] != text || e["name"] != open["name"] {
				t.Errorf("%s: %q of the pieces, %v at the end", name, text, e)
			}
		case "response.content_part.added", "response.content_part.done":
		case "response.output_item.done":
			if at(e, "item", "id") != open["id"] {
				t.Errorf("%s: %v ends %v", name, e, open)
			}
			items, open = append(items, e["item"]), nil
		default:
			t.Errorf("%s: %v", name, e)
		}
	}
	last := events[len(events)-1]
	if last["type"] != "response."+plain["status"].(string) || open != nil {
		t.Errorf("%s ends with %v", name, last)
	}
	if a, b := shape(last["response"]), shape(plain); a != b {
		t.Errorf("%s: streamed\n%s, whole\n%s", name, a, b)
	}
	if a, b := shape(items), shape(plain["output"]); a != b {
		t.Errorf("%s: items streamed\n%s, whole\n%s", name, a, b)
	}
}

// Instructions, turns, calls and their results become one chat.
func TestInputOfResponses(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("x")
	c := serveFor(t, m, nil)
	last := func() string { return m.Log()[len(m.Log())-1].Prompt }
	c.ok("/v1/responses", tree{"instructions": "Be brief.", "input": []any{
		tree{"role": "user", "content": []any{tree{"type": "input_text", "text": "Weather "}, tree{"type": "input_text", "text": "in Rome?"}}},
		tree{"type": "reasoning", "id": "rs_1", "summary": []any{}},
		tree{"type": "message", "role": "assistant", "id": "msg_1", "content": []any{tree{"type": "output_text", "text": "Let me look.", "annotations": []any{}}}},
		tree{"type": "function_call", "call_id": "c1", "name": "weather", "arguments": `{"place":"Rome"}`},
		tree{"type": "function_call_output", "call_id": "c1", "output": "sunny"},
		tree{"role": "developer", "content": "In French."},
	}})
	got := last()
	c.ok("/v1/chat/completions", tree{"messages": []any{
		tree{"role": "system", "content": "Be brief."},
		tree{"role": "user", "content": "Weather in Rome?"},
		tree{"role": "assistant", "content": "Let me look.", "tool_calls": []any{tree{"id": "c1", "type": "function", "function": tree{"name": "weather", "arguments": `{"place":"Rome"}`}}}},
		tree{"role": "tool", "tool_call_id": "c1", "content": "sunny"},
		tree{"role": "developer", "content": "In French."},
	}})
	if want := last(); got != want {
		t.Errorf("%q\n%q", got, want)
	}
	count := c.ok("/v1/responses/input_tokens", tree{"input": "x"})
	if n := c.ok("/tokenize", ask("x"))["count"]; count["input_tokens"] != n || count["object"] != "response.input_tokens" {
		t.Error(count, n)
	}
	for param, body := range map[string]tree{
		"input":                  {},
		"previous_response_id":   {"input": "x", "previous_response_id": "resp_1"},
		"conversation":           {"input": "x", "conversation": "conv_1"},
		"background":             {"input": "x", "background": true},
		"truncation":             {"input": "x", "truncation": "auto"},
		"include":                {"input": "x", "include": []any{"web_search_call.results"}},
		"input.0.type":           {"input": []any{tree{"type": "item_reference", "id": "x"}}},
		"input.0.role":           {"input": []any{tree{"role": "robot", "content": "x"}}},
		"input.0.content":        {"input": []any{tree{"role": "user"}}},
		"input.0.content.0.type": {"input": []any{tree{"role": "user", "content": []any{tree{"type": "input_image", "image_url": "x"}}}}},
		"tools.0.type":           {"input": "x", "tools": []any{tree{"type": "web_search"}}},
		"tools.0.name":           {"input": "x", "tools": []any{tree{"type": "function", "name": "a b"}}},
		"tool_choice":            {"input": "x", "tool_choice": "required"},
		"tool_choice.name":       {"input": "x", "tools": responseTools, "tool_choice": tree{"type": "function", "name": "rm"}},
		"tool_choice.mode":       {"input": "x", "tools": responseTools, "tool_choice": tree{"type": "allowed_tools", "mode": "x", "tools": []any{tree{"name": "now"}}}},
		"text.format.type":       {"input": "x", "text": tree{"format": tree{"type": "xml"}}},
		"text.format.schema":     {"input": "x", "text": tree{"format": tree{"type": "json_schema", "name": "s"}}},
		"text.format":            {"input": "x", "text": tree{"format": tree{"type": "json_schema", "name": "s", "schema": tree{"type": "string", "pattern": "("}}}},
		"max_output_tokens":      {"input": "x", "max_output_tokens": 0},
		"n":                      {"input": "x", "n": 2},
		"stream_options":         {"input": "x", "stream_options": tree{"include_obfuscation": false}},
		"response_format":        {"input": "x", "response_format": tree{"type": "json_object"}},
		"temperature":            {"input": "x", "temperature": -1},
	} {
		c.refused("/v1/responses", body, 400, param)
	}
	if status, out := c.call("GET", "/v1/responses/resp_1", nil); status != 404 || at(out, "error", "code") != "response_not_found" {
		t.Error(status, out)
	}
	c.refused("/v1/responses", tree{"input": "x", "model": "other"}, 404, "model")
}

func TestThoughtsAndLogprobsOfResponses(t *testing.T) {
	tmpl, err := chat.Parse(thinkTemplate, "", "")
	if err != nil {
		t.Fatal(err)
	}
	m := puppet.New()
	m.OnAny().Reply("<think>hm</think>\nYes é")
	c := serveFor(t, m, func(c *Config) { c.Template = tmpl })
	body := tree{"input": "x"}
	plain := c.ok("/v1/responses", body)
	if at(plain, "output", 0, "type") != "reasoning" || at(plain, "output", 0, "content", 0, "text") != "hm" || at(plain, "output", 1, "content", 0, "text") != "Yes é" {
		t.Error(plain)
	}
	if n := at(plain, "usage", "output_tokens_details", "reasoning_tokens"); n != float64(len("<think>hm</think>")) {
		t.Errorf("%v tokens of thoughts", n)
	}
	body["stream"] = true
	checkResponseEvents(t, "thoughts", c.events("/v1/responses", body), plain)
	body = tree{"input": "x", "include": []any{"message.output_text.logprobs"}}
	plain = c.ok("/v1/responses", body)
	if n := len(plain["output"].([]any)); n != 2 || at(plain, "output", 0, "content", 0, "text") != "hm" {
		t.Errorf("%d items with log-probabilities: %v", n, plain)
	}
	checkShownTokens(t, "thoughts", plain)
	body["stream"] = true
	checkResponseEvents(t, "thoughts with logprobs", c.events("/v1/responses", body), plain)

	body = tree{"input": "x", "include": []any{"message.output_text.logprobs"}, "chat_template_kwargs": tree{"enable_thinking": false}}
	m2 := puppet.New()
	m2.OnAny().Reply("Yes é")
	c = serveFor(t, m2, func(c *Config) { c.Template = tmpl })
	plain = c.ok("/v1/responses", body)
	if list := at(plain, "output", 0, "content", 0, "logprobs").([]any); len(list) != len("Yes é") {
		t.Errorf("%d log-probabilities", len(list))
	}
	body["stream"] = true
	checkResponseEvents(t, "logprobs", c.events("/v1/responses", body), plain)
}

// What goes wrong after a response has begun ends it as failed.
func TestFailedResponse(t *testing.T) {
	m := puppet.New()
	m.OnAny().Fail(backend.ErrUnavailable)
	c := serveFor(t, m, nil)
	c.refused("/v1/responses", tree{"input": "x", "stream": true}, 503, "")

	seen := make(chan struct{})
	c = serveFor(t, failing{seen: seen}, func(c *Config) { c.Vocabulary = nil })
	resp := c.do("POST", "/v1/responses", tree{"input": "x", "stream": true})
	defer resp.Body.Close()
	close(seen)
	events := c.readEvents(resp.Body)
	last := events[len(events)-1]
	if last["type"] != "response.failed" || at(last, "response", "status") != "failed" || at(last, "response", "error", "code") != "unavailable" {
		t.Error(last)
	}
}
