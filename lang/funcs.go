package lang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
)

// Func is a Go function that programs can call by its name. Arguments and
// result have the form of variables: string, int, float64, bool, nil, []any and
// map[string]any.
type Func struct {
	Name   string
	Params []Type
	Result Type
	// Unsafe marks a function that must not run twice for one node.
	Unsafe bool
	Call   func(ctx context.Context, args []any) (any, error)
}

// Funcs are functions by name.
type Funcs map[string]Func

// Names returns the names of the functions, sorted.
func (fs Funcs) Names() []string {
	m := make(map[string]any, len(fs))
	for n := range fs {
		m[n] = nil
	}
	return sortedKeys(m)
}

var (
	contextType = reflect.TypeFor[context.Context]()
	errorType   = reflect.TypeFor[error]()
)

// ErrPanic: a function panicked.
var ErrPanic = errors.New("panic")

type panicError struct {
	name  string
	value any
}

func (e *panicError) Error() string { return fmt.Sprintf("func %s panicked: %v", e.name, e.value) }

func (e *panicError) Is(target error) bool { return target == ErrPanic }

// NewFunc makes a Func of a Go function
//
//	func([context.Context,] parameters...) ([result,] [error])
//
// whose parameters and result are types that JSON can hold. A panic inside of
// fn becomes its error.
func NewFunc(name string, fn any) (Func, error) {
	if f, ok := fn.(Func); ok {
		if f.Call == nil {
			return Func{}, fmt.Errorf("func %s: Call is nil", name)
		}
		f.Name = name
		return f, nil
	}
	v := reflect.ValueOf(fn)
	if fn == nil || v.Kind() != reflect.Func {
		return Func{}, fmt.Errorf("func %s: want a Go function, got %T", name, fn)
	}
	t := v.Type()
	if v.IsNil() {
		return Func{}, fmt.Errorf("func %s: the function is nil", name)
	}
	if t.IsVariadic() {
		return Func{}, fmt.Errorf("func %s: variadic functions cannot be called: take a slice", name)
	}
	f := Func{Name: name, Result: Type{Kind: TypeAny}}
	withContext := t.NumIn() > 0 && t.In(0) == contextType
	var params []reflect.Type
	for i := 0; i < t.NumIn(); i++ {
		if i == 0 && withContext {
			continue
		}
		pt, err := typeOfGo(t.In(i))
		if err != nil {
			return Func{}, fmt.Errorf("func %s: parameter %d: %w", name, i+1, err)
		}
		params = append(params, t.In(i))
		f.Params = append(f.Params, pt)
	}
	outs := t.NumOut()
	withError := outs > 0 && t.Out(outs-1) == errorType
	if withError {
		outs--
	}
	if outs > 1 {
		return Func{}, fmt.Errorf("func %s: want one result and an error, got %s", name, t)
	}
	if outs == 1 {
		rt, err := typeOfGo(t.Out(0))
		if err != nil {
			return Func{}, fmt.Errorf("func %s: result: %w", name, err)
		}
		f.Result = rt
	}
	f.Call = func(ctx context.Context, args []any) (result any, err error) {
		defer func() {
			if r := recover(); r != nil {
				result, err = nil, &panicError{name, r}
			}
		}()
		if len(args) != len(params) {
			return nil, fmt.Errorf("func %s wants %d arguments, got %d", name, len(params), len(args))
		}
		in := make([]reflect.Value, 0, len(args)+1)
		if withContext {
			in = append(in, reflect.ValueOf(ctx))
		}
		for i, a := range args {
			x, err := goValue(a, params[i])
			if err != nil {
				return nil, fmt.Errorf("func %s: argument %d: %w", name, i+1, err)
			}
			in = append(in, x)
		}
		out := v.Call(in)
		if withError {
			if e, _ := out[len(out)-1].Interface().(error); e != nil {
				return nil, e
			}
		}
		if outs == 0 {
			return nil, nil
		}
		return Normalize(out[0].Interface())
	}
	return f, nil
}

// goValue makes a Go value of type t of a variable's value.
func goValue(v any, t reflect.Type) (reflect.Value, error) {
	if v != nil {
		if rv := reflect.ValueOf(v); rv.Type() == t || t.Kind() == reflect.Interface && rv.Type().Implements(t) {
			return rv.Convert(t), nil
		}
	}
	out := reflect.New(t)
	if err := json.Unmarshal(FormatJSON(v, Type{}), out.Interface()); err != nil {
		return reflect.Value{}, err
	}
	return out.Elem(), nil
}

// DecodeInto stores a variable's value in *out, a Go value of a type that JSON
// can fill.
func DecodeInto(v any, out any) error {
	rv := reflect.ValueOf(out)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		return fmt.Errorf("DecodeInto wants a pointer, got %T", out)
	}
	x, err := goValue(v, rv.Type().Elem())
	if err != nil {
		return err
	}
	rv.Elem().Set(x)
	return nil
}

// Link checks that fs has every function that the graph calls, with parameters
// that take what the graph gives. It returns all that is wrong at once.
func (g *Graph) Link(fs Funcs) error {
	var es Errors
	g.Walk(func(n *Node) bool {
		es = append(es, linkChecks(n, fs)...)
		if n.Kind != KindCall || n.Call == nil {
			return true
		}
		f, ok := fs[n.Call.Func]
		if !ok || f.Call == nil {
			es = append(es, missingFunc(n, n.Call.Func, fs))
			return true
		}
		if len(f.Params) != len(n.Call.Args) {
			es = append(es, &Error{Pos: n.Pos, Node: n.ID,
				Msg: fmt.Sprintf("function %s takes %d arguments, not %d", f.Name, len(f.Params), len(n.Call.Args)), Hint: "give it " + typeList(f.Params)})
			return true
		}
		for i, t := range n.Call.argTypes {
			if !t.AssignableTo(f.Params[i]) {
				es = append(es, &Error{Pos: n.Pos, Node: n.ID,
					Msg: fmt.Sprintf("argument %d of %s is %s, not %s", i+1, f.Name, t, f.Params[i]), Hint: "change the expression " + strconv.Quote(string(n.Call.Args[i]))})
			}
		}
		if !f.Result.AssignableTo(n.Call.Result) {
			es = append(es, &Error{Pos: n.Pos, Node: n.ID,
				Msg: fmt.Sprintf("function %s returns %s, not %s", f.Name, f.Result, n.Call.Result), Hint: "write result: " + f.Result.String()})
		}
		return true
	})
	return es.err()
}

func typeList(ts []Type) string {
	if len(ts) == 0 {
		return "none"
	}
	s := ""
	for i, t := range ts {
		if i > 0 {
			s += ", "
		}
		s += t.String()
	}
	return s
}
