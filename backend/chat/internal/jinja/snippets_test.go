package jinja

import (
	_ "embed"
	"encoding/json"
	"testing"
	"time"
)

//go:embed testdata/snippets.json
var snippets []byte

func testClock() time.Time { return time.Date(2026, 3, 4, 15, 6, 7, 0, time.UTC) }

// TestSnippetsRenderAsInPython compares with recorded results of Jinja2.
func TestSnippetsRenderAsInPython(t *testing.T) {
	var file struct {
		Vars  json.RawMessage
		Cases []struct {
			Src   string
			Out   *string
			Error string
		}
	}
	if err := json.Unmarshal(snippets, &file); err != nil {
		t.Fatal(err)
	}
	for _, c := range file.Cases {
		got, err := renderText(t, c.Src, file.Vars)
		switch {
		case err != nil && c.Out != nil:
			t.Errorf("%s\n fails: %v\n  want: %q", c.Src, err, *c.Out)
		case err == nil && c.Out == nil:
			t.Errorf("%s\n   got: %q\n  want an error like %s", c.Src, got.S, c.Error)
		case err == nil && got.S != *c.Out:
			t.Errorf("%s\n   got: %q\n  want: %q", c.Src, got.S, *c.Out)
		}
	}
}

// renderText parses and runs a template; strings of vars are marked User.
func renderText(t testing.TB, src string, vars json.RawMessage) (Text, error) {
	t.Helper()
	v, err := FromJSON(vars, User)
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := Parse(src)
	if err != nil {
		return Text{}, err
	}
	return tmpl.Execute(v.(*Dict), testClock)
}
