package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coppice-run/coppice/runtime"
)

// Batch is what one source tells of one run: events behind those that it told before,
// numbered from 1.
type Batch struct {
	Run    string          `json:"run"`
	Source string          `json:"source"`
	Events []runtime.Event `json:"events"`
}

// Post hands batches over. It returns the runs that the receiver does not follow; what
// is told of them was not taken. On an error nothing is known to be taken.
type Post func(ctx context.Context, batches []Batch) (unknown []string, err error)

const (
	postEvents = 512     // in one post
	postBytes  = 1 << 20 // of text and values in one post, about
	mostEvents = 1 << 16 // that wait; beyond it, texts are left to the ends of their nodes
	allEvents  = 1 << 18 // beyond it, all is left to the run's history
	strangers  = 30 * time.Second
	restless   = 20 * time.Millisecond // between posts that fail, at first
	patient    = 2 * time.Second       // and at last
)

// Sender hands over what the workers of this process tell of their runs, in the
// background. Nothing waits for it: a receiver that is away is told later, and of what
// does not fit in memory meanwhile it can make up the texts.
type Sender struct {
	post   Post
	cancel context.CancelFunc
	over   chan struct{}
	wake   chan struct{}

	mu      sync.Mutex
	boxes   []*outbox // those that hold events
	waiting int       // events in them
	idle    chan struct{}
}

// outbox is what one stream of a run holds for the receiver.
type outbox struct {
	s       *Sender
	run     string
	source  string
	events  []runtime.Event
	passing int       // of them, pieces of texts and such
	since   time.Time // the receiver does not know the run since then
	retry   time.Time // it is asked again then
	dropped bool      // nobody follows the run
}

// NewSender returns a sender that uses post. Close it.
func NewSender(post Post) *Sender {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Sender{post: post, cancel: cancel, over: make(chan struct{}), wake: make(chan struct{}, 1), idle: make(chan struct{})}
	close(s.idle)
	go s.work(ctx)
	return s
}

// Close hands over what it can before ctx ends, and stops.
func (s *Sender) Close(ctx context.Context) error {
	s.mu.Lock()
	idle := s.idle
	s.mu.Unlock()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.cancel()
	<-s.over
	return err
}

// Sink returns where the events of a run go: a new source. It is what
// workflows.Config.Events wants.
func (s *Sender) Sink(run string) runtime.Sink {
	var id [9]byte
	rand.Read(id[:])
	return &outbox{s: s, run: run, source: hex.EncodeToString(id[:])}
}

// Emit implements [runtime.Sink].
func (o *outbox) Emit(e runtime.Event) {
	s := o.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.dropped || s.waiting >= allEvents {
		return
	}
	if len(o.events) == 0 {
		if len(s.boxes) == 0 {
			s.idle = make(chan struct{})
		}
		s.boxes = append(s.boxes, o)
	}
	if s.waiting >= mostEvents {
		if passing(&e) {
			return
		}
		if o.passing > 0 {
			o.events = slices.DeleteFunc(o.events, func(e runtime.Event) bool { return passing(&e) })
			s.waiting -= o.passing
			o.passing = 0
		}
	}
	o.events = append(o.events, e)
	if s.waiting++; passing(&e) {
		o.passing++
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// passing reports whether an event is of no interest once its node is over.
func passing(e *runtime.Event) bool {
	return e.Kind == runtime.TextDelta || e.Kind == runtime.PromptProgress
}

// work posts until ctx ends.
func (s *Sender) work(ctx context.Context) {
	defer close(s.over)
	wait := restless
	for {
		batches, later := s.next(time.Now())
		if len(batches) > 0 {
			unknown, err := s.post(ctx, batches)
			if err == nil {
				s.taken(batches, unknown)
				wait = restless
				continue
			}
			if forGood(err) && s.sort(ctx, batches) {
				continue
			}
			later, wait = wait, min(2*wait, patient)
		}
		if later <= 0 {
			later = time.Hour
		}
		again := time.NewTimer(later)
		wake := s.wake
		if len(batches) > 0 { // it failed: not before its time
			wake = nil
		}
		select {
		case <-wake:
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return
		}
		again.Stop()
	}
}

// forGood reports whether the same post is refused again, whoever asks and when.
func forGood(err error) bool {
	var r *RefusedError
	return errors.As(err, &r) && (r.Status == http.StatusBadRequest || r.Status == http.StatusRequestEntityTooLarge)
}

// sort posts the batches of a refused post one by one, so that a run of which nothing
// can be told keeps no other from being told. That run is told no more of: its history
// has it all. sort reports whether no batch is left over.
func (s *Sender) sort(ctx context.Context, batches []Batch) bool {
	for _, b := range batches {
		one := []Batch{b}
		unknown, err := s.post(ctx, one)
		switch {
		case err == nil:
			s.taken(one, unknown)
		case forGood(err):
			s.drop(b.Source)
		default:
			return false
		}
	}
	return true
}

// drop forgets a source.
func (s *Sender) drop(source string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.boxes, func(o *outbox) bool { return o.source == source })
	o := s.boxes[i]
	s.waiting -= len(o.events)
	o.events, o.passing, o.dropped = nil, 0, true
	if s.boxes = slices.Delete(s.boxes, i, i+1); len(s.boxes) == 0 {
		close(s.idle)
	}
}

// next returns what is posted next, or when to look again if it is not at an event.
func (s *Sender) next(now time.Time) (out []Batch, later time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, size := 0, 0
	for _, o := range s.boxes {
		if left := o.retry.Sub(now); left > 0 {
			if later == 0 || left < later {
				later = left
			}
			continue
		}
		n := 0
		for n < len(o.events) && events < postEvents && size < postBytes {
			e := &o.events[n]
			size += len(e.Text) + len(e.Value) + 8*len(e.Tokens)
			n++
			events++
		}
		if n > 0 {
			out = append(out, Batch{o.run, o.source, slices.Clone(o.events[:n])})
		}
	}
	return out, later
}

// taken forgets what was handed over.
func (s *Sender) taken(batches []Batch, unknown []string) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range batches {
		i := slices.IndexFunc(s.boxes, func(o *outbox) bool { return o.source == b.Source })
		o := s.boxes[i]
		n := 0
		switch {
		case !slices.Contains(unknown, b.Run):
			o.since, o.retry = time.Time{}, time.Time{}
			last := b.Events[len(b.Events)-1].Seq // some may have been left out meanwhile
			for n < len(o.events) && o.events[n].Seq <= last {
				n++
			}
		case o.since.IsZero():
			o.since, o.retry = now, now.Add(time.Second)
		case now.Sub(o.since) < strangers:
			o.retry = now.Add(time.Second)
		default:
			o.dropped = true
			n = len(o.events)
		}
		s.waiting -= n
		for j := range o.events[:n] {
			if passing(&o.events[j]) {
				o.passing--
			}
		}
		if o.events = o.events[n:]; len(o.events) == 0 {
			o.events = nil
			s.boxes = slices.Delete(s.boxes, i, i+1)
		}
	}
	if len(s.boxes) == 0 {
		close(s.idle)
	}
}

// Path is where a [Receiver] listens, on a server that has one.
const Path = "/v1/relay"

// HTTP returns a Post to the receiver of the server at url, as in
// "http://host:8080". key is the one that the receiver was given, empty if none.
func HTTP(client *http.Client, url, key string) Post {
	return func(ctx context.Context, batches []Batch) ([]string, error) {
		for i := range batches {
			for j := range batches[i].Events {
				batches[i].Events[j] = batches[i].Events[j].Finite()
			}
		}
		var body bytes.Buffer
		enc := json.NewEncoder(&body)
		enc.SetEscapeHTML(false) // values stay as they are, byte by byte
		if err := enc.Encode(message{batches}); err != nil {
			return nil, fmt.Errorf("relay: %w", err)
		}
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+Path, &body)
		if err != nil {
			return nil, fmt.Errorf("relay: %w", err)
		}
		req.Header.Set("Content-Type", "application/json")
		if key != "" {
			req.Header.Set("Authorization", "Bearer "+key)
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, fmt.Errorf("relay: %w", err)
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		if err != nil {
			return nil, fmt.Errorf("relay: %w", err)
		}
		if resp.StatusCode != http.StatusOK {
			return nil, &RefusedError{Status: resp.StatusCode, Message: string(bytes.TrimSpace(data))}
		}
		var a reply
		if err := json.Unmarshal(data, &a); err != nil {
			return nil, fmt.Errorf("relay: what answers at %s is no receiver: %w", url, err)
		}
		return a.Unknown, nil
	}
}

// RefusedError is the answer of a server that takes no events from this sender.
type RefusedError struct {
	Status  int
	Message string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("relay: the server takes no events: status %d: %s", e.Status, e.Message)
}

// message and reply are what goes over the wire.
type (
	message struct {
		Batches []Batch `json:"batches"`
	}
	reply struct {
		Unknown []string `json:"unknown,omitempty"`
	}
)

// Told is a Post that tells what, each time another, of what keeps next from taking
// events, and nil when it takes them again.
func Told(next Post, what func(error)) Post {
	last := ""
	return func(ctx context.Context, batches []Batch) ([]string, error) {
		unknown, err := next(ctx, batches)
		if err != nil && ctx.Err() != nil { // the sender is closed
			return unknown, err
		}
		says := ""
		if err != nil {
			says = err.Error()
		}
		if says != last {
			last = says
			what(err)
		}
		return unknown, err
	}
}
