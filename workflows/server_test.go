//go:build durable

package workflows

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enums "go.temporal.io/api/enums/v1"
	history "go.temporal.io/api/history/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/workflows/relay"
)

const disturbed = `
name: disturbed
inputs: {text: string}
steps:
- system: ${text}
- fork:
    name: arms
    each: [a, b, c, d]
    steps:
    - user: Begin with ${item}.
    - repeat:
        name: rounds
        max: 4
        index: i
        steps:
        - gen: {name: thought, max_tokens: 20}
        - call: {name: done, func: effect, args: ['item + string(i)'], result: string}
        - user: It ${done}.
    - sleep: {for: 100ms}
    - select: {name: end, options: ["yes", "no", "maybe"]}
    yield: thought + "/" + done + "/" + end
- user: 'All: ${join(arms, ", ")}'
- gen: {name: last, max_tokens: 20}
- return: '{last: last, arms: arms}'
`

// offspring does what disturbed does, each arm by a program of its own.
const offspring = `
name: offspring
inputs: {text: string}
programs:
  arm:
    inputs: {text: string, item: string}
    steps:
    - system: ${text}
    - user: Begin with ${item}.
    - repeat:
        name: rounds
        max: 4
        index: i
        steps:
        - gen: {name: thought, max_tokens: 20}
        - call: {name: done, func: effect, args: ['item + string(i)'], result: string}
        - user: It ${done}.
    - sleep: {for: 100ms}
    - select: {name: end, options: ["yes", "no", "maybe"]}
    - return: thought + "/" + done + "/" + end
steps:
- fork:
    name: arms
    each: [a, b, c, d]
    steps:
    - run: {name: sub, program: arm, with: {text: text, item: item}}
    yield: sub
- user: 'All: ${join(arms, ", ")}'
- gen: {name: last, max_tokens: 20}
- return: '{last: last, arms: arms}'
`

// TestServerKilled kills the worker, the server, the engine or some of them at once,
// at random moments, and compares the runs with ones that nothing disturbed. Every
// second one has programs as steps and goes on in new histories.
func TestServerKilled(t *testing.T) {
	m := newModel(t, 40*time.Millisecond)
	s := newSite(t, m)
	m.startEngine(t, s)
	s.server.supervise()
	s.worker.supervise()
	kills := number(t, envKills, 5)
	quiet := newModel(t, 0)
	graphs := []*lang.Graph{program(t, disturbed), program(t, offspring)}
	args := lang.Args{"text": strings.Repeat("a rule that matters. ", 500)}
	var wants []*runtime.Report
	for _, g := range graphs {
		want, err := runtime.RunGraph(context.Background(), &distant{url: quiet.url}, g, effects(filepath.Join(t.TempDir(), "effects"), quiet.url), args)
		require.NoError(t, err)
		wants = append(wants, want)
	}

	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	ctx := context.Background()
	seen := 0         // tasks that were finished at a kill
	var killed [3]int // worker, server, engine
	for done, runs := 0, 0; done < kills; runs++ {
		name := fmt.Sprintf("disturbed-%d", done)
		g, want := graphs[runs%2], wants[runs%2]
		var run *Run
		require.Eventually(t, func() bool {
			var err error
			run, err = Start(ctx, s.client, g, args, StartOptions{
				Name: name, Heartbeat: time.Second, Seed: 1, History: runs % 2 * 40,
				Retry: Retry{Attempts: 1000, Wait: 50 * time.Millisecond, Max: time.Second}, // an engine that was killed comes back
			})
			return err == nil
		}, time.Minute, 100*time.Millisecond)
		over := make(chan error, 1)
		var got *runtime.Report
		go func() {
			for {
				var err error
				if got, err = run.Report(ctx); err == nil || !strings.Contains(err.Error(), "navailable") {
					over <- err
					return
				}
			}
		}()
		known := map[string]int{} // finished tasks, and how often the model was asked then
	run:
		for {
			// When some request has come or is answered: a slow machine gets that far too.
			passed, more := m.passed(), 1+rng.IntN(12)
			for patience := time.Now().Add(time.Minute); m.passed() < passed+more && time.Now().Before(patience); {
				select {
				case err := <-over:
					require.NoError(t, err)
					break run
				case <-time.After(5 * time.Millisecond):
				}
			}
			if done == kills {
				require.NoError(t, <-over)
				break
			}
			done++
			which := 1 + rng.IntN(7)
			for i, p := range []*process{s.worker, s.server, m.engine} {
				if which&(1<<i) != 0 {
					p.kill()
					killed[i]++
				}
			}
			if which&2 != 0 {
				s.server.start()
			}
			if which&4 != 0 {
				m.engine.start()
			}
			require.Eventually(t, func() bool { _, err := s.client.CheckHealth(ctx, nil); return err == nil }, 5*time.Minute, 50*time.Millisecond)
			if which&1 != 0 {
				s.worker.start()
			}
			for _, id := range s.finished(t, name) {
				if _, ok := known[id]; !ok {
					known[id] = m.calls(id)
				}
			}
		}
		require.JSONEq(t, string(want.Value), string(got.Value))
		require.JSONEq(t, string(want.Variables), string(got.Variables))
		for id, n := range known {
			require.Equal(t, n, m.calls(id), "%s was finished and asked again", id)
		}
		seen += len(known)
		m.mu.Lock()
		clear(m.count)
		m.mu.Unlock()
	}

	// Every effect has one key, whoever made it and however often.
	data, err := os.ReadFile(s.effects())
	require.NoError(t, err)
	keys := map[string]string{}
	lines := 0
	for line := range strings.Lines(string(data)) {
		lines++
		k, what, ok := strings.Cut(strings.TrimSpace(line), "\t")
		require.True(t, ok)
		if old, seen := keys[k]; seen {
			require.Equal(t, old, what, "one key for two effects")
		}
		keys[k] = what
	}
	perRun := map[string]int{}
	for k := range keys {
		run, _, _ := strings.Cut(k, ":arms")
		perRun[run]++
	}
	for run, n := range perRun {
		require.Equal(t, 16, n, run)
	}
	require.Positive(t, seen, "no kill came when a task was finished")
	t.Logf("%d kills (worker %d, server %d, engine %d times) in %d runs: %d tasks were finished at a kill, none was computed again; %d effects, %d attempts at them came again with the key of the first",
		kills, killed[0], killed[1], killed[2], len(perRun), seen, len(keys), lines-len(keys))
}

// TestServerAnswersPeople: the handlers work over the wire.
func TestServerAnswersPeople(t *testing.T) {
	m := newModel(t, 0)
	s := newSite(t, m)
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, asking), nil, StartOptions{Name: "asking"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		tree, err := run.Tree(ctx)
		return err == nil && len(tree.Tasks) == 1 && tree.Tasks[0].Ask == "May I?"
	}, time.Minute, 20*time.Millisecond)
	require.ErrorIs(t, run.Answer(ctx, Answer{Task: "nobody", Value: json.RawMessage("true")}), ErrNotWaiting)
	require.ErrorIs(t, run.Answer(ctx, Answer{Task: "both/person/ok", Value: json.RawMessage(`"maybe"`)}), ErrWrongAnswer)
	require.NoError(t, run.Answer(ctx, Answer{Task: "both/person/ok", Value: json.RawMessage("true")}))
	report, err := run.Report(ctx)
	require.NoError(t, err)
	require.Contains(t, string(report.Value), "true")

	// The same again is the same run; another program of that name is refused.
	again, err := Start(ctx, s.client, program(t, asking), nil, StartOptions{Name: "asking"})
	require.NoError(t, err)
	same, err := again.Report(ctx)
	require.NoError(t, err)
	require.JSONEq(t, string(report.Value), string(same.Value))
	_, err = Start(ctx, s.client, program(t, disturbed), lang.Args{"text": "x"}, StartOptions{Name: "asking"})
	require.ErrorIs(t, err, ErrOtherProgram)
	_, err = Open(s.client, "nowhere").Report(ctx)
	require.ErrorIs(t, err, ErrUnknownRun)
}

// TestServerCarriesLargeValues: nothing large is in a history.
func TestServerCarriesLargeValues(t *testing.T) {
	m := newModel(t, 0)
	s := newSite(t, m)
	ctx := context.Background()
	big := strings.Repeat("0123456789", 500_000) // 5 MB
	run, err := Start(ctx, s.client, program(t, disturbed), lang.Args{"text": big}, StartOptions{Name: "big"})
	require.NoError(t, err)
	_, err = run.Report(ctx)
	require.NoError(t, err)
	d, err := s.client.DescribeWorkflow(ctx, "big", "")
	require.NoError(t, err)
	require.Less(t, d.RawResponse.WorkflowExecutionInfo.HistorySizeBytes, int64(200_000))
}

// record writes the history of a run.
func record(ctx context.Context, c *Client, name string, w io.Writer) (int, error) {
	it := c.GetWorkflowHistory(ctx, name, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	h := &history.History{}
	for it.HasNext() {
		e, err := it.Next()
		if err != nil {
			return 0, err
		}
		h.Events = append(h.Events, e)
	}
	data, err := protojson.Marshal(h)
	if err == nil {
		_, err = w.Write(data)
	}
	return len(h.Events), err
}

// requireToldAgain requires that a history tells what happened in a run, of each task
// once, to its end, also to a reader that was told nothing of it before.
func requireToldAgain(t *testing.T, s *site, run string, ends bool) {
	dir, err := OpenDir(s.store())
	require.NoError(t, err)
	r := relay.NewReceiver("")
	rec := &recorder{}
	f, err := r.Follow(run, nil, rec)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, Open(s.client, run).Retell(context.Background(), dir, nil, f))
	finished := map[string]int{}
	for i, e := range rec.events {
		require.EqualValues(t, i+1, e.Seq)
		if e.Kind == runtime.NodeFinished {
			finished[e.Task]++
		}
	}
	for task, n := range finished {
		require.Equal(t, 1, n, task)
	}
	if ends {
		require.Equal(t, runtime.RunFinished, rec.events[len(rec.events)-1].Kind)
		require.NotEmpty(t, finished)
	}
	if run == "disturbed" {
		require.Len(t, finished, 41) // four rounds of two in four arms, the sleep and the end of each, and the last
	}
}

// TestServerHistoriesReplay records the histories of the programs here and
// replays them; with COPPICE_RECORD they become the files of TestOldHistories.
func TestServerHistoriesReplay(t *testing.T) {
	m := newModel(t, 0)
	s := newSite(t, m)
	ctx := context.Background()
	for _, c := range []struct {
		name, program string
		args          lang.Args
		answer        *Answer
	}{
		{"disturbed", disturbed, lang.Args{"text": "short"}, nil},
		{"asking", asking, nil, &Answer{Task: "both/person/ok", Value: json.RawMessage("true")}},
		{"family", family, lang.Args{"n": 2}, &Answer{Task: "all[0]/sub/ok", Value: json.RawMessage("true")}},
	} {
		run, err := Start(ctx, s.client, program(t, c.program), c.args, StartOptions{Name: c.name, History: map[string]int{"family": 10}[c.name]})
		require.NoError(t, err)
		if c.answer != nil {
			require.NoError(t, run.Leave(ctx, *c.answer))
		}
		if c.name == "family" { // it goes on in a new history when one of its two programs is over
			require.Eventually(t, func() bool {
				d, err := s.client.DescribeWorkflow(ctx, c.name, "")
				return err == nil && d.WorkflowExecution.RunID != d.RawResponse.WorkflowExecutionInfo.FirstRunId
			}, 5*time.Minute, 50*time.Millisecond)
			require.NoError(t, run.Leave(ctx, Answer{Task: "all[1]/sub/ok", Value: json.RawMessage("true")}))
		}
		_, err = run.Report(ctx)
		require.NoError(t, err)
		ids := map[string]string{c.name: c.name}
		if c.name == "family" { // the last histories of the run and of a program that is a step of it
			d, err := s.client.DescribeWorkflow(ctx, c.name, "")
			require.NoError(t, err)
			require.NotEqual(t, d.WorkflowExecution.RunID, d.RawResponse.WorkflowExecutionInfo.FirstRunId)
			ids["child"] = childID(c.name, d.RawResponse.WorkflowExecutionInfo.FirstRunId, "all[1]/sub")
		}
		for file, id := range ids {
			var lines bytes.Buffer
			w := bufio.NewWriter(&lines)
			n, err := record(ctx, s.client, id, w)
			require.NoError(t, err)
			require.NoError(t, w.Flush())
			require.Positive(t, n)
			require.NoError(t, replay(lines.Bytes(), s.store()))
			requireToldAgain(t, s, id, id == c.name)
			if dir := os.Getenv("COPPICE_RECORD"); dir != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file+".json"), lines.Bytes(), 0o644))
			}
		}
	}
	if dir := os.Getenv("COPPICE_RECORD"); dir != "" {
		require.NoError(t, os.CopyFS(filepath.Join(dir, "store"), os.DirFS(s.store())))
	}
}
