package engine_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

type podArgs struct {
	Pod string `json:"pod" jsonschema:"description=name of the pod"`
}

// TestRealModelCallsTools lets a small model of the Hermes form use a tool: the
// form is its template's, and what it writes is held to the tool's schema.
func TestRealModelCallsTools(t *testing.T) {
	dir := os.Getenv("COPPICE_MODELS")
	if dir == "" {
		t.Skip("COPPICE_MODELS is not set")
	}
	path := filepath.Join(dir, "qwen2.5-0.5b-q4.gguf")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("COPPICE_MODELS: %v", err)
	}
	e, err := engine.Open(path, engine.Config{Pages: 256}, model.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if f := runtime.ToolFormat(e); f != lang.Hermes {
		t.Fatalf("format %q", f)
	}
	asked := 0
	box := lang.Tools(runtime.ToolFormat(e), lang.NewTool("pod_status", "Returns the status of a Kubernetes pod.",
		func(ctx context.Context, a podArgs) (string, error) {
			if asked++; a.Pod == "" {
				t.Error("a call without its argument")
			}
			return "pod " + a.Pod + " was OOMKilled", nil
		}))
	script := lang.Script("agent", func(s *lang.S, pod string) (string, error) {
		s.System("You answer questions about pods. ", box.Text())
		s.User("Use the tool pod_status: what is the status of the pod ", pod, "?")
		return lang.Agent(s, "agent", box, lang.Steps(2), lang.MaxTokens(40)).Get()
	})
	forced, drawn := 0, 0
	out, err := runtime.RunScript(t.Context(), e, script, "web-1", runtime.WithSink(runtime.SinkFunc(func(ev runtime.Event) {
		switch {
		case ev.Kind != runtime.TextDelta:
		case ev.Forced:
			forced += len(ev.Tokens)
		default:
			drawn += len(ev.Tokens)
		}
	})))
	if err != nil {
		t.Fatal(err)
	}
	for _, turn := range out.Turns {
		t.Logf("%s: %s", turn.Role, turn.Text())
	}
	t.Logf("forced %d of %d", out.Usage.ForcedTokens, out.Usage.ForcedTokens+out.Usage.SampledTokens)
	// What a call cannot but say, its tool's name and key, is forced and is counted so.
	if forced == 0 || forced != out.Usage.ForcedTokens || drawn != out.Usage.SampledTokens {
		t.Errorf("%d tokens came as forced and %d as drawn, counted were %d and %d", forced, drawn, out.Usage.ForcedTokens, out.Usage.SampledTokens)
	}
	if asked == 0 || !strings.Contains(out.Turns[3].Text(), "OOMKilled") {
		t.Errorf("the model called the tool %d times", asked)
	}
}
