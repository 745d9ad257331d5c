package lang

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Tags allow a generation to be free text in which certain texts open a part with
// a form of its own, such as a tool call.
type Tags struct {
	// Triggers end the free text: once one of them is written, one of the tags
	// that begin with it must follow. Without triggers the Begin texts are the
	// triggers.
	Triggers []string `json:"triggers,omitempty"`
	Tags     []Tag    `json:"tags"`
	// AtLeastOne wants one tag or more.
	AtLeastOne bool `json:"at_least_one,omitempty"`
	// StopAfterFirst ends the text with the first tag.
	StopAfterFirst bool `json:"stop_after_first,omitempty"`
}

// Tag is one kind of tagged part: Begin, a JSON value of Schema, End. Without a
// schema the content is free text up to End.
type Tag struct {
	Begin  string          `json:"begin"`
	End    string          `json:"end"`
	Schema json.RawMessage `json:"schema,omitempty"`
}

// StructuralTags makes a generation free text with tagged parts in it. A backend
// that cannot enforce them is asked without, and the result says so.
func StructuralTags(t Tags) GenOption { return genOption(func(g *GenNode) { g.Tags = &t }) }

func (c *analysis) tags(n *Node, t *Tags) {
	if len(t.Tags) == 0 {
		c.fail(n, "tags without a tag", "give at least one, with begin and end")
	}
	for i := range t.Tags {
		tag := &t.Tags[i]
		where := fmt.Sprintf("tag %d", i)
		if tag.Begin == "" {
			c.fail(n, where+" has no begin", "say what opens it, e.g. \"<tool_call>\"")
		}
		if tag.Schema == nil && tag.End == "" {
			c.fail(n, where+" has neither a schema nor an end", "free text needs an end")
		}
		c.utf8(n, where, tag.Begin+tag.End)
		if tag.Schema == nil {
			continue
		}
		s, err := parseJSON(tag.Schema)
		if err != nil {
			c.fail(n, where+": schema: "+err.Error(), "a schema is a JSON document")
			continue
		}
		tag.Schema = s.appendJSON(nil)
		for _, p := range checkSchema(s) {
			c.fail(n, fmt.Sprintf("%s: schema %s: %s", where, p.at, p.msg), p.hint)
		}
	}
	for _, s := range t.Triggers {
		if s == "" {
			c.fail(n, "an empty trigger", "remove it")
		}
		c.utf8(n, "trigger", s)
	}
}

// tags writes them as a document.
func (e encoder) tags(t *Tags) *tree {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(t); err != nil {
		return strTree(err.Error()) // a checked graph has none
	}
	return e.raw(b.Bytes())
}

// tags reads them.
func (d *decoder) tags(f *fields) *Tags {
	t := f.get("tags")
	if t == nil {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(t.appendJSON(nil)))
	dec.DisallowUnknownFields()
	out := &Tags{}
	if err := dec.Decode(out); err != nil {
		d.errorf(t.line, "write {tags: [{begin: ..., schema: ..., end: ...}]}", "%s: tags: %v", f.what, err)
	}
	return out
}
