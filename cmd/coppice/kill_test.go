package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/runtime"
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
	for finished := range 7 {
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

		requireOneResultEach(t, journal, 7)
	}
}

// requireOneResultEach reads a journal as the text it is.
func requireOneResultEach(t *testing.T, journal string, tasks int) {
	t.Helper()
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
	require.Len(t, results, tasks)
	for task, n := range results {
		require.Equal(t, 1, n, "%s has %d results", task, n)
	}
}

// dieAt in the environment makes the test binary run the program that is its
// first argument, with the journal that is its second, and kill itself at that
// many pieces of generated text.
const dieAt = "COPPICE_TEST_DIE_AT"

// mortal kills its process with the nth piece of text.
type mortal struct{ left int }

func (m *mortal) Emit(e runtime.Event) {
	if e.Kind != runtime.TextDelta {
		return
	}
	if m.left--; m.left > 0 {
		return
	}
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
		select {} // nothing more happens here
	}
}

func die(at, program, journal string) {
	err := func() error {
		n, err := strconv.Atoi(at)
		if err != nil {
			return err
		}
		g, funcs, err := loadProgram(program)
		if err != nil {
			return err
		}
		ctx := context.Background()
		m := &modelFlags{model: "sapling"}
		be, err := m.open(ctx)
		if err != nil {
			return err
		}
		defer be.Close()
		_, err = runtime.RunGraph(ctx, be, g, funcs, nil, runtime.WithJournal(journal),
			runtime.WithBackendURL("engine://sapling"), runtime.WithSink(&mortal{n}))
		return err
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// shortLooks is a program of a few dozen tokens; sampling must be resumed from
// its seed.
const shortLooks = `coppice: 1
name: short
steps:
  - user: Pod web-1 is in CrashLoopBackOff
  - fork:
      name: looks
      each: [memory, rollout, network]
      as: side
      steps:
        - user: Look only at ${side}.
        - gen: {name: finding, max_tokens: 6, min_tokens: 6, temperature: 0.8}
        - gen: {name: more, max_tokens: 5, min_tokens: 5}
      yield: finding + more
  - user: "Findings: ${join(looks, \"; \")}"
  - select: {name: severity, options: [low, high]}
  - gen: {name: last, max_tokens: 9, min_tokens: 9, temperature: 1.1}
  - return: 'severity + ": " + last'
`

// TestKilledInTheMiddleOfATokenStream kills the process while its branches
// write, again and again in one journal, at later and later tokens.
func TestKilledInTheMiddleOfATokenStream(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "short.yaml")
	require.NoError(t, os.WriteFile(program, []byte(shortLooks), 0o600))
	want := runJSON(t, "run", program, "--json")
	first, step := 1, 4
	if testing.Short() {
		first, step = 8, 15
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	for begin := range 2 {
		journal := filepath.Join(dir, fmt.Sprint("journal", begin))
		kills, restored := 0, 0
		for at := first + begin*step/2; ; at += step {
			c := exec.Command(exe, program, journal)
			c.Env = append(os.Environ(), dieAt+"="+strconv.Itoa(at))
			out, err := c.CombinedOutput()
			if err == nil {
				break
			}
			require.False(t, c.ProcessState.Exited(), "the process died by itself: %s", out)
			kills++
			info, err := runtime.ReadJournal(journal)
			require.NoError(t, err)
			require.False(t, info.Ended)
			require.GreaterOrEqual(t, info.Results, restored, "a result is lost")
			restored = info.Results
		}
		require.GreaterOrEqual(t, kills, 2)
		got := runJSON(t, "resume", journal, "--json")
		require.Equal(t, 8, got.Restored)
		require.JSONEq(t, string(want.Value), string(got.Value))
		require.JSONEq(t, string(want.Variables), string(got.Variables))
		require.Equal(t, want.Branches, got.Branches)
		requireOneResultEach(t, journal, 8)
	}
}
