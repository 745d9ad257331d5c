package runtime

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/coppice-run/coppice/lang"
)

// Sleep asks to wait for a time.
type Sleep struct {
	For time.Duration `json:"for"` // from when the task is first seen
}

// Wait asks for an answer from outside the run, most often from a person.
type Wait struct {
	Ask  string    `json:"ask,omitempty"` // what is asked
	Type lang.Type `json:"-"`             // of the answer
	// Timeout bounds the wait from when the task is first seen; 0: for ever.
	Timeout time.Duration `json:"timeout,omitempty"`
	// Default is the answer when the time is over; nil: the task fails then.
	Default json.RawMessage `json:"default,omitempty"`
}

// Check returns the answer as it is stored, or says why it is none.
func (w *Wait) Check(answer json.RawMessage) (json.RawMessage, error) {
	v, err := lang.DecodeValue(answer)
	if err == nil {
		v, err = lang.Convert(v, w.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("the answer must be %s: %w", w.Type, err)
	}
	return lang.FormatJSON(v, w.Type), nil
}

// Question is what a wait asks, for those who watch a run.
type Question struct {
	Text    string          `json:"text,omitempty"`
	Type    string          `json:"type"`              // of the answer, as programs write it
	Schema  json.RawMessage `json:"schema,omitempty"`  // of the answer, as JSON Schema
	Due     time.Time       `json:"due,omitzero"`      // when its time is over; zero: never
	Default json.RawMessage `json:"default,omitempty"` // the answer then; nil: the node fails
}

// Check returns an answer as it is stored, or says why it is none.
func (q *Question) Check(answer json.RawMessage) (json.RawMessage, error) {
	t, err := lang.ParseType(q.Type)
	if err != nil {
		return nil, fmt.Errorf("the type of the answer cannot be read: %w", err)
	}
	return (&Wait{Type: t}).Check(answer)
}

// Question describes a wait whose time is over at due; zero: never.
func (w *Wait) Question(due time.Time) *Question {
	return &Question{Text: w.Ask, Type: w.Type.String(), Schema: lang.SchemaOfType(w.Type), Due: due, Default: w.Default}
}

// ErrNoAnswer: nobody answered in time.
var ErrNoAnswer = errors.New("no answer in time")

// Expired returns the result of a task that waited as long as it may: of a sleep
// its end, of a wait its default, or its failure if it has none.
func (t *Task) Expired() Result {
	r := Result{Task: t.ID}
	switch {
	case t.Sleep != nil:
		r.Value = json.RawMessage("null")
	case t.Wait != nil && t.Wait.Default != nil:
		r.Value = t.Wait.Default
	case t.Wait != nil:
		r.Failure = NewFailure(fmt.Errorf("%w (%v)", ErrNoAnswer, t.Wait.Timeout))
	default:
		r.Failure = NewFailure(errors.New("the task does not wait"))
	}
	return r
}

// After returns how long a task waits at most, and whether it ends by itself at
// all.
func (t *Task) After() (time.Duration, bool) {
	switch {
	case t.Sleep != nil:
		return t.Sleep.For, true
	case t.Wait != nil && t.Wait.Timeout > 0:
		return t.Wait.Timeout, true
	}
	return 0, false
}

func (m *Machine) startSleep(b *branch, n *lang.Node) {
	m.add(b, n, &task{Task: Task{ID: b.instance(n), Sleep: &Sleep{For: n.Sleep.For}}})
}

func (m *Machine) startWait(b *branch, n *lang.Node) error {
	ask, err := b.graph.Expand(n.Wait.Ask, b.vars)
	if err != nil {
		return err
	}
	if err := m.spend(len(ask)); err != nil {
		return err
	}
	m.add(b, n, &task{Task: Task{ID: b.instance(n), Wait: &Wait{
		Ask: ask, Type: n.Wait.Type, Timeout: n.Wait.Timeout, Default: n.Wait.Default,
	}}})
	return nil
}

// Used returns what the results so far cost.
func (m *Machine) Used() Usage {
	var c cost
	for i := range m.results {
		c.add(m.results[i].usage())
	}
	return c.usage()
}

// Results returns how many results were applied so far.
func (m *Machine) Results() int { return len(m.results) }

// Finished reports whether a task is over: it has its result, or is no longer
// wanted.
func (m *Machine) Finished(task string) bool {
	t := m.tasks[task]
	return t != nil && t.state != taskReady
}

// FinishedEvent describes the result of a task to those who watch a run. Only
// drivers of a Machine need it.
func FinishedEvent(t *Task, r *Result) Event { return finishedEvent(t, r) }
