package engine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
)

// All that an engine computed is in its passes, which do not overlap.
func TestPassesAccountForTheWork(t *testing.T) {
	e := newFake(t, func(c *Config, _ *fakeModel) { c.MaxBatchTokens = 8 })
	r := mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{raw(longText(20))}, MaxTokens: 10})
	all := e.Passes(0)
	prompt, generated := 0, 0
	for i, p := range all {
		require.Equal(t, uint64(i+1), p.Number)
		require.Equal(t, 1, p.Sequences)
		require.False(t, p.End.Before(p.Start))
		if i > 0 {
			require.False(t, p.Start.Before(all[i-1].End))
		}
		prompt += p.Prompt
		generated += p.Generated
	}
	assert.Equal(t, r.Usage.PromptTokens, prompt)
	assert.Equal(t, r.Usage.ComputedTokens, prompt+generated)
	assert.Equal(t, all[3:], e.Passes(3))
	assert.Empty(t, e.Passes(uint64(len(all))))

	nodes, n := e.Tree(100, 4)
	assert.Len(t, nodes, n)
	require.NotEmpty(t, nodes)
	assert.LessOrEqual(t, len(nodes[0].First), 4)
}

// The ring keeps the newest, in order.
func TestPassesAreBounded(t *testing.T) {
	var p passRing
	for i := range uint64(passesKept + 10) {
		p.add(nil, i+1, time.Time{})
	}
	e := &Engine{}
	e.recent.ring, e.recent.next = p.ring, p.next
	got := e.Passes(0)
	require.Len(t, got, passesKept)
	assert.Equal(t, uint64(11), got[0].Number)
	assert.Equal(t, uint64(passesKept+10), got[passesKept-1].Number)
}
