package future

import (
	"math"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// Trace is what an engine computed, pass by pass.
type Trace struct {
	Tokens int // that the cache holds, with its second tier
	// Pages of the second tier that came back when a request needed them, and before.
	Loaded, Fetched int

	passes []pass
	at     uint64 // number of the last one
}

type pass []work

// work is n tokens of a request, computed in one pass.
type work struct {
	r *request
	n int
}

// request is a prompt and what was generated behind it.
type request struct {
	tokens []backend.Token
	prompt int // tokens[:prompt] were given
	cached int // of these, found in the cache
	path   []int32
	next   []int         // for each token, the request that reads it next
	who    int           // agent
	after  time.Duration // how long what the agent does next usually takes; 0: it is done
	place  int           // among the requests, in the order of their first passes
	seen   bool

	upTo, have int // of tokens: computed by the engine, resident in the replay
	left       int // tokens that are still to be computed
}

// add notes part of a pass. It is called from the goroutine that computes.
func (t *Trace) add(number uint64, r *request, n int) {
	if number != t.at {
		t.at = number
		t.passes = append(t.passes, nil)
	}
	last := &t.passes[len(t.passes)-1]
	*last = append(*last, work{r, n})
}

// requests returns them in the order of their first passes.
func (t *Trace) requests() []*request {
	var list []*request
	known := map[*request]bool{}
	for _, p := range t.passes {
		for _, w := range p {
			if !known[w.r] {
				known[w.r] = true
				list = append(list, w.r)
			}
		}
	}
	return list
}

// Reused is how many prompt tokens the engine found in its cache, of how many.
func (t *Trace) Reused() (reused, of int) {
	for _, r := range t.requests() {
		reused += r.cached
		of += r.prompt
	}
	return reused, of
}

// WorkingSet is the number of different tokens of all requests: what a cache that
// never evicts holds in the end.
func (t *Trace) WorkingSet() int { return t.trace().nodes }

// Policy says which token a replay evicts.
type Policy int

const (
	// Oracle evicts what is read last of all, or never: Belady's choice. It knows
	// the whole trace.
	Oracle Policy = iota
	// LRU evicts what was not read for longest.
	LRU
	// Usual evicts what is read last if each tool takes as long as it usually does
	// from any moment on. It knows what the agents do, and nothing of how long that
	// takes this time. Where pauses are exponential nobody without foresight knows
	// more: such a pause has the same time before it at each moment.
	Usual
)

// Replay computes how many prompt tokens the same requests at the same times find
// in a cache of the same size that evicts by a policy. It gives away tokens one by
// one, not pages, so it is an upper bound for caches of pages. What a request has
// found or computed stays until it ends.
func (t *Trace) Replay(p Policy) (reused int) {
	tree := t.trace()
	s := replay{policy: p, resident: make([]bool, tree.nodes), pins: make([]int, tree.nodes), key: make([]int, tree.nodes), depth: tree.depth}
	if p == Usual {
		s.common = tree.common()
	}
	for _, r := range tree.requests {
		r.seen, r.upTo, r.have = false, r.cached, 0
		r.left = len(r.tokens) - 1 - r.cached
	}
	for i, pass := range t.passes {
		for _, w := range pass {
			r := w.r
			if !r.seen {
				r.seen = true
				for r.have < r.prompt-1 && s.resident[r.path[r.have]] {
					s.hold(r, r.have, i)
					r.have++
				}
				reused += r.have
			}
			r.upTo += w.n
			r.left -= w.n
			for ; r.have < r.upTo; r.have++ {
				s.hold(r, r.have, i)
			}
		}
		s.evict(t.Tokens)
		for _, w := range pass {
			if r := w.r; r.left == 0 {
				for k := range r.have {
					s.release(r, r.path[k])
				}
			}
		}
	}
	return reused
}

// tree is the requests over one set of nodes: a token after the tokens before it
// is one node.
type tree struct {
	requests []*request
	nodes    int
	depth    []int
}

func (t *Trace) trace() *tree {
	type step struct {
		parent int32
		token  backend.Token
	}
	tr := &tree{requests: t.requests()}
	nodes := map[step]int32{}
	for i, r := range tr.requests {
		r.place = i
		r.path, r.next = make([]int32, len(r.tokens)), make([]int, len(r.tokens))
		at := int32(-1)
		for k, tok := range r.tokens {
			n, ok := nodes[step{at, tok}]
			if !ok {
				n = int32(len(nodes))
				nodes[step{at, tok}] = n
				tr.depth = append(tr.depth, k)
			}
			r.path[k], at = n, n
		}
	}
	tr.nodes = len(nodes)
	next := make([]int, tr.nodes)
	for i := range next {
		next[i] = math.MaxInt
	}
	for i := len(tr.requests) - 1; i >= 0; i-- {
		r := tr.requests[i]
		for k, n := range r.path {
			r.next[k] = next[n]
			if k < r.prompt-1 { // the last one is computed in any case
				next[n] = i
			}
		}
	}
	return tr
}

// common tells which nodes several agents read.
func (tr *tree) common() []bool {
	common, owner := make([]bool, tr.nodes), make([]int, tr.nodes)
	for _, r := range tr.requests {
		for _, n := range r.path {
			if owner[n] == 0 {
				owner[n] = r.who + 1
			}
			common[n] = common[n] || owner[n] != r.who+1
		}
	}
	return common
}

// replay is the state of a cache of single tokens.
type replay struct {
	policy   Policy
	resident []bool
	pins     []int
	key      []int // what has the largest goes first
	depth    []int
	count    int
	heap     []entry
	common   []bool // for Usual
}

type entry struct {
	key, depth int
	node       int32
}

// hold makes token k of r resident and keeps it, in pass i.
func (s *replay) hold(r *request, k, i int) {
	n := r.path[k]
	was := s.resident[n]
	if !was {
		s.resident[n] = true
		s.count++
	}
	s.pins[n]++
	switch {
	case s.policy == LRU:
		s.key[n] = -i
	case s.policy == Usual: // known when it is released
	case !was || r.next[k] > s.key[n]: // a later request may hold it already
		s.key[n] = r.next[k]
	}
}

func (s *replay) release(r *request, n int32) {
	if s.policy == Usual && !s.common[n] {
		s.key[n] = math.MaxInt
		if r.after > 0 {
			s.key[n] = int(r.after)
		}
	}
	if s.pins[n]--; s.pins[n] == 0 {
		s.push(entry{s.key[n], s.depth[n], n})
	}
}

// evict makes room, as far as there is any that is not held.
func (s *replay) evict(most int) {
	for s.count > most && len(s.heap) > 0 {
		e := s.pop()
		if s.resident[e.node] && s.pins[e.node] == 0 && s.key[e.node] == e.key {
			s.resident[e.node] = false
			s.count--
		}
	}
}

// first reports whether a goes before b: what is read later, and of one prefix its
// end.
func first(a, b entry) bool {
	if a.key != b.key {
		return a.key > b.key
	}
	return a.depth > b.depth
}

func (s *replay) push(e entry) {
	s.heap = append(s.heap, e)
	for i := len(s.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !first(s.heap[i], s.heap[up]) {
			return
		}
		s.heap[i], s.heap[up] = s.heap[up], s.heap[i]
		i = up
	}
}

func (s *replay) pop() entry {
	e := s.heap[0]
	last := len(s.heap) - 1
	s.heap[0] = s.heap[last]
	s.heap = s.heap[:last]
	for i := 0; ; {
		kid := 2*i + 1
		if kid >= last {
			return e
		}
		if kid+1 < last && first(s.heap[kid+1], s.heap[kid]) {
			kid++
		}
		if !first(s.heap[kid], s.heap[i]) {
			return e
		}
		s.heap[i], s.heap[kid] = s.heap[kid], s.heap[i]
		i = kid
	}
}
