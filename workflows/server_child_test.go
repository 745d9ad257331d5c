//go:build durable

package workflows

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enums "go.temporal.io/api/enums/v1"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

const family = `
name: family
inputs: {n: int}
programs:
  leaf:
    inputs: {of: string}
    steps:
    - user: ${of}
    - gen: {name: x, max_tokens: 20}
    - call: {name: done, func: effect, args: [x], result: string}
    - return: done
  middle:
    inputs: {of: string}
    steps:
    - repeat:
        name: r
        max: 2
        index: i
        steps:
        - run: {name: got, program: leaf, with: {of: of + string(i)}}
        - user: ${got}
        - gen: {name: y, max_tokens: 20}
    - wait: {name: ok, ask: "May ${of}?"}
    - return: '{y: y, ok: ok}'
steps:
- fork:
    name: all
    over: 1..n
    steps:
    - run: {name: sub, program: middle, with: {of: '"branch " + string(item)'}}
    yield: sub
- user: 'All: ${all}'
- gen: {name: last, max_tokens: 20}
- return: '{all: all, last: last}'
`

// state returns the status of a workflow.
func (s *site) state(t *testing.T, id string) enums.WorkflowExecutionStatus {
	d, err := s.client.DescribeWorkflow(context.Background(), id, "")
	require.NoError(t, err)
	return d.Status
}

// TestServerChildren: programs that are steps, over new histories of the parent and
// of the children, with a worker that dies: the same as in process, each effect under
// one key, answers find their way.
func TestServerChildren(t *testing.T) {
	m := newModel(t, 0)
	s := newSite(t, m)
	ctx := context.Background()
	g := program(t, family)
	args := lang.Args{"n": 3}
	quiet := newModel(t, 0)
	want, err := runtime.RunGraph(ctx, &distant{url: quiet.url}, g, effects(t.TempDir()+"/effects", quiet.url), args,
		runtime.WithAnswers(func(context.Context, string, *runtime.Wait) (json.RawMessage, error) {
			return json.RawMessage("true"), nil
		}))
	require.NoError(t, err)
	run, err := Start(ctx, s.client, g, args, StartOptions{Name: "family", History: 25, SearchAttributes: true})
	require.NoError(t, err)
	require.NoError(t, run.Leave(ctx, Answer{Task: "all[0]/sub/ok", Value: json.RawMessage("true")})) // early
	var tree *Tree
	require.Eventually(t, func() bool {
		tree, err = run.Tree(ctx)
		waits := 0
		for i := 0; err == nil && i < len(tree.Tasks); i++ {
			if tree.Tasks[i].Ask != "" {
				waits++
			}
		}
		return waits == 2
	}, 4*time.Minute, 100*time.Millisecond, "%+v %v", &tree, &err)
	require.Contains(t, fmt.Sprint(tree.Tasks), "May branch 3?")
	s.worker.kill()
	s.worker.start()
	require.ErrorIs(t, run.Answer(ctx, Answer{Task: "all[2]/sub/ok", Value: json.RawMessage("3")}), ErrWrongAnswer)
	require.ErrorIs(t, run.Answer(ctx, Answer{Task: "all[2]/sub/no", Value: json.RawMessage("3")}), ErrNotWaiting)
	for i := 1; i < 3; i++ {
		answer := Answer{Task: fmt.Sprintf("all[%d]/sub/ok", i), Value: json.RawMessage("true")}
		require.Eventually(t, func() bool { return run.Answer(ctx, answer) == nil }, time.Minute, 100*time.Millisecond)
	}
	got, err := run.Report(ctx)
	require.NoError(t, err)
	require.JSONEq(t, string(want.Value), string(got.Value))
	require.Equal(t, want.Tasks, got.Tasks)
	data, err := os.ReadFile(s.effects())
	require.NoError(t, err)
	keys := map[string]string{}
	for line := range strings.Lines(string(data)) {
		k, what, _ := strings.Cut(line, "\t")
		require.True(t, keys[k] == "" || keys[k] == what, "one key for two effects: %s", k)
		keys[k] = what
	}
	require.Len(t, keys, 3*2)
	d, err := s.client.DescribeWorkflow(ctx, "family", "")
	require.NoError(t, err)
	first := d.RawResponse.WorkflowExecutionInfo.FirstRunId
	child := childID("family", first, "all[1]/sub")
	require.Equal(t, enums.WORKFLOW_EXECUTION_STATUS_COMPLETED, s.state(t, child))
	s.listed(t, fmt.Sprintf(`WorkflowId = "%s" and program = "middle" and status = "finished"`, child), child)
}

// TestServerChildrenEnd: whatever ends a run ends its programs, before and behind a
// new history.
func TestServerChildrenEnd(t *testing.T) {
	m := newModel(t, 0)
	s := newSite(t, m)
	ctx := context.Background()
	for i, how := range []string{"cancel", "terminate", "terminate a child"} {
		name := fmt.Sprint("ends", i)
		run, err := Start(ctx, s.client, program(t, family), lang.Args{"n": 2}, StartOptions{Name: name, History: 25})
		require.NoError(t, err)
		var waits []TreeTask
		children := map[string]string{}
		require.Eventually(t, func() bool {
			tree, err := run.Tree(ctx)
			waits = nil
			for i := 0; err == nil && i < len(tree.Tasks); i++ {
				if tree.Tasks[i].Ask != "" {
					waits = append(waits, tree.Tasks[i])
				}
				if tree.Tasks[i].Run != "" {
					children[tree.Tasks[i].Task] = tree.Tasks[i].Run
				}
			}
			return len(waits) == 2
		}, 2*time.Minute, 100*time.Millisecond)
		switch how {
		case "cancel":
			require.NoError(t, run.Cancel(ctx))
			_, err = run.Report(ctx)
			require.ErrorIs(t, err, context.Canceled)
		case "terminate":
			require.NoError(t, s.client.TerminateWorkflow(ctx, name, "", "test"))
		default:
			require.NoError(t, s.client.TerminateWorkflow(ctx, children["all[0]/sub"], "", "test"))
			_, err = run.Report(ctx)
			require.ErrorContains(t, err, "was terminated")
		}
		for task, id := range children {
			if strings.HasSuffix(task, "/sub") && how+task != "terminate a childall[0]/sub" {
				require.Eventually(t, func() bool { return s.state(t, id) == enums.WORKFLOW_EXECUTION_STATUS_CANCELED }, time.Minute, 50*time.Millisecond, "%s: %s", how, id)
			}
		}
	}
}
