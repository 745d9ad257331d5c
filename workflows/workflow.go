package workflows

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// WorkflowType is the name of the one workflow that runs every program.
const WorkflowType = "coppice.program"

// The names that clients of a run use.
const (
	QueryTree   = "tree"   // returns a Tree
	QueryReport = "report" // returns what the run gave so far
	Answers     = "answer" // update and signal: an Answer
	Settles     = "settle" // update: a Settlement
)

// driver runs a Machine inside of a workflow. It lives in one workflow
// coroutine; handlers of updates and signals run between its steps. What it
// does follows from the input and the results alone: no clock but the
// workflow's, no random numbers, no order of maps.
type driver struct {
	w      *Worker
	in     *Input
	graph  *lang.Graph
	m      *runtime.Machine
	ctx    workflow.Context // of the work; cancelled with the run
	cancel workflow.CancelFunc
	pub    *publisher

	selector workflow.Selector
	fired    int              // futures of the selector that are over
	arrived  workflow.Channel // wakes the loop when a handler did something
	queue    []runtime.Task   // ready, not begun
	flight   map[string]*flight
	order    []*flight         // in the order in which they began
	inFlight int               // activities
	marks    map[string]marks  // by branch
	parent   map[string]string // of each open branch
	home     string            // queue of the worker that has the run's prefix
	news     []absent          // what that one does not know yet
	opt      runtime.Options   // of the machine
	first    string            // id of the first history
	shown    string            // status that the search attribute has

	children  int      // child workflows that are open
	starting  int      // those of them that have not begun yet
	handed    []Child  // programs that wait to be started again
	early     []Answer // that came before their task
	sent      []*sent  // answers on their way to children
	stopped   bool     // cancelled
	late      bool     // the run's deadline is over
	continued bool     // no new work is begun: the run goes on in a new history
	suspended bool     // as a child of that
	gave      bool     // and handed over
}

// flight is a task that is begun and not over.
type flight struct {
	task    runtime.Task
	cancel  workflow.CancelFunc
	future  workflow.Future // nil of a wait without an end
	due     time.Time       // of a sleep or wait
	answer  json.RawMessage // came before the task, if not nil
	unknown bool            // an unsafe call that may or may not have happened
	elided  bool            // its prompt was sent as what it has beyond a stored one
	prompt  mark            // that will be stored
	shared  int             // turns of it that answer.Base stands for; 0: none
	home    string          // the worker's own queue that it was sent to
	before  *progress       // of a worker that was lost

	child    workflow.ChildWorkflowFuture // of a program; nil of all else
	run      string                       // its workflow id
	starting bool                         // it has not begun yet
	held     []Answer                     // that it is sent when it has
	asked    bool                         // to hand over
	stands   string                       // its status, where runs have search attributes
}

// run is the workflow.
func (w *Worker) run(ctx workflow.Context, in Input, graph json.RawMessage) (*Outcome, error) {
	if in.child() {
		in.Graph = graph
	}
	d := &driver{w: w, in: &in, flight: map[string]*flight{}, marks: map[string]marks{}, parent: map[string]string{}, home: in.Home, early: in.Early, handed: in.Children, shown: in.Status}
	d.ctx, d.cancel = workflow.WithCancel(ctx)
	d.arrived = workflow.NewBufferedChannel(ctx, 1)
	if err := d.open(ctx); err != nil {
		return nil, err
	}
	if err := d.handlers(ctx); err != nil {
		return nil, err
	}
	// If it does not return, the SDK drops the run from memory.
	defer w.events.left(in.Name, d.first)
	out, err := d.drive(ctx)
	var again *workflow.ContinueAsNewError
	if !errors.As(err, &again) {
		d.endRun()
	}
	switch {
	case errors.As(err, &again), d.gave:
	case in.child():
		d.status(map[bool]string{true: statusFinished, false: statusFailed}[err == nil])
	case err != nil:
		d.status(statusFailed)
		usage := d.m.Used()
		d.pub.emit(runtime.Event{Kind: runtime.RunFailed, Error: err.Error(), Usage: &usage})
	default:
		d.status(statusFinished)
		usage := d.m.Used()
		d.pub.emit(runtime.Event{Kind: runtime.RunFinished, Value: d.m.Report().Value, Usage: &usage})
	}
	return out, err
}

// open reads the program and brings the machine to where the results end.
func (d *driver) open(ctx workflow.Context) error {
	if d.in.Format > inputFormat {
		// Not a failure of the run: a worker that knows the format goes on.
		d.unfit("was begun by a newer coppice (format %d, this one knows %d): start workers of that version", d.in.Format, inputFormat)
	}
	g, err := d.w.programs.get(d.in)
	if err != nil {
		d.unfit("of program %s: %v: it goes on once workers of coppice %s are back", d.in.Program, err, d.in.Coppice)
	}
	info := workflow.GetInfo(ctx)
	d.first = info.FirstRunID
	opt := runtime.Options{
		// The same over retries, replays and new histories of the run, and
		// another if the name is used again.
		Run:    info.WorkflowExecution.ID + "/" + info.FirstRunID,
		Seed:   d.in.Seed,
		Salt:   d.in.Salt,
		Limits: d.in.Limits,
		Apart:  true,
		Within: d.in.Within,
	}
	if d.in.child() {
		n := g.Node(d.in.At)
		if n == nil || n.Run == nil {
			d.unfit("of program %s: no step %q of it runs a program: it goes on once workers of coppice %s are back", d.in.Program, d.in.At, d.in.Coppice)
		}
		d.graph, d.first = n.Run.Graph(), d.in.First
		opt.Run = d.in.Name + "/" + d.first
		d.pub = d.w.events.of(d.in.Name, d.first)
		d.m, err = runtime.NewApart(d.graph, d.in.Inputs, opt)
	} else {
		vars, verr := g.DecodeInputs(d.in.Inputs)
		if verr != nil {
			return temporal.NewNonRetryableApplicationError(verr.Error(), "invalid", verr)
		}
		d.graph = g
		d.pub = d.w.events.of(d.in.Name, d.first)
		d.pub.emit(runtime.Event{Kind: runtime.RunStarted, Run: d.in.Name, Program: d.in.Program, Restored: len(d.in.Results)})
		d.m, err = runtime.New(g, vars, opt)
	}
	if err != nil {
		return temporal.NewNonRetryableApplicationError(err.Error(), "invalid", err)
	}
	for i, r := range d.in.Results {
		d.follow()
		t, _ := d.take(r.Task)
		if err := d.m.Apply(r); err != nil && !errors.Is(err, runtime.ErrCancelledTask) {
			d.unfit("of program %s: result %d of %d does not fit it: %v: it goes on once workers of coppice %s are back", d.in.Program, i+1, len(d.in.Results), err, d.in.Coppice)
		}
		d.tell(&t, &r, true)
	}
	d.follow()
	d.opt = opt
	return nil
}

// unfit ends a workflow task that this worker cannot carry out. The run does not
// fail: the server gives the task to workers again until one can.
func (d *driver) unfit(format string, args ...any) {
	msg := "run " + d.in.Name + " " + fmt.Sprintf(format, args...)
	d.w.trouble(d.in.Name, msg)
	panic(msg)
}

// take removes a task from the queue and returns it.
func (d *driver) take(id string) (runtime.Task, bool) {
	i := slices.IndexFunc(d.queue, func(t runtime.Task) bool { return t.ID == id })
	if i < 0 {
		return runtime.Task{}, false
	}
	t := d.queue[i]
	d.queue = slices.Delete(d.queue, i, i+1)
	return t, true
}

// drive runs the machine to its end.
func (d *driver) drive(outer workflow.Context) (*Outcome, error) {
	d.arm(outer)
	d.deadline()
	for {
		d.follow()
		switch {
		case d.m.Done():
			d.cancel()
			return d.end()
		case d.stopped:
			return nil, outer.Err()
		case d.late:
			d.cancel()
			return nil, d.programError(d.outOfTime())
		}
		if !d.continued && (d.suspended || d.full(outer)) {
			d.continued = true
		}
		if d.continued && d.inFlight == 0 && d.children == 0 && len(d.sent) == 0 {
			return d.again(outer)
		}
		if err := d.overBudget(); err != nil {
			d.cancel()
			return nil, d.programError(err)
		}
		d.launch()
		if d.continued {
			d.suspend()
		}
		d.status(d.stands())
		if len(d.flight) == 0 && len(d.sent) == 0 {
			return nil, d.programError(errors.New("workflows: internal error: the run is not over and nothing is to be done"))
		}
		if d.rests() && !workflow.IsReplaying(outer) {
			d.pub.emit(runtime.Event{Kind: runtime.RunWaits})
		}
		d.selector.Select(outer)
		for !d.m.Done() && !d.stopped && !d.late && d.selector.HasPending() {
			d.selector.Select(outer)
		}
		if d.fired > 64 && d.fired > 2*len(d.flight) {
			d.arm(outer)
		}
	}
}

// arm makes a selector of all that can happen. A selector keeps what is over, so
// a new one is made now and then.
func (d *driver) arm(outer workflow.Context) {
	d.selector = workflow.NewSelector(outer)
	d.fired = 0
	d.selector.AddReceive(outer.Done(), func(workflow.ReceiveChannel, bool) { d.stopped = true })
	d.selector.AddReceive(d.arrived, func(c workflow.ReceiveChannel, _ bool) { c.Receive(outer, nil) })
	d.selector.AddReceive(workflow.GetSignalChannel(outer, Answers), func(c workflow.ReceiveChannel, _ bool) {
		var a Answer
		c.Receive(outer, &a)
		d.answered(a)
	})
	d.selector.AddReceive(workflow.GetSignalChannel(outer, stood), func(c workflow.ReceiveChannel, _ bool) {
		var s standing
		c.Receive(outer, &s)
		d.childStands(s)
	})
	if d.in.child() {
		d.selector.AddReceive(workflow.GetSignalChannel(outer, suspends), func(c workflow.ReceiveChannel, _ bool) {
			c.Receive(outer, nil)
			d.suspended = true
		})
	}
	d.order = slices.DeleteFunc(d.order, func(f *flight) bool { return d.flight[f.task.ID] != f })
	for _, f := range d.order {
		d.watch(f)
	}
	for _, s := range d.sent {
		d.watchSent(s)
	}
}

func (d *driver) wake() { d.arrived.SendAsync(struct{}{}) }

// watch adds the end of a flight to the selector.
func (d *driver) watch(f *flight) {
	if f.future == nil {
		return
	}
	if f.starting {
		d.selector.AddFuture(f.child.GetChildWorkflowExecution(), func(workflow.Future) {
			d.fired++
			d.started(f)
			for _, a := range f.held {
				d.send(f, a)
			}
			f.held = nil
		})
	}
	d.selector.AddFuture(f.future, func(fut workflow.Future) {
		d.fired++
		if d.flight[f.task.ID] == f {
			d.landed(f, fut)
		}
	})
}

// follow takes over what changed in the machine.
func (d *driver) follow() {
	c := d.m.Changes()
	for _, id := range c.Cancel {
		if f := d.flight[id]; f != nil {
			d.drop(f)
			f.cancel()
			d.event(runtime.NodeCancelled, f)
			continue
		}
		d.take(id)
	}
	for _, b := range c.Branches {
		if b.ID == "" {
			continue
		}
		d.farewell(b)
		e := runtime.Event{Kind: runtime.BranchFinished, Branch: b.ID, Label: b.Label, Status: b.Status}
		if b.Status == runtime.Running {
			e.Kind, e.Status = runtime.BranchStarted, ""
			d.parent[b.ID] = b.Parent
		} else {
			delete(d.marks, b.ID)
			delete(d.parent, b.ID)
		}
		if b.Err != nil {
			e.Error = b.Err.Error()
		}
		d.pub.emit(e)
	}
	for _, x := range c.Refused {
		d.pub.emit(runtime.Event{Kind: runtime.NodeRefused, Task: x.Task, Node: x.Node, Branch: x.Branch, Error: x.Reason})
	}
	d.queue = append(d.queue, c.Start...)
}

func (d *driver) drop(f *flight) {
	delete(d.flight, f.task.ID)
	switch {
	case f.task.Program != nil:
		d.children--
		d.started(f)
	case f.activity():
		d.inFlight--
	}
}

func (f *flight) activity() bool { return f.task.Sleep == nil && f.task.Wait == nil && !f.unknown }

// launch begins queued tasks. Activities are bounded; sleeps and waits cost
// nothing and are not. When a new history is due, nothing is begun.
func (d *driver) launch() {
	if d.continued {
		return
	}
	room := d.in.Window - d.inFlight
	children, starting := d.children, d.starting
	var begin, later []runtime.Task
	for _, t := range d.queue {
		if t.Program != nil {
			if children >= maxChildren || starting >= maxStarting {
				later = append(later, t)
				continue
			}
			children++
			if d.in.Format > 2 {
				starting++
			}
		} else if t.Sleep == nil && t.Wait == nil && !d.undecidable(t.ID) {
			if room <= 0 {
				later = append(later, t)
				continue
			}
			room--
		}
		begin = append(begin, t)
	}
	d.queue = later
	d.m.Together(begin)
	d.foresee(begin)
	for _, t := range begin {
		d.begin(&flight{task: t})
	}
}

// undecidable reports whether a task is a call of unknown outcome in an earlier
// history, and still nobody has said what became of it.
func (d *driver) undecidable(task string) bool {
	return slices.ContainsFunc(d.in.Unknown, func(u Unknown) bool { return u.Task == task })
}

// begin starts what carries a task out.
func (d *driver) begin(f *flight) {
	d.flight[f.task.ID] = f
	d.order = append(d.order, f)
	ctx, cancel := workflow.WithCancel(d.ctx)
	f.cancel = cancel
	switch {
	case f.task.Sleep != nil || f.task.Wait != nil:
		d.await(ctx, f)
	case f.task.Program != nil:
		f.future = d.child(ctx, f)
	case d.undecidable(f.task.ID):
		f.unknown = true
		return
	default:
		d.inFlight++
		f.future = d.execute(ctx, f)
	}
	d.watch(f)
}

// landed takes what came of a flight.
func (d *driver) landed(f *flight, fut workflow.Future) {
	if f.task.Program != nil {
		d.childLanded(f, fut)
		return
	}
	if f.task.Sleep != nil || f.task.Wait != nil {
		if err := fut.Get(d.ctx, nil); err != nil {
			return // cancelled
		}
		if f.answer != nil {
			d.apply(f, runtime.Result{Task: f.task.ID, Value: f.answer})
			return
		}
		d.apply(f, f.task.Expired())
		return
	}
	var a answer
	err := fut.Get(d.ctx, &a)
	var canceled *temporal.CanceledError
	var app *temporal.ApplicationError
	var timeout *temporal.TimeoutError
	switch {
	case err == nil:
		if a.Context != "" {
			d.stored(f, &a)
		}
		if f.task.Call == nil { // a call leaves nothing in a cache
			d.home = a.Queue
		}
		a.Result.Task = f.task.ID
		d.apply(f, a.Result)
	case errors.As(err, &canceled):
		// The whole run is: the loop sees that.
	case errors.As(err, &app) && app.Type() == typeNoContext && f.elided:
		// Another store, or one that lost it: this time the whole prompt goes.
		clear(d.marks)
		d.retry(f, f.before)
	case f.home != "" && errors.As(err, &timeout) && timeout.TimeoutType() == enums.TIMEOUT_TYPE_SCHEDULE_TO_START:
		// Its worker is gone, or has too much to do. Any other goes on from what
		// the last heartbeat said.
		if d.home == f.home {
			d.home = ""
		}
		before := f.before
		var p progress
		if timeout.HasLastHeartbeatDetails() && timeout.LastHeartbeatDetails(&p) == nil {
			before = &p
		}
		d.retry(f, before)
	case f.task.Call != nil && f.task.Call.Unsafe && (errors.As(err, &timeout) || errors.As(err, &app) && app.Type() == typeUnknown):
		// It may have happened. Only a person can find out.
		d.inFlight--
		f.unknown, f.future = true, nil
		d.show()
	case errors.As(err, &timeout) && timeout.TimeoutType() == enums.TIMEOUT_TYPE_SCHEDULE_TO_CLOSE && !d.in.over().IsZero():
		// Only the end of the run's time ends it so. It is no result of the task.
		d.drop(f)
		d.late = true
	default:
		d.apply(f, runtime.Result{Task: f.task.ID, Failure: failure(err)})
	}
}

// retry begins a flight's task again, from where it was.
func (d *driver) retry(f *flight, before *progress) {
	d.drop(f)
	d.begin(&flight{task: f.task, before: before})
}

// apply gives a result to the machine.
func (d *driver) apply(f *flight, r runtime.Result) {
	d.drop(f)
	if f.cancel != nil {
		f.cancel()
	}
	err := d.m.Apply(r)
	if errors.Is(err, runtime.ErrBadResult) {
		r = runtime.Result{Task: f.task.ID, Failure: runtime.NewFailure(err)}
		err = d.m.Apply(r)
	}
	if err != nil {
		return // it was cancelled meanwhile
	}
	d.tell(&f.task, &r, workflow.IsReplaying(d.ctx))
	d.follow()
	d.show()
}
