//go:build durable

package main

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// These tests need a real Temporal server, and so a build tag: make test-temporal.

// engineProcess is 'coppice serve' as a process of its own, behind a proxy that
// keeps its address while it is killed and started again, and counts the answers
// that it gave to their end.
type engineProcess struct {
	t       *testing.T
	url     string // of the proxy
	answers atomic.Int32
	refused chan struct{} // a request found no engine

	mu  sync.Mutex
	at  *url.URL // of the process
	cmd *exec.Cmd
}

func newEngineProcess(t *testing.T) *engineProcess {
	e := &engineProcess{t: t, refused: make(chan struct{}, 1)}
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			e.mu.Lock()
			defer e.mu.Unlock()
			r.SetURL(e.at)
		},
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodPost && r.StatusCode == http.StatusOK {
				r.Body = &counted{r.Body, &e.answers}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway)
			select {
			case e.refused <- struct{}{}:
			default:
			}
		},
	}
	s := httptest.NewServer(proxy)
	t.Cleanup(s.Close)
	e.url = "openai+" + s.URL + "/v1?model=sapling"
	e.start()
	t.Cleanup(e.kill)
	return e
}

// counted counts a body that was read to its end.
type counted struct {
	io.ReadCloser
	n *atomic.Int32
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	if err == io.EOF {
		c.n.Add(1)
	}
	return n, err
}

func (e *engineProcess) start() {
	c := command(e.t, "serve", "--addr", "127.0.0.1:0")
	out, err := c.StdoutPipe()
	require.NoError(e.t, err)
	require.NoError(e.t, c.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(e.t, err)
	_, at, ok := strings.Cut(strings.TrimSpace(line), " on ")
	require.True(e.t, ok, line)
	u, err := url.Parse(at)
	require.NoError(e.t, err)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cmd, e.at = c, u
}

func (e *engineProcess) kill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
}

// TestDurableRunOutlivesItsEngine kills the engine, and nothing else, in the middle
// of a durable run, again and again: the run ends as an undisturbed one, and no
// generation that was finished is asked for again.
func TestDurableRunOutlivesItsEngine(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "rounds.yaml")
	require.NoError(t, os.WriteFile(program, []byte(`coppice: 1
name: rounds
steps:
- system: You look at alerts.
- fork:
    name: looks
    each: [memory, disk, network]
    steps:
    - repeat:
        name: rounds
        max: 4
        index: i
        steps:
        - user: Look at ${item}, round ${i}.
        - gen: {name: seen, max_tokens: 40, ignore_eos: true}
    yield: seen
- user: ${join(looks, "; ")}
- gen: {name: last, max_tokens: 40, ignore_eos: true}
- return: '{looks: looks, last: last}'
`), 0o600))
	e := newEngineProcess(t)
	want := runJSON(t, "run", program, "--backend", e.url, "--json")
	asked := e.answers.Swap(0)
	require.GreaterOrEqual(t, asked, int32(13))

	durable := []string{"run", program, "--durable", "--backend", e.url, "--state", filepath.Join(dir, "state"), "--name", "killed", "--retries", "60"}
	c := command(t, durable...)
	stderr, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	defer c.Process.Kill()
	var log bytes.Buffer
	lines := bufio.NewScanner(io.TeeReader(stderr, &log))
	kills := 0
	for n := 0; lines.Scan(); n++ {
		if n%3 == 2 && kills < 4 { // after some nodes, while others are under way
			select {
			case <-e.refused: // of the kill before
			default:
			}
			e.kill()
			kills++
			select {
			case <-e.refused:
			case <-time.After(10 * time.Second): // nothing was left to ask
			}
			e.start()
		}
	}
	require.NoError(t, c.Wait(), log.String())
	require.Equal(t, 4, kills, log.String())
	require.Equal(t, asked, e.answers.Load(), "answers that were given to their end")
	got := runJSON(t, append(durable, "--json")...)
	require.JSONEq(t, string(want.Value), string(got.Value))
	require.JSONEq(t, string(want.Variables), string(got.Variables))
	require.Equal(t, want.Branches, got.Branches)
	require.Equal(t, asked, e.answers.Load(), "the run was over")
}
