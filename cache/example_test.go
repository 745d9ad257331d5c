package cache_test

import (
	"fmt"

	"github.com/coppice-run/coppice/cache"
)

// A first sequence computes a prompt and publishes it; a second one that
// shares most of it computes only the rest.
func Example() {
	c := cache.New(8)
	ns := cache.Namespace{Model: "tiny"}
	prompt := make([]cache.Token, 40)
	for i := range prompt {
		prompt[i] = cache.Token(i)
	}

	h := c.Match(ns, prompt)
	pages, _ := c.Alloc(nil, 3) // the model writes 40 tokens here
	c.Extend(h, prompt, pages)
	c.Release(pages)
	c.Unpin(h)

	prompt[36] = 99
	h = c.Match(ns, prompt)
	fmt.Println("cached:", h.Len(), "pages:", h.Pages(nil, 0))
	fmt.Print(c)
	c.Unpin(h)
	// Output:
	// cached: 36 pages: [0 1 2]
	// free 5  evictable 0  held 3
	// "tiny" "" ""
	//   [0,36) 0..35 pages [0 1 2] pins 1
	//     [36,40) 36..39 pages [2]
}
