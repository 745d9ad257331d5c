package engine

import (
	"fmt"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/model"
	"github.com/coppice-run/coppice/cache"
)

// Tiered is a KV whose pages can be kept elsewhere, in memory that takes no part in
// computing.
type Tiered interface {
	KV
	// NewTier returns memory for so many pages. It belongs to the caller, who closes it
	// before the KV.
	NewTier(slots int) (Tier, error)
}

// Tier is memory for pages beside those of a KV. The engine uses it from one goroutine,
// never during a Forward.
type Tier interface {
	cache.Tier
	Close()
}

const (
	// fetchAhead is how long before their use pages are brought back.
	fetchAhead = time.Second
	// fetchPages bounds how many that are in a step.
	fetchPages = 16
)

// openTier makes the tier that the configuration asks for.
func (e *Engine) openTier() error {
	if e.cfg.TierBytes == 0 {
		return nil
	}
	kv, ok := e.kv.(Tiered)
	if !ok || e.device != nil {
		return fmt.Errorf("engine: %w: TierBytes is set, and this model's pages stay where they are", backend.ErrInvalid)
	}
	e.slots = int(e.cfg.TierBytes / int64(e.cfg.Model.PageBytes()))
	if e.slots == 0 {
		return fmt.Errorf("engine: %w: %d bytes for evicted pages, and one takes %d", backend.ErrInvalid, e.cfg.TierBytes, e.cfg.Model.PageBytes())
	}
	if _, own := e.cfg.Model.(*cpuModel); own { // what is reserved is within the budget too
		e.slots = model.WholePages(e.slots)
	}
	var err error
	if e.tier, err = kv.NewTier(e.slots); err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	return nil
}

// restore brings back what the tier has of the prompt of q behind its pinned prefix, if
// there are pages enough for it to run.
func (s *scheduler) restore(q *sequence) {
	tokens := q.tokens[:q.matchLimit()]
	if s.cache.Parked(q.h, tokens) == 0 {
		return
	}
	need := pagesFor(len(q.tokens)) - q.h.Len()/cache.PageTokens
	for _, p := range s.running {
		need += max(0, pagesFor(len(p.tokens))-len(p.pages)) + 1
	}
	if need <= s.cache.Available() {
		s.cache.Restore(q.h, tokens)
	}
}

// fetch brings back what absent branches will read soon, a bounded part in each step.
func (s *scheduler) fetch() int {
	return s.cache.Fetch(int64(s.outlook.clock()+fetchAhead), fetchPages)
}

// fetchIdle is fetch while nothing runs: all that is due, and how long it is until there
// may be more.
func (s *scheduler) fetchIdle() (pages int, wait time.Duration, more bool) {
	s.outlook.tick(s.cache)
	for n := s.fetch(); n > 0; n = s.fetch() {
		pages += n
	}
	now := s.outlook.clock()
	next, more := s.cache.NextFetch(int64(now + fetchAhead))
	return pages, time.Duration(next) - fetchAhead - now, more
}
