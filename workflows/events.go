package workflows

import (
	"sync"
	"time"

	"github.com/coppice-run/coppice/runtime"
)

// streams are the event streams of the runs that this process works on.
type streams struct {
	open func(run string) runtime.Sink // nil: nobody listens

	mu   sync.Mutex
	runs map[string]*publisher
}

// of returns the stream of a run, nil if nobody listens.
func (s *streams) of(run string) *publisher {
	if s.open == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.runs[run]
	if p == nil {
		p = &publisher{sink: s.open(run), told: map[key]bool{}, texts: map[string]int{}}
		if s.runs == nil {
			s.runs = map[string]*publisher{}
		}
		s.runs[run] = p
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sink == nil { // nobody listens to this run, or it is over
		return nil
	}
	return p
}

// key names an event that happens once in a run.
type key struct {
	kind runtime.EventKind
	id   string
}

// publisher numbers the events of a run and hands them to its sink. Workflow code
// runs again at each replay and activities at each attempt: what was told in
// this process is not told twice, so a reader sees no gaps and no doubles.
type publisher struct {
	mu    sync.Mutex
	sink  runtime.Sink
	seq   uint64
	over  bool
	told  map[key]bool
	texts map[string]int // bytes of a task's text that were told
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
	case runtime.UsageSoFar, runtime.PromptProgress:
	default:
		k := key{e.Kind, e.Task + "\x00" + e.Branch}
		if p.told[k] {
			return
		}
		p.told[k] = true
		if e.Kind == runtime.NodeFinished {
			delete(p.texts, e.Task)
		}
	}
	p.over = e.Kind == runtime.RunFinished || e.Kind == runtime.RunFailed
	p.seq++
	e.Seq, e.Time = p.seq, time.Now()
	p.sink.Emit(e)
	if p.over {
		p.sink, p.told, p.texts = nil, nil, nil
	}
}
