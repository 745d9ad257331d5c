package runtime_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

func waitProgram(t *testing.T, steps string) *lang.Graph {
	t.Helper()
	g, err := lang.Decode([]byte("coppice: 1\nname: waits\nsteps:\n"+steps+"\n"), "waits.yaml")
	require.NoError(t, err)
	return g
}

func answering(value string, asked *[]string) runtime.Answerer {
	return func(_ context.Context, task string, w *runtime.Wait) (json.RawMessage, error) {
		if asked != nil {
			*asked = append(*asked, task+": "+w.Ask)
		}
		return json.RawMessage(value), nil
	}
}

func TestWaitTakesTheAnswer(t *testing.T) {
	g := waitProgram(t, `
- let: {name: who, value: '"ops"'}
- wait: {name: ok, ask: 'Page ${who}?', type: bool}
- return: ok`)
	var asked []string
	r, err := runtime.RunGraph(context.Background(), nil, g, nil, nil, runtime.WithAnswers(answering("true", &asked)))
	require.NoError(t, err)
	require.Equal(t, "true", string(r.Value))
	require.Equal(t, []string{"ok: Page ops?"}, asked)
}

func TestWrongAnswersFailTheirNode(t *testing.T) {
	g := waitProgram(t, `
- wait: {name: n, type: int}
- return: n`)
	_, err := runtime.RunGraph(context.Background(), nil, g, nil, nil, runtime.WithAnswers(answering(`"many"`, nil)))
	var node *runtime.NodeError
	require.ErrorAs(t, err, &node)
	require.ErrorContains(t, err, "the answer must be int")
	no := errors.New("no idea")
	_, err = runtime.RunGraph(context.Background(), nil, g, nil, nil, runtime.WithAnswers(func(context.Context, string, *runtime.Wait) (json.RawMessage, error) { return nil, no }))
	require.ErrorIs(t, err, no)
	_, err = runtime.RunGraph(context.Background(), nil, g, nil, nil, runtime.WithAnswers(func(context.Context, string, *runtime.Wait) (json.RawMessage, error) { panic("x") }))
	require.ErrorIs(t, err, runtime.ErrPanic)
}

func TestNobodyCanAnswer(t *testing.T) {
	g := waitProgram(t, `- wait: {name: ok}`)
	_, err := runtime.RunGraph(context.Background(), nil, g, nil, nil)
	require.ErrorContains(t, err, "nobody can give one")
}

func TestWaitEndsWithItsTime(t *testing.T) {
	never := func(ctx context.Context, _ string, _ *runtime.Wait) (json.RawMessage, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	r, err := runtime.RunGraph(context.Background(), nil, waitProgram(t, `
- wait: {name: ok, timeout: 1ms, default: false}
- return: ok`), nil, nil, runtime.WithAnswers(never))
	require.NoError(t, err)
	require.Equal(t, "false", string(r.Value))
	_, err = runtime.RunGraph(context.Background(), nil, waitProgram(t, `- wait: {name: ok, timeout: 1ms}`), nil, nil, runtime.WithAnswers(never))
	require.ErrorIs(t, err, runtime.ErrNoAnswer)
}

// TestWaitingHoldsNobodyUp: what waits does not count among the tasks in flight,
// and an arm that waits does not stop the others.
func TestWaitingHoldsNobodyUp(t *testing.T) {
	m := puppet.New()
	m.OnAny().Reply("done")
	finished := make(chan struct{})
	g := waitProgram(t, `
- fork:
    name: all
    arms:
    - {name: a, steps: [{wait: {name: x}}], yield: x}
    - {name: b, steps: [{wait: {name: y}}], yield: y}
    - {name: c, steps: [{user: go}, {gen: {name: z, max_tokens: 4}}], yield: z}
- return: all`)
	r, err := runtime.RunGraph(context.Background(), m, g, nil, nil, runtime.WithConcurrency(1),
		runtime.WithAnswers(func(ctx context.Context, _ string, _ *runtime.Wait) (json.RawMessage, error) {
			select {
			case <-finished:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			return json.RawMessage("true"), nil
		}),
		runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
			if e.Kind == runtime.NodeFinished && e.Does == "gen" {
				close(finished)
			}
		})))
	require.NoError(t, err)
	require.JSONEq(t, `[true,true,"done"]`, string(r.Value))
}

// TestSleepGoesOnAfterACrash: what is left of a sleep is slept by the process
// that resumes the run.
func TestSleepGoesOnAfterACrash(t *testing.T) {
	g := waitProgram(t, `
- sleep: {for: 1h}
- return: '"awake"'`)
	path := filepath.Join(t.TempDir(), "run.journal")
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	untilItWaits(t, g, path, runtime.WithClock(func() time.Time { return begin }))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(data), `"due":"2030-01-01T01:00:00Z"`)

	// The process that goes on begins when the hour is over.
	r, err := runtime.Resume(context.Background(), nil, path, nil, runtime.WithClock(func() time.Time { return begin.Add(2 * time.Hour) }))
	require.NoError(t, err)
	require.Equal(t, `"awake"`, string(r.Value))
}

// untilItWaits runs a program until a task waits, and ends as a process does
// that is interrupted.
func untilItWaits(t *testing.T, g *lang.Graph, path string, opts ...runtime.Option) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	opts = append(opts, runtime.WithJournal(path), runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
		if e.Kind == runtime.NodeStarted {
			cancel()
		}
	})))
	_, err := runtime.RunGraph(ctx, nil, g, nil, nil, opts...)
	require.ErrorIs(t, err, context.Canceled)
}

func TestAnswersAreLeftForAJournal(t *testing.T) {
	g := waitProgram(t, `
- wait: {name: ok, ask: 'May I?', type: bool}
- wait: {name: note, ask: 'Why?', type: string}
- return: '{ok: ok, why: note}'`)
	path := filepath.Join(t.TempDir(), "run.journal")
	untilItWaits(t, g, path)

	list, err := runtime.Waiting(path)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "ok", list[0].Task)
	require.Equal(t, "May I?", list[0].Wait.Ask)

	require.ErrorIs(t, runtime.LeaveAnswer(path, "note", json.RawMessage(`"x"`), ""), runtime.ErrUnknownTask)
	require.ErrorContains(t, runtime.LeaveAnswer(path, "ok", json.RawMessage(`"perhaps"`), ""), "must be bool")
	require.NoError(t, runtime.LeaveAnswer(path, "ok", json.RawMessage(`true`), "ops"))
	list, err = runtime.Waiting(path)
	require.NoError(t, err)
	require.Empty(t, list)

	// The rest is left while the run goes on.
	done := make(chan error, 1)
	asked := make(chan struct{})
	var report *runtime.Report
	go func() {
		var err error
		report, err = runtime.Resume(context.Background(), nil, path, nil, runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
			if e.Kind == runtime.NodeStarted && e.Task == "note" {
				close(asked)
			}
		})))
		done <- err
	}()
	select {
	case <-asked:
	case err := <-done:
		t.Fatalf("the run did not wait: %v", err)
	}
	require.NoError(t, runtime.LeaveAnswer(path, "note", json.RawMessage(`"because"`), "ops"))
	require.NoError(t, <-done)
	require.JSONEq(t, `{"ok":true,"why":"because"}`, string(report.Value))

	// Answers of one run are not those of the next with that file.
	require.NoError(t, os.Remove(path))
	untilItWaits(t, g, path)
	list, err = runtime.Waiting(path)
	require.NoError(t, err)
	require.Len(t, list, 1)
}

// TestWhoWasAskedIsToldThatItIsOver: the function that answers is let go when the wait
// ends by itself, and not only with the run.
func TestWhoWasAskedIsToldThatItIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := make(chan struct{})
		r, err := runtime.RunGraph(t.Context(), nil, waitProgram(t, `
- wait: {name: first, timeout: 1s, type: bool, default: false}
- wait: {name: second, type: bool}
- return: second`), nil, nil, runtime.WithAnswers(func(ctx context.Context, task string, _ *runtime.Wait) (json.RawMessage, error) {
			if task == "first" {
				<-ctx.Done()
				close(gone)
				return nil, ctx.Err()
			}
			<-gone
			return json.RawMessage("true"), nil
		}))
		require.NoError(t, err)
		require.Equal(t, "true", string(r.Value))
	})
}

// TestATaskThatWaitsCostsNoGoroutine: of a thousand branches that sleep, and a thousand
// that wait for a person, with answers that are left beside a journal.
func TestATaskThatWaitsCostsNoGoroutine(t *testing.T) {
	g := graphYAML(t, `inputs: {l: '[]int'}
steps:
  - user: hi
  - fork:
      name: f
      over: l
      steps:
        - when:
            if: item % 2 == 0
            then: [{sleep: {for: 1h}}]
            else: [{wait: {name: w, ask: "well?"}}]
      yield: item
  - return: len(f)
`)
	items := make([]int, 2000)
	for i := range items {
		items[i] = i
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	journal := filepath.Join(t.TempDir(), "j")
	before := goruntime.NumGoroutine()
	waits := make(chan struct{})
	var once sync.Once
	sink := runtime.SinkFunc(func(e runtime.Event) {
		if e.Kind == runtime.RunWaits {
			once.Do(func() { close(waits) })
		}
	})
	done := make(chan error, 1)
	go func() {
		_, err := runtime.RunGraph(ctx, nil, g, nil, lang.Args{"l": items}, runtime.WithSink(sink), runtime.WithJournal(journal))
		done <- err
	}()
	select {
	case <-waits:
	case err := <-done:
		t.Fatal(err)
	}
	if more := goruntime.NumGoroutine() - before; more > 20 {
		t.Errorf("%d goroutines for 2000 tasks that wait", more)
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestScriptsAreAnsweredThroughTheirJournals: what a script asks for stands in its
// journal, so that it is seen and answered without the script, while it runs and after
// it was cut off.
func TestScriptsAreAnsweredThroughTheirJournals(t *testing.T) {
	effects := 0
	script := lang.Script("approval", func(s *lang.S, alert string) (string, error) {
		s.User("Alert: ", alert)
		plan, err := s.Gen("plan").Get()
		if err != nil {
			return "", err
		}
		ticket, err := lang.Do(s, "ticket", func(context.Context) (string, error) { effects++; return "T-7", nil }).Get()
		if err != nil {
			return "", err
		}
		oks, err := lang.Map(s, "teams", []string{"web", "db"}, func(b *lang.S, team string) (bool, error) {
			return lang.WaitFor[bool](b, "ok", "May ", team, " ", plan, "?").Get()
		})
		return fmt.Sprint(ticket, oks), err
	})
	m := puppet.New()
	m.OnAny().Reply("restart")
	_, err := runtime.RunScript(t.Context(), m, script, "cpu")
	var node *runtime.NodeError
	require.ErrorAs(t, err, &node)
	require.ErrorContains(t, err, "nobody can give one")

	j := filepath.Join(t.TempDir(), "j")
	effects = 0
	var started []string
	untilItWaits := func() error {
		started = nil
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		_, err := runtime.RunScript(ctx, m, script, "cpu", runtime.WithJournal(j), runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
			if e.Kind == runtime.NodeStarted {
				started = append(started, e.Task)
			}
			if e.Kind == runtime.RunWaits {
				cancel()
			}
		})))
		return err
	}
	require.ErrorIs(t, untilItWaits(), context.Canceled)
	list, err := runtime.Waiting(j)
	require.NoError(t, err)
	require.Len(t, list, 2)
	require.Equal(t, "teams[0]/ok", list[0].Task)
	require.Equal(t, "May web restart?", list[0].Wait.Ask)
	require.ErrorContains(t, runtime.LeaveAnswer(j, "teams[1]/ok", json.RawMessage(`"maybe"`), "me"), "the answer must be bool")
	require.ErrorIs(t, runtime.LeaveAnswer(j, "teams[2]/ok", json.RawMessage(`true`), "me"), runtime.ErrUnknownTask)
	require.ErrorIs(t, untilItWaits(), context.Canceled)
	require.Equal(t, []string{"teams[0]/ok", "teams[1]/ok"}, started) // each once, and nothing else again
	require.NoError(t, runtime.LeaveAnswer(j, "teams[1]/ok", json.RawMessage(`true`), "me"))
	require.NoError(t, runtime.LeaveAnswer(j, "teams[0]/ok", json.RawMessage(`false`), "me"))
	for range 2 { // the second time all is in the journal
		out, err := runtime.RunScript(t.Context(), m, script, "cpu", runtime.WithJournal(j))
		require.NoError(t, err)
		require.Equal(t, "T-7[false true]", out.Value)
		require.Equal(t, 1, effects)
		require.Len(t, m.Log(), 2) // one of them the refused run's
	}
	list, err = runtime.Waiting(j)
	require.NoError(t, err)
	require.Empty(t, list)
}
