package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/runtime"
)

// story is a run with all that can happen to a text: pieces, a snapshot in their
// place, an attempt that is repeated, a branch in a branch that is cancelled, a
// call, a select, a node whose text comes as a whole.
var story = []runtime.Event{
	{Kind: runtime.RunStarted, Run: "run-1", Program: "p"},
	{Kind: runtime.BranchStarted, Branch: "f[0]", Label: "a"},
	{Kind: runtime.BranchStarted, Branch: "f[0]/g[0]", Label: "b"},
	{Kind: runtime.NodeStarted, Task: "f[0]/x", Node: "f/x", Branch: "f[0]", Does: "gen"},
	{Kind: runtime.TextDelta, Task: "f[0]/x", Branch: "f[0]", Text: "né"},
	{Kind: runtime.Dropped, First: 6, Texts: map[string]string{"f[0]/x": "née e"}},
	{Kind: runtime.TextDelta, Task: "f[0]/x", Branch: "f[0]", Text: " en", Offset: 4, Forced: true},
	{Kind: runtime.NodeFinished, Task: "f[0]/x", Branch: "f[0]", Does: "gen", Text: "née en hiver"},
	{Kind: runtime.NodeStarted, Task: "f[0]/g[0]/y", Branch: "f[0]/g[0]", Does: "gen"},
	{Kind: runtime.TextDelta, Task: "f[0]/g[0]/y", Branch: "f[0]/g[0]", Text: "wro"},
	{Kind: runtime.NodeRetried, Task: "f[0]/g[0]/y", Branch: "f[0]/g[0]", Attempt: 1, Error: "lost"},
	{Kind: runtime.TextDelta, Task: "f[0]/g[0]/y", Branch: "f[0]/g[0]", Text: "right"},
	{Kind: runtime.NodeCancelled, Task: "f[0]/g[0]/y", Branch: "f[0]/g[0]"},
	{Kind: runtime.BranchFinished, Branch: "f[0]/g[0]", Status: runtime.Cancelled},
	{Kind: runtime.BranchFinished, Branch: "f[0]", Status: runtime.Finished},
	{Kind: runtime.NodeStarted, Task: "s", Does: "select"},
	{Kind: runtime.NodeFinished, Task: "s", Does: "select", Text: "yes", Scores: []runtime.OptionScore{{Option: "yes", P: 1}}},
	{Kind: runtime.NodeStarted, Task: "c", Node: "c", Does: "call"},
	{Kind: runtime.NodeFinished, Task: "c", Node: "c", Does: "call", Value: json.RawMessage(`{"n":1}`)},
	{Kind: runtime.NodeStarted, Task: "z", Does: "json"},
	{Kind: runtime.NodeFinished, Task: "z", Does: "json", Text: "{}"},
	{Kind: runtime.RunFinished, Value: json.RawMessage(`"v"`), Usage: &runtime.Usage{PromptTokens: 3, SampledTokens: 2}},
}

// asJSON is what a client gets.
func asJSON[T any](t *testing.T, take func(runtime.Event) []T, events []runtime.Event) (out []tree) {
	for i, e := range events {
		e.Seq = uint64(i + 1)
		for _, x := range take(e) {
			data, err := encode(x)
			require.NoError(t, err)
			var m tree
			require.NoError(t, json.Unmarshal(data, &m))
			out = append(out, m)
		}
	}
	return out
}

func TestAGUIOfAStory(t *testing.T) {
	got := asJSON(t, newAGUI("t", "r").take, story)
	assert.Equal(t, got, asJSON(t, newAGUI("t", "r").take, story), "the events alone decide")
	texts, open, steps := map[string]string{}, map[string]bool{}, map[string]bool{}
	kinds := map[string]int{}
	for _, m := range got {
		kind := m["type"].(string)
		kinds[kind]++
		id, _ := m["messageId"].(string)
		step, _ := m["stepName"].(string)
		switch kind {
		case "TEXT_MESSAGE_START":
			require.False(t, open[id])
			open[id] = true
		case "TEXT_MESSAGE_CONTENT":
			require.True(t, open[id])
			require.NotEmpty(t, m["delta"])
			texts[id] += m["delta"].(string)
		case "TEXT_MESSAGE_END":
			require.True(t, open[id])
			delete(open, id)
		case "STEP_STARTED":
			require.False(t, steps[step])
			steps[step] = true
		case "STEP_FINISHED":
			require.True(t, steps[step])
			delete(steps, step)
		}
	}
	assert.Empty(t, open)
	assert.Empty(t, steps)
	assert.Equal(t, map[string]string{"r:f[0]/x": "née en hiver", "r:f[0]/g[0]/y": "wro", "r:f[0]/g[0]/y#2": "right", "r:z": "{}"}, texts)
	for kind, n := range map[string]int{"SUBAGENT_STARTED": 2, "SUBAGENT_FINISHED": 1, "SUBAGENT_ERROR": 1, "ACTIVITY_SNAPSHOT": 1, "TOOL_CALL_RESULT": 1, "RUN_FINISHED": 1} {
		assert.Equal(t, n, kinds[kind], kind)
	}
	assert.Equal(t, "f[0]", got[2]["parentSubagentRunId"])
	assert.Equal(t, "v", got[len(got)-1]["result"])

	failed := append(append([]runtime.Event{}, story[:5]...), runtime.Event{Kind: runtime.RunFailed, Error: "no luck"})
	got = asJSON(t, newAGUI("t", "r").take, failed)
	assert.Equal(t, "RUN_ERROR", got[len(got)-1]["type"])
	assert.Equal(t, "STEP_FINISHED", got[len(got)-2]["type"])
}

func TestUIMessageOfAStory(t *testing.T) {
	got := asJSON(t, newUIMessage("r").take, story)
	texts, open := map[string]string{}, map[string]bool{}
	for _, m := range got {
		id, _ := m["id"].(string)
		switch m["type"] {
		case "text-start":
			require.False(t, open[id])
			open[id] = true
		case "text-delta":
			require.True(t, open[id])
			texts[id] += m["delta"].(string)
		case "text-end":
			require.True(t, open[id])
			delete(open, id)
		}
	}
	assert.Empty(t, open)
	assert.Equal(t, map[string]string{"r:f[0]/x": "née en hiver", "r:f[0]/g[0]/y": "wro", "r:f[0]/g[0]/y#2": "right", "r:z": "{}"}, texts)
	assert.Equal(t, "start", got[0]["type"])
	assert.Equal(t, "finish", got[len(got)-1]["type"])
}

// What the clients of these protocols may do wrong.
func TestUIMistakes(t *testing.T) {
	c := serveFor(t, looksModel(), nil)
	c.ok("/v1/programs", looks)
	for _, route := range []string{"agui", "chat"} {
		path := "/v1/programs/looks/" + route
		c.refused(path, tree{}, 400, "inputs")
		c.refused(path, tree{"messages": 7}, 400, "messages")
		c.refused("/v1/programs/none/"+route, tree{}, 404, "")
	}
	c.refused("/v1/programs/looks/agui", tree{"forwardedProps": tree{"inputs": tree{"topic": 7}}}, 400, "inputs")
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/v1/programs/looks/chat", nil)
	require.NoError(t, err)
	defer conn.Close()
	p := &peer{t, conn}
	for _, frame := range []tree{
		{"type": "dance", "requestId": "1"}, {"type": "send", "requestId": "1"}, {"type": "send", "requestId": "1", "messages": 7}, {"type": 7, "requestId": "1"},
	} {
		p.send(frame)
		if m := p.next(); m["type"] != "error" || m["requestId"] != "1" || m["errorText"] == "" {
			t.Errorf("%v: %v", frame, m)
		}
	}
	p.send(tree{"type": "abort", "requestId": "none"})
	p.send(tree{"type": "resume", "requestId": "2", "id": "none"})
	if m := p.next(); m["type"] != "no-active" {
		t.Error(m)
	}
	if err := conn.WriteMessage(websocket.TextMessage, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := conn.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseUnsupportedData) {
		t.Error(err)
	}
}

// chatPeer opens the websocket on which a program answers chats.
func (c *client) chatPeer(program string) *peer {
	c.t.Helper()
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(c.url, "http")+"/v1/programs/"+program+"/chat", nil)
	require.NoError(c.t, err)
	c.t.Cleanup(func() { conn.Close() })
	return &peer{c.t, conn}
}

// ends waits for the end of the nth run of all.
func (c *client) ends(n int) *run {
	c.t.Helper()
	t := c.srv.tenants.anyone
	t.mu.Lock()
	x := t.order[n]
	t.mu.Unlock()
	select {
	case <-x.done:
	case <-time.After(time.Minute):
		c.t.Fatalf("run %d goes on", n)
	}
	return x
}

// A run that a message started and that cannot be watched does not go on unwatched.
func TestChatsThatCannotBeWatched(t *testing.T) {
	for name, x := range map[string]struct{ watches, second int }{"too many": {1, 2}, "the same request": {8, 1}} {
		t.Run(name, func(t *testing.T) { testUnwatchable(t, x.watches, x.second) })
	}
}

func testUnwatchable(t *testing.T, watches, second int) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c := serveFor(t, m, func(c *Config) { c.Limits.Watches = watches })
	c.ok("/v1/programs", looks)
	p := c.chatPeer("looks")
	p.send(tree{"type": "send", "requestId": "1", "id": "c", "inputs": tree{"topic": "x"}})
	p.typed("start")
	p.send(tree{"type": "send", "requestId": fmt.Sprint(second), "id": "d", "inputs": tree{"topic": "x"}})
	if m := p.typed("error"); m["requestId"] != fmt.Sprint(second) {
		t.Error(m)
	}
	if r := c.ends(1); !errors.Is(r.err, errCancelled) || r.status() != runCancelled {
		t.Errorf("the second run is %s: %v", r.status(), r.err)
	}
	gate.Open()
	if r := c.ends(0); r.err != nil {
		t.Errorf("the first run failed: %v", r.err)
	}
}

// An abort ends the run of the request that it names, however many the chat has.
func TestAbortOfAChat(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c := serveFor(t, m, nil)
	c.ok("/v1/programs", looks)
	p := c.chatPeer("looks")
	for _, id := range []string{"1", "2"} {
		p.send(tree{"type": "send", "requestId": id, "id": "c", "inputs": tree{"topic": "x"}})
		p.until(func(m tree) bool { return m["type"] == "start" && m["requestId"] == id })
	}
	p.send(tree{"type": "abort", "requestId": "1"})
	if r := c.ends(0); !errors.Is(r.err, errCancelled) {
		t.Error(r.err)
	}
	gate.Open()
	if r := c.ends(1); r.err != nil {
		t.Error(r.err)
	}
}

// A watch that was ended sends nothing more, and the run can be watched again at
// once.
func TestWatchAgain(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c := serveFor(t, m, nil)
	c.ok("/v1/programs", looks)
	_, begun := c.post("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}})
	p := c.dial()
	for range 5 {
		p.send(tree{"type": "watch", "run": begun["id"]})
		p.send(tree{"type": "unwatch", "ref": "u", "run": begun["id"]})
		if m := p.next(); m["type"] != "ok" || m["ref"] != nil {
			t.Fatal(m)
		}
		seen := 0.0
		for m := p.next(); m["ref"] != "u"; m = p.next() {
			seen++
			if m["type"] != "event" || at(m, "event", "seq") != seen {
				t.Fatal(m)
			}
		}
	}
	gate.Open()
}

// The schema knows each field of an event, and holds for what the server says.
func TestEventSchema(t *testing.T) {
	data, err := os.ReadFile("../../docs/events.schema.json")
	require.NoError(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	require.NoError(t, err)
	props := doc.(map[string]any)["$defs"].(map[string]any)["event"].(map[string]any)["properties"].(map[string]any)
	e := reflect.TypeFor[runtime.Event]()
	for i := range e.NumField() {
		name, _, _ := strings.Cut(e.Field(i).Tag.Get("json"), ",")
		assert.Contains(t, props, name)
	}
	src, err := os.ReadFile("../event.go")
	require.NoError(t, err)
	kinds := regexp.MustCompile(`EventKind += "(\w+)"`).FindAllSubmatch(src, -1)
	require.Greater(t, len(kinds), 10)
	for _, k := range kinds {
		assert.Contains(t, props["kind"].(map[string]any)["enum"], string(k[1]))
	}
	comp := jsonschema.NewCompiler()
	require.NoError(t, comp.AddResource("events.schema.json", doc))
	schema, err := comp.Compile("events.schema.json")
	require.NoError(t, err)
	valid := func(m any) error {
		text, err := json.Marshal(m)
		require.NoError(t, err)
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		require.NoError(t, err)
		return schema.Validate(v)
	}
	c := serveFor(t, looksModel(), nil)
	c.ok("/v1/programs", looks)
	p := c.dial()
	p.send(tree{"type": "dance"})
	p.send(tree{"type": "start", "ref": "r", "program": "looks", "inputs": tree{"topic": "fog"}})
	p.until(func(m tree) bool {
		assert.NoError(t, valid(m), "%v", m)
		return m["type"] == "end"
	})
	for i, e := range story {
		e.Seq = uint64(i + 1)
		assert.NoError(t, valid(wsMessage{Type: "event", Run: "r", Event: &e}), "%v", e)
	}
	for _, bad := range []tree{
		{}, {"type": "event", "run": "r"}, {"type": "event", "run": "r", "event": tree{"kind": "delta"}},
		{"type": "event", "run": "r", "event": tree{"seq": 0, "kind": "delta"}}, {"type": "event", "run": "r", "event": tree{"seq": 1, "kind": "dance"}},
		{"type": "end", "run": "r", "seq": 3, "status": "dance"}, {"type": "dance"},
	} {
		assert.Error(t, valid(bad), "%v", bad)
	}
}
