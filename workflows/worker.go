package workflows

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// DefaultQueue is the task queue of runs and workers that name none.
const DefaultQueue = "coppice"

// Config says what a worker works with.
type Config struct {
	// Queue is the task queue; default [DefaultQueue].
	Queue string
	// Backend runs the generations. The caller closes it, after Stop.
	Backend backend.Backend
	// Fallback are the backends that are asked in their order when Backend has
	// failed for good; nodes name those that they want. The caller closes them.
	Fallback []Fallback
	// Funcs are the functions that programs may call. Every worker of a queue
	// has all that the programs on it need.
	Funcs lang.Funcs
	// Store is the one that the client's data converter uses.
	Store Store
	// Key, if not nil, is the one of the data converter.
	Key *Key
	// Heartbeat is used where a run says nothing; default 10 s.
	Heartbeat time.Duration
	// Concurrency bounds the activities at a time; default 256.
	Concurrency int
	// Affinity makes the tasks of a run prefer the worker that has its prompt in
	// the cache. Worth it where several workers have an engine each.
	Affinity bool
	// Events returns where the events of a run go, or nil. It is called when a run
	// comes to this worker. The last event of a stream is run_finished or
	// run_failed; a run that is terminated, or goes on elsewhere, has none.
	Events func(run string) runtime.Sink
	// Trouble, if not nil, is told what keeps a run from going on with this
	// worker: it is too old for it, or too new. It is told the same once.
	Trouble func(run, message string)
	// Stop is how long Stop waits for activities that do not end at once;
	// default 5 s.
	Stop time.Duration
}

// Fallback is a backend under the name by which nodes call it.
type Fallback struct {
	Name    string
	Backend backend.Backend
}

// Worker carries out runs and their tasks.
type Worker struct {
	cfg      Config
	queue    string // its own; empty without affinity
	contexts *contexts
	programs programs
	events   streams
	mu       sync.Mutex
	troubles map[string]string // by run
	common   worker.Worker
	own      worker.Worker // nil without affinity
}

// NewWorker returns a worker that is not started.
func NewWorker(c *Client, cfg Config) (*Worker, error) {
	switch {
	case cfg.Backend == nil:
		return nil, errors.New("workflows: a worker needs a backend")
	case cfg.Store == nil:
		return nil, errors.New("workflows: a worker needs a store")
	}
	names := map[string]bool{}
	for _, f := range cfg.Fallback {
		switch {
		case f.Backend == nil:
			return nil, fmt.Errorf("workflows: fallback %q is nil", f.Name)
		case f.Name == "" || names[f.Name]:
			return nil, fmt.Errorf("workflows: fallback %q: the name is missing or taken", f.Name)
		}
		names[f.Name] = true
	}
	w := newWorker(cfg)
	opt := worker.Options{
		MaxConcurrentActivityExecutionSize: w.cfg.Concurrency,
		WorkerStopTimeout:                  w.cfg.Stop,
		// What a person cancels ends within a second or two.
		MaxHeartbeatThrottleInterval:     time.Second,
		DefaultHeartbeatThrottleInterval: time.Second,
		// A step of a large program, or a slow disk under the store, is no
		// deadlock.
		DeadlockDetectionTimeout: 30 * time.Second,
	}
	w.common = worker.New(c.Client, w.cfg.Queue, opt)
	w.common.RegisterWorkflowWithOptions(w.run, workflow.RegisterOptions{Name: WorkflowType})
	w.register(w.common)
	if cfg.Affinity {
		var id [8]byte
		rand.Read(id[:])
		w.queue = w.cfg.Queue + "-" + hex.EncodeToString(id[:])
		opt.DisableWorkflowWorker = true
		w.own = worker.New(c.Client, w.queue, opt)
		w.register(w.own)
	}
	return w, nil
}

func newWorker(cfg Config) *Worker {
	if cfg.Queue == "" {
		cfg.Queue = DefaultQueue
	}
	if cfg.Heartbeat <= 0 {
		cfg.Heartbeat = 10 * time.Second
	}
	if cfg.Concurrency <= 0 {
		cfg.Concurrency = 256
	}
	if cfg.Stop <= 0 {
		cfg.Stop = 5 * time.Second
	}
	s := cfg.Store
	if cfg.Key != nil {
		s = sealedStore{s, cfg.Key}
	}
	return &Worker{cfg: cfg, contexts: newContexts(s), events: streams{open: cfg.Events}}
}

// trouble tells what keeps a run from going on here.
func (w *Worker) trouble(run, message string) {
	if w.cfg.Trouble == nil {
		return
	}
	w.mu.Lock()
	known := w.troubles[run] == message
	if w.troubles == nil || len(w.troubles) >= keptPrograms {
		w.troubles = map[string]string{}
	}
	w.troubles[run] = message
	w.mu.Unlock()
	if !known {
		w.cfg.Trouble(run, message)
	}
}

// activities is what a worker and the SDK's test environment have in common.
type activities interface {
	RegisterActivityWithOptions(a any, options activity.RegisterOptions)
}

func (w *Worker) register(r activities) {
	r.RegisterActivityWithOptions(w.generate, activity.RegisterOptions{Name: activityGenerate})
	r.RegisterActivityWithOptions(w.score, activity.RegisterOptions{Name: activityScore})
	r.RegisterActivityWithOptions(w.call, activity.RegisterOptions{Name: activityCall})
}

// Start begins to take work. It returns at once.
func (w *Worker) Start() error {
	if err := w.common.Start(); err != nil {
		return fmt.Errorf("workflows: the worker does not start: %w", err)
	}
	if w.own != nil {
		if err := w.own.Start(); err != nil {
			w.common.Stop()
			return fmt.Errorf("workflows: the worker does not start: %w", err)
		}
	}
	return nil
}

// Stop takes no more work, hands what is under way to other workers together
// with what came of it so far, and returns when nothing of it runs any more.
func (w *Worker) Stop() {
	if w.own != nil {
		w.own.Stop()
	}
	w.common.Stop()
}

// DialOptions say where Temporal is and how its payloads are kept.
type DialOptions struct {
	Address   string // host:port
	Namespace string // default "default"
	Store     Store
	Key       *Key
	// Client is the rest: TLS, credentials, interceptors. What is set above wins.
	Client client.Options
}

// Client is a connection to Temporal with the data converter that coppice uses.
// Whoever dialled closes it.
type Client struct {
	client.Client
	conv converter.DataConverter
}

// Dial connects to Temporal.
func Dial(ctx context.Context, o DialOptions) (*Client, error) {
	if o.Store == nil {
		return nil, errors.New("workflows: a client needs a store")
	}
	c := o.Client
	c.HostPort = o.Address
	if o.Namespace != "" {
		c.Namespace = o.Namespace
	}
	// The store is read inside of workflow tasks: what a hash names is always the
	// same, so this is no input from outside.
	c.DataConverter = workflow.DataConverterWithoutDeadlockDetection(Converter(o.Store, o.Key))
	c.FailureConverter = FailureConverter(c.DataConverter, o.Key)
	if c.Logger == nil {
		c.Logger = quiet{}
	}
	if host, _, _ := net.SplitHostPort(o.Address); c.ConnectionOptions.GrpcCompression == nil && net.ParseIP(host).IsLoopback() {
		c.ConnectionOptions.GrpcCompression = &client.GrpcCompressionNone{} // packing costs more than it saves
	}
	cl, err := client.DialContext(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("workflows: no Temporal at %s: %w", o.Address, err)
	}
	return &Client{cl, c.DataConverter}, nil
}

// quiet drops the SDK's log: what matters is in the errors and events of a run.
type quiet struct{}

var _ log.Logger = quiet{}

func (quiet) Debug(string, ...any) {}
func (quiet) Info(string, ...any)  {}
func (quiet) Warn(string, ...any)  {}
func (quiet) Error(string, ...any) {}
