package serve

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/runtime"
)

// runOf finds a run by its path.
func (c *client) runOf(path string) *run {
	c.t.Helper()
	x, err := c.srv.tenants.anyone.run(c.t.Context(), strings.TrimPrefix(path, "/v1/runs/"))
	require.NoError(c.t, err)
	return x
}

// interruptedRun is a run that waits in a folder for a model which can go on with it.
func interruptedRun(t *testing.T, dir string) (c *client, path string) {
	c, stop := serveIn(t, dir, asksModel(), nil)
	c.ok("/v1/programs", asks)
	path = c.begin("asks", tree{"team": "ops"})
	c.waits(path, "all/a/ok")
	stop()
	c, _ = serveIn(t, dir, newEngine(t, &chain{next: alphabet}), nil)
	x := c.runOf(path)
	<-x.done
	require.True(t, x.interrupted())
	return c, path
}

// A line that cannot be read any more takes none of the others with it.
func TestADamagedEventLosesOnlyItself(t *testing.T) {
	dir := t.TempDir()
	c, stop := serveIn(t, dir, looksModel(), nil)
	c.ok("/v1/programs", looks)
	path := "/v1/runs/" + c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "rain"}, "wait": true})["id"].(string)
	events, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
	stop()
	file := filepath.Join(dir, "anyone", "runs", filepath.Base(path), "events")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := bytes.SplitAfter(data, []byte("\n"))
	lines[4] = append(bytes.Repeat([]byte{0}, len(lines[4])-1), '\n')
	require.NoError(t, os.WriteFile(file, bytes.Join(lines, nil), 0o600))

	c, _ = serveIn(t, dir, looksModel(), nil)
	left, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
	numbered(t, left, 0) // in its place readers are told that something is missing
	assert.Equal(t, "dropped", left[4]["kind"])
	left[4] = events[4]
	assert.Equal(t, events, left)

	// One that goes on is read in the same way; what is torn off at the end is cut.
	torn := append(bytes.Join(lines[:len(lines)-2], nil), "{\"seq\": 99"...)
	require.NoError(t, os.WriteFile(file, torn, 0o600))
	var got []uint64
	k, err := openEvents(file, func(e runtime.Event) { got = append(got, e.Seq) })
	require.NoError(t, err)
	defer k.close()
	assert.Equal(t, 1, k.damaged)
	assert.Len(t, got, len(events)-2)
	require.NoError(t, k.append(runtime.Event{Seq: got[len(got)-1] + 1, Kind: runtime.RunFinished}))
	again := 0
	again2, err := openEvents(file, func(runtime.Event) { again++ })
	require.NoError(t, err)
	again2.close()
	assert.Equal(t, len(got)+1, again)
}

// Who cancels a run whose end cannot be written is told so, and can try again.
func TestCancelSaysThatTheEndCannotBeKept(t *testing.T) {
	dir := t.TempDir()
	c, path := interruptedRun(t, dir)
	file := filepath.Join(dir, "anyone", "runs", filepath.Base(path), "events")
	require.NoError(t, os.Rename(file, file+".away"))
	require.NoError(t, os.Mkdir(file, 0o700))
	for range 2 {
		e := c.refused(path+"/cancel", nil, http.StatusServiceUnavailable, "")
		assert.Equal(t, "storage_failed", e["code"])
		assert.NotContains(t, fmt.Sprint(e), dir)
		_, x := c.call("GET", path, nil)
		assert.Equal(t, "interrupted", x["status"])
	}
	p := c.dial()
	p.send(tree{"type": "cancel", "ref": "a", "run": filepath.Base(path)})
	assert.Equal(t, "storage_failed", at(p.next(), "error", "code"))
	require.NoError(t, os.Remove(file))
	require.NoError(t, os.Rename(file+".away", file))
	assert.Equal(t, "cancelled", c.ok(path+"/cancel", nil)["status"])
	c.refused(path+"/resume", nil, http.StatusConflict, "")
}

// A disk that hangs holds up who waits for it, and nobody else.
func TestAHangingDiskHoldsUpNobodyElse(t *testing.T) {
	c, path := interruptedRun(t, t.TempDir())
	x, who := c.runOf(path), c.srv.tenants.anyone
	hangs, goOn := make(chan struct{}), make(chan struct{})
	replaced := make(chan *run)
	go func() {
		y, err := c.srv.replace(who, x, func(tn *tenant, f *runFiles) *run {
			close(hangs)
			<-goOn
			return c.srv.abandon(tn, f)
		})
		assert.NoError(t, err)
		replaced <- y
	}()
	<-hangs
	done, err := who.changePrograms(t.Context()) // as one that writes a program
	require.NoError(t, err)
	c.ok("/v1/completions", rawOf())
	_, runs := c.call("GET", "/v1/runs", nil)
	assert.Len(t, runs["data"], 1)
	_, programs := c.call("GET", "/v1/programs", nil)
	assert.Len(t, programs["data"], 1)
	_, got := c.call("GET", path, nil)
	assert.Equal(t, "interrupted", got["status"])
	e := c.refused(path+"/cancel", nil, http.StatusConflict, "")
	assert.Contains(t, e["message"], "already")
	c.refused(path+"/resume", nil, http.StatusConflict, "")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = who.changePrograms(gone)
	assert.ErrorIs(t, err, context.Canceled)
	done()
	close(goOn)
	assert.Equal(t, runCancelled, (<-replaced).status())
	_, got = c.call("GET", path, nil)
	assert.Equal(t, "cancelled", got["status"])
}

// Nobody waits longer than they want to for a run of an earlier process, or for the
// end of one.
func TestWaitsEndWithWhoWaits(t *testing.T) {
	c := serveFor(t, looksModel(), nil)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	x := c.srv.newRun("run-1", "p")
	x.begun, x.chat = make(chan struct{}), "chat-1"
	who := c.srv.tenants.anyone
	who.mu.Lock()
	who.runs[x.id], who.order = x, append(who.order, x)
	who.mu.Unlock()
	_, err := who.run(gone, x.id)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Nil(t, who.chatOf(gone, "chat-1"))
	x.log.Emit(runtime.Event{Seq: 1, Kind: runtime.RunFinished})
	assert.ErrorIs(t, x.settle(gone), context.Canceled)
	close(x.begun)
	close(x.done)
	assert.NoError(t, x.settle(t.Context()))
}

// Whoever follows a run that is interrupted is told why, in the protocol that they
// speak.
func TestReadersAreToldThatTheirRunIsInterrupted(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c, _ := serveIn(t, t.TempDir(), m, nil)
	c.ok("/v1/programs", looks)
	body := tree{"threadId": "t", "runId": "r", "id": "chat", "messages": []any{tree{"role": "user", "content": "rain", "parts": []any{tree{"type": "text", "text": "rain"}}}}}
	streams := map[string]*http.Response{}
	for i, kind := range []string{"agui", "chat", "runs"} {
		ask := body
		if kind == "runs" {
			ask = tree{"inputs": tree{"topic": "rain"}, "stream": true}
		}
		streams[kind] = c.do("POST", "/v1/programs/looks/"+kind, ask)
		require.NoError(t, gate.HeldCount(t.Context(), 2*(i+1)))
	}
	p := c.dial()
	p.send(tree{"type": "start", "program": "looks", "inputs": tree{"topic": "rain"}})
	p.typed("started")
	require.NoError(t, gate.HeldCount(t.Context(), 8))
	who := c.srv.tenants.anyone
	who.mu.Lock()
	for _, x := range who.order {
		x.files.events.f.Close() // each write fails from now on
	}
	who.mu.Unlock()
	gate.Open()
	last := map[string]tree{}
	for kind, resp := range streams {
		events, _ := readSSE(t, resp.Body)
		resp.Body.Close()
		last[kind] = events[len(events)-1]
	}
	assert.Equal(t, "RUN_ERROR", last["agui"]["type"])
	assert.Equal(t, "run_interrupted", last["agui"]["code"])
	assert.Equal(t, "error", last["chat"]["type"])
	assert.Equal(t, "run_interrupted", at(last["runs"], "error", "code"))
	end := p.typed("end")
	assert.Equal(t, "interrupted", end["status"])
	assert.Equal(t, "run_interrupted", at(end, "error", "code"))
	for _, said := range []any{last["agui"]["message"], last["chat"]["errorText"], at(last["runs"], "error", "message"), at(end, "error", "message")} {
		assert.Contains(t, said, "cannot be kept")
	}
}

// The events of an old run are read once for those who ask at the same time.
func TestOldEventsAreReadOnce(t *testing.T) {
	dir := t.TempDir()
	c, stop := serveIn(t, dir, looksModel(), nil)
	c.ok("/v1/programs", looks)
	path := "/v1/runs/" + c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "rain"}, "wait": true})["id"].(string)
	stop()
	c, _ = serveIn(t, dir, looksModel(), nil)
	x := c.runOf(path)
	one := x.history()
	assert.Same(t, one, x.history())
	goruntime.KeepAlive(one)
}

// A key keeps as much as it may: older runs go, and when none is left, nothing new is
// taken.
func TestKeptBytesOfAKey(t *testing.T) {
	dir := t.TempDir()
	limits := KeyLimits{}
	keys := func(c *Config) { c.Keys = []Key{{Name: "a", Secret: "secret-of-a", Limits: limits}} }
	start := func() (*client, func()) {
		c, stop := serveIn(t, dir, looksModel(), keys)
		c.key = "secret-of-a"
		return c, stop
	}
	run := func(c *client) {
		c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})
	}
	there := func(c *client) int {
		_, runs := c.call("GET", "/v1/runs", nil)
		return len(runs["data"].([]any))
	}
	c, stop := start()
	c.ok("/v1/programs", looks)
	run(c)
	one := int(c.srv.tenants.all[0].order[0].keptBytes())
	require.Greater(t, one, 1000)
	limits.KeptBytes = 2*one + one/2 + c.srv.tenants.all[0].sizes["looks"]
	stop()

	c, stop = start()
	for range 5 {
		run(c)
		assert.LessOrEqual(t, there(c), 4) // a new run makes room when it begins
	}
	stop()
	c, stop = start()
	assert.Equal(t, 2, there(c))
	big := strings.ReplaceAll(looks, "Two looks at a topic.", strings.Repeat("long ", one))
	e := c.refused("/v1/programs", big, http.StatusTooManyRequests, "")
	assert.Equal(t, "storage_full", e["code"])
	c.ok("/v1/programs", looks)
	stop()

	limits.KeptBytes = 10
	c, _ = start()
	assert.Equal(t, 0, there(c))
	assert.Equal(t, "storage_full", c.refused("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}}, http.StatusTooManyRequests, "")["code"])
	if status, _ := c.call("DELETE", "/v1/programs/looks", nil); status != http.StatusNoContent {
		t.Error(status)
	}
	c.refused("/v1/programs", looks, http.StatusTooManyRequests, "")
}

// A run at work that keeps too much ends, after runs that are over made room for it.
func TestKeptBytesOfARunAtWork(t *testing.T) {
	const most = 600_000
	dir := t.TempDir()
	m := looksModel()
	m.OnRegexp("Go on").Reply(strings.Repeat("seen and written ", 20))
	c, stop := serveIn(t, dir, m, func(c *Config) {
		c.Keys = []Key{{Name: "a", Secret: "secret-of-a", Limits: KeyLimits{KeptBytes: most}}}
	})
	defer stop()
	c.key = "secret-of-a"
	c.ok("/v1/programs", looks)
	c.ok("/v1/programs", "coppice: 1\nname: long\ninputs: {n: int}\nsteps:\n  - repeat:\n      name: more\n      max: 1000\n      index: i\n      until: i + 1 >= n\n      steps:\n        - user: Go on.\n        - gen: {name: x}\n  - return: n\n")
	small := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})["id"]
	fits := c.ok("/v1/programs/long/runs", tree{"inputs": tree{"n": 3}, "wait": true})
	require.Equal(t, "finished", fits["status"], "%v", fits)
	over := c.ok("/v1/programs/long/runs", tree{"inputs": tree{"n": 1000}, "wait": true})
	assert.Equal(t, "failed", over["status"])
	assert.Equal(t, "storage_full", at(over, "error", "code"), "%v", over["error"])
	for _, gone := range []any{small, fits["id"]} {
		if status, _ := c.call("GET", "/v1/runs/"+gone.(string), nil); status != http.StatusNotFound {
			t.Errorf("%v is %d", gone, status)
		}
	}
	bytes := int64(0)
	require.NoError(t, filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if info, ierr := d.Info(); err == nil && ierr == nil && !d.IsDir() {
			bytes += info.Size()
		}
		return err
	}))
	assert.Less(t, bytes, int64(most)*3/2)
	assert.Greater(t, bytes, int64(most)/2)
	again := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}, "wait": true})
	assert.Equal(t, "finished", again["status"], "%v", again)
}

// What nodes took that were cancelled or failed is in the metrics.
func TestTokensOfLostNodesAreCounted(t *testing.T) {
	step := make(chan struct{}, 8)
	c := serveFor(t, newEngine(t, &chain{next: func(byte) backend.Token { return 'a' }, step: step}), nil)
	c.ok("/v1/programs", "coppice: 1\nname: long\nsteps:\n  - user: go\n  - gen: {name: x, max_tokens: 200}\n  - return: x\n")
	for range 5 {
		step <- struct{}{}
	}
	path := "/v1/runs/" + c.ok("/v1/programs/long/runs", tree{})["id"].(string)
	events := c.do("GET", path+"/events", nil)
	defer events.Body.Close()
	for buf, seen := make([]byte, 4096), ""; !strings.Contains(seen, `"kind":"delta"`); {
		n, err := events.Body.Read(buf)
		require.NoError(t, err)
		seen += string(buf[:n])
	}
	before := c.metric("vllm:generation_tokens_total")
	assert.Equal(t, "cancelled", c.ok(path+"/cancel", nil)["status"]) // while the model is at work
	close(step)
	assert.Zero(t, before)
	assert.Positive(t, c.metric("vllm:generation_tokens_total"))
	assert.Positive(t, c.metric("vllm:prompt_tokens_total"))
	assert.Positive(t, c.metric("coppice_computed_tokens_total"))
}
