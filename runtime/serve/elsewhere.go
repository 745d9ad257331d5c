package serve

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// Runner carries out the runs of a server in other processes, which go on when the
// server does not: on Temporal, for instance. The server keeps their events, answers
// what is asked about them, and brings them answers.
type Runner interface {
	// Run begins a run, or goes on with the one of that id, and returns when it is over
	// with what it gave. An error that is ErrAway says that nobody knows what became of
	// the run.
	Run(ctx context.Context, r Elsewhere) (*runtime.Report, error)
}

// ErrAway is the error of a Runner that cannot be reached. The run is interrupted and
// goes on with the next start of the server, or when somebody resumes it.
var ErrAway = errors.New("what carries out the run cannot be reached")

// Elsewhere is a run that a Runner carries out.
type Elsewhere struct {
	ID     string
	Graph  *lang.Graph
	Inputs lang.Args
	Seed   uint64
	Salt   string
	Limits runtime.Limits
	Window int // requests to models at a time
	// Begun says that an earlier process of the server may have begun the run already,
	// Told what that told of it.
	Begun bool
	Told  []runtime.Event
	// Sink takes the run's events, numbered behind Told. The last is run_finished or
	// run_failed.
	Sink runtime.Sink
	// Answer waits for the answer to a task whose node_started is told.
	Answer runtime.Answerer
	// Keep says, when the context has ended, that the run goes on without the server.
	// Else it is to be cancelled.
	Keep func() bool
}

var (
	errElsewhere = errors.New("it is a durable run, and this server carries out none: start it with --durable")
	errHere      = errors.New("it is no durable run, and this server carries out no other: start it without --durable")
)

// runElsewhere has a run carried out by the server's Runner.
func (s *Server) runElsewhere(ctx context.Context, t *tenant, r *run, q runRequest, sink *runSink) (report *runtime.Report, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.cfg.Log.Error("panic in a run", "run", r.id, "panic", v, "stack", string(debug.Stack()))
			err = &runtime.PanicError{Value: v}
		}
	}()
	sink.quota = t.quota
	if n := len(q.told); n > 0 {
		sink.last = q.told[n-1].Seq
	}
	limits := s.cfg.Limits.ProgramLimits
	report, err = s.cfg.Runner.Run(ctx, Elsewhere{
		ID: r.id, Graph: q.program.Graph, Inputs: q.inputs, Seed: q.seed, Salt: q.salt,
		Limits: runtime.Limits{Nodes: limits.Nodes, Branches: limits.Branches, Text: limits.TextBytes}, Window: limits.Concurrency,
		Begun: q.begun, Told: q.told, Sink: sink, Answer: r.asks.ask,
		Keep: func() bool {
			var keep *keepError
			cause := context.Cause(ctx)
			return cause == error(errSuspended) || errors.As(cause, &keep)
		},
	})
	if errors.Is(err, ErrAway) {
		err = fmt.Errorf("run %s: %w", r.id, err)
	}
	return report, err
}
