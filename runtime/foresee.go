package runtime

import (
	"slices"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend"
)

// Away says what a branch does until its next request.
type Away struct {
	Branch string
	backend.Absence
}

// absence is an Away in the making.
type absence struct {
	branch *branch
	doing  []string
	known  time.Duration
	open   bool // how long it takes is not known
}

// Away returns what branches do until their next requests, as ready tasks begin
// together that are none: a function is called, time passes, a person is asked, a
// program runs apart. That concerns the branch of the task, and all that wait for
// it to end. It is for a [backend.Foreseer].
func (m *Machine) Away(begin []Task) []Away {
	var away []absence
	index := map[*branch]int{}
	for i := range begin {
		t := &begin[i]
		if t.Generate != nil || t.Score != nil {
			continue
		}
		b := m.tasks[t.ID].branch
		if t.Program != nil { // its own is told of by whoever runs it
			b = b.fork.parent
		}
		for ; b != nil; b = b.fork.parent {
			k, ok := index[b]
			if !ok {
				k = len(away)
				index[b], away = k, append(away, absence{branch: b})
			}
			a := &away[k]
			if d := doing(t); !slices.Contains(a.doing, d) {
				a.doing = append(a.doing, d)
			}
			if t.Sleep != nil {
				a.known = max(a.known, t.Sleep.For)
			} else {
				a.open = true
			}
			if b.fork == nil {
				break
			}
		}
	}
	told := make([]Away, len(away))
	for i, a := range away {
		told[i] = Away{a.branch.id, backend.Absence{Gone: a.branch.later() == never, Doing: joined(a.doing)}}
		if !a.open {
			told[i].For = a.known
		}
	}
	return told
}

// foresee tells the backend what Away says.
func (r *runner) foresee(begin []Task) {
	f, ok := r.be.(backend.Foreseer)
	if !ok {
		return
	}
	for _, a := range r.m.Away(begin) {
		f.Foresee(r.cfg.run, a.Branch, a.Absence)
	}
}

// doing names what a task does, as its backend learns how long that takes: a
// function, or the tool that an agent's function runs.
func doing(t *Task) string {
	switch {
	case t.Call != nil:
		if len(t.Call.Args) > 0 {
			if of, ok := t.Call.Args[0].(map[string]any); ok {
				if name, ok := of["name"].(string); ok {
					return t.Call.Func + ":" + name
				}
			}
		}
		return t.Call.Func
	case t.Sleep != nil:
		return "sleep"
	case t.Program != nil:
		return "run:" + t.Program.Graph.Name
	}
	return "wait:" + t.Node.ID
}

// joined is one name for things done at the same time.
func joined(doing []string) string {
	const most = 200
	slices.Sort(doing)
	s := strings.Join(doing, "+")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// farewell tells the backend that branches have ended.
func (r *runner) farewell(ended []BranchChange) {
	f, ok := r.be.(backend.Foreseer)
	if !ok {
		return
	}
	for _, b := range ended {
		if b.ID != "" && b.Status != Running {
			f.Foresee(r.cfg.run, b.ID, backend.Absence{Gone: true})
		}
	}
}
