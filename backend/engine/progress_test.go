package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
)

func TestProgressOfALongPrompt(t *testing.T) {
	e := newFake(t, func(c *Config, _ *fakeModel) { c.MaxBatchTokens = 64 })
	req := &backend.Request{Turns: []backend.Turn{raw(longText(300))}, MaxTokens: 2, Progress: true}
	var seen []int
	res, err := e.Generate(context.Background(), req, func(d backend.Delta) {
		if d.PromptTokens > 0 {
			require.Empty(t, d.Tokens)
			seen = append(seen, d.PromptDone)
		}
	})
	require.NoError(t, err)
	require.NotEmpty(t, seen)
	require.IsIncreasing(t, seen)
	require.Less(t, seen[len(seen)-1], res.Usage.PromptTokens)

	req.Progress = false
	req.Turns = []backend.Turn{raw("other " + longText(300))}
	_, err = e.Generate(context.Background(), req, func(d backend.Delta) { require.Zero(t, d.PromptTokens) })
	require.NoError(t, err)
}
