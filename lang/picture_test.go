package lang_test

import (
	"os"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

// golden compares got with a file, or writes the file under -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (run with -update to accept):\n%s", file, got)
	}
}

func TestPictures(t *testing.T) {
	g := load(t, "testdata/everything.yaml")
	golden(t, "testdata/everything.mmd", lang.Mermaid(g))
	golden(t, "testdata/everything.dot", lang.DOT(g))
}

func TestLabelsCannotBreakPictures(t *testing.T) {
	evil := "\"] --> x[\"<b>#quot;`;\n\\"
	d := lang.Define("p", func(p *lang.Program) lang.Var[string] {
		p.User(evil)
		return lang.Select(p, "s", evil, "b")
	})
	g, err := d.Compile()
	if err != nil {
		t.Fatal(err)
	}
	m := lang.Mermaid(g)
	for _, line := range strings.Split(m, "\n") {
		if strings.Count(line, `"`)%2 != 0 || strings.Contains(line, "<b>") || strings.Contains(line, "`") {
			t.Errorf("unsafe line %q", line)
		}
	}
	for _, line := range strings.Split(lang.DOT(g), "\n") {
		plain := strings.ReplaceAll(strings.ReplaceAll(line, `\\`, ""), `\"`, "")
		if strings.Count(plain, `"`)%2 != 0 {
			t.Errorf("unsafe line %q", line)
		}
	}
}
