//go:build durable

package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

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

// TestServerChildrenWait: a run whose programs all wait is found as one that waits,
// and ends when they are answered, over new histories.
func TestServerChildrenWait(t *testing.T) {
	const n = 40
	s := newSite(t, newModel(t, 0))
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, crowd), lang.Args{"n": n}, StartOptions{Name: "crowd", History: 50, SearchAttributes: true})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		c, err := s.client.CountWorkflow(ctx, &workflowservice.CountWorkflowExecutionsRequest{Query: `program = "asker" and status = "waiting"`})
		return err == nil && c.Count == n
	}, 5*time.Minute, 200*time.Millisecond)
	s.listed(t, `program = "crowd" and status = "waiting"`, "crowd")
	for i := range n {
		require.NoError(t, run.Leave(ctx, Answer{Task: fmt.Sprintf("all[%d]/sub/ok", i), Value: json.RawMessage("true")}))
	}
	report, err := run.Report(ctx)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(n), string(report.Value))
}

// TestServerManyPrograms: a run has many programs open at a time, each of which waits
// for a person; what they are told comes while they begin, while they wait and while
// the run goes on in new histories, and all of it arrives. COPPICE_PROGRAMS=1000 for as
// many as a run may have open.
func TestServerManyPrograms(t *testing.T) {
	n := number(t, envPrograms, 150)
	s := newSite(t, newModel(t, 0))
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, crowd), lang.Args{"n": n}, StartOptions{Name: "many"})
	require.NoError(t, err)
	for i := range n {
		require.NoError(t, run.Leave(ctx, Answer{Task: fmt.Sprintf("all[%d]/sub/ok", i), Value: json.RawMessage("true")}))
	}
	report, err := run.Report(ctx)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(n), string(report.Value))
}

// TestServerStuckChild: who waits for a run is told that a program of it cannot be
// carried out, and what the others ask is still shown and answered.
func TestServerStuckChild(t *testing.T) {
	s := newSite(t, newModel(t, 0))
	ctx := context.Background()
	g := program(t, crowd)
	vars, err := g.Bind(lang.Args{"n": 2})
	require.NoError(t, err)
	in, err := newInput(g, vars, StartOptions{Name: "parent"})
	require.NoError(t, err)
	old := *in
	old.Graph, old.GraphHash, old.Coppice, old.Within, old.First = nil, "0000", "v0.0.1", "all[0]/sub", "x"
	in.Children = []Child{{"all[0]/sub", &old}}
	_, err = s.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "parent", TaskQueue: DefaultQueue}, WorkflowType, *in)
	require.NoError(t, err)
	const says = "it goes on once workers of coppice v0.0.1 are back"
	run := Open(s.client, "parent")
	told := make(chan error, 8)
	run.Trouble = func(err error) { told <- err }
	watch, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() { run.watchTrouble(watch, 20*time.Millisecond); close(over) }()
	for err = <-told; errors.Is(err, ErrNoWorker); { // it is not there yet
		err = <-told
	}
	stop()
	<-over
	require.ErrorIs(t, err, ErrStuck)
	require.ErrorContains(t, err, says)
	var tree *Tree
	require.Eventually(t, func() bool {
		tree, err = run.Tree(ctx)
		return err == nil && len(tree.Tasks) == 3
	}, time.Minute, 50*time.Millisecond)
	require.Equal(t, "May 2?", tree.Tasks[2].Ask)
	require.Len(t, tree.Trouble, 1)
	require.Equal(t, "all[0]/sub", tree.Trouble[0].Task)
	require.Contains(t, tree.Trouble[0].Message, says)
	require.NoError(t, run.Answer(ctx, Answer{Task: "all[1]/sub/ok", Value: json.RawMessage("true")}))
	require.ErrorIs(t, run.Answer(ctx, Answer{Task: "all[0]/sub/ok", Value: json.RawMessage("true")}), ErrStuck)
}
