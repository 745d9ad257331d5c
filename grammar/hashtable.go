package grammar

import (
	"hash/maphash"
	"slices"
)

// hashTable finds entries by their hash. It grows by one chain at a time: no
// token waits until a table of thousands of entries is moved.
type hashTable[E any] struct {
	blocks [][]*hashEntry[E] // of chains, blockChains in each
	fresh  []hashEntry[E]    // room for entries to come
	size   int               // entries
	half   uint64            // a power of two: chains from split to half are not divided yet
	split  uint64
}

type hashEntry[E any] struct {
	is   E
	hash uint64
	next *hashEntry[E]
}

const blockChains = 64

func (t *hashTable[E]) chain(i uint64) **hashEntry[E] {
	return &t.blocks[i/blockChains][i%blockChains]
}

func (t *hashTable[E]) at(hash uint64) **hashEntry[E] {
	i := hash & (t.half - 1)
	if i < t.split {
		i = hash & (2*t.half - 1)
	}
	return t.chain(i)
}

// first begins the chain in which an entry of this hash would be.
func (t *hashTable[E]) first(hash uint64) *hashEntry[E] {
	if t.size == 0 {
		return nil
	}
	return *t.at(hash)
}

// ready makes room for the first entries.
func (t *hashTable[E]) ready() {
	t.half = blockChains
	t.blocks = [][]*hashEntry[E]{make([]*hashEntry[E], blockChains)}
	t.fresh = make([]hashEntry[E], 8)
}

// insert puts e in front of its chain.
func (t *hashTable[E]) insert(hash uint64, e E) {
	if t.half == 0 {
		t.ready()
	}
	if len(t.fresh) == 0 {
		t.fresh = make([]hashEntry[E], min(64, 8+t.size))
	}
	at, entry := t.at(hash), &t.fresh[0]
	t.fresh = t.fresh[1:]
	*entry = hashEntry[E]{e, hash, *at}
	*at = entry
	if t.size++; t.size > int(t.half+t.split) {
		t.divide()
	}
}

// divide makes two chains of the next one.
func (t *hashTable[E]) divide() {
	last := t.half + t.split
	if last/blockChains == uint64(len(t.blocks)) {
		t.blocks = append(t.blocks, make([]*hashEntry[E], blockChains))
	}
	from, to := t.chain(t.split), t.chain(last)
	rest := *from
	*from = nil
	for e := rest; e != nil; e = rest {
		rest = e.next
		if e.hash&t.half == 0 {
			e.next, *from = *from, e
		} else {
			e.next, *to = *to, e
		}
	}
	if t.split++; t.split == t.half {
		t.half, t.split = 2*t.half, 0
	}
}

// steadyMap is a map that grows as a hashTable does.
type steadyMap[K comparable, V any] struct {
	table hashTable[keyed[K, V]]
	base  *steadyMap[K, V] // holds more, does not change; or nil
}

type keyed[K comparable, V any] struct {
	key K
	val V
}

// hashSeed is one for all: what is kept does not depend on it.
var hashSeed = maphash.MakeSeed()

func (m *steadyMap[K, V]) get(key K) (V, bool) {
	hash := maphash.Comparable(hashSeed, key)
	for ; m != nil; m = m.base {
		for e := m.table.first(hash); e != nil; e = e.next {
			if e.hash == hash && e.is.key == key {
				return e.is.val, true
			}
		}
	}
	var none V
	return none, false
}

// put adds a key that the map does not hold.
func (m *steadyMap[K, V]) put(key K, val V) {
	m.table.insert(maphash.Comparable(hashSeed, key), keyed[K, V]{key, val})
}

// drop removes a key that was put into m itself.
func (m *steadyMap[K, V]) drop(key K) {
	if m.table.size == 0 {
		return
	}
	for at := m.table.at(maphash.Comparable(hashSeed, key)); *at != nil; at = &(*at).next {
		if (*at).is.key == key {
			*at = (*at).next
			m.table.size--
			return
		}
	}
}

func (m *steadyMap[K, V]) len() int { return m.table.size }

// leafTable finds leaves without labels by what they are made of.
type leafTable struct {
	own  hashTable[int32]
	base *leafTable // holds more, does not change; or nil
}

func hashLeaf(accept bool, edges []edge) uint64 {
	const odd = 0x9E3779B97F4A7C15
	h := uint64(len(edges))
	if accept {
		h |= 1 << 32
	}
	for _, e := range edges {
		h = (h ^ uint64(e.lo) ^ uint64(e.hi)<<8 ^ uint64(e.to)<<16) * odd
		h ^= h >> 29
	}
	return h
}

func (t *leafTable) find(leaves []leaf, hash uint64, accept bool, edges []edge) (int32, bool) {
	for ; t != nil; t = t.base {
		for e := t.own.first(hash); e != nil; e = e.next {
			if l := &leaves[e.is]; e.hash == hash && l.accept == accept && slices.Equal(l.edges, edges) {
				return e.is, true
			}
		}
	}
	return 0, false
}
