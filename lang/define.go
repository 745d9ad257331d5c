package lang

import (
	"fmt"
	"path"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
)

// Def is a program written in Go whose result is a T. It is safe for
// concurrent use.
type Def[T any] struct {
	name  string
	build func(*Program) Var[T]
	pos   Pos

	once  sync.Once
	built atomic.Pointer[built]
}

// Define declares a program. build is not run before Compile, and then once: it
// makes the graph, it does not run it (a program that others run as a step may be
// built once for each of them). Values that exist only in a run are
// handles of type Var; the handle that build returns is the program's result. A
// program without a result is a Def[any] whose build returns Var[any]{}.
func Define[T any](name string, build func(p *Program) Var[T]) *Def[T] {
	return &Def[T]{name: name, build: build, pos: caller()}
}

// Name returns the program's name.
func (d *Def[T]) Name() string { return d.name }

// Compile builds the graph and checks it. The error, if any, is of type Errors
// and holds everything that is wrong. Later calls return the same graph.
func (d *Def[T]) Compile() (*Graph, error) {
	d.once.Do(func() {
		d.built.Store(d.buildIn(newBuilder(d)))
	})
	x := d.built.Load()
	return x.graph, x.err
}

// Funcs returns the Go functions that the program calls, by name.
func (d *Def[T]) Funcs() Funcs {
	return d.compileOnce().funcs
}

func (d *Def[T]) compile(b *builder) (*Graph, error) {
	p := &Program{b: b, scope: &scope{b: b}, what: "the program"}
	want, err := typeOfGo(reflect.TypeFor[T]())
	if err != nil {
		b.errorf(d.pos, "", "result type of %s: %v", d.name, err)
	}
	b.output = want
	if d.build == nil {
		b.errorf(d.pos, "", "program %s has no build function", d.name)
	} else {
		var out Var[T]
		if b.guard(d.pos, func() { out = d.build(p) }) {
			switch {
			case out.h != nil:
				p.addAt(d.pos, &Node{Kind: KindReturn, Return: &ReturnNode{Value: p.use(out.h, d.pos)}})
			case !want.isAny() && !endsInReturn(p.nodes):
				b.errorf(d.pos, "", "program %s returns no value: return the Var that holds its result", d.name)
			}
		}
	}
	p.closed = true
	g := &Graph{Name: d.name, Doc: b.doc, Inputs: b.inputs, Body: p.nodes, Budget: b.budget}
	c := &analysis{g: g, claims: b.claims, errs: b.errs, output: &want, outputPos: d.pos}
	if err := c.check(); err != nil {
		return nil, err
	}
	return g, nil
}

// endsInReturn reports whether a body always ends the program.
func endsInReturn(body []*Node) bool {
	if len(body) == 0 {
		return false
	}
	last := body[len(body)-1]
	switch {
	case last.Kind == KindReturn:
		return true
	case last.When != nil:
		return endsInReturn(last.When.Then) && endsInReturn(last.When.Else)
	case last.Role != nil:
		return endsInReturn(last.Role.Body)
	}
	return false
}

// builder is the state of one run of a build function.
type builder struct {
	name   string
	doc    string
	budget Budget
	inputs []Input
	funcs  Funcs
	goFns  map[string]goFn // what is registered under each name
	output Type            // of the program
	errs   Errors
	claims map[*Node][]claim

	chain []definable          // the program being built and those that run it
	made  map[definable]*built // programs that were built for it
}

func newBuilder(d definable) *builder {
	return &builder{name: d.Name(), funcs: Funcs{}, claims: map[*Node][]claim{}, chain: []definable{d}, made: map[definable]*built{}}
}

// goFn tells Go functions apart, as far as Go can.
type goFn struct {
	ptr uintptr
	typ reflect.Type
}

// claim is what the Go types of the builder say of an expression. Compile holds
// it against the type that the expression has.
type claim struct {
	ex   Expr
	want Type
	pos  Pos
	body int // read at the end of that body of the node, from 1; 0: at the node
}

func (b *builder) errorf(pos Pos, node, format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	b.errs = append(b.errs, &Error{Pos: pos, Node: node, Msg: msg})
}

// guard runs a function of the user. A panic in it becomes an error.
func (b *builder) guard(pos Pos, f func()) (ok bool) {
	defer func() {
		if r := recover(); r != nil {
			at := panicPos()
			if at.Line == 0 {
				at = pos
			}
			b.errorf(at, "", "the build function panicked: %v", r)
			ok = false
		}
	}()
	f()
	return true
}

// scope is a region of a program whose variables cannot be read from outside:
// the program itself, a branch of a fork, the body of a foreach.
type scope struct {
	b      *builder
	parent *scope
	pos    Pos
	name   string // of the node that opens it
}

// within reports whether s is o or inside of it.
func (s *scope) within(o *scope) bool {
	for ; s != nil; s = s.parent {
		if s == o {
			return true
		}
	}
	return false
}

// Program is a body under construction: the program itself or one of the bodies
// inside of it. Its methods append nodes.
type Program struct {
	b      *builder
	scope  *scope
	what   string
	nodes  []*Node
	closed bool     // its function has returned
	inner  *Program // the body inside of it that is being built
	script *S       // the line of a script that it is, or stands in; nil in Define
}

// Builder is what steps are appended to: the *Program of Define, or the *S of a
// Script.
type Builder interface{ program() *Program }

func (p *Program) program() *Program { return p }

// live reports whether what is appended runs at once.
func (p *Program) live() bool { return p.script != nil && p.script.Program == p }

// Branch is the body of one branch of a fork.
type Branch = Program

// addAt appends a node that was written at pos.
func (p *Program) addAt(pos Pos, n *Node) *Node {
	n.Pos = pos
	if p.live() {
		p.script.last = nil
	}
	if !p.usable(pos) {
		return n
	}
	if !p.live() || p.script.run.plan {
		p.nodes = append(p.nodes, n)
	}
	if p.live() {
		p.script.appended(n)
	}
	return n
}

// usable reports misuse of p: after its end, or while a body inside is built.
func (p *Program) usable(pos Pos) bool {
	switch {
	case p.closed:
		p.b.errs = append(p.b.errs, &Error{Pos: pos, Msg: p.what + " is over, nothing can be added to it", Hint: "add it inside the function that builds it"})
		return false
	case p.inner != nil:
		p.b.errs = append(p.b.errs, &Error{Pos: pos, Msg: "this adds to " + p.what + " while " + p.inner.what + " is being built", Hint: "use the *lang.Program that the inner function is given"})
		return false
	}
	return true
}

// body builds a body inside of p.
func (p *Program) body(pos Pos, s *scope, what string, f func(*Program)) []*Node {
	in := &Program{b: p.b, scope: s, what: what, script: p.script}
	outer := p.inner
	p.inner = in
	p.b.guard(pos, func() { f(in) })
	p.inner = outer
	in.closed = true
	return in.nodes
}

func (p *Program) newScope(pos Pos, name string) *scope {
	return &scope{b: p.b, parent: p.scope, pos: pos, name: name}
}

// caller returns the position of the innermost call from outside of this
// package.
func caller() Pos {
	var pcs [32]uintptr
	return firstOutside(pcs[:runtime.Callers(2, pcs[:])])
}

// panicPos returns the position of the code outside of this package that
// panicked; it is called from a deferred function.
func panicPos() Pos {
	var pcs [64]uintptr
	n := runtime.Callers(2, pcs[:])
	frames := runtime.CallersFrames(pcs[:n])
	panicking := false
	for {
		f, more := frames.Next()
		if f.Function == "runtime.gopanic" {
			panicking = true
		} else if panicking && !strings.HasPrefix(f.Function, "runtime.") {
			if inPackage(f) {
				return Pos{}
			}
			return posOf(f)
		}
		if !more {
			return Pos{}
		}
	}
}

func firstOutside(pcs []uintptr) Pos {
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if !inPackage(f) {
			return posOf(f)
		}
		if !more {
			return Pos{}
		}
	}
}

const packagePath = "github.com/coppice-run/coppice/lang."

func inPackage(f runtime.Frame) bool {
	return strings.HasPrefix(f.Function, packagePath) && !strings.HasSuffix(f.File, "_test.go")
}

// posOf keeps the directory and the name of a file: enough to find it, and the
// same on every machine.
func posOf(f runtime.Frame) Pos {
	file := filepath.ToSlash(f.File)
	return Pos{File: path.Join(path.Base(path.Dir(file)), path.Base(file)), Line: f.Line}
}
