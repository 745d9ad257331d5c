package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// command is this test binary as the command coppice.
func command(t *testing.T, args ...string) *exec.Cmd {
	exe, err := os.Executable()
	require.NoError(t, err)
	c := exec.Command(exe, args...)
	c.Env = append(os.Environ(), asCommand+"=1")
	return c
}

// outcome is what must not depend on a run's interruptions.
type outcome struct {
	Value     json.RawMessage `json:"value"`
	Variables json.RawMessage `json:"variables"`
	Branches  []struct {
		ID    string          `json:"id"`
		Value json.RawMessage `json:"value"`
	} `json:"branches"`
	Restored int `json:"restored"`
}

func runJSON(t *testing.T, args ...string) outcome {
	c := command(t, args...)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	require.NoError(t, err, "%v: %s", args, stderr.String())
	var o outcome
	require.NoError(t, json.Unmarshal(out, &o))
	return o
}

// TestKilledRunGoesOn kills a real process with SIGKILL after each finished
// node, and once before the first, and goes on: no finished node runs twice, and
// the result is that of an undisturbed run.
func TestKilledRunGoesOn(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the demo several times")
	}
	want := runJSON(t, "run", "triage", "--json")
	for finished := range 5 {
		journal := filepath.Join(t.TempDir(), "run.journal")
		c := command(t, "run", "triage", "--journal", journal)
		stderr, err := c.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		lines := bufio.NewScanner(stderr)
		for range finished {
			require.True(t, lines.Scan(), "the process ended before %d nodes were finished", finished)
		}
		require.NoError(t, c.Process.Kill())
		_ = c.Wait()

		var got outcome
		if finished == 0 {
			// Perhaps nothing was recorded yet: then there is nothing to resume,
			// and the same command begins.
			got = runJSON(t, "run", "triage", "--journal", journal, "--json")
		} else {
			got = runJSON(t, "resume", journal, "--json")
			require.GreaterOrEqual(t, got.Restored, finished)
		}
		require.JSONEq(t, string(want.Value), string(got.Value))
		require.JSONEq(t, string(want.Variables), string(got.Variables))
		require.Equal(t, want.Branches, got.Branches)

		results := map[string]int{}
		data, err := os.ReadFile(journal)
		require.NoError(t, err)
		for line := range strings.Lines(string(data)) {
			var r struct {
				Kind   string `json:"kind"`
				Result struct {
					Task string `json:"task"`
				} `json:"result"`
			}
			_, text, _ := strings.Cut(line, " ")
			require.NoError(t, json.Unmarshal([]byte(text), &r))
			if r.Kind == "result" {
				results[r.Result.Task]++
			}
		}
		require.Len(t, results, 5)
		for task, n := range results {
			require.Equal(t, 1, n, "%s has %d results", task, n)
		}
	}
}
