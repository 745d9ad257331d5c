//go:build durable

package workflows

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	enums "go.temporal.io/api/enums/v1"
	history "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/coppice-run/coppice/backend/puppet"
)

// record writes the history of a run.
func record(ctx context.Context, c *Client, name string, w io.Writer) (int, error) {
	it := c.GetWorkflowHistory(ctx, name, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	h := &history.History{}
	for it.HasNext() {
		e, err := it.Next()
		if err != nil {
			return 0, err
		}
		h.Events = append(h.Events, e)
	}
	data, err := protojson.Marshal(h)
	if err == nil {
		_, err = w.Write(data)
	}
	return len(h.Events), err
}

// replay runs the workflow code over a history.
func replay(data []byte, store string) error {
	dir, err := OpenDir(store)
	if err != nil {
		return err
	}
	h := &history.History{}
	if err := protojson.Unmarshal(data, h); err != nil {
		return err
	}
	w := newWorker(Config{Backend: puppet.Null{}, Store: dir})
	r, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{DataConverter: Converter(dir, nil)})
	if err != nil {
		return err
	}
	r.RegisterWorkflowWithOptions(w.run, workflow.RegisterOptions{Name: WorkflowType})
	return r.ReplayWorkflowHistory(quiet{}, h)
}

// TestOldHistories replays what earlier versions recorded. A failure means that
// runs which are open would not go on: give the change a workflow.GetVersion.
func TestOldHistories(t *testing.T) {
	files, err := filepath.Glob("testdata/histories/*.json")
	require.NoError(t, err)
	if len(files) == 0 {
		t.Fatal("none is recorded: COPPICE_RECORD=testdata/histories make test-temporal")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			for i := range 10 {
				require.NoError(t, replay(data, "testdata/histories/store"), fmt.Sprint("replay ", i))
			}
		})
	}
}
