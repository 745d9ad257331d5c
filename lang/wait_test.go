package lang

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const waiting = `coppice: 1
name: careful
inputs:
  team: string
steps:
  - sleep: {for: 1m30s}
  - wait:
      name: approved
      ask: Page ${team}?
      type: bool
      timeout: 1h0m0s
      default: false
  - wait: {name: note, ask: 'Why?', type: string}
  - return: '{ok: approved, why: note}'
`

func TestWaitsComeBackFromFiles(t *testing.T) {
	g, err := Decode([]byte(waiting), "careful.yaml")
	require.NoError(t, err)
	require.Equal(t, 90*time.Second, g.Node("sleep").Sleep.For)
	w := g.Node("approved").Wait
	require.Equal(t, time.Hour, w.Timeout)
	require.Equal(t, "false", string(w.Default))
	require.Equal(t, []string{"team"}, g.Node("approved").Reads)
	require.Equal(t, TypeBool, w.Type.Kind)
	y, err := g.YAML()
	require.NoError(t, err)
	require.Equal(t, waiting, string(y))
	j, err := g.JSON()
	require.NoError(t, err)
	again, err := Decode(j, "")
	require.NoError(t, err)
	require.Equal(t, g.Hash(), again.Hash())
}

func TestWaitsOfTheBuilder(t *testing.T) {
	type plan struct {
		Go   bool   `json:"go"`
		Note string `json:"note"`
	}
	def := Define("careful", func(p *Program) Var[plan] {
		team := In[string](p, "team")
		p.Sleep(time.Minute)
		return WaitFor[plan](p, "plan", "What about ", team, "?", AnswerWithin(time.Hour), AnswerDefault(plan{Note: "nobody"}))
	})
	g, err := def.Compile()
	require.NoError(t, err)
	w := g.Node("plan").Wait
	require.Equal(t, Template("What about ${team}?"), w.Ask)
	require.JSONEq(t, `{"go":false,"note":"nobody"}`, string(w.Default))
	require.Equal(t, "bool", w.Type.Fields[0].Type.String())
}

func TestWrongWaitsAreSaid(t *testing.T) {
	for steps, want := range map[string]string{
		"- sleep: {for: 0s}":                                       "a sleep of 0s",
		"- sleep: {for: -5m}":                                      "a sleep of -5m",
		"- sleep: {for: soon}":                                     "no duration",
		"- sleep: {for: 12}":                                       "no duration",
		"- sleep: {for: 2000000h}":                                 "a sleep of",
		"- sleep: {}":                                              "say how long",
		"- wait: {ask: x}":                                         "without a name",
		"- wait: {name: a, timeout: -1s}":                          "a timeout of -1s",
		"- wait: {name: a, default: true}":                         "never taken",
		"- wait: {name: a, timeout: 1h, default: maybe}":           "default",
		"- wait: {name: a, type: int, timeout: 1h, default: x}":    "default",
		"- wait: {name: a, ask: '${nothing}'}":                     "nothing",
		"- wait: {name: a, until: tomorrow}":                       "until",
		"- wait: {name: a}\n- let: {name: b, value: 'a + 1'}":      "b",
		"- wait: {name: a}\n- wait: {name: a}":                     "set already",
		"- sleep: {name: 'a b', for: 1s}":                          "cannot name",
		"- sleep: {name: z, for: 1s}\n- sleep: {name: z, for: 1s}": "taken",
	} {
		_, err := Decode([]byte("coppice: 1\nname: x\nsteps:\n"+steps+"\n"), "x.yaml")
		require.Error(t, err, steps)
		require.Contains(t, err.Error(), want, steps)
		require.Contains(t, err.Error(), "x.yaml:", steps)
	}
}

func TestWaitsAreInPictures(t *testing.T) {
	g, err := Decode([]byte(waiting), "careful.yaml")
	require.NoError(t, err)
	pic := Mermaid(g)
	require.True(t, strings.Contains(pic, "wait for approved") && strings.Contains(pic, "sleep 1m30s"), pic)
}
