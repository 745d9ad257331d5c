package engine

import (
	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
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
// ones did: twice as many after all were right, half as many after a wrong one, and
// never more than are worth what they cost.
type drafts struct {
	n       int    // at the end of the sequence
	spelled int    // the first of them that the constraint spells
	width   int    // how many to make, 0 before the first
	void    uint64 // pass whose logits from a position on are of no use
	from    int    // that position

	cost  float64 // of a token in a pass, as a share of a pass of one
	odds  odds    // of guesses that nothing spells
	quiet int     // passes without one, while none is worth it
	wait  int     // that many of them until one is tried; 0 while they are worth it
}

// odds is how often guesses were right of late, each given that those before it in
// its pass were.
type odds struct{ tried, right float64 }

const (
	oddsTried, oddsRight = 1, 0.75 // what is believed at first counts as so many
	oddsFade             = 1.0 / 32
)

func (o *odds) add(right bool) {
	o.tried -= o.tried * oddsFade
	o.right -= o.right * oddsFade
	if o.tried++; right {
		o.right++
	}
}

// worth is how many guesses in a row pay: a right one saves a pass, and the n-th is
// right only if all of them are. It is most at most.
func (o *odds) worth(cost float64, most int) int {
	if cost <= 0 {
		return most
	}
	rate, n := (o.right+oddsRight)/(o.tried+oddsTried), 0
	for p := rate; n < most && p >= cost; p *= rate {
		n++
	}
	return n
}

// worth is how many guesses to make that nothing spells. Where none pays one is made
// now and then, in case the text has changed; the more seldom, the more were wrong.
func (d *drafts) worth() int {
	if n := d.odds.worth(d.cost, d.width); n > 0 {
		d.quiet, d.wait = 0, 0
		return n
	}
	d.wait = max(d.wait, draftWait)
	if d.quiet++; d.quiet < d.wait {
		return 0
	}
	return 1
}

const (
	draftMatch = 3 // tokens that must be the same
	draftSeqs  = 4 // with more sequences running, passes are full enough
	draftStart = 4 // guesses at first

	draftWait     = 32 // passes without a guess, after which one is tried
	draftWaitMost = 1024
)

// drop takes the guesses off the sequence. If some are computed already, that
// is undone, and what the pass says behind them is void.
func (d *drafts) drop(s *sequence, pass uint64) {
	if d.n == 0 {
		return
	}
	s.tokens = s.tokens[:len(s.tokens)-d.n]
	d.n, d.spelled = 0, 0
	if s.computed > len(s.tokens) {
		s.computed = len(s.tokens)
		d.void, d.from = pass, s.computed
	}
}

// confirm compares a drawn token with the first guess. If that was right it is
// no guess any more.
func (d *drafts) confirm(s *sequence, t backend.Token, pass uint64) bool {
	if d.n == 0 {
		return false
	}
	right := s.tokens[len(s.tokens)-d.n] == t
	if d.spelled > 0 { // that says nothing about the other guesses
		if d.spelled--; !right {
			d.drop(s, pass)
			return false
		}
		d.n--
		return true
	}
	d.odds.add(right)
	if d.quiet = 0; right {
		d.quiet = d.wait // the next one at once
	} else {
		d.wait = min(2*d.wait, draftWaitMost)
	}
	if !right {
		d.width = max(1, d.width/2)
		d.drop(s, pass)
		return false
	}
	if d.n--; d.n == 0 {
		d.width *= 2
	}
	return true
}

// certain takes in a token that the constraint forces: a guess that it proves right
// stays, as does what was guessed behind it.
func (d *drafts) certain(s *sequence, t backend.Token, pass uint64) {
	if d.n > 0 && s.tokens[len(s.tokens)-d.n] == t {
		d.n--
		d.spelled = max(d.spelled-1, 0)
		return
	}
	d.drop(s, pass)
	s.tokens = append(s.tokens, t)
}

// propose appends guesses: most at most, and no more than limit, for which there
// is room. With a state of a constraint they are what it allows, and what it
// spells is guessed too: forced text that only the model can cut into tokens, and
// what an earlier guess forces.
func (d *drafts) propose(s *sequence, state *grammar.State, most, limit int) {
	if d.width == 0 {
		d.width = draftStart
	}
	d.width = min(d.width, most)
	if d.n > 0 || limit <= 0 {
		return
	}
	left := d.worth() // for what followed the same tokens
	limit = min(limit, left+most)
	begin := len(s.tokens)
	at := -1 // where the tokens at the end stood before, behind them
	push := func(t backend.Token) bool {
		if at >= 0 && at < begin && s.tokens[at] == t {
			at++
		} else {
			at = -1
		}
		s.tokens = append(s.tokens, t)
		d.n++
		return d.n < limit
	}
	d.spelled = 0
	copied := false // a guess is no longer only what the constraint spells
	for d.n < limit {
		if state != nil {
			spelled, next := state.Jump()
			if len(spelled) == 0 {
				if spelled = state.Likely(); len(spelled) > 0 {
					next = *state
					for _, t := range spelled {
						var err error
						if next, err = next.Accept(t); err != nil {
							return
						}
					}
				}
			}
			if len(spelled) > 0 {
				state = &next
				for _, t := range spelled {
					if !push(t) {
						break
					}
				}
				if !copied {
					d.spelled = d.n
				}
				continue
			}
			if state.Done() {
				return
			}
		}
		if left--; left < 0 {
			return
		}
		if at < 0 || at >= begin {
			if at = d.before(s); at < 0 || at >= begin {
				return
			}
		}
		t := s.tokens[at]
		if state != nil {
			next, err := state.Accept(t)
			if err != nil {
				return
			}
			state = &next
		}
		copied = true
		push(t)
	}
}

// before is the place behind the last one where the draftMatch tokens at the end
// of s stood before. Where they never did, fewer of them will do, if the same
// followed the last few times that these stood there: the fewer, the more often. It
// is -1 where there is none.
func (d *drafts) before(s *sequence) int {
	n := len(s.tokens)
	if n < draftMatch+1 {
		return -1
	}
	last := s.tokens[n-draftMatch:]
	var at [draftMatch]int    // [k]: the last place with k+1 tokens the same
	var times [draftMatch]int // how often the same followed, -1: something else did
	for i := n - 1; i >= draftMatch; i-- {
		same := 0
		for same < draftMatch && s.tokens[i-1-same] == last[draftMatch-1-same] {
			same++
		}
		if same == draftMatch {
			return i
		}
		for k := range same {
			switch {
			case times[k] == 0:
				at[k], times[k] = i, 1
			case times[k] > 0 && times[k] <= draftMatch-1-k:
				if times[k]++; s.tokens[i] != s.tokens[at[k]] {
					times[k] = -1
				}
			}
		}
	}
	for k := draftMatch - 2; k >= 0; k-- {
		if times[k] > draftMatch-1-k {
			return at[k]
		}
	}
	return -1
}
