package runtime

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/coppice-run/coppice/lang"
)

// The policies of forks.
const (
	policyAll     = "all"
	policyCollect = "collect"
	policyFirst   = "first"
	policyQuorum  = "quorum"
)

// fork is a fork that was started: its branches and how far they are.
type fork struct {
	node     *lang.Node
	id       string // instance id
	parent   *branch
	branches []*branch
	finished int
	failed   int
	starting int // branches whose first request starts in this step
}

// startFork starts the branches of a fork. The parent waits for them; its
// prompt is complete up to here, so every branch begins with all of it.
func (m *Machine) startFork(b *branch, n *lang.Node) error {
	fn := n.Fork
	f := &fork{node: n, id: b.instance(n), parent: b}
	count, items := len(fn.Arms), []any(nil)
	lines, asked := m.arms(b, n, f.id)
	switch {
	case lines != nil:
		count, items = len(lines), asked
	case len(fn.Arms) > 0:
	case fn.Over != "":
		v, err := m.eval(b, fn.Over)
		if err != nil {
			return err
		}
		if items, err = list(fn.Over, v); err != nil {
			return err
		}
		count = len(items)
	default:
		count = len(fn.Items)
	}
	switch fn.Join.Kind {
	case "", policyAll, policyCollect:
	case policyFirst:
		if count == 0 {
			return errors.New("the list is empty, and the first success of no branches does not exist: guard the fork with when")
		}
	case policyQuorum:
		if fn.Join.N > count {
			return fmt.Errorf("a quorum of %d is asked of %d branches", fn.Join.N, count)
		}
	default:
		return fmt.Errorf("unknown policy %q", fn.Join.Kind)
	}
	if m.branches += count; m.branches > m.opt.Limits.Branches {
		return fmt.Errorf("%w: more than %d branches started", ErrLimit, m.opt.Limits.Branches)
	}
	b.forks = append(b.forks, f)
	if count == 0 {
		b.set(n.Name, []any{})
		b.set(fn.Errors, []any{})
		return nil
	}
	f.branches = make([]*branch, count)
	// One piece of memory for all that most branches need.
	kids, own, stacks := make([]branch, count), make([]string, 4*count), make([]frame, 2*count)
	for i := range kids {
		c := &kids[i]
		f.branches[i] = c
		c.fork, c.index, c.status, c.graph = f, i, Running, b.graph
		c.prompt = b.prompt.child()
		c.base = len(c.prompt.turns)
		if c.base > 0 {
			c.parts = len(c.prompt.turns[c.base-1].Parts)
		}
		c.pristine = true
		c.vars = maps.Clone(b.vars)
		c.own = own[4*i : 4*i : 4*i+4]
		c.stack = stacks[2*i : 2*i : 2*i+2]
		switch {
		case lines != nil:
			c.label = label(items[i])
			lines[i].attach(c, i, n, f.id)
			c.set(fn.As, items[i])
		case len(fn.Arms) > 0:
			arm := &fn.Arms[i]
			c.label = arm.Name
			c.id = f.id + "/" + arm.Name
			c.enterArm(n.ID, f.id, i, arm)
		case fn.Over != "":
			c.label = label(items[i])
			c.start(n.ID, f.id, i, fn.Body)
			c.set(fn.As, items[i])
		default:
			c.label = fn.Items[i]
			c.start(n.ID, f.id, i, fn.Body)
			c.set(fn.As, fn.Items[i])
		}
		m.changes.Branches = append(m.changes.Branches, BranchChange{ID: c.id, Parent: b.id, Label: c.label, Status: Running})
	}
	b.waiting = f
	m.runnable = append(m.runnable, f.branches...)
	f.begin(m, lines)
	return nil
}

// start puts the body of branch i on the stack.
func (b *branch) start(forkID, instance string, i int, body []*lang.Node) {
	b.id = indexed(instance, i)
	b.stack = append(b.stack, frame{body: body, enclosing: forkID, instance: b.id})
}

// enterArm puts an arm's body on the stack. The ids of its nodes hold the arm's
// name, which tells arms apart as an index does.
func (b *branch) enterArm(forkID, instance string, i int, arm *lang.Arm) {
	b.stack = append(b.stack, frame{body: arm.Body, enclosing: forkID, instance: instance})
}

// joined notes that a branch ended and ends the fork if its policy says so.
func (m *Machine) joined(f *fork, b *branch) {
	if b.status == Finished {
		f.finished++
	} else {
		f.failed++
	}
	if f.node.Run != nil {
		m.joinProgram(f, b)
		return
	}
	open := len(f.branches) - f.finished - f.failed
	switch p := f.node.Fork.Join; p.Kind {
	case policyCollect:
		if open == 0 {
			m.join(f)
		}
	case policyFirst:
		switch {
		case f.finished > 0:
			m.join(f)
		case open == 0:
			m.failFork(f)
		}
	case policyQuorum:
		switch {
		case f.finished >= p.N:
			m.join(f)
		case f.finished+open < p.N:
			m.failFork(f)
		}
	default:
		switch {
		case f.failed > 0:
			m.failFork(f)
		case open == 0:
			m.join(f)
		}
	}
}

// join ends a fork well: branches still running are cancelled and the parent
// goes on with the list of what the branches yielded, in their order. Under
// "collect" a failed branch is null in it; under "first" and "quorum" the list
// holds the successes only.
func (m *Machine) join(f *fork) {
	values := make([]any, 0, len(f.branches))
	for _, b := range f.branches {
		m.cancel(b)
		switch {
		case b.status == Finished:
			values = append(values, b.value)
		case f.node.Fork.Join.Kind == policyCollect:
			values = append(values, nil)
		}
	}
	p := f.parent
	p.waiting = nil
	if err := m.spend(weight(values, m.opt.Limits.Text)); err != nil {
		m.fail(p, &NodeError{Task: f.id, Node: f.node.ID, Pos: f.node.Pos, Err: err})
		return
	}
	p.set(f.node.Name, values)
	if name := f.node.Fork.Errors; name != "" {
		errs, err := m.errorsOf(f)
		if err != nil {
			m.fail(p, &NodeError{Task: f.id, Node: f.node.ID, Pos: f.node.Pos, Err: err})
			return
		}
		p.set(name, errs)
	}
	m.runnable = append(m.runnable, p)
}

// errorsOf returns the error of each branch as text, "" for those that did not
// fail.
func (m *Machine) errorsOf(f *fork) ([]any, error) {
	errs := make([]any, len(f.branches))
	for i, b := range f.branches {
		errs[i] = ""
		if b.status == Failed {
			errs[i] = b.err.Error()
		}
	}
	return errs, m.spend(weight(errs, m.opt.Limits.Text))
}

// failFork ends a fork, and with it the parent, with the errors of its failed
// branches.
func (m *Machine) failFork(f *fork) {
	err := &ForkError{Policy: f.node.Fork.Join.Kind, Of: len(f.branches)}
	for _, b := range f.branches {
		m.cancel(b)
		if b.status == Failed {
			err.Branches = append(err.Branches, &BranchError{Branch: b.id, Label: b.label, Err: b.err})
		}
	}
	f.parent.waiting = nil
	m.fail(f.parent, &NodeError{Task: f.id, Node: f.node.ID, Pos: f.node.Pos, Err: err})
}

// label returns what people call a branch over an item.
func label(item any) string {
	s := lang.FormatValue(item, lang.Type{})
	const most = 60
	if s = strings.TrimSpace(s); len(s) > most {
		n := most
		for n > 0 && !utf8.RuneStart(s[n]) {
			n--
		}
		s = s[:n] + "…"
	}
	return s
}
