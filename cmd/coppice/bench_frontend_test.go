package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRunsAreHeldTogether: the memory of many runs is measured while all of them are
// on, and a run that is cut off is no figure.
func TestRunsAreHeldTogether(t *testing.T) {
	_, err := holdRuns(t.Context(), 200)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = holdRuns(ctx, 200)
	require.ErrorIs(t, err, context.Canceled)
}
