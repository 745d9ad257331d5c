package runtime

import (
	"errors"
	"fmt"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// step runs a branch until it waits, ends or fails.
func (m *Machine) step(b *branch) {
	for b.status == Running && b.task == nil && b.waiting == nil && !m.done {
		f := &b.stack[len(b.stack)-1]
		if f.line != nil {
			if !m.stepLine(b, f) {
				return
			}
			continue
		}
		if f.pc == len(f.body) {
			m.leave(b)
			continue
		}
		n := f.body[f.pc]
		f.pc++
		err := m.count()
		if err == nil {
			err = m.exec(b, n)
		}
		if err != nil {
			m.failAt(b, n, err)
		}
	}
}

// count counts an executed node, or a round.
func (m *Machine) count() error {
	if m.nodes++; m.nodes > m.opt.Limits.Nodes {
		return fmt.Errorf("%w: more than %d nodes executed", ErrLimit, m.opt.Limits.Nodes)
	}
	return nil
}

// failAt fails a branch at a node of the body on top of its stack.
func (m *Machine) failAt(b *branch, n *lang.Node, err error) {
	m.fail(b, &NodeError{Task: b.instance(n), Node: n.ID, Pos: n.Pos, Err: err})
}

// exec runs a node, or starts what it waits for.
func (m *Machine) exec(b *branch, n *lang.Node) error {
	switch n.Kind {
	case lang.KindText:
		return m.addText(b, n.Text)
	case lang.KindImage:
		return m.addImage(b, n.Image)
	case lang.KindRole:
		b.prompt.push(backend.Turn{Role: backend.Role(n.Role.Role), Open: true})
		b.pristine = false
		b.enter(frame{body: n.Role.Body, node: n})
		return nil
	case lang.KindLet:
		v, err := m.eval(b, n.Let.Value)
		if err != nil {
			return err
		}
		b.set(n.Name, v)
		return nil
	case lang.KindGen, lang.KindJSON:
		return m.startAsk(b, n, newTrial(b.instance(n), n))
	case lang.KindSelect:
		return m.startSelect(b, n)
	case lang.KindCall:
		return m.startCall(b, n)
	case lang.KindSleep:
		m.startSleep(b, n)
		return nil
	case lang.KindWait:
		return m.startWait(b, n)
	case lang.KindFork:
		return m.startFork(b, n)
	case lang.KindRun:
		return m.startRun(b, n)
	case lang.KindWhen:
		v, err := m.eval(b, n.When.If)
		if err != nil {
			return err
		}
		yes, ok := v.(bool)
		if !ok {
			return fmt.Errorf("the condition %q is %s, not a bool", n.When.If, kindOf(v))
		}
		body := n.When.Then
		if !yes {
			body = n.When.Else
		}
		if len(body) > 0 {
			b.enter(frame{body: body, node: n})
		}
		return nil
	case lang.KindRepeat:
		return m.startRepeat(b, n)
	case lang.KindForEach:
		return m.startForEach(b, n)
	case lang.KindReturn:
		return m.ret(b, n)
	}
	return fmt.Errorf("unknown kind of node %q: the program is newer than this runtime", n.Kind)
}

// eval evaluates an expression over the variables that b sees.
func (m *Machine) eval(b *branch, e lang.Expr) (any, error) {
	v, ok := lookup(string(e), b.vars)
	if !ok {
		var err error
		if v, err = b.graph.Eval(e, b.vars); err != nil {
			return nil, err
		}
	}
	if ok {
		return v, nil // nothing new was made
	}
	return v, m.spend(weight(v, m.opt.Limits.Text))
}

// weight returns how large a value is written out, in bytes; it stops counting
// past most. Lists that share their parts, which grow as fast as they like
// while they cost nothing, are counted as often as they are seen.
func weight(v any, most int) int {
	n := 8
	switch v := v.(type) {
	case string:
		n += len(v)
	case []any:
		for _, x := range v {
			if n += weight(x, most-n); n > most {
				break
			}
		}
	case map[string]any:
		for k, x := range v {
			if n += len(k) + weight(x, most-n); n > most {
				break
			}
		}
	}
	return n
}

// spend counts the bytes of a value or text that was made.
func (m *Machine) spend(n int) error {
	limit := m.opt.Limits.Text
	if n > limit {
		return fmt.Errorf("%w: a value or text of more than %d bytes", ErrLimit, limit)
	}
	if m.bytes += n; m.bytes > 16*limit {
		return fmt.Errorf("%w: the run made more than %d bytes of values and texts", ErrLimit, 16*limit)
	}
	return nil
}

// lookup returns the value of an expression that only names a variable, or a
// field of one: a.b.c. The very value comes back, not a copy, so that the order
// of its keys is not lost. It returns false for all other expressions.
func lookup(e string, vars map[string]any) (any, bool) {
	name, rest, more := strings.Cut(e, ".")
	v, ok := vars[name]
	for ok && more {
		name, rest, more = strings.Cut(rest, ".")
		var object map[string]any
		if object, ok = v.(map[string]any); ok {
			v, ok = object[name]
		}
	}
	return v, ok
}

func (m *Machine) addText(b *branch, n *lang.TextNode) error {
	s, err := b.graph.Expand(n.Content, b.vars)
	if err != nil {
		return err
	}
	if err := m.spend(len(s)); err != nil {
		return err
	}
	b.pristine = false
	if n.Role == "" {
		b.prompt.text(s)
		return nil
	}
	b.prompt.push(backend.Turn{Role: backend.Role(n.Role), Parts: []backend.Part{{Text: s}}})
	return nil
}

func (m *Machine) addImage(b *branch, n *lang.ImageNode) error {
	url, err := b.graph.Expand(n.URL, b.vars)
	if err != nil {
		return err
	}
	if err := m.spend(len(url)); err != nil {
		return err
	}
	scheme, rest, _ := strings.Cut(url, ":")
	if ok := scheme == "data" && strings.HasPrefix(rest, "image/"); !ok && (scheme != "http" && scheme != "https" || !strings.HasPrefix(rest, "//")) {
		return fmt.Errorf("%.40q is no picture: give an http, https or data URL of one", url)
	}
	b.pristine = false
	t := b.prompt.own()
	t.Parts = append(t.Parts, backend.Part{Image: url})
	return nil
}

// leave ends the body on top of the stack: the next round of a loop, the node
// after a body, or the end of the branch.
func (m *Machine) leave(b *branch) {
	f := &b.stack[len(b.stack)-1]
	if f.node == nil {
		m.leaveBranch(b)
		return
	}
	var err error
	n := f.node
	switch n.Kind {
	case lang.KindRole:
		b.prompt.close()
		b.stack = b.stack[:len(b.stack)-1]
	case lang.KindRepeat:
		err = m.nextRound(b, f)
	case lang.KindForEach:
		err = m.nextItem(b, f)
	default:
		b.stack = b.stack[:len(b.stack)-1]
	}
	if err != nil {
		m.fail(b, &NodeError{Task: f.loop, Node: n.ID, Pos: n.Pos, Err: err})
	}
}

// leaveBranch ends a branch at the end of its body.
func (m *Machine) leaveBranch(b *branch) {
	if b.fork == nil {
		m.finish(nil, nil)
		return
	}
	if b.root {
		m.finishProgram(b, nil)
		return
	}
	fn := b.fork.node
	yield := fn.Fork.Yield
	if len(fn.Fork.Arms) > 0 {
		yield = fn.Fork.Arms[b.index].Yield
	}
	if yield != "" {
		v, err := m.eval(b, yield)
		if err != nil {
			m.fail(b, &NodeError{Task: b.id, Node: fn.ID, Pos: fn.Pos, Err: err})
			return
		}
		b.value = v
	}
	b.status = Finished
	b.stack = nil
	m.changes.Branches = append(m.changes.Branches, BranchChange{ID: b.id, Label: b.label, Status: Finished})
	m.joined(b.fork, b)
}

func (m *Machine) startRepeat(b *branch, n *lang.Node) error {
	r := n.Repeat
	if r.Max <= 0 {
		return nil
	}
	f := frame{body: r.Body, node: n, enclosing: n.ID, loop: b.instance(n)}
	f.instance = indexed(f.loop, 0)
	if r.Index != "" {
		b.set(r.Index, 0)
	}
	b.enter(f)
	return nil
}

// nextRound starts the next round of a repeat, or ends it.
func (m *Machine) nextRound(b *branch, f *frame) error {
	r := f.node.Repeat
	stop := f.round+1 >= r.Max
	if !stop && r.Until != "" {
		v, err := m.eval(b, r.Until)
		if err != nil {
			return err
		}
		yes, ok := v.(bool)
		if !ok {
			return fmt.Errorf("the condition %q is %s, not a bool", r.Until, kindOf(v))
		}
		stop = yes
	}
	if stop {
		b.unset(r.Index)
		b.stack = b.stack[:len(b.stack)-1]
		return nil
	}
	if err := m.count(); err != nil {
		return err
	}
	f.round++
	f.pc = 0
	f.instance = indexed(f.loop, f.round)
	if r.Index != "" {
		b.set(r.Index, f.round)
	}
	return nil
}

func (m *Machine) startForEach(b *branch, n *lang.Node) error {
	v, err := m.eval(b, n.ForEach.Over)
	if err != nil {
		return err
	}
	items, err := list(n.ForEach.Over, v)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		b.set(n.Name, []any{})
		return nil
	}
	f := frame{body: n.ForEach.Body, node: n, enclosing: n.ID, loop: b.instance(n), items: items, outer: len(b.own)}
	f.instance = indexed(f.loop, 0)
	if n.ForEach.Yield != "" {
		f.yields = make([]any, 0, len(items))
	}
	b.set(n.ForEach.As, items[0])
	b.enter(f)
	return nil
}

// nextItem ends a round of a foreach and starts the next, or ends the loop.
func (m *Machine) nextItem(b *branch, f *frame) error {
	n := f.node
	if n.ForEach.Yield != "" {
		v, err := m.eval(b, n.ForEach.Yield)
		if err != nil {
			return err
		}
		f.yields = append(f.yields, v)
	} else {
		f.yields = append(f.yields, nil)
	}
	if f.round++; f.round == len(f.items) {
		yields := f.yields
		b.forget(f.outer)
		b.stack = b.stack[:len(b.stack)-1]
		if err := m.spend(weight(yields, m.opt.Limits.Text)); err != nil {
			return err
		}
		b.set(n.Name, yields)
		return nil
	}
	if err := m.count(); err != nil {
		return err
	}
	f.pc = 0
	f.instance = indexed(f.loop, f.round)
	b.set(n.ForEach.As, f.items[f.round])
	return nil
}

// ret ends the program.
func (m *Machine) ret(b *branch, n *lang.Node) error {
	if b.fork != nil && !b.root {
		return errors.New("return inside a branch: a branch gives its value by yield")
	}
	v, err := m.eval(b, n.Return.Value)
	if err != nil {
		return err
	}
	if b.root {
		return m.returned(b, v)
	}
	text, err := m.encode(v, m.graph.Output)
	if err != nil {
		return err
	}
	m.finish(v, text)
	return nil
}

// list returns v as a list.
func list(e lang.Expr, v any) ([]any, error) {
	l, ok := v.([]any)
	if !ok {
		if v == nil {
			return nil, fmt.Errorf("%q is null, not a list; write %s ?? [] where none is meant then", e, e)
		}
		return nil, fmt.Errorf("%q is %s, not a list", e, kindOf(v))
	}
	return l, nil
}

// kindOf names the kind of a value for a message.
func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a bool"
	case int:
		return "an int"
	case float64:
		return "a float"
	case string:
		return "a string"
	case []any:
		return "a list"
	case map[string]any:
		return "an object"
	}
	return fmt.Sprintf("a %T", v)
}
