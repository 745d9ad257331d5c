package workflows

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.temporal.io/sdk/testsuite"
)

func TestSleepTakesNoTime(t *testing.T) {
	r := newRig(t, clever(), nil, `
name: patient
steps:
- sleep: {for: 72h}
- user: And now?
- gen: {name: x, max_tokens: 5}
- return: x
`, nil, StartOptions{})
	begin := r.env.Now()
	_, err := r.run()
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.env.Now().Sub(begin), 72*time.Hour)
}

const asking = `
name: asking
steps:
- fork:
    name: both
    arms:
    - name: person
      steps:
      - wait: {name: ok, ask: "May I?", type: bool, timeout: 1h, default: false}
      yield: ok
    - name: model
      steps:
      - user: Go on.
      - gen: {name: x, max_tokens: 5}
      yield: x
- return: both
`

func TestPersonAnswers(t *testing.T) {
	type step func(r *rig)
	update := func(value string, want *error) step {
		return func(r *rig) {
			r.env.UpdateWorkflow(Answers, "", &testsuite.TestUpdateCallback{
				OnReject: func(err error) { *want = err }, OnAccept: func() {}, OnComplete: func(any, error) {},
			}, Answer{Task: "both/person/ok", Value: json.RawMessage(value)})
		}
	}
	var refused error
	for name, c := range map[string]struct {
		at   time.Duration
		do   step
		want string
	}{
		"update":  {time.Minute, update("true", &refused), `[true,"both/"]`},
		"default": {2 * time.Hour, func(*rig) {}, `[false,"both/"]`},
		"signal": {time.Minute, func(r *rig) {
			r.env.SignalWorkflow(Answers, Answer{Task: "both/person/ok", Value: json.RawMessage("true")})
		}, `[true,"both/"]`},
		"signal at once": {0, func(r *rig) {
			r.env.SignalWorkflow(Answers, Answer{Task: "both/person/ok", Value: json.RawMessage("true")})
		}, `[true,"both/"]`},
		"signal of no use": {time.Minute, func(r *rig) {
			r.env.SignalWorkflow(Answers, Answer{Task: "both/person/ok", Value: json.RawMessage(`"maybe"`)})
		}, `[false,"both/"]`},
		"update refused": {time.Minute, update(`"maybe"`, &refused), `[false,"both/"]`},
	} {
		t.Run(name, func(t *testing.T) {
			refused = nil
			r := newRig(t, clever(), nil, asking, nil, StartOptions{})
			r.env.RegisterDelayedCallback(func() { c.do(r) }, c.at)
			got, err := r.run()
			require.NoError(t, err)
			var v []any
			require.NoError(t, json.Unmarshal(got.Value, &v))
			require.Len(t, v, 2)
			require.Equal(t, strings.HasPrefix(c.want, "[true"), v[0])
			if strings.HasSuffix(name, "refused") {
				require.ErrorContains(t, refused, "bool")
			} else {
				require.NoError(t, refused)
			}
		})
	}
}

func TestNobodyAnswers(t *testing.T) {
	r := newRig(t, clever(), nil, `
name: asking
steps:
- wait: {name: ok, ask: "May I?", timeout: 1h}
- return: ok
`, nil, StartOptions{})
	_, err := r.run()
	require.ErrorContains(t, err, "no answer in time")
}
