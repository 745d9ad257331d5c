package workflows

import (
	"context"
	"errors"
	"fmt"

	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/runtime"
)

// Retell tells the events of a run by its history, without its pieces of text: what
// happened up to now, or up to its end. It is for who follows runs and was told
// nothing of the last of it, since the worker died that would have. No backend is asked
// and no function called. store and key are those of the client.
//
// Of programs that are steps, their events come first.
func (r *Run) Retell(ctx context.Context, store Store, key *Key, sink runtime.Sink) error {
	chain, err := r.histories(ctx)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, h := range chain {
		for _, e := range h.Events {
			c := e.GetChildWorkflowExecutionStartedEventAttributes().GetWorkflowExecution().GetWorkflowId()
			if c == "" || seen[c] {
				continue
			}
			seen[c] = true
			if err := Open(r.c, c).Retell(ctx, store, key, sink); err != nil && !errors.Is(err, ErrUnknownRun) {
				return err
			}
		}
	}
	w := newWorker(Config{Store: store, Key: key, Events: func(string) runtime.Sink { return sink }})
	p, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{
		DataConverter:            workflow.DataConverterWithoutDeadlockDetection(r.c.conv),
		FailureConverter:         FailureConverter(r.c.conv, key),
		DisableDeadlockDetection: true,
	})
	if err != nil {
		return fmt.Errorf("workflows: run %s: %w", r.Name, err)
	}
	p.RegisterWorkflowWithOptions(w.run, workflow.RegisterOptions{Name: WorkflowType})
	if err := p.ReplayWorkflowHistory(quiet{}, chain[0]); err != nil {
		return fmt.Errorf("workflows: run %s: its history cannot be told again: %w", r.Name, err)
	}
	return nil
}

// histories returns the histories of a run, the last one first.
func (r *Run) histories(ctx context.Context) ([]*history.History, error) {
	var chain []*history.History
	for id := ""; ; {
		h := &history.History{}
		it := r.c.GetWorkflowHistory(ctx, r.Name, id, false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for it.HasNext() {
			e, err := it.Next()
			if err != nil {
				return nil, r.failed(err)
			}
			h.Events = append(h.Events, e)
		}
		if len(h.Events) == 0 {
			return nil, r.failed(fmt.Errorf("it has no history"))
		}
		chain = append(chain, h)
		if id = h.Events[0].GetWorkflowExecutionStartedEventAttributes().GetContinuedExecutionRunId(); id == "" {
			return chain, nil
		}
	}
}
