package workflows

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"github.com/coppice-run/coppice/backend"
)

// A prompt never travels whole. What travels is what it has beyond a prompt that
// was sent before and lies in the store:
//
//	trunk    [ system | user ]                   base: both turns, no parent
//	branch 0 [ system | user | user 0 ]          parent: the trunk's, delta: user 0
//	branch 1 [ system | user | user 1 ]          parent: the trunk's, delta: user 1
//	branch 0 [ system | user | user 0 | reply ]  parent: branch 0's
//
// In the store a context is a chain of steps, each naming the one before it by
// its hash.

// grown is what a context has beyond its parent.
type grown struct {
	// Continues is set if the first of Turns goes on with the parent's last turn:
	// its parts come behind, its Open counts.
	Continues bool           `json:"continues,omitempty"`
	Turns     []backend.Turn `json:"turns"`
}

func (g *grown) empty() bool { return g == nil || len(g.Turns) == 0 }

// apply returns the turns of a context that grew; turns is not changed.
func (g *grown) apply(turns []backend.Turn) ([]backend.Turn, error) {
	if g.empty() {
		return turns, nil
	}
	more := g.Turns
	out := slices.Clone(turns)
	if g.Continues {
		if len(out) == 0 {
			return nil, fmt.Errorf("workflows: a context goes on with a turn that is not there")
		}
		last := &out[len(out)-1]
		last.Parts = append(slices.Clip(last.Parts), more[0].Parts...)
		last.Open = more[0].Open
		more = more[1:]
	}
	return append(out, more...), nil
}

// mark is a prompt of a branch that lies in the store.
type mark struct {
	hash  string
	turns []backend.Turn
}

// since returns what turns have beyond m up to the first n of them, and whether
// they begin as m at all. What follows a value that was refused does not begin
// with the prompt that asked for it again.
func (m mark) since(turns []backend.Turn, n int) (*grown, bool) {
	k := len(m.turns)
	if k > n {
		return nil, false
	}
	if k == 0 {
		return newGrown(false, turns[:n]), true
	}
	for i := range k - 1 {
		if !sameTurn(&m.turns[i], &turns[i]) {
			return nil, false
		}
	}
	was, is := &m.turns[k-1], &turns[k-1]
	if was.Role != is.Role || len(was.Parts) > len(is.Parts) || !sameParts(was.Parts, is.Parts[:len(was.Parts)]) {
		return nil, false
	}
	if len(is.Parts) == len(was.Parts) && is.Open == was.Open {
		return newGrown(false, turns[k:n]), true
	}
	more := slices.Clone(turns[k-1 : n])
	more[0].Parts = is.Parts[len(was.Parts):]
	return newGrown(true, more), true
}

func newGrown(continues bool, turns []backend.Turn) *grown {
	if len(turns) == 0 {
		return nil
	}
	return &grown{continues, turns}
}

func sameTurn(a, b *backend.Turn) bool {
	return a.Role == b.Role && a.Open == b.Open && sameParts(a.Parts, b.Parts)
}

func sameParts(a, b []backend.Part) bool {
	return slices.EqualFunc(a, b, func(a, b backend.Part) bool {
		return a.Text == b.Text && a.Image == b.Image && a.Model == b.Model && slices.Equal(a.Tokens, b.Tokens)
	})
}

// marks are the newest prompts of a branch, the oldest first.
type marks []mark

// keptMarks are enough for a value that is asked for again a few times.
const keptMarks = 4

func (ms marks) add(m mark) marks {
	if len(ms) == keptMarks {
		ms = ms[1:]
	}
	return append(ms[:len(ms):len(ms)], m)
}

// split returns the stored prompt that turns go on from, and what they have
// beyond it: up to the first base of them, and behind. A prompt that is longer
// than base has nothing in common.
func (ms marks) split(turns []backend.Turn, base int) (from mark, common, own *grown) {
	for _, m := range slices.Backward(ms) {
		if len(m.turns) <= base {
			if common, ok := m.since(turns, base); ok {
				return m, common, newGrown(false, turns[base:])
			}
		} else if own, ok := m.since(turns, len(turns)); ok {
			return m, nil, own
		}
	}
	return mark{}, newGrown(false, turns[:base]), newGrown(false, turns[base:])
}

// step is a context in the store.
type step struct {
	Parent string `json:"parent,omitempty"`
	grown
}

// contexts are the prompts in a store, with the newest of them in memory. It is
// safe for concurrent use.
type contexts struct {
	store Store

	mu   sync.Mutex
	kept map[string][]backend.Turn
	old  []string // hashes in the order in which they came
}

// keptContexts bounds the contexts in memory. They share their turns.
const keptContexts = 4096

func newContexts(s Store) *contexts {
	return &contexts{store: s, kept: map[string][]backend.Turn{}}
}

func (c *contexts) keep(hash string, turns []backend.Turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.kept[hash]; ok {
		return
	}
	if len(c.old) == keptContexts {
		delete(c.kept, c.old[0])
		c.old = c.old[1:]
	}
	c.kept[hash] = turns[:len(turns):len(turns)]
	c.old = append(c.old, hash)
}

func (c *contexts) get(hash string) ([]backend.Turn, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	turns, ok := c.kept[hash]
	return turns, ok
}

// load returns the turns of a stored context.
func (c *contexts) load(hash string) ([]backend.Turn, error) {
	var chain []step
	var hashes []string
	var turns []backend.Turn
	for hash != "" {
		var ok bool
		if turns, ok = c.get(hash); ok {
			break
		}
		data, err := c.store.Get(hash)
		if err != nil {
			return nil, fmt.Errorf("context: %w", err)
		}
		var s step
		if err := json.Unmarshal(data, &s); err != nil {
			return nil, fmt.Errorf("workflows: context %s: %w", hash, err)
		}
		chain = append(chain, s)
		hashes = append(hashes, hash)
		hash = s.Parent
	}
	for i := len(chain) - 1; i >= 0; i-- {
		var err error
		if turns, err = chain[i].apply(turns); err != nil {
			return nil, err
		}
	}
	if len(hashes) > 0 {
		c.keep(hashes[0], turns)
	}
	return turns, nil
}

// grow returns the turns of the context that has g beyond parent, and the hash
// under which it is stored.
func (c *contexts) grow(parent string, g *grown) ([]backend.Turn, string, error) {
	turns, err := c.load(parent)
	if err != nil || g.empty() {
		return turns, parent, err
	}
	if turns, err = g.apply(turns); err != nil {
		return nil, "", err
	}
	data, err := json.Marshal(step{parent, *g})
	if err != nil {
		return nil, "", err
	}
	// It can be made again from the run's own results, so it need not survive
	// a loss of power.
	hash, err := c.store.Put(data, true)
	if err != nil {
		return nil, "", err
	}
	c.keep(hash, turns)
	return turns, hash, nil
}
