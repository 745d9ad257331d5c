package workflows

import (
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/runtime"
)

// Tree is where a run stands: its branches with what each is doing.
type Tree struct {
	Run      string           `json:"run"`
	Program  string           `json:"program"`
	Finished int              `json:"finished"` // tasks
	Queued   int              `json:"queued"`   // tasks that wait for room
	Tasks    []TreeTask       `json:"tasks"`    // that are open, in the order in which they began
	Unknown  []Unknown        `json:"unknown,omitempty"`
	Branches []runtime.Branch `json:"branches"`
	// Trouble is what keeps programs that are steps from going on; the tree lacks
	// what they do.
	Trouble []Trouble `json:"trouble,omitempty"`
}

// Trouble is why the program of a task does not go on.
type Trouble struct {
	Task    string `json:"task"`
	Message string `json:"message"`
}

// TreeTask is an open task.
type TreeTask struct {
	Task   string    `json:"task"`
	Branch string    `json:"branch,omitempty"`
	Does   string    `json:"does"`
	Ask    string    `json:"ask,omitempty"` // what a wait asks
	Type   string    `json:"type,omitempty"`
	Due    time.Time `json:"due,omitzero"`
	Run    string    `json:"run,omitempty"` // of a program: the run that it has, under this name
}

// Unknown is a call that must not be made twice and of which nobody knows whether
// it happened.
type Unknown struct {
	Task string `json:"task"`
	Func string `json:"func,omitempty"`
	Args []any  `json:"args,omitempty"`
	Key  string `json:"key,omitempty"`
}

func (d *driver) tree() *Tree {
	t := &Tree{Run: d.in.Name, Program: d.graph.Name, Finished: d.m.Results(), Queued: len(d.queue), Branches: d.m.Branches(), Tasks: []TreeTask{}}
	for _, f := range d.order {
		if d.flight[f.task.ID] != f {
			continue
		}
		if f.unknown {
			c := f.task.Call
			t.Unknown = append(t.Unknown, Unknown{Task: f.task.ID, Func: c.Func, Args: c.Args, Key: c.Key})
			continue
		}
		x := TreeTask{Task: f.task.ID, Branch: f.task.Branch, Does: string(f.task.Node.Kind), Due: f.due, Run: f.run}
		if w := f.task.Wait; w != nil {
			x.Ask, x.Type = w.Ask, w.Type.String()
		}
		t.Tasks = append(t.Tasks, x)
	}
	return t
}

// add adds where the program of a task stands.
func (t *Tree) add(task string, c *Tree) {
	t.Finished += c.Finished
	t.Queued += c.Queued
	t.Tasks = append(t.Tasks, c.Tasks...)
	t.Unknown = append(t.Unknown, c.Unknown...)
	var place func(bs []runtime.Branch) bool
	place = func(bs []runtime.Branch) bool {
		for i := range bs {
			if bs[i].ID == task {
				bs[i].Branches = c.Branches
				return true
			}
			if place(bs[i].Branches) {
				return true
			}
		}
		return false
	}
	place(t.Branches)
}

// show tells Temporal's web page what the run waits for. It is called when that
// changes and shows little: the tree is a query.
func (d *driver) show() {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d tasks finished, %d run\n", d.graph.Name, d.m.Results(), d.inFlight+d.children)
	n := 0
	for _, f := range d.order {
		if d.flight[f.task.ID] != f || !f.unknown && f.task.Wait == nil {
			continue
		}
		if n++; n > 20 {
			b.WriteString("\nand more")
			break
		}
		if f.unknown {
			fmt.Fprintf(&b, "\n- **unknown outcome** of %s (%s): find out whether it happened, then settle it", f.task.ID, f.task.Call.Func)
		} else {
			fmt.Fprintf(&b, "\n- **waits** at %s: %s", f.task.ID, short(f.task.Wait.Ask, 200))
		}
	}
	workflow.SetCurrentDetails(d.ctx, b.String())
}
