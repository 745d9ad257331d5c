package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/runtime/serve"
	"github.com/coppice-run/coppice/workflows"
	"github.com/coppice-run/coppice/workflows/relay"
)

// eventsKey is the variable with the key that workers post events with.
const eventsKey = "COPPICE_EVENTS_KEY"

// relaySender is a relay.Sender of a worker.
type relaySender struct{ *relay.Sender }

// relayTo returns a sender to a server, which prints what keeps that from taking
// events.
func (a *app) relayTo(address string) (*relaySender, error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usagef("--events %q is no address of a server, as http://host:8080", address)
	}
	post := relay.HTTP(&http.Client{}, strings.TrimSuffix(address, "/"), os.Getenv(eventsKey))
	return &relaySender{relay.NewSender(relay.Told(post, func(err error) {
		if err != nil {
			fmt.Fprintf(a.errOut, "events are kept until the server takes them: %s\n", oneLine(err.Error()))
			return
		}
		fmt.Fprintln(a.errOut, "the server takes events again")
	}))}, nil
}

// close hands over what is left.
func (s *relaySender) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = s.Close(ctx) // what was not taken is told again by whoever goes on
}

// durableFlags are the flags of 'coppice serve' for durable runs.
type durableFlags struct {
	temporalFlags
	durable, noWorker bool
}

func (d *durableFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.BoolVar(&d.durable, "durable", false, "carry out runs on Temporal: they go on without this server, and other workers may take part")
	f.BoolVar(&d.noWorker, "no-worker", false, "with --durable: leave runs to 'coppice worker --events ADDRESS'")
	d.registerAs(c, "temporal-")
}

// check refuses flags that are of no use.
func (d *durableFlags) check(c *cobra.Command) error {
	if d.durable {
		return nil
	}
	for _, name := range []string{"temporal", "namespace", "temporal-tls", "temporal-tls-cert", "temporal-tls-key", "temporal-tls-ca", "temporal-tls-server-name", "state", "store", "queue", "no-worker"} {
		if c.Flags().Changed(name) {
			return usagef("--%s is for durable runs: add --durable", name)
		}
	}
	return nil
}

// durableRuns carries out the runs of a server on Temporal.
type durableRuns struct {
	*temporal
	queue      string
	attributes bool
	log        *slog.Logger
	events     *relay.Receiver
	sender     *relay.Sender // of the worker in this process
	worker     *workflows.Worker
}

// open connects to Temporal, and makes the worker of this process, which
// start starts.
func (d *durableFlags) open(ctx context.Context, be backend.Backend, log *slog.Logger) (*durableRuns, error) {
	s, err := d.temporalFlags.open(ctx)
	if err != nil {
		return nil, err
	}
	r := &durableRuns{temporal: s, queue: d.queue, log: log, events: relay.NewReceiver(os.Getenv(eventsKey))}
	r.attributes, err = workflows.HasSearchAttributes(ctx, s.Client, d.namespace)
	if err == nil && !d.noWorker {
		var funcs lang.Funcs
		if funcs, err = exampleFuncs(); err == nil {
			r.sender = relay.NewSender(r.events.Post)
			r.worker, err = workflows.NewWorker(s.Client, workflows.Config{
				Queue: d.queue, Backend: be, Funcs: funcs, Store: s.store, Key: s.sealed, Events: r.sender.Sink,
				Trouble: func(run, message string) {
					log.Error("a run does not go on with this worker", "run", run, "error", message)
				},
			})
		}
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// start begins to work.
func (r *durableRuns) start() error {
	if r.worker == nil {
		return nil
	}
	err := r.worker.Start()
	if err != nil {
		r.worker = nil
	}
	return err
}

func (r *durableRuns) close() {
	if r.worker != nil {
		r.worker.Stop()
	}
	if r.sender != nil {
		(&relaySender{r.sender}).close()
	}
	r.temporal.Close()
}

// handler is the server with the place that workers elsewhere post events to.
func (r *durableRuns) handler(srv http.Handler, open bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path != relay.Path {
			srv.ServeHTTP(w, req)
			return
		}
		if host, _, _ := net.SplitHostPort(req.RemoteAddr); os.Getenv(eventsKey) == "" && (!open || !net.ParseIP(host).IsLoopback()) {
			http.Error(w, "workers on other machines, and those of a server with API keys, need a key: set "+eventsKey+" for the server and for them", http.StatusForbidden)
			return
		}
		r.events.ServeHTTP(w, req)
	})
}

const (
	// lastWords is how long the last events of a run that is over are waited for before
	// they are made up from its history.
	lastWords = 2 * time.Second
	// goodbye is how long a run that is cancelled is waited for.
	goodbye = 20 * time.Second
)

// Run implements serve.Runner.
func (r *durableRuns) Run(ctx context.Context, x serve.Elsewhere) (*runtime.Report, error) {
	if n := len(x.Told); n > 0 && (x.Told[n-1].Kind == runtime.RunFinished || x.Told[n-1].Kind == runtime.RunFailed) {
		report, err := workflows.Open(r.Client, x.ID).Report(ctx) // all else is known
		return report, unreached(err)
	}
	asked, stop := context.WithCancel(ctx)
	defer stop()
	ask := func(e *runtime.Event) {
		if e.Kind == runtime.NodeStarted && e.Does == string(lang.KindWait) {
			go r.answer(asked, x.Answer, e.Task, x.ID)
		}
	}
	f, err := r.events.Follow(x.ID, x.Told, runtime.SinkFunc(func(e runtime.Event) {
		x.Sink.Emit(e)
		ask(&e)
	}))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	run, err := r.begin(ctx, &x)
	if err != nil {
		return nil, unreached(err)
	}
	f.Emit(runtime.Event{Kind: runtime.RunStarted, Run: x.ID, Program: x.Graph.Name})
	for _, e := range waits(x.Told) {
		ask(&e)
	}
	report, err := r.report(ctx, run)
	if ctx.Err() != nil {
		if x.Keep() {
			return nil, context.Cause(ctx)
		}
		last, done := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		defer done()
		if err := run.Cancel(last); err != nil && !errors.Is(err, workflows.ErrUnknownRun) { // which one that is over is too
			return nil, fmt.Errorf("%w: the run cannot be cancelled, and may go on: %w", serve.ErrAway, err)
		}
		if report, err = run.Report(last); errors.Is(err, workflows.ErrUnknownRun) {
			return nil, context.Cause(ctx)
		}
		ctx = last
	}
	if errors.Is(err, workflows.ErrUnknownRun) { // by no means is it begun again
		return nil, unreached(err)
	}
	r.end(ctx, f, run, report)
	return report, err
}

// begin begins a run, or opens it if that was done already: one whose history the
// server has not any more would do again all that it did. What is cancelled meanwhile is
// given the time to begin, so that it is known what is there to be cancelled.
func (r *durableRuns) begin(ctx context.Context, x *serve.Elsewhere) (*workflows.Run, error) {
	if len(x.Told) > 0 || ctx.Err() != nil && !x.Keep() {
		return workflows.Open(r.Client, x.ID), nil
	}
	starting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		if x.Keep() {
			cancel()
			return
		}
		timer := time.AfterFunc(goodbye, cancel)
		context.AfterFunc(starting, func() { timer.Stop() })
	})
	defer stop()
	return workflows.Start(starting, r.Client, x.Graph, x.Inputs, workflows.StartOptions{
		Name: x.ID, Queue: r.queue, Seed: x.Seed, Salt: x.Salt, Limits: x.Limits, Window: x.Window, Once: true, SearchAttributes: r.attributes,
	})
}

// unreached is err as a server is told it: of a run that cannot be asked about, or is
// not known where it should be, nobody knows what became.
func unreached(err error) error {
	if errors.Is(err, workflows.ErrNoServer) || errors.Is(err, workflows.ErrUnknownRun) {
		return fmt.Errorf("%w: %w", serve.ErrAway, err)
	}
	return err
}

// report waits for the end of a run, however long the server of Temporal is away.
func (r *durableRuns) report(ctx context.Context, run *workflows.Run) (*runtime.Report, error) {
	for {
		report, err := run.Report(ctx)
		if ctx.Err() != nil || !errors.Is(err, workflows.ErrNoServer) {
			return report, err
		}
		r.log.Warn("Temporal does not answer; the run is waited for", "run", run.Name, "error", err)
	}
}

// end waits for the last events of a run that is over. What no worker lived to tell
// is told by its history.
func (r *durableRuns) end(ctx context.Context, f *relay.Following, run *workflows.Run, report *runtime.Report) {
	soon := time.NewTimer(lastWords)
	defer soon.Stop()
	select {
	case <-f.Over():
		return
	case <-soon.C:
	case <-ctx.Done():
	}
	if err := run.Retell(ctx, r.store, r.sealed, f); err != nil {
		r.log.Warn("the end of a run's events cannot be made up", "run", run.Name, "error", err)
	}
	if report != nil && report.Value != nil {
		f.Emit(runtime.Event{Kind: runtime.RunFinished, Value: report.Value, Usage: &report.Usage})
	}
}

// answer brings the answer to a task to the run.
func (r *durableRuns) answer(ctx context.Context, ask runtime.Answerer, task, name string) {
	v, err := ask(ctx, task, nil)
	if err != nil {
		return // nobody answered before the run, or the task, was over
	}
	run := workflows.Open(r.Client, name)
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		err := run.Answer(ctx, workflows.Answer{Task: task, Value: json.RawMessage(v)})
		switch {
		case err == nil, ctx.Err() != nil, errors.Is(err, workflows.ErrNotWaiting), errors.Is(err, workflows.ErrUnknownRun):
			return
		}
		r.log.Warn("an answer is not taken yet", "run", name, "task", task, "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// waits returns the beginnings of the tasks that are not over behind some events.
func waits(events []runtime.Event) []runtime.Event {
	over := map[string]bool{}
	for _, e := range events {
		if e.Kind == runtime.NodeFinished || e.Kind == runtime.NodeCancelled {
			over[e.Task] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(events), func(e runtime.Event) bool { return e.Kind != runtime.NodeStarted || over[e.Task] })
}

// dataOf is the folder for what is told of durable runs, if none is named.
func (d *durableFlags) dataOf(data string) (string, error) {
	if data != "" {
		return data, nil
	}
	folder, err := d.folder()
	return filepath.Join(folder, "serve"), err
}
