package workflows

import (
	"context"
	"errors"
	"fmt"
	"time"

	enums "go.temporal.io/api/enums/v1"
)

// ErrNoWorker: a run waits for a worker, and none polls its task queue.
var ErrNoWorker = errors.New("no worker polls the task queue")

// pollerLife is after how long without a poll a worker is taken to be gone: a poll
// takes a minute at most, and the server remembers pollers for five.
const pollerLife = 90 * time.Second

// unattended returns an error that is ErrNoWorker if a worker has something to do
// for the run, or would be asked, and there is none.
func (r *Run) unattended(ctx context.Context, asked bool) error {
	d, err := r.c.DescribeWorkflow(ctx, r.Name, "")
	if err != nil {
		return r.failed(err)
	}
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

// troubleEvery is how often somebody who waits for a run looks what keeps it.
const troubleEvery = 10 * time.Second

// watchTrouble tells r.Trouble what keeps the run from going on, each thing once in
// a row, until ctx ends.
func (r *Run) watchTrouble(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := r.stuck(ctx)
		if err == nil {
			err = r.unattended(ctx, false)
		}
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			last = ""
		case !errors.Is(err, ErrStuck) && !errors.Is(err, ErrNoWorker): // the server is away, which is not for long
		case err.Error() != last:
			last = err.Error()
			r.Trouble(err)
		}
	}
}
