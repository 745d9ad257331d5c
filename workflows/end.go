package workflows

import (
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/runtime"
)

// How a run ends: by itself, or because its time or its budget is over.

var errDeadline = errors.New("deadline exceeded")

// end reports.
func (d *driver) end() (*Outcome, error) {
	report := d.m.Report()
	report.Run = d.in.Name
	if err := d.m.Err(); err != nil {
		return nil, d.programError(err)
	}
	if d.in.child() {
		return ended{Ran: d.m.Ran()}.outcome()
	}
	return outcomeOf(report), nil
}

// programError is the failure of the run. Its details hold what it gave so far.
func (d *driver) programError(err error) error {
	report := d.m.Report()
	report.Run = d.in.Name
	f := runtime.NewFailure(err)
	if errors.Is(err, errDeadline) {
		f.Code = "timeout"
	}
	out := outcomeOf(report)
	if d.in.child() {
		ran := d.m.Ran()
		ran.Branch.Status, ran.Branch.Error = runtime.Failed, err.Error()
		if o, oerr := (ended{Ran: ran}).outcome(); oerr == nil {
			out = o
		}
	}
	return temporal.NewApplicationErrorWithOptions(clip(err.Error(), longestMessage), typeProgram, temporal.ApplicationErrorOptions{
		NonRetryable: true, Details: []any{f.Code, out},
	})
}

// over is when the time of the run is over, zero if it has no bound: at its
// deadline or that of its budget.
func (in *Input) over() time.Time {
	if in.budgetFirst() {
		return in.Ends
	}
	return in.Deadline
}

func (in *Input) budgetFirst() bool {
	return !in.Ends.IsZero() && (in.Deadline.IsZero() || in.Ends.Before(in.Deadline))
}

// outOfTime is why a run ends whose time is over.
func (d *driver) outOfTime() error {
	if d.in.budgetFirst() {
		t := d.in.Budget.Time.String()
		return &runtime.BudgetError{What: "time", Limit: t, Used: t}
	}
	return fmt.Errorf("the deadline of the run is over (%s): %w", d.in.Deadline.UTC().Format(time.RFC3339), errDeadline)
}

// deadline ends the run when its time is over.
func (d *driver) deadline() {
	over := d.in.over()
	if over.IsZero() {
		return
	}
	left := max(over.Sub(workflow.Now(d.ctx)), time.Millisecond)
	timer := workflow.NewTimerWithOptions(d.ctx, left, workflow.TimerOptions{Summary: "deadline of the run"})
	workflow.Go(d.ctx, func(ctx workflow.Context) {
		if timer.Get(ctx, nil) == nil {
			d.late = true
			d.wake()
		}
	})
}

// overBudget reports whether the run has used up what the program may use.
func (d *driver) overBudget() error {
	b := d.in.Budget
	if b.Tokens <= 0 && b.Generated <= 0 && b.Cost <= 0 {
		return nil
	}
	return runtime.OverBudget(b, d.m.Used(), d.in.Prices)
}
