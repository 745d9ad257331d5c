package jinja

import (
	"encoding/json"
	"strings"
	"testing"
)

// show writes a text with what users wrote in ‹ ›.
func show(t Text) string {
	var b strings.Builder
	for _, r := range t.Runs() {
		if r.Flag == Trusted {
			b.WriteString(r.Text)
		} else {
			b.WriteString("‹" + r.Text + "›")
		}
	}
	return b.String()
}

func TestMarksSurviveEveryOperation(t *testing.T) {
	vars := json.RawMessage(`{"u": "ab cd", "l": ["x", "y"], "d": {"k": "v"}}`)
	for src, want := range map[string]string{
		`<{{ u }}>`:                                            "<‹ab cd›>",
		`{{ '<' + u + '>' }}`:                                  "<‹ab cd›>",
		`{{ '<' ~ u ~ '>' ~ 1 }}`:                              "<‹ab cd›>1",
		`{{ ('<' ~ u ~ '>')[:3] }}`:                            "<‹ab›",
		`{{ ('<' ~ u ~ '>')[::-1] }}`:                          ">‹dc ba›<",
		`{{ ('< ' ~ u ~ ' >').split(' ') | join('|') }}`:       "<|‹ab›|‹cd›|>",
		`{{ (' ' ~ u ~ ' ') | trim }}`:                         "‹ab cd›",
		`{{ ('<' ~ u) | upper }}`:                              "<‹AB CD›",
		`{{ ('<' ~ u) | title }}`:                              "<‹Ab Cd›",
		`{{ ('<' ~ u).replace('b', '_') }}`:                    "<‹a›_‹ cd›",
		`{{ 'a-b'.replace('-', u) }}`:                          "a‹ab cd›b",
		`{{ l | join('+') }}`:                                  "‹x›+‹y›",
		`{{ d | tojson }}`:                                     `{‹"k"›: ‹"v"›}`,
		`{{ d }}`:                                              `{‹'k'›: ‹'v'›}`,
		`{{ d | items | list }}`:                               `[(‹'k'›, ‹'v'›)]`,
		`{% for c in ('<' ~ u[:2]) %}{{ c }}.{% endfor %}`:     "<.‹a›.‹b›.",
		`{% set x %}<{{ u }}>{% endset %}{{ x }}`:              "<‹ab cd›>",
		`{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(u) }}`:    "<‹ab cd›>",
		`{{ '<{}>'.format(u) }}`:                               "<‹ab cd›>",
		`{{ '<%s>' % u }}`:                                     "<‹ab cd›>",
		`{{ (u ~ '\n<') | indent(2) }}`:                        "‹ab cd›\n  <",
		`{{ u | replace('ab cd', '') ~ u | first }}`:           "‹a›",
		`{{ ('<' ~ u ~ '>') | e }}`:                            "&lt;‹ab cd›&gt;",
		`{{ u * 2 }}`:                                          "‹ab cdab cd›",
		`{{ 'x' | default(u) }}{{ nope | default(u) }}`:        "x‹ab cd›",
		`{{ ('["' ~ u ~ '"]') | from_json | first }}`:          "‹ab cd›",
		`{{ (l | sort | unique | list)[0] }}`:                  "‹x›",
		`{% filter upper %}<{{ u }}{% endfilter %}`:            "<‹AB CD›",
		`{{ u.splitlines()[0].strip('a').removesuffix('d') }}`: "‹b c›",
	} {
		got, err := renderText(t, src, vars)
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		if show(got) != want {
			t.Errorf("%s\n got %s\nwant %s", src, show(got), want)
		}
	}
}

func TestTextInvariant(t *testing.T) {
	text := concat(Text{S: "ab"}, Marked("cd", User), Text{S: "é"}, Marked("", User), Marked("fg", Slot))
	for i := range len(text.S) + 1 {
		for j := i; j <= len(text.S); j++ {
			part := text.slice(i, j)
			all := ""
			for _, r := range part.Runs() {
				all += r.Text
			}
			if all != text.S[i:j] {
				t.Fatalf("slice %d:%d has runs %q", i, j, part.Runs())
			}
			if back := concat(text.slice(0, i), part, text.slice(j, len(text.S))); show(back) != show(text) {
				t.Fatalf("cut at %d and %d and joined: %s", i, j, show(back))
			}
		}
	}
}
