package engine

import "github.com/coppice-run/coppice/backend/model"

// Stats counts the work of an engine since it was made, and what it holds now.
type Stats struct {
	Steps       uint64 // forward passes
	Computed    uint64 // tokens that went through one
	Cached      uint64 // prompt tokens that did not have to
	Forced      uint64 // tokens that a constraint gave without a pass
	Chosen      uint64 // draws for which no pass was needed, see Config.Choices
	Sampled     uint64
	Preempted   uint64 // times that a sequence lost its pages
	Failed      uint64 // requests that ended with an error
	Finished    uint64 // requests that ended well
	Rebuilt     uint64 // times that the cache was thrown away after a fault
	Waiting     int    // sequences
	Running     int
	Pages       int // free + held + evictable
	Free        int
	Held        int
	Evictable   int
	CachedNodes int // of the tree

	// Of the second tier, see Config.TierBytes.
	TierPages   int    // it has room for
	TierUsed    int    // of these
	TierSaved   uint64 // pages that were evicted and kept there
	TierLoaded  uint64 // pages that came back when a request needed them
	TierFetched uint64 // pages that came back before one did
	TierFailed  uint64 // pages that could not be kept there, or did not come back

	PageBytes int          // memory of a page
	KVType    model.KVType // how keys and values are held
}

// Stats returns the counters as of the last step, or as of the last end of a
// request if that is later: whoever has a result finds it counted.
func (e *Engine) Stats() Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stats
}

func (e *Engine) publish() {
	e.mu.Lock()
	e.stats = e.snapshot()
	e.mu.Unlock()
}

func (e *Engine) snapshot() Stats {
	s := e.totals
	c := e.sched.cache.Stats()
	tier := e.sched.cache.TierStats()
	s.Steps = e.pass
	s.TierPages, s.TierUsed = tier.Slots, tier.Used
	s.TierSaved, s.TierLoaded, s.TierFetched = s.TierSaved+tier.Saved, s.TierLoaded+tier.Loaded, s.TierFetched+tier.Fetched
	s.TierFailed += tier.Failed
	s.PageBytes, s.KVType = e.cfg.Model.PageBytes(), kvType(e.cfg.Model)
	s.Preempted += uint64(e.sched.preempt)
	s.Waiting, s.Running = len(e.sched.waiting), len(e.sched.running)
	s.Pages, s.Free, s.Held, s.Evictable, s.CachedNodes = c.Pages, c.Free, c.Held, c.Evictable, c.Nodes
	return s
}
