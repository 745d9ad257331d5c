package lang

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var updateDocs = flag.Bool("update-docs", false, "write the errors into docs/language.md")

const reference = "../docs/language.md"

// section returns the text below a heading of the reference.
func section(doc, title string) string {
	_, rest, ok := strings.Cut(doc, "\n"+title+"\n")
	if !ok {
		return ""
	}
	if i := strings.Index(rest, "\n##"); i >= 0 {
		rest = rest[:i]
	}
	return rest
}

var (
	row  = regexp.MustCompile("(?m)^\\| (?:`([^`]+)`|\\[(\\w+)\\]\\(#\\w+\\))[ *]* \\|")
	code = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
)

// rows returns the first column of the tables of a section, with the rows of the
// sections that it refers to.
func rows(doc, title string) (out []string) {
	for _, m := range row.FindAllStringSubmatch(section(doc, "### "+title), -1) {
		if m[2] != "" {
			out = append(out, rows(doc, m[2])...)
		} else {
			out = append(out, m[1])
		}
	}
	return out
}

func readReference(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestReferenceHasEveryField asks the decoder which fields it looks for and compares
// them with the tables.
func TestReferenceHasEveryField(t *testing.T) {
	doc := readReference(t)
	compare := func(title string, known []string) {
		t.Helper()
		have := rows(doc, title)
		slices.Sort(have)
		slices.Sort(known)
		if known = slices.Compact(known); !slices.Equal(have, known) {
			t.Errorf("%s: the reference has\n%q, the code\n%q", title, have, known)
		}
	}
	for _, kind := range stepKinds {
		if kind == "return" || slices.Contains([]string{"system", "user", "assistant", "tool", "text", "image"}, kind) {
			continue
		}
		d := &decoder{}
		f := d.fields(new(tree).put("n", intTree(2)).put("temperature", intTree(1)), kind)
		f.name()
		d.node(&Node{Kind: Kind(kind)}, f)
		compare(kind, f.known)
	}
	// Fields of maps inside of steps: all that are in the tables are taken, with
	// values of any form, and one that is not is refused.
	inner := map[string]func(key string) string{
		"input":     func(k string) string { return "inputs: {x: {type: int, " + k + ": 1}}\nsteps: []\n" },
		"budget":    func(k string) string { return "budget: {" + k + ": 1}\nsteps: []\n" },
		"arm":       func(k string) string { return "steps: [{fork: {name: f, arms: [{" + k + ": a}]}}]\n" },
		"validator": func(k string) string { return "steps: [{gen: {name: g, check: [{" + k + ": a}]}}]\n" },
		"retry":     func(k string) string { return "steps: [{gen: {name: g, retry: {" + k + ": 1}}}]\n" },
		"tokens":    func(k string) string { return "steps: [{gen: {name: g, tokens: {" + k + ": [1]}}}]\n" },
		"think":     func(k string) string { return "steps: [{gen: {name: g, think: {" + k + ": 1}}}]\n" },
		"tags":      func(k string) string { return "steps: [{gen: {name: g, tags: {" + k + ": []}}}]\n" },
		"program":   func(k string) string { return k + ": 1\n" },
	}
	refused := func(doc string) bool {
		if !strings.HasPrefix(doc, "coppice: ") {
			doc = "coppice: 1\n" + doc
		}
		_, err := Decode([]byte(doc), "x")
		return err != nil && (strings.Contains(err.Error(), "no field") || strings.Contains(err.Error(), "unknown field"))
	}
	for title, with := range inner {
		fields := rows(doc, title)
		if len(fields) < 3 {
			t.Errorf("%s: %q", title, fields)
		}
		for _, k := range fields {
			if refused(with(k)) {
				t.Errorf("%s has no field %q", title, k)
			}
		}
		if !refused(with("zzz")) {
			t.Errorf("%s takes any field", title)
		}
	}
}

// TestReferencePrograms reads the programs and steps of the reference.
func TestReferencePrograms(t *testing.T) {
	doc := readReference(t)
	blocks := code.FindAllStringSubmatch(doc, -1)
	if len(blocks) < 14 {
		t.Fatalf("%d blocks", len(blocks))
	}
	shown := map[string]bool{}
	for _, b := range blocks {
		src := b[1]
		if !strings.HasPrefix(src, "coppice: ") {
			head := "coppice: 1\nname: x\nsteps:\n"
			if !strings.Contains(src, "system:") {
				head += "  - user: hi\n"
			}
			src = head + src
		}
		g, err := Decode([]byte(src), "language.md")
		if err != nil {
			t.Errorf("%v\n%s", err, b[1])
			continue
		}
		g.Walk(func(n *Node) bool {
			shown[string(n.Kind)] = true
			if n.Text != nil {
				shown[n.Text.Role] = true
			}
			return true
		})
	}
	for _, k := range stepKinds {
		if !shown[k] {
			t.Errorf("no program of the reference has a %s", k)
		}
	}
	m := regexp.MustCompile("(?s)```yaml error\n(.*?)```\n\n```errors\n(.*?)```").FindStringSubmatchIndex(doc)
	if m == nil {
		t.Fatal("the reference shows no errors")
	}
	_, err := Decode([]byte(doc[m[2]:m[3]]), "draft.yaml")
	if err == nil {
		t.Fatal("no error")
	}
	if *updateDocs {
		if err := os.WriteFile(reference, []byte(doc[:m[4]]+err.Error()+"\n"+doc[m[5]:]), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want := doc[m[4]:m[5]]; err.Error()+"\n" != want {
		t.Errorf("the errors are\n%v\nthe reference has\n%s", err, want)
	}
}

// TestReferenceNamesWhatThereIs looks for lints, functions, words, limits and all of
// the builder in the reference.
func TestReferenceNamesWhatThereIs(t *testing.T) {
	doc := readReference(t)
	has := func(what, s string) {
		if !strings.Contains(doc, s) {
			t.Errorf("%s: the reference does not have %q", what, s)
		}
	}
	listed := regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(section(doc, "## Expressions"), -1)
	var functions []string
	for _, m := range listed {
		if knownFunctions[m[1]] {
			functions = append(functions, m[1])
		}
	}
	for _, f := range slices.Sorted(maps.Keys(knownFunctions)) {
		if !slices.Contains(functions, f) {
			t.Errorf("no function %s in the reference", f)
		}
	}
	for w := range reserved {
		has("reserved word", "`"+w+"`")
	}
	for w := range clocks {
		has("clock", "`"+w+"`")
	}
	for what, n := range map[string]int{
		"values in a document": maxTreeNodes, "nesting of a document": maxTreeDepth, "steps": maxNodes, "bodies inside of bodies": maxBodyDepth, "programs that run programs": maxRunDepth,
		"rounds of a repeat": maxRepeat, "answers of one `n`": maxSamples, "tries": maxTries, "attempts": maxAttempts,
		"nodes of an expression": maxExprNodes, "nesting of an expression": maxExprDepth,
		"rounds of nested predicates in one evaluation": maxExprSteps, "nesting of types": maxTypeDepth, "nesting of values": maxValueDepth,
	} {
		has("limit", "| "+what+" | "+thousands(n)+" |")
	}
	for what, n := range map[string]int{"length of a document": maxDocBytes, "text from files in one program": maxTextFiles, "text that an expression makes": maxExprGrowth} {
		has("limit", "| "+what+" | "+strconv.Itoa(n>>20)+" MiB |")
	}
	has("limit", "| length of an expression | "+strconv.Itoa(maxExprBytes>>10)+" KiB |")
	has("limit", "more than "+strconv.Itoa(maxOptional)+" keys")

	// What is exported for writing programs: functions that take a Builder or Program
	// or give an option, and methods of Program, S and Var.
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if v, ok := s.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Lint") && len(v.Values) > 0 {
						lit := v.Values[0].(*ast.BasicLit).Value
						has("lint", "| `"+strings.Trim(lit, `"`)+"`")
						named++
					}
				}
			case *ast.FuncDecl:
				if !d.Name.IsExported() || !writes(d) {
					continue
				}
				named++
				if !regexp.MustCompile(`\b` + d.Name.Name + `\b`).MatchString(doc) {
					t.Errorf("the reference does not name %s", d.Name.Name)
				}
			}
		}
	}
	if named < 80 {
		t.Errorf("only %d names were looked for", named)
	}
}

// writes reports whether a function is for writing programs.
func writes(d *ast.FuncDecl) bool {
	name := func(e ast.Expr) string {
		for {
			switch x := e.(type) {
			case *ast.StarExpr:
				e = x.X
			case *ast.IndexExpr:
				e = x.X
			case *ast.Ident:
				return x.Name
			default:
				return ""
			}
		}
	}
	if d.Recv != nil {
		of := name(d.Recv.List[0].Type)
		return of == "Program" || of == "S" || of == "Var"
	}
	for _, p := range d.Type.Params.List {
		if n := name(p.Type); n == "Builder" || n == "Program" || n == "Var" || n == "S" {
			return true
		}
	}
	if d.Type.Results == nil {
		return false
	}
	for _, r := range d.Type.Results.List {
		n := name(r.Type)
		if strings.HasSuffix(n, "Option") && n != "DecodeOption" || n == "Cond" || n == "Items" || n == "Way" || n == "Tool" || n == "Toolbox" || n == "Def" || n == "ScriptDef" {
			return true
		}
	}
	return false
}
