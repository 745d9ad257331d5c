package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// Bytes are what a token stands for: spaces for space marks, the byte for <0xNN>.
// A control token, like an id outside the vocabulary, stands for nothing: nil. The
// slice is shared; do not modify. It may be part of a character.
func (t *Tokenizer) Bytes(id Token) []byte {
	if !t.valid(id) {
		return nil
	}
	return t.vocab.bytes[id]
}

// Decode is the text of tokens, control tokens left out. Bytes that do not make up
// characters become U+FFFD, once for each broken character.
func (t *Tokenizer) Decode(ids []Token) string {
	d := NewStreamDecoder(t)
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(d.Push(id))
	}
	b.WriteString(d.Flush())
	return b.String()
}

// StreamDecoder turns tokens into text one by one. What it returns is always valid
// UTF-8, and all of it joined, Flush included, is what Decode gives for the same
// tokens. Use one for each stream; not safe for concurrent use.
type StreamDecoder struct {
	t    *Tokenizer
	held []byte // the beginning of a character, at most 3 bytes between calls
}

// NewStreamDecoder starts a stream of tokens of t.
func NewStreamDecoder(t *Tokenizer) *StreamDecoder { return &StreamDecoder{t: t} }

// Push takes the next token and returns the text that is certain now: whole
// characters. The beginning of a character is held back for the next Push.
func (d *StreamDecoder) Push(id Token) string { return d.PushBytes(d.t.Bytes(id)) }

// PushBytes is Push for the bytes of a token.
func (d *StreamDecoder) PushBytes(b []byte) string {
	if len(d.held) == 0 && utf8.Valid(b) {
		return string(b)
	}
	return string(d.AppendBytes(nil, b))
}

// AppendBytes is PushBytes that appends the text to dst.
func (d *StreamDecoder) AppendBytes(dst, b []byte) []byte {
	if len(d.held) == 0 && utf8.Valid(b) {
		return append(dst, b...)
	}
	d.held = append(d.held, b...)
	rest := d.held
	for len(rest) > 0 {
		r, n := utf8.DecodeRune(rest)
		if r == utf8.RuneError && n == 1 {
			if !utf8.FullRune(rest) {
				break
			}
			n = brokenLen(rest)
			dst = append(dst, "\uFFFD"...)
		} else {
			dst = append(dst, rest[:n]...)
		}
		rest = rest[n:]
	}
	d.held = d.held[:copy(d.held, rest)]
	return dst
}

// Flush ends the stream: half a character that is still held becomes one U+FFFD. The
// decoder can then be used for another stream.
func (d *StreamDecoder) Flush() string {
	if len(d.held) == 0 {
		return ""
	}
	d.held = d.held[:0]
	return "\uFFFD"
}

// Held tells how many bytes of an unfinished character are held back.
func (d *StreamDecoder) Held() int { return len(d.held) }

// brokenLen is the length of the broken character that b starts with: the bytes that
// could have become a character, at least one.
func brokenLen(b []byte) int {
	n := 1
	for n < len(b) && !utf8.FullRune(b[:n+1]) {
		n++
	}
	if n == 1 || utf8.FullRune(b[:n]) {
		return 1
	}
	return n
}
