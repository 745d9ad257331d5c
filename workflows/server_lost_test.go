//go:build durable

package workflows

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	enums "go.temporal.io/api/enums/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"

	"github.com/coppice-run/coppice/backend"
)

// typist is a model that writes one token after the other and counts them.
type typist struct {
	mu    sync.Mutex
	from  []int // where each request for the long text began
	wrote int   // tokens of it
}

// longText is how many tokens the generations named long have. The first request for
// them waits behind heldText: whoever has it is to be lost.
const longText, heldText = 400, 100

func newTypist(t *testing.T) (*typist, string) {
	m := &typist{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, err := strconv.Atoi(r.URL.Query().Get("from"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		long := strings.HasPrefix(r.URL.Query().Get("id"), "long")
		n := 3
		if long {
			n = longText
			m.mu.Lock()
			m.from = append(m.from, from)
			m.mu.Unlock()
		}
		for i := from; i < n; i++ {
			if long {
				m.mu.Lock()
				m.wrote++
				m.mu.Unlock()
			}
			if _, err := fmt.Fprintln(w, i*7%1000); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			pause := 20 * time.Millisecond
			switch {
			case long && from > 0:
				pause = time.Millisecond
			case long && i == heldText:
				pause = time.Hour
			}
			select {
			case <-time.After(pause):
			case <-r.Context().Done():
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	return m, s.URL
}

// writer is the worker's end of a typist. It goes on from tokens.
type writer struct{ distant }

func (*writer) Info() backend.Info {
	return backend.Info{Model: "typist", Fingerprint: "typist-1", Capabilities: backend.Capabilities{TokenIDs: true}}
}

func (b *writer) Generate(ctx context.Context, req *backend.Request, emit func(backend.Delta)) (*backend.Result, error) {
	part := backend.Part{Model: "typist-1"}
	write := func(t backend.Token) {
		text := fmt.Sprint(t, " ")
		part.Text += text
		part.Tokens = append(part.Tokens, t)
		emit(backend.Delta{Text: text, Tokens: []backend.Token{t}})
	}
	for _, t := range req.Resume {
		write(t)
	}
	ask, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("%s?id=%s&from=%d", b.url, req.ID, len(req.Resume)), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(ask)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
	}
	defer resp.Body.Close()
	for {
		var t backend.Token
		if _, err := fmt.Fscanln(resp.Body, &t); err == io.EOF {
			return &backend.Result{Part: part, Finish: backend.FinishStop}, nil
		} else if err != nil {
			return nil, fmt.Errorf("%w: %w", backend.ErrUnavailable, err)
		}
		write(t)
	}
}

// pending returns the run's activity that is under way and what its last heartbeat
// said, once it has come to that many tokens.
func (s *site) pending(t *testing.T, run string, tokens int) (*workflowpb.PendingActivityInfo, progress) {
	t.Helper()
	var a *workflowpb.PendingActivityInfo
	var p progress
	require.Eventually(t, func() bool {
		d, err := s.client.DescribeWorkflowExecution(context.Background(), run, "")
		if err != nil || len(d.PendingActivities) != 1 {
			return false
		}
		a, p = d.PendingActivities[0], progress{}
		return a.HeartbeatDetails != nil && s.client.conv.FromPayloads(a.HeartbeatDetails, &p) == nil && len(p.Tokens) >= tokens
	}, time.Minute, 50*time.Millisecond)
	return a, p
}

// TestServerLostWorkerGoesOnFromItsTokens: what a generation wrote before its
// worker was killed is not written again, whether the worker comes back or another
// has to take over the run; nor if the worker was told to end, which does not end
// the run.
func TestServerLostWorkerGoesOnFromItsTokens(t *testing.T) {
	for name, c := range map[string]struct{ affinity, stops bool }{
		"comes back": {}, "another takes over": {affinity: true}, "is told to end": {stops: true},
	} {
		t.Run(name, func(t *testing.T) {
			m, url := newTypist(t)
			s := newSiteWith(t, workerArgs{Model: url, Writes: true, Affinity: c.affinity})
			workers := []*process{s.worker}
			if c.affinity || c.stops {
				other := s.another()
				other.start()
				t.Cleanup(other.kill)
				workers = append(workers, other)
			}
			ctx := context.Background()
			run, err := Start(ctx, s.client, program(t, `
name: writes
steps:
- user: Begin.
- gen: {name: short, max_tokens: 10}
- user: Go on.
- gen: {name: long, max_tokens: 1000}
- return: long
`), nil, StartOptions{Name: "writes", Heartbeat: 5 * time.Second}) // a busy machine is no lost worker
			require.NoError(t, err)
			a, seen := s.pending(t, "writes", 20)
			for _, w := range workers {
				if strings.HasPrefix(a.LastWorkerIdentity, fmt.Sprint(w.cmd.Process.Pid, "@")) {
					if c.stops {
						require.NoError(t, w.cmd.Process.Signal(syscall.SIGTERM))
						require.NoError(t, w.cmd.Wait())
						continue
					}
					w.kill()
					if !c.affinity {
						w.start()
					}
				}
			}
			m.mu.Lock()
			before := m.wrote
			m.mu.Unlock()
			report, err := run.Report(ctx)
			require.NoError(t, err)
			var want strings.Builder
			for i := range longText {
				fmt.Fprint(&want, i*7%1000, " ")
			}
			require.Equal(t, fmt.Sprintf("%q", want.String()), string(report.Value))
			m.mu.Lock()
			defer m.mu.Unlock()
			require.Len(t, m.from, 2)
			require.Zero(t, m.from[0])
			require.GreaterOrEqual(t, m.from[1], len(seen.Tokens))
			require.IsNonDecreasing(t, m.from)
			t.Logf("%d tokens written when the worker was killed, %d of them again", before, before-m.from[1])
		})
	}
}

// listed waits until the runs that a query finds are those.
func (s *site) listed(t *testing.T, query string, want ...string) {
	t.Helper()
	var got []string
	require.Eventually(t, func() bool {
		list, err := s.client.ListWorkflow(context.Background(), &workflowservice.ListWorkflowExecutionsRequest{Query: query})
		if err != nil {
			t.Log(err)
			return false
		}
		got = nil
		for _, e := range list.Executions {
			got = append(got, e.Execution.WorkflowId)
		}
		return fmt.Sprint(got) == fmt.Sprint(want)
	}, time.Minute, 100*time.Millisecond, "%s: %v", query, got)
}

// TestServerFindsRunsByStatus: who looks for runs that wait for a person finds
// them.
func TestServerFindsRunsByStatus(t *testing.T) {
	s := newSite(t, newModel(t, 0))
	ctx := context.Background()
	ok, err := HasSearchAttributes(ctx, s.client, "")
	require.NoError(t, err)
	require.True(t, ok)
	run, err := Start(ctx, s.client, program(t, asking), nil, StartOptions{Name: "asking", Salt: "me", SearchAttributes: true})
	require.NoError(t, err)
	s.listed(t, `status = "waiting" and tenant = "me"`, "asking")
	require.NoError(t, run.Answer(ctx, Answer{Task: "both/person/ok", Value: []byte("true")}))
	_, err = run.Report(ctx)
	require.NoError(t, err)
	s.listed(t, `status = "finished" and program = "asking"`, "asking")
	s.listed(t, `status = "waiting"`)
}

// TestServerOtherVersion: a run that no worker can carry out says which version it
// needs, in its history and to who asks, and is not failed.
func TestServerOtherVersion(t *testing.T) {
	s := newSite(t, newModel(t, 0))
	ctx := context.Background()
	g := program(t, patient)
	vars, err := g.Bind(nil)
	require.NoError(t, err)
	in, err := newInput(g, vars, StartOptions{Name: "old"})
	require.NoError(t, err)
	in.GraphHash, in.Coppice = "0000", "v0.0.1"
	_, err = s.client.ExecuteWorkflow(ctx, client.StartWorkflowOptions{ID: "old", TaskQueue: DefaultQueue}, WorkflowType, *in)
	require.NoError(t, err)
	const says = "it goes on once workers of coppice v0.0.1 are back"
	require.Eventually(t, func() bool {
		it := s.client.GetWorkflowHistory(ctx, "old", "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
		for it.HasNext() {
			e, err := it.Next()
			if err != nil {
				return false
			}
			if f := e.GetWorkflowTaskFailedEventAttributes(); f != nil {
				return strings.Contains(f.GetFailure().GetMessage(), says)
			}
		}
		return false
	}, time.Minute, 50*time.Millisecond)
	_, err = Open(s.client, "old").Tree(ctx)
	require.ErrorIs(t, err, ErrStuck)
	require.ErrorContains(t, err, says)

	// Who waits for it is told, once, and goes on waiting.
	told := make(chan error, 8)
	waits := Open(s.client, "old")
	waits.Trouble = func(err error) { told <- err }
	watch, stop := context.WithCancel(ctx)
	over := make(chan struct{})
	go func() { waits.watchTrouble(watch, 20*time.Millisecond); close(over) }()
	err = <-told
	require.ErrorIs(t, err, ErrStuck)
	require.ErrorContains(t, err, says)
	stop()
	<-over

	// Nobody polls this queue.
	run, err := Start(ctx, s.client, program(t, asking), nil, StartOptions{Name: "alone", Queue: "lonely"})
	require.NoError(t, err)
	waits = Open(s.client, "alone")
	waits.Trouble = func(err error) { told <- err }
	watch, stop = context.WithCancel(ctx)
	over = make(chan struct{})
	go func() { waits.watchTrouble(watch, 20*time.Millisecond); close(over) }()
	for err = <-told; errors.Is(err, ErrStuck); { // the last of the run before
		err = <-told
	}
	stop()
	<-over
	require.ErrorIs(t, err, ErrNoWorker)
	require.ErrorContains(t, err, "no worker polls the task queue lonely: start one with: coppice worker --queue lonely")
	_, err = run.Tree(ctx)
	require.ErrorIs(t, err, ErrNoWorker)
	require.ErrorIs(t, run.Answer(ctx, Answer{Task: "both/person/ok", Value: []byte("true")}), ErrNoWorker)
	require.NoError(t, run.Leave(ctx, Answer{Task: "both/person/ok", Value: []byte("true")}))
	d, err := s.client.DescribeWorkflow(ctx, "old", "")
	require.NoError(t, err)
	require.Equal(t, enums.WORKFLOW_EXECUTION_STATUS_RUNNING, d.Status)
}
