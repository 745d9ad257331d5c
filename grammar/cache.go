package grammar

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"unsafe"
)

// Cache keeps compiled grammars by the content of their specs, within a bound
// in bytes. What was not used for the longest time goes first. It is safe for
// concurrent use.
type Cache struct {
	max int

	mu      sync.Mutex
	entries map[cacheKey]*cacheEntry
	recent  *list.List // of *cacheEntry, newest first
	used    int
}

type cacheKey struct {
	spec  [32]byte
	vocab *Vocab
}

type cacheEntry struct {
	key   cacheKey
	done  chan struct{}
	g     *Grammar
	err   error
	size  int
	place *list.Element
}

// NewCache is an empty cache of at most maxBytes bytes.
func NewCache(maxBytes int) *Cache {
	return &Cache{max: maxBytes, entries: map[cacheKey]*cacheEntry{}, recent: list.New()}
}

// Compile is the grammar of a spec, compiled when it is not in the cache. Calls
// for one spec at one time compile it once. Errors are not kept.
func (c *Cache) Compile(ctx context.Context, spec Spec, vocab *Vocab) (*Grammar, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	key := cacheKey{sha256.Sum256(text), vocab}
	c.mu.Lock()
	e := c.entries[key]
	if e == nil {
		e = &cacheEntry{key: key, done: make(chan struct{})}
		c.entries[key] = e
		c.mu.Unlock()
		c.fill(ctx, e, spec, vocab)
		return e.g, e.err
	}
	c.mu.Unlock()
	select {
	case <-e.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if e.err == nil {
		c.touch(e)
		return e.g, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	// The other call failed, perhaps because it was cancelled.
	return Compile(ctx, spec, vocab)
}

func (c *Cache) fill(ctx context.Context, e *cacheEntry, spec Spec, vocab *Vocab) {
	finished := false
	defer func() {
		if !finished { // a panic on its way up
			e.err = context.Canceled
		}
		close(e.done)
		c.mu.Lock()
		defer c.mu.Unlock()
		if e.err != nil {
			delete(c.entries, e.key)
			return
		}
		e.size = e.g.Size()
		c.used += e.size
		e.place = c.recent.PushFront(e)
		c.evict()
	}()
	e.g, e.err = Compile(ctx, spec, vocab)
	finished = true
}

// touch makes e the newest and takes account of what it grew by.
func (c *Cache) touch(e *cacheEntry) {
	size := e.g.Size()
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.place == nil || c.entries[e.key] != e {
		return
	}
	c.used += size - e.size
	e.size = size
	c.recent.MoveToFront(e.place)
	c.evict()
}

func (c *Cache) evict() {
	for c.used > c.max && c.recent.Len() > 0 {
		e := c.recent.Remove(c.recent.Back()).(*cacheEntry)
		delete(c.entries, e.key)
		c.used -= e.size
	}
}

// Stats is the number of grammars in the cache and their size in bytes.
func (c *Cache) Stats() (grammars, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recent.Len(), c.used
}

// Size is about how many bytes of memory the grammar holds. It grows while the
// grammar is used, as states are built.
func (g *Grammar) Size() int {
	m := g.m
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.nodes)*(int(unsafe.Sizeof(node{}))+120) + len(m.leaves)*120
	n += len(m.frames)*200 + len(m.acts)*150 + m.cells.len()*100 + m.places.len()*300
	n += len(m.objects)*500 + len(m.arrays)*300 + m.masks.bytes
	return n
}
