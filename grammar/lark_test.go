package grammar

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestLark(t *testing.T) {
	for _, c := range []struct {
		name, src string
		yes, no   []string
	}{
		{"arithmetic", `
			// sums of products
			start: expr
			expr: expr "+" term | term
			term: term ("*" | "/") factor
			    | factor              # a second line
			factor: NUMBER | "(" expr ")"
			NUMBER: /[0-9]+/ ("." /[0-9]+/)?
		`, []string{"1", "1+2*3", "(1.5+2)*(3/4)"}, []string{"", "1+", "(1", "1.", "1 +2"}},
		{"ignore", "start: \"let\" NAME \"=\" INT\n%import common (CNAME, INT)\nNAME: CNAME\n%import common.WS_INLINE -> WS\n%ignore WS\n",
			[]string{"let x=1", " let  long_name =  12 ", "letx=1"}, []string{"let x=", "let 1=x", "let x=1\n"}},
		{"terminals", `start: WORD~2..3 TAIL
			WORD: "a".."c" | "XY"i
			TAIL: /[0-9]{1,3}/ & ~/1.*/ & ~"22"`,
			[]string{"ab7", "axyXy23", "xyc999"}, []string{"a7", "abca7", "ab1", "ab12", "ab22", "axY"}},
		{"json", `start: "call " call (", " call)*
			call: NAME "(" %json {"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false} ")"
			NAME: /[a-z]+/ // of the tool
			`, []string{`call f({"n":1})`, `call f({"n":-12}), g({"n":0})`}, []string{`call f({"n":"x"})`, `call f({})`, `call f({"n":1}`}},
		{"value alone", `start: %json {"enum":["a",1]} "!"?`, []string{`"a"`, `1!`}, []string{`a`, `2`}},
		{"optional", `?start: ["a"] "b"? c{2} -> x
			!c.2: "c" |`, []string{"", "abcc", "bc", "acc"}, []string{"ccc", "ba"}},
		{"lazy", "start: head \"!\"\nhead[lazy]: /a+b?/\n", []string{"a!"}, []string{"aa!", "ab!"}},
		{"suffix", "start: text rest\ntext[capture, suffix=\"END\"]: /(?:.|\\n)*/\nrest: /[0-9]*/\n", []string{"END1", "a\nb ENEND", "ENDEN"[:3] + "22"}, []string{"ENDEND", "EN", "x"}},
		{"dots", "start: /.\\/./ /./s\n", []string{"a/b\n", "\r/\u2028x"}, []string{"\n/ab", "a/b"}},
		{"by detection", "start: \"x\"", []string{"x"}, []string{"y"}},
	} {
		spec := Spec{Lark: c.src}
		if c.name == "by detection" {
			spec = Spec{EBNF: c.src}
		}
		g, err := Compile(context.Background(), spec, ByteVocab())
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		for _, s := range c.yes {
			if ok, at := g.Reach([]byte(s)); !ok {
				t.Errorf("%s: %q is refused at byte %d", c.name, s, at)
			}
		}
		for _, s := range c.no {
			if g.Match([]byte(s)) {
				t.Errorf("%s: %q is accepted", c.name, s)
			}
		}
	}
}

func TestLarkFaults(t *testing.T) {
	for _, c := range []struct {
		src  string
		kind error
		says string
	}{
		{"rule: \"a\"\n", ErrInvalid, "no rule named start"},
		{"start: a\n", ErrInvalid, `"a" is not defined`},
		{"start: \"a\n", ErrInvalid, "unfinished string"},
		{"start: /a\n", ErrInvalid, "unfinished pattern"},
		{"start: /a(/\n", ErrInvalid, "missing )"},
		{"start: (\"a\"\n", ErrInvalid, "missing )"},
		{"start: \"a\" \"b\" )\n", ErrInvalid, "unexpected"},
		{"start: \"a\"\nstart: \"b\"\n", ErrInvalid, "defined twice"},
		{"start: <|im_end|>\n", ErrUnsupported, "special tokens"},
		{"start: /a/i\n", ErrUnsupported, "flag i"},
		{"start: %regex {}\n", ErrUnsupported, "%json"},
		{"start: %json {\"type\":\n", ErrInvalid, "not JSON"},
		{"start: %json {\"type\":\"strange\"}\n", ErrInvalid, "type"},
		{"start[max_tokens=3]: \"a\"\n", ErrUnsupported, "max_tokens"},
		{"start: x & \"a\"\nx: \"(\" x \")\" | \"b\"\n", ErrUnsupported, "& and ~"},
		{"%import python.NAME\nstart: \"a\"\n", ErrUnsupported, "common"},
		{"%declare A\nstart: \"a\"\n", ErrUnsupported, "%declare"},
		{"start: \"a\" & \"b\"\n", ErrUnsatisfiable, "no finite text"},
		{"start: " + strings.Repeat("(", 100000) + "\n", ErrTooLarge, "nested too deep"},
		{"start: " + strings.Repeat("~", 100000) + "\n", ErrTooLarge, "nested too deep"},
		{"start: \"a\"{99999999}\n", ErrTooLarge, "repeat count"},
		{"start: \xff\n", ErrInvalid, "UTF-8"},
	} {
		_, err := Compile(context.Background(), Spec{Lark: c.src}, ByteVocab())
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%.60q: %v", c.src, err)
		}
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%.60q: %T", c.src, err)
		}
	}
}
