package lang

import (
	"encoding/json"
	"unicode/utf8"
)

// Partial turns the beginning of a JSON text, as it streams in, into a JSON value
// that holds what is there so far: objects and lists are closed, a text that is
// being written ends where it is, and what is not yet known to be whole (a key
// without its value, a number that may go on, half a word) is left out. The zero
// value is ready for use.
type Partial struct {
	text  []byte
	at    int    // bytes of text that were looked at
	good  int    // text[:good] and the closing brackets are a value
	open  []byte // brackets that are open, as their closing ones
	state partialState
	key   bool // the string is a key
	word  string
	hex   int  // digits of \u that are missing
	code  int  // of \u so far
	half  bool // the last escape is the first of two that are one character
	from  int  // where the number begins
	// inText is set while a string that is a value is open.
	inText bool
}

type partialState uint8

const (
	wantValue partialState = iota
	wantValueOrEnd
	wantKey
	wantKeyOrEnd
	wantColon
	wantCommaOrEnd
	inString
	inEscape
	inHex
	inNumber
	inWord
	atEnd  // the value is whole
	broken // the text is no JSON: what was good stays so
)

// Add adds text to what is there.
func (p *Partial) Add(text string) {
	p.text = append(p.text, text...)
	for p.at < len(p.text) && p.state != broken {
		if p.step(p.text[p.at]) {
			p.at++
		}
	}
}

// Value returns the value so far, and false while there is none. What it returns
// is the caller's.
func (p *Partial) Value() (json.RawMessage, bool) {
	good := p.good
	if p.inText {
		for good > 0 && !utf8.Valid(p.text[lastRune(p.text[:good]):good]) {
			good = lastRune(p.text[:good])
		}
	}
	if good == 0 {
		return nil, false
	}
	out := make([]byte, 0, good+len(p.open)+1)
	out = append(out, p.text[:good]...)
	if p.inText {
		out = append(out, '"')
	}
	for i := len(p.open) - 1; i >= 0; i-- {
		out = append(out, p.open[i])
	}
	return out, true
}

// lastRune returns where the last character of b begins.
func lastRune(b []byte) int {
	i := len(b) - 1
	for i > 0 && len(b)-i < utf8.UTFMax && !utf8.RuneStart(b[i]) {
		i--
	}
	return max(i, 0)
}

// PartialJSON is the value of a Partial that text was added to.
func PartialJSON(text string) (json.RawMessage, bool) {
	var p Partial
	p.Add(text)
	return p.Value()
}

// step takes a byte and reports whether it was used up.
func (p *Partial) step(c byte) bool {
	switch p.state {
	case inString:
		return p.inside(c)
	case inEscape:
		switch c {
		case 'u':
			p.state, p.hex, p.code = inHex, 4, 0
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			p.state, p.half = inString, false
			p.wrote()
		default:
			p.state = broken
		}
		return true
	case inHex:
		d := hexDigit(c)
		if d < 0 {
			p.state = broken
			return true
		}
		p.code = p.code<<4 | d
		if p.hex--; p.hex == 0 {
			p.state = inString
			p.half = p.code >= 0xD800 && p.code < 0xDC00 && !p.half
			p.wrote()
		}
		return true
	case inNumber:
		if c >= '0' && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-' {
			return true
		}
		if !json.Valid(p.text[p.from:p.at]) {
			p.state = broken
			return true
		}
		p.whole(p.at)
		return false
	case inWord:
		if c != p.word[0] {
			p.state = broken
			return true
		}
		if p.word = p.word[1:]; p.word == "" {
			p.whole(p.at + 1)
		}
		return true
	}
	if c == ' ' || c == '\n' || c == '\t' || c == '\r' {
		return true
	}
	switch p.state {
	case wantValue, wantValueOrEnd:
		if c == ']' && p.state == wantValueOrEnd {
			p.pop()
			return true
		}
		p.begin(c)
	case wantKey, wantKeyOrEnd:
		switch {
		case c == '"':
			p.state, p.key = inString, true
		case c == '}' && p.state == wantKeyOrEnd:
			p.pop()
		default:
			p.state = broken
		}
	case wantColon:
		p.state = broken
		if c == ':' {
			p.state = wantValue
		}
	case wantCommaOrEnd:
		end := p.open[len(p.open)-1]
		switch {
		case c == ',' && end == '}':
			p.state = wantKey
		case c == ',':
			p.state = wantValue
		case c == end:
			p.pop()
		default:
			p.state = broken
		}
	default:
		p.state = broken // more after the end
	}
	return true
}

// maxPartialDepth bounds the nesting; what is deeper is left out.
const maxPartialDepth = 512

// begin takes the first byte of a value.
func (p *Partial) begin(c byte) {
	switch {
	case (c == '{' || c == '[') && len(p.open) < maxPartialDepth:
		p.good = p.at + 1
		p.state = wantKeyOrEnd
		p.open = append(p.open, '}')
		if c == '[' {
			p.state = wantValueOrEnd
			p.open[len(p.open)-1] = ']'
		}
	case c == '"':
		p.state, p.key, p.half, p.inText = inString, false, false, true
		p.good = p.at + 1
	case c == '-' || c >= '0' && c <= '9':
		p.state, p.from = inNumber, p.at
	case c == 't':
		p.state, p.word = inWord, "rue"
	case c == 'f':
		p.state, p.word = inWord, "alse"
	case c == 'n':
		p.state, p.word = inWord, "ull"
	default:
		p.state = broken
	}
}

// inside takes a byte of a string.
func (p *Partial) inside(c byte) bool {
	switch {
	case c == '\\':
		p.state = inEscape
	case c < ' ':
		p.state = broken
	case c != '"':
		p.half = false
		p.wrote()
	case p.key:
		p.state, p.key = wantColon, false
	default:
		p.whole(p.at + 1)
	}
	return true
}

// wrote notes that the text so far, this byte included, may be shown. Of two
// escapes that are one character the first is not.
func (p *Partial) wrote() {
	if !p.key && !p.half {
		p.good = p.at + 1
	}
}

// whole notes the end of a value.
func (p *Partial) whole(end int) {
	p.good, p.inText = end, false
	p.state = wantCommaOrEnd
	if len(p.open) == 0 {
		p.state = atEnd
	}
}

// pop closes a bracket.
func (p *Partial) pop() {
	p.open = p.open[:len(p.open)-1]
	p.whole(p.at + 1)
}

func hexDigit(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
