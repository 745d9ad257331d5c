package lang

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"time"
)

// Tool is a function that a model may call in the steps of an [Agent].
type Tool struct {
	Name string
	Doc  string // tells the model what it does
	// Schema is of its arguments, an object.
	Schema json.RawMessage
	// Call runs it. A result that is no string is given to the model as JSON; an
	// error is told to the model, which may try again.
	Call func(ctx context.Context, args json.RawMessage) (any, error)
	// Unsafe marks one that must not run twice for one call.
	Unsafe bool
	// Timeout bounds a call; 0: it takes as long as it takes. One that takes longer
	// is an error that the model is told. Its context is done then; a function that
	// does not look at it goes on in the background.
	Timeout time.Duration
}

// TimeLimit returns the tool with a bound on each call.
func (t Tool) TimeLimit(d time.Duration) Tool {
	t.Timeout = d
	return t
}

// run calls the tool within its time.
func (t *Tool) run(ctx context.Context, args json.RawMessage) (any, error) {
	if t.Timeout <= 0 {
		return t.Call(ctx, args)
	}
	ctx, cancel := context.WithTimeout(ctx, t.Timeout)
	defer cancel()
	type outcome struct {
		v        any
		err      error
		panicked any
		returned bool
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			if !o.returned {
				o.panicked = recover()
			}
			done <- o
		}()
		o.v, o.err = t.Call(ctx, args)
		o.returned = true
	}()
	select {
	case o := <-done:
		switch {
		case o.panicked != nil:
			panic(o.panicked) // where the run expects it
		case !o.returned:
			return nil, errors.New("the tool ended its goroutine")
		case o.err == nil || ctx.Err() == nil:
			return o.v, o.err
		}
	case <-ctx.Done():
	}
	if t.Unsafe {
		return nil, fmt.Errorf("no answer within %s; it may have happened all the same", t.Timeout)
	}
	return nil, fmt.Errorf("no answer within %s", t.Timeout)
}

// NewTool makes a tool of a Go function. Its schema is that of A, a struct, as
// [SchemaOf] makes it: descriptions come from jsonschema tags.
func NewTool[A, R any](name, doc string, fn func(ctx Context, args A) (R, error)) Tool {
	t := Tool{Name: name, Doc: doc}
	t.Schema, _ = SchemaOf(reflect.TypeFor[A]()) // without one the toolbox says so
	if fn == nil {
		return t
	}
	t.Call = func(ctx context.Context, args json.RawMessage) (any, error) {
		var a A
		if err := json.Unmarshal(args, &a); err != nil {
			return nil, err
		}
		return fn(ctx, a)
	}
	return t
}

// ToolFormat is the form in which a model writes calls. It is that of the model's
// chat template; runtime.ToolFormat finds it out.
type ToolFormat string

// The formats of tool calls.
const (
	// Hermes is {"name": ..., "arguments": {...}} between <tool_call> tags: Qwen,
	// Hermes and many others. It is the default.
	Hermes ToolFormat = "hermes"
	// Llama3 is {"name": ..., "parameters": {...}} at the end of the answer, one
	// call in each.
	Llama3 ToolFormat = "llama3"
	// Gemma is {"name": ..., "arguments": {...}} in a block fenced as tool_code.
	Gemma ToolFormat = "gemma"
)

// Toolbox is some tools in the format of a model.
type Toolbox struct {
	tools  []Tool
	format ToolFormat
}

// Tools puts tools together. An empty format is Hermes. What is wrong with them
// is reported where they are used.
func Tools(format ToolFormat, tools ...Tool) *Toolbox {
	if format == "" {
		format = Hermes
	}
	return &Toolbox{tools: tools, format: format}
}

// form is what a format writes around a call.
type form struct{ trigger, open, args, end string }

var forms = map[ToolFormat]form{
	Hermes: {"<tool_call>", "<tool_call>\n", "arguments", "\n</tool_call>"},
	Llama3: {`{"name":`, "", "parameters", ""},
	Gemma:  {"```tool_code", "```tool_code\n", "arguments", "\n```"},
}

var toolName = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// Check returns all that is wrong with the tools.
func (b *Toolbox) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if _, ok := forms[b.format]; !ok {
		bad("no tool format %q: there are hermes, llama3 and gemma", b.format)
	}
	if len(b.tools) == 0 {
		bad("no tools: give at least one")
	}
	seen := map[string]bool{}
	for _, t := range b.tools {
		switch s, err := parseJSON(t.Schema); {
		case !toolName.MatchString(t.Name):
			bad("tool %q: a name is 1 to 64 letters, digits, or any of _ . -", clip(t.Name, 40))
		case seen[t.Name]:
			bad("two tools are named %q: rename one", t.Name)
		case t.Call == nil:
			bad("tool %s has no function", t.Name)
		case t.Timeout < 0:
			bad("tool %s has a timeout of %s: use a positive one", t.Name, t.Timeout)
		case len(t.Schema) == 0 || err != nil:
			bad("tool %s has no schema: its arguments are a struct of types that JSON can hold", t.Name)
		case s.get("type") == nil || s.get("type").text != "object":
			bad("tool %s: its arguments are to be an object: take a struct", t.Name)
		default:
			for _, p := range checkSchema(s) {
				bad("tool %s: schema %s: %s", t.Name, p.at, p.msg)
			}
		}
		seen[t.Name] = true
	}
	return errors.Join(errs...)
}

// Text tells a model of the tools and how to call them. It belongs into the system
// turn, where all steps share it.
func (b *Toolbox) Text() string {
	var s strings.Builder
	s.WriteString("You can call tools. Each line between the tools tags describes one in JSON.\n<tools>\n")
	for _, t := range b.tools {
		fmt.Fprintf(&s, `{"type": "function", "function": {"name": %s, "description": %s, "parameters": %s}}`+"\n",
			FormatJSON(t.Name, Type{}), FormatJSON(t.Doc, Type{}), t.Schema)
	}
	f := forms[b.format]
	s.WriteString("</tools>\nWhen you need a tool, answer with a call of it")
	if f.open != "" {
		fmt.Fprintf(&s, " between %s and %s tags", strings.TrimSpace(f.open), strings.TrimSpace(f.end))
	}
	name := "NAME"
	if len(b.tools) > 0 {
		name = b.tools[0].Name
	}
	fmt.Fprintf(&s, ", in this form:\n%s{\"name\": %s, \"%s\": {...}}%s\n", f.open, FormatJSON(name, Type{}), f.args, f.end)
	s.WriteString("You are then given what it returns. Answer without a call when you know enough.")
	return s.String()
}

// Tags is the form of an answer that may call the tools, each with arguments of
// its schema.
func (b *Toolbox) Tags() Tags {
	f := forms[b.format]
	t := Tags{Triggers: []string{f.trigger}, StopAfterFirst: b.format == Llama3}
	for _, x := range b.tools {
		t.Tags = append(t.Tags, Tag{
			Begin:  fmt.Sprintf(`%s{"name": %s, "%s": `, f.open, FormatJSON(x.Name, Type{}), f.args),
			End:    "}" + f.end,
			Schema: x.Schema,
		})
	}
	if bare := forms[Llama3].trigger; f.trigger != bare {
		// Small models forget the tags around a call: it is held to the schema too.
		t.Triggers = append(t.Triggers, bare)
		for _, x := range b.tools {
			t.Tags = append(t.Tags, Tag{
				Begin:  fmt.Sprintf(`%s %s, "%s": `, bare, FormatJSON(x.Name, Type{}), f.args),
				End:    "}",
				Schema: x.Schema,
			})
		}
	}
	return t
}

// ToolCall is a call that a model wrote. Error says why it cannot be made.
type ToolCall struct {
	Name      string `json:"name"`
	Arguments any    `json:"arguments"`
	Error     string `json:"error,omitempty"`
}

// Calls finds the calls in an answer. What is not a call as it should be comes
// back with an Error for the model, never as an error of Go.
func (b *Toolbox) Calls(answer string) []ToolCall {
	f := forms[b.format]
	calls := []ToolCall{}
	if whole := strings.TrimSpace(answer); strings.HasPrefix(whole, "{") {
		// Small models forget the tags: an answer that is a call and nothing else
		// is one.
		var raw map[string]json.RawMessage
		if json.Unmarshal([]byte(whole), &raw) == nil && raw["name"] != nil {
			if c := b.call(raw); c.Error == "" {
				return append(calls, c)
			}
		}
	}
	for {
		i := strings.Index(answer, f.trigger)
		if i < 0 {
			return calls
		}
		answer = answer[i:]
		if f.open != "" {
			answer = answer[len(f.trigger):]
		}
		dec := json.NewDecoder(strings.NewReader(answer))
		var raw map[string]json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return append(calls, ToolCall{Error: "this call is not complete JSON: " + err.Error()})
		}
		answer = answer[dec.InputOffset():]
		calls = append(calls, b.call(raw))
	}
}

func (b *Toolbox) call(raw map[string]json.RawMessage) (c ToolCall) {
	args := raw["arguments"]
	if args == nil {
		args = raw["parameters"]
	}
	if json.Unmarshal(raw["name"], &c.Name) != nil || c.Name == "" {
		c.Error = "this call has no name"
		return c
	}
	if b.find(c.Name) == nil {
		c.Error = fmt.Sprintf("there is no tool %q, there is %s", c.Name, strings.Join(b.names(), ", "))
		return c
	}
	c.Arguments = map[string]any{}
	if len(args) > 0 {
		v, err := DecodeValue(args)
		if err != nil {
			c.Error = "arguments: " + err.Error()
			return c
		}
		c.Arguments = v
	}
	return c
}

// Run makes a call and returns what the model is told.
func (b *Toolbox) Run(ctx context.Context, c ToolCall) (string, error) {
	t := b.find(c.Name)
	switch {
	case c.Error != "":
		return "Error: " + c.Error, nil
	case t == nil || t.Call == nil:
		return fmt.Sprintf("Error: there is no tool %q", c.Name), nil
	}
	v, err := t.run(ctx, FormatJSON(c.Arguments, Type{}))
	if ctx.Err() != nil {
		return "", context.Cause(ctx) // the run ends, the tool says nothing
	}
	if err != nil {
		return "Error: " + err.Error(), nil
	}
	if raw, ok := v.(json.RawMessage); ok {
		var compact bytes.Buffer
		if json.Compact(&compact, raw) == nil {
			return compact.String(), nil
		}
		return string(raw), nil
	}
	if v, err = Normalize(v); err != nil {
		return "Error: " + err.Error(), nil
	}
	return strings.ToValidUTF8(FormatValue(v, Type{}), "\uFFFD"), nil
}

func (b *Toolbox) find(name string) *Tool {
	for i := range b.tools {
		if b.tools[i].Name == name {
			return &b.tools[i]
		}
	}
	return nil
}

func (b *Toolbox) names() []string {
	out := make([]string, len(b.tools))
	for i, t := range b.tools {
		out[i] = t.Name
	}
	return out
}

// unsafe reports whether a tool must not run twice for one call.
func (b *Toolbox) unsafe() bool {
	for _, t := range b.tools {
		if t.Unsafe {
			return true
		}
	}
	return false
}
