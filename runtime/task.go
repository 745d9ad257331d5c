package runtime

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// Task is something that must be carried out for a run to go on. Exactly one of
// Generate, Score, Call, Sleep, Wait and Program is set. What it points to belongs to the
// machine and must not be changed.
type Task struct {
	// ID is the node's instance id: its path with the index of each branch and
	// round it is in, e.g. "looks[1]/finding". It is the same in every run of
	// the program that gets that far.
	ID string `json:"id"`
	// Branch is the id of the branch it belongs to; empty for the trunk.
	Branch string     `json:"branch,omitempty"`
	Node   *lang.Node `json:"-"`
	// Base is the number of turns that the prompt has in common with those of
	// all branches of the same fork; 0 in the trunk.
	Base int `json:"-"`

	Generate *backend.Request      `json:"generate,omitempty"`
	Score    *backend.ScoreRequest `json:"score,omitempty"`
	Call     *Call                 `json:"call,omitempty"`
	Sleep    *Sleep                `json:"sleep,omitempty"`
	Wait     *Wait                 `json:"wait,omitempty"`
	Program  *Program              `json:"program,omitempty"`

	fn *lang.Func // that Call is of, in a script
}

// Call asks for a call of a registered function.
type Call struct {
	Func   string `json:"func"`
	Args   []any  `json:"args"`
	Unsafe bool   `json:"unsafe,omitempty"` // must not be called twice
	// Key is the idempotency key: the same in every attempt at this task of
	// this run, different for every other task and run.
	Key string `json:"key"`
}

// CheckResult says whether a value, as JSON, can be the result of a task that is
// a call, and if not why. It is for what somebody says a call returned.
func (t *Task) CheckResult(result json.RawMessage) error {
	if t.Call == nil {
		return fmt.Errorf("%s is no call", t.ID)
	}
	v, err := lang.DecodeValue(result)
	if t.Node.Call == nil { // the function of a check
		if err == nil {
			_, err = judged(t.Call.Func, "", v)
		}
		return err
	}
	want := t.Node.Call.Result
	if err == nil {
		_, err = lang.Convert(v, want)
	}
	if err != nil {
		return fmt.Errorf("the result does not fit %s, which returns %s: %w", t.Call.Func, want, err)
	}
	return nil
}

// Result is the outcome of a task. Exactly one of Generate, Score, Value and
// Failure is set.
type Result struct {
	Task     string               `json:"task"`
	Generate *backend.Result      `json:"generate,omitempty"`
	Score    *backend.ScoreResult `json:"score,omitempty"`
	Value    json.RawMessage      `json:"value,omitempty"` // what a call or program returned, or the answer to a wait; null of a sleep
	Failure  *Failure             `json:"failure,omitempty"`
	// Attempts is how many it took, if that is more than one.
	Attempts int `json:"attempts,omitempty"`
	// By names the fallback that answered; empty: the run's own backend.
	By string `json:"by,omitempty"`
	// Ran is what a program gave that ran apart.
	Ran *Ran `json:"ran,omitempty"`
}

// usage returns what the result cost.
func (r *Result) usage() backend.Usage {
	switch {
	case r.Generate != nil:
		return r.Generate.Usage
	case r.Score != nil:
		return r.Score.Usage
	case r.Ran != nil:
		return r.Ran.Usage
	}
	return backend.Usage{}
}

// Normalize brings r into the form in which it survives being stored as JSON
// unchanged: text is valid UTF-8, numbers are finite. A driver that stores
// results calls it before it stores or applies them.
func (r *Result) Normalize() error {
	if g := r.Generate; g != nil {
		g.Part.Text = strings.ToValidUTF8(g.Part.Text, "\uFFFD")
		if err := finite(g.Logprobs); err != nil {
			return err
		}
	}
	if s := r.Score; s != nil {
		for i := range s.Options {
			o := &s.Options[i]
			o.Part.Text = strings.ToValidUTF8(o.Part.Text, "\uFFFD")
			if err := finite(o.Logprobs); err != nil {
				return err
			}
			if err := finite(o.Unconditional); err != nil {
				return err
			}
			if math.IsNaN(o.Sum) {
				return fmt.Errorf("the backend scored option %q as NaN: %w", o.Part.Text, backend.ErrUnavailable)
			}
			o.Sum = clamp(o.Sum)
		}
	}
	if f := r.Failure; f != nil {
		f.Message = strings.ToValidUTF8(f.Message, "\uFFFD")
	}
	return nil
}

func finite(lps []float64) error {
	for i, v := range lps {
		if math.IsNaN(v) {
			return fmt.Errorf("the backend returned NaN as log-probability of token %d: %w", i, backend.ErrUnavailable)
		}
		lps[i] = clamp(v)
	}
	return nil
}

func clamp(v float64) float64 {
	return max(-math.MaxFloat64, min(math.MaxFloat64, v))
}
