// Package cache says which KV pages hold which tokens, and which page to give
// up when there are none left.
//
// Three types matter. A [Cache] owns a fixed number of pages of [PageTokens]
// tokens each and a radix tree over them, one tree a [Namespace]. A [Handle] is
// a pinned prefix: its pages stay until it is released. Pages that a sequence
// writes itself come from [Cache.Alloc] and go into the tree with
// [Cache.Extend] once they are computed, never before.
//
// # The tree is exact to the token
//
// Nodes are runs of tokens, not of pages. A sequence that shares 20 tokens with
// another shares one page whole and needs its own copy of the second, of which
// only 4 tokens are the same:
//
//	tokens     0        16   20             32             40
//	           |---------|----|--------------|--------------|
//	node A     [ page 7  | page 9 (4 used) ]
//	node B                    [ page 4 (12 of its own)      | page 2 ]
//	                            ^ begins with a copy of the 4 tokens of page 9
//
// So a node's first page may hold tokens of its ancestors before its own, and
// of two nodes on a path that both have a page for the same 16 tokens the
// deeper one counts. A node that is split inside a page leaves that page in
// both halves.
//
// # Free, evictable, held
//
// Every page is in exactly one state, and free + evictable + held is the number
// of pages at all times:
//
//	free       in no node and written by nobody
//	evictable  in the tree only
//	held       in a pinned node, or allocated by a sequence
//
// A pin counts on every node from its own up to the root, so the nodes without
// pins are whole subtrees and can always be evicted, leaves first. What goes
// first: what the program said it will not read again, then what nothing is
// known of, least recently used first, then what a run will read again, the
// farthest use first. A long leaf is cut page by page from its end.
//
// What will be read again is known by claims: each [Owner], a branch of a run, may
// claim one prefix and say when it will be back, see [Cache.Claim].
//
// # A second tier
//
// With a [Tier] beside the pool ([Cache.SetTier]) evicted pages are kept there, as long
// as they are worth more than what lies there already. [Cache.Restore] brings them back
// when they are asked for, [Cache.Fetch] before that, by the claims on them.
//
// The package has no goroutine, no clock and no lock: the caller serialises.
package cache
