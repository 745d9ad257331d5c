package runtime

import (
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// stage runs the coroutines of a script one at a time, each until it waits, in
// the order in which they were started. Nothing in it is concurrent: it belongs
// to the goroutine that runs the script.
type stage struct {
	m    *Machine
	info *backend.Info // of the backend; nil without
	// fallback are the names of the other backends.
	fallback []string
	answered bool // somebody can answer what is asked

	seed uint64
	now  time.Time
	cos  []*coroutine
	over error // why waits end
}

// coroutine is the trunk or an arm of a script.
type coroutine struct {
	next  func() (struct{}, bool)
	stop  func()
	ready func() bool // what it waits for; nil: nothing
	yield func(struct{}) bool
	done  bool
}

// start puts the trunk of a script on the stage.
func (st *stage) start(script lang.Scripted, g *lang.Graph, inputs map[string]any) {
	st.spawn(func(w lang.Seams) { script.Play(w, g, inputs) })
}

func (st *stage) spawn(f func(lang.Seams)) {
	co := &coroutine{}
	co.next, co.stop = iter.Pull(func(yield func(struct{}) bool) {
		co.yield = yield
		f(&stageSeams{st, co})
	})
	st.cos = append(st.cos, co)
}

// play lets the script and the machine go on until both wait.
func (st *stage) play() {
	for again := true; again; {
		again = false
		for i := 0; i < len(st.cos); i++ { // may grow
			co := st.cos[i]
			if co.done || co.ready != nil && !co.ready() {
				continue
			}
			again = true
			co.ready = nil
			if _, more := co.next(); !more {
				co.done = true
			}
		}
		kept := st.cos[:0]
		for _, co := range st.cos {
			if !co.done {
				kept = append(kept, co)
			}
		}
		clear(st.cos[len(kept):])
		st.cos = kept
		st.m.Settle()
	}
}

// close ends the coroutines that are left: their waits return err.
func (st *stage) close(err error) {
	st.over = err
	for len(st.cos) > 0 {
		cos := st.cos
		st.cos = nil // those that start now are ended in the next round
		for _, co := range cos {
			co.stop()
		}
	}
}

// stageSeams are the seams of one coroutine.
type stageSeams struct {
	st *stage
	co *coroutine
}

func (s *stageSeams) Now() time.Time             { return s.st.now }
func (s *stageSeams) Seed() uint64               { return s.st.seed }
func (s *stageSeams) Spawn(f func(w lang.Seams)) { s.st.spawn(f) }

func (s *stageSeams) Await(ready func() bool) error {
	for {
		switch {
		case s.st.over != nil:
			return s.st.over
		case ready():
			return nil
		}
		s.co.ready = ready
		s.co.yield(struct{}{}) // false: the run is over
	}
}

func (s *stageSeams) Ask(a lang.Ask) lang.Answer {
	if s.st.over != nil {
		return endedAnswer{s.st.over}
	}
	if a.Kind == lang.AskNode {
		if err := s.st.refuse(&a); err != nil {
			s.st.m.Ask(lang.Ask{Kind: lang.AskEnd, Line: a.Line, Err: err})
			return endedAnswer{err}
		}
	}
	return s.st.m.Ask(a)
}

// refuse returns why a step cannot be run here: what check finds out about a
// graph before its run.
func (st *stage) refuse(a *lang.Ask) error {
	if st.info != nil {
		c := checker{have: st.info.Capabilities}
		c.body([]*lang.Node{a.Node}, a.InRole)
		if c.missing != nil {
			return &UnsupportedError{Program: st.m.graph.Name, Model: st.info.Model, Missing: c.missing}
		}
	}
	if err := checkStops(&lang.Graph{Body: []*lang.Node{a.Node}}); err != nil {
		return err
	}
	if !st.answered {
		if err := neverAnswered(a.Node); err != nil {
			return err
		}
	}
	if t := a.Node.Terms(); t != nil {
		for _, f := range t.Fallback {
			if !slices.Contains(st.fallback, f) {
				return &NodeError{Task: a.Node.ID, Node: a.Node.ID, Pos: a.Node.Pos, Err: fmt.Errorf("no fallback %q: the run has %s", f, orNone(st.fallback))}
			}
		}
	}
	return nil
}

// endedAnswer is the answer to what is asked too late or cannot be.
type endedAnswer struct{ err error }

func (endedAnswer) Done() bool            { return true }
func (a endedAnswer) Value() (any, error) { return nil, a.err }

func (a endedAnswer) Other(string) (any, error) { return nil, a.err }

// errScriptOver is what waits of a script return whose run is over.
func errScriptOver(m *Machine) error {
	if err := m.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrLineOver, err)
	}
	return ErrLineOver
}
