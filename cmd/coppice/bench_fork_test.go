package main

import (
	"bytes"
	"context"
	"encoding/json"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
)

// interrupting ends its context with the call number at.
type interrupting struct {
	nullDevice
	calls  *atomic.Int32
	at     int32
	cancel func()
}

func (d interrupting) Generate(ctx context.Context, req *backend.Request, _ func(backend.Delta)) (*backend.Result, error) {
	if d.calls.Add(1) == d.at {
		d.cancel()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return &backend.Result{Usage: backend.Usage{PromptTokens: 100, ComputedTokens: 40}}, nil
}

func TestInterruptedBenchmarkPrintsWhatItHas(t *testing.T) {
	for _, c := range []struct {
		at   int32 // call that is interrupted; 1 is the first answer
		rows int
		what string
	}{
		{1, 0, ""},
		{2 + 1 + 8, 2 + 2*3, "8 branches, 32 tokens each (ratio: to 1 branch), 1 of 2 runs"}, // in the branches of 32
		{2 + 2*(1+8+32) + 8, 2 + 3*3 + 2, "8 branches, prompt not computed before (ratio: to computed before)"},
		{0, 2 + 3*3 + 4, "8 branches that share nothing: tokens computed, each branch"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var out, log bytes.Buffer
		a := &app{out: &out, errOut: &log}
		rows, err := forkRows(a, ctx, &benchOptions{runs: 2}, interrupting{calls: new(atomic.Int32), at: c.at, cancel: cancel})
		err = a.reportBench(ctx, rows, err, true)
		require.Contains(t, log.String(), "1 of 9: the shared prompt and a first answer\n")
		if c.at == 0 {
			require.NoError(t, err)
			require.Contains(t, log.String(), "9 of 9: 8 branches that share nothing\n")
		} else {
			require.Equal(t, 130, exitCode(ctx, err))
			require.ErrorContains(t, err, "interrupted")
		}
		cancel()
		if c.rows == 0 {
			require.Empty(t, out.String())
			continue
		}
		var r benchReport
		require.NoError(t, json.Unmarshal(out.Bytes(), &r))
		require.Len(t, r.Rows, c.rows)
		require.Equal(t, c.at > 0, r.Incomplete == "interrupted")
		require.Contains(t, out.String(), c.what)
		out.Reset()
		require.NoError(t, a.printBench(r))
		require.Equal(t, c.at > 0, bytes.Contains(out.Bytes(), []byte("not all of it: interrupted")))
	}
}
