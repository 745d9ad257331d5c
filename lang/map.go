package lang

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
)

// Outcome is what became of one arm of a Try.
type Outcome[R any] struct {
	Value R
	Err   error // why there is no value
}

// Map runs an arm for each item, all at the same time and from the context as it
// is, and waits for them. The result has what they return, in the order of the
// items; of their contexts nothing comes back. Its error, if any, names each arm
// that failed; options say what failures do, as in Fork: with Collect a failed
// arm has the zero value of R in the list, with First and Quorum only what
// succeeded is in it and the rest is cancelled.
func Map[E, R any](s *S, name string, items []E, arm func(b *S, item E) (R, error), opts ...ForkOption) ([]R, error) {
	list, _, err := mapItems(s, caller(), name, items, arm, opts)
	if err != nil {
		return nil, err
	}
	out := make([]R, len(list))
	for i, v := range list {
		if v == nil {
			continue
		}
		if err := DecodeInto(v, &out[i]); err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", name, i, err)
		}
	}
	return out, nil
}

// Try is Map with the policy Collect and the errors of the arms.
func Try[E, R any](s *S, name string, items []E, arm func(b *S, item E) (R, error)) ([]Outcome[R], error) {
	list, lines, err := mapItems(s, caller(), name, items, arm, []ForkOption{Collect()})
	if err != nil {
		return nil, err
	}
	out := make([]Outcome[R], len(list))
	for i, v := range list {
		if out[i].Err = lines[i].failure(); out[i].Err != nil || v == nil {
			continue
		}
		if err := DecodeInto(v, &out[i].Value); err != nil {
			return nil, fmt.Errorf("%s[%d]: %w", name, i, err)
		}
	}
	return out, nil
}

// failure returns why a line that is over gave no value.
func (s *S) failure() error {
	if s.err == nil && s.over != nil {
		_, err := s.over.Value()
		return err
	}
	return s.err
}

// mapItems runs the arms and returns the list of the fork's variable.
func mapItems[E, R any](s *S, pos Pos, name string, items []E, arm func(b *S, item E) (R, error), opts []ForkOption) ([]any, []*S, error) {
	f := &ForkNode{As: name + "_item"}
	n := &Node{Kind: KindFork, Name: name, Pos: pos, Fork: f}
	for _, o := range opts {
		o.fork(f)
	}
	if !s.usable(pos) {
		return nil, nil, s.run.b.errs.err()
	}
	if !s.begin(n) {
		return nil, nil, s.err
	}
	vals := make([]any, len(items))
	elem, err := typeOfGo(reflect.TypeFor[R]())
	item, ierr := typeOfGo(reflect.TypeFor[E]())
	if err == nil {
		err = ierr
	}
	for i := range items {
		if err != nil {
			break
		}
		vals[i], err = Normalize(items[i])
	}
	if err != nil {
		s.fail(&Error{Pos: pos, Node: n.ID, Msg: err.Error()})
		return nil, nil, s.err
	}
	if reflect.TypeFor[E]().Kind() == reflect.String && len(items) > 0 {
		for _, v := range vals {
			x, _ := v.(string)
			f.Items = append(f.Items, x)
		}
	} else if f.Over, err = literal(vals); err != nil {
		s.fail(&Error{Pos: pos, Node: n.ID, Msg: err.Error()})
		return nil, nil, s.err
	}
	if f.errsTo != nil {
		f.Errors = name + "_errors"
	}
	f.Elem = elem
	if f.Join.Kind == "collect" {
		f.Elem = Type{Kind: TypeAny}
	}
	if !s.check(n, func(c *analysis) {
		if s.flow.inRole {
			c.fail(n, "a Map inside the open "+s.flow.role+" turn", "end the block first")
		}
		c.needsName(n)
		c.forks(n, f)
		s.asksAgain(n)
		c.set(n, name, ListOf(f.Elem), s.flow, newEffects())
		if f.Errors != "" {
			c.set(n, f.Errors, ListOf(Type{Kind: TypeString}), s.flow, newEffects())
		}
		if f.As != "" {
			c.bind(n, f.As, item, s.flow.inside(n))
		}
	}) {
		return nil, nil, s.err
	}
	s.ask(Ask{Kind: AskNode, Node: n, Fork: true, Items: vals})
	all := s.last
	if f.errsTo != nil {
		*f.errsTo = otherVar[string](s.Program, n, f.Errors)
	}
	inst := instanceOf(n.ID, s.path, s.inst)
	lines := make([]*S, len(items))
	for i := range items {
		lines[i] = s.arm(n, inst, i, item)
		s.run.spawn(lines[i], func(b *S) (any, error) { return arm(b, items[i]) })
	}
	if s.run.plan {
		if s.arms == nil {
			s.arms = map[*Node][]*S{}
		}
		s.arms[n] = lines
		s.nodes = append(s.nodes, n)
	}
	v, err := all.wait()
	// Arms that a policy made needless end before Map does.
	if werr := s.run.await(func() bool { return allReturned(lines) }); err == nil {
		err = werr
	}
	if err != nil {
		return nil, nil, err
	}
	list, ok := v.([]any)
	if !ok {
		return nil, nil, fmt.Errorf("%s: the arms gave no list", n.ID)
	}
	return list, lines, nil
}

func allReturned(lines []*S) bool {
	for _, b := range lines {
		if !b.returned {
			return false
		}
	}
	return true
}

// arm returns the line of arm i of the fork n.
func (s *S) arm(n *Node, inst string, i int, item Type) *S {
	id := inst + "[" + strconv.Itoa(i) + "]"
	b := &S{run: s.run, seams: s.seams, up: s, line: id, pos: n.Pos, trace: s.trace,
		latest: map[string]*asked{}, used: map[string]int{},
		path: n.ID, inst: id, prefix: n.ID + "/"}
	b.Program = &Program{b: s.run.b, scope: s.newScope(n.Pos, n.Name), what: "arm " + strconv.Itoa(i) + " of " + n.Name, script: b}
	b.flow = s.flow.inside(n)
	delete(b.flow.vars, n.Name)
	b.flow.vars[n.Fork.As] = &variable{typ: item, pos: n.Pos, region: n, fixed: true}
	return b
}

// spawn runs a line in a coroutine of its own.
func (r *scriptRun) spawn(s *S, f func(*S) (any, error)) {
	r.current.Spawn(func(w Seams) {
		before := r.current
		r.current, s.seams = w, w
		s.perform(func() (any, error) { return f(s) })
		r.current = before // of a world that ran it at once
	})
}

// Do calls a Go function of this script, once: in a replay its recorded result
// is taken. It is the place for effects and for all that is not the same each
// time. The function runs beside the script, so it must not use its S.
func Do[T any](s *S, name string, fn func(ctx Context) (T, error), opts ...CallOption) Var[T] {
	pos := caller()
	c := &CallNode{Func: name}
	for _, o := range opts {
		o.call(c)
	}
	n := &Node{Kind: KindCall, Name: name, Call: c}
	if fn == nil {
		s.run.b.errs = append(s.run.b.errs, &Error{Pos: pos, Node: name, Msg: "Do of no function", Hint: "give it one"})
	}
	f, err := NewFunc(c.Func, func(ctx context.Context) (T, error) {
		if fn == nil {
			var none T
			return none, errors.New("no function")
		}
		return fn(ctx)
	})
	if err != nil {
		s.run.b.errorf(pos, name, "%v", err)
	}
	c.Result = f.Result
	f.Unsafe = c.Unsafe
	s.run.b.funcs[c.Func] = f
	s.addAt(pos, n)
	return newVar[T](s.Program, name, f.Result, pos)
}
