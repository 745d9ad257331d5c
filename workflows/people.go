package workflows

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/runtime"
)

// Answer is what somebody says to a task that waits for it.
type Answer struct {
	Task  string          `json:"task"`
	Value json.RawMessage `json:"value"`
	By    string          `json:"by,omitempty"` // who; for people
}

// Settlement is what somebody found out about a call of unknown outcome: the
// result that it had, or that it did not happen and is to be made.
type Settlement struct {
	Task   string          `json:"task"`
	Result json.RawMessage `json:"result,omitempty"`
	Again  bool            `json:"again,omitempty"`
	By     string          `json:"by,omitempty"`
}

// handlers are how others talk to the run.
func (d *driver) handlers(ctx workflow.Context) error {
	if err := workflow.SetQueryHandler(ctx, QueryTree, func() (*Tree, error) { return d.tree(), nil }); err != nil {
		return err
	}
	err := workflow.SetQueryHandler(ctx, QueryReport, func() (*Outcome, error) { return outcomeOf(d.m.Report()), nil })
	if err != nil {
		return err
	}
	err = workflow.SetUpdateHandlerWithOptions(ctx, Answers,
		func(_ workflow.Context, a Answer) error {
			f, err := d.waiting(a.Task)
			if err != nil {
				return err
			}
			v, err := f.task.Wait.Check(a.Value)
			if err != nil {
				return refuseAnswer(err)
			}
			d.apply(f, runtime.Result{Task: a.Task, Value: v})
			d.wake()
			return nil
		},
		workflow.UpdateHandlerOptions{Description: "answers a task that waits", Validator: func(a Answer) error {
			f, err := d.waiting(a.Task)
			if err != nil {
				return err
			}
			if _, err := f.task.Wait.Check(a.Value); err != nil {
				return refuseAnswer(err)
			}
			return nil
		}})
	if err != nil {
		return err
	}
	return workflow.SetUpdateHandlerWithOptions(ctx, Settles,
		func(_ workflow.Context, s Settlement) error {
			f, err := d.undecided(s)
			if err != nil {
				return err
			}
			d.in.Unknown = slices.DeleteFunc(d.in.Unknown, func(u Unknown) bool { return u.Task == s.Task })
			if s.Again {
				d.drop(f)
				d.queue = append(d.queue, f.task)
			} else {
				d.apply(f, runtime.Result{Task: s.Task, Value: s.Result})
			}
			d.wake()
			return nil
		},
		workflow.UpdateHandlerOptions{Description: "says what became of a call of unknown outcome", Validator: func(s Settlement) error {
			_, err := d.undecided(s)
			return err
		}})
}

func refuse(err error) error {
	return temporal.NewNonRetryableApplicationError(err.Error(), typeNotWaiting, nil)
}

func refuseAnswer(err error) error {
	return temporal.NewNonRetryableApplicationError(err.Error(), typeAnswer, nil)
}

// waiting returns the flight of a task that waits for an answer.
func (d *driver) waiting(task string) (*flight, error) {
	if f := d.flight[task]; f != nil && f.task.Wait != nil && f.answer == nil {
		return f, nil
	}
	var open []string
	for _, f := range d.order {
		if d.flight[f.task.ID] == f && f.task.Wait != nil {
			open = append(open, f.task.ID)
		}
	}
	return nil, refuse(fmt.Errorf("task %q waits for no answer; %s", task, listed(open, "waiting")))
}

// undecided returns the flight of a call of unknown outcome.
func (d *driver) undecided(s Settlement) (*flight, error) {
	if s.Again == (s.Result != nil) {
		return nil, refuseAnswer(fmt.Errorf("a settlement has either a result or again"))
	}
	if f := d.flight[s.Task]; f != nil && f.unknown {
		if s.Result != nil {
			if err := f.task.CheckResult(s.Result); err != nil {
				return nil, refuseAnswer(err)
			}
		}
		return f, nil
	}
	var open []string
	for _, f := range d.order {
		if d.flight[f.task.ID] == f && f.unknown {
			open = append(open, f.task.ID)
		}
	}
	return nil, refuse(fmt.Errorf("task %q is no call of unknown outcome; %s", s.Task, listed(open, "unknown")))
}

func listed(ids []string, what string) string {
	if len(ids) == 0 {
		return "none is " + what
	}
	const most = 20
	if len(ids) > most {
		return fmt.Sprintf("%s are %s and %d more", what, strings.Join(ids[:most], ", "), len(ids)-most)
	}
	return what + ": " + strings.Join(ids, ", ")
}

// answered takes an answer that came as a signal. One that comes before its task
// waits for it; one that is no answer is of no effect.
func (d *driver) answered(a Answer) {
	if d.forward(a) {
		return
	}
	f, err := d.waiting(a.Task)
	if err != nil {
		d.keep(a)
		return
	}
	v, err := f.task.Wait.Check(a.Value)
	if err != nil {
		workflow.GetLogger(d.ctx).Warn("an answer was refused", "task", a.Task, "by", a.By, "error", err)
		return
	}
	d.apply(f, runtime.Result{Task: a.Task, Value: v})
}

// keep keeps an answer until its task is there.
func (d *driver) keep(a Answer) {
	if !slices.ContainsFunc(d.early, func(e Answer) bool { return e.Task == a.Task }) && !d.m.Finished(a.Task) {
		d.early = append(d.early, a)
	}
}

// await makes a task wait: until its time is over, or for what somebody says. An
// answer may be there already.
func (d *driver) await(ctx workflow.Context, f *flight) {
	if f.task.Wait != nil {
		if i := slices.IndexFunc(d.early, func(a Answer) bool { return a.Task == f.task.ID }); i >= 0 {
			a := d.early[i]
			d.early = slices.Delete(d.early, i, i+1)
			if v, err := f.task.Wait.Check(a.Value); err == nil {
				f.answer = v
				future, set := workflow.NewFuture(ctx)
				set.SetValue(nil)
				f.future = future
				return
			}
		}
	}
	now := workflow.Now(ctx)
	after, ends := f.task.After()
	if ends {
		f.due = now.Add(after)
		for _, due := range d.in.Due { // it began in an earlier history
			if due.Task == f.task.ID {
				f.due = due.At
			}
		}
	}
	d.event(runtime.NodeStarted, f)
	d.show()
	if !ends {
		return
	}
	if left := f.due.Sub(now); left > 0 {
		f.future = workflow.NewTimerWithOptions(ctx, left, workflow.TimerOptions{Summary: summary(&f.task)})
		return
	}
	future, set := workflow.NewFuture(ctx)
	set.SetValue(nil)
	f.future = future
}
