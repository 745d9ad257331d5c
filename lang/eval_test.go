package lang_test

import (
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/coppice-run/coppice/lang"
)

var vars = map[string]any{
	"s": "text", "n": 3, "f": 2.5, "b": true, "none": nil,
	"list": []any{"b", "a"}, "nums": []any{1, 2, 3},
	"obj": map[string]any{"z": 1, "a": "x<y>&", "list": []any{1.5, nil}},
	"len": 7, // a variable may have the name of a function
}

func TestEval(t *testing.T) {
	g := &lang.Graph{}
	for _, c := range []struct {
		ex   lang.Expr
		want string // as JSON
	}{
		{`s`, `"text"`},
		{`n + 1`, `4`},
		{`n / 2`, `1.5`},
		{`f * 2`, `5`},
		{`s == "text" && !(n > 3)`, `true`},
		{`b ? "yes" : "no"`, `"yes"`},
		{`if b { 1 } else { 2 }`, `1`},
		{`none ?? "default"`, `"default"`},
		{`obj?.missing?.deeper`, `null`},
		{`obj.missing`, `null`},
		{`len(list)`, `2`},
		{`len`, `7`},
		{`len(list) + len`, `9`},
		{`list[-1]`, `"a"`},
		{`nums[1:]`, `[2,3]`},
		{`map(nums, # * 2)`, `[2,4,6]`},
		{`filter(nums, # > 1)`, `[2,3]`},
		{`nums | filter(# > 1) | sum()`, `5`},
		{`sort(list)`, `["a","b"]`},
		{`split("a,b", ",")`, `["a","b"]`},
		{`join(nums, "-")`, `"1-2-3"`},
		{`join(["a", 1, 2.5, true, nil, [1]], " ")`, `"a 1 2.5 true  [1]"`},
		{`string(obj)`, `"{\"a\":\"x<y>&\",\"list\":[1.5,null],\"z\":1}"`},
		{`toJSON("a<b")`, `"\"a<b\""`},
		{`fromJSON("{\"a\": 10}").a + 1`, `11`},
		{`keys(obj)`, `["a","list","z"]`},
		{`values(obj)`, `["x<y>&",[1.5,null],1]`},
		{`toPairs({b: 1, a: 2})`, `[["a",2],["b",1]]`},
		{`1..3`, `[1,2,3]`},
		{`let x = n * 2; x + 1`, `7`},
		{`{a: 1, "b c": [n]}`, `{"a":1,"b c":[3]}`},
		{`reduce(nums, #acc + #, 0)`, `6`},
		{`all(nums, any(nums, # > 2))`, `true`},
		{`s matches "^te.t$"`, `true`},
		{`"é漢" + "\n\t\"\u00e9"`, `"é漢\n\t\"é"`},
		{`upper(s) contains "EX"`, `true`},
		{`groupBy(nums, # % 2)`, `{"0":[2],"1":[1,3]}`},
	} {
		v, err := g.Eval(c.ex, vars)
		if err != nil {
			t.Errorf("%s: %v", c.ex, err)
			continue
		}
		if got := string(lang.FormatJSON(v, lang.Type{})); got != c.want {
			t.Errorf("%s = %s, want %s", c.ex, got, c.want)
		}
	}
}

func TestEvalErrorsNameTheExpressionAndTheVariable(t *testing.T) {
	g := &lang.Graph{}
	for _, c := range []struct{ ex, want string }{
		{`lst[0]`, `expression "lst[0]": variable "lst" is not set: did you mean "list"?`},
		{`s + n`, `expression "s + n"`},
		{`list[9]`, `index out of range`},
		{`obj.z.q`, `expression "obj.z.q"`},
		{`$env`, `no variable "$env"`},
		{`now()`, `no clock`},
		{`date("2020-01-01")`, `no clock`},
		{`(`, `unexpected end`},
		{``, `empty`},
		{`nosuch(1)`, `there is no function "nosuch"`},
		{`s()`, `there is no function "s"`},
		{`obj.z()`, `only functions can be called`},
		{`fromJSON("{")`, `fromJSON`},
		{`int("x")`, `int`},
		{`none + 1`, `expression`},
		{`1 / 0 == 1 and "x" > 3`, `expression`},
		{`1.0 / 0`, `not a number that JSON has`},
		{`s matches "("`, `missing closing`},
	} {
		v, err := g.Eval(lang.Expr(c.ex), vars)
		if err == nil {
			t.Errorf("%s = %v", c.ex, v)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.ex, err, c.want)
		}
	}
}

// Each of these would take minutes or gigabytes without bounds.
func TestCostlyExpressionsEnd(t *testing.T) {
	g := &lang.Graph{}
	big := make([]any, 5000)
	for i := range big {
		big[i] = i
	}
	for _, ex := range []string{
		`all(1..100000, all(1..100000, true))`,
		`all(big, all(big, all(big, true)))`,
		`map(1..1000, map(1..1000, map(1..1000, #)))`,
		`1..100000000`,
		`reduce(1..1000000, #acc + "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "")`,
		`reduce(1..40, #acc + #acc, "xxxxxxxx")`,
		`repeat("x", 1000000000)`,
		`repeat(repeat("x", 1000), 1000000)`,
		strings.Repeat("(", 100000) + "1" + strings.Repeat(")", 100000),
		strings.Repeat("!", 100000) + "b",
		strings.Repeat("-", 50000) + "1",
		strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"1" + strings.Repeat(" + 1", 20000),
		strings.Repeat("b ? 1 : ", 3000) + "2",
		"b" + strings.Repeat(".x", 5000),
		strings.Repeat("not ", 20000) + "b",
	} {
		_, err := g.Eval(lang.Expr(ex), map[string]any{"big": big, "b": true})
		if err == nil {
			t.Errorf("%.60s: no error", ex)
		}
		t.Logf("%.60s: %.100v", ex, err)
	}
}

func TestEvalIsSafeForConcurrentUse(t *testing.T) {
	g := &lang.Graph{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 200 {
				if v, err := g.Eval(`reduce(nums, #acc + #, 0) + len(list)`, vars); err != nil || v != 8 {
					t.Errorf("%v %v", v, err)
				}
				if s, err := g.Expand("${s} ${join(list, \",\")}", vars); err != nil || s != "text b,a" {
					t.Errorf("%v %v", s, err)
				}
			}
		}()
	}
	wg.Wait()
}

func TestExpand(t *testing.T) {
	g := &lang.Graph{}
	for _, c := range []struct{ in, want string }{
		{"plain", "plain"},
		{"", ""},
		{"${s}", "text"},
		{"a ${n} b ${f}", "a 3 b 2.5"},
		{"$s $ $$ $", "$s $ $$ $"},
		{"$${s}", "${s}"},
		{"$$${s}", "$${s}"},
		{`${"$"}${s}`, "$text"},
		{"${none}|${b}", "|true"},
		{"${obj}", `{"a":"x<y>&","list":[1.5,null],"z":1}`},
		{"${list}", `["b","a"]`},
		{`${ {a: "}"}.a }`, "}"},
		{`${"}" + '}' + "\"}"}`, `}}"}`},
		{"${map(nums, {# + 1})}", "[2,3,4]"},
		{"é${s}漢", "étext漢"},
		{"${100000000}", "100000000"},
		{"${1000000 * 1000000}", "1000000000000"},
	} {
		got, err := g.Expand(lang.Template(c.in), vars)
		if err != nil || got != c.want {
			t.Errorf("%s: %q %v, want %q", c.in, got, err, c.want)
		}
	}
	for _, in := range []string{"${", "${s", "${}", "${ }", "${\"}", "a ${nope} b"} {
		if got, err := g.Expand(lang.Template(in), vars); err == nil {
			t.Errorf("%s: %q", in, got)
		}
	}
}

func TestConstantsStandForThemselves(t *testing.T) {
	g := &lang.Graph{}
	check := func(ex lang.Expr, want any) {
		t.Helper()
		if got, err := g.Eval(ex, nil); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %#v, %v, want %#v", ex, got, err, want)
		}
	}
	for _, s := range nasty {
		check(lang.Const(s).Expr(), s)
		check(lang.Const([]string{s, s}).Expr(), []any{s, s})
		check(lang.Const(map[string]string{s: s}).Expr(), map[string]any{s: s})
		check(lang.Const(s).Is(s).Expr(), true)
		check(lang.Not(lang.Const(s).Is(s+"x")).Expr(), true)
	}
	check(lang.Const(-3).Expr(), -3)
	check(lang.Const(2.0).Expr(), 2.0)
	check(lang.Const(1e-9).Expr(), 1e-9)
	check(lang.Const(1e300).Expr(), 1e300)
	check(lang.Const(-2.5e-7).Expr(), -2.5e-7)
	check(lang.Const(true).Expr(), true)
	check(lang.Const[any](nil).Expr(), nil)
	check(lang.Const([]any{}).Expr(), []any{})
	check(lang.Const(map[string]any{}).Expr(), map[string]any{})
	check(lang.Const(math.MaxInt64).Expr(), math.MaxInt64)
	check(lang.Const(math.MinInt64+1).Expr(), math.MinInt64+1)
	check(lang.Join(lang.Const([]string{"a", "b"}), "${\"'\n").Expr(), "a${\"'\nb")
	check(lang.Len(lang.Const([]int{1})).Expr(), 1)
	check(lang.At(lang.Const([]int{1, 2}), -1).Expr(), 2)
	check(lang.Get[int](lang.Const(obj{A: 4}), "a").Expr(), 4)
	check(lang.Calc[int](lang.Const(1), " - ", lang.Calc[int](lang.Const(2), " - ", lang.Const(3))).Expr(), 2)
	check(lang.And().Expr(), true)
	check(lang.Or(lang.Const(false), lang.Const(1).IsNot(2)).Expr(), true)
}

func FuzzTemplate(f *testing.F) {
	for _, s := range nasty {
		f.Add(s, s)
		f.Add("$"+s, s+"$")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		g := &lang.Graph{}
		if !utf8.ValidString(a) || !utf8.ValidString(b) {
			return
		}
		// Escaped text comes back as it was.
		if got, err := g.Expand(lang.Escape(a), nil); err != nil || got != a {
			t.Fatalf("%q became %q, %v", a, got, err)
		}
		// Text around a value too, when the builder puts them together.
		d := lang.Define("p", func(p *lang.Program) lang.Var[string] {
			v := lang.In[string](p, "v")
			p.User(a, v, b, v, a)
			return p.Gen("g")
		})
		c, err := d.Compile()
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Expand(c.Node("user").Text.Content, map[string]any{"v": b})
		if err != nil || got != a+b+b+b+a {
			t.Fatalf("%q became %q, %v", a+b+b+b+a, got, err)
		}
		// Anything else ends with text or an error.
		g.Expand(lang.Template(a), map[string]any{"v": b})
	})
}

func BenchmarkExpand(b *testing.B) {
	g := &lang.Graph{}
	for b.Loop() {
		if _, err := g.Expand("Alert: ${s}, ${n} pods", vars); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkEval(b *testing.B) {
	g := &lang.Graph{}
	for b.Loop() {
		if _, err := g.Eval(`s == "text" && len(list) > 1`, vars); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	g, err := triage().Compile()
	if err != nil {
		b.Fatal(err)
	}
	data, _ := g.JSON()
	for b.Loop() {
		if _, err := lang.Decode(data, "x"); err != nil {
			b.Fatal(err)
		}
	}
}
