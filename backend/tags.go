package backend

import "encoding/json"

// Tags allow free text in which certain texts open a part with a form of its
// own, such as a tool call: structural tags.
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
