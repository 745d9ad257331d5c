//go:build durable

package workflows

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enums "go.temporal.io/api/enums/v1"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// These tests need a real Temporal server, and so a build tag: make test-temporal.

const (
	envServer   = "COPPICE_TEMPORAL"    // path of coppice-temporal
	envKills    = "COPPICE_KILLS"       // how often TestServerKilled kills, and TestServerKilledBehindAnEffect
	envSteps    = "COPPICE_STEPS"       // how long the loop of TestServerRollsOver is
	envPrograms = "COPPICE_PROGRAMS"    // how many TestServerManyPrograms has
	envWorker   = "COPPICE_TEST_WORKER" // this test binary is a worker; JSON of workerArgs
	envEngine   = "COPPICE_TEST_ENGINE" // this test binary is an engine; its address
)

// number is how large a test is: what the variable says, or what it is by itself.
func number(t *testing.T, variable string, usual int) int {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		return usual
	}
	n, err := strconv.Atoi(s)
	require.NoError(t, err, variable)
	return n
}

type workerArgs struct {
	Address, Store, Model, Effects, Queue string

	Writes   bool // the model writes tokens that can be gone on from
	Affinity bool
	Secret   string // of the key that seals payloads
}

func (a *workerArgs) key() *Key {
	if a.Secret == "" {
		return nil
	}
	k, err := NewKey([]byte(a.Secret))
	if err != nil {
		panic(err)
	}
	return k
}

func TestMain(m *testing.M) {
	if s := os.Getenv(envWorker); s != "" {
		var a workerArgs
		if err := json.Unmarshal([]byte(s), &a); err != nil {
			panic(err)
		}
		workerMain(a)
	}
	if addr := os.Getenv(envEngine); addr != "" {
		engineMain(addr)
	}
	os.Exit(m.Run())
}

// engineMain is what computes the texts of a model, in a process of its own.
func engineMain(addr string) {
	panic(http.ListenAndServe(addr, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		prompt, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		fmt.Fprintf(w, "%s after %s", r.URL.Query().Get("id"), Hash(prompt)[:8])
	})))
}

// workerMain is a worker in a process of its own, until it is killed or told to end.
func workerMain(a workerArgs) {
	store, err := OpenDir(a.Store)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	c, err := Dial(ctx, DialOptions{Address: a.Address, Store: store, Key: a.key()})
	if err != nil {
		panic(err)
	}
	var be backend.Backend = &distant{url: a.Model}
	if a.Writes {
		be = &writer{distant{url: a.Model}}
	}
	w, err := NewWorker(c, Config{Queue: a.Queue, Backend: be, Funcs: effects(a.Effects, a.Model), Store: store, Key: a.key(), Affinity: a.Affinity})
	if err != nil {
		panic(err)
	}
	if err := w.Start(); err != nil {
		panic(err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
	w.Stop()
	os.Exit(0)
}

// effects returns a function that makes texts, and one with an effect that everybody
// can see: a line in a file. It is not over before the model at url was told, which
// takes its time: that is when a kill hurts most.
func effects(file, url string) lang.Funcs {
	f, err := lang.NewFunc("effect", func(ctx context.Context, what string) (string, error) {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return "", err
		}
		defer f.Close()
		if _, err := fmt.Fprintf(f, "%s\t%s\n", runtime.IdempotencyKey(ctx), what); err != nil {
			return "", err
		}
		if _, err := (&distant{url: url}).ask(ctx, "told", nil); err != nil {
			return "", err
		}
		return "did " + what, nil
	})
	if err != nil {
		panic(err)
	}
	large, err := lang.NewFunc("large", func(_ context.Context, size int) (string, error) {
		return strings.Repeat("0123456789", size/10), nil
	})
	if err != nil {
		panic(err)
	}
	refuses, err := lang.NewFunc("refuses", func(_ context.Context, what string) (string, error) {
		return "", errors.New("refused " + what)
	})
	if err != nil {
		panic(err)
	}
	return lang.Funcs{"effect": f, "large": large, "refuses": refuses}
}

// distant is a model in the test's own process: it survives its workers and
// counts what they ask.
type distant struct{ url string }

func (d *distant) Info() backend.Info {
	return backend.Info{Model: "distant", Fingerprint: "distant-1", Capabilities: backend.Capabilities{Score: true, JSONSchema: true, Regex: true, Choices: true, EBNF: true, Seed: true, Raw: true}}
}

func (d *distant) Close() error { return nil }

func (d *distant) ask(ctx context.Context, id string, turns []backend.Turn) (string, error) {
	var prompt strings.Builder
	for _, t := range turns {
		prompt.WriteString(string(t.Role) + ": " + t.Text() + "\n")
	}
	req, err := http.NewRequestWithContext(ctx, "POST", d.url+"?id="+strings.NewReplacer("[", "%5B", "]", "%5D", "/", "%2F").Replace(id), strings.NewReader(prompt.String()))
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(resp.Status)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	return string(text), nil
}

func (d *distant) Generate(ctx context.Context, req *backend.Request, _ func(backend.Delta)) (*backend.Result, error) {
	text, err := d.ask(ctx, req.ID, req.Turns)
	if err != nil {
		return nil, err
	}
	return &backend.Result{Part: backend.Part{Text: text}, Finish: backend.FinishStop}, nil
}

func (d *distant) Score(ctx context.Context, req *backend.ScoreRequest) (*backend.ScoreResult, error) {
	text, err := d.ask(ctx, req.ID, req.Turns)
	if err != nil {
		return nil, err
	}
	res := &backend.ScoreResult{}
	for i, o := range req.Options {
		res.Options = append(res.Options, backend.OptionScore{Part: backend.Part{Text: o}, Sum: -float64((i + len(text)) % len(req.Options))})
	}
	return res, nil
}

// model is the other end of distant.
type model struct {
	mu      sync.Mutex
	count   map[string]int
	moments int // requests that came, and those that were answered
	left    int // requests whose client went before the answer
	pause   time.Duration
	url     string
	engine  *process // that it asks; nil: it answers itself
	at      string   // of engine
}

func newModel(t *testing.T, pause time.Duration) *model {
	m := &model{count: map[string]int{}, pause: pause}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		prompt, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		id := r.URL.Query().Get("id")
		m.mu.Lock()
		m.count[id]++
		m.moments++
		m.mu.Unlock()
		select {
		case <-time.After(m.pause):
		case <-r.Context().Done():
			m.mu.Lock()
			m.left++
			m.mu.Unlock()
			return
		}
		text := fmt.Appendf(nil, "%s after %s", id, Hash(prompt)[:8])
		if m.engine != nil && id != "told" {
			if text, err = m.compute(r, prompt); err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
		}
		w.Write(text)
		m.mu.Lock()
		m.moments++
		m.mu.Unlock()
	}))
	t.Cleanup(s.Close)
	m.url = s.URL
	return m
}

// compute asks the engine.
func (m *model) compute(r *http.Request, prompt []byte) ([]byte, error) {
	resp, err := http.Post("http://"+m.at+"?"+r.URL.RawQuery, "text/plain", bytes.NewReader(prompt))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// startEngine makes the model ask an engine that can be killed.
func (m *model) startEngine(t *testing.T, s *site) {
	exe, err := os.Executable()
	require.NoError(t, err)
	m.at = freeAddress(t)
	m.engine = &process{t: t, log: s.server.log, make: func() *exec.Cmd {
		c := exec.Command(exe)
		c.Env = append(os.Environ(), envEngine+"="+m.at)
		return c
	}}
	m.engine.start()
	t.Cleanup(m.engine.kill)
}

// freeAddress is an address that nobody listens on.
func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// passed returns how often a request came or was answered, in all.
func (m *model) passed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.moments
}

func (m *model) calls(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.count[id]
}

// process is a process that the test starts, kills and starts again.
type process struct {
	t    *testing.T
	make func() *exec.Cmd
	cmd  *exec.Cmd
	log  *os.File

	mu         sync.Mutex
	supervised bool
	over       chan struct{} // of cmd, if it is supervised
	down       bool          // it was killed by the test
}

func (p *process) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
	p.begin()
}

func (p *process) begin() {
	p.cmd = p.make()
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	require.NoError(p.t, p.cmd.Start())
	if p.supervised {
		p.watch()
	}
}

// supervise starts the process again whenever it ends by itself, as a supervisor does:
// on a busy machine a server may give its start up.
func (p *process) supervise() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.supervised = true
	p.watch()
}

func (p *process) watch() {
	cmd, over := p.cmd, make(chan struct{})
	p.over = over
	go func() {
		_ = cmd.Wait()
		close(over)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.cmd == cmd && !p.down {
			p.begin()
		}
	}()
}

func (p *process) kill() {
	p.mu.Lock()
	p.down = true
	over := p.over
	_ = p.cmd.Process.Kill()
	p.mu.Unlock()
	if over != nil {
		<-over
		return
	}
	_ = p.cmd.Wait()
}

// site is a real server on a port of its own with a worker.
type site struct {
	address        string
	folder         string
	server, worker *process
	client         *Client
	another        func() *process // a second worker
	workerWith     func(workerArgs) *process
}

func newSite(t *testing.T, m *model) *site { return newSiteWith(t, workerArgs{Model: m.url}) }

func newSiteWith(t *testing.T, with workerArgs) *site {
	t.Helper()
	program := os.Getenv(envServer)
	if program == "" {
		t.Fatal("needs a real server: make test-temporal (" + envServer + ")")
	}
	s := &site{folder: t.TempDir()}
	s.address = freeAddress(t)
	_, port, err := net.SplitHostPort(s.address)
	require.NoError(t, err)
	log, err := os.Create(filepath.Join(s.folder, "log"))
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			data, _ := os.ReadFile(log.Name())
			t.Logf("the processes wrote:\n%s", data[max(0, len(data)-4000):])
		}
		log.Close()
	})
	s.server = &process{t: t, log: log, make: func() *exec.Cmd {
		return exec.Command(program, "server", "start-dev", "--ip", "127.0.0.1", "--port", port,
			"--db-filename", filepath.Join(s.folder, "temporal.db"), "--log-level", "error",
			"--search-attribute", "program=Keyword", "--search-attribute", "tenant=Keyword", "--search-attribute", "status=Keyword")
	}}
	with.Address, with.Store, with.Effects = s.address, s.store(), s.effects()
	exe, err := os.Executable()
	require.NoError(t, err)
	s.another = func() *process { return s.workerWith(with) }
	s.workerWith = func(a workerArgs) *process {
		args, err := json.Marshal(a)
		require.NoError(t, err)
		return &process{t: t, log: log, make: func() *exec.Cmd {
			c := exec.Command(exe)
			c.Env = append(os.Environ(), envWorker+"="+string(args))
			return c
		}}
	}
	s.worker = s.another()
	s.server.start()
	t.Cleanup(s.server.kill)
	store, err := OpenDir(s.store())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		s.client, err = Dial(context.Background(), DialOptions{Address: s.address, Store: store, Key: with.key()})
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	t.Cleanup(s.client.Close)
	s.worker.start()
	t.Cleanup(s.worker.kill)
	return s
}

func (s *site) store() string   { return filepath.Join(s.folder, "store") }
func (s *site) effects() string { return filepath.Join(s.folder, "effects") }

// finished returns the tasks whose results the server has, of a run and of the
// programs that are steps of it.
func (s *site) finished(t *testing.T, name string) []string {
	var out []string
	var err error
	for range 6 { // a server that was just killed on a busy machine may be slow
		if out, err = s.finishedTasks(name); err == nil {
			return out
		}
	}
	require.NoError(t, err)
	return nil
}

func (s *site) finishedTasks(name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	it := s.client.GetWorkflowHistory(ctx, name, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	scheduled := map[int64]string{}
	var out []string
	for it.HasNext() {
		e, err := it.Next()
		if err != nil {
			return nil, err
		}
		if a := e.GetActivityTaskScheduledEventAttributes(); a != nil {
			var x ask
			if err := s.client.conv.FromPayload(a.Input.Payloads[0], &x); err != nil {
				return nil, err
			}
			scheduled[e.EventId] = x.Task
		}
		if a := e.GetChildWorkflowExecutionStartedEventAttributes(); a != nil {
			more, err := s.finishedTasks(a.GetWorkflowExecution().GetWorkflowId())
			if err != nil {
				return nil, err
			}
			out = append(out, more...)
		}
		if a := e.GetActivityTaskCompletedEventAttributes(); a != nil {
			out = append(out, scheduled[a.ScheduledEventId])
		}
	}
	return out, nil
}
