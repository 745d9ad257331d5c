package runtime

import (
	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// chance says how certain something is before the run gets there.
type chance uint8

const (
	never chance = iota
	maybe
	surely
)

// hints returns what the program knows of its own future at a request of b.
func (m *Machine) hints(b *branch) backend.Hints {
	later := b.later()
	reader, reused := b, later == surely
	// A branch that added nothing asks with its parent's prompt, which the
	// parent may go on with.
	for p := b; !reused && p.pristine && p.fork != nil; {
		p = p.fork.parent
		if reused = p.later() == surely; reused {
			reader = p
		}
	}
	return backend.Hints{Run: m.opt.Run, Branch: reader.id, Reused: reused, LastUse: later == never}
}

// Together corrects the hints of ready tasks that a driver begins at the same time:
// the number of siblings, where fewer start now than the machine announced, because
// the rest is restored or waits its turn.
func (m *Machine) Together(tasks []Task) {
	var count map[*fork]int
	each := func(f func(t *Task, h *backend.Hints)) {
		for i := range tasks {
			switch t := &tasks[i]; {
			case t.Generate != nil && t.Generate.Hints.Siblings > 1:
				f(t, &t.Generate.Hints)
			case t.Score != nil && t.Score.Hints.Siblings > 1:
				f(t, &t.Score.Hints)
			}
		}
	}
	each(func(t *Task, h *backend.Hints) {
		if count == nil {
			count = map[*fork]int{}
		}
		count[m.tasks[t.ID].branch.fork]++
	})
	each(func(t *Task, h *backend.Hints) {
		n := count[m.tasks[t.ID].branch.fork]
		switch {
		case n >= h.Siblings:
		case t.Generate != nil: // the machine's own stays as it is
			req := *t.Generate
			req.Hints.Siblings = n
			t.Generate = &req
		default:
			req := *t.Score
			req.Hints.Siblings = n
			t.Score = &req
		}
	})
}

// later says whether a request after the current node reads the context of b:
// in the rest of each body it is in, or in further rounds.
func (b *branch) later() chance {
	var s scan
	for i := len(b.stack) - 1; i >= 0 && !s.settled(); i-- {
		f := &b.stack[i]
		if f.line != nil {
			f.line.scan(&s)
			continue
		}
		s.body(f.body[f.pc:])
		if f.node == nil {
			continue
		}
		switch f.node.Kind {
		case lang.KindRepeat:
			if f.round+1 < f.node.Repeat.Max {
				var again scan
				again.body(f.body)
				if f.node.Repeat.Until != "" {
					again.doubt()
				}
				s.then(again)
			}
		case lang.KindForEach:
			if f.round+1 < len(f.items) {
				s.body(f.body)
			}
		}
	}
	return s.reads
}

// scan adds what a script has asked for so far, and that it may ask for more.
func (l *line) scan(s *scan) {
	for _, x := range l.queue {
		if x.ask.Kind == lang.AskNode {
			s.then(scanNode(x.ask.Node))
		}
	}
	if !l.ended {
		s.then(scan{reads: maybe})
	}
}

// scan is what running nodes one after the other will do: whether it reads the
// context, and whether the program ends in it.
type scan struct {
	reads chance
	ends  chance
}

// settled reports whether nothing that follows can change the answer.
func (s *scan) settled() bool { return s.reads == surely || s.ends == surely }

// then adds what happens afterwards.
func (s *scan) then(next scan) {
	if s.settled() {
		return
	}
	if s.ends == maybe {
		next.doubt()
	}
	s.reads = max(s.reads, next.reads)
	s.ends = max(s.ends, next.ends)
}

// doubt makes what is certain possible: it may not be run at all.
func (s *scan) doubt() {
	s.reads = min(s.reads, maybe)
	s.ends = min(s.ends, maybe)
}

func (s *scan) body(nodes []*lang.Node) {
	for _, n := range nodes {
		if s.settled() {
			return
		}
		s.then(scanNode(n))
	}
}

func scanNode(n *lang.Node) scan {
	var s scan
	switch n.Kind {
	case lang.KindGen, lang.KindSelect, lang.KindJSON:
		s.reads = surely
	case lang.KindReturn:
		s.ends = surely
	case lang.KindRole:
		s.body(n.Role.Body)
	case lang.KindWhen:
		var yes, no scan
		yes.body(n.When.Then)
		no.body(n.When.Else)
		s.reads = either(yes.reads, no.reads)
		s.ends = either(yes.ends, no.ends)
	case lang.KindRepeat:
		if n.Repeat.Max > 0 {
			s.body(n.Repeat.Body)
		}
	case lang.KindForEach:
		s.body(n.ForEach.Body)
		s.doubt() // the list may be empty
	case lang.KindFork:
		for i := range n.Fork.Arms {
			var arm scan
			arm.body(n.Fork.Arms[i].Body)
			s.reads = max(s.reads, arm.reads)
		}
		if len(n.Fork.Arms) == 0 {
			s.body(n.Fork.Body)
			if n.Fork.Over != "" {
				s.doubt()
			}
		}
		s.ends = never
	}
	return s
}

// either is the chance of something that one of two ways does.
func either(a, b chance) chance {
	if a == b {
		return a
	}
	return maybe
}
