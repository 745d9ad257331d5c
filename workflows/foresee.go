package workflows

import (
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/runtime"
)

// What a run knows of its own future goes to the backend that has its prompts in a
// cache. Requests hold their hints. What a branch does between two requests is told
// to the backend of the process that has the run in memory, at once. With affinity
// another worker may be the one that has the prompts: activities go to its queue,
// calls too, and take with them what it does not know yet.

// foresight is what an activity takes along to its worker's backend.
type foresight struct {
	Run  string   `json:"run"` // as hints of requests have it
	Away []absent `json:"away"`
}

// absent is a runtime.Away that may arrive later.
type absent struct {
	Branch string    `json:"branch,omitempty"`
	Doing  string    `json:"doing,omitempty"`
	Until  time.Time `json:"until,omitzero"` // zero: not known
	Gone   bool      `json:"gone,omitempty"`
}

// foresee tells what branches do until their next requests, as tasks begin.
func (d *driver) foresee(begin []runtime.Task) {
	for i := range begin {
		if t := &begin[i]; t.Generate != nil || t.Score != nil {
			d.news = slices.DeleteFunc(d.news, func(a absent) bool { return a.Branch == t.Branch && !a.Gone })
		}
	}
	now := workflow.Now(d.ctx)
	for _, a := range d.m.Away(begin) {
		n := absent{Branch: a.Branch, Doing: a.Doing, Gone: a.Gone}
		if a.For > 0 {
			n.Until = now.Add(a.For)
		}
		d.note(n, a.Absence)
	}
}

// farewell tells that branches have ended.
func (d *driver) farewell(b runtime.BranchChange) {
	if b.Status != runtime.Running {
		d.note(absent{Branch: b.ID, Gone: true}, backend.Absence{Gone: true})
	}
}

// note tells the backend of this process, and keeps for activities what the worker
// that has the prompts should know.
func (d *driver) note(n absent, a backend.Absence) {
	if d.opt.Run == "" {
		return // a new history: this was told in an earlier one
	}
	if d.home != "" {
		d.news = slices.DeleteFunc(d.news, func(old absent) bool { return old.Branch == n.Branch })
		d.news = append(d.news, n)
	}
	if f, ok := d.w.cfg.Backend.(backend.Foreseer); ok && !workflow.IsReplaying(d.ctx) && (d.home == "" || d.home == d.w.queue) {
		f.Foresee(d.opt.Run, n.Branch, a)
	}
}

// carry is what the next activity that goes to the run's home takes along.
func (d *driver) carry() *foresight {
	if len(d.news) == 0 {
		return nil
	}
	f := &foresight{Run: d.opt.Run, Away: d.news}
	d.news = nil
	return f
}

// endRun tells that no request will follow.
func (d *driver) endRun() {
	if f, ok := d.w.cfg.Backend.(backend.Foreseer); ok && !d.in.child() && !workflow.IsReplaying(d.ctx) {
		f.EndRun(d.opt.Run)
	}
}

// foreseen hands on what an activity brought.
func (w *Worker) foreseen(f *foresight, now time.Time) {
	to, ok := w.cfg.Backend.(backend.Foreseer)
	if f == nil || !ok {
		return
	}
	for _, a := range f.Away {
		tell := backend.Absence{Doing: a.Doing, Gone: a.Gone}
		if !a.Until.IsZero() {
			if tell.For = a.Until.Sub(now); tell.For <= 0 {
				continue
			}
		}
		to.Foresee(f.Run, a.Branch, tell)
	}
}
