package grammar

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// This file reads what patterns of Lark grammars have beyond ECMA-262: they are those of
// the Rust crate regex, as llguidance takes them.

// dialect is how a pattern is read.
type dialect struct {
	lark   bool
	breaks []rng // line ends, which "." does not match
	flags  patternFlags
}

// patternFlags hold in a pattern or a group.
type patternFlags struct {
	fold    bool // i: letters are those of either case
	dotAll  bool // s: "." is any character
	lines   bool // m: anchors hold at lines
	verbose bool // x: blanks and comments say nothing
}

// set turns a flag on or off; ok is false if there is none such.
func (f *patternFlags) set(flag byte, on bool) (ok bool) {
	switch flag {
	case 'i':
		f.fold = on
	case 's':
		f.dotAll = on
	case 'm':
		f.lines = on
	case 'x':
		f.verbose = on
	case 'u': // characters are not bytes: always so
		return on
	default:
		return false
	}
	return true
}

func (r *pattern) dot() []rng {
	if r.flags.dotAll {
		return negate(nil)
	}
	return negate(normRanges(slices.Clone(r.breaks)))
}

// lineAnchor refuses an anchor that is one of lines.
func (r *pattern) lineAnchor() {
	if r.flags.lines {
		r.refuse(ErrUnsupported, "an anchor with flag m", "write the line ends as a part of the pattern")
	}
}

// skipBlanks skips blanks and comments where they say nothing.
func (r *pattern) skipBlanks() {
	for r.flags.verbose && r.pos < len(r.src) {
		switch c := r.peek(); {
		case c == ' ' || c >= '\t' && c <= '\r':
			r.pos++
		case c == '#':
			for r.pos < len(r.src) && r.peek() != '\n' {
				r.pos++
			}
		default:
			return
		}
	}
}

// inlineFlags reads (?flags), which holds to the end of the group.
func (r *pattern) inlineFlags() bool {
	f, n, end := r.readFlags()
	if end == ')' {
		r.flags, r.pos = f, n
	}
	return end == ')'
}

// flagged reads (?flags: , which holds in the group that it opens.
func (r *pattern) flagged() bool {
	f, n, end := r.readFlags()
	if end == ':' {
		r.flags, r.pos = f, n
	}
	return end == ':'
}

// readFlags reads flags in brackets: what holds then, the place behind them and what
// ends them, 0 if none stand there.
func (r *pattern) readFlags() (f patternFlags, pos int, end byte) {
	rest := r.src[r.pos:]
	n := 2 + strings.IndexAny(rest[min(2, len(rest)):], ":)")
	if !r.lark || !strings.HasPrefix(rest, "(?") || n < 3 || strings.IndexByte("=!<P", rest[2]) >= 0 {
		return f, 0, 0
	}
	f, on := r.flags, true
	for i := 2; i < n; i++ {
		if rest[i] == '-' {
			on = false
			continue
		}
		if !f.set(rest[i], on) {
			r.refuse(ErrUnsupported, "flag "+strconv.QuoteRune(rune(rest[i]))+" of a group", "there are i, s, m, x and u")
		}
	}
	return f, r.pos + n + 1, rest[n]
}

// cased is the characters that have other cases.
var cased = sync.OnceValue(func() (list []rune) {
	for c := rune(0); c <= 0x1FFFF; c++ { // beyond them there are none
		if unicode.SimpleFold(c) != c {
			list = append(list, c)
		}
	}
	return list
})

// folded is set and, where case says nothing, the other cases of its characters.
func (r *pattern) folded(set []rng) []rng {
	if !r.flags.fold {
		return set
	}
	return foldCase(set)
}

// foldCase is set and the other cases of its characters.
func foldCase(set []rng) []rng {
	out := normRanges(slices.Clone(set))
	list := cased()
	for _, x := range out[:len(out):len(out)] {
		i, _ := slices.BinarySearch(list, x.lo)
		for ; i < len(list) && list[i] <= x.hi; i++ {
			for c := unicode.SimpleFold(list[i]); c != list[i]; c = unicode.SimpleFold(c) {
				out = append(out, rng{c, c})
			}
		}
	}
	return normRanges(out)
}

// Classes of Lark's patterns speak of all of Unicode.
var (
	larkWord = sync.OnceValue(func() []rng {
		var out []rng
		for _, t := range []*unicode.RangeTable{unicode.L, unicode.Nl, unicode.Other_Alphabetic, unicode.M, unicode.Nd, unicode.Pc, unicode.Join_Control} {
			out = append(out, tableRanges(t)...)
		}
		return normRanges(out)
	})
	larkSpace = sync.OnceValue(func() []rng { return tableRanges(unicode.White_Space) })
	larkDigit = sync.OnceValue(func() []rng { return tableRanges(unicode.Nd) })
)

// escapeOfLark reads the rest of an escape that means something else than in
// ECMA-262.
func (r *pattern) escapeOfLark(c byte) ([]rng, bool) {
	if !r.lark {
		return nil, false
	}
	one := func(c rune) ([]rng, bool) { return []rng{{c, c}}, true }
	switch c {
	case 'd':
		return larkDigit(), true
	case 'D':
		return negate(larkDigit()), true
	case 'w':
		return larkWord(), true
	case 'W':
		return negate(larkWord()), true
	case 's':
		return larkSpace(), true
	case 'S':
		return negate(larkSpace()), true
	case 'a':
		return one(7)
	case 'x', 'U':
		if r.peek() == '{' {
			return one(r.unicodeEscape())
		}
		if c == 'U' {
			v := rune(0)
			for range 2 {
				v = v<<16 | r.hex(4)
			}
			if v < 0 || v > 0x10FFFF {
				r.fail(ErrInvalid, "a broken \\U escape")
			}
			return one(v)
		}
	case 'A', 'z', 'b', 'B', '<', '>':
		r.refuse(ErrUnsupported, "\\"+string(rune(c)), "a terminal is a text of its own, from end to end")
	case '0', 'c', 'k':
		r.fail(ErrInvalid, "unknown escape \\"+string(rune(c)))
	}
	return nil, false
}

// namedClasses are those of [[:name:]].
var namedClasses = map[string][]rng{
	"alnum": {{'0', '9'}, {'A', 'Z'}, {'a', 'z'}}, "alpha": {{'A', 'Z'}, {'a', 'z'}}, "ascii": {{0, 127}}, "blank": {{'\t', '\t'}, {' ', ' '}},
	"cntrl": {{0, 31}, {127, 127}}, "digit": {{'0', '9'}}, "graph": {{'!', '~'}}, "lower": {{'a', 'z'}}, "print": {{' ', '~'}},
	"punct": {{'!', '/'}, {':', '@'}, {'[', '`'}, {'{', '~'}}, "space": {{'\t', '\r'}, {' ', ' '}}, "upper": {{'A', 'Z'}},
	"word": {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}, "xdigit": {{'0', '9'}, {'A', 'F'}, {'a', 'f'}},
}

// classOfLark reads [:name:] in a class and refuses what combines classes.
func (r *pattern) classOfLark() ([]rng, bool) {
	rest := r.src[r.pos:]
	if !r.lark || len(rest) < 2 {
		return nil, false
	}
	switch rest[:2] {
	case "&&", "--", "~~":
		r.refuse(ErrUnsupported, rest[:2]+" in a class", "write the class that comes of it, or use & and ~ on terminals")
	}
	if rest[0] != '[' {
		return nil, false
	}
	name, _, ok := strings.Cut(rest[1:], ":]")
	not := strings.HasPrefix(name, ":^")
	set := namedClasses[strings.TrimPrefix(strings.TrimPrefix(name, ":"), "^")]
	if !ok || !strings.HasPrefix(name, ":") || set == nil {
		r.refuse(ErrUnsupported, "a class within a class", "write one class, and \\\\[ for the character")
	}
	r.pos += len(name) + 3
	if set = r.folded(slices.Clone(set)); not {
		set = negate(normRanges(set))
	}
	return set, true
}
