package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/require"
)

// asksLast is shortLooks with a question before its last text.
var asksLast = strings.Replace(strings.Replace(shortLooks, "name: short", "name: asks", 1),
	"  - gen: {name: last,", "  - wait: {name: ok, ask: \"Go on?\", type: bool}\n  - gen: {name: last,", 1)

// servant is a server in a process of its own.
type servant struct {
	t   *testing.T
	cmd *exec.Cmd
	url string
	log bytes.Buffer
}

func startServant(t *testing.T, args ...string) *servant {
	t.Helper()
	s := &servant{t: t, cmd: command(t, append([]string{"serve", "--addr", "127.0.0.1:0", "--threads", "1"}, args...)...)}
	s.cmd.Stderr = &s.log
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "%s", &s.log)
	_, s.url, _ = strings.Cut(strings.TrimSpace(line), " on ")
	return s
}

// kill ends the process at once, and term as a supervisor does.
func (s *servant) kill() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Kill())
	s.cmd.Wait()
}

func (s *servant) term() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(s.t, s.cmd.Wait(), "%s", &s.log)
}

func (s *servant) call(method, path, body string) (status int, m map[string]any) {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	require.NoError(s.t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	require.NoError(s.t, json.NewDecoder(resp.Body).Decode(&m))
	return resp.StatusCode, m
}

// events calls take for the events of a run after a number, until it returns false
// or the stream ends.
func (s *servant) events(run string, after int, take func(e map[string]any) bool) {
	s.t.Helper()
	req, err := http.NewRequest("GET", s.url+"/v1/runs/"+run+"/events", nil)
	require.NoError(s.t, err)
	req.Header.Set("Last-Event-ID", strconv.Itoa(after))
	resp, err := http.DefaultClient.Do(req)
	require.NoError(s.t, err)
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e map[string]any
		require.NoError(s.t, json.Unmarshal([]byte(data), &e))
		if !take(e) {
			return
		}
	}
}

// TestServerIsKilled kills a server while a run writes, again and again, and ends
// it in order once; another goes on each time. A reader that comes again by number
// gets each event once, no finished node runs twice, and the result is that of a
// server which nobody disturbed.
func TestServerIsKilled(t *testing.T) {
	var all []map[string]any
	take := func(e map[string]any) { // each event has the next number
		require.EqualValues(t, len(all)+1, e["seq"], "%v", e)
		all = append(all, e)
	}
	begin := func(s *servant) string {
		status, m := s.call("POST", "/v1/programs", asksLast)
		require.Less(t, status, 300, "%v", m)
		_, m = s.call("POST", "/v1/programs/asks/runs", `{"seed": 3}`)
		return m["id"].(string)
	}
	approve := func(s *servant, run string) {
		status, m := s.call("POST", "/v1/runs/"+run+"/approve", `{"answer": true}`)
		require.Equal(t, 200, status, "%v", m)
	}
	waiting := func(e map[string]any) bool { return e["kind"] == "run_waits" }

	undisturbed := startServant(t)
	id := begin(undisturbed)
	undisturbed.events(id, 0, func(e map[string]any) bool { return !waiting(e) })
	approve(undisturbed, id)
	undisturbed.events(id, 0, func(map[string]any) bool { return true })
	_, want := undisturbed.call("GET", "/v1/runs/"+id, "")
	undisturbed.kill()

	dir := filepath.Join(t.TempDir(), "data")
	s := startServant(t, "--data", dir)
	id = begin(s)
	kills := 0
	for asked := false; !asked; {
		// Kill it at the fourth piece of text that comes, or where it waits.
		texts := 0
		s.events(id, len(all), func(e map[string]any) bool {
			take(e)
			if e["kind"] == "delta" {
				texts++
			}
			asked = waiting(e)
			return texts < 4+3*kills && !asked
		})
		s.kill()
		kills++
		s = startServant(t, "--data", dir)
	}
	require.GreaterOrEqual(t, kills, 3)

	// The question is still there, after an end in order too. A websocket reads on.
	_, x := s.call("GET", "/v1/runs/"+id, "")
	require.Equal(t, "waiting", x["status"])
	s.term()
	s = startServant(t, "--data", dir)
	conn, _, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(s.url, "http")+"/v1/ws", nil)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.WriteJSON(map[string]any{"type": "watch", "ref": "w", "run": id, "after": len(all)}))
	approve(s, id)
	for {
		var m struct {
			Type, Status string
			Event        map[string]any
		}
		require.NoError(t, conn.ReadJSON(&m))
		if m.Type == "event" {
			take(m.Event)
		}
		if m.Type == "end" {
			require.Equal(t, "finished", m.Status)
			break
		}
	}
	_, x = s.call("GET", "/v1/runs/"+id, "")
	s.kill()

	s = startServant(t, "--data", dir)
	_, again := s.call("GET", "/v1/runs/"+id, "")
	require.Equal(t, x, again)
	var told []map[string]any
	s.events(id, 0, func(e map[string]any) bool {
		told = append(told, e)
		return true
	})
	require.Equal(t, all, told)
	s.kill()

	finished := map[any]int{}
	for _, e := range all {
		if e["kind"] == "node_finished" {
			finished[e["task"]]++
		}
	}
	require.Len(t, finished, 9)
	for task, n := range finished {
		require.Equal(t, 1, n, "%v", task)
	}
	requireOneResultEach(t, filepath.Join(dir, "anyone", "runs", id, "journal"), 9)
	require.Equal(t, "finished", again["status"])
	report := func(m map[string]any) map[string]any { return m["report"].(map[string]any) }
	require.Equal(t, report(want)["value"], report(again)["value"])
	require.Equal(t, report(want)["variables"], report(again)["variables"])
}

// A second server with the same folder is refused, with the reason.
func TestServeDataInUse(t *testing.T) {
	dir := t.TempDir()
	s := startServant(t, "--data", dir)
	c := command(t, "serve", "--addr", "127.0.0.1:0", "--data", dir)
	var stderr bytes.Buffer
	c.Stdout, c.Stderr = io.Discard, &stderr
	require.Error(t, c.Run())
	require.Contains(t, stderr.String(), "in use by another server")
	s.kill()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "coppice.data"), []byte("something else"), 0o600))
	c = command(t, "serve", "--addr", "127.0.0.1:0", "--data", dir)
	stderr.Reset()
	c.Stderr = &stderr
	require.Error(t, c.Run())
	require.Contains(t, stderr.String(), "another format")
}
