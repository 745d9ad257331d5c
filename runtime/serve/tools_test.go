package serve

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/puppet"
)

var weatherTools = []any{
	tree{"type": "function", "function": tree{"name": "weather", "description": "of a place", "parameters": tree{
		"type": "object", "properties": tree{"place": tree{"type": "string"}}, "required": []any{"place"}, "additionalProperties": false}}},
	tree{"type": "function", "function": tree{"name": "now"}},
}

// toolModel answers as a constraint asks for, and freely with what free says.
func toolModel(free string) *puppet.Model {
	m := puppet.New()
	m.OnAny().ReplyFunc(func(p *puppet.Prompt) (string, error) {
		schema := string(p.Request.Constraint.JSONSchema)
		switch {
		case strings.Contains(schema, `"array"`):
			return `[{"name":"weather","arguments":{"place":"Rome"}},{"name":"now","arguments":{}}]`, nil
		case strings.Contains(schema, "$defs"):
			return `{"name":"weather","arguments":{"place":"Rome"}}`, nil
		case schema != "":
			return `{"place":"Rome"}`, nil
		}
		return free, nil
	})
	return m
}

// streamedCalls puts the pieces of calls together as clients do.
func streamedCalls(t *testing.T, events []tree) (calls []tree, reason any) {
	t.Helper()
	for _, e := range events {
		if r := at(e, "choices", 0, "finish_reason"); r != nil {
			reason = r
		}
		list, _ := at(e, "choices", 0, "delta", "tool_calls").([]any)
		for _, x := range list {
			i := int(at(x, "index").(float64))
			if i == len(calls) {
				calls = append(calls, tree{"id": at(x, "id"), "name": at(x, "function", "name"), "arguments": ""})
				if at(x, "id") == nil || at(x, "type") != "function" || at(x, "function", "name") == nil {
					t.Errorf("first piece of call %d: %v", i, x)
				}
			} else if at(x, "id") != nil || at(x, "function", "name") != nil {
				t.Errorf("later piece of call %d: %v", i, x)
			}
			calls[i]["arguments"] = calls[i]["arguments"].(string) + at(x, "function", "arguments").(string)
		}
	}
	return calls, reason
}

func TestToolChoice(t *testing.T) {
	const said = "Let me look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\": \"Rome\"}}\n</tool_call>\n<tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>"
	weather, now := []string{"weather", "Rome"}, []string{"now", "{}"}
	for _, x := range []struct {
		name     string
		free     string
		choice   any
		parallel bool
		limit    int
		calls    [][]string
		content  any
		reason   string
	}{
		{"auto", said, "auto", true, 0, [][]string{weather, now}, "Let me look.", "tool_calls"},
		{"unset", said, nil, true, 0, [][]string{weather, now}, "Let me look.", "tool_calls"},
		{"auto, one", said, "auto", false, 0, [][]string{weather}, "Let me look.", "tool_calls"},
		{"auto, no call", "Sunny < rainy <tool", "auto", true, 0, nil, "Sunny < rainy <tool", "stop"},
		{"auto, unknown tool", `<tool_call>{"name":"rm","arguments":{}}</tool_call>`, "auto", true, 0, nil, `<tool_call>{"name":"rm","arguments":{}}</tool_call>`, "stop"},
		{"auto, broken call", `<tool_call>{"name":`, "auto", true, 0, nil, `<tool_call>{"name":`, "stop"},
		{"auto, cut", said, "auto", true, 30, nil, said[:30], "length"},
		{"required", "", "required", true, 0, [][]string{weather, now}, nil, "tool_calls"},
		{"required, one", "", "required", false, 0, [][]string{weather}, nil, "tool_calls"},
		{"required, cut", "", "required", true, 3, nil, "", "length"},
		{"named", "", tree{"type": "function", "function": tree{"name": "weather"}}, true, 0, [][]string{weather}, nil, "stop"},
		{"none", said, "none", true, 0, nil, said, "stop"},
	} {
		m := toolModel(x.free)
		c := serveFor(t, m, nil)
		body := ask("Weather in Rome?", "tools", weatherTools, "parallel_tool_calls", x.parallel)
		if x.choice != nil {
			body["tool_choice"] = x.choice
		}
		if x.limit > 0 {
			body["max_tokens"] = x.limit
		}
		plain := c.ok("/v1/chat/completions", body)
		body["stream"] = true
		events := c.stream("/v1/chat/completions", body)
		streamed, reason := streamedCalls(t, events)

		var got [][]string
		list, present := at(plain, "choices", 0, "message").(tree)["tool_calls"].([]any)
		if present && len(list) == 0 {
			t.Errorf("%s: an empty list of calls", x.name)
		}
		for i, k := range list {
			args := at(k, "function", "arguments").(string)
			if len(streamed) != len(list) || streamed[i]["arguments"] != args || streamed[i]["name"] != at(k, "function", "name") {
				t.Errorf("%s: streamed %v, plain %v", x.name, streamed, list)
			}
			var doc map[string]string
			if err := json.Unmarshal([]byte(args), &doc); err != nil {
				t.Errorf("%s: arguments %q: %v", x.name, args, err)
			}
			if doc["place"] != "" {
				args = doc["place"]
			}
			got = append(got, []string{at(k, "function", "name").(string), args})
		}
		content, plainReason := at(plain, "choices", 0, "message", "content"), at(plain, "choices", 0, "finish_reason")
		if !reflect.DeepEqual(got, x.calls) || content != x.content || plainReason != x.reason || reason != x.reason {
			t.Errorf("%s: calls %v, content %q, reason %v, streamed %v", x.name, got, content, plainReason, reason)
		}
		if s, _ := content.(string); chatText(events, 0) != s {
			t.Errorf("%s: streamed %q, plain %q", x.name, chatText(events, 0), s)
		}
		if told := strings.Contains(m.Log()[0].Prompt, "<tools>"); told != (x.name != "none") {
			t.Errorf("%s: prompt %q", x.name, m.Log()[0].Prompt)
		}
	}
}

func TestBadTools(t *testing.T) {
	c := serveFor(t, toolModel("x"), nil)
	fn := func(f tree) []any { return []any{tree{"type": "function", "function": f}} }
	for _, x := range []struct {
		param string
		body  tree
	}{
		{"tools.0.type", tree{"tools": []any{tree{"type": "web"}}}},
		{"tools.0.function", tree{"tools": []any{tree{"type": "function"}}}},
		{"tools.0.function.name", tree{"tools": fn(tree{"name": "a b"})}},
		{"tools.1.function.name", tree{"tools": append(fn(tree{"name": "a"}), fn(tree{"name": "a"})...)}},
		{"tools.0.function.parameters", tree{"tools": fn(tree{"name": "a", "parameters": []any{}})}},
		{"tool_choice", tree{"tools": weatherTools, "tool_choice": "maybe"}},
		{"tool_choice", tree{"tool_choice": "required"}},
		{"tool_choice.function.name", tree{"tools": weatherTools, "tool_choice": tree{"type": "function", "function": tree{"name": "other"}}}},
		{"functions", tree{"functions": fn(tree{"name": "a"})}},
		{"guided_regex", tree{"tools": weatherTools, "tool_choice": "required", "guided_regex": "a"}},
		{"tools", tree{"tool_choice": "required", "tools": fn(tree{"name": "a", "parameters": tree{"type": "object", "properties": tree{"p": tree{"type": "string", "pattern": "[z-a]"}}}})}},
	} {
		c.refused("/v1/chat/completions", ask("x", pairs(x.body)...), 400, x.param)
	}
}

// References inside the schema of a tool still lead to what they meant.
func TestToolSchemasWithReferences(t *testing.T) {
	tools := &toolset{list: []tool{
		{name: "a", schema: json.RawMessage(`{"type":"object","properties":{"x":{"$ref": "#/$defs/n"}},"required":["x"],"additionalProperties":false,"$defs":{"n":{"type":"integer"}}}`)},
		{name: "b", schema: noArguments},
	}}
	m := puppet.New()
	m.OnAny().Reply(`[{"name":"a","arguments":{"x":4}}]`)
	got, err := m.Generate(t.Context(), &backend.Request{Constraint: backend.Constraint{JSONSchema: tools.callSchema(true)}}, nil)
	if err != nil || got.Part.Text != `[{"name":"a","arguments":{"x":4}}]` {
		t.Fatal(got, err)
	}
	bad := puppet.New()
	bad.OnAny().Reply(`[{"name":"a","arguments":{"x":"4"}}]`)
	if _, err := bad.Generate(t.Context(), &backend.Request{Constraint: backend.Constraint{JSONSchema: tools.callSchema(true)}}, nil); err == nil {
		t.Error("an argument of another type is accepted")
	}
}

// A template that prints tools is given them, and an answer that must be a call
// begins like one.
func TestToolsOfATemplate(t *testing.T) {
	tmpl, err := chat.Parse(`{% if tools %}TOOLS {{ tools | tojson }}
{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}`, "", "")
	if err != nil {
		t.Fatal(err)
	}
	m := toolModel("x")
	c := serveFor(t, m, func(c *Config) { c.Template = tmpl })
	for choice, end := range map[any]string{
		"auto": "assistant: ", "required": "assistant: <tool_call>\n",
	} {
		c.ok("/v1/chat/completions", ask("hi", "tools", weatherTools, "tool_choice", choice, "parallel_tool_calls", false))
		p := m.Log()[len(m.Log())-1].Prompt
		if !strings.HasPrefix(p, "TOOLS [") || strings.Contains(p, "<tools>") || !strings.HasSuffix(p, "user: hi"+end) {
			t.Errorf("%v: %q", choice, p)
		}
	}
	named := tree{"type": "function", "function": tree{"name": "weather"}}
	got := c.ok("/v1/chat/completions", ask("hi", "tools", weatherTools, "tool_choice", named))
	p := m.Log()[len(m.Log())-1].Prompt
	if !strings.HasSuffix(p, `<tool_call>`+"\n"+`{"name": "weather", "arguments": `) || at(got, "choices", 0, "message", "tool_calls", 0, "function", "arguments") != `{"place":"Rome"}` {
		t.Errorf("%q %v", p, got)
	}
}

// TestEarlierCallsAreInThePrompt: what an assistant called is in the prompt whether
// the template prints calls or knows nothing of them, once, and the same whether its
// content is null, empty or missing. Arguments are JSON in a text, as clients send
// them; what is none passes as text.
func TestEarlierCallsAreInThePrompt(t *testing.T) {
	const turns = `{% for m in messages %}{{ m.role }}: {{ m.content }}`
	knows, err := chat.Parse(turns+`{% for c in m.tool_calls or [] %}<{{ c.function.name }}{% for k, v in c.function.arguments|items %} {{ k }}={{ v }}{% endfor %} {{ c.function.arguments|tojson }}>{% endfor %}|{% endfor %}`, "", "")
	if err != nil {
		t.Fatal(err)
	}
	knowsNot, err := chat.Parse(turns+"|{% endfor %}", "", "")
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		tmpl  *chat.Template
		calls map[string]string // by arguments
	}{
		"a template with calls": {knows, map[string]string{
			`{"place": "Bergen", "a": 2}`: `<map place=Bergen a=2 {"place": "Bergen", "a": 2}>`,
			`{"place": `:                  `<map "{\"place\": ">`,
			``:                            `<map {}>`,
		}},
		"a template without": {knowsNot, map[string]string{
			`{"place": "Bergen", "a": 2}`: "<tool_call>\n{\"name\": \"map\", \"arguments\": {\"place\": \"Bergen\", \"a\": 2}}\n</tool_call>",
			`{"place": `:                  "<tool_call>\n{\"name\": \"map\", \"arguments\": {\"place\":}\n</tool_call>",
			``:                            "<tool_call>\n{\"name\": \"map\", \"arguments\": {}}\n</tool_call>",
		}},
	} {
		m := puppet.New()
		m.OnAny().Reply("ok")
		c := serveFor(t, m, func(c *Config) { c.Template = x.tmpl })
		for args, want := range x.calls {
			for _, content := range []any{nil, "", "missing"} {
				said := tree{"role": "assistant", "content": content, "tool_calls": []any{tree{"id": "c1", "type": "function", "function": tree{"name": "map", "arguments": args}}}}
				if content == "missing" {
					delete(said, "content")
				}
				c.ok("/v1/chat/completions", tree{"messages": []any{
					tree{"role": "user", "content": "Where is Bergen?"}, said, tree{"role": "tool", "tool_call_id": "c1", "content": "60 N"},
				}})
				log := m.Log()
				if got := log[len(log)-1].Prompt; got != "user: Where is Bergen?|assistant: "+want+"|tool: 60 N|" {
					t.Errorf("%s, content %v, arguments %q: %q", name, content, args, got)
				}
			}
		}
	}
}

// However the text of an answer is cut, the same comes out.
func FuzzCallReader(f *testing.F) {
	f.Add("a <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call> b", uint8(3))
	f.Add("<tool_call><tool_call></tool_call>{}</tool_call>\n\n<tool_c", uint8(1))
	f.Add(" \n{\"name\":\"now\"}", uint8(2))
	f.Fuzz(func(t *testing.T, text string, step uint8) {
		for _, style := range []toolStyle{{tagged: true}, {}} {
			tools := &toolset{list: []tool{{name: "now"}}, choice: toolsAuto, parallel: true}
			whole := &callReader{tools: tools, style: style}
			content, calls := whole.push(text)
			rest, more := whole.finish()
			content, calls = content+rest, append(calls, more...)

			parts := &callReader{tools: tools, style: style}
			var content2 string
			var calls2 []call
			for at, n := 0, int(step)+1; at < len(text); at += n {
				s, k := parts.push(text[at:min(at+n, len(text))])
				content2, calls2 = content2+s, append(calls2, k...)
			}
			s, k := parts.finish()
			content2, calls2 = content2+s, append(calls2, k...)
			if content != content2 || len(calls) != len(calls2) {
				t.Errorf("%q by %d: %q %v, at once %q %v", text, step+1, content2, calls2, content, calls)
			}
		}
	})
}
