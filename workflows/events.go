package workflows

import (
	"sync"
	"time"

	"github.com/coppice-run/coppice/runtime"
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
		p = &publisher{sink: s.open(run), told: map[told]bool{}, texts: map[string]int{}}
		if s.runs == nil {
			s.runs = map[string]*publisher{}
		}
		s.runs[key] = p
		if p.sink == nil {
			p.end()
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

// told names an event that happens once in a run.
type told struct {
	kind runtime.EventKind
	id   string
}

// publisher numbers the events of a run and hands them to its sink. Workflow code
// runs again at each replay and activities at each attempt: what was told in
// this process is not told twice, so a reader sees no gaps and no doubles.
type publisher struct {
	idle bool // guarded by streams

	mu    sync.Mutex
	sink  runtime.Sink
	seq   uint64
	over  bool
	told  map[told]bool
	texts map[string]int // bytes of a task's text that were told
}

func (p *publisher) ended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// end forgets all but that the stream is over.
func (p *publisher) end() {
	p.over = true
	p.sink, p.told, p.texts = nil, nil, nil
}

// void tells that the text of a task that was told so far does not count, if any
// was.
func (p *publisher) void(e runtime.Event) {
	if p == nil {
		return
	}
	p.mu.Lock()
	some := p.texts[e.Task] > 0
	p.mu.Unlock()
	if some {
		e.Error = "an earlier attempt was lost, and the model begins anew"
		p.emit(e)
	}
}

func (p *publisher) emit(e runtime.Event) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return
	}
	switch e.Kind {
	case runtime.TextDelta:
		// A second attempt begins with what the first one wrote.
		if at := p.texts[e.Task]; e.Offset < at {
			if e.Offset+len(e.Text) <= at {
				return
			}
			e.Text, e.Tokens = e.Text[at-e.Offset:], nil
			e.Offset = at
		}
		p.texts[e.Task] = e.Offset + len(e.Text)
	case runtime.NodeRetried:
		delete(p.texts, e.Task)
	case runtime.UsageSoFar, runtime.PromptProgress:
	default:
		k := told{e.Kind, e.Task + "\x00" + e.Branch}
		if p.told[k] {
			return
		}
		p.told[k] = true
		if e.Kind == runtime.NodeFinished {
			delete(p.texts, e.Task)
		}
	}
	p.seq++
	e.Seq, e.Time = p.seq, time.Now()
	p.sink.Emit(e)
	if e.Kind == runtime.RunFinished || e.Kind == runtime.RunFailed {
		p.end()
	}
}
