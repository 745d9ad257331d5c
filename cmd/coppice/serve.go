package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/tokenizer"
	"github.com/coppice-run/coppice/runtime/serve"
)

// serveFlags are the flags of 'coppice serve' besides those of the model.
type serveFlags struct {
	addr              string
	names             []string
	keyFile           string
	origins, hosts    []string
	tlsCert, tlsKey   string
	otlp              string
	openMetrics       bool
	maxRequests       int
	maxBody           int64
	timeout, drain    time.Duration
	verbose           bool
	noBuiltInPrograms bool
	data              string
	keepRuns          int
	keepFor           time.Duration
	runs              durableFlags
}

func (a *app) serveCmd() *cobra.Command {
	var (
		m modelFlags
		o serveFlags
	)
	c := &cobra.Command{
		Use:   "serve",
		Short: "Serve a model and programs over HTTP",
		Long: `Serve a model over HTTP with the OpenAI API and SGLang's, and run programs on it.
When it is ready it prints one line with its address. docs/serve.md has the routes.

  coppice serve                               the built-in model on 127.0.0.1:8080
  coppice serve --model m.gguf --addr :8080   a model file, for other machines too
  coppice serve --api-keys keys.txt           a key a line; each key is a tenant
  coppice serve --data DIR                    programs and runs go on after a restart
  coppice serve --durable                     runs go on without the server, on Temporal

API keys come from --api-keys, or from the variable COPPICE_API_KEYS with commas
between them. SIGTERM or an interrupt lets work in flight end, up to --drain.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.runs.check(cmd); err != nil {
				return err
			}
			return a.serve(cmd.Context(), &m, &o)
		},
	}
	m.register(c)
	m.registerAhead(c)
	o.runs.register(c)
	f := c.Flags()
	f.StringVar(&o.addr, "addr", "127.0.0.1:8080", "address to listen on; port 0 picks one")
	f.StringArrayVar(&o.names, "served-model-name", nil, "name of the model in requests; repeatable, the first is shown")
	f.StringVar(&o.keyFile, "api-keys", "", "file with API keys, one a line")
	f.StringArrayVar(&o.origins, "allow-origin", nil, "web page that may use the server, as https://host:port; repeatable")
	f.StringArrayVar(&o.hosts, "allow-host", nil, "host name under which a server without API keys answers on the loopback interface, besides localhost; repeatable, * is all")
	f.StringVar(&o.tlsCert, "tls-cert", "", "certificate file, for HTTPS")
	f.StringVar(&o.tlsKey, "tls-key", "", "key file of the certificate")
	f.IntVar(&o.maxRequests, "max-requests", 0, "generations at work or waiting before 429 (default 1024)")
	f.Int64Var(&o.maxBody, "max-body", 0, "bytes of a request's body (default 16 MiB)")
	f.DurationVar(&o.timeout, "timeout", 0, "time that a generation may take (default 10m)")
	f.DurationVar(&o.drain, "drain", 30*time.Second, "time that work in flight is given at the end")
	f.StringVar(&o.data, "data", "", "folder in which programs and runs outlive the server; without it they end with it")
	f.IntVar(&o.keepRuns, "keep-runs", 0, "finished runs of a key that are kept (default 128)")
	f.DurationVar(&o.keepFor, "keep-for", 0, "time for which a finished run is kept (default: as long as it is among --keep-runs)")
	f.StringVar(&o.otlp, "otlp-endpoint", "", "collector that gets OpenTelemetry traces, as http://host:4318; OTEL_EXPORTER_OTLP_ENDPOINT does the same")
	f.BoolVar(&o.openMetrics, "open-metrics", false, "show /metrics without a key too, for scrapers and routers that bring none")
	f.BoolVar(&o.noBuiltInPrograms, "no-examples", false, "do not serve the built-in example programs")
	f.BoolVar(&o.verbose, "verbose", false, "log refused requests too")
	c.MarkFlagsRequiredTogether("tls-cert", "tls-key")
	return c
}

func (a *app) serve(ctx context.Context, m *modelFlags, o *serveFlags) error {
	if o.keepRuns < 0 || o.keepFor < 0 {
		return usageError{errors.New("--keep-runs and --keep-for are not below zero")}
	}
	keys, err := apiKeys(o.keyFile)
	if err != nil {
		return usageError{err}
	}
	ln, err := net.Listen("tcp", o.addr)
	if err != nil {
		return err
	}
	defer ln.Close()
	start := time.Now()
	be, err := m.open(ctx)
	if err != nil {
		return err
	}
	defer be.Close()
	opened := time.Since(start)
	level := slog.LevelInfo
	if o.verbose {
		level = slog.LevelDebug
	}
	cfg := serve.Config{
		Backend: be, Keys: keys, Origins: o.origins, Hosts: o.hosts, Version: buildInfo().Version, OpenMetrics: o.openMetrics,
		Names:  modelNames(m, o.names, be.Info()),
		Limits: serve.Limits{Generations: o.maxRequests, BodyBytes: o.maxBody, RequestTime: o.timeout, Runs: o.keepRuns, RunAge: o.keepFor},
		Data:   o.data,
		Log:    slog.New(slog.NewTextHandler(a.errOut, &slog.HandlerOptions{Level: level})),
	}
	cfg.Log.Info("engine ready", "model", be.Info().Model, "seconds", opened.Seconds())
	traces, endTraces, err := openTraces(ctx, o.otlp, cfg.Log)
	if err != nil {
		return err
	}
	defer endTraces()
	cfg.Traces = traces
	if m.backend == "" {
		if err := m.describe(&cfg); err != nil {
			return err
		}
	}
	if !o.noBuiltInPrograms {
		for _, load := range examples {
			g, funcs, err := load()
			if err != nil {
				return err
			}
			cfg.Programs = append(cfg.Programs, serve.Program{Graph: g, Funcs: funcs})
		}
	}
	var durable *durableRuns
	if o.runs.durable {
		if cfg.Data, err = o.runs.dataOf(cfg.Data); err != nil {
			return err
		}
		if durable, err = o.runs.open(ctx, be, cfg.Log); err != nil {
			return err
		}
		defer durable.close()
		cfg.Runner = durable
	}
	srv, err := serve.New(cfg)
	if err != nil {
		return err
	}
	defer srv.Close()
	var h http.Handler = srv
	if durable != nil {
		h = durable.handler(srv, len(keys) == 0)
		if err := durable.start(); err != nil {
			return err
		}
	}
	if host, _, _ := net.SplitHostPort(ln.Addr().String()); len(keys) == 0 && !net.ParseIP(host).IsLoopback() {
		cfg.Log.Warn("everybody who reaches this address can use the server: no API keys are set")
	}
	return a.listen(ctx, srv, h, ln, o)
}

// listen serves until ctx is done, and then lets work in flight end.
func (a *app) listen(ctx context.Context, srv *serve.Server, handler http.Handler, ln net.Listener, o *serveFlags) error {
	h := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
	failed := make(chan error, 1)
	scheme := "http"
	if o.tlsCert != "" {
		scheme = "https"
	}
	go func() {
		if o.tlsCert != "" {
			failed <- h.ServeTLS(ln, o.tlsCert, o.tlsKey)
		} else {
			failed <- h.Serve(ln)
		}
	}()
	fmt.Fprintf(a.out, "coppice serves on %s://%s\n", scheme, ln.Addr())
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	drained, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.drain)
	defer cancel()
	srv.Drain()
	srv.Idle(drained) // what is not idle by then is cut off
	srv.Close()
	if err := h.Shutdown(drained); err != nil {
		h.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// describe adds what the server needs to know of a model file to write chats and
// show tokens.
func (m *modelFlags) describe(cfg *serve.Config) error {
	f, err := m.openGGUF()
	if err != nil {
		return err
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		return err
	}
	cfg.Vocabulary = tok
	cfg.Template, err = chat.FromGGUF(f)
	if errors.Is(err, chat.ErrNoTemplate) {
		cfg.Template, err = nil, nil // the engine has one for such models
	}
	return err
}

// modelNames are what the model is called in requests: as asked for, or the name
// that it was opened by and the one that it has itself.
func modelNames(m *modelFlags, asked []string, info backend.Info) []string {
	if len(asked) > 0 {
		return asked
	}
	if m.backend != "" {
		return []string{info.Model}
	}
	names := []string{strings.TrimSuffix(filepath.Base(m.model), ".gguf")}
	if info.Model != "" && info.Model != names[0] {
		names = append(names, info.Model)
	}
	return names
}

// apiKeys reads the keys of a file and of the environment.
func apiKeys(file string) ([]serve.Key, error) {
	var keys []serve.Key
	if file != "" {
		var err error
		if keys, err = serve.ReadKeys(file); err != nil {
			return nil, err
		}
		if len(keys) == 0 {
			return nil, fmt.Errorf("%s holds no key", file)
		}
	}
	more, err := serve.ParseKeys([]byte(strings.ReplaceAll(os.Getenv("COPPICE_API_KEYS"), ",", "\n")))
	return append(keys, more...), err
}
