package workflows

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// A program that is a step of another is a child workflow, of the same type and in
// a history of its own. Temporal keeps no child over a new history of its parent, so
// the parent asks its children to hand over first: each comes to rest as before a
// new history of its own, and returns what it would have begun that with. The new
// history of the parent starts it again from there, under the same id.

// suspends is the signal by which a run asks a child to hand over.
const suspends = "suspend"

// stood is the signal by which a child tells its parent its status, so that the
// status of a run is of all that it does.
const stood = "stood"

type standing struct {
	Task   string `json:"task"`
	Status string `json:"status"`
}

// maxChildren bounds the children of a run at a time; a server takes 2,000.
const maxChildren = 1000

// maxStarting bounds the children whose start the server has not told yet. Each start
// writes to the history of the run and reads what asked for it, together with all that
// was asked for at once: of a thousand at once, the server puts most off for seconds,
// and reads a thousand events for each.
const maxStarting = 32

// Child is a program that was handed over.
type Child struct {
	Task  string `json:"task"`
	Input *Input `json:"input"`
}

// ended is what a child returns: what its program gave, or what it goes on from.
type ended struct {
	Ran  *runtime.Ran `json:"ran,omitempty"`
	Next *Input       `json:"next,omitempty"`
}

func (e ended) outcome() (*Outcome, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("workflows: what the program gave: %w", err)
	}
	return &Outcome{data}, nil
}

func (in *Input) child() bool { return in.Within != "" }

// childID is the workflow id of a program that is a step of a run. It is the same
// in all histories of the run, and another where the run's name is used again.
func childID(run, first, task string) string {
	if len(task) > 400 {
		task = Hash([]byte(task))
	}
	if len(first) > 8 {
		first = first[:8]
	}
	return run + "/" + task + "~" + first
}

// child starts the program of a task.
func (d *driver) child(ctx workflow.Context, f *flight) workflow.Future {
	d.children++
	in := d.handedOver(f.task.ID)
	if in == nil {
		in = d.childInput(&f.task)
	}
	d.early = slices.DeleteFunc(d.early, func(a Answer) bool {
		mine := below(a.Task, f.task.ID)
		if mine {
			in.Early = append(in.Early, a)
		}
		return mine
	})
	opt := workflow.ChildWorkflowOptions{
		WorkflowID:            childID(d.in.Name, d.first, f.task.ID),
		WorkflowIDReusePolicy: enums.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		// However the run ends, what a child has under way is cancelled.
		ParentClosePolicy: enums.PARENT_CLOSE_POLICY_REQUEST_CANCEL,
		StaticSummary:     summary(&f.task),
		Memo:              map[string]any{"program": f.task.Program.Graph.Name, "graph": in.GraphHash, "inputs": Hash(in.Inputs)},
	}
	if in.Attributes {
		opt.TypedSearchAttributes = temporal.NewSearchAttributes(attrProgram.ValueSet(f.task.Program.Graph.Name), attrTenant.ValueSet(in.Salt), attrStatus.ValueSet(in.Status))
	}
	f.run, f.stands = opt.WorkflowID, in.Status
	// The graph is a payload of its own: all children share it in the store.
	f.child = workflow.ExecuteChildWorkflow(workflow.WithChildOptions(ctx, opt), WorkflowType, *in, d.in.Graph)
	if d.in.Format > 2 {
		f.starting = true
		d.starting++
	}
	return f.child
}

// started notes that a child has begun, or is over.
func (d *driver) started(f *flight) {
	if f.starting {
		f.starting = false
		d.starting--
	}
}

// below reports whether a task is a step of the program that another runs.
func below(task, of string) bool { return strings.HasPrefix(task, of+"/") }

// handedOver takes what a child handed over in an earlier history.
func (d *driver) handedOver(task string) *Input {
	i := slices.IndexFunc(d.handed, func(c Child) bool { return c.Task == task })
	if i < 0 {
		return nil
	}
	in := d.handed[i].Input
	d.handed = slices.Delete(slices.Clone(d.handed), i, i+1)
	return in
}

// childInput is what the program of a task begins with.
func (d *driver) childInput(t *runtime.Task) *Input {
	in := *d.in
	in.Graph = nil // beside it
	in.Format, in.At, in.Within, in.First = inputFormat, t.Node.ID, t.ID, d.first
	in.Inputs = t.Program.Inputs
	in.Results, in.Due, in.Unknown, in.Early, in.Children = nil, nil, nil, nil, nil
	in.Home = d.home
	if in.Attributes {
		in.Status = statusWorking
	}
	own := t.Program.Graph.Budget
	in.Budget = narrowed(own, d.in.Budget, d.m.Used(), d.in.Prices)
	if own.Time > 0 {
		if end := workflow.Now(d.ctx).Add(own.Time); in.Ends.IsZero() || end.Before(in.Ends) {
			in.Ends, in.Budget.Time = end, own.Time
		}
	}
	return &in
}

// narrowed is the budget of a program within that of the run that it is part of,
// which has used something. The time is the run's.
func narrowed(own, whole lang.Budget, used runtime.Usage, p *runtime.Prices) lang.Budget {
	left := func(own, whole, used int) int {
		if whole <= 0 {
			return own
		}
		if rest := max(whole-used, 1); own <= 0 || rest < own {
			return rest
		}
		return own
	}
	own.Tokens = left(own.Tokens, whole.Tokens, used.ComputedTokens)
	own.Generated = left(own.Generated, whole.Generated, used.ForcedTokens+used.SampledTokens)
	if whole.Cost > 0 && p != nil {
		if rest := whole.Cost - p.Of(used); own.Cost <= 0 || rest < own.Cost {
			own.Cost = max(rest, 1e-12)
		}
	}
	own.Time = whole.Time
	return own
}

// childLanded takes what came of a child.
func (d *driver) childLanded(f *flight, fut workflow.Future) {
	// It had the stream of the run meanwhile.
	d.pub = d.w.events.of(d.in.Name, d.first)
	var out Outcome
	err := fut.Get(d.ctx, &out)
	var end ended
	if err == nil {
		if err = json.Unmarshal(out.RawMessage, &end); err == nil && end.Ran == nil && end.Next == nil {
			err = errors.New("the child gave nothing")
		}
	}
	var canceled *temporal.CanceledError
	var app *temporal.ApplicationError
	switch {
	case err == nil && end.Next != nil:
		d.drop(f)
		d.handed = append(d.handed, Child{f.task.ID, end.Next})
		d.queue = append(d.queue, f.task)
	case err == nil:
		d.apply(f, runtime.Result{Task: f.task.ID, Value: end.Ran.Branch.Value, Ran: end.Ran})
	case errors.As(err, &canceled) && d.ctx.Err() != nil:
		// The whole run is: the loop sees that.
	case errors.As(err, &app) && app.Type() == typeProgram:
		r := runtime.Result{Task: f.task.ID, Failure: &runtime.Failure{Code: "error", Message: app.Message()}}
		var code string
		if app.Details(&code, &out) == nil && json.Unmarshal(out.RawMessage, &end) == nil {
			r.Failure.Code, r.Ran = code, end.Ran
		}
		d.apply(f, r)
	default:
		d.apply(f, runtime.Result{Task: f.task.ID, Failure: d.childFailure(f, err)})
	}
}

// childFailure is the failure of a child that ended without saying why itself.
func (d *driver) childFailure(f *flight, err error) *runtime.Failure {
	var canceled *temporal.CanceledError
	var terminated *temporal.TerminatedError
	var there *temporal.ChildWorkflowExecutionAlreadyStartedError
	switch {
	case errors.As(err, &canceled):
		return &runtime.Failure{Code: "cancelled", Message: fmt.Sprintf("workflow %s was cancelled by itself", f.run)}
	case errors.As(err, &terminated):
		return &runtime.Failure{Code: "error", Message: fmt.Sprintf("workflow %s was terminated", f.run)}
	case errors.As(err, &there):
		return &runtime.Failure{Code: "error", Message: fmt.Sprintf("a workflow %s runs already: end it, or give the run another name", f.run)}
	}
	return failure(err)
}

// suspend asks the children that are open to hand over, each once.
func (d *driver) suspend() {
	for _, f := range d.order {
		if d.flight[f.task.ID] == f && f.child != nil && !f.asked && !f.starting {
			f.asked = true
			f.child.SignalChildWorkflow(d.ctx, suspends, nil)
		}
	}
}

// tellParent tells the run that this program is a step of how it stands. In format 1
// histories have none of that.
func (d *driver) tellParent(status string) {
	parent := workflow.GetInfo(d.ctx).ParentWorkflowExecution
	if !d.in.child() || d.in.Format < 2 || parent == nil || status == statusFinished || status == statusFailed { // its end says that
		return
	}
	workflow.SignalExternalWorkflow(d.ctx, parent.ID, "", stood, standing{d.in.Within, status})
}

// childStands takes what a child tells of itself.
func (d *driver) childStands(s standing) {
	if f := d.flight[s.Task]; f != nil && f.child != nil && d.in.Format > 1 {
		f.stands = s.Status
	}
}

// sent is an answer on its way to a child.
type sent struct {
	answer Answer
	future workflow.Future
}

// send sends an answer to a child that has begun.
func (d *driver) send(f *flight, a Answer) {
	s := &sent{a, f.child.SignalChildWorkflow(d.ctx, Answers, a)}
	if d.in.Format > 2 {
		d.sent = append(d.sent, s)
		d.watchSent(s)
	}
}

// watchSent adds to the selector what becomes of an answer that was sent on. A child
// may end before it gets it, since it was asked to hand over: then the answer waits for
// it in the next history.
func (d *driver) watchSent(s *sent) {
	d.selector.AddFuture(s.future, func(fut workflow.Future) {
		d.fired++
		d.sent = slices.DeleteFunc(d.sent, func(x *sent) bool { return x == s })
		if fut.Get(d.ctx, nil) != nil {
			d.keep(s.answer)
		}
	})
}

// forward sends an answer on to the child that has its task, if one is open.
func (d *driver) forward(a Answer) bool {
	for _, f := range d.order {
		if d.flight[f.task.ID] == f && f.child != nil && !f.asked && below(a.Task, f.task.ID) {
			if f.starting {
				f.held = append(f.held, a)
			} else {
				d.send(f, a)
			}
			return true
		}
	}
	return false
}
