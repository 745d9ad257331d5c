package workflows

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/runtime"
)

// homeWait is how long a task waits for the worker that has its prompt in the
// cache before any other may take it, where the run says nothing.
const homeWait = 5 * time.Second

// execute starts the activity of a task.
func (d *driver) execute(ctx workflow.Context, f *flight) workflow.Future {
	t := &f.task
	a := ask{
		Run: d.in.Name, Task: t.ID, Branch: t.Branch, Node: t.Node.ID, Does: does(t),
		Call: t.Call, Retry: d.in.Retry, First: d.first, Before: f.before,
	}
	if t.Call != nil {
		a.Retry.Attempts = 1 // a function that failed has said so
	}
	if of := t.Node.Terms(); of != nil {
		a.Timeout = of.Timeout
		// The function of a check has the node of what it judges, but is called once.
		if t.Call == nil || t.Node.Call != nil {
			a.Fallback = of.Fallback
			a.Retry = a.Retry.with(of.Retry)
		}
	}
	if a.Timeout == 0 {
		a.Timeout = d.in.Timeout
	}
	opt := workflow.ActivityOptions{
		StartToCloseTimeout: d.in.Longest,
		HeartbeatTimeout:    d.in.Heartbeat,
		Summary:             summary(t),
		// How long to wait and when to give up is said by each failure itself.
		RetryPolicy: &temporal.RetryPolicy{InitialInterval: a.Retry.Wait, BackoffCoefficient: 2, MaximumInterval: a.Retry.most()},
	}
	if over := d.in.over(); !over.IsZero() {
		opt.ScheduleToCloseTimeout = max(over.Sub(workflow.Now(ctx)), time.Millisecond)
	}
	if d.home != "" {
		opt.TaskQueue, opt.ScheduleToStartTimeout = d.home, cmp.Or(d.in.HomeWait, homeWait)
		f.home = d.home
		a.Foresee = d.carry()
	}
	if t.Call != nil {
		if t.Call.Unsafe {
			opt.RetryPolicy.MaximumAttempts = 1
		}
		return workflow.ExecuteActivity(workflow.WithActivityOptions(ctx, opt), activityCall, a)
	}
	ctx = workflow.WithActivityOptions(ctx, opt)
	if t.Score != nil {
		req := *t.Score
		base, own := d.elide(f, &a, req.Turns)
		req.Turns = nil
		a.Score = &req
		return workflow.ExecuteActivity(ctx, activityScore, a, base, own)
	}
	req := *t.Generate
	base, own := d.elide(f, &a, req.Turns)
	req.Turns = nil
	// A payload of its own: a large schema is stored once.
	var c *backend.Constraint
	if !req.Constraint.IsZero() {
		c = &backend.Constraint{}
		*c = req.Constraint
		req.Constraint = backend.Constraint{}
	}
	a.Generate = &req
	return workflow.ExecuteActivity(ctx, activityGenerate, a, base, own, c)
}

// elide leaves out of a prompt what the store has.
func (d *driver) elide(f *flight, a *ask, turns []backend.Turn) (base, own *grown) {
	f.prompt = mark{turns: turns}
	f.shared = min(f.task.Base, len(turns))
	for b := f.task.Branch; ; b = d.parent[b] {
		from, base, own := d.marks[b].split(turns, f.shared)
		if a.Parent = from.hash; a.Parent == "" && b != "" {
			continue
		}
		f.elided = a.Parent != ""
		if len(from.turns) > f.shared {
			f.shared = 0 // it goes on from a prompt that siblings do not share
		}
		return base, own
	}
}

// stored notes what the store has of a prompt: the whole for the branch that
// asked, and for its parent what all branches share.
func (d *driver) stored(f *flight, a *answer) {
	b := f.task.Branch
	f.prompt.hash = a.Context
	d.marks[b] = d.marks[b].add(f.prompt)
	parent, open := d.parent[b]
	if f.shared == 0 || !open || slices.ContainsFunc(d.marks[parent], func(m mark) bool { return m.hash == a.Base }) {
		return
	}
	d.marks[parent] = d.marks[parent].add(mark{a.Base, f.prompt.turns[:f.shared]})
}

// summary is a line about a task for people.
func summary(t *runtime.Task) string {
	s := t.ID
	switch {
	case t.Call != nil:
		if t.Call.Func != t.Node.Name {
			s += ": " + t.Call.Func
		}
	case t.Wait != nil:
		s += ": " + t.Wait.Ask
	case t.Sleep != nil:
		s += ": sleep " + t.Sleep.For.String()
	case t.Program != nil:
		s += ": run " + t.Program.Graph.Name
	default:
		s = fmt.Sprintf("%s (%s)", s, t.Node.Kind)
	}
	return short(s, 200)
}

// short is the beginning of a text on one line.
func short(s string, most int) string {
	return clip(strings.Join(strings.Fields(s), " "), most)
}

// clip is the beginning of a text.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most] + "…"
}
