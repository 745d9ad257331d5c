package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
)

type lookArgs struct {
	Pod string `json:"pod"`
}

// cluster are the tools of the agents here; each notes its calls.
type cluster struct {
	mu    sync.Mutex
	calls map[string]int
	both  chan struct{} // closed when two calls run at once
	open  int
}

func (c *cluster) box(format lang.ToolFormat) *lang.Toolbox {
	note := func(ctx context.Context, what string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.calls == nil {
			c.calls = map[string]int{}
		}
		c.calls[what+" "+IdempotencyKey(ctx)]++
		if c.both != nil {
			if c.open++; c.open == 2 {
				close(c.both)
			}
		}
	}
	return lang.Tools(format,
		lang.NewTool("memory", "Memory of a pod.", func(ctx context.Context, a lookArgs) (string, error) {
			note(ctx, "memory")
			if c.both != nil {
				select { // the other call of the answer is under way
				case <-c.both:
				case <-ctx.Done():
					return "", ctx.Err()
				}
			}
			return a.Pod + " uses 2 GiB of 2 GiB", nil
		}),
		lang.NewTool("events", "Events of a pod.", func(ctx context.Context, a lookArgs) ([]string, error) {
			note(ctx, "events")
			if a.Pod == "ghost" {
				return nil, errors.New("no such pod")
			}
			return []string{"OOMKilled", "<restart>"}, nil
		}))
}

func oncall(box *lang.Toolbox) *lang.Def[string] {
	return lang.Define("oncall", func(p *lang.Program) lang.Var[string] {
		p.System("You are on call.\n", box.Text())
		p.User("Why is pod-7 down?")
		return lang.Agent(p, "agent", box, lang.Steps(4), lang.MaxTokens(1000))
	})
}

func oncallScript(box *lang.Toolbox) *lang.ScriptDef[string, string] {
	return lang.Script("oncall", func(s *lang.S, _ string) (string, error) {
		s.System("You are on call.\n", box.Text())
		s.User("Why is pod-7 down?")
		return lang.Agent(s, "agent", box, lang.Steps(4), lang.MaxTokens(1000)).Get()
	})
}

// caller calls both tools at once, then one for a pod that is not there, then
// answers.
func caller(box *lang.Toolbox) *puppet.Model {
	m := puppet.New()
	tags := box.Tags().Tags
	call := func(i int, pod string) string { return tags[i].Begin + `{"pod":"` + pod + `"}` + tags[i].End }
	m.OnRegexp(`no such pod`).Reply("Out of memory.")
	m.OnRegexp(`OOMKilled`).Reply("One more.\n" + call(1, "ghost"))
	m.OnAny().Reply("I look at it.\n" + call(0, "pod-7") + "\n" + call(1, "pod-7"))
	return m
}

func TestAgentCallsToolsUntilItKnows(t *testing.T) {
	c := &cluster{both: make(chan struct{})}
	box := c.box(lang.Hermes)
	m := caller(box)
	def := oncall(box)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // calls one by one would wait for ever
	defer cancel()
	out, err := Run(ctx, m, def, nil, WithRun("r"))
	if err != nil || out.Value != "Out of memory." {
		t.Fatal(out, err)
	}
	if len(c.calls) != 3 {
		t.Errorf("calls %v", c.calls)
	}
	var turns []string
	for _, turn := range out.Turns {
		turns = append(turns, string(turn.Role)+": "+turn.Text())
	}
	tail := strings.Join(turns[2:], "\n")
	want := `assistant: I look at it.
<tool_call>
{"name": "memory", "arguments": {"pod":"pod-7"}}
</tool_call>
<tool_call>
{"name": "events", "arguments": {"pod":"pod-7"}}
</tool_call>
tool: pod-7 uses 2 GiB of 2 GiB
tool: ["OOMKilled","<restart>"]
assistant: One more.
<tool_call>
{"name": "events", "arguments": {"pod":"ghost"}}
</tool_call>
tool: Error: no such pod
assistant: Out of memory.`
	if tail != want {
		t.Errorf("%s\nwant\n%s", tail, want)
	}
	if out.Usage.ForcedTokens == 0 {
		t.Error("the names and braces of calls were not forced")
	}
	// The same as a script, whose reply the journal can bring back from any point.
	c2 := &cluster{}
	box2 := c2.box(lang.Hermes)
	m2, mem := caller(box2), newMemFS()
	got, err := RunScript(t.Context(), m2, oncallScript(box2), "", WithRun("r"), WithJournal("j"), withFS(mem))
	if err != nil || got.Value != out.Value {
		t.Fatal(got, err)
	}
	if a, b := requests(t, m), requests(t, m2); a != b {
		t.Errorf("the graph asked\n%s\nthe script\n%s", a, b)
	}
	for key := range c.calls {
		if c2.calls[key] != 1 {
			t.Errorf("calls %v and %v", c.calls, c2.calls)
		}
	}
	lines := bytes.SplitAfter(mem.files["j"].data, []byte{'\n'})
	for n := 1; n < len(lines); n++ {
		fs := newMemFS()
		fs.files["j"] = &memData{data: bytes.Join(lines[:n], nil)}
		c3 := &cluster{}
		got, err := RunScript(t.Context(), caller(c3.box(lang.Hermes)), oncallScript(c3.box(lang.Hermes)), "", WithJournal("j"), withFS(fs))
		if err != nil || got.Value != out.Value {
			t.Errorf("after %d records: %v, %v", n, got, err)
		}
	}
	// And from a file, with the functions by name.
	g, err := def.Compile()
	if err != nil {
		t.Fatal(err)
	}
	text, err := g.YAML()
	if err != nil {
		t.Fatal(err)
	}
	file, err := lang.Decode(text, "oncall.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c4 := &cluster{}
	box4 := c4.box(lang.Hermes)
	funcs, err := box4.Funcs("agent")
	if err != nil {
		t.Fatal(err)
	}
	rep, err := RunGraph(t.Context(), caller(box4), file, funcs, nil)
	if err != nil || string(rep.Value) != `"Out of memory."` || len(c4.calls) != 3 {
		t.Error(rep, err, c4.calls)
	}
}

func TestAgentThatNeverEndsIsAskedForAnAnswer(t *testing.T) {
	for _, format := range []lang.ToolFormat{lang.Hermes, lang.Llama3, lang.Gemma} {
		c := &cluster{}
		box := c.box(format)
		m := puppet.New()
		tag := box.Tags().Tags[1]
		m.OnID("when/else/agent_answer").Reply("I give up.")
		m.OnAny().Reply(tag.Begin + `{"pod":"pod-7"}` + tag.End)
		out, err := Run(t.Context(), m, oncall(box), nil)
		if err != nil || out.Value != "I give up." || len(c.calls) != 4 {
			t.Error(format, out, err, c.calls)
		}
	}
}

func TestAgentOnABackendWithoutTags(t *testing.T) {
	c := &cluster{}
	box := c.box(lang.Hermes)
	m := puppet.New()
	m.SetInfo(func(i *backend.Info) { i.Capabilities.Tags = false; i.ToolFormat = "gemma" })
	if ToolFormat(m) != lang.Gemma || ToolFormat(puppet.New()) != lang.Hermes {
		t.Error("format")
	}
	m.OnRegexp("there is no tool").Reply("Sorry.")
	m.OnAny().Reply(`<tool_call>{"name":"nothing"}</tool_call>`)
	out, err := Run(t.Context(), m, oncall(box), nil)
	if err != nil || out.Value != "Sorry." || fmt.Sprint(out.Emulated) != "[tags: asked for in the prompt only, and read leniently]" {
		t.Error(out, err)
	}
	for _, call := range m.Log() {
		if call.Request.Constraint.Tags != nil {
			t.Error("it was asked for tags")
		}
	}
}

func TestAgentEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	box := lang.Tools("", lang.NewTool("wait", "", func(ctx context.Context, _ struct{}) (string, error) {
		cancel(errors.New("enough"))
		<-ctx.Done()
		return "", ctx.Err()
	}))
	m := puppet.New()
	tag := box.Tags().Tags[0]
	m.OnAny().Reply(tag.Begin + `{}` + tag.End)
	if _, err := Run(ctx, m, oncall(box), nil); err == nil || !strings.Contains(err.Error(), "enough") {
		t.Error(err)
	}
	if _, err := lang.Define("p", func(p *lang.Program) lang.Var[string] {
		return lang.Agent(p, "a", box, "what")
	}).Compile(); err == nil || !strings.Contains(err.Error(), "no option of an agent") {
		t.Error(err)
	}
}

// TestAToolThatPanics: the run fails and says which call did; what the tools beside it
// returned is not lost, and they are not called again when the run goes on.
func TestAToolThatPanics(t *testing.T) {
	fixed, calls := false, map[string]int{}
	var mu sync.Mutex
	tool := func(name string) lang.Tool {
		return lang.NewTool(name, "Looks.", func(_ context.Context, a lookArgs) (string, error) {
			mu.Lock()
			defer mu.Unlock()
			calls[name]++
			if name == "broken" && !fixed {
				panic("no map")
			}
			return name + " is fine", nil
		})
	}
	box := lang.Tools(lang.Hermes, tool("sound"), tool("broken"))
	m := puppet.New()
	tags := box.Tags().Tags
	m.OnRegexp(`broken is fine`).Reply("All well.")
	m.OnAny().Reply(tags[0].Begin + `{"pod":"a"}` + tags[0].End + tags[1].Begin + `{"pod":"a"}` + tags[1].End)
	journal := t.TempDir() + "/j"
	run := func() (*Output[string], error) {
		return Run(t.Context(), m, oncall(box), nil, WithJournal(journal), WithConcurrency(1)) // one call after the other
	}
	_, err := run()
	if !errors.Is(err, ErrPanic) || !strings.Contains(err.Error(), `"broken"`) || !strings.Contains(err.Error(), "no map") {
		t.Fatal(err)
	}
	fixed = true
	out, err := run()
	if err != nil || out.Value != "All well." || calls["sound"] != 1 || calls["broken"] != 2 {
		t.Errorf("%v %v, calls %v", out, err, calls)
	}
}
