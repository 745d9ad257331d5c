package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// Options of a run. The same options, graph, inputs and results give the same
// machine.
type Options struct {
	// Run names the run. It is part of the idempotency keys, so two runs that
	// must both have their effects need different names.
	Run string
	// Seed of the run, from which nodes without a seed of their own draw theirs.
	Seed uint64
	// Salt separates cache entries of tenants; it is passed on to the backend.
	Salt string
	// Limits bound what the program may do.
	Limits Limits
	// Apart makes tasks of programs that are steps, for a driver that runs each in a
	// machine of its own ([NewApart]).
	Apart bool
	// Within is the id of the task that the program is of, if it is a step of
	// another that runs it apart.
	Within string
}

// Limits bound a run, so that a hostile or mistaken program ends. Zero fields
// mean the defaults.
type Limits struct {
	Nodes    int `json:"nodes"`    // nodes executed, those in loops each time; default 1,000,000
	Branches int `json:"branches"` // branches started; default 100,000
	// Text is the bytes of one text or one value written out, and of all values
	// in a report together; 16 times as much may be made in all. Default 64 MiB.
	Text int `json:"text"`
}

func (l Limits) withDefaults() Limits {
	if l.Nodes == 0 {
		l.Nodes = 1_000_000
	}
	if l.Branches == 0 {
		l.Branches = 100_000
	}
	if l.Text == 0 {
		l.Text = 64 << 20
	}
	return l
}

// Machine is a program in the middle of a run. It changes only in Apply, and its
// state is a function of the graph, the inputs, the options and the results
// applied. Where siblings run side by side their results commute: the state
// does not depend on the order they are applied in. The exceptions are asked
// for: with the policies "first" and "quorum" the order says who won, and where
// a failure ends a fork it says which failure that was.
//
// Nodes of one branch run one after the other. A Machine is not safe for
// concurrent use.
type Machine struct {
	graph *lang.Graph
	opt   Options

	trunk    *branch
	tasks    map[string]*task
	runnable []*branch // branches that can take a step, first in, first out
	results  []Result

	nodes    int // executed
	bytes    int // of texts made
	branches int // started
	done     bool
	err      error
	value    any
	text     json.RawMessage // value as JSON
	raws     rawTable
	changes  Changes          // but Start, which is made from pending
	pending  []*task          // started and not yet handed to the driver by Changes
	fresh    []*task          // started by the running Apply
	lines    map[string]*line // of a script, by branch

	first struct { // memory for what small programs need of the lists above
		trunk    branch
		runnable [4]*branch
		pending  [4]*task
		fresh    [4]*task
		results  [2]Result
		own      [8]string
		stack    [2]frame
	}
}

// taskState says where a task stands.
type taskState uint8

const (
	taskReady taskState = iota
	taskFinished
	taskCancelled
)

// task is a Task and the place its result goes to.
type task struct {
	Task
	state  taskState
	branch *branch
	node   *lang.Node
	first  bool   // the first model request of its branch
	seen   bool   // handed to the driver by Changes
	trial  *trial // of a generation that must pass checks
	// generation is the task whose value this call of a check judges; nil for all
	// other tasks.
	generation *task

	trace uint64 // of a script
}

// Status says where a branch stands.
type Status string

// The states of a branch.
const (
	Running   Status = "running"
	Finished  Status = "finished"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// Changes is what became different since a driver last asked.
type Changes struct {
	// Start are the tasks that became ready, in the order of the program.
	Start []Task
	// Cancel are the ids of tasks that were ready and are no longer wanted. A
	// result for one of them is refused with ErrCancelledTask.
	Cancel []string
	// Branches are the branches that started or ended.
	Branches []BranchChange
	// Refused are the generated values that did not pass the checks of their nodes.
	Refused []Refusal
}

// BranchChange says that a branch started or ended.
type BranchChange struct {
	ID     string
	Parent string // id of the branch that its fork belongs to; empty: the trunk
	Label  string
	Status Status // Running: it started
	Err    error  // of a failed branch
	// Budget is that of a program which starts as a step: its driver ends it by a
	// failure of the task that has the branch's id.
	Budget lang.Budget
}

// New returns a machine at the start of a run. Inputs are what lang.Graph.Bind
// returns. A program that goes wrong before its first task gives a machine that
// is done and whose Err says why; New itself fails only if there is nothing to
// run.
func New(g *lang.Graph, inputs map[string]any, opt Options) (*Machine, error) {
	m, err := newMachine(g, inputs, opt)
	if err != nil {
		return nil, err
	}
	m.begin()
	return m, nil
}

// begin runs the program to its first tasks.
func (m *Machine) begin() {
	m.trunk.enter(frame{body: m.graph.Body, enclosing: m.graph.Within(), instance: m.opt.Within})
	m.runnable = append(m.runnable, m.trunk)
	m.drain()
}

// newMachine returns a machine whose trunk has nothing to do yet.
func newMachine(g *lang.Graph, inputs map[string]any, opt Options) (*Machine, error) {
	if g == nil {
		return nil, errors.New("runtime: no graph")
	}
	opt.Limits = opt.Limits.withDefaults()
	m := &Machine{graph: g, opt: opt, tasks: make(map[string]*task)}
	a := &m.first
	m.runnable, m.pending, m.fresh, m.results = a.runnable[:0], a.pending[:0], a.fresh[:0], a.results[:0]
	m.trunk = &a.trunk
	*m.trunk = branch{id: opt.Within, status: Running, graph: g, vars: make(map[string]any, len(inputs)+8), own: a.own[:0], stack: a.stack[:0]}
	m.trunk.prompt.turns = make([]backend.Turn, 0, 4) // reports keep them, and not the machine
	for _, in := range g.Inputs {
		if v, ok := inputs[in.Name]; ok {
			m.trunk.set(in.Name, v)
		}
	}
	return m, nil
}

// Restore returns the machine that New and Apply gave when they were handed the
// same. Results for tasks that were cancelled meanwhile are skipped, so the list
// may hold what arrived too late.
func Restore(g *lang.Graph, inputs map[string]any, opt Options, results []Result) (*Machine, error) {
	m, err := New(g, inputs, opt)
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		if err := m.Apply(r); err != nil && !errors.Is(err, ErrCancelledTask) {
			return nil, fmt.Errorf("runtime: restoring result %d of %d: %w", i+1, len(results), err)
		}
	}
	return m, nil
}

// Snapshot returns the results applied so far, in that order. The slice is the
// caller's, what it points to is not.
func (m *Machine) Snapshot() []Result { return append([]Result(nil), m.results...) }

// Ready returns all tasks that have no result yet, in the order of the program:
// a branch's before those of the next. It changes nothing.
func (m *Machine) Ready() []Task {
	var out []Task
	var walk func(b *branch)
	walk = func(b *branch) {
		if b.task != nil {
			out = append(out, b.task.Task)
		}
		if b.waiting != nil {
			for _, c := range b.waiting.branches {
				if c.status == Running {
					walk(c)
				}
			}
		}
	}
	walk(m.trunk)
	return out
}

// Changes returns what became different since the last call, or since New. A
// driver uses it or Ready: with it there is no list of all tasks to compare.
func (m *Machine) Changes() Changes {
	c := m.changes
	m.changes = Changes{}
	for _, t := range m.pending {
		if t.state == taskReady {
			t.seen = true
			c.Start = append(c.Start, t.Task)
		}
	}
	m.pending = m.pending[:0]
	return c
}

// Done reports whether the run is over, well or not.
func (m *Machine) Done() bool { return m.done }

// Err returns why the run failed, nil while it runs and if it did not.
func (m *Machine) Err() error { return m.err }

// Output returns the value that the program returned: nil before that, and for
// a program without a return.
func (m *Machine) Output() any { return m.value }

// Variables returns the variables of the trunk, inputs included. The map is the
// caller's, the values are not.
func (m *Machine) Variables() map[string]any { return maps.Clone(m.trunk.vars) }

// Apply takes the result of a task. It is the only way the machine changes. An
// error means that the result was refused and nothing changed; a failure of the
// node that the result belongs to is no such error, it becomes part of the run.
func (m *Machine) Apply(r Result) error {
	t := m.tasks[r.Task]
	if t == nil {
		return fmt.Errorf("runtime: result for %q: %w", r.Task, ErrUnknownTask)
	}
	switch t.state {
	case taskFinished:
		return fmt.Errorf("runtime: result for %q: %w", r.Task, ErrFinishedTask)
	case taskCancelled:
		return fmt.Errorf("runtime: result for %q: %w", r.Task, ErrCancelledTask)
	}
	if err := t.check(&r); err != nil {
		return fmt.Errorf("runtime: result for %q: %w", r.Task, err)
	}
	m.results = append(m.results, r)
	t.state = taskFinished
	b := t.branch
	if t.Program != nil {
		m.takeRan(t, &r)
		m.drain()
		return nil
	}
	b.task = nil
	b.cost.add(r.usage())
	if err := m.take(b, t, &r); err != nil {
		m.fail(b, &NodeError{Task: t.ID, Node: t.node.ID, Pos: t.node.Pos, Err: err})
	} else {
		m.runnable = append(m.runnable, b)
	}
	t.release()
	m.drain()
	return nil
}

// release lets go of a prompt that nobody will ask for again.
func (t *task) release() { t.Generate, t.Score = nil, nil }

// check refuses results that do not fit.
func (t *task) check(r *Result) error {
	n := 0
	for _, set := range []bool{r.Generate != nil, r.Score != nil, r.Value != nil, r.Failure != nil} {
		if set {
			n++
		}
	}
	switch {
	case n != 1:
		return fmt.Errorf("%w: %d of generate, score, value and failure are set", ErrBadResult, n)
	case r.Failure != nil:
		return nil
	case t.Program != nil && t.branch.task != t:
		return fmt.Errorf("%w: the program runs here, and only a failure can end it", ErrBadResult)
	case t.Generate != nil && r.Generate == nil:
		return fmt.Errorf("%w: it was a generation", ErrBadResult)
	case t.Score != nil && r.Score == nil:
		return fmt.Errorf("%w: it was a score", ErrBadResult)
	case t.Score != nil && len(r.Score.Options) != len(t.Score.Options):
		return fmt.Errorf("%w: %d scores for %d options", ErrBadResult, len(r.Score.Options), len(t.Score.Options))
	case t.Generate == nil && t.Score == nil && r.Value == nil:
		return fmt.Errorf("%w: it was a %s", ErrBadResult, t.node.Kind)
	case r.Value != nil && !json.Valid(r.Value):
		return fmt.Errorf("%w: the value is not JSON", ErrBadResult)
	}
	return nil
}

// drain runs branches until all wait for something.
func (m *Machine) drain() {
	for i := 0; i < len(m.runnable) && !m.done; i++ {
		m.step(m.runnable[i]) // may append
	}
	clear(m.runnable)
	m.runnable = m.runnable[:0]
	m.publish()
}

// publish puts the tasks that the last steps started into the changes. How many
// siblings start together is known only now.
func (m *Machine) publish() {
	for _, t := range m.fresh {
		if t.first && t.branch.fork != nil {
			t.branch.fork.starting++
		}
	}
	for _, t := range m.fresh {
		if t.state != taskReady {
			continue
		}
		siblings := 1
		if t.first && t.branch.fork != nil {
			siblings = t.branch.fork.starting
		}
		switch {
		case t.Generate != nil:
			t.Generate.Hints.Siblings = siblings
		case t.Score != nil:
			t.Score.Hints.Siblings = siblings
		}
		m.pending = append(m.pending, t)
	}
	for _, t := range m.fresh {
		if f := t.branch.fork; f != nil {
			f.starting = 0
		}
	}
	m.fresh = m.fresh[:0]
	if len(m.pending) > 1024 { // the driver asks Ready, not Changes
		m.pending = slices.DeleteFunc(m.pending, func(t *task) bool { return t.state != taskReady })
	}
}

// finish ends the run well. text is the JSON of the value.
func (m *Machine) finish(v any, text json.RawMessage) {
	m.value, m.text = v, text
	m.done = true
	m.trunk.status = Finished
	m.changes.Branches = append(m.changes.Branches, BranchChange{Status: Finished})
}

// fail ends a branch with an error.
func (m *Machine) fail(b *branch, err error) {
	b.status, b.err = Failed, err
	b.stack = nil
	if b.fork == nil {
		m.done, m.err = true, err
		m.changes.Branches = append(m.changes.Branches, BranchChange{Status: Failed, Err: err})
		return
	}
	m.changes.Branches = append(m.changes.Branches, BranchChange{ID: b.id, Label: b.label, Status: Failed, Err: err})
	m.joined(b.fork, b)
}

// cancel stops a branch and all below it.
func (m *Machine) cancel(b *branch) {
	if b.status != Running {
		return
	}
	b.status = Cancelled
	b.stack = nil
	m.abandon(b)
	if b.root {
		m.tasks[b.id].state = taskCancelled
	}
	m.changes.Branches = append(m.changes.Branches, BranchChange{ID: b.id, Label: b.label, Status: Cancelled})
}
