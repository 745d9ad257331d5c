package lang_test

import (
	"errors"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

var update = flag.Bool("update", false, "write golden files anew")

// testdata/bad.txt holds programs with what is wrong with them:
//
//	=== name
//	program
//	--- errors
//	one line each
func TestBadPrograms(t *testing.T) {
	const file = "testdata/bad.txt"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, c := range strings.Split(string(data), "=== ")[1:] {
		name, rest, _ := strings.Cut(c, "\n")
		src, want, _ := strings.Cut(rest, "--- errors\n")
		t.Run(name, func(t *testing.T) {
			if !strings.HasPrefix(src, "coppice") && !strings.HasPrefix(src, "{") && !strings.HasPrefix(src, "#raw\n") {
				src = "coppice: 1\nname: bad\n" + src
			}
			_, err := lang.Decode([]byte(src), "p.yaml")
			got := "none\n"
			if err != nil {
				got = err.Error() + "\n"
				if _, ok := err.(lang.Errors); !ok {
					t.Errorf("the error is a %T", err)
				}
			}
			if got != want && !*update {
				t.Errorf("program:\n%s\ngot:\n%s\nwant:\n%s", src, got, want)
			}
			src, _, _ := strings.Cut(rest, "--- errors\n")
			out.WriteString("=== " + name + "\n" + src + "--- errors\n" + got)
		})
	}
	if *update {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAStepThatCannotBeReadHidesNoOtherError: all but what that step may have set.
func TestAStepThatCannotBeReadHidesNoOtherError(t *testing.T) {
	_, err := lang.Decode([]byte(`coppice: 1
name: p
steps:
  - usr: hi
  - gen: {name: x, max_tokens: many, foo: 1}
  - gen: {name: "9x"}
  - user: "${set_by_the_first}"
  - let: {name: n, value: "1 + * 2"}
  - select: {name: s, options: []}
  - fork: {name: f, each: [a], steps: [{gen: {name: y, temperature: -1}}, {let: {name: q, value: "set_by_the_first + 1"}}], yield: y}
  - return: x +
`), "p.yaml")
	var all lang.Errors
	if !errors.As(err, &all) {
		t.Fatal(err)
	}
	var lines []string
	for _, e := range all {
		lines = append(lines, e.Error())
	}
	for _, want := range []string{"p.yaml:4: no step", "p.yaml:5: gen: max_tokens", `no field "foo"`, `p.yaml:6: 9x: "9x" cannot name`, "p.yaml:8: n: value: unexpected token", "p.yaml:9: s: no options", "p.yaml:10: f/y: temperature is -1", "p.yaml:11: return: the value: unexpected end"} {
		if !slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, want) }) {
			t.Errorf("nothing says %q:\n%s", want, strings.Join(lines, "\n"))
		}
	}
	if len(all) != 8 {
		t.Errorf("%d errors:\n%s", len(all), strings.Join(lines, "\n"))
	}
}
