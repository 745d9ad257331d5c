package grammar

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

func mustPattern(t *testing.T, src string, e encoder, whole bool) (*pool, nodeID) {
	t.Helper()
	p := newPool()
	id, err := p.compilePattern(src, e, whole, 200)
	if err != nil {
		t.Fatalf("%q: %v", src, err)
	}
	return p, id
}

func TestPatternMatches(t *testing.T) {
	for _, c := range []struct {
		src, yes, no string // space-separated texts; _ is the empty one
	}{
		{`^a`, "a ab", "ba _"},
		{`a$`, "a ba", "ab _"},
		{`^a*$`, "_ a aa", "b ab"},
		{`a`, "a bab", "b _"},
		{`^(|a)$`, "_ a", "b"},
		{`(^|,)x(,|$)`, "x a,x x,b a,x,b", "ax xb"},
		{`^\d{3}-[\w.]+$`, "123-ab_9.z", "12a-x 123- 0123-a"},
		{`^\S+$`, "ab é", "_"},
		{`^[^a-c]{2}$`, "dd éé", "da d"},
		{`^(?!foo)[a-z]+$`, "bar fo fox", "foo food"},
		{`^(?=.*[0-9])[a-z0-9]{4,}$`, "abc1 1abc", "abcd a1"},
		{`^\u00e9\x41$`, "éA", "eA"},
		{`^[\u{1F600}-\u{1F64F}]$`, "😀", "a"},
		{`^\p{Lu}\p{Script=Greek}`, "Aα", "aα AA"},
		{`^(\p{Extended_Pictographic}|\p{Emoji_Component})+$`, "😀 👍🏽 ❤️ 1", "a 😀a _"},
		{`^\p{Emoji_Presentation}\P{Emoji}\p{Regional_Indicator}$`, "😀a🇩", "©a🇩 😀1🇩"},
		{`^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?)?)$`, "P3W P1Y P1YT2H P1DT3M PT5H PT1H2M", "P PT P1YW P1YT P3WT1H P1H"},
		{`^x(?:a|(?=b[cd])b)(c|d|e)$`, "xac xae xbc xbd", "xbe xb xa"},
		{`(?:(?=a)[ab]|c)$`, "a xa c bc", "b xb"},
		{`^a{2,3}$`, "aa aaa", "a aaaa"},
		{`^(ab){2}$`, "abab", "ab ababab"},
		{`[a\-z]`, "- a z", "b"},
		{`^a{,3}$`, "a{,3}", "aa"},
		{`^[]$`, "", "_ a"},
		{`^[^]$`, "a é", "_ ab"},
		{`^(?!.*x$)`, "foo xa _", "foox x"},
		{`^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$`, "1 -1.5 .5 0012", "_ - . -. 1e5"},
		{`(?!^\d+$)^.+$`, "a a1 1a", "12 _"},
		{`(?!\d)(?!^[)(^]+$)^.+$`, "a (a", "1a () ^"},
		{`^(?!^foo|^bar)[a-z]+$`, "fo baz", "foo barx"},
		{`^(?!foo)[\w$]+(?:\$[a-z])*$`, "a$ fo$x bar", "foo$ a-"},
		{`^(?=^a)(?!ab)`, "a ac", "ab b"},
		{`^(^a|b)`, "a b", "c"},
		{`^^a$$`, "a", "aa"},
		{`^^^^a?$$$$$`, "_ a", "aa"},
		{`a$b?$c?$d?$`, "a", "ab abcd"},
		{`(x|)$^`, "_", "x xx"},
		{`b?(?=a)^a`, "a ab", "ba b"},
		{`^(?!b)(^a|c)`, "a c", "b da"},
	} {
		p, id := mustPattern(t, c.src, encRaw, false)
		for _, s := range strings.Fields(c.yes) {
			if s == "_" {
				s = ""
			}
			if !p.matches(id, s) {
				t.Errorf("%q does not match %q", c.src, s)
			}
		}
		for _, s := range strings.Fields(c.no) {
			if s == "_" {
				s = ""
			}
			if p.matches(id, s) {
				t.Errorf("%q matches %q", c.src, s)
			}
		}
	}
}

func TestPatternRefused(t *testing.T) {
	for src, kind := range map[string]error{
		`a(b`: ErrInvalid, `a)`: ErrInvalid, `[z-a]`: ErrInvalid, `[a`: ErrInvalid, `*a`: ErrInvalid, `a**`: ErrInvalid,
		`a{3,2}`: ErrInvalid, `\`: ErrInvalid, `\1(a)`: ErrUnsupported, `\bx`: ErrUnsupported, `(?<=a)b`: ErrUnsupported,
		`(a(?=b))*`: ErrUnsupported, `(a(?=b)c`: ErrUnsupported, `(a|(?=b)`: ErrUnsupported, `x(?:a(?=b)){2}`: ErrUnsupported, `(?!^a)b`: ErrUnsupported, `^(?!a?^b)`: ErrUnsupported, `^(?!(?:a?$){2})`: ErrUnsupported, `(?i)a`: ErrUnsupported, `\p{Nope}`: ErrUnsupported, `\p{scx=Greek}`: ErrUnsupported, `a{99999999999}`: ErrTooLarge,
		strings.Repeat("(", 200000) + "a" + strings.Repeat(")", 200000): ErrTooLarge,
	} {
		_, err := newPool().compilePattern(src, encRaw, false, 200)
		if !errors.Is(err, kind) {
			t.Errorf("%.40q: %v, want %v", src, err, kind)
		}
	}
}

// randomPattern is a pattern without lookahead, with anchors anywhere.
func randomPattern(rnd *rand.Rand, d int) string {
	gen := func(d int) string { return randomPattern(rnd, d) }
	switch k := rnd.IntN(11); {
	case d <= 0 || k < 3:
		return []string{"a", "b", "c", "[ab]", "[^a]", "."}[rnd.IntN(6)]
	case k < 5:
		return gen(d-1) + gen(d-1)
	case k < 7:
		return "(?:" + gen(d-1) + "|" + gen(d-1) + ")"
	case k < 8:
		return "(?:" + gen(d-1) + ")" + []string{"*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}"}[rnd.IntN(7)]
	case k < 9:
		return "^" + gen(d-1)
	case k < 10:
		return gen(d-1) + "$"
	default:
		return "(?:" + gen(d-1) + "|)"
	}
}

// TestLookaheadAgainstRegexp puts random patterns into lookaheads: what these
// ask and deny is asked of the standard library piece by piece.
func TestLookaheadAgainstRegexp(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 6))
	n := 3000
	if testing.Short() {
		n = 1000
	}
	compared := 0
	for i := range n {
		a, b, c := randomPattern(rnd, 3), randomPattern(rnd, 3), randomPattern(rnd, 3)
		c = strings.ReplaceAll(c, "^", "")
		if strings.Contains(c, "[]") {
			c = "a.*" // it was a class
		}
		at := func(p, s string) bool { return regexp.MustCompile("^(?:" + p + ")").MatchString(s) }
		all := func(p, s string) bool { return regexp.MustCompile("^(?:" + p + ")$").MatchString(s) }
		var src string
		var want func(s string) bool
		switch i % 5 {
		case 0:
			src, want = "^(?!"+a+")(?:"+c+")$", func(s string) bool { return !at(a, s) && all(c, s) }
		case 1:
			src, want = "(?!"+a+")(?="+b+")^(?:"+c+")$", func(s string) bool { return !at(a, s) && at(b, s) && all(c, s) }
		case 2:
			src, want = "^(?!"+a+")", func(s string) bool { return !at(a, s) }
		case 3:
			src, want = "^(?="+a+")(?!"+b+")", func(s string) bool { return at(a, s) && !at(b, s) }
		default:
			src, want = "^b(?!"+c+")[^b]*$", func(s string) bool {
				return strings.HasPrefix(s, "b") && !at(c, s[1:]) && !strings.Contains(s[1:], "b")
			}
		}
		p := newPool()
		id, err := p.compilePattern(src, encRaw, false, 200)
		if errors.Is(err, ErrUnsupported) {
			continue
		}
		if err != nil {
			t.Fatalf("%q: %v", src, err)
		}
		compared++
		for range 25 {
			s := make([]byte, rnd.IntN(6))
			for i := range s {
				s[i] = "abcd"[rnd.IntN(4)]
			}
			if got := p.matches(id, string(s)); got != want(string(s)) {
				t.Fatalf("%q on %q: %v, want %v", src, s, got, !got)
			}
		}
	}
	if compared < n/2 {
		t.Errorf("only %d of %d patterns compared", compared, n)
	}
}

// TestPatternAgainstRegexp compares random patterns with the standard library.
func TestPatternAgainstRegexp(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	gen := func(d int) string { return randomPattern(rnd, d) }
	n := 3000
	if testing.Short() {
		n = 1200
	}
	for range n {
		src := gen(4)
		re, err := regexp.Compile(src)
		if err != nil {
			continue
		}
		full := regexp.MustCompile(`^(?:` + src + `)$`)
		p := newPool()
		id, err := p.compilePattern(src, encRaw, false, 200)
		if err != nil {
			t.Fatalf("%q: %v", src, err)
		}
		whole, err := p.compilePattern(src, encRaw, true, 200)
		if err != nil {
			t.Fatalf("%q: %v", src, err)
		}
		for range 30 {
			b := make([]byte, rnd.IntN(6))
			for i := range b {
				b[i] = "abcd"[rnd.IntN(4)]
			}
			if got, want := p.matches(id, string(b)), re.MatchString(string(b)); got != want {
				t.Fatalf("%q on %q: %v, want %v", src, b, got, want)
			}
			if got, want := p.matches(whole, string(b)), full.MatchString(string(b)); got != want {
				t.Fatalf("whole %q on %q: %v, want %v", src, b, got, want)
			}
		}
	}
}

// TestStringEncoding checks that one character has the spellings JSON gives it.
func TestStringEncoding(t *testing.T) {
	p := newPool()
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		lo := rune(rnd.IntN(0x11000))
		if rnd.IntN(2) == 0 {
			lo = rune(rnd.IntN(0x110000))
		}
		hi := min(lo+rune(rnd.IntN(5000)), 0x10FFFF)
		id := p.class(encString, []rng{{lo, hi}})
		for range 50 {
			c := lo - 50 + rune(rnd.IntN(int(hi-lo)+100))
			if c < 0x20 || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000) || c == '"' || c == '\\' {
				continue
			}
			want := c >= lo && c <= hi
			if got := p.matches(id, string(c)); got != want {
				t.Fatalf("class %x-%x on %x: %v", lo, hi, c, got)
			}
			if got := p.matches(id, jsonEscape(c)); got != want {
				t.Fatalf("class %x-%x on %s: %v", lo, hi, jsonEscape(c), got)
			}
		}
	}
	for _, bad := range []string{`\ud83d`, `\udc00`, "\n", `"`, `\`, `\x`, `\u12`, "\xff", "\xed\xa0\x80"} {
		if p.matches(p.anyText[encString], bad) {
			t.Errorf("%q passes as string content", bad)
		}
	}
}

func jsonEscape(c rune) string {
	const hex = "0123456789abcdefABCDEF"
	four := func(v rune) string {
		return `\u` + string([]byte{hex[v>>12&15], hex[v>>8&15], hex[v>>4&15], hex[v&15]})
	}
	if c > 0xFFFF {
		c -= 0x10000
		return four(0xD800+c>>10) + four(0xDC00+c&0x3FF)
	}
	return four(c)
}

func TestPartsOfAPattern(t *testing.T) {
	for _, c := range []struct {
		src    string
		parts  string
		top    string
		closed bool
	}{
		{`ab`, `a b`, `a b`, true},
		{`a\)[)\]](b(c)|[(])d`, `a \) [)\]] ( b ( c ) | [(] ) d`, `a \) [)\]] (b(c)|[(]) d`, true},
		{`a)b`, `a ) b`, `a ) b`, true},
		{`(a[b`, `( a [b`, `(a[b`, false},
		{`[a\]`, `[a\]`, `[a\]`, false},
		{`a\`, `a \`, `a \`, true},
		{`((a)`, `( ( a )`, `((a)`, true},
		{`[]a]`, `[] a ]`, `[] a ]`, true},
		{``, ``, ``, true},
	} {
		var parts, top []string
		closed := eachPart(c.src, func(i, end int) bool {
			parts = append(parts, c.src[i:end])
			return true
		})
		eachTop(c.src, func(i, end int) bool {
			top = append(top, c.src[i:end])
			return true
		})
		if p, q := strings.Join(parts, " "), strings.Join(top, " "); p != c.parts || q != c.top || closed != c.closed {
			t.Errorf("%s: parts %s, at the top %s, closed %v", c.src, p, q, closed)
		}
	}
	for src, want := range map[string]bool{`(a)`: true, `(a`: false, `a)(`: false, `[(]`: true, `[a`: false, `\(`: true, ``: true} {
		if balanced(src) != want {
			t.Errorf("balanced(%q) is %v", src, !want)
		}
	}
}
