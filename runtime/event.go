package runtime

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// EventKind says what happened.
type EventKind string

// The kinds of events and the fields they use besides Seq, Time and Kind.
const (
	RunStarted     EventKind = "run_started"  // Run, Program, Restored
	NodeStarted    EventKind = "node_started" // Task, Node, Branch, Does; of a wait Ask, and its Text too
	PromptProgress EventKind = "prompt"       // Task, Node, Branch, Done, Total
	TextDelta      EventKind = "delta"        // Task, Node, Branch, Text, Offset, Tokens, Forced
	// PartialValue: the value of a json node as far as it is written; only with
	// WithPartials.
	PartialValue EventKind = "partial"       // Task, Node, Branch, Value
	NodeFinished EventKind = "node_finished" // Task, Node, Branch, Does; Text, Finish, Scores, Value or Error; Cost, Attempts, By; Restored is 1 if it came from a journal
	// NodeRetried: an attempt failed and another is made, at the same backend after
	// Wait or at a fallback. Deltas of the attempt are void; the next begins at 0.
	NodeRetried EventKind = "node_retried" // Task, Node, Branch, Does, Error, Attempt, Wait
	// NodeRefused: a generated value did not pass a check of its node.
	NodeRefused    EventKind = "node_refused"    // Task, Node, Branch, Error
	NodeCancelled  EventKind = "node_cancelled"  // Task, Node, Branch
	BranchStarted  EventKind = "branch_started"  // Branch, Label
	BranchFinished EventKind = "branch_finished" // Branch, Label, Status, Error
	UsageSoFar     EventKind = "usage"           // Usage, of the whole run
	// RunWaits: nothing of the run is at work until a sleep or a wait ends.
	RunWaits    EventKind = "run_waits"
	RunFinished EventKind = "run_finished" // Value, Usage
	RunFailed   EventKind = "run_failed"   // Error, Usage; Status if it was cancelled and whoever drives it says so
	// Dropped stands for deltas that a Log no longer has: First to Seq. Texts
	// holds what the tasks that run now have written so far; a reader takes it
	// in place of its own and ignores the part of later deltas that lies before
	// its end.
	Dropped EventKind = "dropped"
)

// Event is one thing that happened in a run. Its JSON form is stable: fields are
// added, never renamed. Which fields are set is said at the kinds.
type Event struct {
	// Seq numbers the events of one process's run from 1 without a gap.
	Seq  uint64    `json:"seq"`
	Time time.Time `json:"time,omitzero"`
	Kind EventKind `json:"kind"`

	Run     string `json:"run,omitempty"`
	Program string `json:"program,omitempty"`

	Task   string `json:"task,omitempty"`   // instance id
	Node   string `json:"node,omitempty"`   // id in the program
	Branch string `json:"branch,omitempty"` // empty for the trunk
	Label  string `json:"label,omitempty"`  // of the branch
	Does   string `json:"does,omitempty"`   // kind of the node: gen, json, select, call, sleep or wait
	Status Status `json:"status,omitempty"`

	Ask *Question `json:"ask,omitempty"` // of a wait

	Text   string          `json:"text,omitempty"`   // new text, or a node's whole text
	Offset int             `json:"offset,omitempty"` // bytes of the node's text before Text
	Tokens []backend.Token `json:"tokens,omitempty"`
	Forced bool            `json:"forced,omitempty"` // the constraint left no choice

	Finish   backend.FinishReason `json:"finish,omitempty"`
	Scores   []OptionScore        `json:"scores,omitempty"`
	Value    json.RawMessage      `json:"value,omitempty"`
	Error    string               `json:"error,omitempty"`
	Attempt  int                  `json:"attempt,omitempty"`  // that failed, from 1
	Wait     float64              `json:"wait,omitempty"`     // seconds before the next one
	Attempts int                  `json:"attempts,omitempty"` // that a finished node took, if more than one
	By       string               `json:"by,omitempty"`       // fallback that answered
	Cost     *backend.Usage       `json:"cost,omitempty"`     // of the node
	Usage    *Usage               `json:"usage,omitempty"`    // of the run so far

	Done  int `json:"done,omitempty"`  // tokens of the prompt computed so far, cached ones included
	Total int `json:"total,omitempty"` // tokens of the prompt

	Restored int               `json:"restored,omitempty"`
	First    uint64            `json:"first,omitempty"`
	Texts    map[string]string `json:"texts,omitempty"` // by task
}

// OptionScore is how likely an option of a select was.
type OptionScore struct {
	Option  string  `json:"option"`
	Logprob float64 `json:"logprob"` // what the option was compared by, in nats, see backend.Ranking
	P       float64 `json:"p"`       // its share among the options
}

// leastLogprob stands for what is not possible at all, where JSON is written.
const leastLogprob = -9999

// Finite returns the event as JSON can hold it: the scores of a select may be
// infinite.
func (e Event) Finite() Event {
	for i, s := range e.Scores {
		lp, p := s.Logprob, s.P
		if math.IsNaN(lp) || lp < leastLogprob {
			lp = leastLogprob
		}
		if math.IsNaN(p) || math.IsInf(p, 0) {
			p = 0
		}
		if lp != s.Logprob || p != s.P {
			scores := slices.Clone(e.Scores)
			scores[i].Logprob, scores[i].P = lp, p
			e.Scores = scores
		}
	}
	return e
}

// Sink takes the events of a run in order, one at a time. Emit must return at
// once: it is called from the goroutine that decodes tokens. What is slow reads
// from a [Log] instead.
type Sink interface {
	Emit(Event)
}

// SinkFunc is a function as a Sink.
type SinkFunc func(Event)

// Emit calls f.
func (f SinkFunc) Emit(e Event) { f(e) }

// emitter numbers events and hands them to a sink. A nil emitter drops them.
type emitter struct {
	mu       sync.Mutex
	seq      uint64
	sink     Sink
	clock    func() time.Time
	partials bool
	watch    []partialWatch
	over     bool // nothing follows the end of the run, not even from tasks left behind
}

func (em *emitter) emit(e Event) {
	if em == nil {
		return
	}
	em.mu.Lock()
	defer em.mu.Unlock()
	if em.over {
		return
	}
	em.over = e.Kind == RunFinished || e.Kind == RunFailed
	em.seq++
	e.Seq = em.seq
	if em.clock != nil {
		e.Time = em.clock()
	}
	if em.sink != nil {
		em.sink.Emit(e)
	}
}

// deltas returns the function that streams a task's text, nil if nobody
// listens. What comes after the end of ctx, when nobody wants it any more, is
// dropped.
func (em *emitter) deltas(ctx context.Context, t *Task) func(backend.Delta) {
	if em == nil {
		return nil
	}
	offset := 0
	grows := em.growing(t)
	return func(d backend.Delta) {
		if ctx.Err() != nil {
			return
		}
		if d.PromptTokens > 0 {
			em.emit(Event{
				Kind: PromptProgress, Task: t.ID, Node: t.Node.ID, Branch: t.Branch,
				Done: d.PromptDone, Total: d.PromptTokens,
			})
			return
		}
		em.emit(Event{
			Kind: TextDelta, Task: t.ID, Node: t.Node.ID, Branch: t.Branch,
			Text: d.Text, Offset: offset, Tokens: d.Tokens, Forced: d.Origin == backend.Forced,
		})
		offset += len(d.Text)
		grows.add(d.Text)
	}
}

// does returns what carrying out the task is: its node's kind, or call for the
// function of a check.
func (t *Task) does() string {
	if t.Call != nil {
		return string(lang.KindCall)
	}
	return string(t.Node.Kind)
}

// event returns an event about a task.
func (t *Task) event(kind EventKind) Event {
	return Event{Kind: kind, Task: t.ID, Node: t.Node.ID, Branch: t.Branch, Does: t.does()}
}

// finishedEvent describes the result of a task.
func finishedEvent(t *Task, r *Result) Event {
	e := t.event(NodeFinished)
	e.Attempts, e.By = r.Attempts, r.By
	switch {
	case r.Failure != nil:
		e.Error = r.Failure.Message
	case r.Generate != nil:
		e.Text, e.Finish = r.Generate.Part.Text, r.Generate.Finish
		e.Cost = &r.Generate.Usage
	case r.Score != nil:
		rank := t.Score.Method.Rank(r.Score.Options)
		e.Text = t.Score.Options[rank.Best]
		for i, o := range t.Score.Options {
			e.Scores = append(e.Scores, OptionScore{Option: o, Logprob: rank.Scores[i], P: rank.P[i]})
		}
		e.Cost = &r.Score.Usage
	default:
		e.Value = r.Value
	}
	return e
}
