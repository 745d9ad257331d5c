package cache

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestViewShowsTheTreeFromItsRoots(t *testing.T) {
	c := New(16)
	put := func(ns Namespace, tokens ...Token) {
		h := c.Match(ns, tokens)
		pages, ok := c.Alloc(nil, pagesFor(len(tokens)))
		assert.True(t, ok)
		c.Extend(h, tokens[h.Len():], pages)
		c.Release(pages)
		c.Unpin(h)
	}
	a := Namespace{Model: "a"}
	put(a, 1, 2, 3, 4)
	put(a, 1, 2, 5)
	put(Namespace{Model: "b"}, 7)
	nodes, all := c.View(10, 2)
	assert.Equal(t, 4, all)
	shape := func(v NodeView) [4]int { return [4]int{v.ID, v.Parent, v.Start, v.Tokens} }
	var got [][4]int
	for _, n := range nodes {
		got = append(got, shape(n))
		assert.LessOrEqual(t, len(n.First), 2)
	}
	assert.Equal(t, [][4]int{{1, 0, 0, 2}, {2, 0, 0, 1}, {3, 1, 2, 2}, {4, 1, 2, 1}}, got)
	few, all := c.View(1, 2)
	assert.Len(t, few, 1)
	assert.Equal(t, 4, all)
	none, all := New(1).View(10, 2)
	assert.Empty(t, none)
	assert.Zero(t, all)
}
