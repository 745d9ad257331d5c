package tokenizer

import (
	"math"
	"strings"
	"unicode/utf8"
)

// spm is SentencePiece with scores: the neighbours whose joined text is the token of
// the highest score merge first. Spaces are written as U+2581.
type spm struct {
	pieces map[string]piece
	bytes  [256]Token // token of a byte, -1 if there is none
	unk    Token

	// glued are the characters after which a token may go on with a space mark.
	// Everywhere else the text can be cut before a space without changing the tokens,
	// because no token reaches over the cut.
	glued map[rune]bool
}

// piece is a token that text may become.
type piece struct {
	priority uint32 // the lower the better
	token    Token
}

func newSPM(v *vocabulary) *spm {
	s := &spm{pieces: make(map[string]piece, len(v.texts)), glued: map[rune]bool{}, unk: v.unk}
	for x := range s.bytes {
		s.bytes[x] = -1
	}
	for i, text := range v.texts {
		if v.kinds[i]&byteValue != 0 {
			if x, ok := parseByte(text); ok {
				s.bytes[x] = Token(i)
			}
		}
		// Control tokens come from special text only, never from a merge.
		if v.guarded(Token(i)) {
			continue
		}
		s.pieces[text] = piece{priorityOf(v.scores[i]), Token(i)}
		if rest := strings.TrimLeft(text, spaceMark); strings.Contains(rest, spaceMark) {
			last := utf8.RuneError
			for _, r := range rest {
				if r == '▁' && last != '▁' {
					s.glued[last] = true
				}
				last = r
			}
		}
	}
	for x := range s.bytes {
		if s.bytes[x] < 0 { // a file without byte tokens may have the plain character
			if p, ok := s.pieces[string([]byte{byte(x)})]; ok {
				s.bytes[x] = p.token
			}
		}
	}
	return s
}

// priorityOf turns a score into a priority that is lower for higher scores.
func priorityOf(score float32) uint32 {
	if score != score {
		return none - 1
	}
	b := math.Float32bits(score + 0) // -0 becomes 0
	if b&0x80000000 != 0 {
		return b // the more negative the larger
	}
	return 0x7fffffff - b
}

func (s *spm) encode(t *Tokenizer, fragment string, atStart bool, out []Token) []Token {
	m := mergers.Get().(*merger)
	defer mergers.Put(m)
	if t.addSpacePrefix && atStart {
		fragment = " " + fragment
	}
	for len(fragment) > 0 {
		n := s.cut(fragment)
		word := fragment[:n]
		fragment = fragment[n:]
		if len(word) > maxCached {
			out = s.word(m, word, out)
			continue
		}
		slot, tokens, ok := t.words.get(word)
		if ok {
			out = append(out, tokens...)
			continue
		}
		from := len(out)
		out = s.word(m, word, out)
		cacheInto(slot, word, out[from:])
	}
	return out
}

// cut returns the length of the first word of text: up to a space, or space mark,
// that follows something else.
func (s *spm) cut(text string) int {
	inSpaces := true
	for i := 0; i < len(text); {
		c := text[i]
		isSpace := c == ' '
		n := 1
		if c == spaceMark[0] && strings.HasPrefix(text[i:], spaceMark) {
			isSpace, n = true, len(spaceMark)
		}
		if isSpace && !inSpaces {
			if len(s.glued) == 0 {
				return i
			}
			if last, _ := utf8.DecodeLastRuneInString(text[:i]); !s.glued[last] {
				return i
			}
		}
		inSpaces = isSpace
		i += n
	}
	return len(text)
}

// word appends the tokens of one word.
func (s *spm) word(m *merger, word string, out []Token) []Token {
	text := m.text[:0]
	m.symbols = m.symbols[:0]
	for i := 0; i < len(word); {
		start := len(text)
		_, n := utf8.DecodeRuneInString(word[i:]) // 1 for a byte that is not UTF-8
		if word[i] == ' ' {
			text = append(text, spaceMark...)
		} else {
			text = append(text, word[i:i+n]...)
		}
		m.symbols = append(m.symbols, symbol{int32(start), int32(len(text)), -1})
		i += n
	}
	m.text = text
	m.merge(spmPairer{s, text})
	for _, x := range m.symbols {
		if x.id >= 0 {
			out = append(out, x.id)
			continue
		}
		if p, ok := s.pieces[string(text[x.start:x.end])]; ok { // a character alone
			out = append(out, p.token)
			continue
		}
		for _, c := range text[x.start:x.end] {
			switch {
			case s.bytes[c] >= 0:
				out = append(out, s.bytes[c])
			case s.unk >= 0:
				out = append(out, s.unk)
			}
		}
	}
	return out
}

type spmPairer struct {
	*spm
	text []byte
}

func (p spmPairer) pair(left, right symbol) (priority uint32, id int32) {
	x, ok := p.pieces[string(p.text[left.start:right.end])]
	if !ok {
		return none, 0
	}
	return x.priority, x.token
}
