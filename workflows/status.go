package workflows

import (
	"go.temporal.io/sdk/workflow"
)

// The values of the search attribute status.
const (
	statusWorking  = "working"  // tasks are under way, or sleep
	statusWaiting  = "waiting"  // nothing goes on before a person answers
	statusUnknown  = "unknown"  // a call of unknown outcome is to be settled
	statusFinished = "finished" // there is a result
	statusFailed   = "failed"   // or cancelled
)

// stands says where the run stands, for those who look for runs.
func (d *driver) stands() string {
	person, work := false, d.inFlight > 0 || len(d.queue) > 0
	for _, f := range d.order {
		switch {
		case d.flight[f.task.ID] != f:
		case f.unknown:
			return statusUnknown
		case f.stands == statusUnknown:
			return statusUnknown
		case f.task.Wait != nil, f.stands == statusWaiting:
			person = true
		case f.task.Sleep != nil, f.task.Program != nil:
			work = true
		}
	}
	if person && !work {
		return statusWaiting
	}
	return statusWorking
}

// status sets the search attribute, where the run has them.
func (d *driver) status(s string) {
	if !d.in.Attributes || d.shown == s {
		return
	}
	if err := workflow.UpsertTypedSearchAttributes(d.ctx, attrStatus.ValueSet(s)); err != nil {
		workflow.GetLogger(d.ctx).Warn("the status cannot be shown", "status", s, "error", err)
	}
	d.shown = s
	d.tellParent(s)
}

// rests reports whether nothing of the run is at work until a sleep or a wait ends.
func (d *driver) rests() bool {
	if d.in.child() || d.inFlight > 0 || len(d.queue) > 0 {
		return false
	}
	for _, f := range d.order {
		if d.flight[f.task.ID] == f && f.task.Program != nil && f.stands != statusWaiting {
			return false
		}
	}
	return true
}
