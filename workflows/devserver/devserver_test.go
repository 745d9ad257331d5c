package devserver

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/workflows"
)

func TestMissingServerIsSaid(t *testing.T) {
	t.Setenv("COPPICE_TEMPORAL", filepath.Join(t.TempDir(), "nothing"))
	_, err := Use(context.Background(), t.TempDir(), Options{})
	require.ErrorIs(t, err, workflows.ErrNoServer)
	require.ErrorContains(t, err, "COPPICE_TEMPORAL")
}

func script(t *testing.T, text string) string {
	t.Helper()
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell")
	}
	path := filepath.Join(t.TempDir(), Binary)
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700))
	return path
}

// TestServerThatEndsAtOnce: it is started again, its log is named, and
// the folder can be used again.
func TestServerThatEndsAtOnce(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		_, err := Use(context.Background(), dir, Options{Program: script(t, "echo no such flag >&2; exit 3\n")})
		require.ErrorIs(t, err, workflows.ErrNoServer)
		require.ErrorContains(t, err, "server.log")
		data, err := os.ReadFile(filepath.Join(dir, "server.log"))
		require.NoError(t, err)
		require.Equal(t, "no such flag\n", string(data))
	}
	count := filepath.Join(t.TempDir(), "count")
	t.Setenv("COUNT", count)
	_, err := Use(context.Background(), dir, Options{Program: script(t, "echo x >>\"$COUNT\"; exit 3\n")})
	require.ErrorIs(t, err, workflows.ErrNoServer)
	data, err := os.ReadFile(count)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("x\n", starts), string(data)) // another process may have its port
}

// TestServerThatNeverAnswers is killed when the time is over.
func TestServerThatNeverAnswers(t *testing.T) {
	dir := t.TempDir()
	_, err := Use(context.Background(), dir, Options{Program: script(t, "exec sleep 1000\n"), Wait: 50 * time.Millisecond})
	require.ErrorIs(t, err, workflows.ErrNoServer)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = os.Stat(filepath.Join(dir, "server.json"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
