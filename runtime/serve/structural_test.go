package serve

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
)

// Both forms of a structural tag, wherever they may stand, mean the same: text is
// free, and what a trigger opens has the form of its tag.
func TestStructuralTags(t *testing.T) {
	schema := tree{"type": "object", "properties": tree{"pod": tree{"enum": []any{"web-1", "db-0"}}}, "required": []any{"pod"}, "additionalProperties": false}
	older := tree{"type": "structural_tag", "triggers": []any{"<look"}, "structures": []any{tree{"begin": "<look>", "schema": schema, "end": "</look>"}}}
	newer := tree{"type": "structural_tag", "format": tree{"type": "triggered_tags", "triggers": []any{"<look"},
		"tags": []any{tree{"type": "tag", "begin": "<look>", "content": tree{"type": "json_schema", "json_schema": schema}, "end": "</look>"}}}}
	text, err := encode(older)
	require.NoError(t, err)

	m := puppet.New()
	var seen []*backend.Tags
	m.OnAny().ReplyFunc(func(p *puppet.Prompt) (string, error) {
		tags := p.Request.Constraint.Tags
		seen = append(seen, tags)
		if tags != nil && tags.StopAfterFirst {
			return `<look>{"pod": "web-1"}</look>`, nil
		}
		return `Let me see. <look>{"pod": "web-1"}</look> Done.`, nil
	})
	c := serveFor(t, m, nil)
	const want = `Let me see. <look>{"pod":"web-1"}</look> Done.`
	for _, more := range [][]any{
		{"response_format", older}, {"response_format", newer}, {"structural_tag", string(text)}, {"structural_tag", newer},
		{"structured_outputs", tree{"structural_tag": string(text)}},
	} {
		got := c.ok("/v1/chat/completions", ask("x", more...))
		assert.Equal(t, want, at(got, "choices", 0, "message", "content"), "%v", more)
		assert.Equal(t, want, chatText(c.stream("/v1/chat/completions", ask("x", append(more, "stream", true)...)), 0))
	}
	got := c.ok("/generate", tree{"text": "x", "sampling_params": tree{"max_new_tokens": 100, "structural_tag": string(text)}})
	assert.Equal(t, want, got["text"])
	for _, tags := range seen {
		require.NotNil(t, tags)
		require.Len(t, tags.Tags, 1)
		assert.Equal(t, "<look>", tags.Tags[0].Begin)
		assert.False(t, tags.AtLeastOne)
	}
	c.ok("/v1/chat/completions", ask("x", "structural_tag", tree{"format": tree{"type": "triggered_tags", "at_least_one": true, "stop_after_first": true,
		"triggers": []any{"<"}, "tags": []any{tree{"begin": "<look>", "content": tree{"type": "json_schema", "json_schema": schema}, "end": "</look>"}}}}))
	assert.True(t, seen[len(seen)-1].AtLeastOne && seen[len(seen)-1].StopAfterFirst)
}

// Our engine enforces them: a model that only knows the beginning of the alphabet
// and a trigger goes on with the tag.
func TestStructuralTagsOnTheEngine(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: func(b byte) backend.Token {
		if b == 'c' {
			return '<'
		}
		return alphabet(b)
	}}), nil)
	got := c.ok("/v1/chat/completions", ask("x", "max_tokens", 200, "temperature", 0, "response_format", tree{"type": "structural_tag", "format": tree{
		"type": "triggered_tags", "at_least_one": true, "stop_after_first": true, "triggers": []any{"<"},
		"tags": []any{tree{"begin": "<look>", "end": "</look>", "content": tree{"type": "json_schema", "json_schema": tree{"enum": []any{"OOMKilled", "Evicted"}}}}},
	}}))
	said := at(got, "choices", 0, "message", "content").(string)
	i := strings.Index(said, "<look>")
	require.GreaterOrEqual(t, i, 0, said)
	assert.Contains(t, []string{`<look>"OOMKilled"</look>`, `<look>"Evicted"</look>`}, said[i:])
}

// With a strict tool a call that has begun is one that its schema allows.
func TestStrictToolsWithAuto(t *testing.T) {
	strict := tree{"type": "function", "function": tree{"name": "weather", "strict": true, "parameters": tree{
		"type": "object", "properties": tree{"place": tree{"enum": []any{"Rome", "Oslo"}}}, "required": []any{"place"}, "additionalProperties": false}}}
	m := puppet.New()
	var tags *backend.Tags
	m.OnAny().ReplyFunc(func(p *puppet.Prompt) (string, error) {
		tags = p.Request.Constraint.Tags
		return "I look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"place\":\"Rome\"}}\n</tool_call>", nil
	})
	c := serveFor(t, m, nil)
	for _, choice := range []any{nil, "auto"} {
		got := c.ok("/v1/chat/completions", ask("x", "tools", []any{strict, weatherTools[1]}, "tool_choice", choice))
		require.NotNil(t, tags)
		assert.Len(t, tags.Tags, 2)
		assert.Equal(t, "I look.", at(got, "choices", 0, "message", "content"))
		assert.Equal(t, "weather", at(got, "choices", 0, "message", "tool_calls", 0, "function", "name"))
		assert.JSONEq(t, `{"place":"Rome"}`, at(got, "choices", 0, "message", "tool_calls", 0, "function", "arguments").(string))
		assert.Equal(t, "tool_calls", at(got, "choices", 0, "finish_reason"))
	}
	c.ok("/v1/chat/completions", ask("x", "tools", []any{strict}, "tool_choice", "none"))
	assert.Nil(t, tags)
	c.ok("/v1/chat/completions", ask("x", "tools", weatherTools))
	assert.Nil(t, tags, "without strict the model writes as it likes")
	c.ok("/v1/responses", tree{"input": "x", "tools": []any{tree{"type": "function", "name": "weather", "strict": true, "parameters": at(strict, "function", "parameters")}}})
	require.NotNil(t, tags)

	bad := tree{"type": "function", "function": tree{"name": "bad", "strict": true, "parameters": tree{"type": "object", "properties": tree{"a": tree{"pattern": "("}}}}}
	c.refused("/v1/chat/completions", ask("x", "tools", []any{bad}), http.StatusBadRequest, "tools")
}

// metric is a number of /metrics, added up over its labels.
func (c *client) metric(name string) (sum float64) {
	c.t.Helper()
	resp := c.do("GET", "/metrics", nil)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name); ok && strings.ContainsAny(rest[:1], "{ ") {
			fields := strings.Fields(line)
			v, err := strconv.ParseFloat(fields[len(fields)-1], 64)
			require.NoError(c.t, err)
			sum += v
		}
	}
	return sum
}

// Tokens of a generation that is given up are counted.
func TestFailedGenerationsAreCounted(t *testing.T) {
	step := make(chan struct{}, 8)
	c := serveFor(t, newEngine(t, &chain{next: alphabet, step: step}), nil)
	for range 5 {
		step <- struct{}{}
	}
	resp := c.do("POST", "/v1/completions", tree{"prompt": "abc", "max_tokens": 20, "stream": true})
	line := make([]byte, 1)
	_, err := resp.Body.Read(line)
	require.NoError(t, err)
	resp.Body.Close()
	close(step)
	require.NoError(t, c.srv.Idle(t.Context()))
	assert.EqualValues(t, 3, c.metric("vllm:prompt_tokens_total"))
	assert.Positive(t, c.metric("vllm:generation_tokens_total"))
	assert.Positive(t, c.metric("coppice_computed_tokens_total"))
}

// A text ends with the token that completes a match of stop_regex.
func TestStopRegex(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	for _, more := range []tree{{"stop_regex": "g[a-z]"}, {"stop_regex": []any{"[0-9]", "[xg]h"}}, {"stop_regex": "gh", "include_stop_str_in_output": true}} {
		body := tree{"prompt": "ab", "max_tokens": 20, "temperature": 0}
		for k, v := range more {
			body[k] = v
		}
		got := c.ok("/v1/completions", body)
		assert.Equal(t, "cdefgh", at(got, "choices", 0, "text"))
		assert.Equal(t, "stop", at(got, "choices", 0, "finish_reason"))
		assert.EqualValues(t, 6, at(got, "usage", "completion_tokens"))
		body["stream"] = true
		said := ""
		for _, e := range c.stream("/v1/completions", body) {
			said += at(e, "choices", 0, "text").(string)
		}
		assert.Equal(t, "cdefgh", said)
	}
	got := c.ok("/generate", tree{"text": "ab", "sampling_params": tree{"max_new_tokens": 20, "temperature": 0, "stop_regex": "[d-f]{3}"}})
	assert.Equal(t, "cdef", got["text"])
	assert.Equal(t, "[d-f]{3}", at(got, "meta_info", "finish_reason", "matched"))
	// A stop string that ends before it counts.
	got = c.ok("/v1/completions", tree{"prompt": "ab", "max_tokens": 20, "temperature": 0, "stop": "de", "stop_regex": "f"})
	assert.Equal(t, "c", at(got, "choices", 0, "text"))
	for _, bad := range []any{"(", "^c", "c*", strings.Repeat("c", 300), []any{"a", "c{1000}"}, 7} {
		c.refused("/v1/completions", tree{"prompt": "ab", "stop_regex": bad}, 400, "stop_regex")
	}
}
