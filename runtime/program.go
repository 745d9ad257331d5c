package runtime

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// Program asks for a run of a program that is a step of another. A machine hands
// it out only if its options say Apart; otherwise it runs the program itself, in a
// branch whose id is that of the task, and such a task takes no result but the
// failure that ends it.
type Program struct {
	// Graph is the program, with the ids that its nodes have at that place.
	Graph *lang.Graph `json:"-"`
	// Inputs are its inputs, those with a default too, as a JSON object.
	Inputs json.RawMessage `json:"inputs"`
}

// Ran is what a program gave that ran apart: a result holds it beside the value
// or the failure, for the report and the costs of the run.
type Ran struct {
	Branch    Branch         `json:"branch"` // as the report of a run in one piece has it
	Usage     backend.Usage  `json:"usage"`
	Tasks     int            `json:"tasks"`
	Retries   int            `json:"retries,omitempty"`
	Fallbacks map[string]int `json:"fallbacks,omitempty"`
	Emulated  []string       `json:"emulated,omitempty"`
}

// ProgramError is the failure of a program that was a step of another.
type ProgramError struct {
	Program string
	Task    string // of the step
	Err     error
}

func (e *ProgramError) Error() string { return "program " + e.Program + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ProgramError) Unwrap() error { return e.Err }

// NewApart returns the machine of a program that runs apart from the run that it
// is a step of: of a task's Program, with what the options of that run were and
// the id of the task as Within. Its tasks have the ids, keys and seeds that they
// have where the run is in one piece.
func NewApart(g *lang.Graph, inputs json.RawMessage, opt Options) (*Machine, error) {
	m, err := newMachine(g, nil, opt)
	if err != nil {
		return nil, err
	}
	if g.Within() == "" || opt.Within == "" {
		return nil, errors.New("runtime: the graph is not that of a step, or the step is not named")
	}
	if err := m.bind(m.trunk, inputs); err != nil {
		return nil, err
	}
	m.begin()
	return m, nil
}

// Ran returns what the program of a machine gave, for the run that it is a step of.
func (m *Machine) Ran() *Ran {
	r := m.Report()
	b := Branch{
		ID: m.trunk.id, Fork: m.trunk.id, Label: m.graph.Name, Status: m.trunk.status,
		Value: r.Value, Variables: r.Variables, Turns: turnsOf(r.Turns), Usage: r.Usage, Branches: r.Branches,
	}
	if m.err != nil {
		b.Status, b.Error = Failed, m.err.Error()
	}
	var c cost
	c.addBranch(m.trunk)
	u := c.sum
	u.Passes = c.spans
	return &Ran{Branch: b, Usage: u, Tasks: r.Tasks, Retries: r.Retries, Fallbacks: r.Fallbacks, Emulated: r.Emulated}
}

// bind sets the inputs of the program that a branch runs.
func (m *Machine) bind(b *branch, inputs json.RawMessage) error {
	given := map[string]json.RawMessage{}
	if err := json.Unmarshal(inputs, &given); err != nil {
		return fmt.Errorf("the inputs of program %s: %w", b.graph.Name, err)
	}
	for _, in := range b.graph.Inputs {
		v, err := m.decode(given[in.Name], in.Type)
		if err != nil {
			return fmt.Errorf("input %q of program %s: %w", in.Name, b.graph.Name, err)
		}
		b.set(in.Name, v)
	}
	return nil
}

// inputsOf returns what a step gives to the program that it runs.
func (m *Machine) inputsOf(b *branch, n *lang.Node, g *lang.Graph) (json.RawMessage, error) {
	e := m.encoder()
	e.buf = append(e.buf, '{')
	for i, in := range g.Inputs {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.string(in.Name)
		e.buf = append(e.buf, ':')
		given := false
		for _, a := range n.Run.With {
			if a.Name != in.Name {
				continue
			}
			given = true
			v, err := m.eval(b, a.Value)
			if err == nil {
				err = e.value(v, in.Type, 0)
			}
			if err != nil {
				return nil, fmt.Errorf("input %q of program %s: %w", in.Name, g.Name, err)
			}
		}
		if !given {
			e.buf = append(e.buf, in.Default...)
		}
	}
	e.buf = append(e.buf, '}')
	return e.since(0), m.spend(len(e.buf))
}

// startRun starts a program as a step. Its branch has a context and variables of
// its own.
func (m *Machine) startRun(b *branch, n *lang.Node) error {
	g := n.Run.Graph()
	if g == nil {
		return errors.New("the program that it runs is not there: the graph was not checked")
	}
	inputs, err := m.inputsOf(b, n, g)
	if err != nil {
		return err
	}
	if m.branches++; m.branches > m.opt.Limits.Branches {
		return fmt.Errorf("%w: more than %d branches started", ErrLimit, m.opt.Limits.Branches)
	}
	f := &fork{node: n, id: b.instance(n), parent: b}
	c := &branch{id: f.id, label: g.Name, fork: f, status: Running, graph: g, root: true, vars: map[string]any{}}
	if err := m.bind(c, inputs); err != nil {
		return err
	}
	f.branches = []*branch{c}
	b.forks, b.waiting = append(b.forks, f), f
	t := &task{Task: Task{ID: f.id, Branch: b.id, Node: n, Program: &Program{Graph: g, Inputs: inputs}}, branch: c, node: n}
	if a := m.asked(b); a != nil {
		t.trace = a.Trace
	}
	m.tasks[t.ID] = t
	m.changes.Branches = append(m.changes.Branches, BranchChange{ID: c.id, Parent: b.id, Label: c.label, Status: Running, Budget: g.Budget})
	if m.opt.Apart {
		c.task = t
		m.fresh = append(m.fresh, t)
		return nil
	}
	c.enter(frame{body: g.Body, enclosing: g.Within(), instance: c.id})
	m.runnable = append(m.runnable, c)
	return nil
}

// takeRan takes the result of a program that ran apart, or the failure that ends
// one which runs here.
func (m *Machine) takeRan(t *task, r *Result) {
	c := t.branch
	if c.task != t {
		m.abandon(c)
	}
	c.task = nil
	c.ran = r.Ran
	c.cost.add(r.usage())
	if r.Failure != nil {
		m.fail(c, r.Failure)
		return
	}
	v, err := m.decode(r.Value, t.Program.Graph.Output)
	if err != nil {
		m.fail(c, fmt.Errorf("its result: %w", err))
		return
	}
	m.finishProgram(c, v)
}

// returned ends a program that runs here with its value.
func (m *Machine) returned(c *branch, v any) error {
	text, err := m.encode(v, c.graph.Output)
	if err == nil {
		err = m.spend(len(text))
	}
	if err == nil {
		v, err = m.decode(text, c.graph.Output) // as one that ran apart
	}
	if err != nil {
		return err
	}
	m.finishProgram(c, v)
	return nil
}

func (m *Machine) finishProgram(c *branch, v any) {
	c.value, c.status, c.stack = v, Finished, nil
	m.changes.Branches = append(m.changes.Branches, BranchChange{ID: c.id, Label: c.label, Status: Finished})
	m.joined(c.fork, c)
}

// joinProgram goes on behind the step whose program ended.
func (m *Machine) joinProgram(f *fork, c *branch) {
	m.tasks[f.id].state = taskFinished
	f.parent.waiting = nil
	if c.status == Failed {
		m.fail(f.parent, &NodeError{Task: f.id, Node: f.node.ID, Pos: f.node.Pos, Err: &ProgramError{Program: c.label, Task: f.id, Err: c.err}})
		return
	}
	f.parent.set(f.node.Name, c.value)
	m.runnable = append(m.runnable, f.parent)
}

// usedBy returns what a program that is a step used so far.
func (m *Machine) usedBy(task string) Usage {
	var c cost
	if t := m.tasks[task]; t != nil {
		c.addBranch(t.branch)
	}
	return c.usage()
}
