package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coppice-run/coppice/backend/chat/internal/jinja"
)

// Message is one turn of a conversation.
type Message struct {
	Role    string
	Content string // empty is the same as missing or null

	ToolCalls []ToolCall // of an assistant

	Name       string // of a tool or a speaker; optional
	ToolCallID string // which call a tool message answers; optional
}

// ToolCall is a call that an assistant asked for.
type ToolCall struct {
	ID   string
	Name string

	// Arguments is a JSON object, or a JSON string that holds one, as APIs send it.
	// Templates see a mapping in the order of the keys. What is not JSON reaches them
	// as text; nothing at all is an empty mapping.
	Arguments json.RawMessage
}

// Options are the inputs of a template besides messages. The zero value is usable.
type Options struct {
	// AddGenerationPrompt ends the text with the start of an assistant's turn.
	AddGenerationPrompt bool

	// Tools is a JSON array of tool descriptions; empty means none.
	Tools json.RawMessage

	// Extra are further variables, such as enable_thinking. Strings in them are plain
	// text, as those of messages.
	Extra map[string]any

	// Now is the clock for templates that print the date; nil is time.Now. Set it to
	// make the text repeatable.
	Now func() time.Time
}

// roles may be part of a control token; other names of roles are plain text.
var roles = []string{"system", "user", "assistant", "tool", "developer", "function", "model", "ipython", "observation", "context", "documents", "environment"}

// value is the message as templates see it. flag marks its content.
func (m *Message) value(flag jinja.Flag) *jinja.Dict {
	d := jinja.NewDict()
	roleFlag := jinja.User
	if slices.Contains(roles, m.Role) {
		roleFlag = jinja.Trusted
	}
	d.Set("role", jinja.Marked(m.Role, roleFlag))
	d.Set("content", jinja.Marked(m.Content, flag))
	if m.Name != "" {
		d.Set("name", jinja.Marked(m.Name, jinja.User))
	}
	if m.ToolCallID != "" {
		d.Set("tool_call_id", jinja.Marked(m.ToolCallID, jinja.User))
	}
	if len(m.ToolCalls) > 0 {
		calls := jinja.NewList()
		for _, c := range m.ToolCalls {
			f := jinja.NewDict()
			f.Set("name", jinja.Marked(c.Name, jinja.User))
			f.Set("arguments", argumentsValue(c.Arguments))
			call := jinja.NewDict()
			if c.ID != "" {
				call.Set("id", jinja.Marked(c.ID, jinja.User))
			}
			call.Set("type", jinja.Text{S: "function"})
			call.Set("function", f)
			calls.Items = append(calls.Items, call)
		}
		d.Set("tool_calls", calls)
	}
	return d
}

// argumentsValue is a mapping where the arguments are one, else their text.
func argumentsValue(raw json.RawMessage) jinja.Value {
	text := bytes.TrimSpace(raw)
	var inner string
	if len(text) > 0 && text[0] == '"' && json.Unmarshal(text, &inner) == nil {
		text = []byte(inner)
	}
	if len(bytes.TrimSpace(text)) == 0 || string(text) == "null" {
		text = []byte("{}")
	}
	v, err := jinja.FromJSON(text, jinja.User)
	if d, ok := v.(*jinja.Dict); ok && err == nil {
		literal := jinja.Marked(string(bytes.TrimSpace(text)), jinja.User)
		d.Literal = &literal // for templates that print the arguments without tojson
		return d
	}
	return jinja.Marked(string(text), jinja.User)
}

// vars are the variables of a template.
func (t *Template) vars(messages []Message, opts *Options, slot int) (*jinja.Dict, error) {
	d := jinja.NewDict()
	list := jinja.NewList()
	for i := range messages {
		flag := jinja.User
		if i == slot {
			flag = jinja.Slot | jinja.User
		}
		list.Items = append(list.Items, messages[i].value(flag))
	}
	keys := make([]string, 0, len(opts.Extra))
	for k := range opts.Extra {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		v, err := extraValue(opts.Extra[k])
		if err != nil {
			return nil, fmt.Errorf("chat: extra variable %q: %w", k, err)
		}
		d.Set(k, v)
	}
	d.Set("messages", list)
	d.Set("add_generation_prompt", opts.AddGenerationPrompt)
	d.Set("bos_token", jinja.Text{S: t.bos})
	d.Set("eos_token", jinja.Text{S: t.eos})
	tools, err := toolsValue(opts.Tools)
	if err != nil {
		return nil, err
	}
	d.Set("tools", tools)
	return d, nil
}

// toolsValue is None without tools, as most templates expect.
func toolsValue(raw json.RawMessage) (jinja.Value, error) {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil, nil
	}
	v, err := jinja.FromJSON(raw, jinja.User)
	if err != nil {
		return nil, fmt.Errorf("chat: tools: %w", err)
	}
	l, ok := v.(*jinja.List)
	if v != nil && !ok {
		return nil, errors.New("chat: tools are to be a JSON array")
	}
	if v == nil || len(l.Items) == 0 {
		return nil, nil
	}
	return l, nil
}

// extraValue converts a Go value by way of JSON, strings marked as plain text.
func extraValue(v any) (jinja.Value, error) {
	raw, ok := v.(json.RawMessage)
	if !ok {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(v); err != nil {
			return nil, err
		}
		raw = b.Bytes()
	}
	return jinja.FromJSON(raw, jinja.User)
}
