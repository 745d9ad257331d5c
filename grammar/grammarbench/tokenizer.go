package grammarbench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Tokenizer is a byte-pair encoder read from a Hugging Face tokenizer.json:
// either byte-level (GPT-2 style) or SentencePiece style with byte fallback.
type Tokenizer struct {
	Tokens [][]byte // decoded bytes by id; nil for control tokens
	End    []int32  // tokens whose name says that they end a text or a turn

	rank   map[[2]int32]int32 // pair -> rank
	merged map[[2]int32]int32
	byText map[string]int32
	words  bool // a word that is a token stays whole (ignore_merges)
	spm    bool
	digits int // digits of one word
	mu     sync.Mutex
	cache  map[string][]int32
}

type tokenizerFile struct {
	Model struct {
		Type         string            `json:"type"`
		Vocab        map[string]int32  `json:"vocab"`
		Merges       []json.RawMessage `json:"merges"`
		ByteFallback bool              `json:"byte_fallback"`
		IgnoreMerges bool              `json:"ignore_merges"`
	} `json:"model"`
	Added []struct {
		ID      int32  `json:"id"`
		Content string `json:"content"`
		Special bool   `json:"special"`
	} `json:"added_tokens"`
	PreTokenizer json.RawMessage `json:"pre_tokenizer"`
}

// ReadTokenizer reads a tokenizer.json.
func ReadTokenizer(r io.Reader) (*Tokenizer, error) {
	var f tokenizerFile
	if err := json.NewDecoder(r).Decode(&f); err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	if f.Model.Type != "BPE" {
		return nil, fmt.Errorf("tokenizer.json: model type %q is not supported", f.Model.Type)
	}
	const most = 1 << 22
	size := int32(0)
	ids := slices.Collect(maps.Values(f.Model.Vocab))
	for _, a := range f.Added {
		ids = append(ids, a.ID)
	}
	for _, id := range ids {
		if id < 0 || id >= most {
			return nil, fmt.Errorf("tokenizer.json: token id %d; ids are from 0 to %d", id, most-1)
		}
		size = max(size, id+1)
	}
	if size == 0 {
		return nil, errors.New("tokenizer.json: no vocabulary")
	}
	t := &Tokenizer{
		Tokens: make([][]byte, size), rank: map[[2]int32]int32{}, merged: map[[2]int32]int32{}, byText: map[string]int32{},
		words: f.Model.IgnoreMerges, spm: f.Model.ByteFallback, digits: 1, cache: map[string][]int32{},
	}
	if strings.Contains(string(f.PreTokenizer), `{1,3}`) {
		t.digits = 3
	}
	for s, id := range f.Model.Vocab {
		b, ok := t.decodeName(s)
		if !ok {
			return nil, fmt.Errorf("tokenizer.json: token %d %q is not byte-level", id, s)
		}
		t.Tokens[id] = b
		if _, dup := t.byText[string(b)]; !dup || len(s) == 1 || !strings.HasPrefix(s, "<0x") {
			t.byText[string(b)] = id
		}
	}
	for rank, raw := range f.Model.Merges {
		var pair []string
		var s string
		if json.Unmarshal(raw, &pair) != nil {
			if err := json.Unmarshal(raw, &s); err != nil {
				return nil, fmt.Errorf("tokenizer.json: merge %d: %w", rank, err)
			}
			a, b, _ := strings.Cut(s, " ")
			pair = []string{a, b}
		}
		if len(pair) != 2 {
			return nil, fmt.Errorf("tokenizer.json: merge %d is not a pair", rank)
		}
		a, ok1 := f.Model.Vocab[pair[0]]
		b, ok2 := f.Model.Vocab[pair[1]]
		m, ok3 := f.Model.Vocab[pair[0]+pair[1]]
		if ok1 && ok2 && ok3 {
			t.rank[[2]int32{a, b}] = int32(rank)
			t.merged[[2]int32{a, b}] = m
		}
	}
	for _, a := range f.Added {
		t.Tokens[a.ID] = nil
		if !a.Special {
			t.Tokens[a.ID] = []byte(a.Content)
			continue
		}
		switch name := strings.Trim(a.Content, "<|>/"); name {
		case "eos", "s", "end_of_text", "endoftext", "eot_id", "eom_id", "im_end", "end_of_turn":
			if a.Content != "<s>" {
				t.End = append(t.End, a.ID)
			}
		}
	}
	return t, nil
}

// byteOf is the byte that a rune of a byte-level token name stands for.
var byteOf = sync.OnceValue(func() map[rune]byte {
	m := map[rune]byte{}
	next := rune(256)
	for b := range 256 {
		if (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF) {
			m[rune(b)] = byte(b)
			continue
		}
		m[next] = byte(b)
		next++
	}
	return m
})

func (t *Tokenizer) decodeName(s string) ([]byte, bool) {
	if t.spm {
		if len(s) == 6 && strings.HasPrefix(s, "<0x") && s[5] == '>' {
			if v, err := strconv.ParseUint(s[3:5], 16, 8); err == nil {
				return []byte{byte(v)}, true
			}
		}
		return []byte(strings.ReplaceAll(s, "▁", " ")), true
	}
	var out []byte
	for _, r := range s {
		b, ok := byteOf()[r]
		if !ok {
			return []byte(s), true // a control token listed in the vocabulary
		}
		out = append(out, b)
	}
	return out, true
}

// Encode is the canonical encoding of a text in the middle of another.
func (t *Tokenizer) Encode(text []byte) []int32 {
	var out []int32
	if t.spm {
		return t.word(out, string(text))
	}
	for len(text) > 0 {
		n := t.next(text)
		out = t.word(out, string(text[:n]))
		text = text[n:]
	}
	return out
}

// next is the length of the first word of text, as the pattern of GPT-4 and
// its kin cuts it: contractions, letters with one other character before, up
// to three digits, punctuation with one blank before, line ends, blanks.
func (t *Tokenizer) next(text []byte) int {
	r0, n0 := utf8.DecodeRune(text)
	r1, n1 := utf8.DecodeRune(text[n0:])
	if r0 == '\'' {
		for _, c := range []string{"s", "t", "re", "ve", "m", "ll", "d"} {
			if len(text) > len(c) && strings.EqualFold(string(text[1:1+len(c)]), c) {
				return 1 + len(c)
			}
		}
	}
	digit := func(r rune) bool { return unicode.Is(unicode.N, r) }
	run := func(at int, in func(rune) bool) int {
		for at < len(text) {
			r, n := utf8.DecodeRune(text[at:])
			if !in(r) {
				break
			}
			at += n
		}
		return at
	}
	if unicode.IsLetter(r0) {
		return run(0, unicode.IsLetter)
	}
	if r0 != '\r' && r0 != '\n' && !digit(r0) && n1 > 0 && unicode.IsLetter(r1) {
		return run(n0, unicode.IsLetter)
	}
	if digit(r0) {
		at := n0
		for k := 1; k < t.digits && at < len(text); k++ {
			r, n := utf8.DecodeRune(text[at:])
			if !digit(r) {
				break
			}
			at += n
		}
		return at
	}
	punct := func(r rune) bool { return !unicode.IsSpace(r) && !unicode.IsLetter(r) && !digit(r) }
	start := 0
	if r0 == ' ' && n1 > 0 {
		start = n0
	}
	if at := run(start, punct); at > start {
		return run(at, func(r rune) bool { return r == '\r' || r == '\n' })
	}
	end := run(0, unicode.IsSpace)
	if last := strings.LastIndexAny(string(text[:end]), "\r\n"); last >= 0 {
		return last + 1
	}
	if end < len(text) && end > n0 {
		_, n := utf8.DecodeLastRune(text[:end])
		return end - n
	}
	return max(end, n0)
}

func (t *Tokenizer) word(out []int32, w string) []int32 {
	t.mu.Lock()
	ids, ok := t.cache[w]
	t.mu.Unlock()
	if !ok {
		ids = t.merge(w)
		t.mu.Lock()
		if len(t.cache) > 1<<16 {
			clear(t.cache)
		}
		t.cache[w] = ids
		t.mu.Unlock()
	}
	return append(out, ids...)
}

func (t *Tokenizer) merge(w string) []int32 {
	if id, ok := t.byText[w]; ok && t.words {
		return []int32{id}
	}
	var ids []int32
	if t.spm {
		for _, r := range w {
			if id, ok := t.byText[string(r)]; ok {
				ids = append(ids, id)
				continue
			}
			for _, b := range []byte(string(r)) {
				ids = append(ids, t.byText[string([]byte{b})])
			}
		}
	} else {
		for i := range len(w) {
			ids = append(ids, t.byText[w[i:i+1]])
		}
	}
	for {
		best, at := int32(-1), -1
		for i := 1; i < len(ids); i++ {
			if r, ok := t.rank[[2]int32{ids[i-1], ids[i]}]; ok && (best < 0 || r < best) {
				best, at = r, i
			}
		}
		if at < 0 {
			return ids
		}
		ids[at-1] = t.merged[[2]int32{ids[at-1], ids[at]}]
		ids = append(ids[:at], ids[at+1:]...)
	}
}
