package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// questions are what a run asks people. It learns of them by the run's events and
// is the one who answers the run.
type questions struct {
	mu   sync.Mutex
	open map[string]*question // by task
	list []*question          // the open ones in the order they were asked
	over map[string]string    // tasks that no longer wait, to what happened
}

// question is a task that waits for an answer.
type question struct {
	*runtime.Question
	task, node, branch string
	since              time.Time
	taken              bool                 // an answer is on its way
	answer             chan json.RawMessage // holds the one answer
	done               chan struct{}        // closed when the task is over; final is set then
	final              json.RawMessage      // nil if it has no value
}

// waitingTask is a question as clients see it.
type waitingTask struct {
	Task   string    `json:"task"`
	Node   string    `json:"node"`
	Branch string    `json:"branch,omitempty"`
	Since  time.Time `json:"since"`
	*runtime.Question
}

func newQuestions() *questions {
	return &questions{open: map[string]*question{}, over: map[string]string{}}
}

// event takes in what happened to a task that waits.
func (k *questions) event(e *runtime.Event) {
	switch {
	case e.Kind == runtime.RunFinished, e.Kind == runtime.RunFailed:
		k.end()
		return
	case e.Does != string(lang.KindWait):
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch e.Kind {
	case runtime.NodeStarted:
		if e.Ask == nil { // told by a worker that does not say what is asked
			return
		}
		q := &question{
			Question: e.Ask, task: e.Task, node: e.Node, branch: e.Branch, since: e.Time,
			answer: make(chan json.RawMessage, 1), done: make(chan struct{}),
		}
		k.open[e.Task] = q
		k.list = append(k.list, q)
	case runtime.NodeFinished:
		how := "was answered already"
		if e.Error != "" {
			how = "is over: " + e.Error
		}
		k.close(e.Task, e.Value, how)
	case runtime.NodeCancelled:
		k.close(e.Task, nil, "was cancelled")
	}
}

// close ends the wait of a task. k.mu is held.
func (k *questions) close(task string, final json.RawMessage, how string) {
	k.over[task] = how
	if q := k.open[task]; q != nil {
		delete(k.open, task)
		k.list = slices.DeleteFunc(k.list, func(x *question) bool { return x == q })
		q.final = final
		close(q.done)
	}
}

// end is for the end of the run: nothing waits any more.
func (k *questions) end() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, q := range slices.Clone(k.list) {
		k.close(q.task, nil, "waits no more: the run is over")
	}
}

// any reports whether something waits for an answer.
func (k *questions) any() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.list) > 0
}

// waiting lists what waits for an answer, oldest first.
func (k *questions) waiting() (list []waitingTask) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, q := range k.list {
		list = append(list, waitingTask{q.task, q.node, q.branch, q.since, q.Question})
	}
	return list
}

// ask is the runtime.Answerer of the run. The event of the task came before it.
func (k *questions) ask(ctx context.Context, task string, _ *runtime.Wait) (json.RawMessage, error) {
	k.mu.Lock()
	q := k.open[task]
	k.mu.Unlock()
	if q == nil {
		return nil, fmt.Errorf("nobody was told that %s waits", task)
	}
	select {
	case v := <-q.answer:
		return v, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// give hands a question its checked answer, and returns when the run has taken it.
func (q *question) give(ctx context.Context, v json.RawMessage) error {
	q.answer <- v
	select {
	case <-q.done:
	case <-ctx.Done(): // the answer is given all the same
		return ctx.Err()
	}
	if !bytes.Equal(q.final, v) {
		return conflict(q.task, "was no longer waiting when the answer came")
	}
	return nil
}

func conflict(task, how string) *Error {
	return &Error{Status: http.StatusConflict, Type: typeInvalid, Code: "not_waiting", Param: "task", Message: fmt.Sprintf("%s %s", clip(task), how)}
}

// claim finds the question of a task and checks the answer to it. Who gets it is
// the only one who may give an answer; others get an error with status 409.
func (k *questions) claim(task string, answer json.RawMessage) (*question, json.RawMessage, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if task == "" && len(k.list) == 1 {
		task = k.list[0].task
	}
	q := k.open[task]
	if q == nil {
		if how, ok := k.over[task]; ok {
			return nil, nil, conflict(task, how)
		}
		waits := make([]string, len(k.list))
		for i, q := range k.list {
			waits[i] = q.task
		}
		switch {
		case len(waits) == 0:
			return nil, nil, &Error{Status: http.StatusConflict, Type: typeInvalid, Code: "not_waiting", Message: "the run waits for no answer now"}
		case task == "":
			return nil, nil, badRequest("task", "say which task is answered: %s", strings.Join(waits, ", "))
		}
		return nil, nil, notFound("task_not_found", "no task %q waits; these do: %s", clip(task), strings.Join(waits, ", "))
	}
	v, err := q.Check(answer)
	switch {
	case err != nil:
		return nil, nil, badRequest("answer", "%s: %v", task, err)
	case q.taken:
		return nil, nil, conflict(task, "was answered already")
	}
	q.taken = true
	return q, v, nil
}

// readAnswer reads what a client answers: {"task", "answer"}. The task may be left
// out if only one waits.
func readAnswer(f *fields) (task string, answer json.RawMessage, err error) {
	task = f.text("task")
	answer, given := f.members["answer"] // null is an answer too
	if !given {
		f.fail("answer", "is missing; it is to be the answer as JSON")
	}
	return task, answer, f.err()
}

// approve is POST /v1/runs/{id}/approve. It answers when the run has the answer.
func (s *Server) approve(w http.ResponseWriter, r *http.Request) error {
	x, err := tenantOf(r.Context()).run(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	task, answer, err := readAnswer(f)
	if err != nil {
		return err
	}
	q, v, err := x.asks.claim(task, answer)
	if err != nil {
		return err
	}
	if err := q.give(r.Context(), v); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, x.info(true))
	return nil
}

// workClock bounds how long a run works, and how long it only waits at a stretch.
type workClock struct {
	over func()
	most time.Duration // of waiting at a stretch

	mu    sync.Mutex
	left  time.Duration // of work
	since time.Time     // when the work that goes on began
	waits bool
	timer *time.Timer
}

func newWorkClock(work, waiting time.Duration, over func()) *workClock {
	c := &workClock{over: over, most: waiting, left: work, since: time.Now()}
	c.timer = time.AfterFunc(work, over)
	return c
}

// set says whether the run only waits from now on.
func (c *workClock) set(waits bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waits == waits || c.timer == nil {
		return
	}
	c.timer.Stop()
	c.waits = waits
	if waits {
		c.left -= time.Since(c.since)
		c.timer = time.AfterFunc(c.most, c.over)
		return
	}
	c.since = time.Now()
	c.timer = time.AfterFunc(max(0, c.left), c.over)
}

func (c *workClock) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timer.Stop()
	c.timer = nil
}
