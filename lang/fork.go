package lang

import "reflect"

// Items are what a fork makes its branches of: one branch an item.
type Items[E any] struct {
	static []E
	over   *handle
	given  bool
}

// Each are items that are known when the program is written.
func Each[E any](items ...E) Items[E] { return Items[E]{static: items, given: true} }

// Over are the items of a list that is known only in the run.
func Over[E any](list Var[[]E]) Items[E] { return Items[E]{over: list.h} }

// Fork runs one branch for each item, all from the context as it is and all at
// the same time. The result is the list of what the branches return, in the
// order of the items; of their contexts nothing comes back. A build that
// returns Var[any]{} gives nothing to the list.
func Fork[E, R any](at Builder, name string, items Items[E], build func(b *Branch, item Var[E]) Var[R], opts ...ForkOption) Var[[]R] {
	p := at.program()
	pos := caller()
	f := &ForkNode{As: name + "_item"}
	n := &Node{Kind: KindFork, Name: name, Fork: f}
	for _, o := range opts {
		o.fork(f)
	}
	elem, err := typeOfGo(reflect.TypeFor[E]())
	if err != nil {
		p.b.errorf(pos, name, "items: %v", err)
	}
	switch {
	case !items.given:
		f.Over = p.use(items.over, pos)
		p.claim(n, 0, items.over)
	case reflect.TypeFor[E]().Kind() == reflect.String:
		for _, x := range items.static {
			f.Items = append(f.Items, reflect.ValueOf(x).String())
		}
	default:
		lit, err := literal(items.static)
		if err != nil {
			p.b.errorf(pos, name, "items: %v", err)
			lit = "[]"
		}
		if len(items.static) > 0 {
			f.Over = lit
		}
	}
	f.Body = p.body(pos, p.newScope(pos, name), "a branch of "+name, func(b *Program) {
		f.Yield = p.yield(n, b, pos, build(b, newVar[E](b, f.As, elem, pos)).h)
	})
	p.addFork(n, pos)
	return listVar[R](p, name, pos)
}

// Way is one branch of Arms.
type Way[R any] struct {
	name  string
	pos   Pos
	build func(b *Branch) Var[R]
}

// Case is a branch of Arms with a body of its own.
func Case[R any](name string, build func(b *Branch) Var[R]) Way[R] {
	return Way[R]{name, caller(), build}
}

// Arms is a fork whose branches have bodies of their own, each made by Case.
func Arms[R any](at Builder, name string, ways ...Way[R]) Var[[]R] {
	return ArmsWith(at, name, nil, ways...)
}

// ArmsWith is Arms with options.
func ArmsWith[R any](at Builder, name string, opts []ForkOption, ways ...Way[R]) Var[[]R] {
	p := at.program()
	pos := caller()
	f := &ForkNode{}
	n := &Node{Kind: KindFork, Name: name, Fork: f}
	for _, o := range opts {
		o.fork(f)
	}
	f.As = ""
	for _, w := range ways {
		arm := Arm{Name: w.name}
		arm.Body = p.body(w.pos, p.newScope(w.pos, name), "branch "+w.name+" of "+name, func(b *Program) {
			arm.Yield = p.yield(n, b, w.pos, w.build(b).h)
		})
		f.Arms = append(f.Arms, arm)
	}
	p.addFork(n, pos)
	return listVar[R](p, name, pos)
}

// addFork adds a fork, of whose branches the errors may be wanted.
func (p *Program) addFork(n *Node, pos Pos) {
	f := n.Fork
	if f.errsTo != nil {
		f.Errors = n.Name + "_errors"
	}
	p.addAt(pos, n)
	if f.errsTo != nil {
		*f.errsTo = otherVar[string](p, n, f.Errors)
	}
}
