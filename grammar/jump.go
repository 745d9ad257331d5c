package grammar

import (
	"bytes"
	"math/bits"
	"slices"
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
// possible q are the end of F and the crossings: places where the tokenizer
// would begin a token that spells F[q:] and goes on with a byte that the
// grammar allows. The plan is what the encodings of F[:q] for all these q have
// in common.
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
	for _, q := range m.crossings(p, forced, last, tail) {
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

// crossings is the places of forced text, last first, at which a token begins
// that runs past its end in the encoding of some continuation; at loose and
// behind it only where that happens before more than a few of the bytes that
// may follow.
func (m *machine) crossings(p *place, forced []byte, loose int, tail tailTokens) []int {
	q := p
	for _, b := range forced {
		q = m.step(q, b)
	}
	if len(q.configs) == 0 {
		return nil
	}
	first := m.firstBytes(q)
	v := m.vocab
	// What comes before bears on the answer no further back than a token or
	// two: answers are shared by all forced texts that end alike.
	text := forced
	if len(text) < 2*v.maxLen && tail[maxTail-1] >= 0 {
		text = slices.Concat(v.tokens[tail[maxTail-1]], forced)
	}
	const context = 48
	if len(text) > context {
		text = text[len(text)-context:]
		for len(text) > 0 && text[0]&0xC0 == 0x80 {
			text = text[1:] // not from inside a character
		}
	}
	key := crossKey{string(text), *first}
	found, ok := m.crossed[key]
	if !ok {
		found = v.cross(text, first)
		if len(m.crossed) > 4096 {
			clear(m.crossed)
		}
		m.crossed[key] = found
	}
	var out []int
	for _, c := range found {
		if at := len(forced) - c.back; at >= 0 && (at < loose || !rare(&c.merged, first)) {
			out = append(out, at)
		}
	}
	return out
}

type crossKey struct {
	text  string
	first [4]uint64
}

// crossing is a place so many bytes before the end of a text, and the bytes
// that a token from there on may take in behind the end.
type crossing struct {
	back   int
	merged [4]uint64
}

// perByte is how many tokens with one next byte are tried at one place.
const perByte = 4

// cross finds the crossings of text, nearest the end first. Candidates are the
// tokens that spell the text from some place on and go on with an allowed
// byte; the tokenizer says whether it would use them there.
func (v *Vocab) cross(text []byte, first *[4]uint64) []crossing {
	byBack := make([]crossing, len(text)+1)
	var probe []byte
	for at := len(text) - 1; at >= max(0, len(text)-v.maxLen+1); at-- {
		n := v.find(text[at:])
		if n < 0 {
			continue
		}
		for i := n + 1; i < int(v.nodeEnd[n]); i = int(v.nodeEnd[i]) {
			b := v.nodeByte[i]
			if first[b>>6]&(1<<(b&63)) == 0 {
				continue
			}
			tokens := v.order[v.nodeRank[i]:v.nodeRank[v.nodeEnd[i]]]
			for k := range min(perByte, len(tokens)) {
				t := v.tokens[tokens[k*len(tokens)/min(perByte, len(tokens))]]
				probe = append(append(probe[:0], text[:at]...), t...)
				pos := 0
				for _, id := range v.encode(probe) {
					if id < 0 || int(id) >= len(v.tokens) {
						break
					}
					end := pos + len(v.tokens[id])
					if pos < len(text) && end > len(text) {
						c := &byBack[len(text)-pos]
						c.back = len(text) - pos
						c.merged[b>>6] |= 1 << (b & 63)
					}
					pos = end
				}
			}
		}
	}
	return slices.DeleteFunc(byBack, func(c crossing) bool { return c.back == 0 })
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
