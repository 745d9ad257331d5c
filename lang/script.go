package lang

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"reflect"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"
)

// ScriptDef is a program whose steps are not known before the run: Go code that
// asks the model, looks at the answer and decides what comes next. It is safe
// for concurrent use.
type ScriptDef[In, Out any] struct {
	name string
	body func(s *S, in In) (Out, error)
	pos  Pos
}

// Script declares a program as a Go function that is run, in each run, from its
// beginning to its end. What it asks becomes the same nodes as those of Define,
// with the same ids, so that journals, events and costs are the same.
//
//	var Solve = lang.Script("solve", func(s *lang.S, in Task) (string, error) {
//		s.User(in.Question)
//		for range s.Turns("attempts", 5) {
//			step, err := lang.JSON[Step](s, "step").Get()
//			if err != nil {
//				return "", err
//			}
//			if step.Done {
//				return step.Answer, nil
//			}
//			s.User("Go on.")
//		}
//		return "", errors.New("no answer in five attempts")
//	})
//
// To ask does not wait: it appends a node and returns a Var. Only [Var.Get] and
// [Map] wait, and only they return errors; the first error of an S sticks, so
// that every later step of it is nothing and returns that error. A Var that was
// not read can stand in later texts.
//
// A script is resumed by running it again with the recorded results, so it must
// do the same each time: no clock but s.Now, no random numbers but s.Rand, no
// files, network or other effects but in [Do] and the Call functions, no
// goroutines but the arms of Map, and nothing that depends on the order of a Go
// map. One coroutine of a script runs at a time, so its arms need no locks.
//
// If In is a struct, its fields are the inputs of the program by their JSON
// names; otherwise there is one, named input.
func Script[In, Out any](name string, body func(s *S, in In) (Out, error)) *ScriptDef[In, Out] {
	return &ScriptDef[In, Out]{name: name, body: body, pos: caller()}
}

// Scripted is a script of any type.
type Scripted interface {
	// Name returns the script's name.
	Name() string
	// Open returns a graph with the inputs of the script, its type, and no steps
	// yet, for one run.
	Open() (*Graph, error)
	// Play runs the script on the graph that Open returned and the values of its
	// inputs. It returns when the body has returned; the result goes to w.
	Play(w Seams, g *Graph, inputs map[string]any)
}

// Name returns the script's name.
func (d *ScriptDef[In, Out]) Name() string { return d.name }

// soleInput is the input of a script that takes no struct.
const soleInput = "input"

// Open implements Scripted. Its errors say what is wrong with the types.
func (d *ScriptDef[In, Out]) Open() (*Graph, error) {
	var es Errors
	g := &Graph{Name: d.name}
	in, err := typeOfGo(reflect.TypeFor[In]())
	if err != nil {
		es = append(es, &Error{Pos: d.pos, Msg: "input type of " + d.name + ": " + err.Error()})
	}
	if d.body == nil {
		es = append(es, &Error{Pos: d.pos, Msg: "script " + d.name + " has no function"})
	}
	if d.structured() {
		for _, f := range in.Fields {
			x := Input{Name: f.Name, Type: f.Type, Pos: d.pos}
			if f.Optional {
				x.Default = []byte("null")
				x.Type = Type{Kind: TypeAny}
			}
			g.Inputs = append(g.Inputs, x)
		}
	} else {
		g.Inputs = []Input{{Name: soleInput, Type: in, Pos: d.pos}}
	}
	out, err := typeOfGo(reflect.TypeFor[Out]())
	if err != nil {
		es = append(es, &Error{Pos: d.pos, Msg: "result type of " + d.name + ": " + err.Error()})
	}
	c := &analysis{g: g, errs: es, outputPos: d.pos}
	if err := c.check(); err != nil {
		return nil, err
	}
	g.Output = out
	return g, nil
}

// structured reports whether the fields of In are inputs of their own.
func (d *ScriptDef[In, Out]) structured() bool {
	t := reflect.TypeFor[In]()
	return t.Kind() == reflect.Struct && !ownForm(t)
}

// Args returns in as the inputs of the script.
func (d *ScriptDef[In, Out]) Args(in In) (Args, error) {
	v, err := Normalize(in)
	if err != nil {
		return nil, fmt.Errorf("input of %s: %w", d.name, err)
	}
	if m, ok := v.(map[string]any); ok && d.structured() {
		return Args(m), nil
	}
	return Args{soleInput: v}, nil
}

// Play implements Scripted.
func (d *ScriptDef[In, Out]) Play(w Seams, g *Graph, inputs map[string]any) {
	s := newScriptRun(w, g).root(d.pos)
	if p, ok := w.(*planner); ok {
		p.begin(s)
	}
	s.perform(func() (any, error) {
		var in In
		var v any
		if !d.structured() {
			v = inputs[soleInput]
		} else { // an input that was left out is not null
			given := make(map[string]any, len(inputs))
			for k, x := range inputs {
				if x != nil {
					given[k] = x
				}
			}
			v = given
		}
		if err := DecodeInto(v, &in); err != nil {
			return nil, fmt.Errorf("input of %s: %w", d.name, err)
		}
		return d.body(s, in)
	})
}

// scriptRun is one run of a script.
type scriptRun struct {
	b *builder
	g *Graph
	c *analysis
	// current are the seams of the coroutine that runs.
	current Seams
	plan    bool // nothing is asked of a model
}

func newScriptRun(w Seams, g *Graph) *scriptRun {
	b := &builder{name: g.Name, funcs: Funcs{}, claims: map[*Node][]claim{}}
	return &scriptRun{b: b, g: g, c: &analysis{g: g, claims: b.claims, defs: map[string][]definition{}}, current: w}
}

// root returns the S of the trunk.
func (r *scriptRun) root(pos Pos) *S {
	s := &S{run: r, seams: r.current, latest: map[string]*asked{}, used: map[string]int{}}
	s.Program = &Program{b: r.b, scope: &scope{b: r.b}, what: "the script", script: s}
	s.flow = &flow{vars: map[string]*variable{}}
	for _, in := range r.g.Inputs {
		s.flow.vars[in.Name] = &variable{typ: in.Type, pos: in.Pos, fixed: true}
	}
	s.pos = pos
	return s
}

// S is one line of a script in the middle of its run: the trunk, or an arm of a
// [Map]. It has a context that grows. It is a Program whose steps run while it
// is being written, so all that appends to a Program appends to an S too; the
// bodies of When, Repeat, ForEach and Fork are then built at once and run later,
// as in Define. Go's if and for, Turns and Map are what scripts use instead.
type S struct {
	*Program
	run   *scriptRun
	seams Seams
	up    *S     // the line that it is an arm of
	line  string // instance id; empty for the trunk
	pos   Pos
	flow  *flow
	err   error
	dead  int // steps since the error
	ended bool
	over  Answer // to the end of the line

	returned bool // its function has
	draws    uint64
	latest   map[string]*asked // by variable
	last     *asked
	trace    uint64

	// Where nodes get their ids from: path and inst are those of the innermost
	// Map or Turns, used counts the names in it.
	path, inst string
	prefix     string // of ids, in role blocks longer than path
	used       map[string]int

	arms   map[*Node][]*S // of Maps; only where nothing is asked of a model
	rounds map[*Node]int  // of Turns; likewise
}

// asked is a step that was asked for.
type asked struct {
	s      *S
	name   string
	node   *Node
	typ    Type
	answer Answer
	other  bool // name is one of the node's Others
	value  any
	known  bool // value was read by the script
}

// errScriptStop unwinds a script that goes on asking after its error.
var errScriptStop = errors.New("the script went on after its error")

// maxDead is how often a script may ask after its error before it is ended.
const maxDead = 10_000

// Err returns the first error of this line: it is final, and all that is asked
// of it afterwards does nothing and returns it.
func (s *S) Err() error { return s.err }

// Budget is an error: that of a script belongs to its run (runtime.WithBudget).
func (s *S) Budget(Budget) {
	s.fail(&Error{Pos: caller(), Msg: "Budget in a script", Hint: "give it to the run: runtime.WithBudget"})
}

// Now returns the time of the run: that of the latest result, or of the start. It
// is the same when the run is replayed.
func (s *S) Now() time.Time { return s.seams.Now() }

// Rand returns a source of random numbers that are the same in each run with the
// same seed. Every call returns another source.
func (s *S) Rand() *rand.Rand {
	s.draws++
	var buf [16]byte
	binary.LittleEndian.PutUint64(buf[:], s.seams.Seed())
	binary.LittleEndian.PutUint64(buf[8:], s.draws)
	h := xxhash.New()
	h.Write(buf[:])
	h.WriteString(s.line)
	return rand.New(rand.NewPCG(s.seams.Seed(), h.Sum64()))
}

// Turns returns the numbers from 0 to max-1 for a loop whose rounds have ids of
// their own, name[0] and so on, as those of Repeat. It ends early when the line
// has an error.
func (s *S) Turns(name string, max int) iter.Seq[int] {
	pos := caller()
	return func(yield func(int) bool) {
		n := &Node{Kind: KindRepeat, Name: name, Pos: pos, Repeat: &RepeatNode{Max: max}}
		if !s.usable(pos) || !s.begin(n) || !s.check(n, func(c *analysis) { c.limits([]*Node{n}) }) {
			return
		}
		path, inst, prefix, used, nodes := s.path, s.inst, s.prefix, s.used, s.nodes
		loop := instanceOf(n.ID, path, inst)
		looped, begun := s.flow.loop, 0
		defer func() {
			if s.run.plan && begun > 0 {
				if s.rounds == nil {
					s.rounds = map[*Node]int{}
				}
				n.Repeat.Body, s.rounds[n], s.nodes = s.nodes, begun, append(nodes, n)
			}
			s.path, s.inst, s.prefix, s.used, s.flow.loop = path, inst, prefix, used, looped
		}()
		s.flow.loop = looped || max > 1
		for i := range max {
			if s.err != nil {
				return
			}
			s.path, s.inst, s.prefix, s.used = n.ID, loop+"["+strconv.Itoa(i)+"]", n.ID+"/", map[string]int{}
			if begun++; s.run.plan {
				s.nodes = nil
			}
			if !yield(i) {
				return
			}
		}
	}
}

// Role appends one turn that several steps write, as Program.Role does, but the
// steps run while build runs: it may Get what it asked for.
func (s *S) Role(role string, build func(s *S)) {
	pos := caller()
	n := &Node{Kind: KindRole, Pos: pos, Role: &RoleNode{Role: role}}
	if !s.usable(pos) || !s.begin(n) {
		return
	}
	if s.flow.inRole {
		s.fail(&Error{Pos: pos, Node: n.ID, Msg: "a " + role + " turn inside the open " + s.flow.role + " turn", Hint: "end the block first"})
		return
	}
	if !s.check(n, func(c *analysis) {
		if role == "" {
			c.fail(n, "a role block without a role", "give it one of "+list(roles))
		}
		c.turn(n, role, s.flow)
	}) {
		return
	}
	s.flow.inRole, s.flow.role = true, role
	s.send(Ask{Kind: AskOpen, Node: n})
	prefix, used, nodes := s.prefix, s.used, s.nodes
	s.prefix, s.used, s.nodes = n.ID+"/", map[string]int{}, nil
	defer func() {
		n.Role.Body, s.nodes = s.nodes, append(nodes, n)
		s.prefix, s.used = prefix, used
		s.flow.inRole, s.flow.role = false, ""
	}()
	build(s)
	s.send(Ask{Kind: AskClose, Node: n})
}

// instanceOf turns the id of a node below path into an instance id.
func instanceOf(id, path, inst string) string {
	if path == "" {
		return id
	}
	return inst + id[len(path):]
}

// stuck counts what a script asks for after its error, and ends one that does
// not stop.
func (s *S) stuck(err error) error {
	if s.dead++; s.dead > maxDead {
		panic(errScriptStop)
	}
	return err
}

// begin gives a node its id and reports whether the line goes on.
func (s *S) begin(n *Node) bool {
	s.last = nil
	if s.err != nil {
		s.stuck(nil)
		return false
	}
	base := n.Name
	if base == "" {
		base = n.anonymous()
	}
	s.used[base]++
	n.ID = s.prefix + base
	if k := s.used[base]; k > 1 {
		n.ID += "#" + strconv.Itoa(k)
	}
	return true
}

// check runs checks of a node. What they and the building of the node found is
// the error of the line.
func (s *S) check(n *Node, f func(c *analysis)) bool {
	c := s.run.c
	c.errs = nil
	f(c)
	errs := append(s.run.b.errs, c.errs...)
	s.run.b.errs, c.errs = nil, nil
	if len(errs) > 0 {
		for _, e := range errs {
			if e.Node == "" {
				e.Node = n.ID
			}
		}
		s.fail(errs.err())
		return false
	}
	return true
}

// fail ends the line with an error.
func (s *S) fail(err error) {
	if s.err == nil {
		s.err = err
		s.end(nil, err)
	}
}

// appended runs a node that was appended to the line.
func (s *S) appended(n *Node) {
	if !s.begin(n) {
		return
	}
	c := s.run.c
	if !s.check(n, func(c *analysis) {
		if n.Kind == KindReturn {
			c.fail(n, "Return in a script", "use Go's return")
			return
		}
		for _, b := range n.bodies() {
			p := n.ID + "/"
			if b.name != "" {
				p += b.name + "/"
			}
			c.assignIDs(b.nodes, p)
		}
		c.limits([]*Node{n})
		s.asksAgain(n)
		clear(c.defs)
		c.define([]*Node{n}, s.flow.region())
		e := c.node(n, s.flow)
		n.Reads, n.Writes = setOf(e.reads), setOf(e.writes)
		if s.flow.dead {
			c.fail(n, "Return in a script", "use Go's return")
		}
		if len(c.errs) == 0 {
			c.place([]*Node{n})
		}
	}) {
		return
	}
	delete(c.claims, n)
	a := Ask{Kind: AskNode, Node: n}
	walkBody([]*Node{n}, func(n *Node) bool {
		if n.Call != nil {
			a.give(s.run.b.funcs, n.Call.Func)
		}
		checks, _ := n.Checks()
		for _, c := range checks {
			a.give(s.run.b.funcs, c.Func)
		}
		return true
	})
	s.ask(a)
}

// asksAgain lets a node set variables anew that one before it has set: a loop of Go's
// comes here more than once.
func (s *S) asksAgain(n *Node) {
	if n.Kind == KindLet {
		return
	}
	for _, name := range append(n.Others(), n.Name) {
		if old := s.flow.vars[name]; old != nil && !old.fixed {
			delete(s.flow.vars, name)
		}
	}
}

// give adds a function of funcs, if there is one of that name.
func (a *Ask) give(funcs Funcs, name string) {
	f, ok := funcs[name]
	if !ok {
		return
	}
	if a.Funcs == nil {
		a.Funcs = Funcs{}
	}
	a.Funcs[name] = f
}

// ask sends a node that sets variables.
func (s *S) ask(a Ask) {
	answer := s.send(a)
	set := func(name string, other bool) *asked {
		x := &asked{s: s, name: name, node: a.Node, answer: answer, other: other}
		if v := s.flow.vars[name]; v != nil {
			x.typ = v.typ
		}
		s.latest[name] = x
		return x
	}
	switch n := a.Node; n.Kind {
	case KindWhen, KindRepeat, KindRole, KindText, KindImage:
		s.last = &asked{s: s, name: n.Name, node: n, answer: answer}
	default:
		s.last = set(n.Name, false)
		for _, name := range n.Others() {
			set(name, true)
		}
	}
}

// send hands a step to the world.
func (s *S) send(a Ask) Answer {
	if s.ended {
		return nil
	}
	a.Line, a.Enclosing, a.Instance = s.line, s.path, s.inst
	a.InRole = s.flow.inRole
	s.trace = traceOf(s.trace, a)
	a.Trace = s.trace
	s.ended = a.Kind == AskEnd
	return s.run.current.Ask(a)
}

// traceOf adds a step to the hash of those before it.
func traceOf(trace uint64, a Ask) uint64 {
	h := xxhash.New()
	var buf [9]byte
	binary.LittleEndian.PutUint64(buf[:], trace)
	buf[8] = byte(a.Kind)
	h.Write(buf[:])
	if a.Node != nil {
		h.WriteString(a.Node.ID)
		h.Write(encoder{}.step(a.Node).appendJSON(nil))
		walkBody([]*Node{a.Node}, func(n *Node) bool {
			if n.Run != nil && n.Run.def != nil {
				h.WriteString(n.Run.def.Hash())
			}
			return n.Run == nil
		})
	}
	return h.Sum64()
}

// perform runs the function of the line to its end.
func (s *S) perform(f func() (any, error)) {
	defer func() {
		r := recover()
		s.closed, s.returned = true, true
		if r != nil && r != any(errScriptStop) {
			at := panicPos()
			if at.Line == 0 {
				at = s.pos
			}
			s.fail(&Error{Pos: at, Msg: fmt.Sprintf("%s panicked: %v", s.what, r)})
		}
	}()
	v, err := f()
	if err == nil {
		err = s.err
	}
	if err == nil && len(s.run.b.errs) > 0 {
		err = s.run.b.errs.err()
		s.run.b.errs = nil
	}
	var value any
	if err == nil {
		if value, err = Normalize(v); err != nil {
			err = &Error{Pos: s.pos, Msg: "the result of " + s.what + ": " + err.Error()}
		}
	}
	s.closed = true
	s.end(value, err)
}

// end ends the line, unless it has ended.
func (s *S) end(v any, err error) {
	if err != nil && s.err == nil {
		s.err = err
	}
	if a := s.send(Ask{Kind: AskEnd, Value: v, Err: err}); a != nil {
		s.over = a
	}
}

// await waits in the coroutine that runs.
func (r *scriptRun) await(ready func() bool) error {
	if ready() {
		return nil
	}
	w := r.current
	err := w.Await(ready)
	r.current = w
	return err
}
