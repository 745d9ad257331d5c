package grammar

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// This file reads the characters, classes and properties of patterns.

var (
	digitClass = []rng{{'0', '9'}}
	wordClass  = []rng{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}
	spaceClass = normRanges([]rng{{'\t', '\r'}, {' ', ' '}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A},
		{0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}})
)

// escape parses a backslash escape of one character or class.
func (r *pattern) escape(inClass bool) []rng {
	r.pos++
	if r.pos >= len(r.src) {
		r.fail(ErrInvalid, "a backslash at the end")
	}
	c := r.src[r.pos]
	one := func(ch rune) []rng { return []rng{{ch, ch}} }
	r.pos++
	if set, ok := r.escapeOfLark(c); ok {
		return set
	}
	switch c {
	case 'd':
		return digitClass
	case 'D':
		return negate(digitClass)
	case 'w':
		return wordClass
	case 'W':
		return negate(wordClass)
	case 's':
		return spaceClass
	case 'S':
		return negate(spaceClass)
	case 't':
		return one('\t')
	case 'n':
		return one('\n')
	case 'v':
		return one('\v')
	case 'f':
		return one('\f')
	case 'r':
		return one('\r')
	case '0':
		if d := r.peek(); d >= '0' && d <= '9' {
			r.refuse(ErrUnsupported, "octal escape", "write \\xHH")
		}
		return one(0)
	case 'c':
		l := r.peek()
		if l|0x20 < 'a' || l|0x20 > 'z' {
			r.fail(ErrInvalid, "\\c without a letter")
		}
		r.pos++
		return one(rune(l & 31))
	case 'x':
		return one(r.hex(2))
	case 'u':
		return one(r.unicodeEscape())
	case 'p', 'P':
		set := r.folded(r.property())
		if c == 'P' {
			set = negate(set)
		}
		return set
	case 'b':
		if inClass {
			return one('\b')
		}
		r.refuse(ErrUnsupported, "word boundary \\b", "write the characters that may stand there")
	case 'B':
		r.refuse(ErrUnsupported, "word boundary \\B", "write the characters that may stand there")
	case 'k':
		r.refuse(ErrUnsupported, "back reference", "list the texts that may repeat, as in (?:aa|bb), or check the value afterwards")
	}
	if c >= '1' && c <= '9' {
		r.refuse(ErrUnsupported, "back reference", "list the texts that may repeat, as in (?:aa|bb), or check the value afterwards")
	}
	if c < utf8.RuneSelf && (unicode.IsLetter(rune(c))) {
		r.fail(ErrInvalid, fmt.Sprintf("unknown escape \\%c", c))
	}
	ch, n := utf8.DecodeRuneInString(r.src[r.pos-1:])
	r.pos += n - 1
	return one(ch)
}

func (r *pattern) hex(n int) rune {
	v := rune(0)
	for range n {
		d := hexValue(r.peek())
		if d < 0 {
			r.fail(ErrInvalid, "a broken hexadecimal escape")
		}
		v = v<<4 | rune(d)
		r.pos++
	}
	return v
}

func hexValue(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}

func (r *pattern) unicodeEscape() rune {
	if r.peek() == '{' {
		r.pos++
		v := rune(0)
		for digits := 0; r.peek() != '}' || digits == 0; digits++ {
			d := hexValue(r.peek())
			if d < 0 || v > 0x10FFFF {
				r.fail(ErrInvalid, "a broken \\u{} escape")
			}
			v = v<<4 | rune(d)
			r.pos++
		}
		r.pos++
		if v > 0x10FFFF {
			r.fail(ErrInvalid, "a broken \\u{} escape")
		}
		return v
	}
	v := r.hex(4)
	if v >= 0xD800 && v < 0xDC00 && strings.HasPrefix(r.src[r.pos:], "\\u") {
		save := r.pos
		r.pos += 2
		if low := r.hex(4); low >= 0xDC00 && low <= 0xDFFF {
			return 0x10000 + (v-0xD800)<<10 + (low - 0xDC00)
		}
		r.pos = save
	}
	return v
}

// longCategory maps the long names of general categories.
var longCategory = map[string]string{
	"Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Titlecase_Letter": "Lt", "Modifier_Letter": "Lm", "Other_Letter": "Lo",
	"Mark": "M", "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me",
	"Number": "N", "Decimal_Number": "Nd", "digit": "Nd", "Letter_Number": "Nl", "Other_Number": "No",
	"Punctuation": "P", "punct": "P", "Connector_Punctuation": "Pc", "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps", "Close_Punctuation": "Pe",
	"Initial_Punctuation": "Pi", "Final_Punctuation": "Pf", "Other_Punctuation": "Po",
	"Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc", "Modifier_Symbol": "Sk", "Other_Symbol": "So",
	"Separator": "Z", "Space_Separator": "Zs", "Line_Separator": "Zl", "Paragraph_Separator": "Zp",
	"Other": "C", "Control": "Cc", "cntrl": "Cc", "Format": "Cf", "Private_Use": "Co",
}

func (r *pattern) property() []rng {
	end := strings.IndexByte(r.src[r.pos:], '}')
	if r.peek() != '{' || end < 0 {
		r.fail(ErrInvalid, "\\p without {}")
	}
	name := r.src[r.pos+1 : r.pos+end]
	r.pos += end + 1
	if name == "Any" {
		return negate(nil)
	}
	if name == "ASCII" {
		return []rng{{0, 127}}
	}
	kind, value, found := strings.Cut(name, "=")
	if !found {
		kind, value = "", name
	}
	if long, ok := longCategory[value]; ok {
		value = long
	}
	var tab *unicode.RangeTable
	switch kind {
	case "", "General_Category", "gc":
		tab = unicode.Categories[value]
		if tab == nil && kind == "" {
			tab = unicode.Properties[value]
		}
		if x, ok := emojiRanges[value]; ok && kind == "" {
			return append([]rng(nil), x...)
		}
	case "Script", "sc":
		tab = unicode.Scripts[value]
	}
	if tab == nil {
		switch value {
		case "Alphabetic", "Alpha":
			return append(tableRanges(unicode.L), append(tableRanges(unicode.Nl), tableRanges(unicode.Other_Alphabetic)...)...)
		}
		r.fail(ErrUnsupported, "unknown property \\p{"+name+"}")
	}
	return tableRanges(tab)
}

func tableRanges(t *unicode.RangeTable) []rng {
	var out []rng
	for _, x := range t.R16 {
		out = appendStride(out, rune(x.Lo), rune(x.Hi), rune(x.Stride))
	}
	for _, x := range t.R32 {
		out = appendStride(out, rune(x.Lo), rune(x.Hi), rune(x.Stride))
	}
	return normRanges(out)
}

func appendStride(out []rng, lo, hi, stride rune) []rng {
	if stride == 1 {
		return append(out, rng{lo, hi})
	}
	for c := lo; c <= hi; c += stride {
		out = append(out, rng{c, c})
	}
	return out
}

// classBody parses a bracket expression after its "[".
func (r *pattern) classBody() []rng {
	neg := false
	if r.peek() == '^' {
		neg = true
		r.pos++
	}
	var out []rng
	for {
		if r.pos >= len(r.src) {
			r.fail(ErrInvalid, "missing ]")
		}
		if r.skipBlanks(); r.peek() == ']' {
			r.pos++
			break
		}
		if set, ok := r.classOfLark(); ok {
			out = append(out, set...)
			continue
		}
		lo := r.classAtom()
		if r.peek() != '-' || r.pos+1 >= len(r.src) || r.src[r.pos+1] == ']' {
			out = append(out, lo...)
			continue
		}
		r.pos++
		hi := r.classAtom()
		if len(lo) != 1 || len(hi) != 1 || lo[0].lo != lo[0].hi || hi[0].lo != hi[0].hi {
			// A class at an end of a range: all three stand for themselves.
			out = append(append(out, lo...), append(hi, rng{'-', '-'})...)
			continue
		}
		if lo[0].lo > hi[0].lo {
			r.fail(ErrInvalid, "range out of order in a class")
		}
		out = append(out, rng{lo[0].lo, hi[0].lo})
	}
	out = r.folded(normRanges(append([]rng(nil), out...)))
	if neg {
		out = negate(out)
	}
	return out
}

func (r *pattern) classAtom() []rng {
	if r.peek() == '\\' {
		return append([]rng(nil), r.escape(true)...)
	}
	ch, n := utf8.DecodeRuneInString(r.src[r.pos:])
	r.pos += n
	return []rng{{ch, ch}}
}
