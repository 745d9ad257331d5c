//go:build durable

package workflows

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enums "go.temporal.io/api/enums/v1"
	history "go.temporal.io/api/history/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// These tests need a real Temporal server, and so a build tag: make test-temporal.

const (
	envServer = "COPPICE_TEMPORAL"    // path of coppice-temporal
	envKills  = "COPPICE_KILLS"       // how often TestServerKilled kills
	envWorker = "COPPICE_TEST_WORKER" // this test binary is a worker; JSON of workerArgs
)

type workerArgs struct {
	Address, Store, Model, Effects string

	Writes   bool // the model writes tokens that can be gone on from
	Affinity bool
}

func TestMain(m *testing.M) {
	if s := os.Getenv(envWorker); s != "" {
		var a workerArgs
		if err := json.Unmarshal([]byte(s), &a); err != nil {
			panic(err)
		}
		workerMain(a)
	}
	os.Exit(m.Run())
}

// workerMain is a worker in a process of its own, until it is killed.
func workerMain(a workerArgs) {
	store, err := OpenDir(a.Store)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	c, err := Dial(ctx, DialOptions{Address: a.Address, Store: store})
	if err != nil {
		panic(err)
	}
	var be backend.Backend = &distant{url: a.Model}
	if a.Writes {
		be = &writer{distant{url: a.Model}}
	}
	w, err := NewWorker(c, Config{Backend: be, Funcs: effects(a.Effects, a.Model), Store: store, Affinity: a.Affinity})
	if err != nil {
		panic(err)
	}
	if err := w.Start(); err != nil {
		panic(err)
	}
	select {}
}

// effects returns a function with an effect that everybody can see: a line in a
// file. It is not over before the model at url was told, which takes its time:
// that is when a kill hurts most.
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
	return lang.Funcs{"effect": f}
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
	pause   time.Duration
	url     string
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
			return
		}
		fmt.Fprintf(w, "%s after %s", id, Hash(prompt)[:8])
		m.mu.Lock()
		m.moments++
		m.mu.Unlock()
	}))
	t.Cleanup(s.Close)
	m.url = s.URL
	return m
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
}

func (p *process) start() {
	p.cmd = p.make()
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	require.NoError(p.t, p.cmd.Start())
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// site is a real server on a port of its own with a worker.
type site struct {
	address        string
	folder         string
	server, worker *process
	client         *Client
	another        func() *process // a second worker
}

func newSite(t *testing.T, m *model) *site { return newSiteWith(t, workerArgs{Model: m.url}) }

func newSiteWith(t *testing.T, with workerArgs) *site {
	t.Helper()
	program := os.Getenv(envServer)
	if program == "" {
		t.Fatal("needs a real server: make test-temporal (" + envServer + ")")
	}
	s := &site{folder: t.TempDir()}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	s.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
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
		return exec.Command(program, "server", "start-dev", "--ip", "127.0.0.1", "--port", strconv.Itoa(port),
			"--db-filename", filepath.Join(s.folder, "temporal.db"), "--log-level", "error",
			"--search-attribute", "program=Keyword", "--search-attribute", "tenant=Keyword", "--search-attribute", "status=Keyword")
	}}
	with.Address, with.Store, with.Effects = s.address, s.store(), s.effects()
	args, err := json.Marshal(with)
	require.NoError(t, err)
	exe, err := os.Executable()
	require.NoError(t, err)
	s.another = func() *process {
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
		s.client, err = Dial(context.Background(), DialOptions{Address: s.address, Store: store})
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	t.Cleanup(s.client.Close)
	s.worker.start()
	t.Cleanup(s.worker.kill)
	return s
}

func (s *site) store() string   { return filepath.Join(s.folder, "store") }
func (s *site) effects() string { return filepath.Join(s.folder, "effects") }

const disturbed = `
name: disturbed
inputs: {text: string}
steps:
- system: ${text}
- fork:
    name: arms
    each: [a, b, c, d]
    steps:
    - user: Begin with ${item}.
    - repeat:
        name: rounds
        max: 4
        index: i
        steps:
        - gen: {name: thought, max_tokens: 20}
        - call: {name: done, func: effect, args: ['item + string(i)'], result: string}
        - user: It ${done}.
    - sleep: {for: 100ms}
    - select: {name: end, options: ["yes", "no", "maybe"]}
    yield: thought + "/" + done + "/" + end
- user: 'All: ${join(arms, ", ")}'
- gen: {name: last, max_tokens: 20}
- return: '{last: last, arms: arms}'
`

// offspring does what disturbed does, each arm by a program of its own.
const offspring = `
name: offspring
inputs: {text: string}
programs:
  arm:
    inputs: {text: string, item: string}
    steps:
    - system: ${text}
    - user: Begin with ${item}.
    - repeat:
        name: rounds
        max: 4
        index: i
        steps:
        - gen: {name: thought, max_tokens: 20}
        - call: {name: done, func: effect, args: ['item + string(i)'], result: string}
        - user: It ${done}.
    - sleep: {for: 100ms}
    - select: {name: end, options: ["yes", "no", "maybe"]}
    - return: thought + "/" + done + "/" + end
steps:
- fork:
    name: arms
    each: [a, b, c, d]
    steps:
    - run: {name: sub, program: arm, with: {text: text, item: item}}
    yield: sub
- user: 'All: ${join(arms, ", ")}'
- gen: {name: last, max_tokens: 20}
- return: '{last: last, arms: arms}'
`

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

// TestServerKilled kills the worker, the server or both at random moments and
// compares the runs with ones that nothing disturbed. Every second one has programs
// as steps and goes on in new histories.
func TestServerKilled(t *testing.T) {
	m := newModel(t, 40*time.Millisecond)
	s := newSite(t, m)
	kills := 5
	if k := os.Getenv(envKills); k != "" {
		var err error
		kills, err = strconv.Atoi(k)
		require.NoError(t, err)
	}
	quiet := newModel(t, 0)
	graphs := []*lang.Graph{program(t, disturbed), program(t, offspring)}
	args := lang.Args{"text": strings.Repeat("a rule that matters. ", 500)}
	var wants []*runtime.Report
	for _, g := range graphs {
		want, err := runtime.RunGraph(context.Background(), &distant{url: quiet.url}, g, effects(filepath.Join(t.TempDir(), "effects"), quiet.url), args)
		require.NoError(t, err)
		wants = append(wants, want)
	}

	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	ctx := context.Background()
	seen := 0 // tasks that were finished at a kill
	for done, runs := 0, 0; done < kills; runs++ {
		name := fmt.Sprintf("disturbed-%d", done)
		g, want := graphs[runs%2], wants[runs%2]
		var run *Run
		require.Eventually(t, func() bool {
			var err error
			run, err = Start(ctx, s.client, g, args, StartOptions{Name: name, Heartbeat: time.Second, Seed: 1, History: runs % 2 * 40})
			return err == nil
		}, time.Minute, 100*time.Millisecond)
		over := make(chan error, 1)
		var got *runtime.Report
		go func() {
			for {
				var err error
				if got, err = run.Report(ctx); err == nil || !strings.Contains(err.Error(), "navailable") {
					over <- err
					return
				}
			}
		}()
		known := map[string]int{} // finished tasks, and how often the model was asked then
	run:
		for {
			// When some request has come or is answered: a slow machine gets that far too.
			passed, more := m.passed(), 1+rng.IntN(12)
			for patience := time.Now().Add(time.Minute); m.passed() < passed+more && time.Now().Before(patience); {
				select {
				case err := <-over:
					require.NoError(t, err)
					break run
				case <-time.After(5 * time.Millisecond):
				}
			}
			if done == kills {
				require.NoError(t, <-over)
				break
			}
			done++
			which := rng.IntN(3)
			if which != 1 {
				s.worker.kill()
			}
			if which != 0 {
				s.server.kill()
				s.server.start()
			}
			require.Eventually(t, func() bool { _, err := s.client.CheckHealth(ctx, nil); return err == nil }, time.Minute, 50*time.Millisecond)
			if which != 1 {
				s.worker.start()
			}
			for _, id := range s.finished(t, name) {
				if _, ok := known[id]; !ok {
					known[id] = m.calls(id)
				}
			}
		}
		require.JSONEq(t, string(want.Value), string(got.Value))
		require.JSONEq(t, string(want.Variables), string(got.Variables))
		for id, n := range known {
			require.Equal(t, n, m.calls(id), "%s was finished and asked again", id)
		}
		seen += len(known)
		m.mu.Lock()
		clear(m.count)
		m.mu.Unlock()
	}

	// Every effect has one key, whoever made it and however often.
	data, err := os.ReadFile(s.effects())
	require.NoError(t, err)
	keys := map[string]string{}
	lines := 0
	for line := range strings.Lines(string(data)) {
		lines++
		k, what, ok := strings.Cut(strings.TrimSpace(line), "\t")
		require.True(t, ok)
		if old, seen := keys[k]; seen {
			require.Equal(t, old, what, "one key for two effects")
		}
		keys[k] = what
	}
	perRun := map[string]int{}
	for k := range keys {
		run, _, _ := strings.Cut(k, ":arms")
		perRun[run]++
	}
	for run, n := range perRun {
		require.Equal(t, 16, n, run)
	}
	require.Positive(t, seen, "no kill came when a task was finished")
	t.Logf("%d kills in %d runs: %d tasks were finished at a kill, none was computed again; %d effects, %d attempts at them came again with the key of the first",
		kills, len(perRun), seen, len(keys), lines-len(keys))
}

// TestServerAnswersPeople: the handlers work over the wire.
func TestServerAnswersPeople(t *testing.T) {
	m := newModel(t, 0)
	s := newSite(t, m)
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, asking), nil, StartOptions{Name: "asking"})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		tree, err := run.Tree(ctx)
		return err == nil && len(tree.Tasks) == 1 && tree.Tasks[0].Ask == "May I?"
	}, time.Minute, 20*time.Millisecond)
	require.ErrorIs(t, run.Answer(ctx, Answer{Task: "nobody", Value: json.RawMessage("true")}), ErrNotWaiting)
	require.ErrorIs(t, run.Answer(ctx, Answer{Task: "both/person/ok", Value: json.RawMessage(`"maybe"`)}), ErrWrongAnswer)
	require.NoError(t, run.Answer(ctx, Answer{Task: "both/person/ok", Value: json.RawMessage("true")}))
	report, err := run.Report(ctx)
	require.NoError(t, err)
	require.Contains(t, string(report.Value), "true")

	// The same again is the same run; another program of that name is refused.
	again, err := Start(ctx, s.client, program(t, asking), nil, StartOptions{Name: "asking"})
	require.NoError(t, err)
	same, err := again.Report(ctx)
	require.NoError(t, err)
	require.JSONEq(t, string(report.Value), string(same.Value))
	_, err = Start(ctx, s.client, program(t, disturbed), lang.Args{"text": "x"}, StartOptions{Name: "asking"})
	require.ErrorIs(t, err, ErrOtherProgram)
	_, err = Open(s.client, "nowhere").Report(ctx)
	require.ErrorIs(t, err, ErrUnknownRun)
}

// TestServerCarriesLargeValues: nothing large is in a history.
func TestServerCarriesLargeValues(t *testing.T) {
	m := newModel(t, 0)
	s := newSite(t, m)
	ctx := context.Background()
	big := strings.Repeat("0123456789", 500_000) // 5 MB
	run, err := Start(ctx, s.client, program(t, disturbed), lang.Args{"text": big}, StartOptions{Name: "big"})
	require.NoError(t, err)
	_, err = run.Report(ctx)
	require.NoError(t, err)
	d, err := s.client.DescribeWorkflow(ctx, "big", "")
	require.NoError(t, err)
	require.Less(t, d.RawResponse.WorkflowExecutionInfo.HistorySizeBytes, int64(200_000))
}

// TestServerRollsOver: a long loop goes on in new histories, with the same name.
func TestServerRollsOver(t *testing.T) {
	m := newModel(t, 0)
	s := newSite(t, m)
	ctx := context.Background()
	run, err := Start(ctx, s.client, program(t, `
name: long
steps:
- repeat:
    name: r
    max: 200
    index: i
    steps:
    - user: ${i}
    - gen: {name: x, max_tokens: 5}
- wait: {name: ok, ask: "Enough?"}
- return: x
`), nil, StartOptions{Name: "long", History: 100, SearchAttributes: true})
	require.NoError(t, err)
	// Signals all the time; the one that counts comes early.
	require.NoError(t, run.Leave(ctx, Answer{Task: "ok", Value: json.RawMessage("true")}))
	stop := make(chan struct{})
	var flood sync.WaitGroup
	flood.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				_ = run.Leave(ctx, Answer{Task: fmt.Sprint("nobody", i%3), Value: json.RawMessage("1")})
			}
		}
	})
	_, err = run.Report(ctx)
	close(stop)
	flood.Wait()
	require.NoError(t, err)
	d, err := s.client.DescribeWorkflow(ctx, "long", "")
	require.NoError(t, err)
	require.NotEqual(t, d.WorkflowExecution.RunID, d.RawResponse.WorkflowExecutionInfo.FirstRunId)
	s.listed(t, `program = "long" and status = "finished"`, "long") // the last history knows too
}

// record writes the history of a run.
func record(ctx context.Context, c *Client, name string, w io.Writer) (int, error) {
	it := c.GetWorkflowHistory(ctx, name, "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	h := &history.History{}
	for it.HasNext() {
		e, err := it.Next()
		if err != nil {
			return 0, err
		}
		h.Events = append(h.Events, e)
	}
	data, err := protojson.Marshal(h)
	if err == nil {
		_, err = w.Write(data)
	}
	return len(h.Events), err
}

// TestServerHistoriesReplay records the histories of the programs here and
// replays them; with COPPICE_RECORD they become the files of TestOldHistories.
func TestServerHistoriesReplay(t *testing.T) {
	m := newModel(t, 0)
	s := newSite(t, m)
	ctx := context.Background()
	for _, c := range []struct {
		name, program string
		args          lang.Args
		answer        *Answer
	}{
		{"disturbed", disturbed, lang.Args{"text": "short"}, nil},
		{"asking", asking, nil, &Answer{Task: "both/person/ok", Value: json.RawMessage("true")}},
		{"family", family, lang.Args{"n": 1}, &Answer{Task: "all[0]/sub/ok", Value: json.RawMessage("true")}},
	} {
		run, err := Start(ctx, s.client, program(t, c.program), c.args, StartOptions{Name: c.name, History: map[string]int{"family": 20}[c.name]})
		require.NoError(t, err)
		if c.answer != nil {
			require.NoError(t, run.Leave(ctx, *c.answer))
		}
		_, err = run.Report(ctx)
		require.NoError(t, err)
		ids := map[string]string{c.name: c.name}
		if c.name == "family" { // the last histories of the run and of a program that is a step of it
			d, err := s.client.DescribeWorkflow(ctx, c.name, "")
			require.NoError(t, err)
			require.NotEqual(t, d.WorkflowExecution.RunID, d.RawResponse.WorkflowExecutionInfo.FirstRunId)
			ids["child"] = childID(c.name, d.RawResponse.WorkflowExecutionInfo.FirstRunId, "all[0]/sub")
		}
		for file, id := range ids {
			var lines bytes.Buffer
			w := bufio.NewWriter(&lines)
			n, err := record(ctx, s.client, id, w)
			require.NoError(t, err)
			require.NoError(t, w.Flush())
			require.Positive(t, n)
			require.NoError(t, replay(lines.Bytes(), s.store()))
			if dir := os.Getenv("COPPICE_RECORD"); dir != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, file+".json"), lines.Bytes(), 0o644))
			}
		}
	}
	if dir := os.Getenv("COPPICE_RECORD"); dir != "" {
		require.NoError(t, os.CopyFS(filepath.Join(dir, "store"), os.DirFS(s.store())))
	}
}
