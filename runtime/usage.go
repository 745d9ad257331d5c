package runtime

import (
	"cmp"
	"slices"

	"github.com/coppice-run/coppice/backend"
)

// Usage says what a run, or a branch of it, cost.
type Usage struct {
	PromptTokens   int `json:"prompt_tokens"`
	ComputedTokens int `json:"computed_tokens"`
	CachedTokens   int `json:"cached_tokens"`
	ForcedTokens   int `json:"forced_tokens"`
	SampledTokens  int `json:"sampled_tokens"`
	// ForwardPasses counts each pass of an engine once, however many requests
	// of the run were in its batch.
	ForwardPasses int `json:"forward_passes"`
	// Without is what the same requests cost with every prompt computed anew
	// and every token in a pass of its own. A select is a request for each of
	// its options there.
	Without backend.Cost `json:"without"`
}

// cost sums the usage of results.
type cost struct {
	sum   backend.Usage // without Passes
	spans spanSet
}

func (c *cost) add(u backend.Usage) {
	c.sum.PromptTokens += u.PromptTokens
	c.sum.CachedTokens += u.CachedTokens
	c.sum.ComputedTokens += u.ComputedTokens
	c.sum.ForcedTokens += u.ForcedTokens
	c.sum.SampledTokens += u.SampledTokens
	c.sum.Without.ComputedTokens += u.Without.ComputedTokens
	c.sum.Without.ForwardPasses += u.Without.ForwardPasses
	for _, s := range u.Passes {
		c.spans.add(s)
	}
}

// addBranch adds what b and the branches below it cost.
func (c *cost) addBranch(b *branch) {
	u := b.cost.sum
	u.Passes = b.cost.spans
	c.add(u)
	for _, f := range b.forks {
		for _, kid := range f.branches {
			c.addBranch(kid)
		}
	}
}

func (c *cost) usage() Usage {
	return Usage{
		PromptTokens:   c.sum.PromptTokens,
		ComputedTokens: c.sum.ComputedTokens,
		CachedTokens:   c.sum.CachedTokens,
		ForcedTokens:   c.sum.ForcedTokens,
		SampledTokens:  c.sum.SampledTokens,
		ForwardPasses:  c.spans.size(),
		Without:        c.sum.Without,
	}
}

// spanSet is a set of forward passes: spans sorted by engine and start, none of
// which touch.
type spanSet []backend.Span

func (s *spanSet) add(x backend.Span) {
	if x.To < x.From {
		return
	}
	// lo is the first span that ends at x's start or later, or touches it.
	lo, _ := slices.BinarySearchFunc(*s, x, func(a, x backend.Span) int {
		if c := cmp.Compare(a.Engine, x.Engine); c != 0 {
			return c
		}
		if a.To+1 < x.From && a.To+1 != 0 {
			return -1
		}
		return 1
	})
	hi := lo
	for hi < len(*s) && (*s)[hi].Engine == x.Engine && ((*s)[hi].From <= x.To || (*s)[hi].From == x.To+1) {
		x.From = min(x.From, (*s)[hi].From)
		x.To = max(x.To, (*s)[hi].To)
		hi++
	}
	*s = slices.Replace(*s, lo, hi, x)
}

// size returns the number of passes in the set.
func (s spanSet) size() int {
	n := 0
	for _, x := range s {
		n += int(x.To - x.From + 1)
	}
	return n
}
