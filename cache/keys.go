package cache

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// BlockKey names the tokens from the start of a sequence to the end of one of
// its blocks of PageTokens tokens, within a namespace. It is what tiers,
// routers and other engines know a page by.
type BlockKey uint64

// BlockKeys returns the keys of the full blocks of tokens. Key i depends on the
// namespace and on all tokens before (i+1)*PageTokens; two sequences have equal
// keys as far as their full blocks are equal.
func BlockKeys(ns Namespace, tokens []Token) []BlockKey {
	keys := make([]BlockKey, 0, len(tokens)/PageTokens)
	prev := ns.seed()
	var buf [8 + 4*PageTokens]byte
	for ; len(tokens) >= PageTokens; tokens = tokens[PageTokens:] {
		binary.LittleEndian.PutUint64(buf[:], prev)
		for i, t := range tokens[:PageTokens] {
			binary.LittleEndian.PutUint32(buf[8+4*i:], uint32(t))
		}
		prev = xxhash.Sum64(buf[:])
		keys = append(keys, BlockKey(prev))
	}
	return keys
}

// seed hashes the fields with their names and lengths, so that no two
// namespaces glue to the same bytes.
func (ns Namespace) seed() uint64 {
	var b []byte
	for _, f := range [...]struct{ tag, value string }{
		{"model", ns.Model}, {"adapter", ns.Adapter}, {"salt", ns.Salt},
	} {
		b = append(b, f.tag...)
		b = binary.LittleEndian.AppendUint64(b, uint64(len(f.value)))
		b = append(b, f.value...)
	}
	return xxhash.Sum64(b)
}
