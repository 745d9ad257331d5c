package lang

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"
)

// SleepNode waits for a time. A run that is resumed waits only for what is left
// of it.
type SleepNode struct {
	For time.Duration
}

// WaitNode waits for an answer from outside the program, most often a person's,
// and sets its variable to it.
type WaitNode struct {
	Ask  Template // what is asked; those who answer are shown it
	Type Type     // of the answer
	// Timeout bounds the wait; 0: for ever. When it is over the answer is
	// Default, and with no Default the node fails.
	Timeout time.Duration
	Default json.RawMessage
}

// maxWait bounds sleeps and timeouts, so that no due time overflows.
const maxWait = 100 * 365 * 24 * time.Hour

// Sleep waits for a time.
func (p *Program) Sleep(d time.Duration) {
	pos := caller()
	p.addAt(pos, &Node{Kind: KindSleep, Sleep: &SleepNode{For: d}})
}

// WaitOption is an option of WaitFor.
type WaitOption interface{ wait(*WaitNode) error }

type waitOption func(*WaitNode) error

func (o waitOption) wait(w *WaitNode) error { return o(w) }

// AnswerWithin bounds the wait for an answer.
func AnswerWithin(d time.Duration) WaitOption {
	return waitOption(func(w *WaitNode) error { w.Timeout = d; return nil })
}

// AnswerDefault is the answer if none comes in time.
func AnswerDefault(v any) WaitOption {
	return waitOption(func(w *WaitNode) error {
		x, err := Convert(v, w.Type)
		if err == nil {
			w.Default = json.RawMessage(FormatJSON(x, w.Type))
		}
		return err
	})
}

// WaitFor waits for an answer of the Go type T, e.g. a bool for an approval.
// ask says what is asked, in parts as in User. Options may stand among them.
func WaitFor[T any](at Builder, name string, ask ...any) Var[T] {
	p := at.program()
	pos := caller()
	t, err := typeOfGo(reflect.TypeFor[T]())
	if err != nil {
		p.b.errorf(pos, name, "%v", err)
	}
	w := &WaitNode{Type: t}
	n := &Node{Kind: KindWait, Name: name, Wait: w}
	var parts []any
	for _, a := range ask {
		if o, ok := a.(WaitOption); ok {
			if err := o.wait(w); err != nil {
				p.b.errorf(pos, name, "default: %v", err)
			}
			continue
		}
		parts = append(parts, a)
	}
	w.Ask = p.template(n, pos, parts)
	p.addAt(pos, n)
	return newVar[T](p, name, t, pos)
}

// sleeps and waits check what each node says for itself.
func (c *analysis) sleeps(n *Node) {
	if d := n.Sleep.For; d <= 0 || d > maxWait {
		c.fail(n, fmt.Sprintf("a sleep of %v", d), "say how long, e.g. 90s, 15m or 12h")
	}
}

func (c *analysis) waits(n *Node) {
	w := n.Wait
	c.utf8(n, "ask", string(w.Ask))
	if w.Type.Kind == "" {
		w.Type = Type{Kind: TypeBool}
	}
	if w.Timeout < 0 || w.Timeout > maxWait {
		c.fail(n, fmt.Sprintf("a timeout of %v", w.Timeout), "say how long, e.g. 15m or 12h, or leave it out to wait for ever")
	}
	if w.Default == nil {
		return
	}
	if w.Timeout == 0 {
		c.fail(n, "a default without a timeout is never taken", "add timeout, or remove default")
	}
	v, err := DecodeValue(w.Default)
	if err == nil {
		v, err = Convert(v, w.Type)
	}
	if err != nil {
		c.fail(n, "default: "+err.Error(), "give a default of type "+w.Type.String())
		return
	}
	w.Default = FormatJSON(v, w.Type)
}

func (d *decoder) sleep(f *fields) *SleepNode { return &SleepNode{For: d.span(f, "for")} }

func (d *decoder) wait(f *fields) *WaitNode {
	w := &WaitNode{Ask: Template(f.str("ask")), Type: f.typ("type"), Timeout: d.span(f, "timeout")}
	if t := f.get("default"); t != nil {
		w.Default = t.appendJSON(nil)
	}
	return w
}

// span reads a duration as Go writes it.
func (d *decoder) span(f *fields, key string) time.Duration {
	t := f.get(key)
	if t == nil {
		return 0
	}
	v, err := time.ParseDuration(t.text)
	if t.kind != treeString || err != nil {
		d.errorf(t.line, "write it as in 90s, 15m or 1h30m", "%s: %s is no duration", f.what, key)
		return 0
	}
	return v
}

func (e encoder) sleep(m *tree, s *SleepNode) { m.put("for", strTree(s.For.String())) }

func (e encoder) wait(m *tree, w *WaitNode) {
	e.str(m, "ask", string(w.Ask))
	m.put("type", strTree(w.Type.String()))
	if w.Timeout != 0 {
		m.put("timeout", strTree(w.Timeout.String()))
	}
	if w.Default != nil {
		m.put("default", e.raw(w.Default))
	}
}
