package runtime

import (
	"context"
	"iter"
	"maps"
	"slices"
	"sync"
)

// Log is a Sink that keeps a run's events for any number of readers, fast or
// slow, that may come and go. Whoever made the Log owns it; it needs no closing
// and is garbage with its last reader.
//
// A Log keeps every event but deltas and the progress of prompts, of which it
// keeps the newest; a reader that comes for older ones gets a Dropped event with
// the text so far instead.
// So a slow reader costs bounded memory, holds nobody up, and never misses that
// a node or a branch ended.
type Log struct {
	mu     sync.Mutex
	limit  int
	events []Event // by Seq, with gaps where deltas were dropped
	deltas int     // passing ones among them
	texts  map[string][]byte
	last   uint64
	over   bool
	change chan struct{} // closed at the next event; nil if nobody waits
}

// passing reports whether an event is of no interest once later ones are there.
func (k EventKind) passing() bool {
	return k == TextDelta || k == PromptProgress || k == PartialValue
}

// NewLog returns a log that keeps at least the newest limit deltas; 0 means all
// of them.
func NewLog(limit int) *Log {
	return &Log{limit: limit, texts: map[string][]byte{}}
}

// Emit implements Sink.
func (l *Log) Emit(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
	l.last = e.Seq
	switch e.Kind {
	case TextDelta:
		l.texts[e.Task] = append(l.texts[e.Task], e.Text...)
	case NodeFinished, NodeCancelled, NodeRetried:
		delete(l.texts, e.Task)
	case RunFinished, RunFailed:
		l.over = true
	}
	if e.Kind.passing() {
		if l.deltas++; l.limit > 0 && l.deltas > 2*l.limit {
			l.compact()
		}
	}
	if l.change != nil {
		close(l.change)
		l.change = nil
	}
}

// compact drops the oldest deltas down to the limit.
func (l *Log) compact() {
	drop := l.deltas - l.limit
	l.events = slices.DeleteFunc(l.events, func(e Event) bool {
		if drop > 0 && e.Kind.passing() {
			drop--
			return true
		}
		return false
	})
	l.deltas = l.limit
}

// Since returns the events after the one numbered after that there are now, and
// whether the run is over and they are the last. It does not wait.
func (l *Log) Since(after uint64) (events []Event, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.since(after), l.over
}

func (l *Log) since(after uint64) []Event {
	i, _ := slices.BinarySearchFunc(l.events, after+1, func(e Event, seq uint64) int {
		switch {
		case e.Seq < seq:
			return -1
		case e.Seq > seq:
			return 1
		}
		return 0
	})
	var out []Event
	told := false
	for _, e := range l.events[i:] {
		if e.Seq != after+1 {
			d := Event{Seq: e.Seq - 1, Kind: Dropped, First: after + 1}
			if !told { // one snapshot of now is enough
				d.Texts, told = l.snapshot(), true
			}
			out = append(out, d)
		}
		out = append(out, e)
		after = e.Seq
	}
	return out
}

func (l *Log) snapshot() map[string]string {
	texts := make(map[string]string, len(l.texts))
	for task, text := range maps.All(l.texts) {
		texts[task] = string(text)
	}
	return texts
}

// Events returns the events after the one numbered after, 0 for all, as they
// happen. The sequence ends with the run, or with ctx.
func (l *Log) Events(ctx context.Context, after uint64) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		for {
			l.mu.Lock()
			events, over := l.since(after), l.over
			if len(events) == 0 && !over && l.change == nil {
				l.change = make(chan struct{})
			}
			change := l.change
			l.mu.Unlock()
			for _, e := range events {
				if !yield(e) {
					return
				}
				after = e.Seq
			}
			if over {
				return
			}
			if len(events) > 0 {
				continue
			}
			select {
			case <-change:
			case <-ctx.Done():
				return
			}
		}
	}
}
