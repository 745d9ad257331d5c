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
