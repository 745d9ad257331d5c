package cache

import "testing"

// chainCache is a path of 60 nodes of 100 tokens and 10,000 leaves of 64 at
// its end.
func chainCache(tb testing.TB) (*Cache, []Token) {
	c := New(60*8 + 10_000*5 + 64)
	var path []Token
	for i := range 60 {
		path = append(path, seq(10_000*i, 100)...)
		putFast(tb, c, path)
	}
	for i := range 10_000 {
		putFast(tb, c, append(path[:len(path):len(path)], seq(2_000_000+i*64, 64)...))
	}
	return c, path
}

func putFast(tb testing.TB, c *Cache, tokens []Token) {
	h := c.Match(Namespace{}, tokens)
	own := h.Len() / PageTokens
	pages, ok := c.Alloc(h.Pages(nil, 0)[:own], pagesFor(len(tokens))-own)
	if !ok {
		tb.Fatal("no pages")
	}
	c.Extend(h, tokens[h.Len():], pages)
	c.Release(pages[own:])
	c.Unpin(h)
}

func BenchmarkMatch6000(b *testing.B) {
	c, path := chainCache(b)
	buf := make([]int32, 0, 512)
	for b.Loop() {
		h := c.Match(Namespace{}, path)
		buf = h.Pages(buf[:0], 0)
		c.Unpin(h)
	}
}

func BenchmarkInsert64(b *testing.B) {
	c, path := chainCache(b)
	h := c.Match(Namespace{}, path)
	own := h.Len() / PageTokens
	tokens := seq(0, 64)
	pages := h.Pages(nil, 0)[:own]
	i := 0
	for b.Loop() {
		tokens[0], i = Token(-1-i), i+1
		g := *h
		c.lock(h.node, nil)
		c.handles++
		pages, _ = c.Alloc(pages[:own], 5)
		c.Extend(&g, tokens, pages)
		c.Release(pages[own:])
		c.Unpin(&g)
	}
}

func BenchmarkEvictLeaf(b *testing.B) {
	c, path := chainCache(b)
	c.Alloc(nil, c.pool.free.n)
	i := 0
	for b.Loop() {
		pages, ok := c.Alloc(nil, 5)
		if !ok {
			b.Fatal("no pages")
		}
		b.StopTimer()
		c.Release(pages)
		putFast(b, c, append(path[:len(path):len(path)], seq(-1_000_000-i*64, 64)...))
		i++
		b.StartTimer()
	}
}
