package lang_test

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/coppice-run/coppice/lang"
)

func typ(t *testing.T, s string) lang.Type {
	t.Helper()
	ty, err := lang.ParseType(s)
	if err != nil {
		t.Fatal(err)
	}
	return ty
}

func TestFormatValue(t *testing.T) {
	for _, c := range []struct {
		v    any
		typ  string
		want string
	}{
		{"a\"b\n", "string", "a\"b\n"},
		{1000000, "int", "1000000"},
		{1e6, "float", "1000000"},
		{2.5, "float", "2.5"},
		{1e21, "float", "1e+21"},
		{math.NaN(), "float", "null"},
		{nil, "any", ""},
		{true, "bool", "true"},
		{[]any{"a<b>&", nil, 1.5, []any{}}, "[]any", `["a<b>&",null,1.5,[]]`},
		{map[string]any{"a": 1, "b": "x", "z": nil, "c": map[string]any{"q": 1, "p": 2}}, "{z: any, b: string, c: {q: int, p: int}}", `{"z":null,"b":"x","c":{"q":1,"p":2},"a":1}`},
		{[]any{map[string]any{"a": 1, "b": 2}}, "[]{b: int, a: int}", `[{"b":2,"a":1}]`},
		{[]any{"\x00\x1f\u2028é😀\xff\\"}, "[]string", "[\"\\u0000\\u001f\u2028é😀\ufffd\\\\\"]"},
		{struct {
			X int `json:"x"`
		}{3}, "any", `{"x":3}`},
	} {
		if got := lang.FormatValue(c.v, typ(t, c.typ)); got != c.want {
			t.Errorf("%v as %s: %s, want %s", c.v, c.typ, got, c.want)
		}
	}
}

func TestTextFunctionsKeepTheOrderOfFields(t *testing.T) {
	g, err := lang.Decode([]byte(`coppice: 1
name: order
inputs: {o: "{z: int, a: int}"}
steps:
  - fork:
      name: looks
      each: [x]
      steps:
        - user: hi
        - json: {name: v, type: "{zone: string, area: string}"}
      yield: v
  - user: ${join(looks, "; ")} ${toJSON(looks[0])} ${string(o)} ${looks} ${o}
  - let: {name: all, value: 'join(map(looks, {{"y": #.zone, "b": 1}}), ";") + toJSON(o)'}
  - return: all
`), "x")
	if err != nil {
		t.Fatal(err)
	}
	v := map[string]any{"zone": "1", "area": "2"}
	vars := map[string]any{"o": map[string]any{"a": 1, "z": 2}, "looks": []any{v, v}}
	text, err := g.Expand(g.Node("user").Text.Content, vars)
	one := `{"zone":"1","area":"2"}`
	if want := one + "; " + one + " " + one + ` {"z":2,"a":1} [` + one + "," + one + `] {"z":2,"a":1}`; text != want || err != nil {
		t.Errorf("%s %v", text, err)
	}
	all, err := g.Eval(g.Node("all").Let.Value, vars)
	if want := `{"y":"1","b":1};{"y":"1","b":1}{"z":2,"a":1}`; all != want || err != nil {
		t.Errorf("%v %v", all, err)
	}
}

func TestNormalizeAndConvert(t *testing.T) {
	type named string
	for _, c := range []struct {
		in   any
		typ  string
		want any // nil with err
		err  string
	}{
		{int64(3), "int", 3, ""},
		{uint8(3), "float", 3.0, ""},
		{3.0, "int", 3, ""},
		{3.5, "int", nil, "want int, got the float 3.5"},
		{named("x"), "string", "x", ""},
		{[]string{"a"}, "[]string", []any{"a"}, ""},
		{[]int{1}, "[]float", []any{1.0}, ""},
		{map[string]int{"a": 1}, "{a: float, b?: int}", map[string]any{"a": 1.0}, ""},
		{map[string]any{"b": "x"}, "{a: int}", nil, "a is missing"},
		{map[string]any{"a": []any{map[string]any{"b": true}}}, "{a: []{b: string}}", nil, "a[0].b: want string, got the bool true"},
		{"x", "[]string", nil, `want []string, got the string "x"`},
		{nil, "string", nil, "want string, got null"},
		{math.Inf(1), "float", nil, "not a number that JSON has"},
		{make(chan int), "any", nil, "unsupported"},
		{1e300, "int", nil, "want int"},
		{time.Time{}, "string", "0001-01-01T00:00:00Z", ""},
	} {
		got, err := lang.Convert(c.in, typ(t, c.typ))
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v as %s: %v %v, want %s", c.in, c.typ, got, err, c.err)
			}
		case err != nil || !reflect.DeepEqual(got, c.want):
			t.Errorf("%v as %s: %#v %v", c.in, c.typ, got, err)
		}
	}
	deep := any("x")
	for range 2000 {
		deep = []any{deep}
	}
	if _, err := lang.Normalize(deep); err == nil {
		t.Error("no bound on depth")
	}
	// A value that is right already is not copied.
	m := map[string]any{"a": []any{1.5, map[string]any{"b": 2.5}}}
	n, err := lang.Normalize(m)
	if err != nil || reflect.ValueOf(n).Pointer() != reflect.ValueOf(m).Pointer() {
		t.Errorf("%v was copied, %v", n, err)
	}
}

func TestDecodeValueKeepsWholeNumbersWhole(t *testing.T) {
	v, err := lang.DecodeValue([]byte(`{"a": 3, "b": 3.0, "c": [9007199254740993, 1e2, -0, 1E400]}`))
	if err == nil {
		t.Errorf("1E400 became %v", v)
	}
	v, err = lang.DecodeValue([]byte(`{"a": 3, "b": 3.5, "c": [9007199254740993, 1e2, 123456789012345678901234567890]}`))
	want := map[string]any{"a": 3, "b": 3.5, "c": []any{9007199254740993, 100.0, 123456789012345678901234567890.0}}
	if err != nil || !reflect.DeepEqual(v, want) {
		t.Errorf("%#v %v", v, err)
	}
	for _, bad := range []string{"", "{", "1 2", "nope", `{"a":}`} {
		if v, err := lang.DecodeValue([]byte(bad)); err == nil {
			t.Errorf("%q became %v", bad, v)
		}
	}
}

func TestTypesReadBack(t *testing.T) {
	for _, s := range []string{"string", "int", "float", "bool", "any", "[]string", "[][]int", "{}", "{a: int}", `{a: string, b?: []{c: bool}, "odd name": any, "q\"": int}`} {
		if got := typ(t, s).String(); got != s {
			t.Errorf("%s became %s", s, got)
		}
	}
	for s, want := range map[string]string{
		"": "want a type", "strin": "did you mean \"string\"", "number": "write float", "integer": "write int", "[]": "want a type", "{a}": "want :", "{a: int": "want , or }",
		"{a: int, a: int}": "twice", "int int": "after the end", "list": "[]any", "object": "{}", strings.Repeat("[]", 200) + "int": "nested deeper",
	} {
		if _, err := lang.ParseType(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", s, err, want)
		}
	}
}

func TestAssignable(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"int", "float", true}, {"float", "int", false}, {"any", "int", true}, {"int", "any", true}, {"[]int", "[]float", true}, {"[]any", "[]int", true},
		{"{a: int, b: int}", "{a: int}", true}, {"{a: int}", "{a: int, b: int}", false}, {"{a: int}", "{a: int, b?: int}", true}, {"{a?: int}", "{a: int}", false},
		{"{}", "{a: int}", true}, {"string", "[]string", false}, {"{a: string}", "{a: int}", false},
	} {
		if got := typ(t, c.from).AssignableTo(typ(t, c.to)); got != c.want {
			t.Errorf("%s to %s: %v", c.from, c.to, got)
		}
	}
}

func TestBind(t *testing.T) {
	g, err := lang.Decode([]byte(`coppice: 1
name: bind
inputs:
  s: string
  n: int
  f: {type: float, default: 1}
  b: {type: bool, default: true}
  l: {type: "[]string", default: []}
  o: {type: "{a: int, b?: float}", default: {a: 1}}
  x: {type: any, default: null}
steps: []
`), "bind.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := g.Bind(lang.Args{"s": "3", "n": "42", "f": "2", "b": "no", "l": `["a"]`, "o": `{"a": 2, "b": 1}`, "x": "{"})
	want := map[string]any{"s": "3", "n": 42, "f": 2.0, "b": false, "l": []any{"a"}, "o": map[string]any{"a": 2, "b": 1.0}, "x": "{"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%#v %v", got, err)
	}
	got, err = g.Bind(lang.Args{"s": "", "n": int8(1), "l": []string{"q"}})
	want = map[string]any{"s": "", "n": 1, "f": 1.0, "b": true, "l": []any{"q"}, "o": map[string]any{"a": 1}, "x": nil}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%#v %v", got, err)
	}
	_, err = g.Bind(lang.Args{"n": "x", "f": "many", "b": "perhaps", "l": "a,b", "o": `{"b": 1}`, "sss": 1, "N": 2, "s": []byte("x"), "x": func() {}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{
		`bind.yaml:5: input "n": want int, got "x": write a whole number such as 3`, `input "f": want float, got "many"`, `input "b": want true or false, got "perhaps"`,
		`input "l": want []string, got "a,b": write JSON such as ["a", "b"]`, `input "o": a is missing`, `no input "sss"`, `no input "N": did you mean "n"?`, `input "x": `,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("want %s in\n%v", want, err)
		}
	}
}

func TestSchemaOfGoTypes(t *testing.T) {
	type inner struct {
		K string `json:"k" jsonschema:"enum=a<b,enum=c&d"`
	}
	type outer struct {
		Z    int               `json:"z" jsonschema:"minimum=1,maximum=5"`
		A    []inner           `json:"a,omitempty"`
		When time.Time         `json:"when"`
		M    map[string]int    `json:"m"`
		P    *inner            `json:"p,omitempty"`
		Skip string            `json:"-"`
		Any  any               `json:"any"`
		Raw  map[string]string `json:"raw,omitempty"`
	}
	s, err := lang.SchemaOf(reflect.TypeFor[outer]())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"type":"object","properties":{"z":{"type":"integer","maximum":5,"minimum":1},` +
		`"a":{"type":"array","items":{"type":"object","properties":{"k":{"type":"string","enum":["a<b","c&d"]}},"additionalProperties":false,"required":["k"]}},` +
		`"when":{"type":"string","format":"date-time"},"m":{"type":"object","additionalProperties":{"type":"integer","maximum":9223372036854775807,"minimum":-9223372036854775808}},` +
		`"p":{"type":"object","properties":{"k":{"type":"string","enum":["a<b","c&d"]}},"additionalProperties":false,"required":["k"]},` +
		`"any":true,"raw":{"type":"object","additionalProperties":{"type":"string"}}},"additionalProperties":false,"required":["z","when","m","any"]}`
	if string(s) != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	ty, err := lang.TypeOfSchema(s)
	if got := ty.String(); err != nil || got != "{z: int, a?: []{k: string}, when: string, m: {}, p?: {k: string}, any: any, raw?: {}}" {
		t.Errorf("%s %v", got, err)
	}

	// A type that holds itself does not overflow the stack.
	type tree struct {
		Label string `json:"label"`
		Kids  []tree `json:"kids,omitempty"`
	}
	s, err = lang.SchemaOf(reflect.TypeFor[tree]())
	if err != nil || !strings.Contains(string(s), `"$ref":"#/$defs/tree"`) || strings.Contains(string(s), "$id") {
		t.Errorf("%s %v", s, err)
	}
	g, err := lang.Define("tree", func(p *lang.Program) lang.Var[tree] {
		p.User("hi")
		return lang.JSON[tree](p, "t")
	}).Compile()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lang.Explain(g, lang.ExplainOptions{}); err != nil {
		t.Error(err)
	}
	for _, rt := range []reflect.Type{reflect.TypeFor[int](), reflect.TypeFor[[]bool](), reflect.TypeFor[any](), reflect.TypeFor[time.Time]()} {
		if s, err := lang.SchemaOf(rt); err != nil {
			t.Errorf("%s: %s %v", rt, s, err)
		}
	}
}
