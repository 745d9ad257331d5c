package workflows

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	history "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/coppice-run/coppice/backend/puppet"
)

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
	r, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{
		DataConverter:    Converter(dir, nil),
		FailureConverter: FailureConverter(Converter(dir, nil), nil),
		// A busy machine is no deadlock.
		DisableDeadlockDetection: true,
	})
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
