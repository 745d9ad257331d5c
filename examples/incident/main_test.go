package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// TestPagesOnce interrupts the run while it waits, answers, goes on, and then
// does the effect again as a run does that died before its record.
func TestPagesOnce(t *testing.T) {
	dir := t.TempDir()
	p := pager{filepath.Join(dir, "pages")}
	journal := filepath.Join(dir, "journal")
	be := puppet.New()
	be.OnAny().Scores(map[string]float64{"critical": -1})
	args := lang.Args{"alert": "disk full"}

	ctx, cancel := context.WithCancel(context.Background())
	_, err := runtime.Run(ctx, be, program(p), args, runtime.WithJournal(journal), runtime.WithSink(runtime.SinkFunc(func(e runtime.Event) {
		if e.Kind == runtime.NodeStarted && e.Does == string(lang.KindWait) {
			cancel()
		}
	})))
	require.ErrorIs(t, err, context.Canceled)
	list, err := runtime.Waiting(journal)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, "when/then/approved", list[0].Task) // as the command in the doc comment says
	require.Contains(t, list[0].Wait.Ask, "Severity critical. Page somebody for: disk full?")
	require.NoError(t, runtime.LeaveAnswer(journal, list[0].Task, json.RawMessage("true"), "me"))

	out, err := runtime.Run(context.Background(), be, program(p), args, runtime.WithJournal(journal))
	require.NoError(t, err)
	require.Equal(t, "critical", out.Value)
	data, err := os.ReadFile(p.file)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(data), "\n"))

	key, _, _ := strings.Cut(string(data), "\t")
	again := runtime.WithTask(context.Background(), runtime.Task{ID: "paged", Call: &runtime.Call{Key: key}})
	said, err := p.page(again, "disk full")
	require.NoError(t, err)
	require.Equal(t, "paged before", said)
}

func TestNightlyIsAProgram(t *testing.T) {
	g, err := lang.Load("../nightly/nightly.yaml")
	require.NoError(t, err)
	require.Equal(t, "nightly", g.Name)
}
