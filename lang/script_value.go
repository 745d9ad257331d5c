package lang

import (
	"errors"
	"fmt"
	"reflect"
)

// wait returns the value of a step. An error is also that of the line.
func (x *asked) wait() (any, error) {
	if x.known {
		return x.value, nil
	}
	s := x.s
	if x.answer == nil {
		return nil, s.stuck(s.err)
	}
	if p, ok := s.run.current.(*planner); ok {
		p.waits(x)
	}
	err := s.run.await(x.answer.Done)
	if err == nil {
		if x.other {
			x.value, err = x.answer.Other(x.name)
		} else {
			x.value, err = x.answer.Value()
		}
	}
	if err != nil {
		if s.err == nil {
			s.err = err // the run knows it already
			s.ended = true
		}
		return nil, s.stuck(err)
	}
	x.known = true
	return x.value, nil
}

// Get waits for the value of a step of a script and returns it. An error is that
// of the step or of an earlier one of its line, and sticks to the line. A Var
// made of others, such as Join of a list, is computed from theirs. In a program
// of Define there are no values yet, and Get is an error.
func (v Var[T]) Get() (T, error) {
	var out T
	h := v.h
	switch {
	case h == nil:
		return out, errors.New("this Var was never set")
	case h.err != nil:
		return out, h.err
	case h.script == nil:
		return out, &Error{Pos: caller(), Msg: fmt.Sprintf("%s has no value while the program is being built", clip(string(h.ex), 60)), Hint: "shape the run with When, Repeat and ForEach, or write the program as a Script"}
	}
	var x any
	var err error
	switch {
	case h.asked != nil:
		x, err = h.asked.wait()
	case len(h.uses) > 0:
		vars := map[string]any{}
		for _, u := range h.uses {
			if vars[string(u.name)], err = u.wait(); err != nil {
				return out, err
			}
		}
		x, err = h.script.run.g.Eval(h.ex, vars)
	default: // its step was refused
		if err = h.script.err; err == nil {
			err = &Error{Pos: h.pos, Msg: "this step was never asked for"}
		}
	}
	if err != nil {
		return out, err
	}
	if err := DecodeInto(x, &out); err != nil {
		return out, &Error{Pos: h.pos, Msg: fmt.Sprintf("the value of %s is no %s: %v", clip(string(h.ex), 60), reflect.TypeFor[T](), err)}
	}
	return out, nil
}

// useAsked is use for a handle that reads steps of a script: its expression or,
// where the variable of a step has another value by now, that value.
func (p *Program) useAsked(h *handle, pos Pos) Expr {
	for _, x := range h.uses {
		if p.script.sees(x) {
			continue
		}
		if x.known && h.asked == x {
			if lit, err := literal(x.value); err == nil {
				return lit
			}
		}
		e := &Error{Pos: pos, Msg: fmt.Sprintf("%q was asked for again since, and this Var means the value before", x.name), Hint: "take that value with Get before asking again, and use it"}
		if !p.scope.within(h.scope) {
			e.Msg = fmt.Sprintf("%s is set at %s inside %s (%s) and cannot be read outside of it", h.ex, h.pos, h.scope.name, h.scope.pos)
			e.Hint = "return its value from the arm and use the list that comes back"
		}
		p.b.errs = append(p.b.errs, e)
		return "nil"
	}
	return h.ex
}

// past returns the text of a value that the script has read and whose variable
// has another one by now.
func (p *Program) past(h *handle) (string, bool) {
	if p.script == nil || h == nil || h.asked == nil || !h.asked.known || p.script.sees(h.asked) {
		return "", false
	}
	return FormatValue(h.asked.value, h.asked.typ), true
}

// sees reports whether the variable of x, read in line s, has the value of x.
func (s *S) sees(x *asked) bool {
	for l := s; l != nil; l = l.up {
		if now := l.latest[x.name]; now != nil {
			return now == x
		}
	}
	return false
}
