package serve

import "errors"

// Statuses of a run.
const (
	runRunning   = "running"
	runWaiting   = "waiting" // running, and something of it waits for an answer
	runFinished  = "finished"
	runFailed    = "failed"
	runCancelled = "cancelled"
	// runInterrupted: it is kept, and goes on in the server's next process or
	// when it is told to.
	runInterrupted = "interrupted"
)

// keptBytes is what the files of the run take; of one at work it is what they took
// a little while ago. The tenant's lock is held.
func (r *run) keptBytes() int64 {
	if r.files == nil {
		return 0
	}
	return r.files.bytes.Load()
}

func (r *run) status() string {
	switch {
	case r.over():
		return r.outcome()
	case r.asks.any():
		return runWaiting
	}
	return runRunning
}

// outcome is the status of a run that is over, or whose err is set.
func (r *run) outcome() string {
	switch {
	case r.was != "":
		return r.was
	case r.err == nil:
		return runFinished
	case cancelled(r.err):
		return runCancelled
	}
	return runFailed
}

// cancelled reports whether somebody wanted a run to end that ended with err.
func cancelled(err error) bool {
	return errors.Is(err, errCancelled) || errors.Is(err, errOrphaned) || errors.Is(err, errDraining)
}

// runInfo is a run as clients see it.
type runInfo struct {
	ID       string        `json:"id"`
	Object   string        `json:"object"`
	Program  string        `json:"program"`
	Status   string        `json:"status"`
	Created  int64         `json:"created_at"`
	Finished int64         `json:"finished_at,omitempty"`
	Waiting  []waitingTask `json:"waiting,omitempty"`
	Report   any           `json:"report,omitempty"`
	Error    *errorObject  `json:"error,omitempty"`
}

func (r *run) info(whole bool) runInfo {
	out := runInfo{ID: r.id, Object: "run", Program: r.program, Status: r.status(), Created: r.created.Unix()}
	if out.Status == runRunning || out.Status == runWaiting {
		if whole {
			out.Waiting = r.asks.waiting()
		}
		return out
	}
	if r.was != runInterrupted {
		out.Finished = r.ended.Unix()
	}
	if whole {
		out.Report = r.reported()
	}
	out.Error = r.failure()
	return out
}

// failure is why the run has no value, nil if it has one.
func (r *run) failure() *errorObject {
	if r.problem != nil || r.err == nil {
		return r.problem
	}
	return problemOf(r.err, r.err.Error()) // the program is the client's own
}

// problemOf is an error of that kind which says what.
func problemOf(err error, what string) *errorObject {
	o := toError(err).body().Error
	o.Message = what
	return &o
}
