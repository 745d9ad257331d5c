package workflows

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// StartOptions say how a run goes.
type StartOptions struct {
	// Name of the run, which is the workflow's id. Starting a run under the name
	// of one that is there joins it.
	Name  string
	Queue string // default [DefaultQueue]
	Seed  uint64
	Salt  string
	// Limits bound what the program may do.
	Limits runtime.Limits
	// Window bounds the activities of the run at a time; default 64, at most 500.
	Window int
	// Retry is of requests to a model. Calls of functions are made once.
	Retry Retry
	// Deadline ends the run if it is not over by then; zero: none.
	Deadline time.Time
	// Timeout bounds each attempt at a node that has no timeout of its own; 0:
	// none.
	Timeout time.Duration
	// Budget bounds what the run may use, in place of the program's own.
	Budget *lang.Budget
	// Prices are those by which a budget's cost is reckoned.
	Prices *runtime.Prices
	// Heartbeat is after how long a silent worker is given up; default 10 s.
	Heartbeat time.Duration
	// Longest bounds one attempt at a task; default one hour.
	Longest time.Duration
	// HomeWait is how long a task waits for the worker that has its prompt in the
	// cache, where workers have affinity; default 5 s.
	HomeWait time.Duration
	// History is the number of events after which the run goes on in a new
	// history; 0 leaves it to the server.
	History int
	// Once joins a run of that name that has failed. Otherwise it is begun anew.
	Once bool
	// SearchAttributes adds the attributes of the function [SearchAttributes],
	// which the namespace must know, to the run.
	SearchAttributes bool
}

// The search attributes of runs, all keywords.
var (
	attrProgram = temporal.NewSearchAttributeKeyKeyword("program")
	attrTenant  = temporal.NewSearchAttributeKeyKeyword("tenant")
	attrStatus  = temporal.NewSearchAttributeKeyKeyword("status")
)

// SearchAttributes are the names and Temporal types of the search attributes
// that runs can have: the program's name, the salt as tenant, and the status,
// which is working, waiting (for a person), unknown (a call of unknown outcome is
// to be settled), finished or failed.
func SearchAttributes() map[string]string {
	return map[string]string{"program": "Keyword", "tenant": "Keyword", "status": "Keyword"}
}

// HasSearchAttributes reports whether a namespace knows all of them.
func HasSearchAttributes(ctx context.Context, c *Client, namespace string) (bool, error) {
	if namespace == "" {
		namespace = client.DefaultNamespace
	}
	have, err := c.OperatorService().ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{Namespace: namespace})
	if err != nil {
		return false, fmt.Errorf("workflows: the search attributes of namespace %s: %w", namespace, err)
	}
	for name := range SearchAttributes() {
		if _, ok := have.GetCustomAttributes()[name]; !ok {
			return false, nil
		}
	}
	return true, nil
}

// Run is a run on a Temporal server.
type Run struct {
	c    *Client
	Name string
	// Trouble, if not nil, is told what keeps the run from going on while somebody
	// waits for its Report, or what keeps a program that is a step of it: an error
	// that is ErrStuck or ErrNoWorker. The wait goes on, since the right worker may
	// come.
	Trouble func(error)
}

// Start begins a run, or joins the one of that name if it is of the same program
// and inputs.
func Start(ctx context.Context, c *Client, g *lang.Graph, args lang.Args, o StartOptions) (*Run, error) {
	if g == nil {
		return nil, errors.New("workflows: no graph")
	}
	vars, err := g.Bind(args)
	if err != nil {
		return nil, err
	}
	in, err := newInput(g, vars, o)
	if err != nil {
		return nil, err
	}
	queue := o.Queue
	if queue == "" {
		queue = DefaultQueue
	}
	opt := client.StartWorkflowOptions{
		ID:                       o.Name,
		TaskQueue:                queue,
		WorkflowIDConflictPolicy: enums.WORKFLOW_ID_CONFLICT_POLICY_FAIL,
		// A run that ended well is not done again because somebody asks twice.
		WorkflowIDReusePolicy:                    enums.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE_FAILED_ONLY,
		WorkflowExecutionErrorWhenAlreadyStarted: true,
		StaticSummary:                            short(strings.TrimSuffix(g.Name+": "+g.Doc, ": "), 200),
		Memo: map[string]any{
			"program": g.Name, "graph": in.GraphHash, "inputs": Hash(in.Inputs),
		},
	}
	if o.Once {
		opt.WorkflowIDReusePolicy = enums.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE
	}
	if o.SearchAttributes {
		opt.TypedSearchAttributes = temporal.NewSearchAttributes(attrProgram.ValueSet(g.Name), attrTenant.ValueSet(o.Salt), attrStatus.ValueSet(statusWorking))
	}
	var started *serviceerror.WorkflowExecutionAlreadyStarted
	err = patiently(ctx, func() error {
		_, err := c.ExecuteWorkflow(ctx, opt, WorkflowType, *in)
		return err
	})
	r := &Run{c: c, Name: o.Name}
	switch {
	case errors.As(err, &started): // by somebody else, or by an attempt whose answer was lost
		if err := r.same(ctx, in); err != nil {
			return nil, err
		}
	case away(err):
		return nil, fmt.Errorf("workflows: run %s does not start: %w: %w", o.Name, ErrNoServer, err)
	case err != nil:
		return nil, fmt.Errorf("workflows: run %s does not start: %w", o.Name, err)
	}
	return r, nil
}

// away reports whether an error is that of a server which has no time, or is not there.
func away(err error) bool {
	var late *serviceerror.DeadlineExceeded
	var gone *serviceerror.Unavailable
	var busy *serviceerror.ResourceExhausted
	return errors.As(err, &late) || errors.As(err, &gone) || errors.As(err, &busy) || errors.Is(err, context.DeadlineExceeded)
}

// patience is how long a server that is busy or restarts is asked again.
const patience = time.Minute

// patiently calls f, which may be called twice, until the server has time for
// it. f may take long; only its failures are counted.
func patiently(ctx context.Context, f func() error) error {
	wait, waited := 50*time.Millisecond, time.Duration(0)
	for {
		begin := time.Now()
		err := f()
		if !away(err) {
			return err
		}
		if time.Since(begin) > 2*patience { // it worked for long before it failed
			wait, waited = 50*time.Millisecond, 0
		}
		if waited += wait; waited > patience {
			return err
		}
		if !pause(ctx, wait) {
			return err
		}
		wait = min(2*wait, 2*time.Second)
	}
}

// pause waits, and reports false if ctx ends before.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// readyWithin is how long a run is asked again that cannot answer: between two histories
// it takes a moment, and one that is stuck is to be told so.
const readyWithin = 3 * time.Second

// whenReady calls f, which may be called twice, until the run can answer.
func whenReady(ctx context.Context, f func() error) error {
	wait, waited := 20*time.Millisecond, time.Duration(0)
	for {
		err := f()
		var not *serviceerror.WorkflowNotReady
		if waited += wait; !errors.As(err, &not) || waited > readyWithin {
			return err
		}
		if !pause(ctx, wait) {
			return err
		}
		wait = min(2*wait, readyWithin/4)
	}
}

func newInput(g *lang.Graph, vars map[string]any, o StartOptions) (*Input, error) {
	if o.Name == "" {
		return nil, errors.New("workflows: a run needs a name")
	}
	text, err := g.JSON()
	if err != nil {
		return nil, err
	}
	var graph bytes.Buffer
	if err := json.Compact(&graph, text); err != nil {
		return nil, err
	}
	in := &Input{
		Format: inputFormat, Coppice: runtime.Version(), Name: o.Name,
		Program: g.Name, GraphHash: g.Hash(), Graph: graph.Bytes(), Inputs: g.EncodeInputs(vars),
		Seed: o.Seed, Salt: o.Salt, Limits: o.Limits, Deadline: o.Deadline,
		Budget: g.Budget, Prices: o.Prices, Timeout: o.Timeout, Window: o.Window, Retry: o.Retry.withDefaults(), Heartbeat: o.Heartbeat, Longest: o.Longest, HomeWait: o.HomeWait, History: o.History,
		Attributes: o.SearchAttributes,
	}
	if in.Attributes {
		in.Status = statusWorking
	}
	if o.Budget != nil {
		in.Budget = *o.Budget
	}
	if b := in.Budget; b.Cost > 0 && o.Prices == nil {
		return nil, errors.New("workflows: the budget bounds the cost, and no prices are given")
	} else if bounded := costly(g); bounded != "" && o.Prices == nil {
		return nil, fmt.Errorf("workflows: the budget of program %s bounds the cost, and no prices are given", bounded)
	} else if b.Time > 0 {
		in.Ends = time.Now().Add(b.Time)
	}
	if in.Window <= 0 {
		in.Window = 64
	}
	// A server takes 2,000 pending activities, and a message of 4 MB with all that
	// begin at once.
	in.Window = min(in.Window, 500)
	if in.Heartbeat <= 0 {
		in.Heartbeat = 10 * time.Second
	}
	if in.Longest <= 0 {
		in.Longest = time.Hour
	}
	return in, nil
}

// same compares the run of that name with the one that was asked for.
func (r *Run) same(ctx context.Context, in *Input) error {
	var d *client.WorkflowExecutionDescription
	err := patiently(ctx, func() (err error) {
		d, err = r.c.DescribeWorkflow(ctx, r.Name, "")
		return err
	})
	if err != nil {
		return r.failed(err)
	}
	var program, graph, inputs string
	for _, m := range []struct {
		name string
		to   *string
	}{{"program", &program}, {"graph", &graph}, {"inputs", &inputs}} {
		if p := d.Memo.GetFields()[m.name]; p != nil {
			if err := r.c.conv.FromPayload(p, m.to); err != nil {
				return fmt.Errorf("workflows: run %s: its memo cannot be read: %w", r.Name, err)
			}
		}
	}
	what := ""
	switch {
	case program != in.Program:
		what = fmt.Sprintf("program %q, not %q", program, in.Program)
	case graph != in.GraphHash:
		what = fmt.Sprintf("an earlier form of program %s (graph %s, not %s)", program, graph, in.GraphHash)
	case inputs != Hash(in.Inputs):
		what = "other inputs"
	default:
		return nil
	}
	return fmt.Errorf("%w: run %s has %s. It goes on with what it began with; give the new run another name", ErrOtherProgram, r.Name, what)
}

// Open returns a run that is there.
func Open(c *Client, name string) *Run { return &Run{c: c, Name: name} }

// Report waits for the end of the run, over new histories and lost connections,
// and returns what it gave. A run that failed has a report too.
func (r *Run) Report(ctx context.Context) (*runtime.Report, error) {
	if r.Trouble != nil {
		watch, stop := context.WithCancel(ctx)
		over := make(chan struct{})
		go func() {
			defer close(over)
			r.watchTrouble(watch, troubleEvery)
		}()
		defer func() { stop(); <-over }()
	}
	var out Outcome
	err := patiently(ctx, func() error { return r.c.GetWorkflow(ctx, r.Name, "").Get(ctx, &out) })
	if err == nil {
		return out.Report()
	}
	var app *temporal.ApplicationError
	if errors.As(err, &app) && app.Type() == typeProgram {
		var code string
		if derr := app.Details(&code, &out); derr != nil {
			return nil, fmt.Errorf("%s (its report cannot be read: %w)", app.Message(), derr)
		}
		report, derr := out.Report()
		if derr != nil {
			return nil, derr
		}
		return report, &RunError{Run: r.Name, Failure: runtime.Failure{Code: code, Message: app.Message()}}
	}
	return nil, r.failed(err)
}

// RunError is the failure of a program. It unwraps to what its code stands for,
// as a runtime.Failure does.
type RunError struct {
	Run     string
	Failure runtime.Failure
}

func (e *RunError) Error() string { return e.Failure.Message }

// Unwrap returns the failure.
func (e *RunError) Unwrap() error { return &e.Failure }

// failed gives an error of the server its meaning.
func (r *Run) failed(err error) error {
	var gone *serviceerror.NotFound
	var cancelled *temporal.CanceledError
	switch {
	case errors.As(err, &gone):
		return fmt.Errorf("workflows: %q: %w: %w", r.Name, ErrUnknownRun, err)
	case errors.As(err, &cancelled):
		return fmt.Errorf("workflows: run %s was cancelled: %w", r.Name, context.Canceled)
	case away(err):
		return fmt.Errorf("workflows: run %s: %w: %w", r.Name, ErrNoServer, err)
	}
	return fmt.Errorf("workflows: run %s: %w", r.Name, err)
}

// Tree returns where the run stands, with the programs that are steps of it.
func (r *Run) Tree(ctx context.Context) (*Tree, error) {
	t, err := r.ownTree(ctx)
	if err != nil {
		return nil, err
	}
	return t, r.grow(ctx, t, t)
}

// grow adds to a tree what the children in a part of it do.
func (r *Run) grow(ctx context.Context, whole, part *Tree) error {
	for _, task := range part.Tasks {
		if task.Run == "" {
			continue
		}
		c, err := Open(r.c, task.Run).ownTree(ctx)
		switch {
		case errors.Is(err, ErrUnknownRun):
			continue // not begun yet, or over by now
		case errors.Is(err, ErrStuck), errors.Is(err, ErrNoWorker):
			whole.Trouble = append(whole.Trouble, Trouble{task.Task, err.Error()})
			continue
		case err != nil:
			return err
		}
		whole.add(task.Task, c)
		if err := r.grow(ctx, whole, c); err != nil {
			return err
		}
	}
	return nil
}

// ownTree is Tree without the programs that are steps.
func (r *Run) ownTree(ctx context.Context) (*Tree, error) {
	// A run that no worker can carry out answers no query.
	d, err := r.describe(ctx)
	if err != nil {
		return nil, err
	}
	if err := r.stuck(ctx, d); err != nil {
		return nil, err
	}
	var v converter.EncodedValue
	err = whenReady(ctx, func() (err error) {
		v, err = r.c.QueryWorkflow(ctx, r.Name, "", QueryTree)
		return err
	})
	if err != nil {
		if none := r.unattended(ctx, d, true); errors.Is(none, ErrNoWorker) {
			return nil, none
		}
		return nil, r.failed(err)
	}
	t := new(Tree)
	if err := v.Get(t); err != nil {
		return nil, fmt.Errorf("workflows: run %s: %w", r.Name, err)
	}
	return t, nil
}

// Answer answers a task that waits. It returns when the run has the answer, or
// with an error that is ErrNotWaiting or ErrWrongAnswer.
func (r *Run) Answer(ctx context.Context, a Answer) error { return r.say(ctx, a.Task, Answers, a) }

// say tells something to a task, which may be one of a program that is a step.
func (r *Run) say(ctx context.Context, task, name string, arg any) error {
	err := r.update(ctx, name, arg)
	if !errors.Is(err, ErrNotWaiting) {
		return err
	}
	t, terr := r.ownTree(ctx)
	if terr != nil {
		return err
	}
	for _, c := range t.Tasks {
		if c.Run != "" && below(task, c.Task) {
			if cerr := Open(r.c, c.Run).say(ctx, task, name, arg); !errors.Is(cerr, ErrUnknownRun) {
				return cerr
			}
		}
	}
	return err
}

// Leave leaves an answer for a task that may not wait yet.
func (r *Run) Leave(ctx context.Context, a Answer) error {
	if err := r.c.SignalWorkflow(ctx, r.Name, "", Answers, a); err != nil {
		return r.failed(err)
	}
	return nil
}

// Settle says what became of a call of unknown outcome.
func (r *Run) Settle(ctx context.Context, s Settlement) error {
	return r.say(ctx, s.Task, Settles, s)
}

func (r *Run) update(ctx context.Context, name string, arg any) error {
	if err := r.attended(ctx); err != nil {
		return err
	}
	id := rand.Text() // what is sent twice is one update
	err := whenReady(ctx, func() error {
		h, err := r.c.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
			UpdateID: id, WorkflowID: r.Name, UpdateName: name, Args: []any{arg}, WaitForStage: client.WorkflowUpdateStageCompleted,
		})
		if err != nil {
			return err
		}
		return h.Get(ctx, nil)
	})
	var app *temporal.ApplicationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &app) && app.Type() == typeNotWaiting:
		return fmt.Errorf("%w: run %s: %s", ErrNotWaiting, r.Name, app.Message())
	case errors.As(err, &app) && app.Type() == typeAnswer:
		return fmt.Errorf("%w: run %s: %s", ErrWrongAnswer, r.Name, app.Message())
	}
	return r.failed(err)
}

// Cancel asks the run to end. What it has under way is cancelled, in the engine
// too.
func (r *Run) Cancel(ctx context.Context) error {
	if err := r.c.CancelWorkflow(ctx, r.Name, ""); err != nil {
		return r.failed(err)
	}
	return nil
}

// costly returns the name of a program that g runs whose budget bounds the cost.
func costly(g *lang.Graph) (name string) {
	g.Walk(func(n *lang.Node) bool {
		if n.Run != nil && n.Run.Graph().Budget.Cost > 0 && name == "" {
			name = n.Run.Program
		}
		return true
	})
	return name
}
