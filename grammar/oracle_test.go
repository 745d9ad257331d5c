package grammar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// schemaGen writes random schemas and instances over few names and values, so
// that they meet.
type schemaGen struct{ *rand.Rand }

func (r schemaGen) pick(s ...string) string { return s[r.IntN(len(s))] }

func (r schemaGen) name() string { return r.pick("a", "b", "c", "ab") }

func (r schemaGen) instance(d int) string {
	switch k := r.IntN(9); {
	case k < 3 && d > 0:
		var parts []string
		for _, n := range []string{"a", "b", "c", "ab", "x"} {
			if r.IntN(5) < 2 {
				parts = append(parts, fmt.Sprintf("%q:%s", n, r.instance(d-1)))
			}
		}
		r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
		return "{" + strings.Join(parts, ",") + "}"
	case k < 5 && d > 0:
		var parts []string
		for range r.IntN(4) {
			parts = append(parts, r.instance(d-1))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case k < 6:
		return r.pick("0", "1", "2", "-1", "1.5", "0.25", "10", "-0.5", "3", "6")
	case k < 7:
		return r.pick(`""`, `"a"`, `"ab"`, `"abc"`, `"b"`, `"é"`, `"a\n"`, `"12"`, `"\"/"`)
	default:
		return r.pick("null", "true", "false", "1", `"a"`)
	}
}

func (r schemaGen) schema(d int) string {
	if d <= 0 || r.IntN(12) == 0 {
		return r.pick("true", "{}", `{"type":"string"}`, `{"type":"integer"}`, `{"const":1}`, `{"enum":["a","ab",1,null]}`, `{"type":"boolean"}`, "false", `{"type":"number"}`)
	}
	sub := func() string { return r.schema(d - 1 - r.IntN(2)) }
	subs := func(n int) string {
		var s []string
		for range n {
			s = append(s, sub())
		}
		return "[" + strings.Join(s, ",") + "]"
	}
	names := func() string {
		var s []string
		for range 1 + r.IntN(2) {
			s = append(s, fmt.Sprintf("%q", r.name()))
		}
		if len(s) == 2 && s[0] == s[1] {
			s = s[:1]
		}
		return "[" + strings.Join(s, ",") + "]"
	}
	num := func() string { return r.pick("0", "1", "2", "-1", "1.5", "0.25", "3") }
	kw := map[string]func() string{
		"type": func() string {
			return r.pick(`"object"`, `"array"`, `"string"`, `"number"`, `"integer"`, `["object","null"]`, `["array","string","integer"]`, `["number","string"]`)
		},
		"enum":  func() string { return "[" + r.instance(1) + "," + r.instance(2) + "," + r.instance(2) + "]" },
		"const": func() string { return r.instance(2) },
		"allOf": func() string { return subs(1 + r.IntN(2)) },
		"anyOf": func() string { return subs(2) },
		"oneOf": func() string { return subs(2 + r.IntN(2)) },
		"not":   sub,
		"if":    sub, "then": sub, "else": sub,
		"minimum": num, "maximum": num, "exclusiveMinimum": num, "exclusiveMaximum": num,
		"multipleOf": func() string { return r.pick("1", "2", "0.5", "3", "0.25") },
		"minLength":  func() string { return r.pick("0", "1", "2") },
		"maxLength":  func() string { return r.pick("0", "1", "2", "3") },
		"pattern":    func() string { return r.pick(`"a"`, `"^a"`, `"b$"`, `"^[a-c]{1,2}$"`, `"\\d"`, `"^(a|é)?$"`) },
		"properties": func() string {
			a, b := r.name(), r.name()
			if a == b {
				return fmt.Sprintf("{%q:%s}", a, sub())
			}
			return fmt.Sprintf("{%q:%s,%q:%s}", a, sub(), b, sub())
		},
		"patternProperties":    func() string { return fmt.Sprintf("{%s:%s}", r.pick(`"^a"`, `"b"`, `"^[ab]$"`, `"x|c"`), sub()) },
		"additionalProperties": sub,
		"unevaluatedProperties": func() string {
			return r.pick("false", "true", `{"type":"integer"}`)
		},
		"unevaluatedItems": func() string { return r.pick("false", "true", `{"type":"integer"}`) },
		"propertyNames": func() string {
			return r.pick(`{"maxLength":1}`, `{"pattern":"a"}`, `{"enum":["a","x"]}`, `{"not":{"const":"b"}}`)
		},
		"required":          names,
		"minProperties":     func() string { return r.pick("0", "1", "2") },
		"maxProperties":     func() string { return r.pick("0", "1", "2", "3") },
		"dependentRequired": func() string { return fmt.Sprintf("{%q:%s}", r.name(), names()) },
		"dependentSchemas":  func() string { return fmt.Sprintf("{%q:%s}", r.name(), sub()) },
		"items":             sub,
		"prefixItems":       func() string { return subs(1 + r.IntN(2)) },
		"minItems":          func() string { return r.pick("0", "1", "2") },
		"maxItems":          func() string { return r.pick("0", "1", "2", "3") },
		"contains":          sub,
		"minContains":       func() string { return r.pick("0", "1", "2") },
		"maxContains":       func() string { return r.pick("0", "1", "2") },
		"uniqueItems":       func() string { return r.pick("true", "false") },
	}
	groups := [][]string{
		{"type", "properties", "required", "additionalProperties"},
		{"properties", "patternProperties", "additionalProperties", "minProperties", "maxProperties", "required"},
		{"propertyNames", "properties", "dependentRequired", "dependentSchemas", "required"},
		{"prefixItems", "items", "minItems", "maxItems"},
		{"contains", "minContains", "maxContains", "items", "maxItems"},
		{"minLength", "maxLength", "pattern", "enum"},
		{"minimum", "maximum", "multipleOf", "exclusiveMinimum", "exclusiveMaximum", "enum"},
		{"allOf", "anyOf", "oneOf", "not", "properties"},
		{"if", "then", "else", "properties"},
		{"enum", "not", "const"},
		{"uniqueItems", "items", "maxItems", "prefixItems"},
		{"unevaluatedProperties", "properties", "anyOf", "allOf", "if", "then", "patternProperties"},
		{"unevaluatedItems", "prefixItems", "anyOf", "contains", "oneOf"},
	}
	var parts []string
	used := map[string]bool{}
	for range 1 + r.IntN(2) {
		for _, k := range groups[r.IntN(len(groups))] {
			if r.IntN(5) < 3 && !used[k] {
				used[k] = true
				parts = append(parts, fmt.Sprintf("%q:%s", k, kw[k]()))
			}
		}
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// validator is another judge of src, nil if that takes it for no schema.
func validator(t *testing.T, src string, formats bool) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(src))
	if err != nil {
		t.Fatal(src, err)
	}
	c := jsonschema.NewCompiler()
	if formats {
		c.AssertFormat()
	}
	if err := c.AddResource("mem:///s.json", doc); err != nil {
		t.Fatal(err)
	}
	want, err := c.Compile("mem:///s.json")
	if err != nil {
		return nil
	}
	return want
}

// compareVerdicts asks both about an instance, in the form that grammars write,
// and returns what they say. g is nil where nothing satisfies the schema.
func compareVerdicts(t *testing.T, src string, g *Grammar, want *jsonschema.Schema, instance string) bool {
	t.Helper()
	text, err := Canonical([]byte(instance))
	if err != nil {
		t.Fatal(err)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	ok := want.Validate(v) == nil
	if got := g != nil && g.Match(text); got != ok {
		t.Fatalf("schema %s\ninstance %s\ngrammar says %v, validator %v", src, text, got, ok)
	}
	return ok
}

// mustBeValid fails if a text that was written is not one of the schema.
func mustBeValid(t *testing.T, src string, want *jsonschema.Schema, text []byte) {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: wrote %q: %v", src, text, err)
	}
	if err := want.Validate(v); err != nil {
		t.Fatalf("%s: wrote %q: %v", src, text, err)
	}
}

// TestAgainstValidator compares the language of random schemas with the
// verdicts of a validator.
func TestAgainstValidator(t *testing.T) {
	n := 2000
	if testing.Short() {
		n = 300
	}
	r := schemaGen{rand.New(rand.NewPCG(11, 12))}
	vocab := ByteVocab()
	var refused, unsat, compiled, accepts int
	why := map[string]int{}
	for range n {
		src := r.schema(3)
		want := validator(t, src, false)
		if want == nil {
			continue
		}
		g, err := Compile(context.Background(), Spec{JSONSchema: []byte(src), AnyOrder: true}, vocab)
		switch {
		case errors.Is(err, ErrUnsatisfiable):
			unsat++
		case errors.Is(err, ErrUnsupported), errors.Is(err, ErrTooLarge):
			refused++
			var e *Error
			errors.As(err, &e)
			why[e.Keyword+": "+e.Msg]++
			continue
		case err != nil:
			t.Fatalf("%s: %v", src, err)
		default:
			compiled++
		}
		for range 25 {
			if compareVerdicts(t, src, g, want, r.instance(3)) {
				accepts++
			}
		}
	}
	t.Logf("%d compiled, %d unsatisfiable, %d refused, %d instances accepted", compiled, unsat, refused, accepts)
	out, _ := json.MarshalIndent(why, "", " ")
	t.Logf("refused for: %s", out)
}

// TestTextsAreValid writes texts of random schemas with a puppet, in the
// schema's order, and asks a validator about them: nothing wrong is written,
// and no state is a dead end.
func TestTextsAreValid(t *testing.T) {
	n := 600
	if testing.Short() {
		n = 100
	}
	r := schemaGen{rand.New(rand.NewPCG(21, 22))}
	tok := learnBPE(bpeText, 100)
	vocab := tok.vocab()
	ended := 0
	for i := range n {
		src := r.schema(3)
		want := validator(t, src, false)
		if want == nil {
			continue
		}
		g, err := Compile(context.Background(), Spec{JSONSchema: []byte(src), AnyOrder: i%2 == 0}, vocab)
		if err != nil {
			continue
		}
		ids, _, done := generate(t, g, tok, uint64(i), false, 120)
		if !done {
			continue
		}
		ended++
		mustBeValid(t, src, want, tok.decode(ids))
	}
	t.Logf("%d texts", ended)
}
