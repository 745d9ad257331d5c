package mcp_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/lang/mcp"
	"github.com/coppice-run/coppice/runtime"
)

type rollArgs struct {
	Sides int `json:"sides" jsonschema:"how many sides the die has"`
}

// connect returns a session with a server in this process.
func connect(ctx context.Context) (*sdk.ClientSession, error) {
	server := sdk.NewServer(&sdk.Implementation{Name: "dice", Version: "1"}, nil)
	sdk.AddTool(server, &sdk.Tool{Name: "roll", Description: "Rolls a die.", Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true}},
		func(ctx context.Context, req *sdk.CallToolRequest, a rollArgs) (*sdk.CallToolResult, any, error) {
			if a.Sides < 1 {
				return nil, nil, errors.New("no such die")
			}
			return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf("%d of %d", a.Sides, a.Sides)}}}, nil, nil
		})
	sdk.AddTool(server, &sdk.Tool{Name: "pay", Description: "Pays."},
		func(ctx context.Context, req *sdk.CallToolRequest, a struct{}) (*sdk.CallToolResult, map[string]int, error) {
			return nil, map[string]int{"paid": 3}, nil
		})
	here, there := sdk.NewInMemoryTransports()
	if _, err := server.Connect(ctx, there, nil); err != nil {
		return nil, err
	}
	return sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, nil).Connect(ctx, here, nil)
}

func ExampleTools() {
	ctx := context.Background()
	session, err := connect(ctx) // or over a command or HTTP, as the SDK does it
	if err != nil {
		fmt.Println(err)
		return
	}
	defer session.Close()
	tools, err := mcp.Tools(ctx, session, "roll")
	if err != nil {
		fmt.Println(err)
		return
	}
	box := lang.Tools(lang.Hermes, tools...)
	play := lang.Script("play", func(s *lang.S, _ string) (string, error) {
		s.System("You play dice. ", box.Text())
		s.User("Roll a die of six sides.")
		return lang.Agent(s, "agent", box).Get()
	})
	model := puppet.New() // stands in for a language model
	model.OnRegexp(`6 of 6`).Reply("A six!")
	model.OnAny().Reply("<tool_call>\n{\"name\": \"roll\", \"arguments\": {\"sides\":6}}\n</tool_call>")
	out, err := runtime.RunScript(ctx, model, play, "")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(out.Value)
	// Output: A six!
}

func TestToolsOfAServer(t *testing.T) {
	session, err := connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tools, err := mcp.Tools(t.Context(), session)
	if err != nil || len(tools) != 2 {
		t.Fatal(tools, err)
	}
	box := lang.Tools("", tools...)
	if err := box.Check(); err != nil {
		t.Error(err)
	}
	for _, tool := range tools {
		if tool.Unsafe != (tool.Name == "pay") {
			t.Errorf("%s: unsafe %v", tool.Name, tool.Unsafe)
		}
	}
	for call, want := range map[string]string{
		`{"name":"roll","arguments":{"sides":6}}`:   "6 of 6",
		`{"name":"roll","arguments":{"sides":0}}`:   "Error: no such die",
		`{"name":"roll","arguments":{"sides":"x"}}`: "Error: ",
		`{"name":"pay","arguments":{}}`:             `{"paid":3}`,
	} {
		got, err := box.Run(t.Context(), box.Calls("<tool_call>" + call)[0])
		if err != nil || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, %v", call, got, err)
		}
	}
	if _, err := mcp.Tools(t.Context(), session, "roll", "fly"); err == nil || !strings.Contains(err.Error(), "no tool fly") {
		t.Error(err)
	}
	if _, err := mcp.Tools(t.Context(), nil); err == nil {
		t.Error("no session was taken")
	}
	session.Close()
	if _, err := mcp.Tools(t.Context(), session); err == nil {
		t.Error("a closed session was listed")
	}
	if got, err := box.Run(t.Context(), box.Calls(`<tool_call>{"name":"pay","arguments":{}}`)[0]); err != nil || !strings.HasPrefix(got, "Error: mcp: tool pay") {
		t.Error(got, err)
	}
}
