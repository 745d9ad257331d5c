package cache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func seq(from, n int) []Token {
	t := make([]Token, n)
	for i := range t {
		t[i] = Token(from + i)
	}
	return t
}

// put inserts tokens as a sequence of its own would, with pages from Alloc,
// and leaves nothing pinned.
func put(t testing.TB, c *Cache, ns Namespace, tokens []Token) {
	t.Helper()
	h := c.Match(ns, tokens)
	pages := h.Pages(nil, 0)
	own := h.Len() / PageTokens
	pages, ok := c.Alloc(pages[:own], pagesFor(len(tokens))-own)
	if !ok {
		t.Fatal("no pages")
	}
	c.Extend(h, tokens[h.Len():], pages)
	c.Release(pages[own:])
	c.Unpin(h)
	check(t, c)
}

func check(t testing.TB, c *Cache, stale ...*Handle) {
	t.Helper()
	if err := c.Check(stale...); err != nil {
		t.Fatalf("%v\n%v", err, c)
	}
}

func TestMatchIsExactToTheToken(t *testing.T) {
	ns := Namespace{Model: "m"}
	for _, n := range []int{1, 15, 16, 17, 31, 32, 33, 100} {
		for _, m := range []int{0, 1, 15, 16, 17, n - 1, n} {
			if m > n {
				continue
			}
			c := New(32)
			put(t, c, ns, seq(0, n))
			ask := append(seq(0, m), 9999)
			h := c.Match(ns, ask)
			if h.Len() != m {
				t.Fatalf("stored %d, asked %d: matched %d", n, m, h.Len())
			}
			if got := len(h.Pages(nil, 0)); got != pagesFor(m) {
				t.Fatalf("matched %d tokens on %d pages", m, got)
			}
			check(t, c)
			c.Unpin(h)
			c.Unpin(h)
			check(t, c)
		}
	}
}

func TestPartlySharedPageIsTheDeepestNodes(t *testing.T) {
	ns := Namespace{}
	c := New(8)
	put(t, c, ns, seq(0, 20)) // pages 0 and 1
	b := append(seq(0, 20), seq(100, 20)...)
	put(t, c, ns, b) // shares page 0, its own copy of page 1
	h := c.Match(ns, b)
	if got, want := h.Pages(nil, 0), []int32{0, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("pages %v, want %v", got, want)
	}
	if got, want := h.Pages([]int32{77}, 1), []int32{77, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("pages from 1: %v, want %v", got, want)
	}
	if s := c.Stats(); s.Held != 4 || s.Evictable != 0 {
		t.Errorf("%+v: page 1 is pinned with its node", s)
	}
}

// TestClaimsOutliveTheirEnd: of a claimed prefix that loses its end to who needs pages at
// once, the rest is claimed, so that what nobody will read goes before it.
func TestClaimsOutliveTheirEnd(t *testing.T) {
	ns, owner := Namespace{}, Owner{"r", "a"}
	c := New(6)
	put(t, c, ns, seq(0, 32))
	h := c.Match(ns, seq(0, 32))
	pages, _ := c.Alloc(h.Pages(nil, 0), 2)
	c.Extend(h, seq(32, 32), pages)
	c.Claim(h, owner, 5)
	c.Release(pages[2:])
	c.Unpin(h)
	put(t, c, ns, seq(1000, 32)) // nobody claims it
	other := c.Match(ns, seq(1000, 32))
	take := func() {
		t.Helper()
		got, ok := c.Alloc(nil, 2)
		if !ok {
			t.Fatal("no pages")
		}
		c.Release(got)
		check(t, c)
	}
	take() // the end of what is claimed: all else is pinned or before it
	if n := c.Peek(ns, seq(0, 64)); n != 32 {
		t.Fatalf("%d tokens of the claimed prefix are left, want 32", n)
	}
	c.Unpin(other)
	if got, ok := c.Alloc(nil, 4); !ok { // two are free, two are the other's
		t.Fatal("no pages")
	} else {
		c.Release(got)
	}
	if a, b := c.Peek(ns, seq(0, 64)), c.Peek(ns, seq(1000, 32)); a != 32 || b != 0 {
		t.Errorf("%d tokens of the claimed prefix and %d of the other are left", a, b)
	}
	if !c.Expect(owner, 9) {
		t.Error("nothing is known of the owner")
	}
}

// TestWhatOthersShareIsNotDead: a branch that ends does not take the trunk with it.
func TestWhatOthersShareIsNotDead(t *testing.T) {
	ns := Namespace{}
	c := New(8)
	a, b := append(seq(0, 32), seq(100, 16)...), append(seq(0, 32), seq(200, 16)...)
	put(t, c, ns, a)
	put(t, c, ns, b)
	put(t, c, ns, seq(1000, 64)) // all is full, this is used last
	h := c.Match(ns, a)
	c.Dead(h, 0)
	c.Unpin(h)
	for i, want := range [][3]int{{32, 48, 64}, {32, 32, 64}} { // the branch; then by last use
		got, ok := c.Alloc(nil, i+1)
		if !ok {
			t.Fatal("no page")
		}
		c.Release(got)
		check(t, c)
		if have := [3]int{c.Peek(ns, a), c.Peek(ns, b), c.Peek(ns, seq(1000, 64))}; have != want {
			t.Errorf("step %d: %v tokens are left, want %v", i, have, want)
		}
	}
	if n := c.Peek(ns, b); n != 32 {
		t.Fatal(n)
	}
	for _, n := range c.roots[ns].kids {
		if n.dead {
			t.Errorf("node at %d is dead, and %d branches begin with it", n.start, len(n.kids))
		}
	}
}

func TestNamespacesShareNothing(t *testing.T) {
	spaces := []Namespace{
		{Model: "m"}, {Model: "m", Adapter: "x"}, {Model: "m", Salt: "x"}, {Model: "mx"},
		{Model: "m", Adapter: "a", Salt: "bc"}, {Model: "m", Adapter: "ab", Salt: "c"},
	}
	c := New(64)
	keys := map[BlockKey]Namespace{}
	for i, ns := range spaces {
		for _, other := range spaces[i:] {
			if got := c.Peek(other, seq(0, 40)); got != 0 {
				t.Errorf("%v finds %d tokens of another namespace", other, got)
			}
		}
		put(t, c, ns, seq(0, 40))
		for _, k := range BlockKeys(ns, seq(0, 40)) {
			if was, ok := keys[k]; ok {
				t.Errorf("%v and %v have a block key in common", was, ns)
			}
			keys[k] = ns
		}
	}
}

func TestBlockKeysChain(t *testing.T) {
	a := BlockKeys(Namespace{}, seq(0, 64))
	changed := seq(0, 64)
	changed[20]++
	b := BlockKeys(Namespace{}, changed)
	if len(a) != 4 || a[0] != b[0] || a[1] == b[1] || a[2] == b[2] || a[3] == b[3] {
		t.Errorf("keys %x and %x", a, b)
	}
	if got := BlockKeys(Namespace{}, seq(0, 47)); !slices.Equal(got, a[:2]) {
		t.Errorf("47 tokens: %x", got)
	}
}

func TestEvictionOrder(t *testing.T) {
	c := New(5)
	var ns Namespace
	for i := range 5 {
		put(t, c, ns, seq(1000*i, 16))
	}
	note := func(i int, do func(h *Handle)) {
		h := c.Match(ns, seq(1000*i, 16))
		do(h)
		c.Unpin(h)
	}
	note(0, func(h *Handle) { c.Claim(h, Owner{"run", "a"}, 1) })
	note(1, func(h *Handle) { c.Claim(h, Owner{"run", "b"}, 7) })
	note(2, func(*Handle) {})
	note(4, func(h *Handle) { c.Dead(h, 0) })
	note(3, func(*Handle) {})
	check(t, c)
	// Dead first, then the longest unused, then the claim farthest off.
	for _, want := range []int{4, 2, 3, 1, 0} {
		pages, ok := c.Alloc(nil, 1)
		if !ok {
			t.Fatal("no page")
		}
		if got := c.Peek(ns, seq(1000*want, 16)); got != 0 {
			t.Fatalf("%d is still there\n%v", want, c)
		}
		check(t, c)
		_ = pages
	}
	if _, ok := c.Alloc(nil, 1); ok {
		t.Error("a sixth page of five")
	}
}

func TestForgottenRunIsOrdinary(t *testing.T) {
	c := New(2)
	var ns Namespace
	put(t, c, ns, seq(0, 16))
	put(t, c, ns, seq(100, 16))
	h := c.Match(ns, seq(0, 16))
	c.Claim(h, Owner{Run: "run"}, 0)
	c.Unpin(h)
	c.Unpin(c.Match(ns, seq(100, 16)))
	c.Forget("run")
	c.Forget("run")
	c.Alloc(nil, 1)
	if c.Peek(ns, seq(0, 16)) != 0 || c.Peek(ns, seq(100, 16)) != 16 {
		t.Error("the older prefix should have gone")
	}
	check(t, c)
}

func TestEvictionCutsLongLeaf(t *testing.T) {
	c := New(4)
	var ns Namespace
	put(t, c, ns, seq(0, 60))
	if _, ok := c.Alloc(nil, 1); !ok {
		t.Fatal("no page")
	}
	if got := c.Peek(ns, seq(0, 60)); got != 48 {
		t.Errorf("%d tokens left, want 48", got)
	}
	check(t, c)
}

func TestClaimOfEvictedPrefixMovesUp(t *testing.T) {
	c := New(4)
	var ns Namespace
	put(t, c, ns, seq(0, 16))
	put(t, c, ns, append(seq(0, 16), seq(50, 16)...))
	put(t, c, ns, seq(100, 32))
	h := c.Match(ns, append(seq(0, 16), seq(50, 16)...))
	c.Claim(h, Owner{Run: "run"}, 0)
	c.Unpin(h)
	c.Alloc(nil, 3) // both pages of 100.., then the claimed leaf
	if c.Peek(ns, seq(0, 16)) != 16 {
		t.Error("the claimed prefix's parent went too")
	}
	check(t, c)
}

func TestFlushWhilePinned(t *testing.T) {
	c := New(16)
	var ns Namespace
	put(t, c, ns, seq(0, 40))
	put(t, c, ns, append(seq(0, 20), seq(100, 20)...))
	h := c.Match(ns, seq(0, 40))
	c.Flush()
	check(t, c, h)
	if c.Peek(ns, seq(0, 40)) != 0 {
		t.Error("found after Flush")
	}
	if s := c.Stats(); s.Held != 3 || s.Evictable != 0 || s.Free != 13 {
		t.Errorf("%+v, want the path of the handle held and the rest free", s)
	}
	// The holder goes on, and what it adds is as stale as the rest.
	pages := h.Pages(nil, 0)
	pages, _ = c.Alloc(pages, 1)
	c.Extend(h, seq(500, 20), pages[:4])
	check(t, c, h)
	putFast(t, c, seq(0, 40)) // a new tree beside it
	check(t, c, h)
	c.Flush()
	check(t, c, h)
	c.Release(pages[3:])
	c.Unpin(h)
	check(t, c)
	if s := c.Stats(); s.Free != 16 || s.Nodes != 0 {
		t.Errorf("%+v after the last handle, want all free", s)
	}
}

// TestRandomOperations compares the cache with a map of token prefixes and
// checks every count after every operation. The pages hold "data": what was
// written to each slot, so that a prefix found on a page that has something
// else is noticed.
func TestRandomOperations(t *testing.T) {
	tails := 0
	var loaded, fetched uint64
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			n, tier := randomOperations(t, rand.New(rand.NewPCG(seed, 1)), 1500)
			tails, loaded, fetched = tails+n, loaded+tier.Loaded, fetched+tier.Fetched
		})
	}
	if tails == 0 {
		t.Error("nobody ever went on in a page of the tree")
	}
	if loaded == 0 || fetched == 0 {
		t.Errorf("%d pages came back from the tier when asked for, %d before", loaded, fetched)
	}
}

func FuzzOperations(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { randomOperations(t, rand.New(rand.NewPCG(a, b)), 200) })
}

// user is what an engine's sequence does with a cache.
type user struct {
	h      *Handle
	ns     Namespace
	tokens []Token
	pages  []int32
	owned  int // pages[owned:] are its own
	stale  bool
}

// randomOperations returns how many users went on in a page of the tree, and what the
// tier did if there was one.
func randomOperations(t *testing.T, r *rand.Rand, ops int) (tails int, tier TierStats) {
	numPages := 4 + r.IntN(40)
	c := New(numPages)
	data := make([][PageTokens]Token, numPages)
	tiered := numPages%2 == 1
	if tiered {
		c.SetTier(&heldPages{pages: data, slots: make([][PageTokens]Token, numPages/2)}, numPages/2)
	}
	spaces := []Namespace{{}, {Salt: "s"}}
	known := map[Namespace]map[string]bool{{}: {}, {Salt: "s"}: {}} // prefixes ever put, since the last flush
	var users []*user
	var asked [][]Token

	write := func(u *user, from int) {
		for i := from; i < len(u.tokens); i++ {
			data[u.pages[i/PageTokens]][i%PageTokens] = u.tokens[i]
		}
	}
	verify := func(tokens []Token, pages []int32) {
		t.Helper()
		for i, tok := range tokens {
			if got := data[pages[i/PageTokens]][i%PageTokens]; got != tok {
				t.Fatalf("position %d of a prefix holds token %d, want %d", i, got, tok)
			}
		}
	}
	stale := func() (hs []*Handle) {
		for _, u := range users {
			if u.stale {
				hs = append(hs, u.h)
			}
		}
		return hs
	}
	finish := func(i int) {
		u := users[i]
		c.Release(u.pages[u.owned:])
		c.Unpin(u.h)
		users = slices.Delete(users, i, i+1)
	}
	// grow makes room for n tokens; it reports false if there are no pages.
	grow := func(u *user, n int) bool {
		need := pagesFor(n) - len(u.pages)
		if need <= 0 {
			return true
		}
		pages, ok := c.Alloc(u.pages, need)
		u.pages = pages
		return ok
	}
	for range ops {
		switch op := r.IntN(10); {
		case op < 4: // a new user with a random prompt, over few symbols so that prompts share
			n := 1 + r.IntN(60)
			tokens := make([]Token, n)
			for i := range tokens {
				tokens[i] = Token(r.IntN(2)) * Token(r.IntN(2))
			}
			if tiered && len(asked) > 0 && r.IntN(2) == 0 { // so long a prefix is not met by chance
				old := asked[r.IntN(len(asked))]
				tokens = append(slices.Clone(old), tokens[:min(3, n)]...)
				n = len(tokens)
			}
			asked = append(asked, tokens[:n:n])
			ns := spaces[r.IntN(2)]
			want := c.Peek(ns, tokens)
			h := c.Match(ns, tokens)
			if h.Len() != want {
				t.Fatalf("Match %d, Peek %d", h.Len(), want)
			}
			if tiered && r.IntN(2) == 0 {
				most := c.Parked(h, tokens)
				got := c.Restore(h, tokens)
				if want += got; got > most || h.Len() != want {
					t.Fatalf("%d tokens came back of %d, the prefix has %d", got, most, h.Len())
				}
			}
			if want > 0 && !known[ns][asKey(tokens[:want])] {
				t.Fatalf("matched %v, which nobody put", tokens[:want])
			}
			u := &user{h: h, ns: ns, tokens: tokens, pages: h.Pages(nil, 0), owned: h.Len() / PageTokens}
			verify(tokens[:want], u.pages)
			users = append(users, u)
			// A partly shared page is its own, or its own copy of it.
			if r.IntN(2) == 0 && c.TakeTail(h) {
				tails++
			} else if h.Len()%PageTokens != 0 {
				src := u.pages[len(u.pages)-1]
				u.pages = u.pages[:len(u.pages)-1]
				if !grow(u, u.owned*PageTokens+1) {
					finish(len(users) - 1)
					break
				}
				copy(data[u.pages[u.owned]][:h.Len()%PageTokens], data[src][:])
			}
			if !grow(u, n) {
				finish(len(users) - 1)
				break
			}
			write(u, h.Len())
		case op < 6 && len(users) > 0: // put what it has
			u := users[r.IntN(len(users))]
			upTo := u.h.Len() + r.IntN(len(u.tokens)-u.h.Len()+1)
			c.Extend(u.h, u.tokens[u.h.Len():upTo], u.pages)
			if !u.stale {
				for i := 1; i <= upTo; i++ {
					known[u.ns][asKey(u.tokens[:i])] = true
				}
			}
			have := u.h.Pages(nil, 0)
			verify(u.tokens[:upTo], have)
			for i := u.owned; i < upTo/PageTokens; i++ {
				c.Release(u.pages[i : i+1])
				u.pages[i] = have[i]
			}
			u.owned = max(u.owned, upTo/PageTokens)
		case op < 7 && len(users) > 0: // write more
			u := users[r.IntN(len(users))]
			from := len(u.tokens)
			if grow(u, from+5) {
				for range 5 {
					u.tokens = append(u.tokens, Token(r.IntN(2)))
				}
				write(u, from)
			}
		case op < 9 && len(users) > 0:
			i := r.IntN(len(users))
			owner := Owner{fmt.Sprint("run", r.IntN(3)), fmt.Sprint(r.IntN(3))}
			switch r.IntN(6) {
			case 4:
				c.Expect(owner, r.Int64N(5))
			case 5:
				c.Unclaim(owner)
			case 0:
				c.Claim(users[i].h, owner, r.Int64N(5))
			case 1:
				c.Dead(users[i].h, r.IntN(40))
			case 2:
				c.Forget(fmt.Sprint("run", r.IntN(3)))
			}
			finish(i)
		default:
			if tiered {
				c.Fetch(r.Int64N(5), 1+r.IntN(3))
			}
			if r.IntN(8) == 0 {
				c.Flush()
				known = map[Namespace]map[string]bool{{}: {}, {Salt: "s"}: {}}
				for _, u := range users {
					u.stale = true
				}
			}
		}
		for _, u := range users {
			verify(u.tokens, u.pages)
		}
		check(t, c, stale()...)
	}
	for len(users) > 0 {
		finish(0)
	}
	check(t, c)
	if s := c.Stats(); s.Held != 0 || s.Handles != 0 {
		t.Fatalf("%+v with nobody left", s)
	}
	if _, ok := c.Alloc(nil, numPages); !ok {
		t.Fatal("an idle cache gives not all of its pages")
	}
	check(t, c)
	return tails, c.TierStats()
}

func asKey(t []Token) string { return fmt.Sprint(t) }
