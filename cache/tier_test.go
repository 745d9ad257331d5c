package cache

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// heldPages is a tier for pages that are tokens.
type heldPages struct {
	pages, slots [][PageTokens]Token
	broken       bool
}

func (h *heldPages) Save(slot, page int32) error {
	if h.broken {
		return errBroken
	}
	h.slots[slot] = h.pages[page]
	return nil
}

func (h *heldPages) Load(page, slot int32) error {
	if h.broken {
		return errBroken
	}
	h.pages[page] = h.slots[slot]
	return nil
}

var errBroken = errors.New("broken")

// tiered is a cache with a tier whose pages hold what was put on them.
func tiered(pages, slots int) (*Cache, *heldPages) {
	c := New(pages)
	mem := &heldPages{pages: make([][PageTokens]Token, pages), slots: make([][PageTokens]Token, slots)}
	c.SetTier(mem, slots)
	return c, mem
}

// hold puts tokens, writes them to their pages, and claims them if there is an owner.
func hold(t *testing.T, c *Cache, mem *heldPages, tokens []Token, owner Owner, next int64) {
	t.Helper()
	h := c.Match(Namespace{}, tokens)
	own := h.Len() / PageTokens
	pages, ok := c.Alloc(h.Pages(nil, 0)[:own], pagesFor(len(tokens))-own)
	if !ok {
		t.Fatal("no pages")
	}
	for i := own * PageTokens; i < len(tokens); i++ {
		mem.pages[pages[i/PageTokens]][i%PageTokens] = tokens[i]
	}
	c.Extend(h, tokens[h.Len():], pages)
	c.Claim(h, owner, next)
	c.Release(pages[own:])
	c.Unpin(h)
	check(t, c)
}

// holds tells how many tokens of a prefix are in the pool, and that they are right.
func holds(t *testing.T, c *Cache, mem *heldPages, tokens []Token) int {
	t.Helper()
	h := c.Match(Namespace{}, tokens)
	defer c.Unpin(h)
	pages := h.Pages(nil, 0)
	for i := range h.Len() {
		if got := mem.pages[pages[i/PageTokens]][i%PageTokens]; got != tokens[i] {
			t.Fatalf("position %d holds %d, want %d", i, got, tokens[i])
		}
	}
	return h.Len()
}

// TestEvictedPagesComeBack: whole pages go to the tier, from the end, and come back
// behind what the pool still has.
func TestEvictedPagesComeBack(t *testing.T) {
	c, mem := tiered(6, 8)
	a := append(seq(0, 64), 7, 7, 7)
	hold(t, c, mem, a, Owner{}, 0)             // 5 pages
	hold(t, c, mem, seq(1000, 48), Owner{}, 0) // takes 2 of them: a part and [48,64)
	if got := holds(t, c, mem, a); got != 48 {
		t.Fatalf("%d tokens in the pool", got)
	}
	if s := c.TierStats(); s.Used != 1 || s.Saved != 1 {
		t.Errorf("%+v, want one page: what is no whole page is lost", s)
	}
	h := c.Match(Namespace{}, a)
	if more := c.Parked(h, a); more != 16 {
		t.Errorf("%d tokens can come back", more)
	}
	if got := c.Restore(h, a); got != 16 || h.Len() != 64 {
		t.Errorf("%d tokens came back, %d are pinned", got, h.Len())
	}
	c.Unpin(h)
	check(t, c)
	if got := holds(t, c, mem, a); got != 64 {
		t.Errorf("%d tokens in the pool", got)
	}
	if s := c.TierStats(); s.Loaded != 1 || s.Used != 1 || s.Saved != 2 {
		t.Errorf("%+v, want the end of the other prefix in the tier", s)
	}
}

// TestATierThatFails: what cannot be saved is evicted as without a tier, and what cannot
// be loaded is lost, with what was known of who will read it moved to what is left.
func TestATierThatFails(t *testing.T) {
	c, mem := tiered(6, 8)
	a, owner := seq(0, 64), Owner{"r", "a"}
	hold(t, c, mem, a, owner, 9)
	mem.broken = true
	hold(t, c, mem, seq(1000, 64), Owner{"r", "b"}, 3) // takes 2 pages of a
	if s := c.TierStats(); s.Used != 0 || s.Failed != 2 || s.Saved != 0 {
		t.Errorf("%+v after failures to save", s)
	}
	mem.broken = false
	hold(t, c, mem, seq(2000, 32), Owner{"r", "d"}, 1) // the rest of a, or the end of b
	mem.broken = true
	for _, p := range [][]Token{a, seq(1000, 64)} {
		h := c.Match(Namespace{}, p)
		had, parked := h.Len(), c.Parked(h, p)
		if n := c.Restore(h, p); n != 0 || h.Len() != had {
			t.Errorf("%d of %d tokens came back", n, parked)
		}
		c.Unpin(h)
		check(t, c)
		h = c.Match(Namespace{}, p)
		if n := c.Parked(h, p); n != 0 {
			t.Errorf("%d tokens are still offered", n)
		}
		c.Unpin(h)
	}
	if s := c.TierStats(); s.Loaded != 0 || s.Failed < 3 {
		t.Errorf("%+v", s)
	}
	if n := c.Fetch(1000, 8); n != 0 {
		t.Errorf("%d pages came back from a broken tier", n)
	}
	check(t, c)
	mem.broken = false
	hold(t, c, mem, a, owner, 9) // it goes on when the tier does
	if got := holds(t, c, mem, a); got != 64 {
		t.Errorf("%d tokens in the pool", got)
	}
}

// TestWhatNobodyReadsIsNotKept: what no node of a program reads again takes no slot.
func TestWhatNobodyReadsIsNotKept(t *testing.T) {
	c, mem := tiered(2, 2)
	hold(t, c, mem, seq(0, 32), Owner{}, 0)
	h := c.Match(Namespace{}, seq(0, 32))
	c.Dead(h, 0)
	c.Unpin(h)
	c.Alloc(nil, 2)
	if s := c.TierStats(); s.Saved != 0 {
		t.Errorf("%+v", s)
	}
	check(t, c)
}

// TestTheTierKeepsWhatIsReadSooner: it has an order of its own, and gives nothing away
// for what is worth less.
func TestTheTierKeepsWhatIsReadSooner(t *testing.T) {
	c, mem := tiered(1, 2)
	for i, next := range []int64{50, 20, 0, 30, 90} { // 0: nobody claims it
		owner := Owner{"r", string(rune('a' + i))}
		if next == 0 {
			owner = Owner{}
		}
		hold(t, c, mem, seq(1000*i, 16), owner, next) // evicts the one before
	}
	c.Alloc(nil, 1)
	check(t, c)
	var kept []int
	for i := range 5 {
		h := c.Match(Namespace{}, seq(1000*i, 16))
		if c.Parked(h, seq(1000*i, 16)) == 16 {
			kept = append(kept, i)
		}
		c.Unpin(h)
	}
	if !slices.Equal(kept, []int{1, 3}) {
		t.Errorf("kept %v, want what is read at 20 and at 30", kept)
	}
}

// TestFetchBeforeUse: what is read soon comes back before it is asked for, the soonest
// first, and only in the place of what is read later.
func TestFetchBeforeUse(t *testing.T) {
	c, mem := tiered(4, 8)
	of := func(b string) Owner { return Owner{"r", b} }
	a, b, d, e := seq(0, 32), seq(1000, 32), seq(2000, 32), seq(3000, 32)
	hold(t, c, mem, a, of("a"), 300)
	hold(t, c, mem, b, of("b"), 200)
	hold(t, c, mem, d, of("d"), 100) // a goes
	hold(t, c, mem, e, of("e"), 50)  // b goes
	in := func() (n []int) {
		for _, p := range [][]Token{a, b, d, e} {
			n = append(n, c.Peek(Namespace{}, p))
		}
		return n
	}
	want := func(what string, n ...int) {
		t.Helper()
		check(t, c)
		if !slices.Equal(in(), n) {
			t.Errorf("%s: %v tokens in the pool, want %v", what, in(), n)
		}
	}
	want("at first", 0, 0, 32, 32)
	if n := c.Fetch(1000, 8); n != 0 {
		t.Errorf("%d pages in the place of what is read sooner", n)
	}
	if !c.Expect(of("a"), 40) || !c.Expect(of("b"), 10) {
		t.Error("what is parked is not known")
	}
	if n := c.Fetch(5, 8); n != 0 {
		t.Errorf("%d pages by time 5, at which nobody is back", n)
	}
	if next, ok := c.NextFetch(5); !ok || next != 10 {
		t.Errorf("the next one at %d, %v", next, ok)
	}
	if n := c.Fetch(99, 1); n != 1 {
		t.Errorf("%d pages, one was allowed", n)
	}
	want("one page", 0, 16, 16, 32)
	if n := c.Fetch(99, 8); n != 3 { // the rest of b and a, in the place of d and e
		t.Errorf("%d pages", n)
	}
	want("with time", 32, 32, 0, 0)
	for _, p := range [][]Token{a, b} {
		holds(t, c, mem, p)
	}
	c.Forget("r")
	if n := c.Fetch(1000, 8); n != 0 {
		t.Errorf("%d pages for a run that has ended", n)
	}
	check(t, c)
	c.Flush()
	if s := c.TierStats(); s.Used != 0 {
		t.Errorf("%+v after Flush", s)
	}
	check(t, c)
}

// TestClaimsComeBackWhileRunsArePushedOut: what lies in the tier may be claimed by more
// runs than are remembered.
func TestClaimsComeBackWhileRunsArePushedOut(t *testing.T) {
	c, mem := tiered(2, 2)
	a, b := seq(0, 16), seq(1000, 16)
	hold(t, c, mem, a, Owner{"new", ""}, 90)
	hold(t, c, mem, a, Owner{"old", "x"}, 80)
	pages, _ := c.Alloc(nil, 2) // a goes, with both its claims
	c.Release(pages)
	hold(t, c, mem, b, Owner{"old", "y"}, 10)
	h := c.Match(Namespace{}, b)
	for i := range maxRuns - 1 {
		c.Claim(h, Owner{fmt.Sprint(i), ""}, 20)
	}
	c.Unpin(h)
	check(t, c)
	h = c.Match(Namespace{}, a)
	if got := c.Restore(h, a); got != 16 {
		t.Errorf("%d tokens came back", got)
	}
	c.Unpin(h)
	check(t, c)
}

// TestEvictingBehindALongPrefix: what an eviction costs does not grow with what is before
// its page, but for the first below a prefix.
func TestEvictingBehindALongPrefix(t *testing.T) {
	const trunk, branches, pages = 500, 40, 3
	c, mem := tiered(trunk+branches*pages, 2*branches*pages)
	prefix := seq(0, trunk*PageTokens-5) // the branches share its last page
	for i := range branches {
		hold(t, c, mem, append(slices.Clone(prefix), seq(100_000*(i+1), pages*PageTokens-11)...), Owner{}, 0)
	}
	h := c.Match(Namespace{}, prefix)
	c.tier.passed = 0
	for range branches * (pages - 1) {
		got, ok := c.Alloc(nil, 1)
		if !ok {
			t.Fatal("no page")
		}
		c.Release(got)
		check(t, c)
		if got, ok = c.Alloc(nil, c.pool.free.n+1); !ok { // all that are free and one more
			t.Fatal("no page")
		}
		c.Release(got)
	}
	c.Unpin(h)
	check(t, c)
	saved := int(c.TierStats().Saved)
	if saved < branches {
		t.Fatalf("%d pages were saved", saved)
	}
	if most := trunk + 4*branches*pages; c.tier.passed > most {
		t.Errorf("saving %d pages behind %d went by %d, want at most %d", saved, trunk, c.tier.passed, most)
	}
	for i := range branches { // the way back is the same
		tokens := append(slices.Clone(prefix), seq(100_000*(i+1), pages*PageTokens-11)...)
		h := c.Match(Namespace{}, tokens)
		c.Restore(h, tokens)
		c.Unpin(h)
		check(t, c)
		holds(t, c, mem, tokens)
	}
	if c.TierStats().Loaded == 0 {
		t.Error("nothing came back")
	}
}

// TestWhatFollowsAShortenedPrefix: a prefix that lost its end to the tier goes on with
// other tokens, and each end comes back as what it is.
func TestWhatFollowsAShortenedPrefix(t *testing.T) {
	c, mem := tiered(6, 32)
	first, second := seq(0, 96), append(seq(0, 48), seq(5000, 48)...)
	hold(t, c, mem, first, Owner{}, 0)
	for i, tokens := range [][]Token{seq(1000, 48), second, seq(2000, 96), first, second} {
		h := c.Match(Namespace{}, tokens)
		c.Restore(h, tokens)
		if i > 2 && h.Len() != len(tokens) {
			t.Errorf("%d of %d tokens came back", h.Len(), len(tokens))
		}
		c.Unpin(h)
		check(t, c)
		holds(t, c, mem, tokens)
		hold(t, c, mem, tokens, Owner{}, 0)
	}
}

// TestAParkedEndGoesOn: what lies in the tier already and is in the pool again leads to
// what is evicted behind it, and is not dropped before that.
func TestAParkedEndGoesOn(t *testing.T) {
	c, mem := tiered(4, 16)
	hold(t, c, mem, seq(0, 32), Owner{}, 0)
	hold(t, c, mem, seq(1000, 64), Owner{}, 0) // both pages are parked
	hold(t, c, mem, seq(0, 48), Owner{}, 0)    // computed again, and more
	hold(t, c, mem, seq(2000, 32), Owner{}, 0) // the third page follows them into the tier, they stay
	hold(t, c, mem, seq(3000, 64), Owner{}, 0)
	h := c.Match(Namespace{}, seq(0, 48))
	if c.Restore(h, seq(0, 48)); h.Len() != 48 {
		t.Errorf("%d tokens came back, want 48", h.Len())
	}
	c.Unpin(h)
	check(t, c)
}
