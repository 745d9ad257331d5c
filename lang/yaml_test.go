package lang_test

import (
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

func TestNumbersBeyondFloatsStayNumbers(t *testing.T) {
	schemaOf := func(data, file string) string {
		t.Helper()
		g, err := lang.Decode([]byte(data), file)
		if err != nil {
			t.Fatal(err)
		}
		return string(g.Body[0].JSON.Schema)
	}
	for _, c := range []struct{ yaml, json string }{
		{"1e999", "1e999"}, {"-1e400", "-1e400"}, {"1E+400", "1E+400"}, {"1.5e400", "1.5e400"},
		{"+1e400", "1e400"}, {".5e400", "0.5e400"}, {"5.e400", "5e400"}, {"007e400", "7e400"},
		{"'1e999'", `"1e999"`}, {`"1e999"`, `"1e999"`}, {"!!str 1e999", `"1e999"`},
		{"1e", `"1e"`}, {"e999", `"e999"`}, {".e400", `".e400"`}, {"+-1e400", `"+-1e400"`}, {"--1e400", `"--1e400"`}, {"1e2", "1e2"},
	} {
		y := schemaOf("coppice: 1\nname: p\nsteps:\n  - json:\n      name: x\n      schema:\n        const: "+c.yaml+"\n        enum: ["+c.yaml+"]\n", "p.yaml")
		if want := `{"const":` + c.json + `,"enum":[` + c.json + `]}`; y != want {
			t.Errorf("%s: got %s, want %s", c.yaml, y, want)
		}
		j := schemaOf(`{"coppice":1,"name":"p","steps":[{"json":{"name":"x","schema":`+y+`}}]}`, "p.json")
		if j != y {
			t.Errorf("%s: %s as YAML, %s as JSON", c.yaml, y, j)
		}
		g, err := lang.Decode([]byte(`{"coppice":1,"name":"p","steps":[{"json":{"name":"x","schema":`+y+`}}]}`), "p.json")
		if err != nil {
			t.Fatal(err)
		}
		text, err := g.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if back := schemaOf(string(text), "p.yaml"); back != y {
			t.Errorf("%s: written as\n%sread back as %s", y, text, back)
		}
	}
	g, err := lang.Decode([]byte("coppice: 1\nname: p\nsteps:\n  - user: +1e999\n"), "p.yaml")
	if err != nil || !strings.Contains(string(g.Body[0].Text.Content), "+1e999") {
		t.Errorf("a text: %v", err)
	}
}
