package grammar

import (
	"bytes"
	"math/bits"
)

// maxTail is how many tokens back a tokenizer is shown when forced text is
// encoded.
const maxTail = 4

// tailTokens is the last tokens before a state, newest last, -1 where there
// are fewer.
type tailTokens [maxTail]int32

var noTail = tailTokens{-1, -1, -1, -1}

func (t tailTokens) with(token int32) tailTokens {
	copy(t[:], t[1:])
	t[maxTail-1] = token
	return t
}

// plan is the tokens that must come next: those of the forced text that the
// tokenizer makes whatever follows.
//
// Let F be the forced text. In the encoding of a whole text F·R some token
// begins at a place q of F and is the first that reaches the end of F or goes
// past it. No merge crosses q, so the tokens before q are those of F[:q]. The
// possible q are the end of F and the places where a token of the vocabulary
// begins that spells F[q:] and goes on with a byte that the grammar allows.
// The plan is what the encodings of F[:q] for all these q have in common.
//
// F is encoded behind the last tokens before it, as far as the tokenizer keeps
// the boundary between them.
func (m *machine) plan(p *place, tail tailTokens) []int32 {
	v := m.vocab
	if v.encode == nil {
		return nil
	}
	forced := m.forcedText(p)
	if len(forced) == 0 {
		return nil
	}
	ids := m.encodeAfter(forced, tail)
	last := len(forced) // from here on rare continuations do not count
	if v.eager && len(ids) > 0 && !wordByte(forced[last-1]) {
		last -= len(v.tokens[ids[len(ids)-1]])
	}
	for _, q := range m.crossings(p, forced, last) {
		if len(ids) == 0 {
			break
		}
		end, n := 0, 0
		for n < len(ids) && end+len(v.tokens[ids[n]]) <= q {
			end += len(v.tokens[ids[n]])
			n++
		}
		ids = ids[:n:n]
		if end == q {
			// The boundary is one of F's own: the tokens before it stay.
			continue
		}
		ids = commonPrefix(ids, m.encodeAfter(forced[:q], tail))
	}
	return ids
}

// wordByte reports whether b may be inside a word.
func wordByte(b byte) bool {
	return b >= 0x80 || b == ' ' || b == '_' || b == '-' || b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z'
}

func commonPrefix(a, b []int32) []int32 {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return a[:n:n]
}

// encodeAfter is the tokens of text behind the given tokens; nil when the
// tokenizer's answer does not spell the text.
func (m *machine) encodeAfter(text []byte, tail tailTokens) []int32 {
	v := m.vocab
	if len(text) == 0 {
		return nil
	}
	var full []byte
next:
	for k := maxTail; k >= 0; k-- {
		before := tail[maxTail-k:]
		if k > 0 && before[0] < 0 {
			continue
		}
		full = full[:0]
		for _, t := range before {
			full = append(full, v.tokens[t]...)
		}
		full = append(full, text...)
		ids := v.encode(full)
		if len(ids) < k {
			continue
		}
		for i, t := range before {
			if ids[i] != t {
				continue next
			}
		}
		if rest := ids[k:]; v.spells(rest, text) {
			return rest
		}
	}
	return nil
}

// spells reports whether the tokens' bytes are exactly text.
func (v *Vocab) spells(ids []int32, text []byte) bool {
	for _, id := range ids {
		if id < 0 || int(id) >= len(v.tokens) || len(v.tokens[id]) == 0 || !bytes.HasPrefix(text, v.tokens[id]) {
			return false
		}
		text = text[len(v.tokens[id]):]
	}
	return len(text) == 0
}

// crossings is the places of forced text, last first, at which a token may
// begin that runs past its end; at loose and behind it only where that happens
// before more than a few of the bytes that may follow.
func (m *machine) crossings(p *place, forced []byte, loose int) []int {
	q := p
	for _, b := range forced {
		q = m.step(q, b)
	}
	if len(q.configs) == 0 {
		return nil
	}
	first := m.firstBytes(q)
	v := m.vocab
	var out []int
	for at := len(forced) - 1; at >= max(0, len(forced)-v.maxLen+1); at-- {
		n := v.find(forced[at:])
		if n < 0 {
			continue
		}
		var merged [4]uint64 // bytes that a token from here on takes in
		for i := n + 1; i < int(v.nodeEnd[n]); i = int(v.nodeEnd[i]) {
			b := v.nodeByte[i]
			merged[b>>6] |= 1 << (b & 63) & first[b>>6]
		}
		if merged != [4]uint64{} && (at < loose || !rare(&merged, first)) {
			out = append(out, at)
		}
	}
	return out
}

// rare reports whether few of the bytes that may follow are in merged, and,
// where a JSON value begins, no common ones.
func rare(merged, first *[4]uint64) bool {
	few, all := 0, 0
	for i := range merged {
		few += bits.OnesCount64(merged[i])
		all += bits.OnesCount64(first[i])
	}
	if all < 60 {
		for _, b := range []byte(`"[{`) {
			if merged[b>>6]&(1<<(b&63)) != 0 {
				return false
			}
		}
	}
	return 4*few <= all
}

// find is the trie node of text, -1 when no token begins with it.
func (v *Vocab) find(text []byte) int {
	i, end, at := 0, len(v.nodeByte), -1
	for _, b := range text {
		for i < end && v.nodeByte[i] < b {
			i = int(v.nodeEnd[i])
		}
		if i >= end || v.nodeByte[i] != b {
			return -1
		}
		at, end = i, int(v.nodeEnd[i])
		i++
	}
	return at
}
