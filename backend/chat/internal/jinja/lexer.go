package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// tokenKind is the kind of a token of the template language.
type tokenKind uint8

const (
	tEOF      tokenKind = iota
	tData               // text outside tags
	tOpen               // {{ or {%
	tClose              // }} or %}
	tName               // also keywords
	tString             // text is the value
	tInt                // text is the number
	tFloat              //
	tOperator           // text is the operator
)

type token struct {
	kind tokenKind
	text string
	line int
}

func (t token) String() string {
	switch t.kind {
	case tEOF:
		return "the end of the template"
	case tData:
		return "text"
	}
	return strconv.Quote(t.text)
}

// lexer turns a template into tokens. White space is handled as by Jinja with
// trim_blocks and lstrip_blocks.
type lexer struct {
	src    string
	at     int
	line   int
	tokens []token
}

func lex(src string) ([]token, error) {
	src = strings.ReplaceAll(src, "\r\n", "\n")
	src = strings.ReplaceAll(src, "\r", "\n")
	src = strings.TrimSuffix(src, "\n")
	l := &lexer{src: src, line: 1}
	lineStart := true // the text that follows begins a line
	for l.at < len(l.src) {
		start := l.nextTag()
		data := l.src[l.at:start]
		if start == len(l.src) {
			l.data(data)
			break
		}
		open := l.src[start : start+2]
		sign := byte(0)
		if start+2 < len(l.src) {
			sign = l.src[start+2]
		}
		shown := data
		switch {
		case sign == '-':
			shown = strings.TrimRightFunc(data, unicode.IsSpace)
		case sign != '+' && open != "{{":
			head := strings.LastIndexByte(data, '\n') + 1
			if (head > 0 || lineStart) && strings.TrimSpace(data[head:]) == "" {
				shown = data[:head]
			}
		}
		l.data(shown)
		l.advance(start)
		l.at += 2
		if sign == '-' || sign == '+' {
			l.at++
		}
		var err error
		switch open {
		case "{#":
			err = l.comment()
		case "{{":
			err = l.tag("{{", "}}")
		default:
			if end, ok := l.rawTag(); ok {
				err = l.raw(end)
			} else {
				err = l.tag("{%", "%}")
			}
		}
		if err != nil {
			return nil, &Error{l.line, err}
		}
		lineStart = l.at > 0 && l.src[l.at-1] == '\n'
	}
	l.emit(tEOF, "")
	return l.tokens, nil
}

// nextTag is where the next tag opens, the end of the source if there is none.
func (l *lexer) nextTag() int {
	for i := l.at; i+1 < len(l.src); i++ {
		if l.src[i] == '{' && (l.src[i+1] == '{' || l.src[i+1] == '%' || l.src[i+1] == '#') {
			return i
		}
	}
	return len(l.src)
}

func (l *lexer) emit(k tokenKind, text string) {
	l.tokens = append(l.tokens, token{k, text, l.line})
}

func (l *lexer) data(s string) {
	if s != "" {
		l.emit(tData, s)
	}
}

// advance moves to the given place and counts lines.
func (l *lexer) advance(to int) {
	l.line += strings.Count(l.src[l.at:to], "\n")
	l.at = to
}

// closed skips what follows a closing tag: all white space after "-", one newline
// after a block or comment.
func (l *lexer) closed(sign byte, block bool) {
	switch {
	case sign == '-':
		rest := l.src[l.at:]
		l.advance(l.at + len(rest) - len(strings.TrimLeftFunc(rest, unicode.IsSpace)))
	case sign != '+' && block && l.at < len(l.src) && l.src[l.at] == '\n':
		l.advance(l.at + 1)
	}
}

func (l *lexer) comment() error {
	i := strings.Index(l.src[l.at:], "#}")
	if i < 0 {
		return fmt.Errorf("a comment {# is not closed")
	}
	sign := byte(0)
	if i > 0 {
		sign = l.src[l.at+i-1]
	}
	l.advance(l.at + i + 2)
	l.closed(sign, true)
	return nil
}

// rawTag tells whether the block that starts here is {% raw %} and where it ends.
func (l *lexer) rawTag() (end int, ok bool) {
	rest := l.src[l.at:]
	s := strings.TrimLeftFunc(rest, unicode.IsSpace)
	if !strings.HasPrefix(s, "raw") {
		return 0, false
	}
	s = strings.TrimLeftFunc(s[3:], unicode.IsSpace)
	for _, closing := range []string{"-%}", "+%}", "%}"} {
		if strings.HasPrefix(s, closing) {
			return l.at + len(rest) - len(s) + len(closing), true
		}
	}
	return 0, false
}

// raw copies the text up to {% endraw %}.
func (l *lexer) raw(from int) error {
	sign := l.src[from-3]
	l.advance(from)
	l.closed(sign, true)
	for i := l.at; ; {
		j := strings.Index(l.src[i:], "{%")
		if j < 0 {
			return fmt.Errorf("a block {%% raw %%} is not closed")
		}
		j += i
		rest := l.src[j+2:]
		open := byte(0)
		if rest != "" && (rest[0] == '-' || rest[0] == '+') {
			open = rest[0]
			rest = rest[1:]
		}
		rest = strings.TrimLeftFunc(rest, unicode.IsSpace)
		if after, ok := strings.CutPrefix(rest, "endraw"); ok {
			after = strings.TrimLeftFunc(after, unicode.IsSpace)
			for _, closing := range []string{"-%}", "+%}", "%}"} {
				tail, ok := strings.CutPrefix(after, closing)
				if !ok {
					continue
				}
				data := l.src[l.at:j]
				if open == '-' {
					data = strings.TrimRightFunc(data, unicode.IsSpace)
				} else if head := strings.LastIndexByte(data, '\n') + 1; open == 0 && head > 0 && strings.TrimSpace(data[head:]) == "" {
					data = data[:head]
				}
				l.data(data)
				l.advance(len(l.src) - len(tail))
				l.closed(closing[0], true)
				return nil
			}
		}
		i = j + 2
	}
}

// operators, longest first.
var operators = []string{"//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ",", ".", ":", "|"}

// tag reads the tokens of an expression or block up to its end.
func (l *lexer) tag(open, end string) error {
	l.emit(tOpen, open)
	depth := 0
	for {
		rest := l.src[l.at:]
		trimmed := strings.TrimLeftFunc(rest, unicode.IsSpace)
		l.advance(l.at + len(rest) - len(trimmed))
		rest = trimmed
		if rest == "" {
			return fmt.Errorf("%q is not closed", open)
		}
		if depth == 0 {
			sign := byte(0)
			if rest[0] == '-' || rest[0] == '+' {
				sign = rest[0]
			}
			if sign != 0 && strings.HasPrefix(rest[1:], end) || strings.HasPrefix(rest, end) {
				l.emit(tClose, end)
				n := len(end)
				if !strings.HasPrefix(rest, end) {
					n++
				} else {
					sign = 0
				}
				l.at += n
				l.closed(sign, end == "%}")
				return nil
			}
		}
		c := rest[0]
		switch {
		case c == '\'' || c == '"':
			if err := l.string(c); err != nil {
				return err
			}
			continue
		case c >= '0' && c <= '9':
			l.number(rest)
			continue
		}
		if n := nameLen(rest); n > 0 {
			l.emit(tName, rest[:n])
			l.at += n
			continue
		}
		op := ""
		for _, o := range operators {
			if strings.HasPrefix(rest, o) {
				op = o
				break
			}
		}
		switch op {
		case "":
			r, _ := utf8.DecodeRuneInString(rest)
			return fmt.Errorf("unexpected character %q", r)
		case "(", "[", "{":
			depth++
		case ")", "]", "}":
			if depth--; depth < 0 {
				return fmt.Errorf("unexpected %q", op)
			}
		}
		l.emit(tOperator, op)
		l.at += len(op)
	}
}

func nameLen(s string) int {
	for i, r := range s {
		if r != '_' && !unicode.IsLetter(r) && (i == 0 || !unicode.IsDigit(r)) {
			return i
		}
	}
	return len(s)
}

// number reads an integer or a float; underscores may separate digits.
func (l *lexer) number(rest string) {
	n, kind := 0, tInt
	digits := func() {
		for n < len(rest) && (rest[n] >= '0' && rest[n] <= '9' || rest[n] == '_') {
			n++
		}
	}
	digits()
	if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' {
		kind = tFloat
		n++
		digits()
	}
	if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
		mark := n
		n++
		if n < len(rest) && (rest[n] == '+' || rest[n] == '-') {
			n++
		}
		if n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
			kind = tFloat
			digits()
		} else {
			n = mark
		}
	}
	l.emit(kind, strings.ReplaceAll(rest[:n], "_", ""))
	l.at += n
}

// string reads a quoted string with Python's escapes.
func (l *lexer) string(q byte) error {
	line := l.line
	var b []byte
	for i := l.at + 1; i < len(l.src); i++ {
		switch c := l.src[i]; c {
		case q:
			l.tokens = append(l.tokens, token{tString, string(b), line})
			l.advance(i + 1)
			return nil
		case '\\':
			n, err := unescape(&b, l.src[i+1:])
			if err != nil {
				return err
			}
			i += n
		default:
			b = append(b, c)
		}
	}
	return fmt.Errorf("a string is not closed")
}

// unescape appends what the escape at s (after the backslash) stands for and returns
// its length.
func unescape(b *[]byte, s string) (int, error) {
	if s == "" {
		return 0, fmt.Errorf("a string is not closed")
	}
	if i := strings.IndexByte("ntrabfv\\'\"", s[0]); i >= 0 {
		*b = append(*b, "\n\t\r\a\b\f\v\\'\""[i])
		return 1, nil
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[s[0]]
	switch {
	case s[0] == '\n':
		return 1, nil
	case digits > 0:
		if len(s) <= digits {
			return 0, fmt.Errorf("escape \\%c needs %d hex digits", s[0], digits)
		}
		n, err := strconv.ParseUint(s[1:1+digits], 16, 32)
		if err != nil || n > unicode.MaxRune {
			return 0, fmt.Errorf("escape \\%s is not a character", s[:1+digits])
		}
		*b = utf8.AppendRune(*b, rune(n))
		return 1 + digits, nil
	case s[0] >= '0' && s[0] <= '7':
		n, v := 0, 0
		for n < 3 && n < len(s) && s[n] >= '0' && s[n] <= '7' {
			v = v*8 + int(s[n]-'0')
			n++
		}
		*b = utf8.AppendRune(*b, rune(v))
		return n, nil
	}
	*b = append(*b, '\\')
	return 0, nil
}
