package serve

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/runtime"
)

// asks is a program that asks a person twice, in a branch and after it.
const asks = `
coppice: 1
name: asks
inputs: {team: string}
steps:
  - fork:
      name: all
      arms:
      - {name: a, steps: [{wait: {name: ok, ask: "Page ${team}?", type: bool}}], yield: ok}
      - {name: b, steps: [{user: go}, {gen: {name: z, max_tokens: 4}}], yield: z}
  - wait: {name: count, ask: "How many?", type: int}
  - return: '{all: all, count: count}'
`

func asksModel() *puppet.Model {
	m := puppet.New()
	m.OnAny().Reply("done")
	return m
}

// waits reads a run's events until it waits for a task, and returns the path of
// the run.
func (c *client) waits(path, task string) {
	c.t.Helper()
	resp := c.do("GET", path+"/events", nil)
	defer resp.Body.Close()
	asked := false
	for e := range sseOf(c.t, resp.Body) {
		asked = asked || e["task"] == task && e["kind"] == "node_started"
		if asked && e["kind"] == "run_waits" {
			return
		}
	}
	c.t.Fatalf("the run never waited for %s", task)
}

func (c *client) begin(program string, inputs tree) (path string) {
	c.t.Helper()
	begun := c.ok("/v1/programs/"+program+"/runs", tree{"inputs": inputs})
	return "/v1/runs/" + begun["id"].(string)
}

func TestApprove(t *testing.T) {
	c := serveFor(t, asksModel(), nil)
	c.ok("/v1/programs", asks)
	path := c.begin("asks", tree{"team": "ops"})
	c.waits(path, "all/a/ok")

	_, x := c.call("GET", path, nil)
	require.Equal(t, "waiting", x["status"])
	ask := at(x, "waiting", 0).(map[string]any)
	assert.NotEmpty(t, ask["since"])
	delete(ask, "since")
	assert.Equal(t, tree{"task": "all/a/ok", "node": "all/a/ok", "branch": "all/a", "text": "Page ops?", "type": "bool", "schema": map[string]any{"type": "boolean"}}, tree(ask))
	_, list := c.call("GET", "/v1/runs", nil)
	assert.Equal(t, "waiting", at(list, "data", 0, "status"))
	_, tr := c.call("GET", path+"/tree", nil)
	assert.Equal(t, "waiting", tr["status"])
	assert.Equal(t, "waiting", at(tr, "trunk", "branches", 0, "nodes", 0, "status"))
	assert.Equal(t, "Page ops?", at(tr, "trunk", "branches", 0, "nodes", 0, "ask", "text"))

	// What is no answer changes nothing.
	approve := path + "/approve"
	assert.Contains(t, c.refused(approve, tree{"task": "all/a/ok", "answer": "yes"}, 400, "answer")["message"], "must be bool")
	c.refused(approve, tree{"task": "all/a/ok", "answer": nil}, 400, "answer")
	c.refused(approve, tree{"task": "all/a/ok"}, 400, "answer")
	c.refused(approve, tree{"task": 7, "answer": true}, 400, "task")
	c.refused(approve, "[]", 400, "")
	assert.Contains(t, c.refused(approve, tree{"task": "none", "answer": true}, 404, "")["message"], "all/a/ok")
	c.refused("/v1/runs/run-none/approve", tree{"answer": true}, 404, "")

	c.ok(approve, tree{"task": "all/a/ok", "answer": true})
	assert.Contains(t, c.refused(approve, tree{"task": "all/a/ok", "answer": true}, 409, "task")["message"], "answered already")

	// The one that waits need not be named.
	c.waits(path, "count")
	c.refused(approve, tree{"answer": 1.5}, 400, "answer")
	c.ok(approve, tree{"answer": 3})
	events, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
	last := events[len(events)-1]
	assert.Equal(t, map[string]any{"all": []any{true, "done"}, "count": 3.0}, last["value"])
	c.srv.Close()
	_, x = c.call("GET", path, nil)
	assert.Equal(t, "finished", x["status"])
	assert.Nil(t, x["waiting"])
	c.refused(approve, tree{"answer": 3}, 409, "")
	c.refused(approve, tree{"task": "count", "answer": 3}, 409, "task")
}

// Of many answers at once exactly one counts.
func TestApproveOnce(t *testing.T) {
	c := serveFor(t, asksModel(), nil)
	c.ok("/v1/programs", "coppice: 1\nname: one\nsteps:\n  - wait: {name: n, type: int}\n  - return: n\n")
	path := c.begin("one", nil)
	c.waits(path, "n")
	const people = 16
	var (
		all   sync.WaitGroup
		codes [people]int
	)
	for i := range people {
		all.Go(func() {
			resp := c.do("POST", path+"/approve", tree{"task": "n", "answer": i})
			resp.Body.Close()
			codes[i] = resp.StatusCode
		})
	}
	all.Wait()
	events, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
	value := events[len(events)-1]["value"].(float64)
	for i, code := range codes {
		want := 409
		if float64(i) == value {
			want = 200
		}
		assert.Equal(t, want, code, "answer %d where %v counted", i, value)
	}
}

// What has a time ends by itself, and an answer that comes later is told so.
func TestApproveTooLate(t *testing.T) {
	c := serveFor(t, asksModel(), nil)
	c.ok("/v1/programs", "coppice: 1\nname: late\nsteps:\n  - wait: {name: a, type: bool, timeout: 1ms, default: false}\n  - wait: {name: b, timeout: 1ms}\n  - return: a\n")
	path := c.begin("late", nil)
	events, _ := readSSE(t, c.do("GET", path+"/events", nil).Body)
	for _, e := range events {
		if e["task"] == "a" && e["kind"] == "node_started" {
			assert.Equal(t, false, at(e, "ask", "default"))
			_, err := time.Parse(time.RFC3339Nano, at(e, "ask", "due").(string))
			assert.NoError(t, err)
		}
	}
	assert.Contains(t, events[len(events)-1]["error"], "no answer in time")
	c.refused(path+"/approve", tree{"task": "a", "answer": true}, 409, "task")
	assert.Contains(t, c.refused(path+"/approve", tree{"task": "b", "answer": true}, 409, "task")["message"], "no answer in time")
}

// A run that is cancelled while it waits is over, and nothing waits any more.
func TestCancelWhatWaits(t *testing.T) {
	c := serveFor(t, asksModel(), nil)
	c.ok("/v1/programs", asks)
	path := c.begin("asks", tree{"team": "x"})
	c.waits(path, "all/a/ok")
	got := c.ok(path+"/cancel", nil)
	assert.Equal(t, "cancelled", got["status"])
	assert.Nil(t, got["waiting"])
	c.refused(path+"/approve", tree{"task": "all/a/ok", "answer": true}, 409, "task")
}

// One tenant cannot answer another's runs, nor see them.
func TestApproveIsOfTheTenant(t *testing.T) {
	c := serveFor(t, asksModel(), func(c *Config) { c.Keys = []Key{{Secret: "first-key"}, {Secret: "second-key"}} })
	c.key = "first-key"
	c.ok("/v1/programs", asks)
	path := c.begin("asks", tree{"team": "x"})
	c.waits(path, "all/a/ok")
	c.key = "second-key"
	c.refused(path+"/approve", tree{"task": "all/a/ok", "answer": true}, 404, "")
}

func TestApproveOnASocket(t *testing.T) {
	c := serveFor(t, asksModel(), func(c *Config) { c.Limits.OrphanGrace = time.Nanosecond })
	c.ok("/v1/programs", asks)
	p := c.dial()
	p.send(tree{"type": "start", "ref": "s", "program": "asks", "inputs": tree{"team": "ops"}})
	id := p.typed("started")["run"].(string)
	waits := func(task string) {
		t.Helper()
		p.until(func(m tree) bool { return m["type"] == "event" && at(m, "event", "task") == task })
		p.until(func(m tree) bool { return m["type"] == "event" && at(m, "event", "kind") == "run_waits" })
	}
	waits("all/a/ok")
	answer := func(ref string, more tree) tree {
		m := tree{"type": "approve", "ref": ref, "run": id}
		for k, v := range more {
			m[k] = v
		}
		p.send(m)
		return p.until(func(m tree) bool { return m["ref"] == ref })
	}
	assert.Equal(t, "answer", at(answer("1", tree{"task": "all/a/ok", "answer": 7}), "error", "param"))
	assert.Equal(t, "answer", at(answer("2", tree{"task": "all/a/ok"}), "error", "param"))

	// The client goes away, and another comes: a run that waits does not end for
	// that.
	p.conn.Close()
	// Between its questions it does not wait: from here on somebody watches.
	w := c.dial()
	w.send(tree{"type": "watch", "ref": "w", "run": id})
	w.typed("ok")
	p = c.dial()
	assert.Equal(t, "ok", answer("3", tree{"task": "all/a/ok", "answer": false})["type"])
	assert.Equal(t, "not_waiting", at(answer("4", tree{"task": "all/a/ok", "answer": false}), "error", "code"))
	p.send(tree{"type": "watch", "ref": "w", "run": id})
	waits("count")
	p.send(tree{"type": "approve", "ref": "5", "run": id, "answer": 2})
	seen := tree{} // the run may be over before the answer to this is sent
	for seen["ok"] == nil || seen["end"] == nil {
		m := p.next()
		seen[m["type"].(string)] = m
	}
	assert.Equal(t, "finished", at(seen, "end", "status"))
	assert.Equal(t, "5", at(seen, "ok", "ref"))
}

// Time that a run waits is not time at work.
func TestWorkClock(t *testing.T) {
	var over sync.WaitGroup
	over.Add(1)
	c := newWorkClock(time.Hour, time.Hour, over.Done)
	defer c.stop()
	c.set(true)
	c.since = time.Time{} // it waited since long ago
	c.set(true)
	c.set(false)
	if left := c.left; left < 59*time.Minute || left > time.Hour {
		t.Error(left)
	}
	c.since = time.Now().Add(-2 * time.Hour) // and worked for two hours since
	c.set(true)
	c.set(false)
	over.Wait()

	idle := make(chan struct{})
	c = newWorkClock(time.Hour, 0, func() { close(idle) })
	c.set(true)
	<-idle
	c.stop()
	c.set(false) // after its end nothing happens
}

// A run that works longer than it may fails, whatever it waited before.
func TestRunsEndInTime(t *testing.T) {
	c := serveFor(t, asksModel(), func(c *Config) { c.Limits.ProgramLimits.Waiting = time.Nanosecond })
	c.ok("/v1/programs", asks)
	got := c.ok("/v1/programs/asks/runs", tree{"inputs": tree{"team": "x"}, "wait": true})
	if got["status"] != "failed" || !strings.Contains(fmt.Sprint(at(got, "error", "code")), "timeout") {
		t.Error(got)
	}
}

// Questions that nobody asked are not answered.
func TestQuestionsOfNobody(t *testing.T) {
	k := newQuestions()
	_, err := k.ask(t.Context(), "x", nil)
	assert.Error(t, err)
	_, _, err = k.claim("", []byte("1"))
	assert.Equal(t, http.StatusConflict, toError(err).Status)
	k.event(&runtime.Event{Kind: runtime.NodeStarted, Does: "wait", Task: "a", Ask: &runtime.Question{}})
	k.event(&runtime.Event{Kind: runtime.NodeStarted, Does: "wait", Task: "b", Ask: &runtime.Question{}})
	_, _, err = k.claim("", []byte("1"))
	assert.Equal(t, "task", toError(err).Param)
	assert.ErrorContains(t, err, "a, b")
	k.event(&runtime.Event{Kind: runtime.RunFailed})
	assert.False(t, k.any())
}

// sseOf yields the events of a stream as they come.
func sseOf(t testing.TB, r io.Reader) iter.Seq[tree] {
	return func(yield func(tree) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			data, ok := strings.CutPrefix(lines.Text(), "data: ")
			if !ok {
				continue
			}
			var e tree
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Errorf("%v in %q", err, data)
				return
			}
			if !yield(e) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			t.Error(err)
		}
	}
}
