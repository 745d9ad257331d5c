package workflows

import "go.temporal.io/sdk/workflow"

// mostEvents is a length at which a run goes on in a new history, whatever that
// costs: a server ends a run at 51,200.
const mostEvents = 40_000

// full reports whether the history is so long that the run must go on in a new
// one.
func (d *driver) full(ctx workflow.Context) bool {
	info := workflow.GetInfo(ctx)
	n := info.GetCurrentHistoryLength()
	switch {
	case !info.GetContinueAsNewSuggested() && (d.in.History <= 0 || n < d.in.History):
		return false
	case n < 1000:
		return d.m.Results() > len(d.in.Results) // a new history must not begin with the next one
	}
	return d.in.Format < 2 || n >= min(2*d.carried(), mostEvents)
}

// carried is about how many events it takes to hand over what is open and to begin
// it again in a new history: timers, and programs with their ends and starts. A
// history is worth a new one when it is twice as long; before that, a run with much
// open would do nothing but begin histories.
func (d *driver) carried() int {
	n := 10 * d.children
	for _, f := range d.order {
		if d.flight[f.task.ID] == f && !f.due.IsZero() {
			n++
		}
	}
	return n
}

// again makes the run go on in a new history, with all that is open. A child that
// was asked to hand over returns that instead.
func (d *driver) again(ctx workflow.Context) (*Outcome, error) {
	if err := workflow.Await(ctx, func() bool { return workflow.AllHandlersFinished(ctx) }); err != nil {
		return nil, err
	}
	d.suspended = d.suspended || d.in.child() && workflow.GetSignalChannel(ctx, suspends).ReceiveAsync(nil)
	signals := workflow.GetSignalChannel(ctx, Answers)
	for {
		var a Answer
		if !signals.ReceiveAsync(&a) {
			break
		}
		d.answered(a)
	}
	next := *d.in
	next.Results = d.m.Snapshot()
	next.Early, next.Home, next.Status = d.early, d.home, d.shown
	next.Due, next.Unknown, next.Children = nil, nil, nil
	// What this history did not come to waits on as it did.
	kept := func(task string) bool { return d.flight[task] == nil && !d.m.Finished(task) }
	for _, due := range d.in.Due {
		if kept(due.Task) {
			next.Due = append(next.Due, due)
		}
	}
	for _, u := range d.in.Unknown {
		if kept(u.Task) {
			next.Unknown = append(next.Unknown, u)
		}
	}
	for _, f := range d.order {
		if d.flight[f.task.ID] != f {
			continue
		}
		if !f.due.IsZero() {
			next.Due = append(next.Due, Due{f.task.ID, f.due})
		}
		if f.unknown {
			next.Unknown = append(next.Unknown, Unknown{Task: f.task.ID})
		}
	}
	for _, c := range d.handed {
		if !d.m.Finished(c.Task) {
			next.Children = append(next.Children, c)
		}
	}
	if !d.in.child() {
		return nil, workflow.NewContinueAsNewError(ctx, WorkflowType, next)
	}
	next.Graph = nil
	if d.suspended {
		d.gave = true
		return ended{Next: &next}.outcome()
	}
	return nil, workflow.NewContinueAsNewError(ctx, WorkflowType, next, d.in.Graph)
}
