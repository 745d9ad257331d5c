package model_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// mayFuse are the functions, by their packages, in which the compiler may make one
// instruction of a product and a sum, which rounds once instead of twice: that changes
// nothing that the engine computes unless it is asked to compute for comparisons.
var mayFuse = map[string]bool{
	"compute.fma32":     true,                              // the product is exact
	"compute.floatPeak": true, "compute.floatPeakGo": true, // a loop that is measured
	"model.TokenCost": true, // an estimate
	"model.doExact":   true, // attention=f32, in float64
	"engine.add":      true, // an estimate of what guesses are worth
}

// TestNoProductIsFused: on arm64, and on amd64 with GOAMD64=v3, the compiler fuses
// products and sums where the source does not round between them. What the engine
// computes would be another number there. No machine of that kind is needed to see it. What
// package math does it does not see: angles and logarithms are functions of float64 whose
// last bits may differ.
func TestNoProductIsFused(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: compiles for another processor")
	}
	goTool, err := exec.LookPath("go")
	if err != nil {
		t.Skip(err)
	}
	cmd := exec.Command(goTool, "build", "-gcflags=-S", "../compute", ".", "./internal/ggml", "../engine")
	cmd.Env = append(os.Environ(), "GOARCH=arm64", "GOOS=linux", "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out[max(0, len(out)-2000):])
	}
	line := regexp.MustCompile(`\(([^()]*\.go):(\d+)\)\tFN?M(ADD|SUB)[SD]\t`)
	found := map[string]bool{}
	for _, l := range bytes.Split(out, []byte("\n")) {
		m := line.FindSubmatch(l)
		if m == nil {
			continue
		}
		n, err := strconv.Atoi(string(m[2]))
		if err != nil {
			t.Fatal(err)
		}
		path := string(m[1])
		name := filepath.Base(filepath.Dir(path)) + "." + functionAt(t, path, n)
		found[name] = true
		if !mayFuse[name] {
			t.Errorf("%s:%d: %s: a product is fused with a sum: write float32(a*b) + c", filepath.Base(path), n, name)
		}
	}
	if !found["compute.fma32"] {
		t.Errorf("fma32 is not found among %v: does the compiler still print its instructions so?", found)
	}
}

// functionAt names the function of a Go file that holds the line.
func functionAt(t *testing.T, path string, line int) string {
	t.Helper()
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && files.Position(fn.Pos()).Line <= line && line <= files.Position(fn.End()).Line {
			return fn.Name.Name
		}
	}
	return "?"
}
