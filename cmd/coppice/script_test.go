package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend/sapling"
)

// asCommand in the environment makes the test binary be the command.
const asCommand = "COPPICE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	if at := os.Getenv(dieAt); at != "" {
		die(at, os.Args[1], os.Args[2])
	}
	testscript.Main(m, map[string]func(){"coppice": main})
}

// TestScripts runs the command lines of testdata/*.txtar as a user would type
// them, each in a folder of its own.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"damage": damage},
	})
}

// damage FROM TO copies a file with a byte in its middle changed.
func damage(ts *testscript.TestScript, _ bool, args []string) {
	data := []byte(ts.ReadFile(args[0]))
	data[len(data)/2] ^= 1
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), data, 0o644))
}

func TestUsageErrorsAreExitCode2(t *testing.T) {
	for _, args := range [][]string{
		{"run"}, {"run", "a", "b"}, {"run", "nosuch"}, {"run", "missing.yaml"},
		{"run", "triage", "--input", "noequals"}, {"run", "triage", "--input", "nosuch=1"},
		{"run", "triage", "--model", "nosuch"}, {"run", "triage", "--model", "a", "--backend", "b"},
		{"bench", "nosuch"}, {"tokenize"}, {"generate"}, {"nosuch"}, {"run", "--nosuch"},
		{"run", "triage", "--journal", ""}, {"run", "triage", "--threads", "-1"}, {"generate", "--prompt", "x", "--threads", "-1"},
		{"resume", "nosuch"}, {"resume", "script_test.go"}, {"journal", "nosuch"}, {"journal", "script_test.go"},
		{"run", "testdata/calls.yaml"},
	} {
		if code := run(context.Background(), args, nil, devNull(t), devNull(t)); code != 2 {
			t.Errorf("coppice %q: exit code %d, want 2", args, code)
		}
	}
}

func TestJournalOfAnotherRunIsExitCode2(t *testing.T) {
	dir := t.TempDir()
	journal := filepath.Join(dir, "j")
	program := func(name, value string) string {
		path := filepath.Join(dir, name+".yaml")
		require.NoError(t, os.WriteFile(path, []byte("coppice: 1\nname: "+name+"\ninputs: {n: {type: int, default: 1}}\nsteps:\n  - return: "+value+"\n"), 0o600))
		return path
	}
	one := program("one", "n + 1")
	require.Equal(t, 0, run(t.Context(), []string{"run", one, "--journal", journal}, nil, devNull(t), devNull(t)))
	for what, args := range map[string][]string{
		"the same":        {"run", one},
		"another program": {"run", program("two", "n + 2")},
		"a changed one":   {"run", program("one", "n + 3")},
		"another input":   {"run", program("one", "n + 1"), "--input", "n=5"},
		"another seed":    {"run", one, "--seed", "9"},
	} {
		want := 2
		if what == "the same" {
			want = 0
		}
		program("one", map[bool]string{true: "n + 3", false: "n + 1"}[what == "a changed one"])
		var errOut bytes.Buffer
		require.Equal(t, want, run(t.Context(), append(args, "--journal", journal), nil, devNull(t), &errOut), "%s: %s", what, &errOut)
	}
}

func TestModelFilesThatCannotBeUsed(t *testing.T) {
	good := sapling.GGUF()
	flip := bytes.Clone(good)
	flip[bytes.Index(flip, []byte("tokenizer.ggml.tokens"))+40] ^= 0x80 // in the length of a token
	for name, data := range map[string][]byte{
		"cut early": good[:2000],
		"cut":       good[:len(good)/2],
		"cut late":  good[:len(good)-1],
		"empty":     {},
		"flipped":   flip,
		"family":    bytes.ReplaceAll(good, []byte("llama"), []byte("lxama")),
	} {
		path := filepath.Join(t.TempDir(), "m.gguf")
		require.NoError(t, os.WriteFile(path, data, 0o600))
		for _, args := range [][]string{{"generate", "--prompt", "x", "--max-tokens", "1"}, {"run", "triage"}, {"tokenize", "x"}} {
			if name == "family" && args[0] == "tokenize" {
				continue // its words are as good as any
			}
			var errOut bytes.Buffer
			code := run(t.Context(), append(args, "--model", path), nil, devNull(t), &errOut)
			require.Contains(t, []int{1, 2}, code, "%s: %v", name, args)
			require.Contains(t, errOut.String(), path)
			if name == "family" {
				require.Contains(t, errOut.String(), `unknown model family "lxama"; known are`)
			} else {
				require.Contains(t, errOut.String(), "at byte ")
				require.Contains(t, errOut.String(), "download or convert it again")
			}
		}
	}
}

// refusing takes n bytes and then fails.
type refusing struct{ n int }

func (r *refusing) Write(p []byte) (int, error) {
	if r.n -= len(p); r.n < 0 {
		return 0, errors.New("nobody reads")
	}
	return len(p), nil
}

func TestGenerationEndsWhenNobodyReadsIt(t *testing.T) {
	var errOut bytes.Buffer
	code := run(t.Context(), []string{"generate", "--prompt", "x", "--ignore-eos", "--max-tokens", "8000"}, nil, &refusing{8}, &errOut)
	require.Equal(t, 1, code)
	require.Equal(t, "coppice: writing the result: nobody reads\n", errOut.String())
}

func devNull(t *testing.T) *os.File {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
