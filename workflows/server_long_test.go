//go:build durable

package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
)

// TestServerRollsOver: a long loop goes on in new histories, with the same name, and
// no answer is lost that comes while it works. COPPICE_STEPS=20000 for a loop that has
// several times the events at which a server ends a run; then the server says when a
// new history is due.
func TestServerRollsOver(t *testing.T) {
	const usual = 200
	steps := number(t, envSteps, usual)
	history, answers := 100, 50
	if steps > usual {
		history, answers = 0, 500
	}
	s := newSite(t, newModel(t, 0))
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, `
name: long
inputs: {steps: int, asks: int}
steps:
- repeat:
    name: r
    max: `+fmt.Sprint(steps)+`
    index: i
    steps:
    - call: {name: x, func: large, args: [10], result: string}
- fork:
    name: all
    over: 1..asks
    steps:
    - wait: {name: ok, ask: "Which?", type: int}
    yield: ok
- return: '{x: x, sum: sum(all)}'
`), lang.Args{"steps": steps, "asks": answers}, StartOptions{Name: "long", History: history, SearchAttributes: true})
	require.NoError(t, err)
	// Answers come all the time, long before their tasks, and what is none.
	begun := make(chan struct{})
	flood := make(chan error, 1)
	waits, giveUp := context.WithCancel(ctx)
	defer giveUp()
	go func() {
		flood <- func() (err error) {
			defer func() {
				if err != nil { // else the run waits for ever
					giveUp()
				}
			}()
			close(begun)
			for i := range answers {
				for _, a := range []Answer{
					{Task: fmt.Sprintf("all[%d]/ok", i), Value: json.RawMessage(fmt.Sprint(i))},
					{Task: fmt.Sprint("nobody", i%3), Value: json.RawMessage("1")},
				} {
					err := run.Leave(ctx, a)
					for errors.Is(err, ErrNoServer) { // it is busy
						err = run.Leave(ctx, a)
					}
					if err != nil {
						return fmt.Errorf("answer %d: %w", i, err)
					}
				}
				// One for each share of the loop.
				for {
					tree, err := run.Tree(ctx)
					if errors.Is(err, ErrNoServer) {
						continue
					}
					if err != nil {
						return fmt.Errorf("the tree behind answer %d: %w", i, err)
					}
					if tree.Finished >= steps*i/answers {
						break
					}
				}
			}
			return nil
		}()
	}()
	<-begun
	report, err := run.Report(waits)
	require.NoError(t, <-flood)
	require.NoError(t, err)
	require.JSONEq(t, fmt.Sprintf(`{"x": "0123456789", "sum": %d}`, answers*(answers-1)/2), string(report.Value))
	require.Equal(t, steps+answers, report.Tasks)
	d, err := s.client.DescribeWorkflow(ctx, "long", "")
	require.NoError(t, err)
	require.NotEqual(t, d.WorkflowExecution.RunID, d.RawResponse.WorkflowExecutionInfo.FirstRunId)
	s.listed(t, `program = "long" and status = "finished"`, "long") // the last history knows too
	chain, err := run.histories(ctx)
	require.NoError(t, err)
	events := 0
	for _, h := range chain {
		require.Less(t, len(h.Events), mostEvents)
		events += len(h.Events)
	}
	t.Logf("%d steps, %d answers that came early: %d events in %d histories", steps, answers, events, len(chain))
}

// TestServerKilledBehindAnEffect kills workers between the effect of a call and its
// result, each time: a call that may be repeated is, with the same key, so that who
// counts by keys counts one; one that may not is not repeated, and a person is asked.
// COPPICE_KILLS=100 for a hundred of them.
func TestServerKilledBehindAnEffect(t *testing.T) {
	kills := number(t, envKills, 5)
	lanes := min(10, max(1, kills/2)) // runs at a time, each with a worker of its own
	rounds := max(1, kills/(2*lanes))
	s := newSite(t, newModel(t, 0))
	var again atomic.Int32
	t.Run("lanes", func(t *testing.T) {
		for lane := range lanes {
			t.Run(fmt.Sprint(lane), func(t *testing.T) {
				t.Parallel()
				killedBehindEffects(t, s, fmt.Sprint("lane", lane), rounds, &again)
			})
		}
	})
	t.Logf("%d kills between an effect and its result: %d effects by key and %d that must not be made twice; none counts twice, none was lost; %d attempts more, of a busy machine", 2*lanes*rounds, lanes*rounds, lanes*rounds, again.Load())
}

// killedBehindEffects kills the worker of a run twice in each round. again counts the
// attempts that were given up though nobody killed their worker.
func killedBehindEffects(t *testing.T, s *site, name string, rounds int, again *atomic.Int32) {
	came, pass := make(chan struct{}), make(chan struct{})
	gate := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case came <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		select {
		case <-pass:
			fmt.Fprint(w, "told")
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(gate.Close)
	file := filepath.Join(t.TempDir(), "effects")
	worker := s.workerWith(workerArgs{Address: s.address, Store: s.store(), Effects: file, Model: gate.URL, Queue: name})
	worker.start()
	t.Cleanup(func() { worker.kill() })
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, `
name: effects
steps:
- repeat:
    name: r
    max: `+fmt.Sprint(rounds)+`
    index: i
    steps:
    - call: {name: keyed, func: effect, args: ['"keyed " + string(i)'], result: string}
    - call: {name: once, func: effect, args: ['"once " + string(i)'], result: string, unsafe: true}
- return: keyed + ", " + once
`), nil, StartOptions{Name: name, Queue: name, Heartbeat: time.Second, Retry: Retry{Attempts: 1000, Wait: 10 * time.Millisecond, Max: 10 * time.Millisecond}})
	require.NoError(t, err)
	made := func() map[string][]string { // what was done, with the keys
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		out := map[string][]string{}
		for line := range strings.Lines(string(data)) {
			key, what, _ := strings.Cut(strings.TrimSpace(line), "\t")
			out[what] = append(out[what], key)
		}
		return out
	}
	arrived := func(what string) {
		t.Helper()
		for len(made()[what]) == 0 { // the attempt before, whose answer was too late, came once more
			again.Add(1)
			select {
			case pass <- struct{}{}:
				<-came
			case <-came: // it is gone already
			}
		}
	}
	for i := range rounds {
		<-came
		arrived(fmt.Sprint("keyed ", i))
		worker.kill()
		worker.start()
		<-came
		for passed := false; !passed; {
			select {
			case pass <- struct{}{}:
				passed = true
			case <-came: // the attempt was given up meanwhile
				again.Add(1)
			}
		}
		<-came
		arrived(fmt.Sprint("once ", i))
		worker.kill()
		worker.start()
		var tree *Tree
		require.Eventually(t, func() bool {
			tree, err = run.Tree(ctx)
			return err == nil && len(tree.Unknown) == 1
		}, 5*time.Minute, 50*time.Millisecond)
		require.NoError(t, run.Settle(ctx, Settlement{Task: tree.Unknown[0].Task, Result: json.RawMessage(fmt.Sprintf(`"it was done %d"`, i))}))
	}
	report, err := run.Report(ctx)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf(`"did keyed %d, it was done %d"`, rounds-1, rounds-1), string(report.Value))

	counter := map[string]string{} // of who honours keys
	for what, keys := range made() {
		for _, key := range keys {
			require.Equal(t, keys[0], key, what)
		}
		require.Empty(t, counter[keys[0]], "one key for two effects")
		counter[keys[0]] = what
	}
	require.Len(t, counter, 2*rounds)
	for i := range rounds {
		require.GreaterOrEqual(t, len(made()[fmt.Sprint("keyed ", i)]), 2, "the second attempt")
		require.Len(t, made()[fmt.Sprint("once ", i)], 1)
	}
}
