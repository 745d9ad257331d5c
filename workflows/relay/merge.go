package relay

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/coppice-run/coppice/runtime"
)

// Merge makes one stream of events out of those that workers tell of a run. It is
// safe for concurrent use; the sink is called in order.
type Merge struct {
	mu      sync.Mutex
	sink    runtime.Sink // nil when the run is over
	whole   bool
	passes  bool // to another Merge, which wants the tokens of a node's end
	seq     uint64
	last    runtime.EventKind
	told    map[string]bool
	done    map[string]bool // tasks that are over
	texts   map[string]*text
	prompts map[string]int             // tokens read of the prompts of tasks that write nothing yet
	held    map[string][]runtime.Event // of branches that nobody told of yet
	order   []string                   // of held
}

// text is what was told of a task that writes.
type text struct {
	bytes  []byte
	tokens int // -1: some text was told without its tokens
	blind  int // bytes at the beginning that are not known any more
}

// NewMerge returns a stream that goes to sink and begins behind told, which are the
// events that were told of the run before, if any. A nil sink is that of a run which is
// over. With whole, texts are made up from
// the results of their nodes where their tokens were not told, and an event waits until
// the branch that it is of was told.
func NewMerge(sink runtime.Sink, whole bool, told []runtime.Event) *Merge {
	m := &Merge{
		sink: sink, whole: whole,
		told: map[string]bool{}, done: map[string]bool{}, texts: map[string]*text{}, prompts: map[string]int{}, held: map[string][]runtime.Event{},
	}
	if sink == nil {
		m.end()
	}
	switch sink.(type) {
	case *outbox, *Following:
		m.passes = true
	}
	for i := range told {
		if m.sink == nil {
			break
		}
		m.was(&told[i])
	}
	return m
}

// Over reports whether the end of the run was told.
func (m *Merge) Over() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sink == nil
}

// End ends the stream as it is.
func (m *Merge) End() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.end()
}

func (m *Merge) end() {
	m.sink, m.told, m.done, m.texts, m.prompts, m.held, m.order = nil, nil, nil, nil, nil, nil, nil
}

// was takes in an event that an earlier process told.
func (m *Merge) was(e *runtime.Event) {
	m.seq, m.last = e.Seq, e.Kind
	switch e.Kind {
	case runtime.TextDelta:
		t := m.text(e.Task)
		gap := e.Offset - len(t.bytes)
		if gap > 0 { // older deltas are not kept for ever
			t.bytes = append(t.bytes, make([]byte, gap)...)
			t.blind = len(t.bytes)
		}
		if e.Offset == len(t.bytes) {
			t.add(e.Text, len(e.Tokens), gap <= 0 && tokened(e))
		}
	case runtime.Dropped:
		for task, s := range e.Texts {
			*m.text(task) = text{bytes: []byte(s), tokens: -1}
		}
	case runtime.NodeRetried:
		delete(m.texts, e.Task)
		m.told[once(e)] = true
	case runtime.NodeFinished, runtime.NodeCancelled:
		m.close(e.Task)
	case runtime.RunFinished, runtime.RunFailed:
		m.end()
	default:
		m.told[once(e)] = true
	}
}

// once names what happens once in a run.
func once(e *runtime.Event) string {
	switch e.Kind {
	case runtime.NodeRetried:
		return fmt.Sprint(e.Kind, " ", e.Attempt, " ", e.Task)
	case runtime.NodeRefused:
		return fmt.Sprint(e.Kind, " ", e.Task, " ", e.Error)
	}
	return fmt.Sprint(e.Kind, " ", e.Task, " ", e.Branch)
}

func (m *Merge) text(task string) *text {
	t := m.texts[task]
	if t == nil {
		t = &text{}
		m.texts[task] = t
	}
	return t
}

// add notes what was told: s, whose tokens are known or not.
func (t *text) add(s string, tokens int, known bool) {
	t.bytes = append(t.bytes, s...)
	switch {
	case !known:
		t.tokens = -1
	case t.tokens >= 0:
		t.tokens += tokens
	}
}

// tokened reports whether a piece of text comes with its tokens.
func tokened(e *runtime.Event) bool { return e.Text == "" || len(e.Tokens) > 0 }

func (m *Merge) close(task string) {
	delete(m.texts, task)
	delete(m.prompts, task)
	m.done[task] = true
}

// Tell takes an event that somebody tells. What each tells comes in order; of a text,
// Offset and Done say how many bytes and tokens are before the piece.
func (m *Merge) Tell(e runtime.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tell(e)
}

func (m *Merge) tell(e runtime.Event) {
	if m.sink == nil {
		return
	}
	if e.Task != "" && m.done[e.Task] {
		return
	}
	begins := e.Kind == runtime.BranchStarted
	if m.whole && !begins && e.Branch != "" && !m.told[fmt.Sprint(runtime.BranchStarted, "  ", e.Branch)] {
		if m.held[e.Branch] == nil {
			m.order = append(m.order, e.Branch)
		}
		m.held[e.Branch] = append(m.held[e.Branch], e)
		return
	}
	switch e.Kind {
	case runtime.TextDelta:
		m.delta(e)
	case runtime.PromptProgress:
		if m.texts[e.Task] == nil && e.Done > m.prompts[e.Task] {
			m.prompts[e.Task] = e.Done
			m.emit(e)
		}
	case runtime.NodeRetried:
		if e.Attempt == 0 { // whether the text is another will be seen
			break
		}
		if k := once(&e); !m.told[k] {
			m.told[k] = true
			delete(m.texts, e.Task)
			delete(m.prompts, e.Task)
			m.emit(e)
		}
	case runtime.NodeFinished:
		m.finish(&e)
		m.close(e.Task)
		m.emit(e)
	case runtime.NodeCancelled:
		m.close(e.Task)
		m.emit(e)
	case runtime.UsageSoFar, runtime.Dropped:
		m.emit(e)
	case runtime.RunWaits:
		if m.last != runtime.RunWaits {
			m.emit(e)
		}
	case runtime.RunFinished, runtime.RunFailed:
		for len(m.order) > 0 { // their branches are not told of any more
			m.release(m.order[0])
		}
		m.emit(e)
		m.end()
	default:
		if k := once(&e); !m.told[k] {
			m.told[k] = true
			m.emit(e)
		}
		if begins {
			m.release(e.Branch)
		}
	}
}

// release tells what waited for a branch.
func (m *Merge) release(branch string) {
	events := m.held[branch]
	if events == nil {
		return
	}
	delete(m.held, branch)
	m.order = slices.DeleteFunc(m.order, func(b string) bool { return b == branch })
	m.told[fmt.Sprint(runtime.BranchStarted, "  ", branch)] = true
	for _, e := range events {
		m.tell(e)
	}
}

func (m *Merge) emit(e runtime.Event) {
	if m.whole {
		e.Restored = 0 // for whom the events are, it happens now
	}
	m.seq++
	m.last = e.Kind
	e.Seq = m.seq
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	m.sink.Emit(e)
}

// delta tells what is new of a piece of text. Its Done is the number of tokens before
// it, which readers are not told.
func (m *Merge) delta(e runtime.Event) {
	t := m.text(e.Task)
	have := len(t.bytes) - e.Offset // bytes of the piece that were told
	counted := t.tokens >= 0 && tokened(&e)
	if have < 0 || e.Offset < 0 || counted && e.Done > t.tokens {
		return // what is before it is missing: the end of the node has the rest
	}
	blind := max(0, t.blind-e.Offset)
	over := min(have, len(e.Text))
	if blind < over && !bytes.Equal(t.bytes[e.Offset+blind:e.Offset+over], []byte(e.Text[blind:over])) {
		m.anew(e)
		return
	}
	switch {
	case have > len(e.Text), have > 0 && have == len(e.Text) && (!counted || e.Done+len(e.Tokens) <= t.tokens):
		return // it was told
	case counted:
		e.Tokens = e.Tokens[min(len(e.Tokens), t.tokens-e.Done):]
	case have > 0:
		e.Tokens = nil
	}
	e.Text = e.Text[over:]
	if e.Text == "" && len(e.Tokens) == 0 {
		return
	}
	m.write(e, counted)
}

// write tells the next piece of a text. known says that so are its tokens.
func (m *Merge) write(e runtime.Event, known bool) {
	t := m.text(e.Task)
	e.Offset, e.Done = len(t.bytes), 0
	if m.passes {
		e.Done = max(0, t.tokens)
	}
	t.add(e.Text, len(e.Tokens), known)
	m.emit(e)
}

// anew is for a piece of another text than the one that was told.
func (m *Merge) anew(e runtime.Event) {
	t := m.text(e.Task)
	before := t.bytes[:e.Offset]
	m.void(&e)
	if t.blind > 0 { // the beginning is not known any more: the end of the node has it
		return
	}
	whole := len(before) == 0 && tokened(&e)
	if !whole {
		e.Tokens = nil
	}
	e.Text = string(before) + e.Text
	m.write(e, whole)
}

// void tells that what a task wrote so far does not count.
func (m *Merge) void(e *runtime.Event) {
	delete(m.texts, e.Task)
	m.emit(runtime.Event{
		Kind: runtime.NodeRetried, Time: e.Time, Task: e.Task, Node: e.Node, Branch: e.Branch, Does: e.Does,
		Error: "an earlier attempt was lost, and the model begins anew",
	})
}

// finish tells what is missing of the text of a node that generated it, and takes the
// tokens out of its end.
func (m *Merge) finish(e *runtime.Event) {
	tokens := e.Tokens
	if !m.passes {
		e.Tokens = nil
	}
	if !m.whole || e.Finish == "" || e.Error != "" {
		return
	}
	t := m.text(e.Task)
	blind := min(t.blind, len(e.Text), len(t.bytes))
	told, all := t.bytes[blind:], []byte(e.Text)[blind:]
	if bytes.Equal(told, all) { // it is all there
		return
	}
	rest := runtime.Event{Kind: runtime.TextDelta, Time: e.Time, Task: e.Task, Node: e.Node, Branch: e.Branch}
	known := t.tokens >= 0 && t.tokens <= len(tokens)
	switch {
	case !bytes.HasPrefix(all, told):
		m.void(e)
		rest.Text, rest.Tokens, known = e.Text, tokens, len(tokens) > 0
	case known:
		rest.Text, rest.Tokens = e.Text[len(t.bytes):], tokens[t.tokens:]
	default:
		rest.Text = e.Text[len(t.bytes):]
	}
	m.write(rest, known)
}
