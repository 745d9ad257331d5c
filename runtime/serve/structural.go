package serve

import (
	"encoding/json"
	"fmt"

	"github.com/coppice-run/coppice/backend"
)

// readStructuralTag reads a structural tag: an object, or a string that holds one.
func readStructuralTag(f *fields, name string) (c backend.Constraint) {
	raw := f.raw(name)
	if s, ok := jsonString(raw); ok {
		raw = json.RawMessage(s)
	}
	o := f.within(name, raw)
	if f.err() != nil {
		return c
	}
	if kind := o.text("type"); kind != "" && kind != "structural_tag" {
		o.fail("type", "is %q; it is to be structural_tag", clip(kind))
	}
	return structuralTag(o)
}

// structuralTag reads the members of a structural tag in its two forms: with
// structures and triggers, as SGLang and vLLM had it first, and with a format.
func structuralTag(o *fields) (c backend.Constraint) {
	if o.has("format") {
		return tagFormat(o.object("format"))
	}
	t := &backend.Tags{Triggers: o.texts("triggers", maxTags)}
	items, _ := o.list("structures")
	if len(items) == 0 || len(items) > maxTags {
		o.fail("structures", "is to be a list of 1 to %d structures, or use format", maxTags)
		return c
	}
	if len(t.Triggers) == 0 {
		o.fail("triggers", "is missing")
	}
	for i, item := range items {
		x := o.within(fmt.Sprintf("structures.%d", i), item)
		tag := backend.Tag{Begin: x.text("begin"), End: x.text("end")}
		if x.has("schema") {
			tag.Schema = readSchema(x, "schema")
		}
		if tag.Begin == "" {
			x.fail("begin", "is missing")
		}
		t.Tags = append(t.Tags, tag)
	}
	c.Tags = t
	return c
}

// maxTags bounds the tags and triggers of a request.
const maxTags = 256

// tagFormat reads a format: of the forms that there are those that our grammars
// have; others are refused.
func tagFormat(o *fields) (c backend.Constraint) {
	switch kind := o.text("type"); kind {
	case "json_schema":
		if !o.has("json_schema") {
			o.fail("json_schema", "is missing")
		}
		c.JSONSchema = readSchema(o, "json_schema")
	case "regex":
		if c.Regex = o.text("pattern"); c.Regex == "" {
			o.fail("pattern", "is missing")
		}
	case "grammar":
		if c.EBNF = o.text("grammar"); c.EBNF == "" {
			o.fail("grammar", "is missing")
		}
	case "any_text":
		o.refuse("free text ends where the model ends it", "excludes")
	case "triggered_tags":
		t := &backend.Tags{
			Triggers: o.texts("triggers", maxTags), AtLeastOne: o.flag("at_least_one", false), StopAfterFirst: o.flag("stop_after_first", false),
		}
		items, _ := o.list("tags")
		if len(items) == 0 || len(items) > maxTags {
			o.fail("tags", "is to be a list of 1 to %d tags", maxTags)
		}
		o.refuse("the free text is that outside of tags", "excludes")
		for i, item := range items {
			t.Tags = append(t.Tags, tagOf(o.within(fmt.Sprintf("tags.%d", i), item)))
		}
		c.Tags = t
	default:
		o.fail("type", "is %q; supported are triggered_tags, json_schema, regex, grammar and any_text", clip(kind))
	}
	return c
}

// tagOf reads a tag of a format.
func tagOf(x *fields) backend.Tag {
	tag := backend.Tag{Begin: x.text("begin"), End: x.text("end")}
	if kind := x.text("type"); kind != "" && kind != "tag" {
		x.fail("type", "is %q; it is to be tag", clip(kind))
	}
	if tag.Begin == "" {
		x.fail("begin", "is missing")
	}
	in := x.object("content")
	if in == nil {
		x.fail("content", "is missing")
		return tag
	}
	switch kind := in.text("type"); kind {
	case "json_schema":
		if !in.has("json_schema") {
			in.fail("json_schema", "is missing")
		}
		tag.Schema = readSchema(in, "json_schema")
	case "any_text":
		in.refuse("free text ends with the tag", "excludes")
	default:
		in.fail("type", "is %q; supported are json_schema and any_text", clip(kind))
	}
	return tag
}

// canTag checks that the backend leads free text with tags.
func (s *Server) canTag(f *fields, c backend.Constraint, at string) {
	if c.Tags != nil && !s.info.Capabilities.Tags {
		f.fail(at, "is not supported: this model cannot be led through free text with tags")
	}
}

// free reports whether a constraint leaves the model its own text.
func free(c backend.Constraint) bool { return c.IsZero() || c.Tags != nil }

// strictCalls is the constraint of a free answer whose calls are to fit: once the
// model has begun a call, the call is one of a known function, with arguments that
// its schema allows. Without a strict tool there is none: a call that does not fit
// stays text.
func (t *toolset) strictCalls(style toolStyle) (c backend.Constraint) {
	if t.choice != toolsAuto || !style.tagged {
		return c
	}
	strict := false
	tags := &backend.Tags{Triggers: []string{openTag}, StopAfterFirst: !t.parallel}
	for _, x := range t.list {
		name, _ := encode(x.name)
		tag := backend.Tag{Begin: openTag + "\n{\"name\": " + string(name) + ", \"arguments\": ", End: "}\n" + closeTag, Schema: anyObject}
		if x.strict {
			strict = true
			tag.Schema = x.schema
		}
		tags.Tags = append(tags.Tags, tag)
	}
	if strict {
		c.Tags = tags
	}
	return c
}
