package jinja

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Flag says where text came from.
type Flag uint8

const (
	// Template text: literals of the template and values the operator trusts.
	Trusted Flag = 0
	// User marks text of messages and tools.
	User Flag = 1
	// Slot marks the content whose place in the output is asked for.
	Slot Flag = 2
)

// Text is a string whose bytes are marked with flags. The zero Text is empty.
type Text struct {
	S     string
	marks []mark // nil: all trusted. Else ends ascend, the last is len(S)
}

// mark says that the bytes up to end, from the mark before, have flag.
type mark struct {
	end  int
	flag Flag
}

// Marked is s with one flag on all of it.
func Marked(s string, flag Flag) Text {
	if flag == Trusted || s == "" {
		return Text{S: s}
	}
	return Text{s, []mark{{len(s), flag}}}
}

// Run is a stretch of text with one flag.
type Run struct {
	Text string
	Flag Flag
}

// Runs cuts the text where the flag changes.
func (t Text) Runs() []Run {
	if t.S == "" {
		return nil
	}
	if t.marks == nil {
		return []Run{{t.S, Trusted}}
	}
	var out []Run
	start := 0
	for _, m := range t.marks {
		out = append(out, Run{t.S[start:m.end], m.flag})
		start = m.end
	}
	return out
}

// flagAll is the flag of a text derived from t as a whole: the bits of all runs.
func (t Text) flagAll() (f Flag) {
	for _, m := range t.marks {
		f |= m.flag
	}
	return f
}

// slice is t.S[i:j] with its marks.
func (t Text) slice(i, j int) Text {
	if t.marks == nil || i >= j {
		return Text{S: t.S[i:j]}
	}
	var out []mark
	for _, m := range t.marks {
		if m.end <= i {
			continue
		}
		out = append(out, mark{min(m.end, j) - i, m.flag})
		if m.end >= j {
			break
		}
	}
	if len(out) == 1 && out[0].flag == Trusted {
		out = nil
	}
	return Text{t.S[i:j], out}
}

// Prefix is the first n bytes.
func (t Text) Prefix(n int) Text { return t.slice(0, n) }

// each applies f to every run and joins the results.
func (t Text) each(f func(string) string) Text {
	if t.marks == nil {
		return Text{S: f(t.S)}
	}
	var b builder
	for _, r := range t.Runs() {
		b.addString(f(r.Text), r.Flag)
	}
	return b.text()
}

// builder joins texts.
type builder struct {
	s     []byte
	marks []mark
}

func (b *builder) addString(s string, flag Flag) {
	if s == "" {
		return
	}
	b.s = append(b.s, s...)
	if n := len(b.marks); n > 0 && b.marks[n-1].flag == flag {
		b.marks[n-1].end = len(b.s)
	} else {
		b.marks = append(b.marks, mark{len(b.s), flag})
	}
}

func (b *builder) add(t Text) {
	if t.marks == nil {
		b.addString(t.S, Trusted)
		return
	}
	start := 0
	for _, m := range t.marks {
		b.addString(t.S[start:m.end], m.flag)
		start = m.end
	}
}

func (b *builder) text() Text {
	if len(b.marks) == 1 && b.marks[0].flag == Trusted {
		return Text{S: string(b.s)}
	}
	return Text{string(b.s), slices.Clone(b.marks)}
}

func concat(ts ...Text) Text {
	var b builder
	for _, t := range ts {
		b.add(t)
	}
	return b.text()
}

// strip removes characters of set from the ends; white space if set is empty.
func (t Text) strip(set string, left, right bool) Text {
	in := unicode.IsSpace
	if set != "" {
		in = func(r rune) bool { return strings.ContainsRune(set, r) }
	}
	i, j := 0, len(t.S)
	for left && i < j {
		r, n := utf8.DecodeRuneInString(t.S[i:j])
		if !in(r) {
			break
		}
		i += n
	}
	for right && i < j {
		r, n := utf8.DecodeLastRuneInString(t.S[i:j])
		if !in(r) {
			break
		}
		j -= n
	}
	return t.slice(i, j)
}

// split cuts at sep, at most max times (all if negative), from the right if asked.
// An empty sep means runs of white space, as Python's split without arguments.
func (t Text) split(sep string, limit int, right bool) (out []Text) {
	if sep == "" {
		return t.fields(limit, right)
	}
	if right {
		end := len(t.S)
		for limit != 0 {
			i := strings.LastIndex(t.S[:end], sep)
			if i < 0 {
				break
			}
			out = append(out, t.slice(i+len(sep), end))
			end = i
			limit--
		}
		out = append(out, t.slice(0, end))
		slices.Reverse(out)
		return out
	}
	start := 0
	for limit != 0 {
		i := strings.Index(t.S[start:], sep)
		if i < 0 {
			break
		}
		out = append(out, t.slice(start, start+i))
		start += i + len(sep)
		limit--
	}
	return append(out, t.slice(start, len(t.S)))
}

func (t Text) fields(limit int, right bool) (out []Text) {
	rest := t.strip("", true, true)
	for rest.S != "" {
		if limit == 0 {
			out = append(out, rest)
			break
		}
		limit--
		var i int
		if right {
			if i = strings.LastIndexFunc(rest.S, unicode.IsSpace); i >= 0 {
				_, n := utf8.DecodeRuneInString(rest.S[i:])
				out = append(out, rest.slice(i+n, len(rest.S)))
				rest = rest.slice(0, i).strip("", false, true)
				continue
			}
		} else if i = strings.IndexFunc(rest.S, unicode.IsSpace); i >= 0 {
			out = append(out, rest.slice(0, i))
			rest = rest.slice(i, len(rest.S)).strip("", true, false)
			continue
		}
		out = append(out, rest)
		break
	}
	if right {
		slices.Reverse(out)
	}
	return out
}

// replace puts new for the first n occurrences of old (all if negative).
func (t Text) replace(old string, new Text, n int) Text {
	var b builder
	if old == "" {
		for i := range t.S { // before each character, and at the end
			if n == 0 {
				b.add(t.slice(i, len(t.S)))
				return b.text()
			}
			b.add(new)
			_, size := utf8.DecodeRuneInString(t.S[i:])
			b.add(t.slice(i, i+size))
			n--
		}
		if n != 0 {
			b.add(new)
		}
		return b.text()
	}
	for i, part := range t.split(old, n, false) {
		if i > 0 {
			b.add(new)
		}
		b.add(part)
	}
	return b.text()
}

// lines cuts at line ends, which are dropped unless keep.
func (t Text) lines(keep bool) (out []Text) {
	start := 0
	for start < len(t.S) {
		i := strings.IndexAny(t.S[start:], "\n\r")
		if i < 0 {
			return append(out, t.slice(start, len(t.S)))
		}
		end, next := start+i, start+i+1
		if t.S[end] == '\r' && next < len(t.S) && t.S[next] == '\n' {
			next++
		}
		if keep {
			end = next
		}
		out = append(out, t.slice(start, end))
		start = next
	}
	return out
}

// length is the number of characters.
func (t Text) length() int { return utf8.RuneCountInString(t.S) }

// chars are the characters, each with its mark.
func (t Text) chars() []Text {
	out := make([]Text, 0, len(t.S))
	for i := 0; i < len(t.S); {
		_, n := utf8.DecodeRuneInString(t.S[i:])
		out = append(out, t.slice(i, i+n))
		i += n
	}
	return out
}
