package tokenizer

import (
	"strings"
	"unicode/utf8"
)

// bpe is byte-level BPE. Its symbol ids are tokens; texts that only merges name and
// the vocabulary lacks get ids from len(vocabulary) on, so that merges through them
// work as they do by text.
type bpe struct {
	pre    pre
	merges *mergeTable
	bytes  [256]int32       // symbol of a single byte
	whole  map[string]Token // words by their bytes, if merges are ignored for them
	size   int32            // of the vocabulary
	alone  [256]Token       // token of a single byte, -1 if the vocabulary has none
}

func newBPE(v *vocabulary, merges []string, p pre) (*bpe, error) {
	b := &bpe{pre: p, size: int32(len(v.texts)), merges: newMergeTable(len(merges))}
	extra := map[string]int32{}
	guarded := func(text string) bool {
		id, ok := v.byText[text]
		return ok && v.guarded(id)
	}
	symbolOf := func(text string) int32 {
		if id, ok := v.byText[text]; ok && !guarded(text) {
			return id
		}
		id, ok := extra[text]
		if !ok {
			id = b.size + int32(len(extra))
			extra[text] = id
		}
		return id
	}
	for i, m := range merges {
		// The first character of the left part may be a space.
		cut := -1
		if len(m) > 1 {
			cut = strings.IndexByte(m[1:], ' ')
		}
		if cut < 0 {
			return nil, corruptf("merge %d is %q, not two texts with a space between", i, m)
		}
		left, right := m[:cut+1], m[cut+2:]
		if guarded(left + right) {
			continue // plain text never becomes a control token
		}
		s := b.merges.slot(symbolOf(left), symbolOf(right))
		if s.left < 0 { // the first of two equal merges counts
			*s = mergeSlot{symbolOf(left), symbolOf(right), uint32(i), symbolOf(left + right)}
		}
	}
	for x := range 256 {
		text := string(byteRune[x])
		b.bytes[x], b.alone[x] = symbolOf(text), -1
		if b.bytes[x] < b.size {
			b.alone[x] = b.bytes[x]
		}
	}
	if p.ignoreMerges {
		b.whole = make(map[string]Token, len(v.texts))
		for i, text := range v.texts {
			if !v.guarded(Token(i)) && inAlphabet(text) {
				b.whole[string(appendUnmapped(nil, text))] = Token(i)
			}
		}
	}
	return b, nil
}

func inAlphabet(text string) bool {
	for _, r := range text {
		if _, ok := runeByte[r]; !ok {
			return false
		}
	}
	return utf8.ValidString(text)
}

func (b *bpe) pair(left, right symbol) (priority uint32, id int32) {
	s := b.merges.slot(left.id, right.id)
	if s.left < 0 {
		return none, 0
	}
	return s.rank, s.id
}

func (b *bpe) encode(t *Tokenizer, fragment string, _ bool, out []Token) []Token {
	m := mergers.Get().(*merger)
	b.pre.split(fragment, func(word string) {
		if len(word) > maxCached {
			out = b.word(m, word, out)
			return
		}
		slot, tokens, ok := t.words.get(word)
		if ok {
			out = append(out, tokens...)
			return
		}
		n := len(out)
		out = b.word(m, word, out)
		cacheInto(slot, word, out[n:])
	})
	mergers.Put(m)
	return out
}

// word appends the tokens of one word.
func (b *bpe) word(m *merger, word string, out []Token) []Token {
	if id, ok := b.whole[word]; ok {
		return append(out, id)
	}
	m.symbols = m.symbols[:0]
	for i := range len(word) {
		m.symbols = append(m.symbols, symbol{int32(i), int32(i + 1), b.bytes[word[i]]})
	}
	m.merge(b)
	for _, s := range m.symbols {
		if s.id < b.size {
			out = append(out, s.id)
			continue
		}
		// Not in the vocabulary: byte by byte. A byte that has no token is lost; no
		// vocabulary of this kind should lack one.
		for _, x := range []byte(word[s.start:s.end]) {
			if id := b.alone[x]; id >= 0 {
				out = append(out, id)
			}
		}
	}
	return out
}
