package workflows

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/api/serviceerror"
)

// TestWhoIsNotReadyIsAskedAgain: a run between two histories answers nothing for a moment.
// Who is stuck is asked for some seconds.
func TestWhoIsNotReadyIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		not := func() error { asked++; return serviceerror.NewWorkflowNotReady("a workflow task has failed") }
		require.NoError(t, whenReady(t.Context(), func() error {
			if asked < 3 {
				return not()
			}
			return nil
		}))
		require.Equal(t, 3, asked)

		began := time.Now()
		require.ErrorAs(t, whenReady(t.Context(), not), new(*serviceerror.WorkflowNotReady))
		require.LessOrEqual(t, time.Since(began), readyWithin)
		require.Greater(t, time.Since(began), readyWithin/2)

		gone, cancel := context.WithCancel(t.Context())
		cancel()
		began, asked = time.Now(), 0
		require.Error(t, whenReady(gone, not))
		require.Equal(t, 1, asked)
		require.Zero(t, time.Since(began))

		final := errors.New("no")
		require.Equal(t, final, whenReady(t.Context(), func() error { return final }))
	})
}
