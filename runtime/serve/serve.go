package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/chat"
	"github.com/coppice-run/coppice/backend/tokenizer"
	"github.com/coppice-run/coppice/lang"
)

// Config says what a server serves. Backend is needed, the rest has defaults.
type Config struct {
	// Backend answers; the caller closes it, after the server.
	Backend backend.Backend
	// Names are what the model is called in requests, the first one in answers.
	// The default is the backend's name for it.
	Names []string
	// Vocabulary turns text into the backend's ids and back. Without it prompts
	// go to the backend as text, and what needs ids is refused: /tokenize,
	// prompts as ids, log-probabilities.
	Vocabulary Vocabulary
	// Template writes chats. It needs a Vocabulary; without it chats go to the
	// backend as turns.
	Template *chat.Template
	// Programs can be run from the start, Funcs by programs that clients bring.
	Programs []Program
	Funcs    lang.Funcs

	// Keys are the API keys; without any, no key is asked for.
	Keys []Key
	// Origins are the web pages that may use the server from a browser, as
	// "https://host:port"; none by default. "*" allows all.
	Origins []string
	// Hosts are names under which a server without keys answers requests that come
	// to the loopback interface, besides localhost and loopback addresses. "*" is
	// all names. Other names are refused: see DNS rebinding.
	Hosts  []string
	Limits Limits
	// OpenMetrics shows /metrics to those without a key too: scrapers and
	// routers often bring none. It tells how much all keys together use.
	OpenMetrics bool
	// Data is a folder that programs and runs are kept in: they are there again,
	// and runs go on, when a server is made with the same folder. Without it
	// they end with the server. One server uses it at a time.
	Data string
	// Runner, if not nil, carries out the runs of programs, in place of the server
	// itself. It needs Data.
	Runner Runner
	// Version is shown at /version.
	Version string
	// Traces gets the spans of requests and runs; nil is none. Prompts and
	// answers are not in them.
	Traces trace.TracerProvider
	// Log receives what no client can be told. The default drops it. Keys,
	// prompts and answers are not logged.
	Log *slog.Logger
}

// Program is a graph with the functions that it calls.
type Program struct {
	Graph *lang.Graph
	Funcs lang.Funcs
}

// Limits bound what clients can ask for. Zero fields mean the defaults.
type Limits struct {
	BodyBytes     int64         // of a request; default 16 MiB
	Generations   int           // at work or waiting, at once; more are refused with 429; default 1024
	RequestTime   time.Duration // of one generation request; default 10 minutes
	ReadTime      time.Duration // in which a body must have arrived; default 30 s
	WriteTimeout  time.Duration // in which a client must take what is sent; default 30 s
	Choices       int           // n times the number of prompts in one request; default 128
	ScoreTokens   int           // of all items of one /v1/score request, each with the query; default 1,048,576
	Programs      int           // that a tenant may keep; default 256
	Runs          int           // finished runs of a tenant that are kept; default 128
	RunAge        time.Duration // for which a finished run is kept; 0 is without end
	ActiveRuns    int           // of a tenant at once; default 64
	Deltas        int           // kept of a run for readers that come late; default 4096
	Sockets       int           // websocket connections; default 1024
	Watches       int           // runs watched on one connection; default 256
	MessageBytes  int64         // of a websocket message; default 4 MiB
	PingEvery     time.Duration // between pings on a websocket; default 20 s
	PongWait      time.Duration // without a word of a websocket's peer, after which it counts as dead; default 50 s
	OrphanGrace   time.Duration // that an attached run lives with nobody watching; default 30 s
	ProgramLimits ProgramLimits
}

// ProgramLimits bound each run of a program. Zero fields mean the defaults.
type ProgramLimits struct {
	Nodes       int           // default 20,000
	Branches    int           // default 10,000
	TextBytes   int           // default 16 MiB
	Concurrency int           // model requests of a run at once; default 256
	Time        time.Duration // at work, without what it sleeps and waits for answers; default 1 hour
	Waiting     time.Duration // asleep or waiting for answers, at a stretch; default 7 days
}

func (l *Limits) setDefaults() {
	def(&l.BodyBytes, 16<<20)
	def(&l.Generations, 1024)
	def(&l.RequestTime, 10*time.Minute)
	def(&l.ReadTime, 30*time.Second)
	def(&l.WriteTimeout, 30*time.Second)
	def(&l.Choices, 128)
	def(&l.ScoreTokens, 1<<20)
	def(&l.Programs, 256)
	def(&l.Runs, 128)
	def(&l.ActiveRuns, 64)
	def(&l.Deltas, 4096)
	def(&l.Sockets, 1024)
	def(&l.Watches, 256)
	def(&l.MessageBytes, 4<<20)
	def(&l.PingEvery, 20*time.Second)
	def(&l.PongWait, 50*time.Second)
	def(&l.OrphanGrace, 30*time.Second)
	p := &l.ProgramLimits
	def(&p.Nodes, 20_000)
	def(&p.Branches, 10_000)
	def(&p.TextBytes, 16<<20)
	def(&p.Concurrency, 256)
	def(&p.Time, time.Hour)
	def(&p.Waiting, 7*24*time.Hour)
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Vocabulary is what the server needs of a tokenizer; *tokenizer.Tokenizer is
// one.
type Vocabulary interface {
	Size() int
	EncodePieces(pieces []tokenizer.Piece) []backend.Token
	WithBOS(ids []backend.Token) []backend.Token
	// Bytes are what a token stands for, nothing for a control token; Text is
	// its name for people.
	Bytes(id backend.Token) []byte
	Text(id backend.Token) string
	IsControl(id backend.Token) bool
	EndTokens() []backend.Token
}

// Server answers HTTP requests. It is safe for concurrent use.
type Server struct {
	cfg     Config
	be      backend.Backend
	info    backend.Info
	handler http.Handler
	metrics *metrics
	traces  *tracing  // nil if there are none
	tools   toolStyle // of the template
	started time.Time
	tenants *tenants
	sockets *sockets
	aborts  aborts

	mu       sync.Mutex
	inFlight int
	draining bool

	store *store // nil if nothing is kept

	ctx    context.Context // of runs
	cancel context.CancelCauseFunc
	wg     sync.WaitGroup // runs, timers of runs, websocket connections
}

// New returns a server. Close it when done.
func New(cfg Config) (*Server, error) {
	if cfg.Backend == nil {
		return nil, errors.New("serve: no backend")
	}
	if cfg.Runner != nil && cfg.Data == "" {
		return nil, errors.New("serve: runs that outlive the server need a folder for what is told of them (Data)")
	}
	if cfg.Template != nil && cfg.Vocabulary == nil {
		return nil, errors.New("serve: a template needs a vocabulary")
	}
	cfg.Limits.setDefaults()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{cfg: cfg, be: cfg.Backend, info: cfg.Backend.Info(), started: time.Now()}
	s.cfg.Names = slices.Clone(cfg.Names)
	if len(s.cfg.Names) == 0 {
		s.cfg.Names = []string{s.info.Model}
	}
	if s.cfg.Vocabulary != nil && (!s.info.Capabilities.TokenIDs || s.info.Fingerprint == "") {
		return nil, errors.New("serve: a vocabulary is of use only with a backend that takes token ids and has a fingerprint")
	}
	if err := errors.Join(checkOrigins(cfg.Origins), checkHosts(cfg.Hosts)); err != nil {
		return nil, err
	}
	var err error
	if s.tenants, err = newTenants(cfg.Keys, time.Now); err != nil {
		return nil, err
	}
	for _, p := range cfg.Programs {
		if err := s.checkProgram(context.Background(), p); err != nil {
			return nil, fmt.Errorf("serve: program %s: %w", p.Graph.Name, err)
		}
	}
	s.tools = styleOf(cfg.Template)
	s.sockets = &sockets{open: map[*socket]struct{}{}}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	s.metrics = newMetrics(s)
	s.traces = newTracing(cfg.Traces, cfg.Version, s.cfg.Names[0])
	s.handler = s.routes()
	if err := s.openData(); err != nil {
		return nil, err
	}
	return s, nil
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// Drain makes the server refuse new work with 503, and /health too, so that
// balancers look elsewhere. Work that runs goes on.
func (s *Server) Drain() {
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
}

// Idle waits until no run is active and no generation is in flight, or for ctx. It
// does not wait for runs that are kept and wait for an answer.
func (s *Server) Idle(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		s.mu.Lock()
		busy := s.inFlight
		s.mu.Unlock()
		if busy == 0 && s.tenants.busyRuns() == 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close drains the server, cancels its runs, closes its websockets and waits
// for what it started. Runs that are kept (Config.Data) stay as they are and go on
// in the next server. Requests in flight are the caller's to end: that is what
// http.Server's Shutdown does.
func (s *Server) Close() error {
	s.Drain()
	if s.store != nil {
		s.cancel(errSuspended)
	} else {
		s.cancel(nil)
	}
	s.sockets.closeAll()
	s.wg.Wait()
	s.store.close()
	return nil
}

// most is how many generations of a tenant can be at work at once.
func (s *Server) most(t *tenant) int {
	if own := t.quota.limits.Generations; own > 0 {
		return min(own, s.cfg.Limits.Generations)
	}
	return s.cfg.Limits.Generations
}

// admit takes n generations of a tenant in, or says why not. The caller calls
// release when they are over.
func (s *Server) admit(t *tenant, n int) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining:
		return nil, errDraining
	case s.inFlight+n > s.cfg.Limits.Generations:
		s.metrics.refused.Inc()
		return nil, &Error{
			Status: http.StatusTooManyRequests, Type: typeRate, Code: "queue_full", RetryAfter: time.Second,
			Message: fmt.Sprintf("%d generations are at work or wait already, the limit is %d", s.inFlight, s.cfg.Limits.Generations),
		}
	}
	if err := t.quota.begin(n); err != nil {
		s.metrics.refused.Inc()
		return nil, err
	}
	s.inFlight += n
	return sync.OnceFunc(func() {
		t.quota.end(n)
		s.mu.Lock()
		s.inFlight -= n
		s.mu.Unlock()
	}), nil
}

// routes are all that the server answers.
func (s *Server) routes() http.Handler {
	open, keyed := http.NewServeMux(), http.NewServeMux()
	type handler = func(http.ResponseWriter, *http.Request) error
	on := func(mux *http.ServeMux, pattern string, h handler) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				s.fail(w, r, err)
			}
		})
	}
	for _, health := range []string{"/health", "/healthz", "/ping", "/health_generate"} {
		on(open, "GET "+health, s.health)
	}
	on(open, "POST /ping", s.health)
	on(open, "GET /version", s.version)

	on(keyed, "GET /v1/models", s.models)
	on(keyed, "GET /v1/models/{name...}", s.model)
	on(keyed, "POST /v1/chat/completions", s.chatCompletions)
	on(keyed, "POST /v1/completions", s.completions)
	on(keyed, "POST /v1/responses", s.responses)
	on(keyed, "POST /v1/responses/input_tokens", s.countResponse)
	on(keyed, "GET /v1/responses/{id}", s.noResponse)
	on(keyed, "DELETE /v1/responses/{id}", s.noResponse)
	on(keyed, "POST /v1/responses/{id}/cancel", s.noResponse)
	on(keyed, "POST /v1/score", s.score)
	on(keyed, "POST /tokenize", s.tokenize)
	on(keyed, "POST /detokenize", s.detokenize)
	on(keyed, "GET /load", s.load)
	if s.cfg.OpenMetrics {
		open.Handle("GET /metrics", s.metrics.handler)
	} else {
		keyed.Handle("GET /metrics", s.operators(s.metrics.handler))
	}

	on(keyed, "POST /generate", s.sglangGenerate)
	on(keyed, "GET /get_model_info", s.sglangModelInfo)
	on(keyed, "GET /model_info", s.sglangModelInfo)
	on(keyed, "GET /server_info", s.sglangServerInfo)
	on(keyed, "GET /get_server_info", s.sglangServerInfo)
	on(keyed, "POST /flush_cache", s.flushCache)
	on(keyed, "GET /flush_cache", s.flushCache)
	on(keyed, "POST /abort_request", s.sglangAbort)

	on(keyed, "POST /v1/programs", s.addProgram)
	on(keyed, "GET /v1/programs", s.listPrograms)
	on(keyed, "GET /v1/programs/{name}", s.showProgram)
	on(keyed, "DELETE /v1/programs/{name}", s.removeProgram)
	on(keyed, "POST /v1/programs/{name}/runs", s.startRun)
	on(keyed, "GET /v1/runs", s.listRuns)
	on(keyed, "GET /v1/runs/{id}", s.showRun)
	on(keyed, "GET /v1/runs/{id}/events", s.runEvents)
	on(keyed, "GET /v1/runs/{id}/tree", s.showTree)
	on(keyed, "POST /v1/runs/{id}/cancel", s.cancelRun)
	on(keyed, "POST /v1/runs/{id}/approve", s.approve)
	on(keyed, "POST /v1/runs/{id}/resume", s.resumeRun)
	on(keyed, "GET /v1/ws", s.websocket)
	on(keyed, "POST /v1/programs/{name}/agui", s.runAGUI)
	on(keyed, "POST /v1/programs/{name}/chat", s.runUIMessage)
	on(keyed, "GET /v1/programs/{name}/chat", s.programChat)
	on(keyed, "POST /v1/journals/events", s.journalEvents)
	on(keyed, "GET /v1/engine", s.engineWork)
	on(keyed, "GET /v1/engine/cache", s.engineCache)

	page(open)
	open.Handle("/", s.withKey(s.jsonErrors(keyed)))
	return s.recovered(s.withHost(s.withOrigin(s.traced(open))))
}
