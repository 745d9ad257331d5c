package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

const asksElsewhere = `
coppice: 1
name: asks
steps:
- user: hello
- gen: {name: x, max_tokens: 5}
- wait: {name: ok, ask: "May I?", type: bool}
- return: ok
`

// elsewhere is a Runner whose runs write one text and ask one question.
type elsewhere struct {
	away  bool
	fails bool // the runs do, when they are answered

	mu   sync.Mutex
	seen []Elsewhere
	kept []bool // what Keep said of runs whose context ended
}

func (x *elsewhere) Run(ctx context.Context, r Elsewhere) (*runtime.Report, error) {
	x.mu.Lock()
	x.seen = append(x.seen, r)
	away := x.away
	x.mu.Unlock()
	if away {
		return nil, fmt.Errorf("%w: it sleeps", ErrAway)
	}
	seq := uint64(len(r.Told))
	tell := func(e runtime.Event) {
		seq++
		e.Seq, e.Time = seq, time.Now()
		r.Sink.Emit(e)
	}
	if len(r.Told) == 0 {
		wait := &runtime.Wait{Ask: "May I?", Type: lang.Type{Kind: lang.TypeBool}}
		tell(runtime.Event{Kind: runtime.RunStarted, Run: r.ID, Program: r.Graph.Name})
		tell(runtime.Event{Kind: runtime.NodeStarted, Task: "x", Node: "x", Does: "gen"})
		tell(runtime.Event{Kind: runtime.TextDelta, Task: "x", Node: "x", Text: "hi", Tokens: []backend.Token{1}})
		tell(runtime.Event{Kind: runtime.NodeFinished, Task: "x", Node: "x", Does: "gen", Text: "hi", Finish: backend.FinishStop, Cost: &backend.Usage{PromptTokens: 3, SampledTokens: 1}})
		tell(runtime.Event{Kind: runtime.NodeStarted, Task: "ok", Node: "ok", Does: "wait", Ask: wait.Question(time.Time{})})
		tell(runtime.Event{Kind: runtime.RunWaits})
	}
	report := &runtime.Report{Run: r.ID, Value: []byte("true"), Tasks: 7}
	refused := errors.New("it was refused")
	if n := len(r.Told); n > 0 {
		switch r.Told[n-1].Kind {
		case runtime.RunFinished:
			return report, nil
		case runtime.RunFailed:
			if r.Told[n-1].Status == runtime.Cancelled {
				return nil, context.Canceled
			}
			return report, refused
		}
	}
	v, err := r.Answer(ctx, "ok", nil)
	if err != nil {
		x.mu.Lock()
		x.kept = append(x.kept, r.Keep())
		x.mu.Unlock()
		return nil, err
	}
	tell(runtime.Event{Kind: runtime.NodeFinished, Task: "ok", Node: "ok", Does: "wait", Value: v})
	if x.fails {
		tell(runtime.Event{Kind: runtime.RunFailed, Error: refused.Error()})
		return report, refused
	}
	tell(runtime.Event{Kind: runtime.RunFinished, Value: v})
	return report, nil
}

// begunElsewhere starts a run and waits until it asks.
func begunElsewhere(t *testing.T, c *client) string {
	t.Helper()
	c.ok("/v1/programs", asksElsewhere)
	path := c.begin("asks", tree{})
	c.until(path, "waiting")
	return path
}

// until reads the events of a run until its status is as wanted.
func (c *client) until(path, status string) {
	c.t.Helper()
	x, err := c.srv.tenants.anyone.run(c.t.Context(), path[len("/v1/runs/"):])
	require.NoError(c.t, err)
	for range x.told(c.t.Context(), x.history(), 0) {
		if x.status() == status {
			return
		}
	}
	require.NoError(c.t, x.wait(c.t.Context()))
	require.Equal(c.t, status, x.status())
}

// A run elsewhere goes on without the server: the next one is told what it told, takes
// answers, and its readers' numbers go on.
func TestRunsElsewhere(t *testing.T) {
	dir := t.TempDir()
	first, next := &elsewhere{}, &elsewhere{}
	with := func(x *elsewhere) func(*Config) { return func(c *Config) { c.Runner = x } }
	c, stop := serveIn(t, dir, puppet.New(), with(first))
	path := begunElsewhere(t, c)
	c.refused(path+"/approve", tree{"answer": "perhaps"}, 400, "answer")
	stop()
	require.Equal(t, []bool{true}, first.kept, "it goes on")
	require.False(t, first.seen[0].Begun)

	// A server that carries out no such runs leaves it alone.
	c, stop = serveIn(t, dir, puppet.New(), nil)
	_, got := c.call("GET", path, nil)
	assert.Equal(t, "interrupted", got["status"])
	assert.Contains(t, at(got, "error", "message"), "--durable")
	stop()

	c, stop = serveIn(t, dir, puppet.New(), with(next))
	_, got = c.call("GET", path, nil)
	assert.Equal(t, "waiting", got["status"])
	c.ok(path+"/approve", tree{"answer": true})
	events, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
	require.Equal(t, 8, numbered(t, events, 0))
	require.Len(t, next.seen, 1)
	require.True(t, next.seen[0].Begun)
	require.Len(t, next.seen[0].Told, 6)
	c.until(path, "finished")
	_, got = c.call("GET", path, nil)
	assert.Equal(t, true, at(got, "report", "value"))
	stop()

	c, _ = serveIn(t, dir, puppet.New(), with(next))
	_, again := c.call("GET", path, nil)
	assert.Equal(t, got, again)
}

// A run elsewhere whose end was wanted is not kept; one that nobody can reach is
// interrupted, and goes on when it is resumed.
func TestRunsElsewhereEnd(t *testing.T) {
	x := &elsewhere{}
	c, _ := serveIn(t, t.TempDir(), puppet.New(), func(c *Config) { c.Runner = x })
	path := begunElsewhere(t, c)
	got := c.ok(path+"/cancel", nil)
	assert.Equal(t, "cancelled", got["status"])
	require.Equal(t, []bool{false}, x.kept)

	x.mu.Lock()
	x.away = true
	x.mu.Unlock()
	path = c.begin("asks", tree{})
	c.until(path, "interrupted")
	x.mu.Lock()
	x.away = false
	x.mu.Unlock()
	status, body := c.call("POST", path+"/resume", nil)
	require.Equal(t, 202, status, "%v", body)
	c.until(path, "waiting")
	require.True(t, x.seen[len(x.seen)-1].Begun)
}

func TestRunnerNeedsAFolder(t *testing.T) {
	_, err := New(Config{Backend: puppet.New(), Runner: &elsewhere{}})
	require.ErrorContains(t, err, "need a folder")
}

// unwritten makes the files of a run those of a server that was killed when the end of
// the run was told and not written down.
func unwritten(t *testing.T, dir, path string) {
	t.Helper()
	list := (&shelf{filepath.Join(dir, "anyone")}).runs(func(file string, err error) { t.Error(file, err) })
	for _, f := range list {
		if f.meta.Run == filepath.Base(path) {
			f.meta.Status, f.meta.Ended, f.meta.Error = "", time.Time{}, nil
			require.NoError(t, f.writeMeta())
			require.NoError(t, os.RemoveAll(f.path("report.json")))
			return
		}
	}
	t.Fatal("no such run", path)
}

// The report of a run elsewhere whose end was told and not written down is asked for
// again, however the run ended, and by a later server if this one cannot ask.
func TestReportOfARunElsewhereIsFoundAgain(t *testing.T) {
	for _, how := range []string{"finished", "failed", "cancelled"} {
		t.Run(how, func(t *testing.T) {
			dir := t.TempDir()
			with := func(x *elsewhere) func(*Config) { return func(c *Config) { c.Runner = x } }
			first := &elsewhere{fails: how == "failed"}
			c, stop := serveIn(t, dir, puppet.New(), with(first))
			path := begunElsewhere(t, c)
			if how == "cancelled" {
				c.ok(path+"/cancel", nil)
			} else {
				c.ok(path+"/approve", tree{"answer": true})
				c.until(path, how)
			}
			_, want := c.call("GET", path, nil)
			require.Equal(t, how, want["status"])
			if how != "cancelled" {
				require.Equal(t, 7.0, at(want, "report", "tasks"))
			}
			events, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
			stop()
			unwritten(t, dir, path)

			for _, change := range []func(*Config){nil, with(&elsewhere{away: true})} {
				c, stop = serveIn(t, dir, puppet.New(), change)
				c.until(path, how)
				_, got := c.call("GET", path, nil)
				if how != "finished" {
					assert.Equal(t, at(want, "error", "message"), at(got, "error", "message"))
				}
				if how == "finished" {
					assert.Equal(t, true, at(got, "report", "value"), "its end told the value")
				}
				c.refused(path+"/resume", nil, 409, "")
				stop()
			}

			x := &elsewhere{fails: how == "failed"}
			c, stop = serveIn(t, dir, puppet.New(), with(x))
			c.until(path, how)
			_, got := c.call("GET", path, nil)
			require.LessOrEqual(t, got["finished_at"], want["finished_at"])
			require.GreaterOrEqual(t, got["finished_at"], got["created_at"])
			want["finished_at"] = got["finished_at"] // of the event; somewhat later in the server that saw it
			require.Equal(t, want, got)
			require.Len(t, x.seen, 1)
			require.Len(t, x.seen[0].Told, len(events))
			stop()
			c, _ = serveIn(t, dir, puppet.New(), with(x))
			_, got = c.call("GET", path, nil)
			require.Equal(t, want, got)
			require.Len(t, x.seen, 1, "it was written down")
			same, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
			require.Equal(t, events, same)
		})
	}
}

// Who cancels a run elsewhere that was interrupted is not told that it has ended before
// those who carry it out know.
func TestInterruptedRunElsewhereIsCancelledThere(t *testing.T) {
	dir := t.TempDir()
	with := func(x *elsewhere) func(*Config) { return func(c *Config) { c.Runner = x } }
	c, stop := serveIn(t, dir, puppet.New(), with(&elsewhere{}))
	path := begunElsewhere(t, c)
	stop()

	c, stop = serveIn(t, dir, puppet.New(), nil)
	e := c.refused(path+"/cancel", nil, 503, "")
	assert.Contains(t, e["message"], "--durable")
	p := c.dial()
	p.send(tree{"type": "cancel", "ref": "a", "run": filepath.Base(path)})
	assert.Contains(t, at(p.next(), "error", "message"), "--durable")
	stop()

	x := &elsewhere{away: true}
	c, _ = serveIn(t, dir, puppet.New(), with(x))
	c.until(path, "interrupted")
	e = c.refused(path+"/cancel", nil, 503, "")
	assert.Contains(t, e["message"], "cannot be reached")
	c.until(path, "interrupted")
	x.mu.Lock()
	x.away = false
	x.mu.Unlock()
	require.Equal(t, "cancelled", c.ok(path+"/cancel", nil)["status"])
	require.Equal(t, []bool{false}, x.kept, "it was told to end")
}
