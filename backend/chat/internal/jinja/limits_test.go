package jinja

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestHostileTemplatesAreStopped(t *testing.T) {
	deep := func(open, inner, end string, n int) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(end, n)
	}
	for name, src := range map[string]string{
		"nested loops":         deep("{% for i in range(999) %}", "x", "{% endfor %}", 4),
		"long range":           "{{ range(9223372036854775807) | length }}",
		"text that doubles":    "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
		"list that doubles":    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"replace that grows":   "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
		"join that grows":      "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x | join(ns.x) %}{% endfor %}",
		"repeated text":        "{{ 'ab' * 999999999999 }}",
		"repeated list":        "{{ [1] * 999999999999 }}",
		"endless macro":        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"macros in turn":       "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
		"nested brackets":      "{{ " + deep("(", "1", ")", 9000) + " }}",
		"nested lists":         "{{ " + deep("[", "1", "]", 200000) + " }}",
		"nested nots":          "{{ " + strings.Repeat("not ", 200000) + "1 }}",
		"nested signs":         "{{ " + strings.Repeat("-", 200000) + "1 }}",
		"nested ifs":           deep("{% if 1 %}", "x", "{% endif %}", 9000),
		"long sum":             "{{ 1" + strings.Repeat("+1", 200000) + " }}",
		"long or":              "{{ 0" + strings.Repeat(" or 0", 200000) + " }}",
		"long ternary":         "{{ 1" + strings.Repeat(" if 1", 200000) + " }}",
		"long path":            "{{ x" + strings.Repeat(".a", 200000) + " }}",
		"long filters":         "{{ x" + strings.Repeat("|list", 200000) + " }}",
		"list in itself":       "{% set l = [] %}{% do l.append(l) %}{{ l }}",
		"list in itself, JSON": "{% set l = [] %}{% do l.append(l) %}{{ l | tojson }}",
		"shared lists":         "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
		"shared lists, equal":  "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
		"shared lists, order":  "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x < ns.y }}",
	} {
		_, err := renderText(t, src, json.RawMessage("{}"))
		if !errors.Is(err, ErrLimit) {
			msg := "no error"
			if err != nil {
				msg = err.Error()
			}
			t.Errorf("%s: %.200s", name, msg)
		}
	}
	if _, err := Parse(strings.Repeat("x", maxSource+1)); !errors.Is(err, ErrLimit) {
		t.Errorf("a long source: %v", err)
	}
	if _, err := FromJSON([]byte(deep("[", "1", "]", 9000)), User); !errors.Is(err, ErrLimit) {
		t.Errorf("deep JSON: %v", err)
	}
}

func TestLongButHarmlessTemplates(t *testing.T) {
	got, err := renderText(t, "{{ 0"+strings.Repeat(" + 1", 400)+" }}{{ "+strings.Repeat("(", 40)+"1"+strings.Repeat(")", 40)+" }}", json.RawMessage("{}"))
	if err != nil || got.S != "4001" {
		t.Errorf("got %q, %v", got.S, err)
	}
}

func FuzzTemplate(f *testing.F) {
	var file struct {
		Vars  json.RawMessage
		Cases []struct{ Src string }
	}
	if err := json.Unmarshal(snippets, &file); err != nil {
		f.Fatal(err)
	}
	for _, c := range file.Cases {
		f.Add(c.Src)
	}
	f.Fuzz(func(t *testing.T, src string) {
		tmpl, err := Parse(src)
		if err != nil {
			return
		}
		vars, err := FromJSON(file.Vars, User)
		if err != nil {
			t.Fatal(err)
		}
		out, err := tmpl.Execute(vars.(*Dict), testClock)
		if err != nil {
			return
		}
		all := ""
		for _, r := range out.Runs() {
			all += r.Text
		}
		if all != out.S {
			t.Fatalf("runs do not add up: %q and %q", all, out.S)
		}
	})
}

func FuzzFromJSON(f *testing.F) {
	for _, s := range []string{`{"b": 1, "a": [1.5, null, true, "x"]}`, `[1, 2`, `{} {}`, `1e999`, `"\ud800"`, `123456789012345678901234567890`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := FromJSON(data, User)
		if err != nil {
			return
		}
		in := &interp{}
		out, err := toJSON(&Call{in: in}, v)
		if err != nil {
			t.Fatal(err)
		}
		again, err := FromJSON([]byte(out.(Text).S), User)
		if err != nil {
			t.Fatalf("%s became %s: %v", data, out.(Text).S, err)
		}
		if !in.equal(v, again) {
			t.Fatalf("%s became %s", data, out.(Text).S)
		}
	})
}
