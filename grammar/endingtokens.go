package grammar

import "bytes"

// This file turns endings into tokens.

// LongestEnding bounds the text that [State.Ending] looks for, in bytes.
const LongestEnding = 16 << 10

// EndsWithin reports whether the text can come to an end within so many tokens,
// as [State.Ending] finds it.
func (s State) EndsWithin(tokens int) bool {
	m := s.g.m
	m.mu.Lock()
	text := m.ending(s.at)
	m.mu.Unlock()
	if text == nil {
		return false
	}
	if len(text) <= tokens { // a token is a byte at least
		return true
	}
	_, ok := s.Ending(tokens)
	return ok
}

// Ending returns the tokens of a short way from here to a place where the text may
// end: what is open is closed, and what must come has its shortest form. It depends
// on the state alone, and behind the first of its tokens it is the others. It is empty
// where the text may end already; ok is false if no way of at most so many tokens is
// found, though there may be one: none is sought of more than [LongestEnding] bytes, none
// for longer than some ten milliseconds' worth of steps, and none in a text with one
// member a line.
func (s State) Ending(most int) (tokens []int32, ok bool) {
	m := s.g.m
	var text ending // what is left of it
	for !s.at.canEnd {
		if len(tokens) >= most {
			return nil, false
		}
		m.mu.Lock()
		if text == nil {
			text = m.ending(s.at)
		}
		t := int32(-1)
		if len(s.plan) > 0 {
			t = s.plan[0]
		} else if text != nil {
			t = m.firstToken(text, s.tail)
		}
		m.mu.Unlock()
		if text == nil || t < 0 {
			return nil, false
		}
		next, err := s.Accept(t)
		if err != nil {
			return nil, false
		}
		tokens, s = append(tokens, t), next
		if spelled := m.vocab.tokens[t]; bytes.HasPrefix(text, spelled) {
			text = text[len(spelled):]
		} else { // a plan that goes elsewhere
			text = nil
		}
	}
	return tokens, true
}

// seenAhead is how many bytes of a text the tokenizer is shown for its first token.
const seenAhead = 64

// firstToken is the token that the tokenizer begins text with, -1 if there is none.
func (m *machine) firstToken(text []byte, tail tailTokens) int32 {
	if m.vocab.encode != nil {
		n := min(len(text), seenAhead)
		for n < len(text) && n > 0 && text[n]&0xC0 == 0x80 {
			n-- // not inside a character
		}
		if ids := m.encodeAfter(text[:n], tail); len(ids) > 0 {
			return ids[0]
		}
	}
	return m.vocab.longest(text)
}

// longest is the longest token that text begins with, -1 if there is none.
func (v *Vocab) longest(text []byte) int32 {
	found := int32(-1)
	i, end := 0, len(v.nodeByte)
	for _, b := range text {
		for i < end && v.nodeByte[i] < b {
			i = int(v.nodeEnd[i])
		}
		if i >= end || v.nodeByte[i] != b {
			break
		}
		if v.nodeTok[i] >= 0 {
			found = v.nodeTok[i]
		}
		i, end = i+1, int(v.nodeEnd[i])
	}
	return found
}
