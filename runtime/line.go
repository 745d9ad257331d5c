package runtime

import (
	"errors"
	"fmt"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// ErrLineOver: a script asked for something on a line that has ended: a branch
// that another one made needless, or a run that is over.
var ErrLineOver = errors.New("this line of the script is over")

// line is a branch of a script as the script sees it: the steps that were asked
// for and not run yet. It exists before its branch does, since a script may ask
// on while the steps before a fork still run.
type line struct {
	m      *Machine
	up     *line
	b      *branch  // nil before its fork starts
	queue  []*reply // not begun
	now    *reply   // begun and not over
	idle   bool     // its branch waits for the script
	ended  bool     // the script asked for the end
	failed error    // asked for before the branch was there
}

// reply implements lang.Answer.
type reply struct {
	l     *line
	ask   lang.Ask
	done  bool
	value any
	other map[string]any // the node's Others
	err   error
}

// over reports whether nothing more happens on the line.
func (l *line) over() bool {
	switch {
	case l == nil:
		return false
	case l.b != nil:
		return l.b.status != Running || l.m.done
	}
	return l.m.done || l.up.over()
}

// why returns the reason that a step of a line which is over has no value.
func (l *line) why() error {
	switch {
	case l.b != nil && l.b.err != nil:
		return l.b.err
	case l.b == nil && l.up != nil:
		return l.up.why()
	case l.m.err != nil:
		return l.m.err
	}
	return ErrLineOver
}

// Done implements lang.Answer.
func (a *reply) Done() bool { return a.done || a.err != nil || a.l.over() }

// Value implements lang.Answer.
func (a *reply) Value() (any, error) {
	switch {
	case a.err != nil:
		return nil, a.err
	case a.done:
		return a.value, nil
	}
	return nil, a.l.why()
}

// Other implements lang.Answer.
func (a *reply) Other(name string) (any, error) {
	if _, err := a.Value(); err != nil {
		return nil, err
	}
	return a.other[name], nil
}

// NewScript returns a machine at the start of a run of a script. It has no steps
// but those that [Machine.Ask] adds; [Machine.Settle] runs them. A driver lets
// the coroutines of the script run until all wait, settles the machine, starts
// the tasks that are ready, and goes on so with each result.
//
// There is no Restore for it: the script is run again, and the results are
// applied in their order as it asks for them.
func NewScript(g *lang.Graph, inputs map[string]any, opt Options) (*Machine, error) {
	m, err := newMachine(g, inputs, opt)
	if err != nil {
		return nil, err
	}
	l := &line{m: m, b: m.trunk}
	m.lines = map[string]*line{"": l}
	m.trunk.enter(frame{line: l})
	l.idle = true
	return m, nil
}

// Ask adds a step to a line of a script. What is asked of a line that is over has
// its error as the answer.
func (m *Machine) Ask(a lang.Ask) lang.Answer {
	l := m.lines[a.Line]
	if l == nil {
		return &reply{l: m.lines[""], err: fmt.Errorf("runtime: no line %q: %w", a.Line, ErrUnknownTask)}
	}
	x := &reply{l: l, ask: a}
	if l.ended || l.over() {
		return x
	}
	if a.Kind == lang.AskEnd {
		l.ended = true
		if a.Err != nil {
			l.fail(a.Err)
			return x
		}
	}
	if a.Fork {
		id := instanceID(a.Node.ID, a.Enclosing, a.Instance)
		for i := range a.Items {
			m.lines[indexed(id, i)] = &line{m: m, up: l}
		}
	}
	l.queue = append(l.queue, x)
	if l.idle {
		l.idle = false
		m.runnable = append(m.runnable, l.b)
	}
	return x
}

// fail ends a line at once, with what is in flight on it.
func (l *line) fail(err error) {
	b := l.b
	if b == nil {
		l.failed = err
		return
	}
	l.m.abandon(b)
	l.m.fail(b, err)
}

// abandon cancels what a branch waits for.
func (m *Machine) abandon(b *branch) {
	if t := b.task; t != nil {
		t.state = taskCancelled
		t.release()
		b.task = nil
		if t.seen {
			m.changes.Cancel = append(m.changes.Cancel, t.ID)
		}
	}
	if b.waiting != nil {
		for _, c := range b.waiting.branches {
			m.cancel(c)
		}
		b.waiting = nil
	}
}

// Settle runs what was asked for until all lines wait for results or for the
// script.
func (m *Machine) Settle() { m.drain() }

// stepLine runs the next step of the line on top of the stack of b. It returns
// false if there is none.
func (m *Machine) stepLine(b *branch, f *frame) bool {
	l := f.line
	l.settle()
	if len(l.queue) == 0 {
		l.idle = true
		return false
	}
	x := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	l.now = x
	a := &x.ask
	f.enclosing, f.instance = a.Enclosing, a.Instance
	if err := m.count(); err != nil {
		m.fail(b, err)
		return false
	}
	switch a.Kind {
	case lang.AskOpen:
		b.prompt.push(backend.Turn{Role: backend.Role(a.Node.Role.Role), Open: true})
		b.pristine = false
	case lang.AskClose:
		b.prompt.close()
	case lang.AskEnd:
		if err := m.endLine(b, l, a.Value); err != nil {
			m.fail(b, err)
		}
	default:
		if err := m.exec(b, a.Node); err != nil {
			m.failAt(b, a.Node, err)
		}
	}
	return true
}

// settle answers the step that was running: a branch that is back at its line is
// done with it.
func (l *line) settle() {
	x := l.now
	if x == nil {
		return
	}
	l.now = nil
	x.done = true
	if x.ask.Node != nil && x.ask.Node.Name != "" {
		x.value = l.b.vars[x.ask.Node.Name]
		for _, name := range x.ask.Node.Others() {
			if x.other == nil {
				x.other = map[string]any{}
			}
			x.other[name] = l.b.vars[name]
		}
	}
	x.ask = lang.Ask{}
}

// endLine ends the branch of a line with a value.
func (m *Machine) endLine(b *branch, l *line, v any) error {
	if err := m.spend(weight(v, m.opt.Limits.Text)); err != nil {
		return err
	}
	l.settle()
	if b.fork != nil {
		b.value = v
		b.status = Finished
		b.stack = nil
		m.changes.Branches = append(m.changes.Branches, BranchChange{ID: b.id, Label: b.label, Status: Finished})
		m.joined(b.fork, b)
		return nil
	}
	v, err := lang.Convert(v, m.graph.Output)
	if err != nil {
		return fmt.Errorf("the result of the script: %w", err)
	}
	text, err := m.encode(v, m.graph.Output)
	if err != nil {
		return err
	}
	b.stack = nil
	m.finish(v, text)
	return nil
}

// asked returns the step of a script that b carries out, which may be that of a
// branch above: nil in a program of Define.
func (m *Machine) asked(b *branch) *lang.Ask {
	if m.lines == nil {
		return nil
	}
	for ; b != nil; b = b.fork.parent {
		for i := range b.stack {
			if l := b.stack[i].line; l != nil && l.now != nil {
				return &l.now.ask
			}
		}
		if b.fork == nil {
			break
		}
	}
	return nil
}

// arms returns the lines of the fork that b is about to start, nil if it is not
// that of a Map.
func (m *Machine) arms(b *branch, n *lang.Node, id string) ([]*line, []any) {
	a := m.asked(b)
	if a == nil || !a.Fork || a.Node != n {
		return nil, nil
	}
	lines := make([]*line, len(a.Items))
	for i := range lines {
		lines[i] = m.lines[indexed(id, i)]
	}
	return lines, a.Items
}

// attach makes c the branch of a line.
func (l *line) attach(c *branch, i int, n *lang.Node, id string) {
	l.b = c
	c.id = indexed(id, i)
	c.stack = append(c.stack, frame{line: l, enclosing: n.ID, instance: c.id})
}

// begin fails branches whose scripts failed before they started.
func (f *fork) begin(m *Machine, lines []*line) {
	for i, l := range lines {
		if l.failed != nil && f.branches[i].status == Running {
			m.fail(f.branches[i], l.failed)
		}
	}
}

// Func returns the function that a task of a script calls: those of scripts are
// known by the step, not by name alone.
func (m *Machine) Func(task string) (lang.Func, bool) {
	if t := m.tasks[task]; t != nil && t.fn != nil {
		return *t.fn, true
	}
	return lang.Func{}, false
}

// Trace returns a hash of what a script asked for on the way to a task, by which
// a replay finds out that it is of another script. It is 0 for other programs.
func (m *Machine) Trace(task string) uint64 {
	if t := m.tasks[task]; t != nil {
		return t.trace
	}
	return 0
}
