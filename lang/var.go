package lang

import (
	"fmt"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Var is a value that exists only in a run: a handle by which a program names
// it. It goes into texts, conditions, lists and calls. A Var knows the body that
// it belongs to; used outside of it, Compile says so with both places.
type Var[T any] struct{ h *handle }

// Cond is a condition.
type Cond = Var[bool]

// handle is what a Var holds, whatever its type.
type handle struct {
	ex     Expr
	simple bool // ex needs no brackets around it
	scope  *scope
	typ    Type
	pos    Pos
	claims []claim // what Go types say of parts of ex
	err    *Error  // the handle is broken; said where it is used

	script *S       // that it was made in; nil in Define
	asked  *asked   // the step of a script that sets it
	uses   []*asked // of a script, that ex reads
}

// anyVar is a Var of any type.
type anyVar interface{ handle() *handle }

func (v Var[T]) handle() *handle { return v.h }

// Expr returns the expression that the handle stands for.
func (v Var[T]) Expr() Expr {
	if v.h == nil {
		return ""
	}
	return v.h.ex
}

// use returns the expression of h for a node at pos in p and checks that h can
// be read there.
func (p *Program) use(h *handle, pos Pos) Expr {
	switch {
	case h == nil:
		p.b.errs = append(p.b.errs, &Error{Pos: pos, Msg: "this Var was never set", Hint: "use one that a call of the builder returned"})
		return "nil"
	case h.err != nil:
		e := *h.err
		if e.Pos == (Pos{}) {
			e.Pos = pos
		}
		p.b.errs = append(p.b.errs, &e)
		return "nil"
	case h.scope == nil: // a constant
	case h.scope.b != p.b:
		p.b.errs = append(p.b.errs, &Error{Pos: pos, Msg: fmt.Sprintf("%s (%s) belongs to program %s", h.ex, h.pos, h.scope.b.name), Hint: "a Var cannot be carried from one program to another: make it an input"})
	case p.script != nil && len(h.uses) > 0:
		return p.useAsked(h, pos)
	case !p.scope.within(h.scope):
		p.b.errs = append(p.b.errs, &Error{Pos: pos,
			Msg:  fmt.Sprintf("%s is set at %s inside %s (%s) and cannot be read outside of it", h.ex, h.pos, h.scope.name, h.scope.pos),
			Hint: "return it from the function of " + h.scope.name + " and use the list that comes back"})
	}
	return h.ex
}

// claim notes what Go says of h's types, to be checked where node n stands.
func (p *Program) claim(n *Node, body int, h *handle) {
	if h == nil {
		return
	}
	for _, c := range h.claims {
		c.body = body
		p.b.claims[n] = append(p.b.claims[n], c)
	}
}

// newVar returns the handle of a variable that a node of p sets.
func newVar[T any](p *Program, name string, t Type, pos Pos) Var[T] {
	h := &handle{ex: Expr(name), simple: true, scope: p.scope, typ: t, pos: pos, script: p.script}
	if p.live() && p.script.last != nil {
		h.asked = p.script.last
		h.uses = []*asked{h.asked}
	}
	return Var[T]{h}
}

// Const returns a handle for a value that is known now.
func Const[T any](x T) Var[T] {
	h := &handle{simple: true, pos: caller()}
	lit, err := literal(x)
	if err != nil {
		h.err = &Error{Pos: h.pos, Msg: err.Error(), Hint: "a constant is a string, number, bool, list or object"}
		return Var[T]{h}
	}
	h.ex = lit
	h.typ, _ = typeOfGo(reflect.TypeFor[T]())
	return Var[T]{h}
}

// literal writes a Go value as an expression.
func literal(x any) (Expr, error) {
	v, err := Normalize(x)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	if err := writeLiteral(&b, v); err != nil {
		return "", err
	}
	return Expr(b.String()), nil
}

func writeLiteral(b *strings.Builder, v any) error {
	switch v := v.(type) {
	case nil:
		b.WriteString("nil")
	case string:
		if !utf8.ValidString(v) {
			return fmt.Errorf("the string %s is not UTF-8", strconv.Quote(clip(v, 40)))
		}
		b.WriteString(exprString(v))
	case float64:
		s := string(appendFloat(nil, v))
		if !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
		b.WriteString(s)
	case []any:
		b.WriteByte('[')
		for i, x := range v {
			if i > 0 {
				b.WriteString(", ")
			}
			if err := writeLiteral(b, x); err != nil {
				return err
			}
		}
		b.WriteByte(']')
	case map[string]any:
		b.WriteByte('{')
		for i, k := range sortedKeys(v) {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(exprString(k))
			b.WriteString(": ")
			if err := writeLiteral(b, v[k]); err != nil {
				return err
			}
		}
		b.WriteByte('}')
	default:
		fmt.Fprint(b, v)
	}
	return nil
}

// exprString writes s as a string of the expression language.
func exprString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch r {
		case '"', '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case '\n':
			b.WriteString(`\n`)
		case '\t':
			b.WriteString(`\t`)
		case '\r':
			b.WriteString(`\r`)
		default:
			if r < ' ' || r == 0x7f {
				fmt.Fprintf(&b, `\u%04x`, r)
			} else {
				b.WriteRune(r)
			}
		}
	}
	b.WriteByte('"')
	return b.String()
}

// combine joins parts to a new expression: strings are source, handles stand
// for themselves. Its scope is the innermost of its parts.
func combine(t Type, simple bool, parts ...any) *handle {
	h := &handle{typ: t, simple: simple, pos: caller()}
	var b strings.Builder
	for _, part := range parts {
		switch part := part.(type) {
		case string:
			b.WriteString(part)
		case Expr:
			b.WriteString(string(part))
		case anyVar:
			ph := part.handle()
			if ph == nil {
				h.err = &Error{Pos: h.pos, Msg: "this Var was never set", Hint: "use one that a call of the builder returned"}
				return h
			}
			if ph.err != nil {
				h.err = ph.err
				return h
			}
			if ph.simple {
				b.WriteString(string(ph.ex))
			} else {
				b.WriteString("(" + string(ph.ex) + ")")
			}
			h.claims = append(h.claims, ph.claims...)
			h.uses = append(h.uses, ph.uses...)
			if ph.script != nil {
				h.script = ph.script
			}
			switch {
			case h.scope == nil || ph.scope != nil && ph.scope.within(h.scope):
				if ph.scope != nil {
					h.scope = ph.scope
				}
			case ph.scope != nil && !h.scope.within(ph.scope):
				h.err = &Error{Pos: h.pos, Msg: fmt.Sprintf("%s (%s) and %s (%s) live in different bodies", ph.ex, ph.pos, b.String(), h.scope.pos), Hint: "return one of them from its branch and use the list that comes back"}
				return h
			}
		default:
			lit, err := literal(part)
			if err != nil {
				h.err = &Error{Pos: h.pos, Msg: err.Error()}
				return h
			}
			b.WriteString(string(lit))
		}
	}
	h.ex = Expr(b.String())
	return h
}

var boolType = Type{Kind: TypeBool}

// Is is the condition that v equals x.
func (v Var[T]) Is(x T) Cond { return compare(v, "==", x) }

// IsNot is the condition that v does not equal x.
func (v Var[T]) IsNot(x T) Cond { return compare(v, "!=", x) }

func compare[T any](v Var[T], op string, x T) Cond {
	lit, err := literal(x)
	if err != nil {
		return Cond{&handle{err: &Error{Pos: caller(), Msg: err.Error()}}}
	}
	return Cond{combine(boolType, false, v, " "+op+" "+string(lit))}
}

// Not is the condition that c does not hold.
func Not(c Cond) Cond { return Cond{combine(boolType, false, "not (", bare(c), ")")} }

// bare returns a Var as parts that take no brackets of their own.
func bare[T any](v Var[T]) Var[T] {
	if v.h == nil {
		return v
	}
	h := *v.h
	h.simple = true
	return Var[T]{&h}
}

// And is the condition that all of cs hold.
func And(cs ...Cond) Cond { return chain(cs, " && ", "true") }

// Or is the condition that one of cs holds.
func Or(cs ...Cond) Cond { return chain(cs, " || ", "false") }

func chain(cs []Cond, op, none string) Cond {
	if len(cs) == 0 {
		return Cond{combine(boolType, true, none)}
	}
	var parts []any
	for i, c := range cs {
		if i > 0 {
			parts = append(parts, op)
		}
		parts = append(parts, c)
	}
	return Cond{combine(boolType, false, parts...)}
}

// Join is the text of a list's elements with sep between them.
func Join[E any](list Var[[]E], sep string) Var[string] {
	return Var[string]{combine(Type{Kind: TypeString}, true, "join(", bare(list), ", ", exprString(sep), ")")}
}

// Len is the number of a list's elements.
func Len[E any](list Var[[]E]) Var[int] {
	return Var[int]{combine(Type{Kind: TypeInt}, true, "len(", bare(list), ")")}
}

// At is the element of a list at an index from 0; negative ones count from the
// end.
func At[E any](list Var[[]E], i int) Var[E] {
	t, _ := typeOfGo(reflect.TypeFor[E]())
	return Var[E]{combine(t, true, list, "["+strconv.Itoa(i)+"]")}
}

// Get is a field of an object, by the name that it has in JSON. Compile checks
// that the object has it and that it is a U.
func Get[U, T any](v Var[T], name string) Var[U] {
	t, err := typeOfGo(reflect.TypeFor[U]())
	access := "." + name
	if !isName(name) || reserved[name] {
		access = "[" + exprString(name) + "]"
	}
	h := combine(t, true, v, access)
	if h.err != nil {
		return Var[U]{h}
	}
	if err != nil {
		h.err = &Error{Pos: h.pos, Msg: fmt.Sprintf("field %s: %v", name, err)}
		return Var[U]{h}
	}
	if obj, err := typeOfGo(reflect.TypeFor[T]()); err == nil && obj.Kind == TypeObject && len(obj.Fields) > 0 {
		f, ok := obj.field(name)
		if !ok {
			var names []string
			for _, f := range obj.Fields {
				names = append(names, f.Name)
			}
			sort.Strings(names)
			h.err = &Error{Pos: h.pos, Msg: fmt.Sprintf("%s has no field %q", reflect.TypeFor[T](), name), Hint: didYouMean(name, names)}
		} else if !f.Type.AssignableTo(t) {
			h.err = &Error{Pos: h.pos, Msg: fmt.Sprintf("field %q of %s is %s, not %s", name, reflect.TypeFor[T](), f.Type, t)}
		}
	}
	return Var[U]{h}
}

// Calc is a value from an expression. Strings and [Expr] among the parts are source
// text, handles stand for their values:
//
//	lang.Calc[int]("len(", looks, ") + 1")
//
// Names of variables may be written in the source too. Compile checks that the
// expression is a T.
func Calc[T any](parts ...any) Var[T] {
	t, err := typeOfGo(reflect.TypeFor[T]())
	h := combine(t, false, parts...)
	if err != nil && h.err == nil {
		h.err = &Error{Pos: h.pos, Msg: err.Error()}
	}
	if h.err == nil {
		h.claims = append(h.claims, claim{ex: h.ex, want: t, pos: h.pos})
	}
	return Var[T]{h}
}

// As is v as another type, e.g. what a function with an untyped result
// returned. Compile checks it as far as types are known.
func As[U, T any](v Var[T]) Var[U] {
	t, err := typeOfGo(reflect.TypeFor[U]())
	if v.h == nil {
		return Var[U]{}
	}
	h := *v.h
	h.typ = t
	if err != nil {
		h.err = &Error{Pos: caller(), Msg: err.Error()}
	}
	h.claims = append(append([]claim(nil), h.claims...), claim{ex: h.ex, want: t, pos: caller()})
	return Var[U]{&h}
}
