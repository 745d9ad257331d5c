package workflows

import (
	"sync"

	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/workflows/relay"
)

// keptStreams bounds the streams in memory of runs that are over or went to
// another worker. Of most only the name is left.
const keptStreams = 4096

// streams are the event streams of the runs that this process works on.
type streams struct {
	open func(run string) runtime.Sink // nil: nobody listens

	mu   sync.Mutex
	runs map[string]*publisher
	idle []string // keys of those that may be forgotten, the oldest first
}

// of returns the stream of a run, nil if nobody listens or it is over. first is
// the id of the run's first history: a name may be used again.
func (s *streams) of(run, first string) *publisher {
	if s.open == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := run + "\x00" + first
	p := s.runs[key]
	if p == nil {
		sink := s.open(run)
		p = &publisher{merge: relay.NewMerge(sink, false, nil)}
		if s.runs == nil {
			s.runs = map[string]*publisher{}
		}
		s.runs[key] = p
		if sink == nil {
			s.leave(key, p)
		}
	}
	if p.ended() {
		return nil
	}
	p.idle = false
	return p
}

// leave marks a stream as one that may be forgotten: its run is over, or this
// process does not have it in memory any more. If the run comes back before that,
// its stream goes on.
func (s *streams) leave(key string, p *publisher) {
	p.idle = true
	s.idle = append(s.idle, key)
	for len(s.idle) > keptStreams {
		old := s.idle[0]
		s.idle = s.idle[1:]
		if p := s.runs[old]; p != nil && p.idle {
			delete(s.runs, old)
		}
	}
}

// left is leave for a run that this process does not work on any more.
func (s *streams) left(run, first string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := run + "\x00" + first
	if p := s.runs[key]; p != nil && !p.idle {
		s.leave(key, p)
	}
}

// publisher hands the events of a run to its sink. Workflow code runs again at each
// replay and activities at each attempt: what was told in this process is not told
// twice, so a reader sees no gaps and no doubles. A nil one tells nobody.
type publisher struct {
	idle bool // guarded by streams

	merge *relay.Merge
}

func (p *publisher) ended() bool { return p.merge.Over() }

func (p *publisher) emit(e runtime.Event) {
	if p != nil {
		p.merge.Tell(e)
	}
}

func (d *driver) event(kind runtime.EventKind, f *flight) {
	t := &f.task
	e := runtime.Event{Kind: kind, Task: t.ID, Node: t.Node.ID, Branch: t.Branch, Does: does(t)}
	if kind == runtime.NodeStarted && t.Wait != nil {
		e.Text, e.Ask = t.Wait.Ask, t.Wait.Question(f.due)
	}
	d.pub.emit(e)
}

// tell announces a result to those who listen to the run in this process.
func (d *driver) tell(t *runtime.Task, r *runtime.Result, restored bool) {
	if d.pub == nil || t.Node == nil || t.Program != nil { // the end of its branch says it
		return
	}
	e := runtime.FinishedEvent(t, r)
	if r.Generate != nil { // for a stream elsewhere that was not told all of them
		e.Tokens = r.Generate.Part.Tokens
	}
	if restored {
		e.Restored = 1
	}
	d.pub.emit(e)
}
