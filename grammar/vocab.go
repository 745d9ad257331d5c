package grammar

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"
)

// VocabOptions is what [NewVocab] needs beside the tokens.
type VocabOptions struct {
	// EndTokens are the ids that mean "stop". Their mask bits are set where the
	// text may end.
	EndTokens []int32
	// Encode is the tokenizer's canonical encoding of a text that stands in the
	// middle of another: no special tokens, no added blank. The bytes of the
	// returned tokens joined must be the text. Without it there is no
	// jump-forward. It must be safe for concurrent use.
	Encode func(text []byte) []int32
	// Eager feeds the last token of a forced text that ends in punctuation even
	// if the tokenizer would merge it with some continuations. About a third
	// more tokens are fed; where the text goes on in such a way its tokens are
	// not the canonical ones. The tokens still do not depend on jumping.
	Eager bool
}

// Vocab is the token set of a tokenizer, with a trie over the token bytes. It
// does not change and shared by all grammars and goroutines.
type Vocab struct {
	tokens [][]byte
	end    []int32
	encode func([]byte) []int32
	eager  bool
	maxLen int       // bytes of the longest token
	items  int32     // commas in one token that may stand between items, at most
	runs   [64]int32 // by group of bytes: the most in a row in one token
	few    int32     // trie nodes that are walked sooner than a state to compare with is sought

	// The trie in depth-first order: node i is reached by byte nodeByte[i] at
	// depth nodeDepth[i] (1 for the first byte of a token); its subtree ends
	// before nodeEnd[i].
	nodeByte  []byte
	nodeDepth []uint16
	nodeEnd   []int32
	nodeTok   []int32    // token that ends here, or -1
	nodeHigh  []uint16   // bytes that the longest token below node i adds
	nodeChars []uint16   // characters that any token below node i adds, at most
	nodeSig   []uint64   // signature of the bytes below node i
	nodeRank  []int32    // tokens before node i in order
	nodeKids  []int32    // the children of node i are kids[nodeKids[i]:nodeKids[i+1]]
	kids      []kid      // side by side: scattered over the trie each is a cache miss
	roots     [256]int32 // the node of each first byte, or -1
	order     []int32    // tokens in trie order, first ones of equal texts only
	dup       map[int32][]int32
	twin      []uint64  // bit t: dup holds others for token t; nil: none
	weight    [64]int32 // trie nodes below which a byte of a group occurs

	// What states of basePool say, shared by all grammars.
	mu       sync.Mutex
	inners   map[nodeID]*inner
	spelling *spelling
}

// kid is a child of a trie node.
type kid struct {
	b    byte
	node int32
}

// NewVocab builds a vocabulary. tokens[i] holds the decoded bytes of token i
// (a leading blank as 0x20, a byte-fallback token as its one byte); a control
// token is nil or empty and is never legal inside a grammar.
func NewVocab(tokens [][]byte, opts VocabOptions) (*Vocab, error) {
	v := &Vocab{tokens: tokens, end: slices.Clone(opts.EndTokens), encode: opts.Encode, eager: opts.Eager, dup: map[int32][]int32{}, inners: map[nodeID]*inner{}, few: 3000}
	if len(tokens) == 0 {
		return nil, errors.New("grammar: empty vocabulary")
	}
	isEnd := map[int32]bool{}
	for _, e := range v.end {
		if e < 0 || int(e) >= len(tokens) {
			return nil, fmt.Errorf("grammar: end token %d is outside the vocabulary of %d", e, len(tokens))
		}
		isEnd[e] = true
	}
	ids := make([]int32, 0, len(tokens))
	total := 0
	for i, t := range tokens {
		if len(t) == 0 || isEnd[int32(i)] {
			continue
		}
		if len(t) > 60000 {
			return nil, fmt.Errorf("grammar: token %d has %d bytes", i, len(t))
		}
		ids = append(ids, int32(i))
		v.measure(t)
		total += len(t)
	}
	slices.SortFunc(ids, func(a, b int32) int {
		if c := bytes.Compare(tokens[a], tokens[b]); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
	v.build(ids, total)
	v.warm()
	return v, nil
}

// measure takes a token into account in what one token can hold at most.
func (v *Vocab) measure(t []byte) {
	v.maxLen = max(v.maxLen, len(t))
	items, run := int32(0), int32(0)
	for i, b := range t {
		if b == ',' && (i+1 == len(t) || t[i+1] != ',') {
			items++
		}
		if i > 0 && sigOf[b] != sigOf[t[i-1]] {
			run = 0
		}
		run++
		v.runs[sigOf[b]] = max(v.runs[sigOf[b]], run)
	}
	v.items = max(v.items, items)
}

// warm computes what almost every grammar asks of the vocabulary: the tokens
// that stay within a string or a name of any content.
func (v *Vocab) warm() {
	m := &machine{writer: writer{pool: newPool(), span: v.maxLen}, vocab: v}
	m.initMasks()
	for _, id := range m.common {
		m.innerOf(id)
	}
	m.spell()
}

// build lays out the trie of the sorted token ids.
func (v *Vocab) build(ids []int32, total int) {
	hint := total/3 + 16
	v.nodeByte = make([]byte, 0, hint)
	v.nodeDepth = make([]uint16, 0, hint)
	v.nodeEnd = make([]int32, 0, hint)
	v.nodeTok = make([]int32, 0, hint)
	path := make([]int32, 0, v.maxLen) // trie nodes of the previous token
	var prev []byte
	for _, id := range ids {
		t := v.tokens[id]
		common := 0
		for common < len(t) && common < len(prev) && t[common] == prev[common] {
			common++
		}
		for len(path) > common {
			v.nodeEnd[path[len(path)-1]] = int32(len(v.nodeByte))
			path = path[:len(path)-1]
		}
		for d := common; d < len(t); d++ {
			path = append(path, int32(len(v.nodeByte)))
			v.nodeByte = append(v.nodeByte, t[d])
			v.nodeDepth = append(v.nodeDepth, uint16(d+1))
			v.nodeEnd = append(v.nodeEnd, 0)
			v.nodeTok = append(v.nodeTok, -1)
		}
		last := path[len(path)-1]
		if first := v.nodeTok[last]; first >= 0 {
			if v.twin == nil {
				v.twin = make([]uint64, v.MaskWords())
			}
			v.twin[first>>6] |= 1 << (first & 63)
			v.dup[first] = append(v.dup[first], id)
		} else {
			v.nodeTok[last] = id
		}
		prev = t
	}
	for _, n := range path {
		v.nodeEnd[n] = int32(len(v.nodeByte))
	}
	v.summarise()
}

// summarise computes what the subtrees of the trie hold.
func (v *Vocab) summarise() {
	n := len(v.nodeByte)
	v.nodeHigh = make([]uint16, n)
	v.nodeChars = make([]uint16, n)
	v.nodeSig = make([]uint64, n)
	v.nodeRank = make([]int32, n+1)
	type sum struct {
		high, chars uint16
		sig         uint64
	}
	below := make([]sum, v.maxLen+2) // by depth, of the siblings seen so far
	for i := n - 1; i >= 0; i-- {
		d := v.nodeDepth[i]
		s := below[d+1]
		below[d+1] = sum{}
		v.nodeHigh[i], v.nodeChars[i], v.nodeSig[i] = s.high, s.chars, s.sig
		b := v.nodeByte[i]
		one := uint16(1)
		if b&0xC0 == 0x80 {
			one = 0
		}
		p := &below[d]
		p.high = max(p.high, s.high+1)
		p.chars = max(p.chars, s.chars+one)
		p.sig |= s.sig | 1<<sigOf[b]
		for rest := s.sig; rest != 0; rest &= rest - 1 {
			v.weight[bits.TrailingZeros64(rest)]++
		}
	}
	for i := range v.roots {
		v.roots[i] = -1
	}
	for i := range n {
		if v.nodeDepth[i] == 1 {
			v.roots[v.nodeByte[i]] = int32(i)
		}
		v.nodeRank[i] = int32(len(v.order))
		if t := v.nodeTok[i]; t >= 0 {
			v.order = append(v.order, t)
		}
	}
	v.nodeRank[n] = int32(len(v.order))
	v.adopt()
}

// adopt lists the children of each node.
func (v *Vocab) adopt() {
	n := len(v.nodeByte)
	v.nodeKids = make([]int32, n+1)
	v.kids = make([]kid, 0, n)
	for i := range int32(n) {
		v.nodeKids[i] = int32(len(v.kids))
		for c := i + 1; c < v.nodeEnd[i]; c = v.nodeEnd[c] {
			v.kids = append(v.kids, kid{v.nodeByte[c], c})
		}
	}
	v.nodeKids[n] = int32(len(v.kids))
}

// kidsOf is the children of node i, by byte.
func (v *Vocab) kidsOf(i int32) []kid { return v.kids[v.nodeKids[i]:v.nodeKids[i+1]] }

// sigOf sorts the bytes into 64 groups: a signature is a set of groups.
var sigOf = func() (out [256]uint8) {
	next := uint8(0)
	group := func(lo, hi int) {
		for b := lo; b <= hi; b++ {
			out[b] = next
		}
		next++
	}
	group(0, 0x1F)
	group('0', '9')
	group('A', 'F')
	group('G', 'Z')
	group('a', 'f')
	group('g', 'z')
	group(0x80, 0xBF)
	group(0xC0, 0xC1)
	group(0xC2, 0xC2) // blanks and line ends above ASCII begin with C2, E1, E2, E3 and EF
	group(0xC3, 0xDF)
	group(0xE0, 0xE0)
	for b := 0xE1; b <= 0xE3; b++ {
		group(b, b)
	}
	group(0xE4, 0xEE)
	group(0xEF, 0xEF)
	group(0xF0, 0xFF)
	for b := 0x20; b < 0x80; b++ {
		if out[b] == 0 {
			group(b, b)
		}
	}
	return out
}()

// sigHigh is the groups of bytes above ASCII.
var sigHigh = func() (out uint64) {
	for b := 0x80; b < 0x100; b++ {
		out |= 1 << sigOf[b]
	}
	return out
}()

// sigBytes lists the bytes of each group.
var sigBytes = func() (out [64][]byte) {
	for b := range 256 {
		out[sigOf[b]] = append(out[sigOf[b]], byte(b))
	}
	return out
}()

// Size is the number of token ids.
func (v *Vocab) Size() int { return len(v.tokens) }

// Token returns the bytes of a token; they must not be changed.
func (v *Vocab) Token(id int32) []byte {
	if id < 0 || int(id) >= len(v.tokens) {
		return nil
	}
	return v.tokens[id]
}

// MaskWords is the number of 64-bit words of a mask.
func (v *Vocab) MaskWords() int { return (len(v.tokens) + 63) / 64 }

// EndTokens are the ids that mean "stop".
func (v *Vocab) EndTokens() []int32 { return v.end }

// shared is what a state of basePool says, computed by the first grammar that
// asks.
func (v *Vocab) shared(id nodeID, compute func() *inner) *inner {
	v.mu.Lock()
	defer v.mu.Unlock()
	in := v.inners[id]
	if in == nil {
		in = compute()
		v.inners[id] = in
	}
	return in
}
