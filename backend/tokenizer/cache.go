package tokenizer

import (
	"hash/maphash"
	"strings"
	"sync/atomic"
)

// wordCache remembers the tokens of words. It is a table of fixed size in which a
// new word replaces the one in its slot, so it is bounded and needs no lock.
type wordCache struct {
	seed  maphash.Seed
	slots []atomic.Pointer[cachedWord]
}

type cachedWord struct {
	word   string
	tokens []Token
}

const (
	cacheSlots = 1 << 15 // a few MB when full
	maxCached  = 48      // bytes of the longest word kept
)

func newWordCache() *wordCache {
	return &wordCache{maphash.MakeSeed(), make([]atomic.Pointer[cachedWord], cacheSlots)}
}

// get returns the slot of word and, if the word is in it, its tokens.
func (c *wordCache) get(word string) (slot *atomic.Pointer[cachedWord], tokens []Token, ok bool) {
	slot = &c.slots[maphash.String(c.seed, word)%cacheSlots]
	if e := slot.Load(); e != nil && e.word == word {
		return slot, e.tokens, true
	}
	return slot, nil, false
}

// cacheInto stores copies of word and tokens in slot.
func cacheInto(slot *atomic.Pointer[cachedWord], word string, tokens []Token) {
	slot.Store(&cachedWord{strings.Clone(word), append([]Token(nil), tokens...)})
}
