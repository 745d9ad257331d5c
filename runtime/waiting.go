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
	"strings"
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
	if r.cfg.answers != nil || r.cfg.journal != "" {
		return nil
	}
	var errs []error
	r.graph.Walk(func(n *lang.Node) bool {
		if n.Kind == lang.KindWait && n.Wait.Timeout == 0 {
			errs = append(errs, &NodeError{Task: n.ID, Node: n.ID, Pos: n.Pos, Err: errors.New("it waits for an answer, and nobody can give one: run with a journal (coppice approve JOURNAL), with WithAnswers, or give the wait a timeout")})
		}
		return true
	})
	return errors.Join(errs...)
}

func (r *runner) now() time.Time {
	if r.cfg.clock != nil {
		return r.cfg.clock()
	}
	return time.Now()
}

// waitFor carries out a task that waits.
func (r *runner) waitFor(ctx context.Context, t *Task) Result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var over <-chan time.Time
	if after, ends := t.After(); ends {
		if due, ok := r.due[t.ID]; ok { // it began in an earlier process
			after = max(0, due.Sub(r.now()))
		}
		timer := time.NewTimer(after)
		defer timer.Stop()
		over = timer.C
	}
	type answer struct {
		value json.RawMessage
		err   error
	}
	var answers chan answer
	ask := func(f Answerer) {
		a := answer{err: errors.New("the function that answers ended its goroutine")}
		defer func() {
			if v := recover(); v != nil {
				a.err = &PanicError{Value: v}
			}
			answers <- a
		}()
		a.value, a.err = f(ctx, t.ID, t.Wait)
	}
	if t.Wait != nil {
		answers = make(chan answer, 2) // of both below
		if r.cfg.answers != nil {
			go ask(r.cfg.answers)
		}
		if r.cfg.journal != "" {
			go ask(r.left)
		}
	}
	select {
	case <-over:
		return t.Expired()
	case a := <-answers:
		if a.err == nil {
			a.value, a.err = t.Wait.Check(a.value)
		}
		if a.err != nil {
			return Result{Failure: NewFailure(a.err)}
		}
		return Result{Value: a.value}
	case <-ctx.Done():
		return Result{Failure: NewFailure(ctx.Err())}
	}
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

// left waits until somebody has left an answer.
func (r *runner) left(ctx context.Context, task string, w *Wait) (json.RawMessage, error) {
	tick := time.NewTicker(answerPoll)
	defer tick.Stop()
	size := int64(-1)
	for {
		st, err := os.Stat(answersFile(r.cfg.journal))
		if err == nil && st.Size() != size {
			size = st.Size()
			list, err := readAnswers(r.cfg.journal)
			if err != nil {
				return nil, err
			}
			for _, a := range list {
				if a.Run == r.cfg.run && a.Task == task {
					if v, err := w.Check(a.Value); err == nil {
						return v, nil
					}
				}
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

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

func waiting(path string) ([]WaitingTask, string, error) {
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
	r := &runner{cfg: newConfig([]Option{WithJournal(path)})}
	vars, err := r.adopt(c.header)
	if err != nil {
		return nil, "", &JournalError{Path: path, Offset: 0, Err: err}
	}
	m, err := Restore(r.graph, vars, r.cfg.options(), c.results)
	if err != nil {
		return nil, "", &JournalError{Path: path, Offset: -1, Err: err}
	}
	left, err := readAnswers(path)
	if err != nil {
		return nil, "", err
	}
	var list []WaitingTask
	for _, t := range m.Ready() {
		if t.Wait == nil {
			continue
		}
		answered := false
		for _, a := range left {
			answered = answered || a.Run == c.header.Run && a.Task == t.ID
		}
		if !answered {
			list = append(list, WaitingTask{Task: t.ID, Wait: t.Wait, Due: c.due[t.ID]})
		}
	}
	return list, c.header.Run, nil
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
