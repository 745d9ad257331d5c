//go:build durable && web

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// This test needs a real Temporal server, node with the packages of
// runtime/serve/web/package-lock.json, and Chromium; .ci/web sets the tags where make
// temporal was done.

// TestWebAnswersADurableRun: a person starts a durable run by the page in a browser; the
// server is killed while the run waits; in the page of the next one they say yes with a
// click, and the run on Temporal has that answer.
func TestWebAnswersADurableRun(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	t.Cleanup(func() { endServerOf(state) })
	s := startServant(t, "--durable", "--state", state)
	status, m := s.call("POST", "/v1/programs", `coppice: 1
name: asks
inputs: {alert: string}
steps:
- system: You look at alerts.
- user: ${alert}
- gen: {name: note, max_tokens: 8}
- wait: {name: ok, ask: "Page the team?", type: bool, timeout: 24h, default: false}
- return: '{paged: ok}'
`)
	require.Less(t, status, 300, "%v", m)
	page := func(env ...string) string {
		c := exec.CommandContext(t.Context(), "node", "test/durable.mjs")
		c.Dir = filepath.Join("..", "..", "runtime", "serve", "web")
		c.Env = append(append(os.Environ(), "URL="+s.url), env...)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s\nthe server wrote:\n%s", out, &s.log)
		return string(out)
	}
	_, run, found := strings.Cut(page(), "run ")
	require.True(t, found)
	run = strings.TrimSpace(run)
	s.kill()
	s = startServant(t, "--durable", "--state", state)
	page("RUN=" + run)
	_, x := s.call("GET", "/v1/runs/"+run, "")
	require.Equal(t, "finished", x["status"])
	value, err := json.Marshal(x["report"].(map[string]any)["value"])
	require.NoError(t, err)
	require.JSONEq(t, `{"paged": true}`, string(value))
	s.term()
}
