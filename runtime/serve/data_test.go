package serve

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/runtime"
)

// serveIn is serveFor with a folder. stop ends the server as SIGTERM does.
func serveIn(t *testing.T, dir string, be backend.Backend, change func(*Config)) (c *client, stop func()) {
	t.Helper()
	cfg := Config{Backend: be, Vocabulary: byteVocab{}, Data: dir}
	if change != nil {
		change(&cfg)
	}
	srv, err := New(cfg)
	require.NoError(t, err)
	ts := httptest.NewServer(srv)
	ended := false
	stop = func() {
		if !ended {
			ended = true
			srv.Close()
			ts.Close() // waits for what is still to be sent
		}
	}
	t.Cleanup(func() {
		stop()
		noneLeft(t)
	})
	return &client{t: t, srv: srv, url: ts.URL}, stop
}

// numbered checks that events are numbered on from a number, and returns the last.
func numbered(t *testing.T, events []tree, after int) int {
	t.Helper()
	for i, e := range events {
		require.EqualValues(t, after+i+1, e["seq"], "event %v after %d", e, after)
	}
	return after + len(events)
}

// counted counts events of a kind by their tasks.
func counted(events []tree, kind string) map[string]int {
	n := map[string]int{}
	for _, e := range events {
		if e["kind"] == kind {
			n[fmt.Sprint(e["task"])]++
		}
	}
	return n
}

func TestFinishedRunsOutliveTheServer(t *testing.T) {
	dir := t.TempDir()
	c, stop := serveIn(t, dir, looksModel(), nil)
	c.ok("/v1/programs", looks)
	done := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "rain"}, "wait": true})
	path := "/v1/runs/" + done["id"].(string)
	_, was := c.call("GET", path+"/tree", nil)
	events, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
	stop()

	c, _ = serveIn(t, dir, puppet.New(), nil) // its model answers nothing
	_, again := c.call("GET", path, nil)
	assert.Equal(t, done, again)
	_, is := c.call("GET", path+"/tree", nil)
	assert.Equal(t, was, is)
	same, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
	assert.Equal(t, events, same)
	rest, _ := readSSE(t, c.do("GET", path+"/events?after=3", nil).Body)
	assert.Equal(t, events[3:], rest)
	_, list := c.call("GET", "/v1/programs", nil)
	assert.Equal(t, "looks", at(list, "data", 0, "name"))
	_, runs := c.call("GET", "/v1/runs", nil)
	assert.Len(t, runs["data"], 1)
	c.refused(path+"/approve", tree{"answer": 1}, 409, "")
	c.refused(path+"/resume", nil, 409, "")
	if status, _ := c.call("DELETE", "/v1/programs/looks", nil); status != http.StatusNoContent {
		t.Error(status)
	}
}

// What was at work begins again, what was finished does not, and readers go on
// from the number that they have.
func TestRunsGoOnInTheNextServer(t *testing.T) {
	dir := t.TempDir()
	first, gate := looksModel(), puppet.NewGate()
	c, stop := serveIn(t, dir, first, nil)
	c.ok("/v1/programs", looks)
	undisturbed := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "rain"}, "wait": true})
	first.SetGate(gate)
	path := c.begin("looks", tree{"topic": "rain"})
	require.NoError(t, gate.HeldCount(t.Context(), 2))
	stream := c.do("GET", path+"/events", nil)
	stop()
	before, _ := readSSE(t, stream.Body)
	last := numbered(t, before, 0)
	assert.Len(t, counted(before, "node_started"), 2)
	assert.Empty(t, counted(before, "run_failed"))

	c, _ = serveIn(t, dir, looksModel(), nil)
	after, _ := readSSE(t, c.do("GET", path+"/events", nil, "Last-Event-ID", fmt.Sprint(last)).Body)
	numbered(t, after, last)
	assert.Len(t, counted(after, "node_retried"), 2)
	assert.Equal(t, map[string]int{"verdict": 1}, counted(after, "node_started"))
	assert.Empty(t, counted(after, "run_started"))
	all, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
	numbered(t, all, 0)
	assert.Equal(t, append(before, after...), all)
	for task, n := range counted(all, "node_finished") {
		assert.Equal(t, 1, n, task)
	}
	_, x := c.call("GET", path, nil)
	assert.Equal(t, "finished", x["status"])
	assert.Equal(t, at(undisturbed, "report", "value"), at(x, "report", "value"))
	for i := range 2 {
		for _, what := range []string{"turns", "value", "variables", "status"} {
			assert.Equal(t, at(undisturbed, "report", "branches", i, what), at(x, "report", "branches", i, what))
		}
	}
}

func TestQuestionsOutliveTheServer(t *testing.T) {
	dir := t.TempDir()
	keys := func(c *Config) {
		c.Keys = []Key{{Name: "a", Secret: "secret-of-a"}, {Name: "b", Secret: "secret-of-b"}}
	}
	swapped := func(c *Config) { // the names are others' now, and the order
		c.Keys = []Key{{Name: "a", Secret: "secret-of-b"}, {Name: "c", Secret: "secret-of-a"}}
	}
	c, stop := serveIn(t, dir, asksModel(), keys)
	c.key = "secret-of-a"
	c.ok("/v1/programs", asks)
	path := c.begin("asks", tree{"team": "ops"})
	c.waits(path, "all/a/ok")
	_, was := c.call("GET", path, nil)
	events, err := http.NewRequest("GET", c.url+path+"/events", nil)
	require.NoError(t, err)
	events.Header.Set("Authorization", "Bearer "+c.key)
	resp, err := http.DefaultClient.Do(events)
	require.NoError(t, err)
	require.NoError(t, c.srv.Idle(t.Context()), "what waits for people is not waited for")
	stop()
	told, _ := readSSE(t, resp.Body)
	last := numbered(t, told, 0)

	c, _ = serveIn(t, dir, asksModel(), swapped)
	c.key = "secret-of-b"
	if status, _ := c.call("GET", path, nil); status != 404 {
		t.Error("another key sees the run:", status)
	}
	if status, _ := c.call("GET", "/v1/programs/asks", nil); status != 404 {
		t.Error("another key sees the program:", status)
	}
	c.key = "secret-of-a"
	p := c.dial()
	p.send(tree{"type": "watch", "ref": "w", "run": strings.TrimPrefix(path, "/v1/runs/"), "after": last})
	p.typed("ok")
	_, is := c.call("GET", path, nil)
	delete(at(is, "waiting", 0).(map[string]any), "since")
	delete(at(was, "waiting", 0).(map[string]any), "since")
	assert.Equal(t, was, is)
	c.ok(path+"/approve", tree{"task": "all/a/ok", "answer": true})
	next := p.typed("event")
	assert.EqualValues(t, last+1, at(next, "event", "seq"))
	assert.Equal(t, "node_finished", at(next, "event", "kind"))
	c.waits(path, "count")
	c.ok(path+"/approve", tree{"answer": 3})
	for end := last + 1; ; end++ {
		m := p.next()
		if m["type"] == "end" {
			assert.EqualValues(t, end, m["seq"])
			assert.Equal(t, "finished", m["status"])
			break
		}
		require.EqualValues(t, end+1, at(m, "event", "seq"))
	}
}

// A run whose end was told and not written down is over all the same.
func TestTheEndOfARunIsFoundAmongItsEvents(t *testing.T) {
	dir := t.TempDir()
	c, stop := serveIn(t, dir, looksModel(), nil)
	c.ok("/v1/programs", looks)
	done := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "rain"}, "wait": true})
	stop()
	files := filepath.Join(dir, "anyone", "runs", done["id"].(string))
	f := &runFiles{dir: files}
	list := (&shelf{filepath.Join(dir, "anyone")}).runs(func(file string, err error) { t.Error(file, err) })
	require.Len(t, list, 1)
	f.meta = list[0].meta
	f.meta.Status, f.meta.Ended = "", time.Time{}
	require.NoError(t, f.writeMeta())
	require.NoError(t, os.Remove(f.path("report.json")))

	c, _ = serveIn(t, dir, puppet.New(), nil)
	_, again := c.call("GET", "/v1/runs/"+done["id"].(string), nil)
	assert.Equal(t, "finished", again["status"])
	assert.Equal(t, at(done, "report", "value"), at(again, "report", "value"))
}

// What a crash leaves at the end of the events is cut; the journal knows what
// they lost.
func TestTornEventsAreToldAgain(t *testing.T) {
	for _, cut := range []int{1, 5, 1000, 1 << 20} {
		dir := t.TempDir()
		c, stop := serveIn(t, dir, asksModel(), nil)
		c.ok("/v1/programs", asks)
		path := c.begin("asks", tree{"team": "ops"})
		c.waits(path, "all/a/ok")
		c.ok(path+"/approve", tree{"task": "all/a/ok", "answer": true})
		c.waits(path, "count")
		stop()
		file := filepath.Join(dir, "anyone", "runs", strings.TrimPrefix(path, "/v1/runs/"), "events")
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, data[:max(0, len(data)-cut)], 0o600))

		c, stop = serveIn(t, dir, asksModel(), nil)
		c.waits(path, "count")
		c.ok(path+"/approve", tree{"answer": 3})
		events, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
		numbered(t, events, 0)
		for task, n := range counted(events, "node_finished") {
			assert.Equal(t, 1, n, "%s with %d bytes cut", task, cut)
		}
		assert.Equal(t, map[string]any{"all": []any{true, "done"}, "count": 3.0}, events[len(events)-1]["value"])
		stop()
	}
}

// A run that cannot be recorded is interrupted and says so; others go on, and it
// does too when there is room again.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c, _ := serveIn(t, dir, m, nil)
	c.ok("/v1/programs", looks)
	path := c.begin("looks", tree{"topic": "rain"})
	require.NoError(t, gate.HeldCount(t.Context(), 2))
	other := c.begin("looks", tree{"topic": "snow"})
	require.NoError(t, gate.HeldCount(t.Context(), 4))
	stream := c.do("GET", path+"/events", nil)
	x, err := c.srv.tenants.anyone.run(t.Context(), strings.TrimPrefix(path, "/v1/runs/"))
	require.NoError(t, err)
	x.files.events.f.Close() // each write fails from now on
	gate.Open()
	events, _ := readSSE(t, stream.Body)
	last := events[len(events)-1]
	assert.Equal(t, "run_interrupted", at(last, "error", "code"))
	n := numbered(t, events[:len(events)-1], 0)

	_, got := c.call("GET", path, nil)
	assert.Equal(t, "interrupted", got["status"])
	assert.Equal(t, "storage_failed", at(got, "error", "code"))
	assert.Contains(t, at(got, "error", "message"), "write: ")
	assert.NotContains(t, fmt.Sprint(got), dir)
	resp := c.do("GET", path+"/events?after="+fmt.Sprint(n), nil)
	resp.Body.Close()
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	same, _ := readSSE(t, c.do("GET", other+"/events", nil).Body)
	assert.Equal(t, "run_finished", same[len(same)-1]["kind"])

	c.ok(path+"/resume", nil)
	rest, _ := readSSE(t, c.do("GET", path+"/events?after="+fmt.Sprint(n), nil).Body)
	numbered(t, rest, n)
	assert.Equal(t, "take it", rest[len(rest)-1]["value"])
	c.refused(path+"/resume", nil, 409, "")

	// Nothing new can be kept at all.
	for _, p := range []string{path, other} {
		_, x := c.call("GET", p, nil) // which is there when all is written
		assert.Equal(t, "finished", x["status"])
	}
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "anyone")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "anyone"), nil, 0o600))
	e := c.refused("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}}, 503, "")
	assert.Equal(t, "storage_failed", e["code"])
	assert.NotContains(t, fmt.Sprint(e), dir)
	c.refused("/v1/programs", looks, 503, "")
	_, runs := c.call("GET", "/v1/runs", nil)
	assert.Len(t, runs["data"], 2)
	c.ok("/v1/chat/completions", ask("The good side?"))
}

// Another model is no reason to lose a run.
func TestAnotherModelInterrupts(t *testing.T) {
	dir := t.TempDir()
	c, stop := serveIn(t, dir, asksModel(), nil)
	c.ok("/v1/programs", asks)
	path, lost := c.begin("asks", tree{"team": "ops"}), c.begin("asks", tree{"team": "dev"})
	c.waits(path, "all/a/ok")
	c.waits(lost, "all/a/ok")
	stop()

	c, stop = serveIn(t, dir, newEngine(t, &chain{next: alphabet}), nil)
	again, err := c.srv.tenants.anyone.run(t.Context(), strings.TrimPrefix(path, "/v1/runs/"))
	require.NoError(t, err)
	<-again.done
	_, x := c.call("GET", path, nil)
	assert.Equal(t, "interrupted", x["status"])
	assert.Contains(t, at(x, "error", "message"), "model")
	if got := c.ok(lost+"/cancel", nil); got["status"] != "cancelled" {
		t.Error(got)
	}
	stop()

	// What may be taken up again is not deleted for its age.
	_, stop = serveIn(t, dir, newEngine(t, &chain{next: alphabet}), func(c *Config) { c.Limits.Runs, c.Limits.RunAge = 1, time.Hour })
	stop()

	c, _ = serveIn(t, dir, asksModel(), nil)
	c.waits(path, "all/a/ok")
	_, x = c.call("GET", lost, nil)
	assert.Equal(t, "cancelled", x["status"])
	events, _ := readSSE(t, c.do("GET", lost+"/events", nil).Body)
	numbered(t, events, 0)
	assert.Equal(t, "cancelled", events[len(events)-1]["status"])
}

func TestKeptRunsAreBounded(t *testing.T) {
	dir := t.TempDir()
	c, stop := serveIn(t, dir, looksModel(), func(c *Config) { c.Limits.Runs = 2 })
	c.ok("/v1/programs", looks)
	for range 4 {
		c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})
	}
	stop()
	there := func() int {
		list, err := os.ReadDir(filepath.Join(dir, "anyone", "runs"))
		require.NoError(t, err)
		return len(list)
	}
	assert.LessOrEqual(t, there(), 3) // a new run makes room when it begins
	_, stop = serveIn(t, dir, looksModel(), func(c *Config) { c.Limits.Runs = 1 })
	assert.Equal(t, 1, there())
	stop()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "anyone", "runs", "run-half"), 0o700))
	_, stop = serveIn(t, dir, looksModel(), func(c *Config) { c.Limits.RunAge = time.Nanosecond })
	assert.Equal(t, 0, there())
	stop()
}

func TestOneServerUsesAFolder(t *testing.T) {
	dir := t.TempDir()
	serveIn(t, dir, looksModel(), nil)
	_, err := New(Config{Backend: looksModel(), Data: dir})
	assert.ErrorContains(t, err, "in use by another server")
	foreign := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(foreign, "coppice.data"), []byte("coppice data 9\n"), 0o600))
	_, err = New(Config{Backend: looksModel(), Data: foreign})
	assert.ErrorContains(t, err, "another format")
	_, err = New(Config{Backend: looksModel(), Data: filepath.Join(foreign, "coppice.data")})
	assert.Error(t, err)
}

// A file of events that has grown is written anew without old deltas.
func TestEventFileIsRewritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events")
	k, err := openEvents(path, nil)
	require.NoError(t, err)
	log := runtime.NewLog(2)
	for i := range 100 {
		kind := runtime.TextDelta
		if i%10 == 0 {
			kind = runtime.NodeStarted
		}
		e := runtime.Event{Seq: uint64(i + 1), Kind: kind, Task: "a", Text: "x"}
		require.NoError(t, k.append(e))
		log.Emit(e)
	}
	was := k.size
	events, all := kept(log)
	require.False(t, all)
	require.NoError(t, k.rewrite(events))
	require.Less(t, k.size, was)
	require.NoError(t, k.append(runtime.Event{Seq: 101, Kind: runtime.RunFinished}))
	require.NoError(t, k.close())
	var got []uint64
	starts := 0
	k, err = openEvents(path, func(e runtime.Event) {
		got = append(got, e.Seq)
		if e.Kind == runtime.NodeStarted {
			starts++
		}
	})
	require.NoError(t, err)
	defer k.close()
	assert.Equal(t, 10, starts)
	assert.EqualValues(t, 101, got[len(got)-1])
}
