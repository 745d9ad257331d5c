package main

import (
	"context"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// asCommand in the environment makes the test binary be the command.
const asCommand = "COPPICE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
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
	} {
		if code := run(context.Background(), args, nil, devNull(t), devNull(t)); code != 2 {
			t.Errorf("coppice %q: exit code %d, want 2", args, code)
		}
	}
}

func devNull(t *testing.T) *os.File {
	f, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
