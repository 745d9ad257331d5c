package relay

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"sync"

	"github.com/coppice-run/coppice/runtime"
)

// Receiver takes what workers tell of runs. It is an http.Handler for the posts of
// senders elsewhere; a sender in this process uses [Receiver.Post].
type Receiver struct {
	key string

	mu   sync.Mutex
	runs map[string]*Following
}

// NewReceiver returns a receiver that follows nothing. If key is not empty, whoever
// posts must bring it.
func NewReceiver(key string) *Receiver {
	return &Receiver{key: key, runs: map[string]*Following{}}
}

// Following is a run that a receiver follows.
type Following struct {
	r     *Receiver
	run   string
	merge *Merge
	over  chan struct{} // closed when the end of the run was told

	mu    sync.Mutex
	heard map[string]uint64 // number of the last event of each source
}

// Follow begins to take what is told of a run, and gives its events to sink, numbered
// behind told, which are those that an earlier process gave. Only one at a time can
// follow a run. Close it.
func (r *Receiver) Follow(run string, told []runtime.Event, sink runtime.Sink) (*Following, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.runs[run] != nil {
		return nil, fmt.Errorf("relay: run %s is followed already", run)
	}
	f := &Following{r: r, run: run, over: make(chan struct{}), heard: map[string]uint64{}}
	f.merge = NewMerge(runtime.SinkFunc(func(e runtime.Event) {
		sink.Emit(e)
		if e.Kind == runtime.RunFinished || e.Kind == runtime.RunFailed {
			close(f.over)
		}
	}), true, told)
	r.runs[run] = f
	return f, nil
}

// Over is closed when the end of the run was told.
func (f *Following) Over() <-chan struct{} { return f.over }

// Emit tells an event of the run by who follows it, beside what workers tell.
func (f *Following) Emit(e runtime.Event) { f.merge.Tell(e) }

// Close ends the following. What workers tell after that is not taken.
func (f *Following) Close() {
	f.r.mu.Lock()
	delete(f.r.runs, f.run)
	f.r.mu.Unlock()
	f.merge.End()
}

// hear takes a batch. What was heard of its source is not heard again.
func (f *Following) hear(b *Batch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range b.Events {
		if e.Seq > f.heard[b.Source] {
			f.heard[b.Source] = e.Seq
			f.merge.Tell(e)
		}
	}
}

// Post is the [Post] of senders in this process.
func (r *Receiver) Post(_ context.Context, batches []Batch) (unknown []string, err error) {
	for i := range batches {
		b := &batches[i]
		r.mu.Lock()
		f := r.runs[b.Run]
		r.mu.Unlock()
		if f == nil {
			unknown = append(unknown, b.Run)
			continue
		}
		f.hear(b)
	}
	return unknown, nil
}

// mostBody bounds a post. One event may be a text as long as a program may have.
const mostBody = 256 << 20

// ServeHTTP implements http.Handler.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	refuse := func(status int, format string, args ...any) {
		http.Error(w, fmt.Sprintf(format, args...), status)
	}
	given, _ := strings.CutPrefix(req.Header.Get("Authorization"), "Bearer ")
	kind, _, _ := mime.ParseMediaType(req.Header.Get("Content-Type"))
	switch {
	case req.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		refuse(http.StatusMethodNotAllowed, "events are posted here")
		return
	case subtle.ConstantTimeCompare([]byte(given), []byte(r.key)) == 0:
		refuse(http.StatusUnauthorized, "the key of the events is another")
		return
	case req.Header.Get("Origin") != "", kind != "application/json":
		refuse(http.StatusForbidden, "this is no place for web pages")
		return
	}
	var m message
	if err := json.NewDecoder(http.MaxBytesReader(w, req.Body, mostBody)).Decode(&m); err != nil {
		status := http.StatusBadRequest
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			status = http.StatusRequestEntityTooLarge
		}
		refuse(status, "the events cannot be read: %v", err)
		return
	}
	unknown, _ := r.Post(req.Context(), m.Batches)
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(reply{unknown}); err != nil {
		return // the sender is gone, and posts again
	}
}
