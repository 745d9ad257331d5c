package engine

import (
	"bytes"
	"regexp"
	"unicode/utf8"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// stream turns the tokens of a generation into text as they come. What it has
// released never changes: a character is released when it is whole, and text
// that may be the beginning of a stop string only when it turns out not to be.
// Tokens are released with the last of their text.
//
//	tokens    | Hel | lo S | TO | ... |
//	text       H e l l o _ S T O
//	                     ^ released up to here while "STOP" is possible:
//	                       token "Hel", text "Hello "
type stream struct {
	tokenBytes func(backend.Token) []byte
	stops      []string
	patterns   []*regexp.Regexp // end the text behind their matches

	decoder *tokenizer.StreamDecoder
	text    []byte // all whole characters so far
	tokens  []mark // all tokens so far

	sentText, sentTokens int // released so far
}

// mark is a token and where it ends.
type mark struct {
	token  backend.Token
	origin backend.Origin
	end    int  // length of the text after the token
	clean  bool // the token ends where a character ends
}

func newStream(tokenBytes func(backend.Token) []byte, stops []string) *stream {
	return &stream{tokenBytes: tokenBytes, stops: stops, decoder: tokenizer.NewStreamDecoder(nil)}
}

// stopAt says that text[at:] begins with a stop string, or if at is -1 that a
// pattern matched.
type stopAt struct {
	at   int
	stop string
}

// patternWindow is how far back, in bytes, a match may begin that new text completes.
const patternWindow = 256

// findPattern looks for a pattern that text[from:] completes.
func (s *stream) findPattern(from int) (stopAt, bool) {
	lo := max(0, from-patternWindow)
	for lo > 0 && !utf8.RuneStart(s.text[lo]) {
		lo--
	}
	// The first character is there for what looks back, e.g. a word boundary: a
	// match may begin with it only if there is one without it too.
	first := 0
	if lo > 0 {
		_, first = utf8.DecodeRune(s.text[lo:])
	}
	ends := func(re *regexp.Regexp, lo, first int) bool {
		for _, m := range re.FindAllIndex(s.text[lo:], -1) {
			if m[0] >= first && m[1] > m[0] && lo+m[1] > from {
				return true
			}
		}
		return false
	}
	for _, re := range s.patterns {
		if ends(re, lo, first) || ends(re, lo, 0) && ends(re, lo+first, 0) {
			return stopAt{-1, re.String()}, true
		}
	}
	return stopAt{}, false
}

// push adds a token. It reports the stop string or the pattern that the token
// completes, if any; then the generation is over.
func (s *stream) push(t backend.Token, origin backend.Origin) (stopAt, bool) {
	before := len(s.text)
	s.text = s.decoder.AppendBytes(s.text, s.tokenBytes(t))
	s.tokens = append(s.tokens, mark{t, origin, len(s.text), s.decoder.Held() == 0})
	if stop, ok := s.findStop(before); ok || len(s.text) == before {
		return stop, ok
	}
	return s.findPattern(before)
}

// findStop looks for the stop string that ends first in text[from:], and of
// those that end together for the longest: the same one however the text is cut
// into tokens.
func (s *stream) findStop(from int) (best stopAt, ok bool) {
	bestEnd := 0
	for _, stop := range s.stops {
		lo := max(0, from-len(stop)+1)
		i := bytes.Index(s.text[lo:], []byte(stop))
		if i < 0 {
			continue
		}
		at := lo + i
		end := at + len(stop)
		if !ok || end < bestEnd || end == bestEnd && at < best.at {
			best, bestEnd, ok = stopAt{at, stop}, end, true
		}
	}
	return best, ok
}

// safe is the length of the text that cannot belong to a stop string.
func (s *stream) safe() int {
	hold := 0
	for _, stop := range s.stops {
		for n := min(len(stop)-1, len(s.text)); n > hold; n-- {
			if string(s.text[len(s.text)-n:]) == stop[:n] {
				hold = n
				break
			}
		}
	}
	return len(s.text) - hold
}

// take returns what can be released now and was not yet, as deltas whose tokens
// are of one origin each, but for a character that is of both.
func (s *stream) take() []backend.Delta {
	safe := s.safe()
	out := s.release(safe, len(s.tokens))
	if text := s.sendText(safe); text != "" {
		d := backend.Delta{Text: text}
		if s.sentTokens < len(s.tokens) {
			d.Origin = s.tokens[s.sentTokens].origin
		}
		out = append(out, d)
	}
	return out
}

// takeFirst is take for the first n tokens of all. It releases text with its
// tokens only.
func (s *stream) takeFirst(n int) []backend.Delta { return s.release(s.safe(), n) }

// release returns what was not yet of the first n tokens, up to a length of the
// text.
func (s *stream) release(upTo, n int) (out []backend.Delta) {
	for all := s.tokens[:min(n, len(s.tokens))]; s.sentTokens < len(all); {
		// The next run of tokens of one origin that ends in the open.
		first := all[s.sentTokens]
		n, end := 0, 0
		for i, m := range all[s.sentTokens:] {
			if m.end > upTo || m.origin != first.origin && n > 0 {
				break
			}
			if m.clean {
				n, end = i+1, m.end
			}
		}
		if n == 0 {
			break
		}
		d := backend.Delta{Origin: first.origin}
		for _, m := range all[s.sentTokens:][:n] {
			d.Tokens = append(d.Tokens, m.token)
		}
		d.Text = s.sendText(end)
		s.sentTokens += n
		out = append(out, d)
	}
	return out
}

func (s *stream) sendText(upTo int) string {
	if upTo <= s.sentText {
		return ""
	}
	text := string(s.text[s.sentText:upTo])
	s.sentText = upTo
	return text
}

// ending is the final form of a generation.
type ending struct {
	text     string
	tokens   []backend.Token
	kept     int // of tokens, those that were generated so
	fragment bool
	deltas   []backend.Delta
}

// finish ends the text at length at, or where it is if at is negative, and
// returns the whole and the deltas not yet released. Tokens beyond the end are
// dropped. If the end is inside of a token, the text of it that remains is
// tokenised by encode, so that the ids stay those of the text. Half a character
// at the end is dropped.
func (s *stream) finish(at int, encode func(string) []backend.Token) ending {
	if at < 0 {
		at = len(s.text)
	}
	kept, end := 0, 0
	for i, m := range s.tokens {
		if m.end > at {
			break
		}
		if m.clean {
			kept, end = i+1, m.end
		}
	}
	var e ending
	// Tokens after the cut that belong to a character not released: gone.
	s.tokens = s.tokens[:kept]
	if at > end {
		origin := backend.Sampled
		for _, t := range encode(string(s.text[end:at])) {
			s.tokens = append(s.tokens, mark{t, origin, end, true})
		}
		s.tokens[len(s.tokens)-1].end = at
		for i := kept; i < len(s.tokens)-1; i++ {
			s.tokens[i].clean = false // released together
		}
		e.fragment = true
	}
	s.text = s.text[:at]
	e.text = string(s.text)
	e.kept = kept
	for _, m := range s.tokens {
		e.tokens = append(e.tokens, m.token)
	}
	e.deltas = s.release(at, len(s.tokens))
	return e
}
