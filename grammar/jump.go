package grammar

import "bytes"

// maxTail is how many tokens back a tokenizer is shown when forced text is
// encoded.
const maxTail = 4

// plan is the tokens that must come next, chosen so that they are what the
// tokenizer makes of the text whatever follows it.
//
// Let F be the forced text. The canonical encoding of F is taken together with
// the last tokens before it, where the tokenizer keeps the boundary between
// them. Of its tokens those are kept that end before any position q of F at
// which a longer token could begin: one that starts with F[q:] and goes on
// past the end of F in a way that the grammar allows. What is left over is for
// the model to write.
func (m *machine) plan(p *place, tail [maxTail]int32) []int32 {
	v := m.vocab
	if v.encode == nil {
		return nil
	}
	forced := m.forcedText(p)
	if len(forced) == 0 {
		return nil
	}
	ids := m.encodeAfter(forced, tail)
	if len(ids) == 0 {
		return nil
	}
	safe := m.safeEnd(p, forced)
	n, end := 0, 0
	for n < len(ids) && end+len(v.tokens[ids[n]]) <= safe {
		end += len(v.tokens[ids[n]])
		n++
	}
	return m.checked(p, forced, ids[:n:n])
}

// encodeAfter is the tokens of text behind the given tokens; nil when the
// tokenizer's answer does not spell the text.
func (m *machine) encodeAfter(text []byte, tail [maxTail]int32) []int32 {
	v := m.vocab
	for k := maxTail; k >= 0; k-- {
		before := tail[maxTail-k:]
		if k > 0 && before[0] < 0 {
			continue
		}
		var full []byte
		for _, t := range before {
			full = append(full, v.tokens[t]...)
		}
		full = append(full, text...)
		ids := v.encode(full)
		if len(ids) < k {
			continue
		}
		same := true
		for i, t := range before {
			same = same && ids[i] == t
		}
		if !same {
			continue
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

// safeEnd is the first position of forced at which a token may begin that runs
// past its end.
func (m *machine) safeEnd(p *place, forced []byte) int {
	// The end of the text is a boundary that stays.
	q := p
	for _, b := range forced {
		q = m.step(q, b)
	}
	if len(q.configs) == 0 {
		return len(forced)
	}
	first := m.firstBytes(q)
	for at := max(0, len(forced)-m.vocab.maxLen+1); at < len(forced); at++ {
		n := m.vocab.find(forced[at:])
		if n < 0 {
			continue
		}
		for i := n + 1; i < int(m.vocab.nodeEnd[n]); i = int(m.vocab.nodeEnd[i]) {
			if b := m.vocab.nodeByte[i]; first[b>>6]&(1<<(b&63)) != 0 {
				return at
			}
		}
	}
	return len(forced)
}

// find is the trie node of text, -1 when no token begins with it.
func (v *Vocab) find(text []byte) int {
	i, end := 0, len(v.nodeByte)
	at := -1
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

// checked cuts a plan before the first token that another continuation of the
// text would tokenise differently; a sample of continuations is tried.
func (m *machine) checked(p *place, forced []byte, ids []int32) []int32 {
	if len(ids) == 0 {
		return nil
	}
	v := m.vocab
	q := p
	for _, b := range forced {
		q = m.step(q, b)
	}
	first := m.firstBytes(q)
	tried := 0
	for b := range 256 {
		if first[b>>6]&(1<<(b&63)) == 0 {
			continue
		}
		if tried++; tried > 12 {
			break
		}
		text := append(append(make([]byte, 0, len(forced)+1), forced...), byte(b))
		if b >= 0x80 {
			continue
		}
		got := v.encode(text)
		if !v.spells(got, text) {
			continue
		}
		alone := v.encode(forced)
		if len(alone) < len(ids) || !equalPrefix(alone, ids) {
			break // the tokens before matter; the sample says nothing
		}
		n := 0
		for n < len(ids) && n < len(got) && got[n] == ids[n] {
			n++
		}
		ids = ids[:n]
	}
	return ids
}

func equalPrefix(long, short []int32) bool {
	for i, x := range short {
		if long[i] != x {
			return false
		}
	}
	return true
}
