package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-run/coppice/lang"
)

// maxTools bounds what one server may offer.
const maxTools = 1000

// Tools returns the tools of a session, those with one of the names only if names
// are given. Names that a tool call cannot have and schemas that a model cannot
// be held to are errors of the toolbox that the tools come into.
func Tools(ctx context.Context, session *sdk.ClientSession, names ...string) ([]lang.Tool, error) {
	if session == nil {
		return nil, errors.New("mcp: no session")
	}
	want := make(map[string]bool, len(names))
	for _, n := range names {
		want[n] = true
	}
	var out []lang.Tool
	for t, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, fmt.Errorf("mcp: listing tools: %w", err)
		}
		if len(names) > 0 && !want[t.Name] {
			continue
		}
		if len(out) == maxTools {
			return nil, fmt.Errorf("mcp: the server has more than %d tools: name those that you want", maxTools)
		}
		delete(want, t.Name)
		tool, err := toolOf(session, t)
		if err != nil {
			return nil, err
		}
		out = append(out, tool)
	}
	if len(names) > 0 && len(want) > 0 {
		var missing []string
		for _, n := range names {
			if want[n] {
				missing = append(missing, n)
			}
		}
		return nil, fmt.Errorf("mcp: the server has no tool %s", strings.Join(missing, ", "))
	}
	return out, nil
}

func toolOf(session *sdk.ClientSession, t *sdk.Tool) (lang.Tool, error) {
	schema, err := json.Marshal(t.InputSchema)
	if err != nil {
		return lang.Tool{}, fmt.Errorf("mcp: tool %s: its schema: %w", t.Name, err)
	}
	name := t.Name
	a := t.Annotations
	return lang.Tool{
		Name: name, Doc: t.Description, Schema: schema,
		Unsafe: a == nil || !a.ReadOnlyHint && !a.IdempotentHint,
		Call: func(ctx context.Context, args json.RawMessage) (any, error) {
			res, err := session.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: args})
			if err != nil {
				return nil, fmt.Errorf("mcp: tool %s: %w", name, err)
			}
			return answer(res)
		},
	}, nil
}

// answer is what a model is told of a result: its texts or, without any, its
// structured content.
func answer(res *sdk.CallToolResult) (any, error) {
	var texts []string
	for _, c := range res.Content {
		switch c := c.(type) {
		case *sdk.TextContent:
			texts = append(texts, c.Text)
		default:
			texts = append(texts, fmt.Sprintf("(content of type %T, which is no text, was left out)", c))
		}
	}
	text := strings.Join(texts, "\n")
	if res.IsError {
		if text == "" {
			text = "the tool failed and says nothing"
		}
		return nil, errors.New(text)
	}
	if text == "" && res.StructuredContent != nil {
		return res.StructuredContent, nil
	}
	return text, nil
}
