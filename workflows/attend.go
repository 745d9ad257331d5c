package workflows

import (
	"context"
	"errors"
	"fmt"
	"time"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
)

// ErrNoWorker: a run waits for a worker, and none polls its task queue.
var ErrNoWorker = errors.New("no worker polls the task queue")

// pollerLife is after how long without a poll a worker is taken to be gone: a poll
// takes a minute at most, and the server remembers pollers for five.
const pollerLife = 90 * time.Second

// describe asks the server for the run.
func (r *Run) describe(ctx context.Context) (*client.WorkflowExecutionDescription, error) {
	d, err := r.c.DescribeWorkflow(ctx, r.Name, "")
	if err != nil {
		return nil, r.failed(err)
	}
	return d, nil
}

// unattended returns an error that is ErrNoWorker if a worker has something to do
// for the run, or would be asked, and there is none.
func (r *Run) unattended(ctx context.Context, d *client.WorkflowExecutionDescription, asked bool) error {
	raw := d.RawResponse
	if d.Status != enums.WORKFLOW_EXECUTION_STATUS_RUNNING && !asked {
		return nil
	}
	waits := asked || raw.GetPendingWorkflowTask().GetState() == enums.PENDING_WORKFLOW_TASK_STATE_SCHEDULED
	for _, a := range raw.GetPendingActivities() {
		waits = waits || a.GetState() == enums.PENDING_ACTIVITY_STATE_SCHEDULED
	}
	if !waits {
		return nil
	}
	queue := raw.GetExecutionConfig().GetTaskQueue().GetName()
	q, err := r.c.DescribeTaskQueue(ctx, queue, enums.TASK_QUEUE_TYPE_WORKFLOW)
	if err != nil {
		return r.failed(err)
	}
	for _, p := range q.GetPollers() {
		if time.Since(p.GetLastAccessTime().AsTime()) < pollerLife {
			return nil
		}
	}
	return fmt.Errorf("run %s: %w %s: start one with: coppice worker --queue %s (with the flags that this server and store need)", r.Name, ErrNoWorker, queue, queue)
}

// stuck returns an error that is ErrStuck if the workers that there are cannot
// carry the run out, with what they say.
func (r *Run) stuck(ctx context.Context, d *client.WorkflowExecutionDescription) error {
	if d.RawResponse.GetPendingWorkflowTask().GetAttempt() < 2 {
		return nil
	}
	says := ""
	events := r.c.GetWorkflowHistory(ctx, r.Name, d.WorkflowExecution.RunID, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		if err != nil {
			return r.failed(err)
		}
		switch e.EventType {
		case enums.EVENT_TYPE_WORKFLOW_TASK_FAILED:
			f := e.GetWorkflowTaskFailedEventAttributes().GetFailure()
			converter.DecodeCommonFailureAttributes(r.c.conv, f)
			says = f.GetMessage()
		case enums.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
			says = ""
		}
	}
	if says == "" { // it timed out, or goes on since
		return nil
	}
	return fmt.Errorf("%w: %s", ErrStuck, says)
}

// attended returns what keeps the run from being asked or told something: nobody
// would answer, and the caller would wait.
func (r *Run) attended(ctx context.Context) error {
	d, err := r.describe(ctx)
	if err != nil {
		return err
	}
	if err := r.stuck(ctx, d); err != nil {
		return err
	}
	if err := r.unattended(ctx, d, true); errors.Is(err, ErrNoWorker) {
		return err
	}
	return nil
}

// Somebody who waits for a run looks every troubleEvery what keeps it, at so many
// of its programs at a time.
const (
	troubleEvery = 10 * time.Second
	troubleLooks = 64
)

// watchTrouble tells r.Trouble what keeps the run, or a program that is a step of
// it, from going on, each thing once as long as it lasts, until ctx ends.
func (r *Run) watchTrouble(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	var next []string // runs that are to be looked at in this round
	seen, told := map[string]bool{}, map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if len(next) == 0 {
			next = []string{r.Name}
			told, seen = seen, map[string]bool{}
		}
		for n := 0; n < troubleLooks && len(next) > 0; n++ {
			x := Open(r.c, next[0])
			programs, err := x.looked(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case errors.Is(err, ErrStuck), errors.Is(err, ErrNoWorker):
				if says := err.Error(); !seen[says] {
					seen[says] = true
					if !told[says] {
						r.Trouble(err)
					}
				}
			case err != nil && !errors.Is(err, ErrUnknownRun): // the server is away, which is not for long
				n = troubleLooks
				continue
			}
			next = append(next[1:], programs...)
		}
	}
}

// looked returns the open programs of a run, and what keeps it from going on.
func (r *Run) looked(ctx context.Context) (programs []string, err error) {
	d, err := r.describe(ctx)
	if err != nil {
		return nil, err
	}
	for _, c := range d.RawResponse.GetPendingChildren() {
		programs = append(programs, c.GetWorkflowId())
	}
	if err := r.stuck(ctx, d); err != nil {
		return programs, err
	}
	return programs, r.unattended(ctx, d, false)
}
