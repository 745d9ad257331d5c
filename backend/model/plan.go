package model

import (
	"slices"

	"github.com/coppice-run/coppice/backend/compute"
)

// spanPages is the number of pages in a span of attention.
const spanPages = compute.Span / PageSize

// groupSpans is the number of spans in a group of pages.
const groupSpans = PageGroup / spanPages

// A segment is a run of consecutive positions of one row within a chunk.
type segment struct {
	row   *Row
	pages []int32 // slots of the row's pages, as far as the segment sees
	pos   int     // of its first token
	first int     // index of its first token in the chunk
	n     int     // tokens
}

// An attnTask is a block of tokens that read the same pages over some spans.
type attnTask struct {
	first, n int     // tokens of the chunk
	s0, s1   int     // spans
	fold     bool    // the spans start with the first of each of the tokens, whose chains can be merged too
	pages    []int32 // block table that serves them all
}

// A plan is the attention of a chunk, for one kind of layers.
//
// The rows of a batch form a tree: where their block tables agree they read the
// same pages. The plan walks that tree. Each of its tasks covers tokens that
// agree over a range of spans, so that a page run that is shared by many
// sequences is read once for all their queries, and all heads of a group. How
// tokens are grouped does not change a bit of the results: each query's partial
// softmax over a span is its own.
type plan struct {
	window  int        // positions that a token sees, 0 for all
	tokens  int        // largest number of tokens of a task
	tasks   []attnTask // each to be done for all kv heads
	slots   []int      // per token: the slot of its first span
	from    []int      // per token: its first span
	spans   []int      // per token: the number of its spans
	covered []bool     // per slot: its result is merged into an earlier one's
	total   int        // slots
}

// build makes the plan for the segments, whose tokens lie one after the other
// in the chunk. Segments with a common prefix must be adjacent.
func (p *plan) build(segs []segment) {
	p.tasks = p.tasks[:0]
	p.slots, p.from, p.spans, p.total = p.slots[:0], p.from[:0], p.spans[:0], 0
	end := 0
	for i := range segs {
		s := &segs[i]
		for pos := s.pos; pos < s.pos+s.n; pos++ {
			from := p.low(pos) / compute.Span
			spans := pos/compute.Span - from + 1
			p.slots = append(p.slots, p.total)
			p.from = append(p.from, from)
			p.spans = append(p.spans, spans)
			p.total += spans
		}
		end = max(end, (s.pos+s.n-1)/compute.Span+1)
	}
	p.walk(segs, 0, end)
}

// low returns the first position that the token at pos sees.
func (p *plan) low(pos int) int {
	if p.window == 0 {
		return 0
	}
	return max(0, pos-p.window+1)
}

// walk plans the spans s0 up to s1 of segments that agree on all spans before.
func (p *plan) walk(segs []segment, s0, s1 int) {
	if len(segs) == 1 {
		p.emit(segs, s0, s1)
		return
	}
	// The longest run of spans on which all agree.
	s := s0
	for s < s1 && agreeing(segs, s) == len(segs) {
		s++
	}
	p.emit(segs, s0, s)
	if s == s1 {
		return
	}
	// At span s they part ways.
	for len(segs) > 0 {
		n, next := agreeing(segs, s), s
		if n > 1 {
			p.emit(segs[:n], s, s+1)
			next++
		}
		p.walk(segs[:n], next, s1)
		segs = segs[n:]
	}
}

// agreeing returns how many of the first segments have the same pages in span
// s, as far as each reaches. Segments are in the order of their block tables,
// so of two that agree the later is at least as long.
func agreeing(segs []segment, s int) int {
	n := 1
	for n < len(segs) && samePrefix(segs[n-1].span(s), segs[n].span(s)) {
		n++
	}
	return n
}

func (s *segment) span(i int) []int32 {
	n := len(s.pages)
	return s.pages[min(n, i*spanPages):min(n, (i+1)*spanPages)]
}

// samePrefix tells whether a is a prefix of b.
func samePrefix(a, b []int32) bool {
	return len(a) <= len(b) && slices.Equal(a, b[:len(a)])
}

// emit adds the tasks of agreeing segments over spans s0 up to s1.
func (p *plan) emit(segs []segment, s0, s1 int) {
	if s0 >= s1 {
		return
	}
	pages := segs[len(segs)-1].pages
	first := segs[0].first
	end := segs[len(segs)-1].first + segs[len(segs)-1].n
	for ; first < end; first += p.tokens {
		n := min(p.tokens, end-first)
		a, b := s1, s0
		for i := first; i < first+n; i++ {
			a, b = min(a, p.from[i]), max(b, p.from[i]+p.spans[i])
		}
		a, b = max(a, s0), min(b, s1)
		if a < b {
			p.tasks = append(p.tasks, attnTask{first: first, n: n, s0: a, s1: b, pages: pages})
		}
	}
}

// work is a measure of the time that the task takes: queries times positions, and what
// there is to do for a span however few queries there are.
func (t *attnTask) work() int { return (t.s1 - t.s0) * (t.n + 1) }

// split cuts tasks over many spans until none is more than one of so many parts of all
// the work: at the ends of chains, whose partial results then stay together, or else of
// page groups: what is within one lies together. A long trunk beside short branches would
// else be the work of one thread.
func (p *plan) split(parts int) {
	whole := 0
	for i := range p.tasks {
		whole += p.tasks[i].work()
	}
	for i := 0; i < len(p.tasks); i++ {
		for p.tasks[i].work()*parts > whole {
			t := p.tasks[i]
			mid := t.middle(compute.Chain)
			if mid >= t.s1 {
				mid = t.middle(groupSpans)
			}
			if mid >= t.s1 {
				break
			}
			p.tasks[i].s1, t.s0 = mid, mid
			p.tasks = append(p.tasks, t)
		}
	}
}

// middle returns the multiple of n spans where to cut the task, which is not below its
// end if there is none.
func (t *attnTask) middle(n int) int {
	mid := (t.s0 + t.s1) / 2 / n * n
	if mid <= t.s0 {
		mid = (t.s0/n + 1) * n
	}
	return mid
}

// cover marks the tasks that can merge whole chains as they go, and what is merged into
// other slots: most partial results never go to memory.
func (p *plan) cover() {
	p.covered = slices.Grow(p.covered[:0], p.total)[:p.total]
	clear(p.covered)
	for i := range p.tasks {
		t := &p.tasks[i]
		t.fold = t.s0 <= slices.Min(p.from[t.first:t.first+t.n])
		for j := t.first; j < t.first+t.n; j++ {
			from := p.from[j]
			end := from + p.spans[j]
			for s := max(from, t.s0); s < min(end, t.s1); s++ {
				p.covered[p.slots[j]+s-from] = compute.Covered(s, from, end, t.s0, t.s1, t.fold)
			}
		}
	}
}
