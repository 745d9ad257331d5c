package runtime

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coppice-run/coppice/lang"
)

// Answerer answers a task that waits, in this process: it returns when it knows
// the answer, and at the end of ctx. An answer that does not fit is an error of
// the node.
type Answerer func(ctx context.Context, task string, w *Wait) (json.RawMessage, error)

// WithAnswers asks f for the answers that the program waits for. A run with a
// journal also takes those that [LeaveAnswer] leaves; one with neither has nobody
// to ask.
func WithAnswers(f Answerer) Option { return func(c *config) { c.answers = f } }

// answerPoll is how often a journal's run looks for answers.
const answerPoll = 100 * time.Millisecond

// waits reports whether a task waits rather than works: it is not counted among
// those in flight, so that a thousand approvals hold nobody up.
func (t *Task) waits() bool { return t.Sleep != nil || t.Wait != nil }

// checkWaits refuses a program that would wait for ever for an answer that
// nobody can give.
func (r *runner) checkWaits() error {
	if r.cfg.answered() {
		return nil
	}
	var errs []error
	r.graph.Walk(func(n *lang.Node) bool {
		if err := neverAnswered(n); err != nil {
			errs = append(errs, err)
		}
		return true
	})
	return errors.Join(errs...)
}

// answered reports whether somebody can answer a run.
func (c *config) answered() bool { return c.answers != nil || c.journal != "" }

// neverAnswered is the error of a step that would wait for ever where nobody can
// answer.
func neverAnswered(n *lang.Node) error {
	if n.Kind != lang.KindWait || n.Wait.Timeout > 0 {
		return nil
	}
	return &NodeError{Task: n.ID, Node: n.ID, Pos: n.Pos, Err: errors.New("it waits for an answer, and nobody can give one: run with a journal (coppice approve JOURNAL), with WithAnswers, or give the wait a timeout")}
}

func (r *runner) now() time.Time {
	if r.cfg.clock != nil {
		return r.cfg.clock()
	}
	return time.Now()
}

// absent is a task that waits. Nobody stands by it: a timer, the end of its context,
// or the goroutine that looks for answers ends it, once.
type absent struct {
	mu      sync.Mutex
	over    bool
	timer   *time.Timer // nil: it does not end by itself
	uncall  func() bool // of the end of its context
	dismiss func()      // tells the function that answers that it is over; nil: none was asked
}

// wait begins a task that waits. Only one that asks a function of this process has a
// goroutine, that function's.
func (r *runner) wait(ctx context.Context, f *flight) {
	w := &absent{}
	end := func(res Result) {
		w.mu.Lock()
		was := w.over
		w.over = true
		if w.timer != nil {
			w.timer.Stop()
		}
		w.uncall()
		if w.dismiss != nil {
			w.dismiss()
		}
		w.mu.Unlock()
		if !was {
			f.result = res
			r.hand(f)
		}
	}
	t := &f.task
	w.mu.Lock()
	defer w.mu.Unlock()
	w.uncall = context.AfterFunc(ctx, func() { end(Result{Failure: NewFailure(ctx.Err())}) })
	if after, ends := t.After(); ends {
		if due, ok := r.due[t.ID]; ok { // it began in an earlier process
			after = max(0, due.Sub(r.now()))
		}
		w.timer = time.AfterFunc(after, func() { end(t.Expired()) })
	}
	if t.Wait == nil {
		return
	}
	answered := func(v json.RawMessage, err error) {
		if err == nil {
			v, err = t.Wait.Check(v)
		}
		if err != nil {
			end(Result{Failure: NewFailure(err)})
			return
		}
		end(Result{Value: v})
	}
	if r.cfg.journal != "" {
		r.desk.ask(r.ctx, r.cfg.journal, r.cfg.run, t, answered)
	}
	if r.cfg.answers != nil {
		asking, dismiss := context.WithCancel(ctx)
		w.dismiss = dismiss
		go ask(asking, r.cfg.answers, t, answered)
	}
}

// ask calls a function that answers, whatever it does.
func ask(ctx context.Context, f Answerer, t *Task, answered func(json.RawMessage, error)) {
	var v json.RawMessage
	err := errors.New("the function that answers ended its goroutine")
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p}
		}
		answered(v, err)
	}()
	v, err = f(ctx, t.ID, t.Wait)
}

// desk looks for the answers that are left beside a journal, for all tasks of a run
// that wait for one.
type desk struct {
	mu    sync.Mutex
	tasks map[string]inquiry // nil: nobody looks
	fresh bool               // there are some since the last look
}

type inquiry struct {
	task     *Task
	answered func(json.RawMessage, error)
}

// ask adds a task. One that has ended by itself is forgotten with the run; an answer
// for it does no harm.
func (d *desk) ask(ctx context.Context, journal, run string, t *Task, answered func(json.RawMessage, error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tasks == nil {
		d.tasks = map[string]inquiry{}
		go d.look(ctx, journal, run)
	}
	d.tasks[t.ID] = inquiry{t, answered}
	d.fresh = true
}

// look takes answers to tasks until no task is left.
func (d *desk) look(ctx context.Context, journal, run string) {
	tick := time.NewTicker(answerPoll)
	defer tick.Stop()
	size := int64(-1)
	for {
		st, err := os.Stat(answersFile(journal))
		d.mu.Lock()
		look := err == nil && (d.fresh || st.Size() != size)
		d.fresh = false
		d.mu.Unlock()
		if look {
			size = st.Size()
			if !d.take(journal, run) {
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// take gives tasks their answers and reports whether some are left. What does not
// fit is no answer: another may follow.
func (d *desk) take(journal, run string) bool {
	list, err := readAnswers(journal)
	type given struct {
		to    inquiry
		value json.RawMessage
	}
	var all []given
	d.mu.Lock()
	for _, a := range list {
		to, ok := d.tasks[a.Task]
		if !ok || a.Run != run {
			continue
		}
		if v, err := to.task.Wait.Check(a.Value); err == nil {
			all = append(all, given{to, v})
			delete(d.tasks, a.Task)
		}
	}
	if err != nil {
		for _, to := range d.tasks {
			all = append(all, given{to: to})
		}
		clear(d.tasks)
	}
	left := len(d.tasks) > 0
	if !left {
		d.tasks = nil
	}
	d.mu.Unlock()
	for _, g := range all {
		if g.value != nil {
			g.to.answered(g.value, nil)
		} else {
			g.to.answered(nil, err)
		}
	}
	return left
}

// dueOf returns when a task that waits ends by itself, zero if it does not.
func (r *runner) dueOf(t *Task) time.Time {
	due := r.due[t.ID]
	if after, ends := t.After(); ends && due.IsZero() {
		due = r.now().Add(after)
	}
	return due.UTC()
}

// leftAnswer is a line of the file beside a journal.
type leftAnswer struct {
	Run   string          `json:"run"`
	Task  string          `json:"task"`
	Value json.RawMessage `json:"value"`
	By    string          `json:"by,omitempty"`
	At    time.Time       `json:"at"`
}

// answersFile is where the answers to a journal's run are left: the journal
// itself belongs to the process that runs it.
func answersFile(journal string) string { return journal + ".answers" }

// readAnswers reads the whole lines of the file; what somebody is writing is
// read the next time.
func readAnswers(journal string) ([]leftAnswer, error) {
	f, err := os.Open(answersFile(journal))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var list []leftAnswer
	br := bufio.NewReader(f)
	for {
		line, err := br.ReadBytes('\n')
		if err == io.EOF {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		var a leftAnswer
		if json.Unmarshal(bytes.TrimSpace(line), &a) == nil {
			list = append(list, a)
		}
	}
}

// WaitingTask is a task of a journal's run that waits for an answer.
type WaitingTask struct {
	Task string
	Wait *Wait
	Due  time.Time // when its time is over; zero: never, or not known yet
}

// Waiting returns what a journal's run waits for. It takes no lock: the run may
// be going on.
func Waiting(path string) ([]WaitingTask, error) {
	list, _, err := waiting(path)
	return list, err
}

func waiting(path string) (_ []WaitingTask, run string, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	c, err := readRecords(f)
	if err != nil {
		return nil, "", journalError(path, err)
	}
	if c.header == nil {
		return nil, "", &JournalError{Path: path, Offset: 0, Err: errors.New("there is no complete header: nothing was recorded, so run the program again")}
	}
	asked := c.open()
	if !c.header.Script {
		if asked, err = asksOf(path, c); err != nil {
			return nil, "", err
		}
	}
	left, err := readAnswers(path)
	if err != nil {
		return nil, "", err
	}
	var list []WaitingTask
	for _, w := range asked {
		answered := slices.ContainsFunc(left, func(a leftAnswer) bool { return a.Run == c.header.Run && a.Task == w.Task })
		if !answered {
			list = append(list, w)
		}
	}
	return list, c.header.Run, nil
}

// asksOf returns what the program of a journal waits for.
func asksOf(path string, c *contents) (list []WaitingTask, err error) {
	r := &runner{cfg: newConfig([]Option{WithJournal(path)})}
	vars, err := r.adopt(c.header)
	if err != nil {
		return nil, &JournalError{Path: path, Offset: 0, Err: err}
	}
	m, err := Restore(r.graph, vars, r.cfg.options(), c.results)
	if err != nil {
		return nil, &JournalError{Path: path, Offset: -1, Err: err}
	}
	for _, t := range m.Ready() {
		if t.Wait != nil {
			list = append(list, WaitingTask{Task: t.ID, Wait: t.Wait, Due: c.due[t.ID]})
		}
	}
	return list, nil
}

// open returns what a script asked for and has no answer to. What a policy made
// needless meanwhile may be among it; an answer to that does no harm.
func (c *contents) open() (list []WaitingTask) {
	if c.ended && c.endErr == "" {
		return nil
	}
	for _, w := range c.asks {
		if !slices.ContainsFunc(c.results, func(r Result) bool { return r.Task == w.Task }) {
			list = append(list, w)
		}
	}
	return list
}

// LeaveAnswer answers a task of a journal's run that waits, whether the run is
// going on or will be resumed. The error is ErrUnknownTask if the task does not
// wait. by says who answers, for people.
func LeaveAnswer(path, task string, answer json.RawMessage, by string) error {
	list, run, err := waiting(path)
	if err != nil {
		return err
	}
	var open []string
	for _, w := range list {
		if w.Task != task {
			open = append(open, w.Task)
			continue
		}
		v, err := w.Wait.Check(answer)
		if err != nil {
			return fmt.Errorf("%s: %w", task, err)
		}
		line, err := json.Marshal(leftAnswer{run, task, v, by, time.Now().UTC()})
		if err != nil {
			return err
		}
		f, err := os.OpenFile(answersFile(path), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(append(line, '\n'))
		if err == nil {
			err = f.Sync()
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		return err
	}
	what := "nothing waits"
	if len(open) > 0 {
		what = "waiting: " + strings.Join(open, ", ")
	}
	return fmt.Errorf("%w: %q waits for no answer; %s", ErrUnknownTask, task, what)
}
