package lang_test

import (
	"flag"
	"os"
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
