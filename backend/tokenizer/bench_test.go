package tokenizer

import (
	"fmt"
	"strings"
	"testing"
)

// prose is n bytes of English with a vocabulary of a few thousand words.
func prose(n int) string {
	heads := []string{"re", "un", "over", "out", "inter", "sub", "con", "per", "mis", "trans", "", "", ""}
	roots := []string{"port", "light", "house", "stand", "form", "water", "table", "river", "play", "count", "set", "view", "act", "press", "turn", "cross", "line"}
	tails := []string{"", "s", "ed", "ing", "er", "able", "less", "ment", "ly"}
	small := []string{"the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "was", "on", "with", "as", "his", "her"}
	var b strings.Builder
	x := uint32(1)
	next := func(n int) int {
		x = x*1664525 + 1013904223
		return int(x>>8) % n
	}
	for b.Len() < n {
		switch next(12) {
		case 0:
			b.WriteString(", ")
		case 1:
			b.WriteString(". The ")
		case 2:
			fmt.Fprintf(&b, "%d ", next(3000))
		case 3, 4, 5, 6:
			b.WriteString(small[next(len(small))] + " ")
		default:
			b.WriteString(heads[next(len(heads))] + roots[next(len(roots))] + tails[next(len(tails))] + " ")
		}
	}
	return b.String()[:n]
}

func BenchmarkEncode(b *testing.B) {
	inputs := []struct{ name, text string }{
		{"prose", prose(1 << 20)},
		{"word100kB", strings.Repeat("abcdefghij", 10_000)},
		{"newlines100kB", strings.Repeat("\n", 100_000)},
		{"spaces100kB", strings.Repeat(" ", 100_000)},
		{"cjk", strings.Repeat("我爱北京天安门太阳升起伟大领袖", 2000)},
		{"code", strings.Repeat("\tif err := f.do(ctx, x[i]); err != nil {\n\t\treturn fmt.Errorf(\"do %d: %w\", i, err)\n\t}\n", 1000)},
	}
	for name := range models {
		b.Run(name, func(b *testing.B) {
			tok := loadModel(b, name)
			for _, in := range inputs {
				b.Run(in.name, func(b *testing.B) {
					b.SetBytes(int64(len(in.text)))
					b.ReportAllocs()
					for b.Loop() {
						tok.Encode(in.text, true)
					}
				})
			}
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for name := range models {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				loadModel(b, name)
			}
		})
	}
}
