package relay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/runtime"
)

// shaky is a receiver behind a connection that loses posts, and their answers.
type shaky struct {
	r *Receiver

	mu    sync.Mutex
	posts int
}

func (s *shaky) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	s.posts++
	n := s.posts
	s.mu.Unlock()
	switch n % 3 {
	case 0:
		http.Error(w, "busy", http.StatusServiceUnavailable)
	case 1: // it was taken, and the answer is lost
		s.r.ServeHTTP(httptest.NewRecorder(), req)
		http.Error(w, "lost", http.StatusBadGateway)
	default:
		s.r.ServeHTTP(w, req)
	}
}

// TestRelay: what workers tell arrives once and in order over a connection that loses
// posts and answers, for each run at its own place.
func TestRelay(t *testing.T) {
	r := NewReceiver("secret")
	web := httptest.NewServer(&shaky{r: r})
	defer web.Close()
	said := 0
	s := NewSender(Told(HTTP(web.Client(), web.URL, "secret"), func(error) { said++ }))
	sinks := map[string]*reader{}
	var wait []<-chan struct{}
	for i := range 3 {
		name := fmt.Sprint("run-", i)
		sinks[name] = newReader(t)
		f, err := r.Follow(name, nil, sinks[name])
		require.NoError(t, err)
		defer f.Close()
		_, err = r.Follow(name, nil, sinks[name])
		require.ErrorContains(t, err, "followed already")
		wait = append(wait, f.Over())
	}
	for name := range sinks {
		m := NewMerge(s.Sink(name), false, nil)
		m.Tell(runtime.Event{Kind: runtime.RunStarted})
		m.Tell(runtime.Event{Kind: runtime.NodeStarted, Task: "x"})
		for i := range 40 {
			m.Tell(delta(i, "a", int32(i+1)))
		}
		m.Tell(finished(strings.Repeat("a", 40), 1))
		m.Tell(runtime.Event{Kind: runtime.NodeFinished, Task: "s", Scores: []runtime.OptionScore{{Option: "no", Logprob: math.Inf(-1)}}})
		m.Tell(runtime.Event{Kind: runtime.RunFinished, Value: json.RawMessage(`"a<b & c"`)})
	}
	for _, over := range wait {
		<-over
	}
	require.NoError(t, s.Close(t.Context()))
	require.Positive(t, said)
	for name, got := range sinks {
		require.Len(t, got.events, 45, name)
		require.Len(t, got.tokens["x"], 40)
		require.Equal(t, runtime.RunFinished, got.events[44].Kind)
		require.Equal(t, `"a<b & c"`, string(got.events[44].Value), "who gave an answer compares it byte by byte")
		require.Less(t, got.events[43].Scores[0].Logprob, -1000.0)
	}
}

// TestRelayLater: events wait for a receiver that does not follow the run yet, and for
// one that is away, and are given up at the end of the sender.
func TestRelayLater(t *testing.T) {
	r := NewReceiver("")
	away := true
	asked := make(chan struct{}, 100)
	s := NewSender(func(ctx context.Context, batches []Batch) ([]string, error) {
		defer func() { asked <- struct{}{} }()
		if away {
			away = false
			return nil, errors.New("away")
		}
		return r.Post(ctx, batches)
	})
	got := newReader(t)
	sink := s.Sink("run")
	sink.Emit(runtime.Event{Seq: 1, Kind: runtime.RunStarted})
	<-asked
	<-asked // nobody follows it
	f, err := r.Follow("run", nil, got)
	require.NoError(t, err)
	sink.Emit(runtime.Event{Seq: 2, Kind: runtime.RunFinished})
	<-f.Over()
	require.Len(t, got.events, 2)
	f.Close()

	sink.Emit(runtime.Event{Seq: 3, Kind: runtime.RunWaits})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Close(ended), context.Canceled)
}

// TestSenderIsBounded: a receiver that takes nothing costs bounded memory, texts first.
func TestSenderIsBounded(t *testing.T) {
	hold := make(chan struct{})
	s := NewSender(func(ctx context.Context, _ []Batch) ([]string, error) {
		<-hold
		return nil, ctx.Err()
	})
	sink := s.Sink("run").(*outbox)
	for i := range mostEvents + 10 {
		sink.Emit(runtime.Event{Seq: uint64(i + 1), Kind: runtime.TextDelta})
	}
	require.Equal(t, mostEvents, s.waiting)
	sink.Emit(runtime.Event{Seq: mostEvents + 11, Kind: runtime.NodeFinished})
	require.Equal(t, 1, s.waiting)
	for i := range allEvents + 10 {
		sink.Emit(runtime.Event{Seq: uint64(mostEvents + 12 + i), Kind: runtime.NodeStarted})
	}
	require.Equal(t, allEvents, s.waiting)
	close(hold)
	require.NoError(t, s.Close(t.Context()))
}

// TestRefusedForGood: a run of which a receiver takes nothing keeps no other from being
// told, and nothing of it is kept.
func TestRefusedForGood(t *testing.T) {
	r := NewReceiver("")
	refusals := 0
	s := NewSender(func(ctx context.Context, batches []Batch) ([]string, error) {
		if slices.ContainsFunc(batches, func(b Batch) bool { return b.Run == "bad" }) {
			refusals++
			return nil, fmt.Errorf("post: %w", &RefusedError{Status: http.StatusBadRequest, Message: "no"})
		}
		return r.Post(ctx, batches)
	})
	got := newReader(t)
	f, err := r.Follow("good", nil, got)
	require.NoError(t, err)
	defer f.Close()
	bad, good := s.Sink("bad"), s.Sink("good")
	bad.Emit(runtime.Event{Seq: 1, Kind: runtime.RunStarted})
	good.Emit(runtime.Event{Seq: 1, Kind: runtime.RunStarted})
	good.Emit(runtime.Event{Seq: 2, Kind: runtime.RunFinished})
	<-f.Over()
	bad.Emit(runtime.Event{Seq: 2, Kind: runtime.RunFinished})
	require.NoError(t, s.Close(t.Context()))
	require.Len(t, got.events, 2)
	require.LessOrEqual(t, refusals, 2)
	require.Zero(t, s.waiting)
}

// TestToldSaysWhatIsNew: the same trouble is told once, its end too, and the end of the
// sender is none.
func TestToldSaysWhatIsNew(t *testing.T) {
	var fails error
	var told []string
	post := Told(func(context.Context, []Batch) ([]string, error) { return nil, fails }, func(err error) { told = append(told, fmt.Sprint(err)) })
	ctx, cancel := context.WithCancel(t.Context())
	for _, fails = range []error{nil, errors.New("busy"), errors.New("busy"), errors.New("gone"), nil, errors.New("busy")} {
		_, err := post(ctx, nil)
		require.Equal(t, fails, err)
	}
	cancel()
	fails = context.Canceled
	_, err := post(ctx, nil)
	require.ErrorIs(t, err, fails)
	require.Equal(t, []string{"busy", "gone", "<nil>", "busy"}, told)
}

// TestReceiverRefuses: what is no post of a worker is refused, and says why.
func TestReceiverRefuses(t *testing.T) {
	r := NewReceiver("secret")
	web := httptest.NewServer(r)
	defer web.Close()
	for name, c := range map[string]struct {
		method, key, kind, origin, body string
		want                            int
	}{
		"a look":        {"GET", "secret", "application/json", "", "", 405},
		"no key":        {"POST", "", "application/json", "", "{}", 401},
		"another key":   {"POST", "Secret", "application/json", "", "{}", 401},
		"a web page":    {"POST", "secret", "application/json", "https://evil.example", "{}", 403},
		"a form":        {"POST", "secret", "text/plain", "", "{}", 403},
		"no JSON":       {"POST", "secret", "application/json", "", "{", 400},
		"another JSON":  {"POST", "secret", "application/json", "", `{"batches": 3}`, 400},
		"nothing":       {"POST", "secret", "application/json", "", "{}", 200},
		"a strange run": {"POST", "secret", "application/json; charset=utf-8", "", `{"batches": [{"run": "x", "events": [{"seq": 1}]}]}`, 200},
	} {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest(c.method, web.URL, strings.NewReader(c.body))
			require.NoError(t, err)
			req.Header.Set("Content-Type", c.kind)
			if c.key != "" {
				req.Header.Set("Authorization", "Bearer "+c.key)
			}
			if c.origin != "" {
				req.Header.Set("Origin", c.origin)
			}
			resp, err := web.Client().Do(req)
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, c.want, resp.StatusCode)
		})
	}
	_, err := HTTP(web.Client(), web.URL, "wrong")(t.Context(), nil)
	var refused *RefusedError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, 401, refused.Status)
	_, err = HTTP(http.DefaultClient, "http://127.0.0.1:1", "")(t.Context(), nil)
	require.Error(t, err)
}
