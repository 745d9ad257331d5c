package engine

import (
	"slices"

	"github.com/coppice-run/coppice/backend"
)

// drafts are tokens at the end of a generation's sequence that were guessed,
// not drawn: what followed the last time that the same few tokens stood there.
// They go through the pass with the token before them, which then gives the
// logits of all their places:
//
//	tokens   ... drawn | guess guess guess
//	logits         v       v     v     v
//	draws        guess   guess  other   -     two guesses were right: three
//	                                          tokens by one pass
//
// A draw decides as it would without guesses, so the output is the same; what
// was computed after a wrong one is void. How many are made goes by how the last
// ones did: twice as many after all were right, half as many after a wrong one.
type drafts struct {
	n       int    // at the end of the sequence
	width   int    // how many to make, 0 before the first
	void    uint64 // pass whose further logits are of no use
	tried   int
	guessed int // of those tried, the right ones
}

const (
	draftMatch = 3 // tokens that must be the same
	draftSeqs  = 4 // with more sequences running, passes are full enough
	draftStart = 4 // guesses at first
)

// drop takes the guesses off the sequence. If some are computed already, that
// is undone, and the rest of the pass is void.
func (d *drafts) drop(s *sequence, pass uint64) {
	if d.n == 0 {
		return
	}
	s.tokens = s.tokens[:len(s.tokens)-d.n]
	d.n = 0
	if s.computed > len(s.tokens) {
		s.computed = len(s.tokens)
		d.void = pass
	}
}

// confirm compares a drawn token with the first guess. If that was right it is
// no guess any more.
func (d *drafts) confirm(s *sequence, t backend.Token, pass uint64) bool {
	if d.n == 0 {
		return false
	}
	d.tried++
	if s.tokens[len(s.tokens)-d.n] != t {
		d.width = max(1, d.width/2)
		d.drop(s, pass)
		return false
	}
	d.guessed++
	if d.n--; d.n == 0 {
		d.width *= 2
	}
	return true
}

// propose appends guesses: most at most, and no more than limit, for which there
// is room.
func (d *drafts) propose(s *sequence, most, limit int) {
	if d.width == 0 {
		d.width = draftStart
	}
	d.width = min(d.width, most)
	limit = min(limit, d.width)
	n := len(s.tokens)
	if d.n > 0 || limit <= 0 || n < draftMatch+1 || d.tried >= 16 && d.guessed*3 < d.tried {
		return
	}
	last := s.tokens[n-draftMatch:]
	for at := n - 1; at >= draftMatch; at-- {
		if s.tokens[at-1] == last[draftMatch-1] && slices.Equal(s.tokens[at-draftMatch:at], last) {
			guess := s.tokens[at:min(n, at+limit)]
			s.tokens = append(s.tokens, guess...)
			d.n = len(guess)
			return
		}
	}
}
