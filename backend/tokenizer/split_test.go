package tokenizer

import (
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// ws is Unicode's White_Space, for what \s means in the patterns.
const ws = `\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}`

// slow splits by trying the alternatives of a pattern one after the other at each
// place. The alternative "ahead" is \s+(?!\S), which package regexp cannot say: white
// space of which the last is left over if something follows.
func slow(alternatives ...string) splitter {
	var res []*regexp.Regexp
	for _, a := range alternatives {
		if a == "ahead" {
			a = `[` + ws + `]+`
		}
		a = strings.ReplaceAll(a, `\s`, ws)
		res = append(res, regexp.MustCompile(`^(?:`+a+`)`))
	}
	return func(s string, emit func(string)) {
		for s != "" {
			n := 0
			for i, re := range res {
				n = len(re.FindString(s))
				if n > 0 && alternatives[i] == "ahead" && n < len(s) {
					_, last := utf8.DecodeLastRuneInString(s[:n])
					n -= last
				}
				if n > 0 {
					break
				}
			}
			if n == 0 {
				_, n = utf8.DecodeRuneInString(s)
			}
			emit(s[:n])
			s = s[n:]
		}
	}
}

// stages applies splitters one after the other, each to the words of the one before.
func stages(first splitter, more ...splitter) splitter {
	if len(more) == 0 {
		return first
	}
	rest := stages(more[0], more[1:]...)
	return func(s string, emit func(string)) {
		first(s, func(word string) { rest(word, emit) })
	}
}

// isolate cuts out the matches of a pattern and keeps what lies between whole.
func isolate(pattern string) splitter {
	re := regexp.MustCompile(pattern)
	return func(s string, emit func(string)) {
		at := 0
		for _, m := range re.FindAllStringIndex(s, -1) {
			if m[0] > at {
				emit(s[at:m[0]])
			}
			emit(s[m[0]:m[1]])
			at = m[1]
		}
		if at < len(s) {
			emit(s[at:])
		}
	}
}

var (
	slowGPT2 = slow(`'s|'t|'re|'ve|'m|'ll|'d`, ` ?\p{L}+`, ` ?\p{N}+`, ` ?[^\s\p{L}\p{N}]+`, "ahead", `[\s]+`)
	slowWide = func(digits string) splitter {
		return slow(`(?i:'s|'t|'re|'ve|'m|'ll|'d)`, `[^\r\n\p{L}\p{N}]?\p{L}+`, digits, ` ?[^\s\p{L}\p{N}]+[\r\n]*`, `[\s]*[\r\n]+`, "ahead", `[\s]+`)
	}
)

// slowVersions are the patterns of llama.cpp 0.5.0 (llama-vocab.cpp).
var slowVersions = map[string]splitter{
	"gpt-2":     slowGPT2,
	"smollm":    stages(isolate(`\p{N}`), slowGPT2),
	"llama-bpe": slowWide(`\p{N}{1,3}`),
	"qwen2":     slowWide(`\p{N}`),
	"qwen35":    slow(`(?i:'s|'t|'re|'ve|'m|'ll|'d)`, `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`, `\p{N}`, ` ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*`, `[\s]*[\r\n]+`, "ahead", `[\s]+`),
	"default":   stages(isolate(`[\p{P}$+<=>^~|]+`), slowGPT2, isolate(`\p{N}+`), isolate(`[0-9][0-9][0-9]`)),
	"falcon":    stages(isolate("[\\p{P}$+<=>^~|`]+"), slowGPT2, isolate(`[0-9][0-9][0-9]`)),
}

func words(split splitter, s string) (out []string) {
	split(s, func(w string) { out = append(out, w) })
	return out
}

// checkSplit compares all splitters with their slow versions.
func checkSplit(t *testing.T, s string) {
	t.Helper()
	for name, want := range slowVersions {
		got := words(pres[name].split, s)
		if strings.Join(got, "") != s {
			t.Fatalf("%s: words of %q do not add up: %q", name, s, got)
		}
		if slices.Contains(got, "") {
			t.Fatalf("%s: empty word in %q", name, got)
		}
		// The slow versions know neither broken UTF-8 nor letters newer than Go's tables,
		// nor the Kelvin sign and the long s, which regexp folds into k and s.
		if !utf8.ValidString(s) || strings.ContainsAny(s, "Kſ") || strings.ContainsFunc(s, func(r rune) bool { return r >= 0x2EBF0 && r <= 0x2EE5D }) {
			continue
		}
		if want := words(want, s); !slices.Equal(got, want) {
			t.Fatalf("%s: %q\n got %q\nwant %q", name, s, got, want)
		}
	}
}

var splitSeeds = []string{
	"", " ", "  ", "\n", " \n ", "a", "a b", "a  b", "  a", "a  ", "don't 'S 'LL 'x '", "'s't're", "x1234567", " 12 345", "\t\tx",
	"a\n\n b", "a \n\n", "\r\n\r\nx", "...\n\n", " ...\n x", "é̀ ̀x", "漢字123かな", "٣٤ ½", "😀😀 😀", "a\u00a0b\u3000 c", "$1,234.56!", "`x` <a>=b|c",
	"\xff\xfe a", "\u0085x", " \u0301", "x\u0301y", "'\u0301s",
}

func TestSplittersEqualTheirPatterns(t *testing.T) {
	loadClasses()
	for _, s := range splitSeeds {
		checkSplit(t, s)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	alphabet := []string{" ", " ", "  ", "\n", "\r", "\t", "a", "B", "é", "漢", "1", "23", "٣", "'", "'s", "'RE", ".", "$", "`", "_", "😀", "\u0301", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b"}
	for range 4000 {
		var b strings.Builder
		for range rng.IntN(12) {
			b.WriteString(alphabet[rng.IntN(len(alphabet))])
		}
		checkSplit(t, b.String())
	}
}

func TestClassesCoverAllCharacters(t *testing.T) {
	loadClasses()
	for r := rune(0); r <= utf8.MaxRune; r++ {
		c := classPages[classIndex[r>>8]][r&255]
		n := 0
		for _, x := range []class{letter, number, space, other} {
			if c&x != 0 {
				n++
			}
		}
		if n != 1 {
			t.Fatalf("%U has classes %b", r, c)
		}
	}
}

func FuzzSplit(f *testing.F) {
	loadClasses()
	for _, s := range splitSeeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { checkSplit(t, s) })
}
