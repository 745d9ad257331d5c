package main

import (
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/client"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/workflows"
	"github.com/coppice-run/coppice/workflows/devserver"
	"github.com/coppice-run/coppice/workflows/s3"
)

// temporalFlags say which Temporal server a command talks to, and where what is
// too large for it is kept.
type temporalFlags struct {
	address, namespace    string
	cert, key, ca, server string
	tls                   bool
	state, store, queue   string
	shared                bool // the queue was named: workers elsewhere may serve it
}

func (t *temporalFlags) register(c *cobra.Command) { t.registerAs(c, "") }

// registerAs puts a prefix before the names of flags that a command has another use
// for.
func (t *temporalFlags) registerAs(c *cobra.Command, prefix string) {
	f := c.Flags()
	f.StringVar(&t.address, "temporal", "", "host:port of a Temporal server (default: our own, started if need be)")
	f.StringVar(&t.namespace, "namespace", "default", "Temporal namespace")
	f.BoolVar(&t.tls, prefix+"tls", false, "connect to Temporal with TLS")
	f.StringVar(&t.cert, prefix+"tls-cert", "", "client certificate, a PEM file")
	f.StringVar(&t.key, prefix+"tls-key", "", "its key, a PEM file")
	f.StringVar(&t.ca, prefix+"tls-ca", "", "certificate of the authority that signed the server's, a PEM file")
	f.StringVar(&t.server, prefix+"tls-server-name", "", "name in the server's certificate, if it is not the host's")
	f.StringVar(&t.state, "state", "", "folder with the store, and of our own server (default: coppice in the user's state folder)")
	f.StringVar(&t.store, "store", "", "bucket that keeps what is too large for Temporal, s3://BUCKET/PREFIX?endpoint=URL&region=NAME, with credentials from the environment (default: a folder in --state)")
	f.StringVar(&t.queue, "queue", workflows.DefaultQueue, "task queue")
}

// given reports whether a flag says that a Temporal server is wanted.
func (t *temporalFlags) given(c *cobra.Command) bool { return c.Flags().Changed("temporal") }

func (t *temporalFlags) folder() (string, error) {
	if t.state != "" {
		return t.state, nil
	}
	if d := os.Getenv("XDG_STATE_HOME"); d != "" {
		return filepath.Join(d, "coppice"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", usagef("there is no home folder to keep the state in: name a folder with --state")
	}
	return filepath.Join(home, ".local", "state", "coppice"), nil
}

// temporal is a connection to a server with its store.
type temporal struct {
	*workflows.Client
	store  workflows.Store
	sealed *workflows.Key
	server *devserver.Server // nil: not ours
}

func (t *temporal) Close() {
	t.Client.Close()
	if t.server != nil {
		t.server.Close()
	}
}

// open connects, and starts our own server if no other is named.
func (t *temporalFlags) open(ctx context.Context) (*temporal, error) {
	folder, err := t.folder()
	if err != nil {
		return nil, err
	}
	o := workflows.DialOptions{Address: t.address, Namespace: t.namespace}
	if o.Client, err = t.client(); err != nil {
		return nil, err
	}
	store, err := t.openStore(ctx, filepath.Join(folder, "store"))
	if err != nil {
		return nil, err
	}
	o.Store = store
	if s := os.Getenv("COPPICE_SECRET"); s != "" {
		if o.Key, err = workflows.NewKey([]byte(s)); err != nil {
			return nil, usageError{fmt.Errorf("COPPICE_SECRET: %w", err)}
		}
	}
	out := &temporal{store: store, sealed: o.Key}
	if t.address == "" {
		if out.server, err = devserver.Use(ctx, filepath.Join(folder, "temporal"), devserver.Options{}); err != nil {
			return nil, err
		}
		o.Address = out.server.Address
	}
	if out.Client, err = workflows.Dial(ctx, o); err != nil {
		if out.server != nil {
			out.server.Close()
		}
		return nil, err
	}
	return out, nil
}

// openStore returns the store: a folder, or a bucket with the folder as its cache.
func (t *temporalFlags) openStore(ctx context.Context, folder string) (workflows.Store, error) {
	dir, err := workflows.OpenDir(folder)
	if err != nil || t.store == "" {
		return dir, err
	}
	bucket, prefix, o, err := s3.Parse(t.store)
	if err != nil {
		return nil, usageError{fmt.Errorf("--store: %w", err)}
	}
	far, err := s3.Open(ctx, bucket, prefix, o)
	if err != nil {
		return nil, err
	}
	return workflows.Near(far, dir), nil
}

// client returns the options of the connection.
func (t *temporalFlags) client() (client.Options, error) {
	var o client.Options
	if key := os.Getenv("TEMPORAL_API_KEY"); key != "" {
		o.Credentials = client.NewAPIKeyStaticCredentials(key)
		t.tls = true
	}
	if (t.cert == "") != (t.key == "") {
		return o, usagef("--tls-cert and --tls-key belong together")
	}
	if !t.tls && t.cert == "" && t.ca == "" && t.server == "" {
		return o, nil
	}
	c := &tls.Config{ServerName: t.server, MinVersion: tls.VersionTLS12}
	if t.cert != "" {
		pair, err := tls.LoadX509KeyPair(t.cert, t.key)
		if err != nil {
			return o, usageError{err}
		}
		c.Certificates = []tls.Certificate{pair}
	}
	if t.ca != "" {
		pem, err := os.ReadFile(t.ca)
		if err != nil {
			return o, usageError{err}
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return o, usagef("--tls-ca %s: there is no certificate in it", t.ca)
		}
	}
	o.ConnectionOptions.TLS = c
	return o, nil
}

// runDurable runs a program on Temporal, with a worker in this process.
func (a *app) runDurable(ctx context.Context, t *temporalFlags, g *lang.Graph, funcs lang.Funcs, inputs lang.Args, be backend.Backend, fallback []workflows.Fallback, o workflows.StartOptions, asJSON bool) error {
	if err := g.Link(funcs); err != nil {
		return err
	}
	if err := runtime.CanRun(ctx, g, be); err != nil {
		return err
	}
	if err := runtime.CheckTerms(ctx, g, durableTerms(fallback, o)...); err != nil {
		return err
	}
	name := o.Name
	if name == "" {
		var id [4]byte
		crand.Read(id[:])
		name = g.Name + "-" + hex.EncodeToString(id[:])
	}
	o.Name, o.Queue = name, t.queueOf(name)
	s, err := t.open(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	if s.server != nil && !o.SearchAttributes {
		// One that was made by an earlier version may lack some.
		if o.SearchAttributes, err = workflows.HasSearchAttributes(ctx, s.Client, t.namespace); err != nil {
			return err
		}
	}
	fmt.Fprintf(a.errOut, "run %s; if this process dies, go on with --name %s\n", name, name)
	return a.watch(g, be.Info(), "", asJSON, func(sink runtime.Sink) (*runtime.Report, error) {
		w, err := workflows.NewWorker(s.Client, workflows.Config{
			Queue: o.Queue, Backend: be, Fallback: fallback, Funcs: funcs, Store: s.store, Key: s.sealed,
			Events: func(run string) runtime.Sink {
				if run == name {
					return sink
				}
				return nil
			},
			Trouble: a.trouble,
		})
		if err != nil {
			return nil, err
		}
		if err := w.Start(); err != nil {
			return nil, err
		}
		defer w.Stop()
		r, err := workflows.Start(ctx, s.Client, g, inputs, o)
		if err != nil {
			return nil, err
		}
		r.Trouble = func(err error) { fmt.Fprintln(a.errOut, err) }
		report, err := r.Report(ctx)
		if err != nil && ctx.Err() != nil {
			return nil, fmt.Errorf("run %s goes on where it is with --name %s; coppice cancel %s ends it: %w", name, name, name, context.Cause(ctx))
		}
		return report, err
	})
}

// trouble says what keeps a run from going on with a worker of this process.
func (a *app) trouble(_, message string) { fmt.Fprintln(a.errOut, message) }

// durableTerms are the options by which a durable run's terms are checked.
func durableTerms(fallback []workflows.Fallback, o workflows.StartOptions) []runtime.Option {
	var opts []runtime.Option
	for _, f := range fallback {
		opts = append(opts, runtime.WithFallback(f.Name, f.Backend))
	}
	if o.Budget != nil {
		opts = append(opts, runtime.WithBudget(*o.Budget))
	}
	if o.Prices != nil {
		opts = append(opts, runtime.WithPrices(*o.Prices))
	}
	return opts
}

// queueOf returns the queue of a run that has its worker in this process: one of
// its own unless one was named, so that other such processes with other models do
// not take its work.
func (t *temporalFlags) queueOf(name string) string {
	if t.shared {
		return t.queue
	}
	return t.queue + "-run-" + name
}

func (a *app) workerCmd() *cobra.Command {
	var (
		m        modelFlags
		t        temporalFlags
		terms    termsFlags
		affinity bool
		window   int
		events   string
	)
	c := &cobra.Command{
		Use:   "worker",
		Short: "Carry out durable runs",
		Long: `Carry out durable runs of a task queue until interrupted. Any number of workers
may share a queue; each has its own model. An interrupted worker hands what it
was doing to the others, with the text that came so far.

A run of 'coppice run --durable' that has no --queue has a queue of its own,
coppice-run-NAME: with --queue coppice-run-NAME a worker takes it over.

The store must be the same for all workers and clients: a shared folder, named
with --state. If COPPICE_SECRET is set, payloads are encrypted with it.

With --events a 'coppice serve --durable' that started the runs shows their tokens
as they come, with the key in COPPICE_EVENTS_KEY if it asks for one.`,
		Example: `  coppice worker --temporal temporal.internal:7233 --namespace agents
  coppice worker --model qwen25 --affinity
  coppice worker --events http://127.0.0.1:8080
  coppice worker --fallback 'spare=openai+http://127.0.0.1:8000/v1?model=NAME'`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			funcs, err := exampleFuncs()
			if err != nil {
				return err
			}
			be, err := m.open(ctx)
			if err != nil {
				return err
			}
			defer be.Close()
			fallback, done, err := terms.backends(ctx, &m)
			defer done()
			if err != nil {
				return err
			}
			s, err := t.open(ctx)
			if err != nil {
				return err
			}
			defer s.Close()
			cfg := workflows.Config{
				Queue: t.queue, Backend: be, Fallback: fallback, Funcs: funcs, Store: s.store, Key: s.sealed, Affinity: affinity, Concurrency: window,
				Trouble: a.trouble,
			}
			if events != "" {
				sender, err := a.relayTo(events)
				if err != nil {
					return err
				}
				defer sender.close()
				cfg.Events = sender.Sink
			}
			w, err := workflows.NewWorker(s.Client, cfg)
			if err != nil {
				return err
			}
			if err := w.Start(); err != nil {
				return err
			}
			where := t.address
			if s.server != nil {
				where = s.server.Address
			}
			fmt.Fprintf(a.errOut, "worker of queue %s at %s, model %s\n", t.queue, where, oneLine(be.Info().Model))
			<-ctx.Done()
			w.Stop()
			return nil
		},
	}
	m.register(c)
	m.registerAhead(c)
	t.register(c)
	terms.registerFallbacks(c)
	c.Flags().BoolVar(&affinity, "affinity", false, "let the tasks of a run prefer the worker that has its prompt in the cache")
	c.Flags().IntVar(&window, "concurrency", 256, "tasks at a time")
	c.Flags().StringVar(&events, "events", "", "address of the 'coppice serve --durable' that shows the runs, as http://host:8080")
	return c
}

// exampleFuncs are the functions of the built-in examples.
func exampleFuncs() (lang.Funcs, error) {
	funcs := lang.Funcs{}
	for _, load := range examples {
		_, fs, err := load()
		if err != nil {
			return nil, err
		}
		maps.Copy(funcs, fs)
	}
	return funcs, nil
}

func (a *app) cancelCmd() *cobra.Command {
	var t temporalFlags
	c := &cobra.Command{
		Use:   "cancel RUN",
		Short: "End a durable run",
		Args:  exactly("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := t.open(cmd.Context())
			if err != nil {
				return err
			}
			defer s.Close()
			return workflows.Open(s.Client, args[0]).Cancel(cmd.Context())
		},
	}
	t.register(c)
	return c
}

// isJournal reports whether an argument names a journal rather than a run.
func isJournal(arg string) bool {
	st, err := os.Stat(arg)
	return err == nil && !st.IsDir() || strings.ContainsRune(arg, os.PathSeparator) || errors.Is(err, os.ErrPermission)
}
