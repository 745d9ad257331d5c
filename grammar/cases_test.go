package grammar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCases runs the schemas and patterns of the shared cases: texts that must
// and must not be reachable.
func TestCases(t *testing.T) {
	root := os.Getenv("COPPICE_SHARED")
	if root == "" {
		t.Skip("COPPICE_SHARED is not set: it names the folder of the shared test data")
	}
	dirs, err := filepath.Glob(filepath.Join(root, "cases", "A*"))
	if err != nil || len(dirs) == 0 {
		t.Fatal("no cases", err)
	}
	for _, dir := range dirs {
		id := filepath.Base(dir)
		raw, err := os.ReadFile(filepath.Join(dir, "instances.json"))
		if err != nil {
			continue
		}
		var want struct {
			Reach   []string `json:"must_be_reachable"`
			Not     []string `json:"must_be_unreachable"`
			Refused bool     `json:"whole_schema_may_be_refused_with_400"`
		}
		if err := json.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		spec := Spec{}
		if s, err := os.ReadFile(filepath.Join(dir, "schema.json")); err == nil {
			spec.JSONSchema = s
		} else if s, err := os.ReadFile(filepath.Join(dir, "pattern.txt")); err == nil {
			spec.Regex = strings.TrimSuffix(string(s), "\n")
		}
		g, err := Compile(context.Background(), spec, ByteVocab())
		if len(want.Reach) == 0 { // a schema that must be refused
			if err == nil {
				t.Errorf("%s: compiled", id)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		for _, s := range want.Reach {
			if _, err := g.Start().AcceptBytes([]byte(s)); err != nil || !g.Match([]byte(s)) {
				t.Errorf("%s: %s is unreachable: %v", id, s, err)
			}
		}
		for _, s := range want.Not {
			if g.Match([]byte(s)) {
				t.Errorf("%s: %s is reachable", id, s)
			}
		}
	}
}

func compileError(spec Spec) error {
	_, err := Compile(context.Background(), spec, ByteVocab())
	return err
}

// TestRefusals lists sources that are refused and how.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		schema  string
		kind    error
		pointer string
	}{
		{`{"properties":{"w":{"type":"string","pattern":"^caf(e$"}}}`, ErrInvalid, "/properties/w/pattern"},
		{`{"type":"string","pattern":"(a(?=b))+"}`, ErrUnsupported, "/pattern"},
		{`{"$ref":"#/$defs/n","$defs":{"n":{"$ref":"#/$defs/n"}}}`, ErrInvalid, "/$defs/n"},
		{`{"properties":{"a":{"$ref":"#/$defs/n"}},"$defs":{"n":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/m"}]},"m":{"allOf":[{"$ref":"#/$defs/n"}]}}}`, ErrInvalid, "/$defs/n/anyOf/1"},
		{`{"type":"object","required":["next"],"properties":{"next":{"$ref":"#"}}}`, ErrUnsatisfiable, ""},
		{`{"type":"strin"}`, ErrInvalid, "/type"},
		{`{"properties":{"a":{"$ref":"#/nowhere"}}}`, ErrInvalid, "/properties/a/$ref"},
		{`{"$ref":"http://elsewhere.example/x.json"}`, ErrUnsupported, "/$ref"},
		{`{"type":"string","minLength":3,"maxLength":2}`, ErrUnsatisfiable, ""},
		{`{"enum":[]}`, ErrUnsatisfiable, ""},
		{`{"enum":[1],"type":"string"}`, ErrUnsatisfiable, ""},
		{`false`, ErrUnsatisfiable, ""},
		{`{"minimum":"3"}`, ErrInvalid, "/minimum"},
		{`{"type":"object","properties":{"a/b":{"minLength":-1}}}`, ErrInvalid, "/properties/a~1b/minLength"},
		{`{`, ErrInvalid, ""},
		{`{"type":"integer","minimum":3,"maximum":2}`, ErrUnsatisfiable, ""},
		{`{"type":"integer","multipleOf":7,"minimum":1,"maximum":6}`, ErrUnsatisfiable, ""},
		{`{"type":"array","minItems":2,"items":false}`, ErrUnsatisfiable, ""},
		{`{"type":"object","minProperties":2,"properties":{"a":{}},"additionalProperties":false}`, ErrUnsatisfiable, ""},
	} {
		err := compileError(Spec{JSONSchema: []byte(c.schema)})
		var e *Error
		if !errors.As(err, &e) || !errors.Is(err, c.kind) || e.Pointer != c.pointer {
			t.Errorf("%s: %v, want %v at %q", c.schema, err, c.kind, c.pointer)
		}
	}
	for _, spec := range []Spec{{}, {Choices: []string{}}, {Regex: "[z-a]"}, {Regex: "a", Choices: []string{"b"}}, {Regex: "a", Whitespace: Whitespace{Max: -1}}} {
		if err := compileError(spec); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", spec, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Compile(ctx, testSpecs["any"], ByteVocab()); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestRefusalsSayWhatToDo: beside what is wrong, what to write instead.
func TestRefusalsSayWhatToDo(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"string","enum":["aa","bb"],"maxLength":1}`: "schema at #: no finite value satisfies it: let the recursion end, or loosen the keywords that conflict (grammar that nothing satisfies)",
		`{"type":"string","pattern":"(?<=a)b"}`:              "schema at #/pattern: pattern: lookbehind at offset 0: write what stands before as a part of the pattern (unsupported in a grammar)",
	} {
		if err := compileError(Spec{JSONSchema: []byte(schema)}); err == nil || err.Error() != want {
			t.Errorf("%s: %v", schema, err)
		}
	}
	for pattern, want := range map[string]string{`(a)\1`: "list the texts", `\bx`: "the characters that may stand there", `(?i)a`: "[aA]", `(a(?=b))+`: "top of the pattern"} {
		if err := compileError(Spec{Regex: pattern}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

// TestDeepAndLarge compiles sources made to overflow a stack or a machine.
func TestDeepAndLarge(t *testing.T) {
	nest := func(n int) string {
		return strings.Repeat(`{"type":"array","items":`, n) + "{}" + strings.Repeat("}", n)
	}
	for _, n := range []int{300, 900, 9000, 200000} {
		if err := compileError(Spec{JSONSchema: []byte(nest(n))}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d levels: %v", n, err)
		}
		p := "^" + strings.Repeat("(", n) + "a" + strings.Repeat(")", n) + "$"
		if err := compileError(Spec{JSONSchema: fmt.Appendf(nil, `{"type":"string","pattern":%q}`, p)}); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%d parentheses: %v", n, err)
		}
	}
	if err := compileError(Spec{JSONSchema: []byte(nest(200))}); err != nil {
		t.Errorf("200 levels: %v", err)
	}
	var enum []string
	for i := range 50000 {
		enum = append(enum, fmt.Sprintf("%q", fmt.Sprintf("value number %d of many", i*7919%50000)))
	}
	long := `{"type":"string","maxLength":100000}`
	for range 7 {
		long = `{"type":"object","properties":{"s":{"type":"string","maxLength":100000},"in":` + long + `},"required":["s","in"]}`
	}
	ref := `{"$ref":"#/$defs/a0","$defs":{`
	for i := range 3000 {
		ref += fmt.Sprintf(`"a%d":{"$ref":"#/$defs/a%d"},`, i, i+1)
	}
	ref += `"a3000":{"type":"null"}}}`
	explode := `{"allOf":[`
	for i := range 30 {
		explode += fmt.Sprintf(`{"anyOf":[{"required":["a%d"]},{"required":["b%d"]},{"required":["c%d"]}]},`, i, i, i)
	}
	explode += `{"type":"object"}]}`
	for name, s := range map[string]string{
		"enum":     `{"enum":[` + strings.Join(enum, ",") + `]}`,
		"items":    `{"type":"array","items":{"type":"integer"},"maxItems":100000}`,
		"min":      `{"type":"array","items":{"type":"integer"},"minItems":100000}`,
		"lengths":  long,
		"refs":     ref,
		"explode":  explode,
		"doubling": doubling(24),
		"lookback": `{"type":"string","pattern":"^(a|b)*a(a|b){200}$","maxLength":5000}`,
		"big":      `{"type":"string","minLength":5000,"maxLength":6000,"pattern":"a[^b]*b"}`,
		"multiple": `{"type":"integer","multipleOf":9999,"minimum":123456789}`,
	} {
		var err error
		cost := costOf(func() { err = compileError(Spec{JSONSchema: []byte(s)}) })
		if err != nil && !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
		if cost.bytes > 256<<20 {
			t.Errorf("%s: compiling allocates %d MiB in all", name, cost.bytes>>20)
		}
		t.Logf("%s: %v, %v", name, err, cost)
	}
}

// doubling is a schema in which each definition holds two of the next.
func doubling(n int) string {
	s := `{"$ref":"#/$defs/d0","$defs":{`
	for i := range n {
		s += fmt.Sprintf(`"d%d":{"type":"object","properties":{"l":{"$ref":"#/$defs/d%d"},"r":{"allOf":[{"$ref":"#/$defs/d%d"},{"$ref":"#/$defs/d%d"}]}}},`, i, i+1, i+1, i+1)
	}
	return s + fmt.Sprintf(`"d%d":{"type":"integer"}}}`, n)
}
