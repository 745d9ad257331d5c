package engine

import (
	"errors"
	"fmt"
	"log/slog"
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
	t, err := kv.NewTier(e.slots)
	if err != nil {
		return fmt.Errorf("engine: %w", err)
	}
	e.tier = &safeTier{tier: t, log: e.cfg.Log}
	return nil
}

// maxTierFaults is how many times in a row a tier may fail before it is left alone.
const maxTierFaults = 8

// safeTier makes errors of a tier's panics, and gives up one that only fails.
type safeTier struct {
	tier   Tier
	log    *slog.Logger
	faults int // in a row
}

var errTierGivenUp = errors.New("the tier failed too often")

func (t *safeTier) Save(slot, page int32) error {
	return t.do("save", func() error { return t.tier.Save(slot, page) })
}

func (t *safeTier) Load(page, slot int32) error {
	return t.do("load", func() error { return t.tier.Load(page, slot) })
}

func (t *safeTier) do(what string, f func() error) (err error) {
	if t.faults >= maxTierFaults {
		return errTierGivenUp
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
		if err == nil {
			t.faults = 0
			return
		}
		t.faults++
		t.log.Error("engine: second tier", "operation", what, "error", err, "given up", t.faults == maxTierFaults)
	}()
	return f()
}

func (t *safeTier) Close() { t.tier.Close() }

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
