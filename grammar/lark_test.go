package grammar

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"regexp"
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
		{"flags", "start: /straße/i \"ſ\"i /[^k]/i /a b # none\n {2}/x /./s /c.(?i:d)(?-s)e/s\n",
			[]string{"STRAẞESxabb\nc\nDe", "straßeſ\nabb\rc?de"}, []string{"STRASSESxabb\nc\nDe", "straßesKabb\nc\nDe", "straßesKabb\nc\nDe", "straßesxabb\nc\nDE", "straßesxab b\nc\nDe"}},
		{"classes of all of Unicode", `start: /\w\d\s[[:^alpha:]]\W\x{41}\U0001F600/`, []string{"é٣\u00a05+A😀"}, []string{"+٣ 5+A😀", "éa 5+A😀", "é٣ a+A😀", "é٣ 5éA😀"}},
		{"substrings", "start: A | B | C\nA: %regex {\"substring_words\": \"say a..b, twice\"} \"!\"\nB: \"#\" %regex {\"substring_chunks\":[\"ab\",\"c\",\"ab\",\"d\"]}\nC: %regex {\"substring_chars\":\"äöü\"}\n",
			[]string{"!", "say!", "a..b!", " a..!", ", twice!", "#", "#abc", "#cabd", "#abd", "öü", "ä", ""}, []string{"sa!", "a.!", "saya!", "#a", "#abab", "#cd", "äü", "say"}},
		{"comments", "start: (A | B | C | D)+\n%import common.C_COMMENT -> A\n%import common.CPP_COMMENT -> B\n%import common (SH_COMMENT, SQL_COMMENT)\nC: SH_COMMENT \"\\n\"\nD: SQL_COMMENT \"\\n\"\n",
			[]string{"/* a * b **/", "//x", "#y\n--z\n", "/**//**/"}, []string{"/* a", "/* a */ b */", "#y"}},
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
		{"start: \"é\" /a/l\n", ErrUnsupported, "line 1, column 15: flag l"},
		{"start: A\nA: /a(?iz:b)/\n", ErrUnsupported, "line 2, column 6: flag 'z'"},
		{"start: /a\n$/m\n", ErrUnsupported, "line 2, column 1: an anchor with flag m"},
		{"start: /[a-z&&[^b]]/\n", ErrUnsupported, "&& in a class"},
		{"start: /[a[b]]/\n", ErrUnsupported, "a class within a class"},
		{"start: /a\\b/\n", ErrUnsupported, "from end to end"},
		{"start: %regex {}\n", ErrInvalid, "one of substring_chunks"},
		{"start: %regex {\"type\":\"number\"}\n", ErrUnsupported, "substring_chunks"},
		{"start: %regex {\"substring_chars\":\"" + strings.Repeat("ab", 1001) + "\"}\n", ErrTooLarge, "more than 2000"},
		{"start: %lark {}\n", ErrUnsupported, "%json and %regex"},
		{"start: %json {\"type\":\n", ErrInvalid, "not JSON"},
		{"\n  start: \"a\" %json {\"type\":\"strange\"}\n", ErrInvalid, "line 2, column 14: schema at #/type: type"},
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

// TestLarkPatternsAgainstRegexp compares patterns with flags with the verdicts of another
// engine on all short texts.
func TestLarkPatternsAgainstRegexp(t *testing.T) {
	letters := []string{"k", "K", "\u212a", "s", "ſ", "\n", "é", "É", "1"}
	texts := []string{""}
	for i := 0; len(texts) < 1+9+81+729; i++ {
		for _, l := range letters {
			texts = append(texts, texts[i]+l)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	parts := []string{"k", "S", "é", "[k-s]", "[^k]", ".", "[[:upper:]]", "[^[:lower:]]", `\x{4B}`, `\p{Lu}`, `\P{Lu}`, "(?i:k)", "(?-i:K)", "(?s:.)", "(?i)", "(?-s)", "(?si-x:s.)", "(?i:[^s])", "1"}
	var pattern func(d int) string
	pattern = func(d int) string {
		var b strings.Builder
		for range 1 + r.IntN(3) {
			switch p := parts[r.IntN(len(parts))]; {
			case d > 0 && r.IntN(4) == 0:
				b.WriteString("(" + pattern(d-1) + "|" + pattern(d-1) + ")")
			case strings.HasSuffix(p, "(?i)"), strings.HasSuffix(p, "(?-s)"):
				b.WriteString(p)
			default:
				b.WriteString(p + []string{"", "", "?", "*", "{2}"}[r.IntN(5)])
			}
		}
		return b.String()
	}
	n, yes := 200, 0
	if testing.Short() {
		n = 40
	}
	for range n {
		src, flags := pattern(2), []string{"", "i", "s", "is", "u"}[r.IntN(5)]
		want := "^(?:" + strings.ReplaceAll(src, "-x", "-m") + ")$"
		if f := strings.Trim(flags, "u"); f != "" {
			want = "(?" + f + ")" + want
		}
		re, err := regexp.Compile(want)
		if err != nil {
			t.Fatalf("%s: %v", want, err)
		}
		spaced := strings.NewReplacer("k", "k ", "é", "é # any\n", "S", " S").Replace(src)
		for _, lark := range []string{"start: /" + src + "/" + flags + " ", "start: / " + spaced + "/x" + flags + " "} {
			if strings.Contains(src, "[k-s]") && lark[8] == ' ' {
				lark = strings.ReplaceAll(lark, "k -s", "k-s")
			}
			g, err := Compile(context.Background(), Spec{Lark: lark}, ByteVocab())
			if err != nil && !errors.Is(err, ErrUnsatisfiable) {
				t.Fatalf("%s: %v", lark, err)
			}
			for _, x := range texts {
				ok := err == nil && g.Match([]byte(x))
				if ok != re.MatchString(x) {
					t.Fatalf("%s on %q: %v, regexp (%s) says %v", lark, x, ok, want, !ok)
				}
				if ok {
					yes++
				}
			}
		}
	}
	if t.Logf("%d texts of %d patterns match", yes, n); yes < n {
		t.Error("too few match")
	}
}

// TestSubstringsAgainstAll: what %regex takes is every run of its parts, and nothing else.
func TestSubstringsAgainstAll(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 30 {
		var chunks []string
		for range 1 + r.IntN(6) {
			chunks = append(chunks, []string{"a", "ab", "b", "ba", "c"}[r.IntN(5)])
		}
		list, _ := json.Marshal(chunks)
		g := mustCompile(t, Spec{Lark: `start: %regex {"substring_chunks":` + string(list) + "}\n"}, ByteVocab())
		runs := map[string]bool{}
		for i := range chunks {
			for j := i; j <= len(chunks); j++ {
				runs[strings.Join(chunks[i:j], "")] = true
			}
		}
		texts := []string{""}
		for i := 0; len(texts) < 3000; i++ {
			texts = append(texts, texts[i]+"a", texts[i]+"b", texts[i]+"c")
		}
		for x := range runs {
			texts = append(texts, x)
		}
		for _, x := range texts {
			if g.Match([]byte(x)) != runs[x] {
				t.Fatalf("%s: %q is %v", list, x, !runs[x])
			}
		}
	}
}
