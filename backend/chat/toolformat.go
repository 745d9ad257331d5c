package chat

import "strings"

// ToolFormat names the form in which models with this template write tool calls,
// as far as the template tells: "hermes" (Qwen and others: JSON between
// <tool_call> tags), "llama3" (JSON with parameters, as a whole answer), "gemma"
// (a fenced block), or "" if it tells nothing.
func (t *Template) ToolFormat() string {
	src := t.source
	switch {
	case strings.Contains(src, "<tool_call>"):
		return "hermes"
	case strings.Contains(src, "<|start_header_id|>"):
		return "llama3"
	case strings.Contains(src, "<start_of_turn>"):
		return "gemma"
	}
	return ""
}
