package grammar

import "bytes"

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
	for _, q := range m.crossings(p, forced) {
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
// begin that runs past its end.
func (m *machine) crossings(p *place, forced []byte) []int {
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
		for i := n + 1; i < int(v.nodeEnd[n]); i = int(v.nodeEnd[i]) {
			if b := v.nodeByte[i]; first[b>>6]&(1<<(b&63)) != 0 {
				out = append(out, at)
				break
			}
		}
	}
	return out
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
