package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/cache"
)

// scheduler decides what a step computes. It owns the sequences and their
// pages; it has no goroutine and computes nothing itself, and only what it
// knows of absent branches has a clock.
//
// A sequence is waiting (no pages) or running (its prefix pinned, its pages
// held). A step takes the running ones first, those that decode before those
// that still prefill, and fills what is left of its token budget with new ones:
//
//	waiting --admit--> running --finish--> gone
//	   ^                  |
//	   +----- preempt ----+   pages run out: the latest arrival goes back
//
// What each way out frees and what it leaves:
//
//	finish    h unpinned, pages[owned:] released; computed tokens stay in the
//	          tree as evictable pages
//	preempt   the same; the tokens are kept and computed again later, or found
//	          in the tree
//	detach    h unpinned, all pages held by the sequence: of a path with many
//	          partly shared pages only the copies that count are kept
//
// No deadlock is possible: the earliest arrival that runs takes pages from all
// others, and a pool holds at least one whole sequence.
type scheduler struct {
	cache    *cache.Cache
	outlook  *outlook
	copyPage func(dst, src int32, tokens int)

	budget     int // tokens a step
	maxSeqs    int // running at once
	maxOutputs int // logits a step
	minShare   int // tokens that make it worth to wait for another's prefix
	ageLimit   int // steps after which the order of arrival counts alone

	waiting []*sequence // in order of arrival
	running []*sequence // in order of arrival
	step    uint64
	failed  []failure // to be ended by the caller
	plan    []work
	outputs int // logits that plan needs
	preempt int // preemptions so far
	idle    int // steps in a row that had no work

	// Memory that steps use again.
	pageBuf []int32
	decode  []*sequence
	prefill []*sequence
	list    []*sequence
	runs    map[string]uint64
}

// work is the next n tokens of a sequence.
type work struct {
	seq *sequence
	n   int
}

type failure struct {
	seq *sequence
	err error
}

// scanLimit bounds the waiting sequences that a step looks at.
const scanLimit = 128

// next plans a step. The returned slice is valid until the next call.
func (s *scheduler) next() []work {
	s.step++
	s.outlook.tick(s.cache)
	s.fetch()
	s.plan = s.plan[:0]
	s.outputs = 0
	budget := s.budget

	// Decoding sequences, the longest unserved first. If there is anything to
	// prefill, an eighth of the budget is kept for it.
	s.decode, s.prefill = s.decode[:0], s.prefill[:0]
	for _, q := range s.running {
		if q.prefilling() {
			s.prefill = append(s.prefill, q)
		} else {
			s.decode = append(s.decode, q)
		}
	}
	slices.SortStableFunc(s.decode, func(a, b *sequence) int { return cmp.Compare(a.served, b.served) })
	keep := 0
	if len(s.prefill) > 0 || len(s.waiting) > 0 && len(s.running) < s.maxSeqs {
		keep = min(s.budget-1, max(1, s.budget/8))
	}
	for _, q := range s.decode {
		budget -= s.add(q, budget-keep)
	}
	for _, q := range s.prefill {
		budget -= s.add(q, budget)
	}
	s.admit(budget)
	for _, w := range s.plan {
		w.seq.served = s.step
	}
	return s.plan
}

// add plans up to budget tokens of a running sequence and returns how many.
func (s *scheduler) add(q *sequence, budget int) int {
	if q.h == nil { // preempted by one before it
		return 0
	}
	n := min(q.pending(), budget)
	outputs := 0
	for i := 0; i < n; i++ {
		if q.wants(q.planned() + i) {
			if s.outputs+outputs == s.maxOutputs {
				n = i
				break
			}
			outputs++
		}
	}
	if n <= 0 || !s.room(q, q.planned()+n) {
		return 0
	}
	s.outputs += outputs
	s.plan = append(s.plan, work{q, n})
	return n
}

// room gets pages for the first upTo tokens of q. If there are none it preempts
// later arrivals, and at last q itself.
func (s *scheduler) room(q *sequence, upTo int) bool {
	for {
		need := pagesFor(upTo) - len(q.pages)
		if need <= 0 {
			return true
		}
		pages, ok := s.cache.Alloc(q.pages, need)
		q.pages = pages
		if ok {
			return true
		}
		last := s.running[len(s.running)-1]
		switch {
		case last != q:
			s.sendBack(last)
		case len(s.running) > 1:
			s.sendBack(q)
			return false
		case !q.detached:
			s.detach(q)
		default:
			s.fail(q, s.tooSmall(q))
			return false
		}
	}
}

func (s *scheduler) tooSmall(q *sequence) error {
	return fmt.Errorf("%w: the request needs %d KV pages of %d tokens and the engine has %d in all: give it more memory or ask for fewer tokens",
		backend.ErrInvalid, pagesFor(len(q.tokens)), cache.PageTokens, s.cache.Stats().Pages)
}

// fail notes that q cannot go on; the caller ends it.
func (s *scheduler) fail(q *sequence, err error) { s.failed = append(s.failed, failure{q, err}) }

// admit lets waiting sequences run while there is budget.
func (s *scheduler) admit(budget int) {
	if len(s.waiting) == 0 || budget <= 0 || len(s.running) >= s.maxSeqs {
		return
	}
	// What is less urgent does not take the pages that somebody waits for.
	urgent := math.MinInt
	for _, q := range s.order() {
		if budget <= 0 || len(s.running) >= s.maxSeqs {
			return
		}
		if q.priority < urgent && !s.first(q) || s.holdBack(q) {
			continue
		}
		if !s.start(q) {
			if s.first(q) {
				return // nothing overtakes it any more
			}
			urgent = max(urgent, q.priority)
			continue
		}
		budget -= s.add(q, budget)
	}
}

// first reports whether q goes before all that came after it: it has run before,
// or waited too long.
func (s *scheduler) first(q *sequence) bool {
	return q.front || q.admitted || s.step-q.since > uint64(s.ageLimit)
}

// candidates returns the waiting sequences that a step looks at: what goes first in
// any case, then the urgent ones, then those that arrived first.
func (s *scheduler) candidates() []*sequence {
	list := append(s.list[:0], s.waiting...)
	s.list = list
	if len(list) <= scanLimit {
		return list
	}
	slices.SortStableFunc(list, func(a, b *sequence) int {
		fa, fb := s.first(a), s.first(b)
		switch {
		case fa && fb:
			return 0
		case fa:
			return -1
		case fb:
			return 1
		}
		return cmp.Compare(b.priority, a.priority)
	})
	return list[:scanLimit]
}

// order returns the waiting sequences in the order to try: what has run before
// or has waited too long first, by arrival; then by priority; then by cached
// prefix, the longest first, and those of a run together.
func (s *scheduler) order() []*sequence {
	list := s.candidates()
	if s.runs == nil {
		s.runs = make(map[string]uint64)
	}
	runs := s.runs // first arrival of each run
	clear(runs)
	at := s.cache.Version() + 1
	for _, q := range list {
		if q.peekAt != at {
			q.peek, q.peekAt = s.cache.Peek(q.ns, q.tokens[:q.matchLimit()]), at
		}
		if _, ok := runs[q.hints.Run]; !ok {
			runs[q.hints.Run] = q.order
		}
	}
	run := func(q *sequence) uint64 {
		if q.hints.Run == "" {
			return q.order
		}
		return runs[q.hints.Run]
	}
	slices.SortFunc(list, func(a, b *sequence) int {
		fa, fb := s.first(a), s.first(b)
		switch {
		case fa && fb:
			return cmp.Compare(a.order, b.order)
		case fa:
			return -1
		case fb:
			return 1
		}
		return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(b.peek, a.peek), cmp.Compare(run(a), run(b)), cmp.Compare(a.order, b.order))
	})
	return list
}

// holdBack reports whether a running sequence is about to compute more of q's
// prompt than the tree has: then q waits and takes it from the tree. The other
// one runs, so the wait ends.
func (s *scheduler) holdBack(q *sequence) bool {
	worth := s.minShare
	if q.hints.Siblings > 1 {
		worth = 1
	}
	for _, p := range s.running {
		if p.computed >= p.prompt || p.ns != q.ns {
			continue
		}
		n := min(q.matchLimit(), p.prompt)
		if n-q.peek < worth || n <= p.computed {
			continue
		}
		shared := commonPrefix(q.tokens[:n], p.tokens[:n])
		if shared > p.computed && shared-q.peek >= worth {
			return true
		}
	}
	return false
}

// start moves q from waiting to running: it pins the longest cached prefix and, of
// the page that is shared in part, takes the rest or a copy. It reports false if there
// are not pages enough for the rest of q as it is now, and for those that run.
func (s *scheduler) start(q *sequence) bool {
	q.h = s.cache.Match(q.ns, q.tokens[:q.matchLimit()])
	s.restore(q)
	alone := len(s.running) == 0
	q.owned = q.h.Len() / cache.PageTokens
	q.pages = q.h.Pages(q.pages[:0], 0)
	q.computed = q.h.Len()
	var partial int32 = -1
	if len(q.pages) > q.owned {
		partial = q.pages[q.owned]
		q.pages = q.pages[:q.owned]
	}
	if partial >= 0 && s.cache.TakeTail(q.h) {
		q.pages = append(q.pages, partial)
		partial = -1
	}
	need := pagesFor(len(q.tokens)) - len(q.pages)
	for _, p := range s.running {
		need += max(0, pagesFor(len(p.tokens))-len(p.pages)) + 1
	}
	if alone && need > s.cache.Available() {
		// The prefix pins more pages than it uses. Do without the part of it
		// that is shared within a page, and hold what counts.
		q.computed = q.owned * cache.PageTokens
		partial = -1
		s.cache.Release(q.pages[q.owned:])
		q.pages = q.pages[:q.owned]
		s.detach(q)
		if pagesFor(len(q.tokens))-len(q.pages) > s.cache.Available() {
			s.fail(q, s.tooSmall(q))
			s.leave(q)
			return false
		}
	} else if need > s.cache.Available() {
		s.leave(q)
		return false
	}
	if partial >= 0 {
		q.pages, _ = s.cache.Alloc(q.pages, 1)
		s.copyPage(q.pages[q.owned], partial, q.computed%cache.PageTokens)
	}
	if !q.admitted {
		q.admitted = true
		q.usage.cached = min(q.computed, q.prompt)
	} else if more := min(q.computed, q.prompt) - q.reached; more > 0 {
		q.usage.cached += more // others have computed it meanwhile
	}
	s.waiting = slices.DeleteFunc(s.waiting, func(w *sequence) bool { return w == q })
	s.running = insertByOrder(s.running, q)
	return true
}

// detach makes q hold its pages itself and unpins its prefix.
func (s *scheduler) detach(q *sequence) {
	s.cache.Hold(q.pages[:q.owned])
	s.cache.Unpin(q.h)
	q.h = s.cache.Match(q.ns, nil)
	q.owned = 0
	q.detached = true
}

// publish puts the computed tokens of q into the tree. Pages that the tree had
// already take the place of q's own.
func (s *scheduler) publish(q *sequence) {
	if q.h == nil || q.h.Len() >= q.computed {
		return
	}
	s.cache.Extend(q.h, q.tokens[q.h.Len():q.computed], q.pages)
	full := q.computed / cache.PageTokens
	have := q.h.Pages(s.pageBuf[:0], q.owned)
	s.pageBuf = have
	if !q.detached {
		for i := q.owned; i < full; i++ {
			s.cache.Release(q.pages[i : i+1])
			q.pages[i] = have[i-q.owned]
		}
		q.owned = full
	}
}

// progress is called when the model has computed n more tokens of q. The prompt
// is published as it grows, so that others can go on from there at once.
func (s *scheduler) progress(q *sequence, n int) {
	prefill := q.prefilling()
	q.computed += n
	if !prefill || q.detached {
		return
	}
	s.publish(q)
	if !q.prefilling() && q.hints.Reused {
		s.cache.Claim(q.h, q.owner(), int64(s.outlook.clock()))
	}
}

// leave takes the pages from q; what it computed stays in the tree.
func (s *scheduler) leave(q *sequence) {
	if q.h == nil {
		return
	}
	s.publish(q)
	switch {
	case !q.admitted:
	case !q.hints.LastUse:
		if !q.child {
			s.cache.Claim(q.h, q.owner(), int64(s.outlook.clock()))
		}
	default:
		s.cache.Dead(q.h, q.usage.cached)
		if !q.child && !q.hints.Reused {
			s.cache.Unclaim(q.owner())
		}
	}
	s.cache.Release(q.pages[q.owned:])
	s.cache.Unpin(q.h)
	q.h, q.pages, q.owned, q.computed, q.detached = nil, q.pages[:0], 0, 0, false
	q.land()
}

// drop takes q out of the step that is planned.
func (s *scheduler) drop(q *sequence) {
	s.plan = slices.DeleteFunc(s.plan, func(w work) bool { return w.seq == q })
}

// sendBack preempts a running sequence.
func (s *scheduler) sendBack(q *sequence) {
	q.reached = max(q.reached, q.computed)
	s.leave(q)
	s.drop(q)
	s.preempt++
	s.running = slices.DeleteFunc(s.running, func(r *sequence) bool { return r == q })
	s.enqueue(q)
}

// enqueue adds q to the waiting sequences.
func (s *scheduler) enqueue(q *sequence) {
	s.unguess(q) // guesses are not kept: they would be published
	q.since = s.step
	q.peekAt = 0
	s.waiting = insertByOrder(s.waiting, q)
}

// unguess drops the guesses of q.
func (s *scheduler) unguess(q *sequence) {
	if g, ok := q.task.(*generation); ok {
		g.drafts.drop(q, 0)
	}
}

// remove ends q, wherever it is.
func (s *scheduler) remove(q *sequence) {
	s.leave(q)
	if q.admitted && !q.child && q.hints.Run != "" && (q.hints.Reused || !q.hints.LastUse) {
		s.outlook.gone(s.cache, q.owner())
	}
	s.drop(q)
	is := func(o *sequence) bool { return o == q }
	s.running = slices.DeleteFunc(s.running, is)
	s.waiting = slices.DeleteFunc(s.waiting, is)
}

func insertByOrder(list []*sequence, q *sequence) []*sequence {
	i, _ := slices.BinarySearchFunc(list, q, func(a, b *sequence) int { return cmp.Compare(a.order, b.order) })
	return slices.Insert(list, i, q)
}

func pagesFor(tokens int) int { return (tokens + cache.PageTokens - 1) / cache.PageTokens }

func commonPrefix(a, b []backend.Token) int {
	n := min(len(a), len(b))
	const block = 64
	i := 0
	for i+block <= n && slices.Equal(a[i:i+block], b[i:i+block]) {
		i += block
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// check recounts the pages and compares them with what the sequences have.
func (s *scheduler) check() error {
	stale := make([]*cache.Handle, 0, len(s.running))
	held := make(map[int32]bool)
	for _, q := range s.running {
		stale = append(stale, q.h)
		if len(q.pages) < pagesFor(q.computed) || q.owned > len(q.pages) || q.computed > len(q.tokens) {
			return fmt.Errorf("sequence %q: %d pages, %d owned, %d of %d tokens computed", q.id, len(q.pages), q.owned, q.computed, len(q.tokens))
		}
		if q.flight == 0 && q.pending() <= 0 {
			return fmt.Errorf("sequence %q: %d of %d tokens computed, and it is not at its end", q.id, q.computed, len(q.tokens))
		}
		for _, p := range q.pages[q.owned:] {
			if held[p] {
				return fmt.Errorf("sequence %q: page %d is another's too", q.id, p)
			}
			held[p] = true
		}
	}
	for _, q := range s.waiting {
		if q.h != nil || len(q.pages) > 0 {
			return fmt.Errorf("sequence %q: waits with %d pages", q.id, len(q.pages))
		}
	}
	if st := s.cache.Stats(); st.Owned != len(held) || st.Handles != len(s.running) {
		return fmt.Errorf("%d sequences run with %d pages of their own; the cache counts %d handles and %d pages",
			len(s.running), len(held), st.Handles, st.Owned)
	}
	return s.cache.Check(stale...)
}
