package runtime

import (
	"errors"
	"fmt"
	"io"
	"time"
)

// Replay reads a journal and tells sink what happened in its run, as far as the
// journal goes, without a backend, a function or a lock: a run can be looked at
// again on any machine. It returns the report as of the journal's end.
//
// Each node's text comes in one piece. Nodes carry the times at which they were
// ready and at which their results were recorded; where a journal has no times,
// events have none. A run that was not over ends with RunFailed, which says so.
//
// most bounds what the program in the journal may do here, whatever it was
// allowed when it ran; zero fields mean the defaults. The errors are those of
// [ReadJournal], and those of results that do not fit their program.
func Replay(journal io.Reader, sink Sink, most Limits) (*Report, error) {
	c, err := readRecords(journal)
	if err != nil {
		return nil, journalError("", err)
	}
	if c.header == nil {
		return nil, &JournalError{Offset: 0, Err: errors.New("there is no complete header: nothing was recorded, so run the program again")}
	}
	r := &runner{cfg: newConfig(nil)}
	vars, err := r.adopt(c.header)
	if err != nil {
		return nil, &JournalError{Offset: 0, Err: err}
	}
	limits := c.header.Limits.within(most)
	r.cfg.limits = &limits
	if r.m, err = New(r.graph, vars, r.cfg.options()); err != nil {
		return nil, err
	}
	now := c.header.Created
	r.em = &emitter{sink: sink, clock: func() time.Time { return now }}
	r.em.emit(Event{Kind: RunStarted, Run: r.cfg.run, Program: r.graph.Name})
	r.due = c.due
	r.flight = map[string]*flight{}
	r.depart()
	for i := range c.results {
		res := &c.results[i]
		if t, ok := c.times[res.Task]; ok && t.After(now) {
			now = t
		}
		f := r.flight[res.Task]
		delete(r.flight, res.Task)
		switch err := r.m.Apply(*res); {
		case errors.Is(err, ErrCancelledTask): // it came too late
			continue
		case err != nil:
			return nil, &JournalError{Offset: -1, Err: fmt.Errorf("%w: its results do not fit its program: %w", ErrJournalCorrupt, err)}
		}
		r.announce(&f.task, res, true)
		r.depart()
	}
	if c.over.After(now) {
		now = c.over
	}
	report := r.m.Report()
	report.Restored = len(c.results)
	end := Event{Kind: RunFailed, Usage: &report.Usage}
	switch {
	case r.m.Done() && r.m.Err() == nil:
		end.Kind, end.Value = RunFinished, report.Value
	case r.m.Done():
		end.Error = r.m.Err().Error()
	case c.ended && c.endErr != "":
		end.Error = c.endErr
	default:
		end.Error = "the journal ends here, and the run was not over"
	}
	r.em.emit(end)
	return report, nil
}

// depart takes over what changed in the machine and announces the tasks that can
// begin now.
func (r *runner) depart() {
	r.follow()
	for _, t := range append(r.idle, r.queue...) {
		r.flight[t.ID] = &flight{task: t, cancel: func() {}}
		e := t.event(NodeStarted)
		if w := t.Wait; w != nil {
			e.Text, e.Ask = w.Ask, w.Question(r.due[t.ID])
		}
		r.em.emit(e)
	}
	r.idle, r.queue = nil, nil
}

// within returns the smaller of each limit.
func (l Limits) within(most Limits) Limits {
	l, most = l.withDefaults(), most.withDefaults()
	return Limits{Nodes: min(l.Nodes, most.Nodes), Branches: min(l.Branches, most.Branches), Text: min(l.Text, most.Text)}
}
