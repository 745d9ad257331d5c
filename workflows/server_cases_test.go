//go:build durable

package workflows

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// TestServerManyBranches: more branches than a server takes pending activities.
func TestServerManyBranches(t *testing.T) {
	m := newModel(t, 0)
	s := newSite(t, m)
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, manyBranches), lang.Args{"items": numbers(3000)}, StartOptions{Name: "many"})
	require.NoError(t, err)
	report, err := run.Report(ctx)
	require.NoError(t, err)
	require.Equal(t, "3000", string(report.Value))
	m.mu.Lock()
	defer m.mu.Unlock()
	require.Len(t, m.count, 3000)
}

// TestServerCarriesLargeTranscripts: a transcript that grows to 3 MB, 64 branches of
// 100 kB each and a result of 5 MB; none is in the history.
func TestServerCarriesLargeTranscripts(t *testing.T) {
	s := newSite(t, newModel(t, 0))
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, `
name: large
steps:
- repeat:
    name: r
    max: 30
    steps:
    - call: {name: piece, func: large, args: [100000], result: string}
    - user: ${piece}
    - gen: {name: x, max_tokens: 5}
- fork:
    name: arms
    over: 1..64
    steps:
    - call: {name: mine, func: large, args: [100000], result: string}
    - user: ${mine}
    - gen: {name: y, max_tokens: 5}
    yield: mine
- call: {name: big, func: large, args: [5000000], result: string}
- user: ${big}
- gen: {name: last, max_tokens: 5}
- return: '{arms: len(join(arms, "")), big: len(big)}'
`), nil, StartOptions{Name: "large"})
	require.NoError(t, err)
	report, err := run.Report(ctx)
	require.NoError(t, err)
	require.JSONEq(t, `{"arms": 6400000, "big": 5000000}`, string(report.Value))
	d, err := s.client.DescribeWorkflow(ctx, "large", "")
	require.NoError(t, err)
	require.Less(t, d.RawResponse.WorkflowExecutionInfo.HistorySizeBytes, int64(1_000_000))

	// What a run gave before it failed may be as large.
	run, err = Start(ctx, s.client, program(t, `
name: fails
steps:
- call: {name: big, func: large, args: [3000000], result: string}
- call: {name: done, func: refuses, args: [big], result: string}
- return: done
`), nil, StartOptions{Name: "fails"})
	require.NoError(t, err)
	report, err = run.Report(ctx)
	require.ErrorContains(t, err, "refused 0123")
	require.Greater(t, len(report.Variables), 3_000_000)
	d, err = s.client.DescribeWorkflow(ctx, "fails", "")
	require.NoError(t, err)
	require.Less(t, d.RawResponse.WorkflowExecutionInfo.HistorySizeBytes, int64(100_000))
}

// TestServerSilentModel: a model that says nothing for longer than a worker may be
// silent is asked once.
func TestServerSilentModel(t *testing.T) {
	m := newModel(t, 15*time.Second)
	s := newSite(t, m)
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, "name: silent\nsteps:\n- user: hi\n- gen: {name: x, max_tokens: 5}\n- return: x\n"), nil, StartOptions{Name: "silent", Heartbeat: 5 * time.Second})
	require.NoError(t, err)
	_, err = run.Report(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, m.calls("x"))
}

// TestServerUnsafeCall: the worker is killed between the effect of a call that must
// not be made twice and its result. It is not made again; a person says what became
// of it.
func TestServerUnsafeCall(t *testing.T) {
	s := newSite(t, newModel(t, time.Hour))
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, `
name: risky
steps:
- call: {name: sent, func: effect, args: ['"x"'], result: string, unsafe: true}
- return: sent
`), nil, StartOptions{Name: "risky", Heartbeat: time.Second, SearchAttributes: true})
	require.NoError(t, err)
	effects := func() int {
		data, err := os.ReadFile(s.effects())
		if err != nil {
			return 0
		}
		return strings.Count(string(data), "\n")
	}
	require.Eventually(t, func() bool { return effects() == 1 }, time.Minute, 20*time.Millisecond)
	s.worker.kill()
	s.worker.start()
	s.listed(t, `status = "unknown"`, "risky")
	tree, err := run.Tree(ctx)
	require.NoError(t, err)
	require.Len(t, tree.Unknown, 1)
	data, err := os.ReadFile(s.effects())
	require.NoError(t, err)
	require.Equal(t, fmt.Sprintf("%s\tx\n", tree.Unknown[0].Key), string(data), "who looks finds it by its key")
	require.NoError(t, run.Settle(ctx, Settlement{Task: "sent", Result: json.RawMessage(`"it was sent"`)}))
	report, err := run.Report(ctx)
	require.NoError(t, err)
	require.JSONEq(t, `"it was sent"`, string(report.Value))
	require.Equal(t, 1, effects())
}

// TestServerEndsRequests: whatever ends a run ends what its model does for it.
func TestServerEndsRequests(t *testing.T) {
	m := newModel(t, time.Hour)
	s := newSite(t, m)
	ctx := context.Background()
	g := program(t, "name: long\nsteps:\n- user: hi\n- gen: {name: x, max_tokens: 5}\n- return: x\n")
	for i, how := range []string{"cancel", "terminate", "budget", "deadline"} {
		o := StartOptions{Name: how, Heartbeat: 5 * time.Second} // a busy machine is no lost worker
		switch how {
		case "budget":
			o.Budget = &lang.Budget{Time: 2 * time.Second}
		case "deadline":
			o.Deadline = time.Now().Add(2 * time.Second)
		}
		run, err := Start(ctx, s.client, g, nil, o)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return m.calls("x") == i+1 }, time.Minute, 20*time.Millisecond)
		switch how {
		case "cancel":
			require.NoError(t, run.Cancel(ctx))
			_, err = run.Report(ctx)
			require.ErrorIs(t, err, context.Canceled)
		case "terminate":
			require.NoError(t, s.client.TerminateWorkflow(ctx, how, "", "test"))
		case "budget":
			_, err = run.Report(ctx)
			require.ErrorIs(t, err, runtime.ErrBudget)
			require.ErrorContains(t, err, "time 2s of 2s")
		case "deadline":
			_, err = run.Report(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		require.Eventually(t, func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.left == i+1
		}, time.Minute, 20*time.Millisecond, how)
		require.Equal(t, i+1, m.calls("x"))
	}
}

// holds returns a file under a folder that holds a text, empty if none does.
func holds(t *testing.T, folder, text string) (in string) {
	require.NoError(t, filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Name() == "effects" {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), text) {
			in = path
		}
		return err
	}))
	return in
}

// TestServerLearnsNothing: with a key neither the server nor the store holds what a
// program is given, asks, makes and fails with.
func TestServerLearnsNothing(t *testing.T) {
	const secret, word = "a secret of many words", "marmalade-4711"
	g := program(t, `
name: confidential
inputs: {text: string}
steps:
- user: ${text}
- gen: {name: x, max_tokens: 5}
- wait: {name: ok, ask: "May ${text}?", type: string}
- call: {name: big, func: large, args: [20000], result: string}
- user: ${text} ${big} ${ok}
- gen: {name: y, max_tokens: 5}
- call: {name: done, func: refuses, args: [text], result: string}
- return: done
`)
	ctx := context.Background()
	for _, sealed := range []bool{true, false} {
		with := workerArgs{Model: newModel(t, 0).url}
		if sealed {
			with.Secret = secret
		}
		s := newSiteWith(t, with)
		run, err := Start(ctx, s.client, g, lang.Args{"text": word}, StartOptions{Name: "run"})
		require.NoError(t, err)
		var tree *Tree
		require.Eventually(t, func() bool {
			tree, err = run.Tree(ctx)
			return err == nil && len(tree.Tasks) == 1 && tree.Tasks[0].Ask != ""
		}, time.Minute, 20*time.Millisecond)
		require.Equal(t, "May "+word+"?", tree.Tasks[0].Ask)
		require.NoError(t, run.Answer(ctx, Answer{Task: "ok", Value: json.RawMessage(`"` + word + `"`)}))
		_, err = run.Report(ctx)
		require.ErrorContains(t, err, "refused "+word)
		if !sealed {
			require.NotEmpty(t, holds(t, s.folder, word), "without a key it is there: else this test looks at the wrong place")
			continue
		}
		require.Empty(t, holds(t, s.folder, word))
		store, err := OpenDir(s.store())
		require.NoError(t, err)
		for _, key := range []string{"", "another secret of many words"} {
			c, err := Dial(ctx, DialOptions{Address: s.address, Store: store, Key: (&workerArgs{Secret: key}).key()})
			require.NoError(t, err)
			_, err = Open(c, "run").Report(ctx)
			c.Close()
			require.ErrorContains(t, err, "sealed with")
		}
	}
}

// TestServerShowsWhatPeopleRead: names and summaries of tasks are in the history, for
// Temporal's page.
func TestServerShowsWhatPeopleRead(t *testing.T) {
	s := newSite(t, newModel(t, 0))
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, asking), nil, StartOptions{Name: "asking"})
	require.NoError(t, err)
	require.NoError(t, run.Leave(ctx, Answer{Task: "both/person/ok", Value: json.RawMessage("true")}))
	_, err = run.Report(ctx)
	require.NoError(t, err)
	var says []string
	it := s.client.GetWorkflowHistory(ctx, "asking", "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for it.HasNext() {
		e, err := it.Next()
		require.NoError(t, err)
		if p := e.GetUserMetadata().GetSummary(); p != nil {
			var text string
			require.NoError(t, s.client.conv.FromPayload(p, &text))
			says = append(says, text)
		}
	}
	require.Contains(t, says, "both/model/x (gen)")
	require.Contains(t, says, "both/person/ok: May I?")
	require.Contains(t, says, "asking")
}

// TestServerIsOneThatTheSDKStarts: our server takes the flags that the SDK's tests
// start theirs with.
func TestServerIsOneThatTheSDKStarts(t *testing.T) {
	program := os.Getenv(envServer)
	require.NotEmpty(t, program)
	server, err := testsuite.StartDevServer(context.Background(), testsuite.DevServerOptions{
		ExistingPath: program, ClientOptions: &client.Options{Namespace: "own", Logger: quiet{}},
		DBFilename: filepath.Join(t.TempDir(), "db"), LogLevel: "error",
		Stdout: io.Discard, Stderr: io.Discard,
		SearchAttributes: temporal.NewSearchAttributes(attrProgram.ValueSet(""), attrStatus.ValueSet("")),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Stop()) }()
	store, err := OpenDir(t.TempDir())
	require.NoError(t, err)
	c, err := Dial(context.Background(), DialOptions{Address: server.FrontendHostPort(), Namespace: "own", Store: store})
	require.NoError(t, err)
	defer c.Close()
	_, err = Open(c, "nothing").Tree(context.Background())
	require.ErrorIs(t, err, ErrUnknownRun)
	ok, err := HasSearchAttributes(context.Background(), c, "own")
	require.NoError(t, err)
	require.False(t, ok, "tenant was not asked for")
	other, err := Dial(context.Background(), DialOptions{Address: server.FrontendHostPort(), Namespace: "nobodys", Store: store})
	if err == nil {
		defer other.Close()
		_, err = Open(other, "nothing").Tree(context.Background())
	}
	require.ErrorContains(t, err, "nobodys", "there are no namespaces but those that were asked for")
	require.NotErrorIs(t, err, ErrUnknownRun)
}

// TestServerAffinity: with affinity a run computes on two workers, each with a cache
// of its own, exactly what it computes on one; a fork does too, whose branches all go
// on from one prompt.
func TestServerAffinity(t *testing.T) {
	s := newSite(t, newModel(t, 0))
	ctx := context.Background()
	g := program(t, `
name: turns
inputs: {text: string}
steps:
- system: ${text}
- repeat:
    name: r
    max: 12
    index: i
    steps:
    - user: Turn ${i}.
    - gen: {name: x, max_tokens: 5}
- fork:
    name: looks
    over: 1..8
    steps:
    - user: Look ${item}.
    - gen: {name: y, max_tokens: 5}
    - user: Again.
    - gen: {name: z, max_tokens: 5}
    yield: z
- return: looks
`)
	args := func(i int) lang.Args { return lang.Args{"text": strings.Repeat(fmt.Sprint("rule ", i, ". "), 200)} }
	model := func() *puppet.Model {
		m := puppet.New()
		m.OnAny().Reply("fine")
		return m
	}
	const runs = 4
	var alone []int
	for i := range runs {
		r, err := runtime.RunGraph(ctx, model(), g, nil, args(i))
		require.NoError(t, err)
		alone = append(alone, r.Usage.ComputedTokens)
	}
	store, err := OpenDir(s.store())
	require.NoError(t, err)
	computed := map[bool]int{}
	for _, affinity := range []bool{true, false} {
		for i := range runs {
			queue := fmt.Sprint("engines-", affinity, "-", i)
			for range 2 { // with empty caches
				w, err := NewWorker(s.client, Config{Queue: queue, Backend: model(), Store: store, Affinity: affinity})
				require.NoError(t, err)
				require.NoError(t, w.Start())
				defer w.Stop()
			}
			// However slow this machine is, no worker is given up.
			run, err := Start(ctx, s.client, g, args(i), StartOptions{Name: queue, Queue: queue, HomeWait: time.Hour})
			require.NoError(t, err)
			r, err := run.Report(ctx)
			require.NoError(t, err)
			computed[affinity] += r.Usage.ComputedTokens
			if affinity {
				require.Equal(t, alone[i], r.Usage.ComputedTokens)
			}
		}
	}
	t.Logf("computed by each run alone %d, on two workers with affinity %d, without %d", alone, computed[true], computed[false])
}
