package runtime

import (
	"slices"
	"strconv"

	"github.com/coppice-run/coppice/lang"
)

// branch is one line of a program: the trunk, or one branch of a fork; a program that
// is a step is a fork of one branch that begins with nothing. It has a
// context, variables, and a stack of the bodies it is in. It either can take a
// step, or waits for one task, or waits for one fork.
type branch struct {
	id     string // instance id; empty for the trunk
	label  string
	fork   *fork // that it belongs to; nil for the trunk
	index  int   // in the fork
	status Status
	err    error
	value  any // what it yielded

	graph *lang.Graph // the program that it belongs to
	root  bool        // the trunk of a program that is a step
	ran   *Ran        // what came of that program where it ran apart

	prompt   prompt
	base     int            // turns that the prompt began with
	parts    int            // parts of the last of them
	pristine bool           // nothing was added to the prompt yet
	vars     map[string]any // what it sees
	own      []string       // names it set, in order of first setting
	stack    []frame
	task     *task // waits for
	waiting  *fork // waits for
	forks    []*fork
	asked    bool // made a model request
	cost     cost
}

// frame is a body that a branch is in.
type frame struct {
	body []*lang.Node
	pc   int // next node
	node *lang.Node
	// enclosing and instance turn the id of a node below into an instance id:
	// the id of the innermost enclosing node that has rounds or branches, and
	// its own instance id with the index of this one.
	enclosing string
	instance  string

	round  int // of repeat and foreach
	items  []any
	yields []any
	loop   string // instance id of the repeat or foreach itself
	outer  int    // names that the branch had set before a foreach

	line *line // whose steps it runs, instead of body
}

// enter puts a body on the stack. Bodies without rounds name their nodes as
// their parent does.
func (b *branch) enter(f frame) {
	if f.instance == "" && len(b.stack) > 0 {
		top := &b.stack[len(b.stack)-1]
		f.enclosing, f.instance = top.enclosing, top.instance
	}
	b.stack = append(b.stack, f)
}

// instance returns the instance id of a node in the body on top of the stack.
func (b *branch) instance(n *lang.Node) string {
	f := &b.stack[len(b.stack)-1]
	return instanceID(n.ID, f.enclosing, f.instance)
}

// instanceID replaces the beginning enclosing of id by instance.
func instanceID(id, enclosing, instance string) string {
	if instance == "" {
		return id
	}
	if k := len(enclosing); len(id) > k && id[:k] == enclosing && id[k] == '/' {
		return instance + id[k:]
	}
	return instance + "/" + id
}

func indexed(id string, i int) string { return id + "[" + strconv.Itoa(i) + "]" }

// set sets a variable.
func (b *branch) set(name string, v any) {
	if name == "" {
		return
	}
	if _, known := b.vars[name]; !known || !slices.Contains(b.own, name) {
		b.own = append(b.own, name)
	}
	b.vars[name] = v
}

// unset removes a variable that went out of scope.
func (b *branch) unset(name string) {
	if name == "" {
		return
	}
	delete(b.vars, name)
	if i := slices.Index(b.own, name); i >= 0 {
		b.own = slices.Delete(b.own, i, i+1)
	}
}

// forget removes the variables that were first set after the branch had set
// outer names: those of a body that is a scope of its own. A variable of the
// parent's that got another value keeps it.
func (b *branch) forget(outer int) {
	kept := b.own[:outer]
	for _, name := range b.own[outer:] {
		if b.fork != nil && !b.root {
			if _, ok := b.fork.parent.vars[name]; ok {
				kept = append(kept, name)
				continue
			}
		}
		delete(b.vars, name)
	}
	b.own = kept
}
