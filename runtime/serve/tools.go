package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// tool is a function that a model may call.
type tool struct {
	name   string
	doc    string
	schema json.RawMessage // of its arguments
	strict bool            // they are to fit it however the call comes about
}

// toolChoice says whether tools are called.
type toolChoice uint8

const (
	toolsNone     toolChoice = iota
	toolsAuto                // the model decides
	toolsRequired            // at least one call, by the constraint
	toolsNamed               // this one, by the constraint
)

// toolset is the tools of a request.
type toolset struct {
	list     []tool
	shown    []tool          // to the model, if those are more
	raw      json.RawMessage // as the client wrote them, for the template
	choice   toolChoice
	named    *tool
	parallel bool
}

func (t *toolset) find(name string) *tool {
	for i := range t.list {
		if t.list[i].name == name {
			return &t.list[i]
		}
	}
	return nil
}

// toolStyle is how a template writes tools and calls.
type toolStyle struct {
	listed bool // it prints the tools
	called bool // it prints the calls of earlier turns
	tagged bool // it writes calls as <tool_call>{...}</tool_call>
	begin  bool // what an answer begins with can be part of the prompt
	thinks bool // it knows of thoughts before an answer
}

const (
	openTag  = "<tool_call>"
	closeTag = "</tool_call>"
)

// styleOf finds out by asking the template.
func styleOf(t *chat.Template) toolStyle {
	if t == nil {
		return toolStyle{tagged: true}
	}
	ask := []chat.Message{{Role: "user", Content: "question"}}
	tools := json.RawMessage(`[{"type":"function","function":{"name":"probe","description":"d","parameters":{"type":"object","properties":{}}}}]`)
	with, err := t.Render(ask, chat.Options{Tools: tools})
	listed := err == nil && countText(with, "probe") > 0
	const id = "call00001" // some want nine characters
	past, err := t.Render(append(ask,
		chat.Message{Role: "assistant", ToolCalls: []chat.ToolCall{{ID: id, Name: "probe", Arguments: noArguments}}},
		chat.Message{Role: "tool", ToolCallID: id, Content: "result"}), chat.Options{Tools: tools})
	called := err != nil || countText(past, "probe") > countText(with, "probe")
	return toolStyle{
		listed: listed, called: called, tagged: !listed || strings.Contains(t.Source(), openTag), begin: true,
		thinks: strings.Contains(t.Source(), closeThink),
	}
}

// countText counts the pieces that have a word.
func countText(pieces []tokenizer.Piece, word string) (n int) {
	for _, p := range pieces {
		if strings.Contains(p.Text, word) {
			n++
		}
	}
	return n
}

var toolName = regexp.MustCompile(`^[a-zA-Z0-9_.\-]{1,64}$`)

// noArguments is the schema of a function without parameters.
var noArguments = json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`)

// readTools reads tools and tool_choice.
func readTools(f *fields) *toolset {
	t := &toolset{raw: f.raw("tools"), parallel: f.flag("parallel_tool_calls", true)}
	f.refuse("use tools", "functions", "function_call")
	items, _ := f.list("tools")
	for i, item := range items {
		o := f.within(fmt.Sprintf("tools.%d", i), item)
		if kind := o.text("type"); kind != "function" {
			o.fail("type", "is %q; only function tools are supported", clip(kind))
			continue
		}
		fn := o.object("function")
		if fn == nil {
			o.fail("function", "is missing")
			continue
		}
		x := readFunction(fn, t)
		x.strict = fn.flag("strict", false)
		t.list = append(t.list, x)
	}
	t.readChoiceBy(f, func(o *fields) *fields { return o.object("function") }, func(o *fields) *fields { return o.object("allowed_tools") })
	return t
}

// readFunction reads a function that is not yet one of t's.
func readFunction(fn *fields, t *toolset) tool {
	x := tool{name: fn.text("name"), doc: fn.text("description"), schema: fn.raw("parameters")}
	switch {
	case !toolName.MatchString(x.name):
		fn.fail("name", "is %q; it is to be 1 to 64 letters, digits, or any of _ . -", clip(x.name))
	case t.find(x.name) != nil:
		fn.fail("name", "is %q, as another tool's", x.name)
	}
	if x.schema == nil {
		x.schema = noArguments
	} else if x.schema[0] != '{' {
		fn.fail("parameters", "is to be a JSON Schema object")
	}
	return x
}

// readChoiceBy reads tool_choice; function finds what holds a tool's name, and
// allowed what holds the tools allowed, in the objects where they are named.
func (t *toolset) readChoiceBy(f *fields, function, allowed func(*fields) *fields) {
	raw := f.raw("tool_choice")
	if len(t.list) > 0 {
		t.choice = toolsAuto
	}
	if raw == nil {
		return
	}
	if word, ok := jsonString(raw); ok {
		switch word {
		case "none":
			t.choice = toolsNone
		case "auto":
		case "required":
			t.choice = toolsRequired
		default:
			f.fail("tool_choice", "is %q; it is to be none, auto, required or a function", clip(word))
		}
	} else if o := f.object("tool_choice"); o != nil {
		switch kind := o.text("type"); kind {
		case "function":
			t.name(function(o), o)
		case "allowed_tools":
			t.allow(allowed(o), o, function)
		default:
			o.fail("type", "is %q; it is to be function or allowed_tools", clip(kind))
		}
	}
	if len(t.list) == 0 && t.choice != toolsNone {
		f.fail("tool_choice", "asks for tools and there are none")
	}
}

// name reads the choice of one function, whose name is in fn, a member of o.
func (t *toolset) name(fn, o *fields) {
	if fn == nil {
		o.fail("function", "is missing")
	} else if t.named = t.find(fn.text("name")); t.named == nil {
		fn.fail("name", "is %q, which is none of the tools", clip(fn.text("name")))
	}
	t.choice = toolsNamed
}

// allow reads a choice among some of the tools, which is in a, a member of o; of
// finds the name of one. The model is shown all tools, so that the prompt does
// not change from one request to the next.
func (t *toolset) allow(a, o *fields, of func(*fields) *fields) {
	if a == nil {
		o.fail("allowed_tools", "is missing")
		return
	}
	switch mode := a.text("mode"); mode {
	case "auto":
		t.choice = toolsAuto
	case "required":
		t.choice = toolsRequired
	default:
		a.fail("mode", "is %q; it is to be auto or required", clip(mode))
	}
	items, _ := a.list("tools")
	if len(items) == 0 {
		a.fail("tools", "is to be a list of at least one tool")
	}
	t.shown = t.list
	t.list = nil
	for i, item := range items {
		x := a.within(fmt.Sprintf("tools.%d", i), item)
		if fn := of(x); fn == nil {
			x.fail("function", "is missing")
		} else if at := slices.IndexFunc(t.shown, func(k tool) bool { return k.name == fn.text("name") }); at < 0 {
			fn.fail("name", "is %q, which is none of the tools", clip(fn.text("name")))
		} else if t.find(fn.text("name")) == nil {
			t.list = append(t.list, t.shown[at])
		}
	}
}

// plan says what a chat with these tools asks of the model: the messages, what
// the template is told, what the answer begins with, and what limits it.
func (t *toolset) plan(messages []chat.Message, style toolStyle) (msgs []chat.Message, o chatOptions, c backend.Constraint) {
	if t.choice == toolsNone {
		return messages, o, c
	}
	if style.listed {
		o.tools = t.raw
	} else {
		messages = t.describe(messages)
	}
	switch {
	case t.choice == toolsNamed:
		if style.tagged && style.begin {
			name, _ := encode(t.named.name)
			o.prefill, o.special = openTag+"\n{\"name\": "+string(name)+", \"arguments\": ", true
		}
		c.JSONSchema = t.named.schema
	case t.choice == toolsRequired && !t.parallel:
		if style.tagged && style.begin {
			o.prefill, o.special = openTag+"\n", true
		}
		c.JSONSchema = t.callSchema(false)
	case t.choice == toolsRequired:
		c.JSONSchema = t.callSchema(true)
	}
	return messages, o, c
}

// describe tells the model of the tools where its template does not.
func (t *toolset) describe(messages []chat.Message) []chat.Message {
	var b strings.Builder
	b.WriteString("You can call functions. Each line is one, as JSON:\n<tools>\n")
	shown := t.list
	if t.shown != nil {
		shown = t.shown
	}
	for _, x := range shown {
		line, err := encode(struct {
			Name        string          `json:"name"`
			Description string          `json:"description,omitempty"`
			Parameters  json.RawMessage `json:"parameters"`
		}{x.name, x.doc, x.schema})
		if err == nil {
			b.Write(line)
			b.WriteByte('\n')
		}
	}
	b.WriteString("</tools>\nTo call one, write: " + openTag + "\n{\"name\": NAME, \"arguments\": {...}}\n" + closeTag)
	if len(messages) > 0 && messages[0].Role == "system" {
		first := messages[0]
		if first.Content != "" {
			first.Content += "\n\n"
		}
		first.Content += b.String()
		return append([]chat.Message{first}, messages[1:]...)
	}
	return append([]chat.Message{{Role: "system", Content: b.String()}}, messages...)
}

// reference finds references to places in the same schema.
var reference = regexp.MustCompile(`("\$(?:ref|dynamicRef)"\s*:\s*"#)(/[^"]*)?"`)

// callSchema is the schema of a call, or of a list of calls. The arguments'
// schemas move into definitions, and their references with them.
func (t *toolset) callSchema(list bool) []byte {
	var defs, calls bytes.Buffer
	for i, x := range t.list {
		key := "tool" + strconv.Itoa(i)
		if i > 0 {
			defs.WriteByte(',')
			calls.WriteByte(',')
		}
		schema := reference.ReplaceAll(x.schema, []byte(`${1}/$$defs/`+key+`${2}"`))
		fmt.Fprintf(&defs, `%q:%s`, key, schema)
		name, _ := encode(x.name)
		fmt.Fprintf(&calls, `{"type":"object","properties":{"name":{"const":%s},"arguments":{"$ref":"#/$defs/%s"}},"required":["name","arguments"],"additionalProperties":false}`, name, key)
	}
	one := calls.String()
	if len(t.list) > 1 {
		one = `"anyOf":[` + one + `]`
	} else {
		one = one[1 : len(one)-1]
	}
	if list {
		one = `"type":"array","minItems":1,"maxItems":8,"items":{` + one + `}`
	}
	return []byte(`{` + one + `,"$defs":{` + defs.String() + `}}`)
}

// callText is a call as a model writes it.
func callText(name string, arguments json.RawMessage) string {
	args := bytes.TrimSpace(arguments)
	if s, ok := jsonString(args); ok {
		args = []byte(strings.TrimSpace(s))
	}
	if len(args) == 0 {
		args = []byte("{}")
	}
	quoted, _ := encode(name)
	return openTag + "\n{\"name\": " + string(quoted) + ", \"arguments\": " + string(args) + "}\n" + closeTag
}

// limitByTools limits the output to c, which plan made of the tools, or, where they
// are free to be called or not, leads the calls of strict ones once they are begun.
func (s *Server) limitByTools(f *fields, j *job, tools *toolset, style toolStyle, c backend.Constraint) {
	switch {
	case !c.IsZero():
		if j.constraintAt != "" {
			f.fail(j.constraintAt, "and tool_choice both limit the output; use one of them")
		}
		s.constrain(j, c, "tools")
		j.base.CloseAtLimit = false // a call that nobody made is worse than half of one
	case !free(j.base.Constraint):
		tools.choice = toolsNone // an answer in a given form is no call
	case j.constraintAt == "" && s.info.Capabilities.Tags:
		if c := tools.strictCalls(style); !c.IsZero() {
			s.constrain(j, c, "tools")
		}
	}
}
