package serve

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"net/http"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// uiStream turns the events of a run into those of a protocol whose streams end
// where the run waits for people: who answers gets the rest in a stream of its own.
type uiStream[T any] interface {
	take(runtime.Event) []T
	// interrupt ends a stream where the run waits, after the events taken.
	interrupt() []T
	// again begins a stream that goes on there.
	again() []T
	// broken ends a stream whose run was interrupted, which why says; stops is set if
	// that is because the server does.
	broken(why *Error, stops bool) []T
}

// tell yields what a client is told of a run behind the event numbered from, in the
// pieces in which it becomes known. It ends with the run, where the run waits for
// an answer, and with ctx.
func tell[T any](ctx context.Context, x *run, from uint64, u uiStream[T]) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for e := range x.told(ctx, x.history(), 0) {
			out := u.take(e)
			waits := false
			switch {
			case e.Seq < from: // told in an earlier stream
				continue
			case e.Seq == from:
				out = u.again()
			case e.Kind == runtime.RunWaits && x.waitsAt(e.Seq):
				waits = true
				out = append(out, u.interrupt()...)
			}
			if len(out) > 0 && !yield(out) || waits {
				return
			}
		}
		if !x.broke(ctx) {
			return
		}
		if out := u.broken(x.stopped(), x.suspended()); len(out) > 0 {
			yield(out)
		}
	}
}

// waitsAt reports whether the run still waits for an answer as it did at an event.
func (r *run) waitsAt(seq uint64) bool {
	after, _ := r.history().Since(seq)
	return len(after) == 0 && r.asks.any()
}

// askedAt returns the number of the last event at which the run waited for all of
// some tasks; 0 if it never did.
func (r *run) askedAt(tasks []string) (seq uint64) {
	events, _ := r.history().Since(0)
	open := map[string]bool{}
	for i := range events {
		switch e := &events[i]; e.Kind {
		case runtime.NodeStarted:
			if e.Ask != nil {
				open[e.Task] = true
			}
		case runtime.NodeFinished, runtime.NodeCancelled:
			delete(open, e.Task)
		case runtime.RunWaits:
			if !slices.ContainsFunc(tasks, func(t string) bool { return !open[t] }) {
				seq = e.Seq
			}
		}
	}
	return seq
}

// uiAnswer is what a client says to a question by the id that it was told.
type uiAnswer struct {
	id     string
	value  json.RawMessage
	yes    json.RawMessage // value in another form, where yes or no is asked
	cancel bool            // it gives up
}

// answered carries out what a client says to the questions of one run, and
// returns the run and the event behind which it goes on. A question that somebody
// else has answered meanwhile is no error: the client sees in what follows which
// answer counted.
func (t *tenant) answered(ctx context.Context, program string, answers []uiAnswer) (*run, uint64, error) {
	var (
		x     *run
		tasks []string
	)
	for _, a := range answers {
		id, task, ok := strings.Cut(a.id, ":")
		r, err := t.run(ctx, id)
		switch {
		case err != nil || !ok || r.program != program:
			return nil, 0, notFound("question_not_found", "no run of %s asked %q", clip(program), clip(a.id))
		case x != nil && x != r:
			return nil, 0, badRequest("", "the answers are to be for one run")
		}
		x = r
		tasks = append(tasks, task)
	}
	from := x.askedAt(tasks)
	if from == 0 {
		return nil, 0, notFound("question_not_found", "run %s did not ask %s", x.id, clip(strings.Join(tasks, ", ")))
	}
	for i, a := range answers {
		q := x.asks.waitsFor(tasks[i])
		if a.cancel {
			if q != nil {
				x.cancel(errCancelled)
			}
			continue
		}
		if q != nil && a.yes != nil && yesOrNo(q.Question) {
			a.value = a.yes
		}
		q, v, err := x.asks.claim(tasks[i], a.value)
		if err == nil {
			err = q.give(ctx, v)
		}
		var e *Error
		if err != nil && !(errors.As(err, &e) && e.Status == http.StatusConflict) {
			return nil, 0, err
		}
	}
	return x, from, nil
}

// waitsFor returns the question of a task that waits for an answer, else nil.
func (k *questions) waitsFor(task string) *question {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.open[task]
}

// uiAsks are the open questions of a run as its events tell them.
type uiAsks struct {
	run  string // as the server calls it
	list []runtime.Event
}

func (u *uiAsks) take(e *runtime.Event) {
	switch e.Kind {
	case runtime.RunStarted:
		u.run = e.Run
	case runtime.NodeStarted:
		if e.Ask != nil {
			u.list = append(u.list, *e)
		}
	case runtime.NodeFinished, runtime.NodeCancelled:
		u.list = slices.DeleteFunc(u.list, func(x runtime.Event) bool { return x.Task == e.Task })
	}
}

// id names a question among those of all runs.
func (u *uiAsks) id(task string) string { return u.run + ":" + task }

// yesOrNo reports whether a question is answered by true or false.
func yesOrNo(q *runtime.Question) bool { return q.Type == string(lang.TypeBool) }

// responses reads the "resume" of an AG-UI client: its answers to the interrupts
// of an earlier stream.
func responses(f *fields) (list []uiAnswer) {
	items, _ := f.list("resume")
	for _, raw := range items {
		o := f.within("resume", raw)
		a := uiAnswer{id: o.text("interruptId"), value: o.members["payload"]}
		switch status := o.text("status"); status {
		case "resolved":
			var form struct{ Approved *bool } // as forms for approvals send it
			if json.Unmarshal(a.value, &form) == nil && form.Approved != nil {
				a.yes = truth(*form.Approved)
			}
			if a.value == nil {
				o.fail("payload", "is missing; it is to be the answer")
			}
		case "cancelled":
			a.cancel = true
		default:
			o.fail("status", "is %q; it is to be resolved or cancelled", clip(status))
		}
		list = append(list, a)
	}
	return list
}

// toolAnswers reads the answers that the last message of a chat of the AI SDK
// holds: approvals, and outputs of tools. Older ones are in it too; those count
// that still wait, or the last one if somebody else was faster.
func (t *tenant) toolAnswers(ctx context.Context, messages json.RawMessage) (list []uiAnswer) {
	var all []struct {
		Role  string
		Parts []struct {
			ToolCallID string `json:"toolCallId"`
			State      string
			Approval   *struct{ Approved *bool }
			Output     json.RawMessage
		}
	}
	if json.Unmarshal(messages, &all) != nil || len(all) == 0 || all[len(all)-1].Role != "assistant" {
		return nil
	}
	var late []uiAnswer
	for _, p := range all[len(all)-1].Parts {
		a := uiAnswer{id: p.ToolCallID, value: p.Output}
		switch {
		case p.State == "approval-responded" && p.Approval != nil && p.Approval.Approved != nil:
			a.value = truth(*p.Approval.Approved)
		case p.State == "output-available":
		default:
			continue
		}
		id, task, _ := strings.Cut(p.ToolCallID, ":")
		x, err := t.run(ctx, id)
		switch {
		case err != nil:
		case x.asks.waitsFor(task) != nil:
			list = append(list, a)
		case x.askedAt([]string{task}) > 0:
			late = []uiAnswer{a}
		}
	}
	if list == nil {
		return late
	}
	return list
}

func truth(b bool) json.RawMessage {
	if b {
		return json.RawMessage("true")
	}
	return json.RawMessage("false")
}

// sendUI streams what a protocol makes of a run behind an event.
func sendUI[T any](s *Server, w http.ResponseWriter, r *http.Request, x *run, from uint64, u uiStream[T]) error {
	defer x.watch()()
	out := s.newSSE(w)
	for piece := range tell(r.Context(), x, from, u) {
		for _, v := range piece {
			out.data(v)
		}
		if out.flush() != nil {
			return nil
		}
	}
	return nil
}
