package lang

import (
	"encoding/json"
	"fmt"
	"reflect"
	"runtime"
)

// In declares an input: a value that each run is given.
func In[T any](p *Program, name string, opts ...InputOption) Var[T] {
	pos := caller()
	t, err := typeOfGo(reflect.TypeFor[T]())
	if err != nil {
		p.b.errorf(pos, "", "input %s: %v", name, err)
	}
	in := Input{Name: name, Type: t, Pos: pos}
	for _, o := range opts {
		if err := o.input(&in); err != nil {
			p.b.errorf(pos, "", "input %s: %v", name, err)
		}
	}
	if p.usable(pos) {
		p.b.inputs = append(p.b.inputs, in)
	}
	v := newVar[T](p, name, t, pos)
	for v.h.scope.parent != nil {
		v.h.scope = v.h.scope.parent // an input can be read everywhere
	}
	return v
}

// Doc says what the program is for; explain and lists of programs show it.
func (p *Program) Doc(text string) { p.b.doc = text }

// System appends a system turn. Parts are strings, numbers, bools and Vars.
func (p *Program) System(parts ...any) { p.turn("system", parts) }

// User appends a user turn.
func (p *Program) User(parts ...any) { p.turn("user", parts) }

// Assistant appends an assistant turn that the program writes itself, e.g. an
// example answer.
func (p *Program) Assistant(parts ...any) { p.turn("assistant", parts) }

// Tool appends a turn with the result of a tool.
func (p *Program) Tool(parts ...any) { p.turn("tool", parts) }

// Text appends text to the open turn of a Role block. Outside of one it is raw
// text, with no chat template around it.
func (p *Program) Text(parts ...any) { p.turn("", parts) }

// Image shows the model a picture in the user's turn of a Role block. Parts make its
// URL: an http or https one, or what [ImageURL] makes of the picture's bytes. It is for
// remote models that see; a program with a picture is refused before its first call
// where they are not.
func (p *Program) Image(parts ...any) {
	pos := caller()
	n := &Node{Kind: KindImage, Image: &ImageNode{}}
	n.Image.URL = p.template(n, pos, parts)
	p.addAt(pos, n)
}

func (p *Program) turn(role string, parts []any) {
	pos := caller()
	n := &Node{Kind: KindText, Text: &TextNode{Role: role}}
	n.Text.Content = p.template(n, pos, parts)
	p.addAt(pos, n)
}

// template makes a template of text parts.
func (p *Program) template(n *Node, pos Pos, parts []any) Template {
	var ps []piece
	for _, part := range parts {
		switch x := part.(type) {
		case string:
			ps = append(ps, piece{text: x})
			continue
		case Template:
			sub, err := x.pieces()
			if err != nil {
				p.b.errorf(pos, "", "%v", err)
			}
			ps = append(ps, sub...)
			continue
		case anyVar:
			if text, ok := p.past(x.handle()); ok {
				ps = append(ps, piece{text: text})
				continue
			}
			p.claim(n, 0, x.handle())
			ps = append(ps, piece{ex: p.use(x.handle(), pos)})
			continue
		}
		v := reflect.ValueOf(part)
		switch v.Kind() {
		case reflect.String, reflect.Bool, reflect.Float32, reflect.Float64,
			reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
			reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			if v.Kind() == reflect.String {
				ps = append(ps, piece{text: v.String()})
				continue
			}
			if x, err := Normalize(part); err == nil {
				ps = append(ps, piece{text: FormatValue(x, Type{})})
				continue
			}
		}
		p.b.errs = append(p.b.errs, &Error{Pos: pos, Msg: fmt.Sprintf("a text cannot hold a %T", part), Hint: "give strings, numbers, bools and Vars"})
	}
	return templateOf(ps)
}

// Role appends one turn that several nodes write: Text, Gen, Select and JSON
// inside of build append to the same turn. Only an assistant's turn can hold
// what a model generates.
func (p *Program) Role(role string, build func(p *Program)) {
	pos := caller()
	body := p.body(pos, p.scope, "the "+role+" block", build)
	p.addAt(pos, &Node{Kind: KindRole, Role: &RoleNode{Role: role, Body: body}})
}

// Gen asks the model for text, in a new assistant turn or in the open one.
func (p *Program) Gen(name string, opts ...GenOption) Var[string] {
	return Gen[string](p, name, opts...)
}

// SelectFrom is Select over options that are known only in the run.
func SelectFrom(at Builder, name string, options Var[[]string], opts ...SelectOption) Var[string] {
	p := at.program()
	pos := caller()
	s := &SelectNode{From: p.use(options.h, pos)}
	for _, o := range opts {
		o.sel(s)
	}
	p.selects(name, s, pos, options.h)
	return newVar[string](p, name, Type{Kind: TypeString}, pos)
}

// JSON asks the model for a value of the Go type T: a struct, but also an int, a
// bool, a list of strings or a time.Time. What it generates matches the schema of
// T, so it always decodes.
func JSON[T any](at Builder, name string, opts ...JSONOption) Var[T] {
	p := at.program()
	pos := caller()
	rt := reflect.TypeFor[T]()
	j := &JSONNode{GoType: rt.String()}
	schema, err := SchemaOf(rt)
	if err != nil {
		p.b.errorf(pos, name, "%v", err)
		schema = json.RawMessage("true")
	}
	j.Schema = schema
	j.Type, _ = TypeOfSchema(schema)
	for _, o := range opts {
		o.json(j)
	}
	n := &Node{Kind: KindJSON, Name: name, JSON: j}
	return ask[T](p, pos, j.asks, n, j.Type)
}

// JSONSchema is JSON with a schema instead of a Go type.
func JSONSchema(at Builder, name string, schema json.RawMessage, opts ...JSONOption) Var[any] {
	p := at.program()
	pos := caller()
	j := &JSONNode{Schema: schema}
	for _, o := range opts {
		o.json(j)
	}
	n := &Node{Kind: KindJSON, Name: name, JSON: j}
	return ask[any](p, pos, j.asks, n, Type{Kind: TypeAny})
}

// When runs then if the condition holds, else the other function, if given. A
// variable that both set can be read afterwards.
func (p *Program) When(cond Cond, then func(p *Program), otherwise ...func(p *Program)) {
	pos := caller()
	n := &Node{Kind: KindWhen, When: &WhenNode{If: p.use(cond.h, pos)}}
	p.claim(n, 0, cond.h)
	n.When.Then = p.body(pos, p.scope, "the body of a When", then)
	if len(otherwise) > 1 {
		p.b.errorf(pos, "", "When takes one function for the other case, not %d", len(otherwise))
	}
	if len(otherwise) > 0 {
		n.When.Else = p.body(pos, p.scope, "the else of a When", otherwise[0])
		if n.When.Else == nil {
			n.When.Else = []*Node{}
		}
	}
	p.addAt(pos, n)
}

// Repeat runs build's body until the condition that build returns holds after
// it, at most max times. A build that returns Cond{} is run exactly max times.
// round counts from 0. What the body sets can be read afterwards.
func (p *Program) Repeat(name string, max int, build func(p *Program, round Var[int]) Cond) {
	pos := caller()
	n := &Node{Kind: KindRepeat, Name: name, Repeat: &RepeatNode{Max: max, Index: name + "_round"}}
	n.Repeat.Body = p.body(pos, p.scope, "the body of "+name, func(in *Program) {
		until := build(in, newVar[int](in, n.Repeat.Index, Type{Kind: TypeInt}, pos))
		if until.h != nil {
			n.Repeat.Until = in.use(until.h, pos)
			p.claim(n, 1, until.h)
		}
	})
	p.addAt(pos, n)
}

// ForEach runs build's body once for each item of a list, in one context, one
// after the other. The result is the list of what build returned; a build that
// returns Var[any]{} gives nothing to it.
func ForEach[E, R any](at Builder, name string, list Var[[]E], build func(p *Program, item Var[E]) Var[R]) Var[[]R] {
	p := at.program()
	pos := caller()
	n := &Node{Kind: KindForEach, Name: name, ForEach: &ForEachNode{Over: p.use(list.h, pos), As: name + "_item"}}
	p.claim(n, 0, list.h)
	n.ForEach.Body = p.body(pos, p.newScope(pos, name), "the body of "+name, func(in *Program) {
		t, _ := typeOfGo(reflect.TypeFor[E]())
		n.ForEach.Yield = p.yield(n, in, pos, build(in, newVar[E](in, n.ForEach.As, t, pos)).h)
	})
	p.addAt(pos, n)
	return listVar[R](p, name, pos)
}

// yield returns the expression of what a body gives to the list of its node.
func (p *Program) yield(n *Node, in *Program, pos Pos, h *handle) Expr {
	if h == nil {
		return ""
	}
	which := 1
	if n.Fork != nil {
		which += len(n.Fork.Arms) // the arm that is being built
	}
	p.claim(n, which, h)
	return in.use(h, pos)
}

func listVar[R any](p *Program, name string, pos Pos) Var[[]R] {
	t, _ := typeOfGo(reflect.TypeFor[R]())
	return newVar[[]R](p, name, ListOf(t), pos)
}

// Let sets a variable to the value of an expression, in parts as in Calc. A Let
// with the name of a variable that is set already gives that variable a new
// value of the same type.
func Let[T any](at Builder, name string, parts ...any) Var[T] {
	p := at.program()
	pos := caller()
	t, err := typeOfGo(reflect.TypeFor[T]())
	if err != nil {
		p.b.errorf(pos, name, "%v", err)
	}
	var h *handle
	if len(parts) == 1 {
		if v, ok := parts[0].(anyVar); ok {
			h = v.handle()
		}
	}
	if h == nil {
		h = combine(t, true, parts...)
	}
	n := &Node{Kind: KindLet, Name: name, Let: &LetNode{Value: p.use(h, pos), Type: t}}
	p.claim(n, 0, h)
	p.addAt(pos, n)
	return newVar[T](p, name, t, pos)
}

// Return ends the program with a value. It is for early ends inside of When;
// the value at the end of a program is the one that its function returns.
func Return[T any](at Builder, v Var[T]) {
	p := at.program()
	pos := caller()
	n := &Node{Kind: KindReturn, Return: &ReturnNode{Value: p.use(v.h, pos)}}
	p.claim(n, 0, v.h)
	p.addAt(pos, n)
}

// Call calls a Go function, func([context.Context,] parameters...) ([result,]
// [error]), in the run. It is registered under name, and so called by graphs
// in files. Arguments are Vars or constants; options may stand among them.
// Call1 to Call3 give a typed result; As gives one here.
func Call(at Builder, name string, fn any, args ...any) Var[any] {
	p := at.program()
	pos := caller()
	var hs []*handle
	var opts []CallOption
	for _, a := range args {
		switch a := a.(type) {
		case CallOption:
			opts = append(opts, a)
		case anyVar:
			hs = append(hs, a.handle())
		default:
			hs = append(hs, Const(a).h)
		}
	}
	call(p, pos, name, fn, hs, opts)
	return newVar[any](p, name, Type{Kind: TypeAny}, pos)
}

// Call1 calls a Go function of one argument.
func Call1[A, R any](at Builder, name string, fn func(ctx Context, a A) (R, error), a Var[A], opts ...CallOption) Var[R] {
	return typedCall[R](at.program(), name, fn, opts, a.h)
}

// Call2 calls a Go function of two arguments.
func Call2[A, B, R any](at Builder, name string, fn func(ctx Context, a A, b B) (R, error), a Var[A], b Var[B], opts ...CallOption) Var[R] {
	return typedCall[R](at.program(), name, fn, opts, a.h, b.h)
}

// Call3 calls a Go function of three arguments.
func Call3[A, B, C, R any](at Builder, name string, fn func(ctx Context, a A, b B, c C) (R, error), a Var[A], b Var[B], c Var[C], opts ...CallOption) Var[R] {
	return typedCall[R](at.program(), name, fn, opts, a.h, b.h, c.h)
}

func typedCall[R any](p *Program, name string, fn any, opts []CallOption, args ...*handle) Var[R] {
	pos := caller()
	call(p, pos, name, fn, args, opts)
	t, _ := typeOfGo(reflect.TypeFor[R]())
	return newVar[R](p, name, t, pos)
}

func call(p *Program, pos Pos, name string, fn any, args []*handle, opts []CallOption) {
	c := &CallNode{Func: name, Result: Type{Kind: TypeAny}}
	n := &Node{Kind: KindCall, Name: name, Call: c}
	for _, o := range opts {
		o.call(c)
	}
	f, err := NewFunc(c.Func, fn)
	if err != nil {
		p.b.errorf(pos, name, "%v", err)
	} else {
		f.Unsafe = f.Unsafe || c.Unsafe
		c.Unsafe = f.Unsafe
		c.Result = f.Result
		p.b.register(pos, f, fn)
		if len(args) != len(f.Params) {
			p.b.errs = append(p.b.errs, &Error{Pos: pos, Node: name, Msg: fmt.Sprintf("function %s takes %d arguments, not %d", f.Name, len(f.Params), len(args)), Hint: "give it " + typeList(f.Params)})
		}
	}
	for i, h := range args {
		ex := p.use(h, pos)
		p.claim(n, 0, h)
		c.Args = append(c.Args, ex)
		if i < len(f.Params) {
			p.b.claims[n] = append(p.b.claims[n], claim{ex: ex, want: f.Params[i], pos: pos})
		}
	}
	p.addAt(pos, n)
}

// register notes a Go function under its name. Two functions under one name are
// an error.
func (b *builder) register(pos Pos, f Func, fn any) {
	id := goFn{typ: reflect.TypeOf(fn)}
	if id.typ.Kind() == reflect.Func {
		id.ptr = reflect.ValueOf(fn).Pointer()
	}
	if b.goFns == nil {
		b.goFns = map[string]goFn{}
	}
	if old, ok := b.goFns[f.Name]; ok && old != id {
		b.errs = append(b.errs, twoFuncs(pos, f.Name, old, id))
		return
	}
	b.goFns[f.Name] = id
	b.funcs[f.Name] = f
}

func twoFuncs(pos Pos, name string, a, b goFn) *Error {
	return &Error{Pos: pos, Node: name, Msg: fmt.Sprintf("two Go functions are registered as %q: %s and %s", name, a.name(), b.name()), Hint: "give one of them another name with FuncName"}
}

func (f goFn) name() string {
	if fn := runtime.FuncForPC(f.ptr); fn != nil {
		return fn.Name()
	}
	return f.typ.String()
}
