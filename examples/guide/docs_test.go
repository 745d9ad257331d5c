package main

import (
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

func docs(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	texts := map[string]string{}
	for _, name := range append(names, "../../README.md", "../workloads/README.md") {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		texts[name] = string(data)
	}
	return texts
}

// TestDocsNameTestsThatExist looks for each test and example that a document names.
func TestDocsNameTestsThatExist(t *testing.T) {
	have := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() && strings.HasPrefix(e.Name(), ".") && len(e.Name()) > 2 {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				have[f.Name.Name] = true
			}
		}
		return nil
	}))
	named := 0
	for doc, text := range docs(t) {
		for _, m := range regexp.MustCompile("`((?:Test|Example)[A-Z_]\\w*)`").FindAllStringSubmatch(text, -1) {
			named++
			if !have[m[1]] {
				t.Errorf("%s names %s, which is nowhere", doc, m[1])
			}
		}
	}
	require.Greater(t, named, 50)
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinksOfDocsLeadSomewhere follows the links between documents, with their
// headings.
func TestLinksOfDocsLeadSomewhere(t *testing.T) {
	for doc, text := range docs(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			file, heading, _ := strings.Cut(m[1], "#")
			path := doc
			if file != "" {
				path = filepath.Join(filepath.Dir(doc), filepath.FromSlash(file))
			}
			data, err := os.ReadFile(path)
			if heading == "" {
				_, err = os.Stat(path)
			}
			if err != nil {
				t.Errorf("%s: %s: %v", doc, m[1], err)
				continue
			}
			if heading != "" && !headings(string(data))[heading] {
				t.Errorf("%s: %s: no such heading", doc, m[1])
			}
		}
	}
}

// headings are the anchors of a document as GitHub makes them.
func headings(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ +(.*)$`).FindAllStringSubmatch(text, -1) {
		s := strings.ToLower(regexp.MustCompile(`[^\w\s-]`).ReplaceAllString(m[1], ""))
		out[strings.ReplaceAll(strings.TrimSpace(s), " ", "-")] = true
	}
	return out
}

// TestComparison runs the program that docs/compare.md writes in several libraries,
// and looks that the document shows it and that the Go of the others is Go.
func TestComparison(t *testing.T) {
	out, err := runtime.Run(t.Context(), openSapling(t), compareProgram, lang.Args{"alert": alert})
	require.NoError(t, err)
	require.Contains(t, []string{"low", "high", "critical"}, out.Value)
	require.Len(t, out.Branches, 3)

	doc := docs(t)["../../docs/compare.md"]
	src, err := os.ReadFile("compare.go")
	require.NoError(t, err)
	shown := 0
	for _, b := range blocks.FindAllStringSubmatch(doc, -1) {
		require.Contains(t, string(src), strings.TrimSpace(b[4]))
		shown++
	}
	require.Equal(t, 1, shown)
	for _, m := range regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(doc, -1) {
		_, err := format.Source([]byte(m[1]))
		require.NoError(t, err, m[1])
	}
	for _, m := range regexp.MustCompile("(?ms)^```python\n(.*?)^```$").FindAllStringSubmatch(doc, -1) {
		t.Run("python", func(t *testing.T) {
			python, err := exec.LookPath("python3")
			if err != nil {
				t.Skip("python3 is not here to read Python")
			}
			cmd := exec.CommandContext(t.Context(), python, "-c", "import ast, sys; ast.parse(sys.stdin.read())")
			cmd.Stdin = strings.NewReader(m[1])
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s\n%s", m[1], out)
		})
	}
	for n := 1; n <= 27; n++ {
		require.Regexp(t, regexp.MustCompile(`(?m)^\| F`+strconv.Itoa(n)+` \|`), doc)
	}
}
