package tokenizer

import (
	"sync"
	"unicode"
	"unicode/utf8"
)

// class says what the patterns of the pre-tokenizers need to know of a character.
// Exactly one of letter, number, space and other is set; 0 is the end of the text.
type class uint8

const (
	letter class = 1 << iota // \p{L}
	number                   // \p{N}
	space                    // \s, Unicode's White_Space
	other                    // none of these
	mark                     // \p{M}, with other
	punct                    // \p{P}, with other
)

// The classes of all characters, in pages of 256: classPages[classIndex[r>>8]][r&255].
var (
	classOnce  sync.Once
	classIndex [(unicode.MaxRune + 1) >> 8]uint8
	classPages [][256]class
	asciiClass [128]class
)

// loadClasses builds the table. It takes a few milliseconds, once.
func loadClasses() {
	classOnce.Do(func() {
		full := make([]class, unicode.MaxRune+1)
		fill := func(c class, tables ...*unicode.RangeTable) {
			for _, t := range tables {
				for _, r := range t.R16 {
					for x := rune(r.Lo); x <= rune(r.Hi); x += rune(r.Stride) {
						full[x] |= c
					}
				}
				for _, r := range t.R32 {
					for x := rune(r.Lo); x <= rune(r.Hi); x += rune(r.Stride) {
						full[x] |= c
					}
				}
			}
		}
		fill(letter, unicode.L)
		fill(number, unicode.N)
		fill(space, unicode.White_Space)
		fill(mark, unicode.M)
		fill(punct, unicode.P)
		// CJK extension I came with Unicode 15.1, Go's tables are of 15.0.
		for x := 0x2EBF0; x <= 0x2EE5D; x++ {
			full[x] = letter
		}
		for x := range full {
			if full[x]&(letter|number|space) == 0 {
				full[x] |= other
			}
		}
		seen := map[[256]class]uint8{}
		for p := range classIndex {
			page := [256]class(full[p<<8:])
			i, ok := seen[page]
			if !ok {
				i = uint8(len(classPages))
				seen[page] = i
				classPages = append(classPages, page)
			}
			classIndex[p] = i
		}
		copy(asciiClass[:], full)
	})
}

// classAt returns the class and the length in bytes of the character at s[i]; 0, 0
// at the end. A byte that is not UTF-8 counts as U+FFFD.
func classAt(s string, i int) (class, int) {
	if i >= len(s) {
		return 0, 0
	}
	if c := s[i]; c < utf8.RuneSelf {
		return asciiClass[c], 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	return classPages[classIndex[r>>8]][r&255], n
}
