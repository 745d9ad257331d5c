package engine

import (
	"fmt"
	"math"
	"slices"

	"github.com/coppice-run/coppice/backend"
)

// tokenRules are the rules of a request about single tokens. Under a constraint
// every token is then drawn, also those that are forced, so that each passes
// them.
type tokenRules struct {
	stop    []backend.Token // ascending
	hold    []backend.Token // those of stop that are no end tokens
	unnamed []backend.Token // end tokens that are not in stop
	allowed []uint64        // a bit a token; nil for all
	banned  [][]backend.Token
}

// newTokenRules returns nil if there are none. end are the model's end tokens.
func newTokenRules(r *backend.TokenRules, vocab int, end []backend.Token) *tokenRules {
	if len(r.Stop) == 0 && r.Allowed == nil && len(r.Banned) == 0 {
		return nil
	}
	t := &tokenRules{stop: slices.Sorted(slices.Values(r.Stop)), banned: r.Banned}
	for _, id := range t.stop {
		if !slices.Contains(end, id) {
			t.hold = append(t.hold, id)
		}
	}
	t.unnamed = slices.DeleteFunc(slices.Clone(end), t.stops)
	if r.Allowed != nil {
		t.allowed = make([]uint64, (vocab+63)/64)
		for _, id := range r.Allowed {
			t.allowed[id/64] |= 1 << (id % 64)
		}
	}
	return t
}

// checkTokenRules reports the first rule that makes no sense.
func checkTokenRules(r *backend.TokenRules, vocab int) error {
	check := func(what string, ids []backend.Token) error {
		for _, id := range ids {
			if id < 0 || int(id) >= vocab {
				return fmt.Errorf("%w: %s token %d, the vocabulary has %d", backend.ErrInvalid, what, id, vocab)
			}
		}
		return nil
	}
	if r.Allowed != nil && len(r.Allowed) == 0 {
		return fmt.Errorf("%w: no token is allowed", backend.ErrInvalid)
	}
	if err := check("stop", r.Stop); err != nil {
		return err
	}
	if err := check("allowed", r.Allowed); err != nil {
		return err
	}
	for _, ids := range r.Banned {
		if len(ids) == 0 {
			return fmt.Errorf("%w: a banned sequence is empty", backend.ErrInvalid)
		}
		if err := check("banned", ids); err != nil {
			return err
		}
	}
	return nil
}

// stops reports whether a token ends the generation. It is nil-safe.
func (t *tokenRules) stops(id backend.Token) bool {
	if t == nil {
		return false
	}
	_, ok := slices.BinarySearch(t.stop, id)
	return ok
}

// ignored are the end tokens that a request which ignores them hides: those that
// it does not name as stops itself. It is nil-safe.
func (t *tokenRules) ignored(end []backend.Token) []backend.Token {
	if t == nil {
		return end
	}
	return t.unnamed
}

// bans reports whether a banned sequence ends in id after output.
func bans(banned []backend.Token, output []backend.Token) (id backend.Token, ok bool) {
	last := len(banned) - 1
	return banned[last], len(output) >= last && slices.Equal(output[len(output)-last:], banned[:last])
}

// permits reports whether id may follow output as part of it. It is nil-safe.
func (t *tokenRules) permits(id backend.Token, output []backend.Token) bool {
	if t == nil {
		return true
	}
	if t.stops(id) || t.allowed != nil && t.allowed[id/64]&(1<<(id%64)) == 0 {
		return false
	}
	return !slices.ContainsFunc(t.banned, func(b []backend.Token) bool {
		last, ok := bans(b, output)
		return ok && last == id
	})
}

// apply takes what is forbidden after output out of logits, and out of mask,
// which is that of the constraint, or nil; with goOn the stop tokens too, but
// for end tokens, which are hidden then anyway. It returns the mask that holds
// now; spare is memory for one.
func (t *tokenRules) apply(logits []float32, mask, spare []uint64, output []backend.Token, goOn bool) []uint64 {
	forbid := func(id backend.Token) {
		if mask != nil {
			mask[id/64] &^= 1 << (id % 64)
		} else {
			logits[id] = float32(math.Inf(-1))
		}
	}
	if t.allowed != nil {
		if mask == nil {
			mask = append(spare[:0], t.allowed...)
		} else {
			for i := range mask {
				mask[i] &= t.allowed[i]
			}
		}
	}
	for _, b := range t.banned {
		if id, ok := bans(b, output); ok {
			forbid(id)
		}
	}
	if goOn {
		for _, id := range t.hold {
			forbid(id)
		}
	}
	return mask
}
