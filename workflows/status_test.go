package workflows

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"

	"github.com/coppice-run/coppice/runtime"
)

// TestStatusShowsWhereARunStands: the search attribute follows the run, over new
// histories too, and costs nothing where it does not change.
func TestStatusShowsWhereARunStands(t *testing.T) {
	var calls, seen []string
	r := newRig(t, clever(), pager(&calls), `
name: stands
steps:
- user: one
- gen: {name: a, max_tokens: 5}
- gen: {name: b, max_tokens: 5}
- wait: {name: ok, ask: "May I?"}
- call: {name: sent, func: page, args: ['"x"'], result: string, unsafe: true}
- sleep: {for: 1h}
- return: sent
`, nil, StartOptions{SearchAttributes: true})
	r.each = func() {
		r.env.OnUpsertTypedSearchAttributes(mock.Anything).Return(nil).Run(func(args mock.Arguments) {
			s, ok := args.Get(0).(temporal.SearchAttributes).GetKeyword(attrStatus)
			require.True(t, ok)
			seen = append(seen, s)
		})
		r.env.OnActivity(activityCall, mock.Anything, mock.Anything).Return(nil, temporal.NewHeartbeatTimeoutError())
		answered := len(seen) > 1
		r.env.RegisterDelayedCallback(func() {
			if !answered {
				r.env.SignalWorkflow(Answers, Answer{Task: "ok", Value: []byte("true")})
			}
		}, time.Hour)
		r.env.RegisterDelayedCallback(func() {
			r.env.UpdateWorkflow(Settles, "", &testsuite.TestUpdateCallback{
				OnReject: func(err error) { t.Error(err) }, OnAccept: func() {}, OnComplete: func(any, error) {},
			}, Settlement{Task: "sent", Result: []byte(`"by hand"`)})
		}, 2*time.Hour)
	}
	r.fresh()
	_, err := r.run()
	require.NoError(t, err)
	require.Equal(t, []string{statusWaiting, statusWorking, statusUnknown, statusWorking, statusFinished}, seen)
	for name, kind := range SearchAttributes() {
		require.Equal(t, "Keyword", kind, name)
	}
	require.Len(t, SearchAttributes(), 3)
}

// TestUnfitWorkerSaysSo: a run that this version cannot carry out is left alone,
// and somebody is told what it needs.
func TestUnfitWorkerSaysSo(t *testing.T) {
	for name, c := range map[string]struct {
		change func(in *Input)
		says   string
	}{
		"newer format":  {func(in *Input) { in.Format++ }, "was begun by a newer coppice"},
		"another graph": {func(in *Input) { in.GraphHash = "0000" }, "has the hash"},
		"no graph":      {func(in *Input) { in.Graph = []byte(`{"coppice":1,"steps":[{"leap":{}}]}`) }, "cannot be read by this version"},
		"other results": {func(in *Input) { in.Results = []runtime.Result{{Task: "nowhere"}} }, "does not fit it"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, clever(), nil, patient, nil, StartOptions{})
			r.in.Coppice = "v7.8.9"
			var told []string
			r.w.cfg.Trouble = func(run, message string) { told = append(told, fmt.Sprint(run, ": ", message)) }
			c.change(r.in)
			for range 2 { // told once
				r.fresh()
				_, err := r.run()
				var p *temporal.PanicError
				require.ErrorAs(t, err, &p, "a panic fails the workflow task, not the run")
				require.ErrorContains(t, err, c.says)
			}
			require.Len(t, told, 1)
			require.Contains(t, told[0], "test: run test ")
			require.Contains(t, told[0], c.says)
			if name != "newer format" {
				require.Contains(t, told[0], "coppice v7.8.9")
			}
		})
	}
}
