package grammar

import (
	"errors"
	"strings"
	"testing"
)

var toolTags = Spec{Tags: &Tags{
	Triggers: []string{"<tool="},
	Tags: []Tag{
		{Begin: "<tool=weather>", End: "</tool>", Content: &Spec{JSONSchema: []byte(`{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}`)}},
		{Begin: "<tool=add>", End: "</tool>", Content: &Spec{Regex: `[0-9]+\+[0-9]+`}},
	},
}}

func TestTags(t *testing.T) {
	think := Spec{Tags: &Tags{Tags: []Tag{{Begin: "<think>", End: "</think>"}}, AtLeastOne: true, StopAfterFirst: true}}
	for _, c := range []struct {
		spec    Spec
		yes, no []string
	}{
		{toolTags, []string{"", "hello <b>", "a<tool=add>1+2</tool>", `x <tool=weather>{"city":"Oslo"}</tool> and <tool=add>3+4</tool> done <`},
			[]string{"<tool=", "<tool=other>", "<tool=add>1+</tool>", "a<tool=add>1+2</tool><tool=", `<tool=weather>{}</tool>`}},
		{think, []string{"<think></think>", "hm<think>a < b</thin></think>"}, []string{"", "hello", "<think>", "<think>a</think>b"}},
		{Spec{Sequence: []Spec{{Choices: []string{"Severity: "}}, {Choices: []string{"low", "high"}}, {Choices: []string{"\n"}}, testSpecs["counts"]}},
			[]string{"Severity: low\n{\"a\":true,\"c\":false}"}, []string{"Severity: low", "Severity: mid\n", "Severity: low\n{\"a\":true}"}},
	} {
		g := mustCompile(t, c.spec, ByteVocab())
		for _, s := range c.yes {
			if !g.Match([]byte(s)) {
				_, err := g.Start().AcceptBytes([]byte(s))
				t.Errorf("%q does not match: %v", s, err)
			}
		}
		for _, s := range c.no {
			if g.Match([]byte(s)) {
				t.Errorf("%q matches", s)
			}
		}
	}
	g := mustCompile(t, toolTags, ByteVocab())
	s, err := g.Start().AcceptBytes([]byte("so <tool=w"))
	if err != nil {
		t.Fatal(err)
	}
	if f := string(s.Forced()); f != `eather>{"city":"` {
		t.Errorf("forced %q", f)
	}
	for _, spec := range []Spec{{Tags: &Tags{}}, {Tags: &Tags{Tags: []Tag{{Begin: "a"}}}}, {Tags: &Tags{Triggers: []string{"x"}, Tags: []Tag{{Begin: "a", End: "b"}}}}, {Sequence: []Spec{}}, {Sequence: []Spec{{}}}} {
		if err := compileError(spec); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", spec, err)
		}
	}
}

func TestDot(t *testing.T) {
	g := mustCompile(t, Spec{JSONSchema: []byte(`{"type":"object","properties":{"a":{"enum":["x","y"]}},"required":["a"],"additionalProperties":false}`)}, ByteVocab())
	const want = `digraph grammar {
	rankdir=LR;
	node [shape=circle, label=""];
	n0 [shape=circle, label="1"];
	n0 -> n1 [label="{\"a\":\"", style=bold];
	n1 [shape=circle, label="1"];
	n1 -> n2 [label="xy"];
	n2 [shape=circle, label="1"];
	n2 -> n3 [label="\"}", style=bold];
	n3 [shape=doublecircle, label="0"];
}
`
	if got := g.Dot(50); got != want {
		t.Errorf("drawn as %s", got)
	}
	const chart = "flowchart LR\n\tn0((1))\n\tn1((1))\n\tn2((1))\n\tn3(((0)))\n" +
		"\tn0 ==>|\"#123;#34;a#34;:#34;\"| n1\n\tn1 -->|\"xy\"| n2\n\tn2 ==>|\"#34;#125;\"| n3\n"
	if got := g.Mermaid(50); got != chart {
		t.Errorf("drawn as %s", got)
	}
	if got := g.Dot(1); !strings.Contains(got, "n0 -> more") {
		t.Errorf("cut at one place: %s", got)
	}
}
