package serve

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
)

// responseRequest is a request of /v1/responses after reading. What is asked is
// all in it: nothing is stored, and no earlier response can be gone on from.
type responseRequest struct {
	job
	model    string
	created  int64
	tools    *toolset
	style    toolStyle
	think    thinking
	stream   bool
	logprobs bool
	topShown int

	// What the answer repeats of the request.
	echo responseEcho
}

// The JSON of a response.
type (
	response struct {
		ID         string              `json:"id"`
		Object     string              `json:"object"`
		Created    int64               `json:"created_at"`
		Completed  *int64              `json:"completed_at"`
		Status     string              `json:"status"`
		Error      *responseError      `json:"error"`
		Incomplete *responseIncomplete `json:"incomplete_details"`
		Model      string              `json:"model"`
		Output     []any               `json:"output"`
		Usage      *responseUsage      `json:"usage"`
		responseEcho
	}
	responseEcho struct {
		Instructions json.RawMessage   `json:"instructions"`
		MaxTokens    json.RawMessage   `json:"max_output_tokens"`
		MaxCalls     json.RawMessage   `json:"max_tool_calls"`
		Metadata     json.RawMessage   `json:"metadata"`
		Parallel     bool              `json:"parallel_tool_calls"`
		Previous     *string           `json:"previous_response_id"`
		Reasoning    json.RawMessage   `json:"reasoning"`
		Store        bool              `json:"store"`
		Temperature  float64           `json:"temperature"`
		Text         json.RawMessage   `json:"text"`
		ToolChoice   json.RawMessage   `json:"tool_choice"`
		Tools        []json.RawMessage `json:"tools"`
		TopLogprobs  int               `json:"top_logprobs"`
		TopP         float64           `json:"top_p"`
		Truncation   string            `json:"truncation"`
		User         json.RawMessage   `json:"user"`
		Background   bool              `json:"background"`
	}
	responseError struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	responseIncomplete struct {
		Reason string `json:"reason"`
	}
	responseUsage struct {
		Input        int `json:"input_tokens"`
		InputDetails struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
		Output        int `json:"output_tokens"`
		OutputDetails struct {
			Reasoning int `json:"reasoning_tokens"`
		} `json:"output_tokens_details"`
		Total   int `json:"total_tokens"`
		Coppice any `json:"coppice"`
	}
)

// responses is POST /v1/responses.
func (s *Server) responses(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	q, err := s.readResponse(r, f)
	if err != nil {
		return err
	}
	w.Header().Set("X-Request-Id", q.id)
	b := s.newResponder(q)
	if q.stream {
		return s.streamResponse(w, r, b)
	}
	err = s.run(r.Context(), &q.job, func(steps []step) error {
		for _, st := range steps {
			if st.end != nil {
				b.whole(st.end)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, b.response(b.status))
	return nil
}

// countResponse is POST /v1/responses/input_tokens.
func (s *Server) countResponse(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	q, err := s.readResponse(r, f)
	if err != nil {
		return err
	}
	ids, err := s.tokens(&q.prompts[0])
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, struct {
		Object string `json:"object"`
		Tokens int    `json:"input_tokens"`
	}{"response.input_tokens", len(ids)})
	return nil
}

// noResponse answers requests for a response that was given before.
func (s *Server) noResponse(_ http.ResponseWriter, r *http.Request) error {
	return notFound("response_not_found", "there is no response %q: responses are not stored here", clip(r.PathValue("id")))
}

func (s *Server) readResponse(r *http.Request, f *fields) (*responseRequest, error) {
	if err := s.checkModel(f); err != nil {
		return nil, err
	}
	t := tenantOf(r.Context())
	q := &responseRequest{model: s.cfg.Names[0], created: time.Now().Unix(), style: s.tools}
	q.job = job{id: s.requestID(r, f, "resp_"), op: opChat, tenant: t, readFrom: -1, promptAt: "input"}
	if f.has("response_format") {
		f.fail("response_format", "is text.format here")
	}
	s.readCommon(f, t, &q.job)
	if q.n != 1 {
		f.fail("n", "is to be 1 here")
	}
	q.base.MaxTokens = int(f.whole("max_output_tokens", 0, 1, math.MaxInt32))
	if n := q.base.MaxTokens; n > 0 && q.base.MinTokens > n {
		f.fail("min_tokens", "is more than the limit of %d tokens", n)
	}
	messages := readInput(f)
	q.tools = readResponseTools(f)
	s.readResponseText(f, q)
	q.stream = f.flag("stream", false)
	f.object("stream_options")
	if f.has("stream_options") && !q.stream {
		f.fail("stream_options", "is only for streams")
	}
	q.topShown = int(f.whole("top_logprobs", 0, 0, maxTopLogprobs))
	q.logprobs = q.topShown > 0
	for _, name := range f.texts("include", 32) {
		switch name {
		case "message.output_text.logprobs":
			q.logprobs = true
		case "reasoning.encrypted_content": // thoughts are shown as they are
		default:
			f.fail("include", "holds %q, which is not supported", clip(name))
		}
	}
	if q.logprobs {
		s.canLogprobs(f, "top_logprobs", q.topShown)
		q.base.Logprobs, q.top = true, q.topShown
	}
	if f.has("previous_response_id") {
		f.fail("previous_response_id", "is not supported: responses are not stored here; send the whole conversation as input")
	}
	f.refuse("send the whole conversation as input", "conversation")
	f.refuse("responses are not stored here", "background")
	f.refuse("write the text itself", "prompt")
	if trunc := f.text("truncation"); trunc != "" && trunc != "disabled" {
		f.fail("truncation", "is %q; only disabled is supported: input that is too long is an error", clip(trunc))
	}
	if err := f.err(); err != nil {
		return nil, err
	}
	q.readEcho(f)

	msgs, opts, c := q.tools.plan(messages, q.style)
	s.limitByTools(f, &q.job, q.tools, q.style, c)
	opts.extra = s.readTemplate(f)
	if err := f.err(); err != nil {
		return nil, err
	}
	p, err := s.fromChat(msgs, opts)
	if err != nil {
		if e := toError(err); e.Param == "messages" {
			moved := *e
			moved.Param = "input"
			err = &moved
		}
		return nil, err
	}
	q.prompts = []prompt{p}
	if free(q.base.Constraint) {
		q.think = p.think
	}
	return q, nil
}

// readEcho keeps what the answer repeats.
func (q *responseRequest) readEcho(f *fields) {
	or := func(name, otherwise string) json.RawMessage {
		if raw := f.raw(name); raw != nil {
			return raw
		}
		return json.RawMessage(otherwise)
	}
	q.echo = responseEcho{
		Instructions: or("instructions", "null"), MaxTokens: or("max_output_tokens", "null"), MaxCalls: or("max_tool_calls", "null"),
		Metadata: or("metadata", "{}"), Parallel: q.tools.parallel, Reasoning: or("reasoning", `{"effort":null,"summary":null}`),
		Temperature: q.base.Sampling.Temperature, TopP: q.base.Sampling.TopP, Text: or("text", `{"format":{"type":"text"}}`),
		ToolChoice: or("tool_choice", `"auto"`), TopLogprobs: q.topShown, Truncation: "disabled", User: or("user", "null"),
	}
	if q.echo.Tools, _ = f.list("tools"); q.echo.Tools == nil {
		q.echo.Tools = []json.RawMessage{}
	}
}

// readInput reads instructions and input as the messages of a chat.
func readInput(f *fields) (out []chat.Message) {
	if text := f.text("instructions"); text != "" {
		out = append(out, chat.Message{Role: "system", Content: text})
	}
	raw := f.raw("input")
	if raw == nil {
		f.fail("input", "is missing")
		return nil
	}
	if text, ok := jsonString(raw); ok {
		return append(out, chat.Message{Role: "user", Content: text})
	}
	items, ok := f.list("input")
	if ok && len(items) == 0 {
		f.fail("input", "is empty")
	}
	for i, item := range items {
		x := f.within(fmt.Sprintf("input.%d", i), item)
		switch kind := x.text("type"); kind {
		case "", "message":
			m := chat.Message{Role: x.text("role"), Content: readContent(x)}
			switch m.Role {
			case "developer":
				m.Role = "system"
			case "system", "user", "assistant":
			default:
				x.fail("role", "is %q; it is to be user, assistant, system or developer", clip(m.Role))
			}
			if !x.has("content") {
				x.fail("content", "is missing")
			}
			out = append(out, m)
		case "function_call":
			call := chat.ToolCall{ID: x.text("call_id"), Name: x.text("name"), Arguments: x.raw("arguments")}
			if call.Name == "" {
				x.fail("name", "is missing")
			}
			// Calls and the text before them are one turn of the assistant's.
			if n := len(out); n == 0 || out[n-1].Role != "assistant" {
				out = append(out, chat.Message{Role: "assistant"})
			}
			last := &out[len(out)-1]
			last.ToolCalls = append(last.ToolCalls, call)
		case "function_call_output":
			m := chat.Message{Role: "tool", ToolCallID: x.text("call_id"), Content: readText(x, "output")}
			if !x.has("output") {
				x.fail("output", "is missing")
			}
			out = append(out, m)
		case "reasoning": // what a model thought is not part of what follows
		case "item_reference":
			x.fail("type", "is item_reference; items are not stored here, send the item itself")
		default:
			x.fail("type", "is %q; it is to be message, function_call, function_call_output or reasoning", clip(kind))
		}
	}
	return out
}

// readResponseTools reads tools and tool_choice, which are flatter than those of
// chats.
func readResponseTools(f *fields) *toolset {
	t := &toolset{parallel: f.flag("parallel_tool_calls", true)}
	type shown struct {
		Type     string         `json:"type"`
		Function map[string]any `json:"function"`
	}
	var raw []shown // as a chat's template knows them
	items, _ := f.list("tools")
	for i, item := range items {
		o := f.within(fmt.Sprintf("tools.%d", i), item)
		if kind := o.text("type"); kind != "function" {
			o.fail("type", "is %q; only function tools are supported", clip(kind))
			continue
		}
		x := readFunction(o, t)
		x.strict = o.flag("strict", false)
		t.list = append(t.list, x)
		fn := map[string]any{"name": x.name, "parameters": x.schema}
		if x.doc != "" {
			fn["description"] = x.doc
		}
		raw = append(raw, shown{"function", fn})
	}
	if raw != nil && f.err() == nil {
		t.raw, _ = encode(raw)
	}
	t.readChoiceBy(f, func(o *fields) *fields { return o }, func(o *fields) *fields { return o })
	return t
}

// readResponseText reads text.format as a chat's response_format.
func (s *Server) readResponseText(f *fields, q *responseRequest) {
	text := f.object("text")
	if text == nil {
		return
	}
	o := text.object("format")
	if o == nil {
		return
	}
	c := backend.Constraint{}
	switch kind := o.text("type"); kind {
	case "text":
		return
	case "json_object":
		c.JSONSchema = anyObject
	case "json_schema":
		o.text("name")
		o.flag("strict", false)
		if !o.has("schema") {
			o.fail("schema", "is missing")
			return
		}
		c.JSONSchema = readSchema(o, "schema")
	default:
		o.fail("type", "is %q; it is to be text, json_object or json_schema", clip(kind))
	}
	if q.constraintAt != "" {
		f.fail("text.format", "and %s both limit the output; use one of them", q.constraintAt)
	}
	s.constrain(&q.job, c, "text.format")
}

// readText reads a member that is a string or a list of parts of text.
func readText(m *fields, name string) string {
	raw := m.raw(name)
	if s, ok := jsonString(raw); ok || raw == nil {
		return s
	}
	parts, _ := m.listOr(name, "a string or a list of parts")
	var b strings.Builder
	for i, raw := range parts {
		p := m.within(fmt.Sprintf("%s.%d", name, i), raw)
		switch kind := p.text("type"); kind {
		case "text", "input_text", "output_text":
			if !p.has("text") {
				p.fail("text", "is missing")
			}
			b.WriteString(p.text("text"))
		case "refusal":
			b.WriteString(p.text("refusal"))
		default:
			p.fail("type", "is %q; this model takes parts of type text only", clip(kind))
		}
	}
	return b.String()
}

// response is the whole answer as far as it is known.
func (b *responder) response(status string) *response {
	q := b.q
	out := &response{ID: q.id, Object: "response", Created: q.created, Status: status, Model: q.model, Output: slices.Clone(b.items), responseEcho: q.echo}
	if out.Output == nil {
		out.Output = []any{}
	}
	if b.end == nil {
		return out
	}
	now := time.Now().Unix()
	out.Completed = &now
	if status == "incomplete" {
		out.Completed, out.Incomplete = nil, &responseIncomplete{"max_output_tokens"}
	}
	u := usageOf([]*choice{b.end})
	out.Usage = &responseUsage{Input: u.PromptTokens, Output: u.CompletionTokens, Total: u.TotalTokens, Coppice: u.Coppice}
	out.Usage.InputDetails.Cached = u.PromptDetails.CachedTokens
	out.Usage.OutputDetails.Reasoning = u.CompletionDetails.ReasoningTokens
	return out
}
