//go:build durable

package main

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
)

// stories writes two long texts, with a question between them.
const stories = `coppice: 1
name: stories
steps:
- system: You look at alerts.
- user: Tell a long story.
- gen: {name: story, max_tokens: 4000, ignore_eos: true}
- fork:
    name: looks
    each: [memory, disk]
    steps:
    - user: Look at ${item}.
    - gen: {name: seen, max_tokens: 20, ignore_eos: true}
    yield: seen
- wait: {name: ok, ask: "Go on?", type: bool}
- user: Tell another.
- gen: {name: other, max_tokens: 4000, ignore_eos: true}
- return: '{story: story, looks: looks, other: other}'
`

// follower is a client that reads a run over a websocket, and comes again from the
// number of the last event that it has.
type follower struct {
	t      *testing.T
	conn   *websocket.Conn
	last   float64
	run    string
	texts  map[string]string
	tokens map[string]int
	kinds  map[string]int // of events, by kind and task
	status string         // once the run is over
}

func (f *follower) dial(url string, command map[string]any) {
	f.t.Helper()
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(url, "http")+"/v1/ws", nil)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { conn.Close() })
	f.conn = conn
	require.NoError(f.t, conn.WriteJSON(command))
}

// again comes again.
func (f *follower) again(url string) {
	f.t.Helper()
	f.conn.Close()
	f.dial(url, map[string]any{"type": "watch", "ref": "again", "run": f.run, "after": f.last})
}

// read takes events until one is as wanted, or the run is over.
func (f *follower) read(until func(e map[string]any) bool) {
	f.t.Helper()
	for {
		var m struct {
			Type, Run, Status string
			Event, Error      map[string]any
		}
		require.NoError(f.t, f.conn.SetReadDeadline(time.Now().Add(8*time.Minute)))
		require.NoError(f.t, f.conn.ReadJSON(&m))
		switch m.Type {
		case "started":
			f.run = m.Run
		case "error":
			f.t.Fatal(m.Error)
		case "end":
			f.status = m.Status
			return
		case "event":
			f.take(m.Event)
			if until(m.Event) {
				return
			}
		}
	}
}

// take requires that nothing is missing and nothing comes twice.
func (f *follower) take(e map[string]any) {
	f.t.Helper()
	require.Equal(f.t, f.last+1, e["seq"], "%v", e)
	f.last++
	kind, task := e["kind"].(string), ""
	if s, ok := e["task"].(string); ok {
		task = s
	}
	f.kinds[kind+" "+task]++
	if kind != "delta" {
		return
	}
	offset, _ := e["offset"].(float64)
	require.EqualValues(f.t, len(f.texts[task]), offset, "%v", e)
	text, _ := e["text"].(string)
	f.texts[task] += text
	tokens, _ := e["tokens"].([]any)
	f.tokens[task] += len(tokens)
}

// endServerOf ends the Temporal server of a folder: who was killed leaves it behind.
func endServerOf(state string) {
	var server struct{ PID int }
	data, err := os.ReadFile(filepath.Join(state, "temporal", "server.json"))
	if err == nil && json.Unmarshal(data, &server) == nil && server.PID > 0 {
		if p, err := os.FindProcess(server.PID); err == nil {
			p.Kill()
		}
	}
}

// TestDurableStreams: a client of a server whose runs are durable sees each token once,
// though the worker that writes is killed, another goes on, the client itself goes and
// comes again, and the server is killed and started again while a worker writes.
func TestDurableStreams(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "stories.yaml")
	plain := strings.Replace(stories, `- wait: {name: ok, ask: "Go on?", type: bool}`+"\n", "", 1)
	require.NoError(t, os.WriteFile(program, []byte(plain), 0o600))
	want := runJSON(t, "run", program, "--seed", "3", "--threads", "1", "--json")
	var value struct {
		Story, Other string
		Looks        []string
	}
	require.NoError(t, json.Unmarshal(want.Value, &value))

	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	state := filepath.Join(dir, "state")
	serving := []string{"--durable", "--no-worker", "--state", state, "--addr", addr}
	s := startServant(t, serving...)
	t.Cleanup(func() { endServerOf(state) })
	log, err := os.Create(filepath.Join(dir, "worker.log"))
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			data, _ := os.ReadFile(log.Name())
			t.Logf("the workers wrote:\n%s\nthe last server wrote:\n%s", data, &s.log)
		}
		log.Close()
	})
	work := func() *exec.Cmd {
		c := command(t, "worker", "--state", state, "--threads", "1", "--events", s.url)
		c.Stderr = log
		require.NoError(t, c.Start())
		t.Cleanup(func() {
			c.Process.Kill()
			c.Wait()
		})
		return c
	}
	kill := func(c *exec.Cmd) {
		require.NoError(t, c.Process.Kill())
		c.Wait()
	}
	status, m := s.call("POST", "/v1/programs", stories)
	require.Less(t, status, 300, "%v", m)

	worker := work()
	f := &follower{t: t, texts: map[string]string{}, tokens: map[string]int{}, kinds: map[string]int{}}
	f.dial(s.url, map[string]any{"type": "start", "ref": "a", "program": "stories", "seed": 3, "detach": true})
	written := func(task string, tokens int) func(map[string]any) bool {
		return func(map[string]any) bool { return f.tokens[task] >= tokens }
	}
	f.read(written("story", 50))
	kill(worker)
	worker = work()
	require.Zero(t, f.kinds["node_finished story"], "it was killed too late")
	f.read(written("story", 3000))
	f.again(s.url)
	f.read(func(e map[string]any) bool { return e["kind"] == "run_waits" })
	require.Equal(t, 4000, f.tokens["story"])

	// The page of the server, and whoever answers by it, see the question.
	_, x := s.call("GET", "/v1/runs/"+f.run, "")
	require.Equal(t, "waiting", x["status"])
	status, x = s.call("POST", "/v1/runs/"+f.run+"/approve", `{"task": "ok", "answer": "perhaps"}`)
	require.Equal(t, 400, status, "%v", x)
	kill(s.cmd)
	s = startServant(t, serving...)
	_, x = s.call("GET", "/v1/runs/"+f.run, "")
	require.Equal(t, "waiting", x["status"])
	status, x = s.call("POST", "/v1/runs/"+f.run+"/approve", `{"task": "ok", "answer": true}`)
	require.Equal(t, 200, status, "%v", x)

	f.again(s.url)
	f.read(written("other", 50))
	kill(s.cmd)
	require.Zero(t, f.kinds["node_finished other"], "it was killed too late")
	s = startServant(t, serving...)
	f.again(s.url)
	f.read(func(map[string]any) bool { return false })

	require.Equal(t, "finished", f.status)
	require.Equal(t, value.Story, f.texts["story"])
	require.Equal(t, value.Other, f.texts["other"])
	require.Equal(t, value.Looks, []string{f.texts["looks[0]/seen"], f.texts["looks[1]/seen"]})
	require.Equal(t, map[string]int{"story": 4000, "other": 4000, "looks[0]/seen": 20, "looks[1]/seen": 20}, f.tokens)
	for _, task := range []string{"story", "other", "looks[0]/seen", "looks[1]/seen", "ok"} {
		require.Equal(t, 1, f.kinds["node_started "+task], task)
		require.Equal(t, 1, f.kinds["node_finished "+task], task)
		require.Zero(t, f.kinds["node_retried "+task], task)
	}
	_, x = s.call("GET", "/v1/runs/"+f.run, "")
	require.Equal(t, "finished", x["status"])
	got, err := json.Marshal(x["report"].(map[string]any)["value"])
	require.NoError(t, err)
	require.JSONEq(t, string(want.Value), string(got))

	// Who comes late gets what is kept: numbers without gaps, and the text.
	late := &follower{t: t, run: f.run, texts: map[string]string{}, tokens: map[string]int{}, kinds: map[string]int{}}
	status, x = s.call("GET", "/v1/runs/"+f.run+"/tree", "")
	require.Equal(t, 200, status)
	require.EqualValues(t, f.last, x["seq"])
	late.last = f.last - 1
	late.dial(s.url, map[string]any{"type": "watch", "ref": "late", "run": f.run, "after": late.last})
	late.read(func(map[string]any) bool { return false })
	require.Equal(t, f.last, late.last)
	kill(worker)
}

// TestDurableReportIsFoundAgain: of a run that is over the report is there, though the
// server was killed before it was written down; Temporal has it. A server whose Temporal
// does not know a run that was begun does not begin it again, since that would do again
// what was done.
func TestDurableReportIsFoundAgain(t *testing.T) {
	dir := t.TempDir()
	state, other, data := filepath.Join(dir, "state"), filepath.Join(dir, "other"), filepath.Join(dir, "data")
	t.Cleanup(func() { endServerOf(state); endServerOf(other) })
	s := startServant(t, "--durable", "--state", state, "--data", data)
	status, m := s.call("POST", "/v1/programs", asksLast)
	require.Less(t, status, 300, "%v", m)
	begin := func() (string, float64) {
		_, m := s.call("POST", "/v1/programs/asks/runs", `{"seed": 3}`)
		run, last := m["id"].(string), 0.0
		s.events(run, 0, func(e map[string]any) bool {
			last = e["seq"].(float64)
			return e["kind"] != "run_waits"
		})
		return run, last
	}
	waits, told := begin()
	over, _ := begin()
	status, m = s.call("POST", "/v1/runs/"+over+"/approve", `{"answer": true}`)
	require.Equal(t, 200, status, "%v", m)
	s.events(over, 0, func(map[string]any) bool { return true })
	_, want := s.call("GET", "/v1/runs/"+over, "")
	require.Equal(t, "finished", want["status"])
	s.kill()

	// As it is when the end was told and no more.
	files := filepath.Join(data, "anyone", "runs", over)
	text, err := os.ReadFile(filepath.Join(files, "run.json"))
	require.NoError(t, err)
	var meta map[string]any
	require.NoError(t, json.Unmarshal(text, &meta))
	delete(meta, "status")
	delete(meta, "ended")
	text, err = json.Marshal(meta)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(files, "run.json"), text, 0o600))
	require.NoError(t, os.Remove(filepath.Join(files, "report.json")))

	end := func(s *servant, run string) map[string]any {
		s.events(run, 0, func(map[string]any) bool { return true })
		_, m := s.call("GET", "/v1/runs/"+run, "")
		return m
	}
	s = startServant(t, "--durable", "--state", other, "--data", data)
	x := end(s, over)
	require.Equal(t, "finished", x["status"])
	require.Equal(t, want["report"].(map[string]any)["value"], x["report"].(map[string]any)["value"], "its end told it")
	x = end(s, waits)
	require.Equal(t, "interrupted", x["status"], "%v", x)
	require.Contains(t, x["error"].(map[string]any)["message"], "unknown run")
	s.term()

	s = startServant(t, "--durable", "--state", state, "--data", data)
	x = end(s, over)
	want["finished_at"] = x["finished_at"] // by the event; by the server's clock a moment later
	require.Equal(t, want, x)
	_, x = s.call("GET", "/v1/runs/"+waits, "")
	require.Equal(t, "waiting", x["status"])
	status, x = s.call("POST", "/v1/runs/"+waits+"/approve", `{"answer": true}`)
	require.Equal(t, 200, status, "%v", x)
	first := 0.0
	s.events(waits, int(told), func(e map[string]any) bool {
		if first == 0 {
			first = e["seq"].(float64)
		}
		return true
	})
	require.Equal(t, told+1, first, "numbers go on")
	x = end(s, waits)
	require.Equal(t, "finished", x["status"])
	require.Equal(t, want["report"].(map[string]any)["value"], x["report"].(map[string]any)["value"])
	s.term()
}
