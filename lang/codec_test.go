package lang_test

import (
	"bytes"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

func load(t *testing.T, name string) *lang.Graph {
	t.Helper()
	g, err := lang.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestEveryStepReadsAndWritesBack(t *testing.T) {
	g := load(t, "testdata/everything.yaml")
	if got := g.Output.String(); got != "{verdict: {zone: string, area: string, count?: int}, n: int, notes: []string, checks: []{item: string, check: string}, draft: string}" {
		t.Errorf("output %s", got)
	}
	sameAfterRoundTrip(t, g)
	y, _ := g.YAML()
	t.Log(string(y))
}

// sameAfterRoundTrip writes g as JSON and YAML, reads both back and compares.
func sameAfterRoundTrip(t *testing.T, g *lang.Graph) {
	t.Helper()
	j, err := g.JSON()
	if err != nil {
		t.Fatal(err)
	}
	fromJSON, err := lang.Decode(j, "x.json")
	if err != nil {
		t.Fatalf("%v\n%s", err, j)
	}
	j2, _ := fromJSON.JSON()
	if !bytes.Equal(j, j2) {
		t.Errorf("JSON changed:\n%s\n%s", j, j2)
	}
	y, err := g.YAML()
	if err != nil {
		t.Fatal(err)
	}
	fromYAML, err := lang.Decode(y, "x.yaml")
	if err != nil {
		t.Fatalf("%v\n%s", err, y)
	}
	if fromYAML.Hash() != g.Hash() || fromJSON.Hash() != g.Hash() {
		t.Errorf("hash %s, from JSON %s, from YAML %s\n%s", g.Hash(), fromJSON.Hash(), fromYAML.Hash(), y)
	}
}

func TestBuiltProgramReadsBack(t *testing.T) {
	g, err := triage().Compile()
	if err != nil {
		t.Fatal(err)
	}
	sameAfterRoundTrip(t, g)
}

// A fork inside an open turn: each branch goes on with the turn, a branch's own
// turns would break it.
func TestForkInsideAnOpenTurn(t *testing.T) {
	g := decode(t, `steps:
  - user: Plan?
  - role:
      role: assistant
      steps:
        - text: "So far "
        - fork:
            name: ways
            each: [a, b]
            steps:
              - text: "${item}: "
              - gen: {name: way, max_tokens: 2}
              - fork:
                  name: deeper
                  each: [c, d]
                  as: sub
                  steps: [{text: "${sub} "}, {gen: {name: leaf, max_tokens: 2}}]
                  yield: leaf
            yield: join(deeper, way)
        - text: ${join(ways, ", ")}
        - gen: {name: rest, max_tokens: 2}
  - return: rest
`)
	x, err := lang.Explain(g, lang.ExplainOptions{Estimator: byteTokens{}})
	if err != nil {
		t.Fatal(err)
	}
	if len(x.Branches) != 6 || x.Branches[1].ID != "role/ways[0]/deeper[0]" || len(x.Lints) != 0 {
		t.Errorf("%+v %v", x.Branches, x.Lints)
	}
	// <u>Plan?</><a>So far , which no branch changes.
	if x.Trunk.Tokens != (lang.Range{Min: 15, Max: 15}) {
		t.Errorf("%+v", x.Trunk)
	}
	_, err = lang.Decode([]byte("coppice: 1\nname: x\nsteps:\n  - role:\n      role: assistant\n      steps:\n        - fork: {name: f, each: [a], steps: [{user: hi}]}\n"), "x.yaml")
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("a user turn inside the open assistant turn")) {
		t.Error(err)
	}
}
