package lang_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/lang"
)

type weatherArgs struct {
	City string `json:"city" jsonschema:"description=name of a town"`
	Days int    `json:"days,omitempty" jsonschema:"minimum=1,maximum=7"`
}

func weather(ctx context.Context, a weatherArgs) (map[string]any, error) {
	if a.City == "" {
		return nil, errors.New("no such town")
	}
	return map[string]any{"town": a.City, "sky": "<grey>"}, nil
}

func TestToolsSchemaComesFromTheArgumentType(t *testing.T) {
	tool := lang.NewTool("weather", "What the sky is like.", weather)
	want := `{"type":"object","properties":{"city":{"type":"string","description":"name of a town"},"days":{"type":"integer","maximum":7,"minimum":1}},"additionalProperties":false,"required":["city"]}`
	var a, b any
	if json.Unmarshal(tool.Schema, &a) != nil || json.Unmarshal([]byte(want), &b) != nil {
		t.Fatal(string(tool.Schema))
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	if string(x) != string(y) {
		t.Errorf("%s\nwant %s", x, y)
	}
	for _, f := range []lang.ToolFormat{lang.Hermes, lang.Llama3, lang.Gemma} {
		box := lang.Tools(f, tool)
		if err := box.Check(); err != nil {
			t.Error(err)
		}
		text := box.Text()
		for _, s := range []string{`"name": "weather"`, "What the sky is like.", "name of a town"} {
			if !strings.Contains(text, s) {
				t.Errorf("%s does not say %s", text, s)
			}
		}
		// What the form allows is read as the call that it is.
		tag := box.Tags().Tags[0]
		calls := box.Calls("Let me see.\n" + tag.Begin + `{"city":"Ulm"}` + tag.End)
		if len(calls) != 1 || calls[0].Error != "" || calls[0].Name != "weather" {
			t.Errorf("%s: %+v", f, calls)
		}
		got, err := box.Run(t.Context(), calls[0])
		if err != nil || got != `{"sky":"<grey>","town":"Ulm"}` {
			t.Error(got, err)
		}
	}
}

func TestToolsThatCannotBe(t *testing.T) {
	good := lang.NewTool("good", "", weather)
	for want, box := range map[string]*lang.Toolbox{
		"no tools":             lang.Tools(lang.Hermes),
		"no tool format":       lang.Tools("telex", good),
		"a name is":            lang.Tools("", lang.NewTool("not good", "", weather)),
		"two tools":            lang.Tools("", good, good),
		"no function":          lang.Tools("", lang.Tool{Name: "x", Schema: good.Schema}),
		"no schema":            lang.Tools("", lang.NewTool("x", "", func(ctx context.Context, c struct{ C chan int }) (int, error) { return 0, nil })),
		"to be an object":      lang.Tools("", lang.NewTool("x", "", func(ctx context.Context, n int) (int, error) { return n, nil })),
		"schema /properties/a": lang.Tools("", lang.Tool{Name: "x", Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"strin"}}}`), Call: good.Call}),
	} {
		if err := box.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
		_, err := lang.Define("p", func(p *lang.Program) lang.Var[string] { return lang.Agent(p, "a", box) }).Compile()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "tool_test.go:") {
			t.Errorf("compile: want %q, got %v", want, err)
		}
	}
}

func TestCallsThatAreWrongAreToldToTheModel(t *testing.T) {
	box := lang.Tools(lang.Hermes, lang.NewTool("weather", "", weather))
	for answer, want := range map[string]string{
		`<tool_call>{"name": "wether", "arguments": {}}</tool_call>`:                `no tool "wether", there is weather`,
		`<tool_call>{"name": "weather", "arg`:                                       "not complete JSON",
		`<tool_call>{"arguments": {}}</tool_call>`:                                  "no name",
		`<tool_call>{"name": "weather", "arguments": {"city": 3}}</tool_call>`:      "cannot unmarshal",
		`<tool_call>{"name": "weather"}</tool_call>`:                                "no such town",
		`<tool_call>{"name": "weather", "parameters": {"city": "Ulm"}}</tool_call>`: `"Ulm"`,
		`<tool_call>` + strings.Repeat(`{"name":`, 20_000):                          "JSON",
		"<tool_call>\x00</tool_call>":                                               "JSON",
		`<tool_call>[]</tool_call>`:                                                 "JSON",
	} {
		calls := box.Calls(answer)
		if len(calls) != 1 {
			t.Errorf("%.60s: %d calls", answer, len(calls))
			continue
		}
		got, err := box.Run(t.Context(), calls[0])
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("%.60s: %q, %v", answer, got, err)
		}
	}
	if calls := box.Calls(" {\"name\": \"weather\",\n \"arguments\": {\"city\": \"Ulm\"}}\n"); len(calls) != 1 || calls[0].Name != "weather" {
		t.Error(calls)
	}
	if calls := box.Calls("no call at all {}"); calls == nil || len(calls) != 0 {
		t.Error(calls)
	}
}

func TestStructuralTagsInFiles(t *testing.T) {
	src := `
coppice: 1
name: p
steps:
  - user: hi
  - gen:
      name: x
      tags: {tags: [{begin: "<a>", end: "</a>", schema: {type: integer}}], at_least_one: true}
  - return: x
`
	g, err := lang.Decode([]byte(src), "p.yaml")
	if err != nil {
		t.Fatal(err)
	}
	n := g.Node("x").Gen.Tags
	if n == nil || len(n.Tags) != 1 || string(n.Tags[0].Schema) != `{"type":"integer"}` || !n.AtLeastOne {
		t.Fatalf("%+v", n)
	}
	js, err := g.JSON()
	if err != nil {
		t.Fatal(err)
	}
	again, err := lang.Decode(js, "p.json")
	if err != nil || again.Hash() != g.Hash() {
		t.Error(err)
	}
	for bad, want := range map[string]string{
		`tags: {tags: []}`:                                        "without a tag",
		`tags: {tags: [{begin: "", end: "x"}]}`:                   "no begin",
		`tags: {tags: [{begin: "x", end: ""}]}`:                   "neither a schema nor an end",
		`tags: {tag: []}`:                                         "unknown field",
		`tags: {tags: [{begin: a, end: b}], triggers: [""]}`:      "empty trigger",
		`{name: x, regex: a, tags: {tags: [{begin: a, end: b}]}}`: "tags beside",
		`tags: {tags: [{begin: a, end: b, schema: {type: 3}}]}`:   "schema",
	} {
		step := "  - gen: {name: x, " + bad + "}\n"
		if strings.HasPrefix(bad, "{") {
			step = "  - gen: " + bad + "\n"
		}
		_, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:\n  - user: hi\n"+step), "p.yaml")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q, got %v", bad, want, err)
		}
	}
}

// TestToolTimeout: a tool that hangs is an error that the model is told, whether or
// not it looks at its context; one that ends in time is as it would be without.
func TestToolTimeout(t *testing.T) {
	type none struct{}
	hang := make(chan struct{})
	defer close(hang)
	box := lang.Tools("",
		lang.NewTool("deaf", "", func(lang.Context, none) (string, error) { <-hang; return "", nil }).TimeLimit(time.Nanosecond),
		lang.NewTool("polite", "", func(ctx lang.Context, _ none) (string, error) { <-ctx.Done(); return "", ctx.Err() }).TimeLimit(time.Nanosecond),
		lang.NewTool("quick", "", func(lang.Context, none) (string, error) { return "ok", nil }).TimeLimit(time.Hour),
		lang.NewTool("wrong", "", func(lang.Context, none) (string, error) { return "", errors.New("no disk") }).TimeLimit(time.Hour),
		lang.NewTool("bad", "", func(lang.Context, none) (string, error) { panic("boom") }).TimeLimit(time.Hour),
	)
	for name, want := range map[string]string{
		"deaf": "Error: no answer within 1ns", "polite": "Error: no answer within 1ns", "quick": "ok", "wrong": "Error: no disk",
	} {
		got, err := box.Run(t.Context(), lang.ToolCall{Name: name})
		if err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", name, got, err, want)
		}
	}
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("panic %v", r)
			}
		}()
		box.Run(t.Context(), lang.ToolCall{Name: "bad"})
		t.Error("no panic")
	}()
	unsafe := lang.NewTool("pay", "", func(lang.Context, none) (string, error) { <-hang; return "", nil }).TimeLimit(time.Nanosecond)
	unsafe.Unsafe = true
	if got, _ := lang.Tools("", unsafe).Run(t.Context(), lang.ToolCall{Name: "pay"}); !strings.Contains(got, "may have happened") {
		t.Error(got)
	}
	if err := lang.Tools("", lang.NewTool("x", "", func(lang.Context, none) (string, error) { return "", nil }).TimeLimit(-1)).Check(); err == nil {
		t.Error("a negative timeout is taken")
	}
}
