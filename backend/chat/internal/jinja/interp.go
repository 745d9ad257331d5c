package jinja

import (
	"errors"
	"math"
	"time"
)

// Limits of one run.
const (
	maxSteps  = 10_000_000 // nodes evaluated and items handled
	maxBytes  = 128 << 20  // text and lists made, in total
	maxMacros = 60         // calls of macros inside each other
)

// interp runs a template once.
type interp struct {
	now    func() time.Time
	steps  int
	bytes  int
	macros int
	out    *builder
}

// step counts n steps.
func (in *interp) step(n int) error {
	if in.steps += n; in.steps > maxSteps {
		in.steps = math.MaxInt / 2
		return limitf("more than %d steps", maxSteps)
	}
	return nil
}

// spend counts n bytes of memory and as many eighths of a step.
func (in *interp) spend(n int) error {
	if in.bytes += n; in.bytes > maxBytes {
		in.bytes = math.MaxInt / 2
		return limitf("more than %d MB of text", maxBytes>>20)
	}
	return in.step(n / 8)
}

// scope holds names. A name is looked up here, then in the scopes around.
type scope struct {
	names map[string]Value
	outer *scope
}

func (s *scope) find(name string) (Value, bool) {
	for ; s != nil; s = s.outer {
		if v, ok := s.names[name]; ok {
			return v, true
		}
	}
	return nil, false
}

func (s *scope) set(name string, v Value) {
	if s.names == nil {
		s.names = map[string]Value{}
	}
	s.names[name] = v
}

// Execute runs the template with the given variables and returns what it prints. now
// is the clock of strftime_now; nil means time.Now.
func (t *Template) Execute(vars *Dict, now func() time.Time) (Text, error) {
	if now == nil {
		now = time.Now
	}
	in := &interp{now: now, out: &builder{}}
	sc := &scope{outer: &scope{outer: &scope{names: globals}}}
	for i, k := range vars.keys {
		sc.outer.set(k.(Text).S, vars.vals[i])
	}
	if err := in.run(t.body, sc); err != nil {
		return Text{}, err
	}
	return in.out.text(), nil
}

// Breaking out of loops travels as an error to the loop.
var (
	errBreak    = errors.New("break")
	errContinue = errors.New("continue")
)

func (in *interp) run(body []stmt, sc *scope) error {
	for _, s := range body {
		if err := in.step(1); err != nil {
			return err
		}
		if err := s.exec(in, sc); err != nil {
			return err
		}
	}
	return nil
}

// capture runs body and returns what it prints.
func (in *interp) capture(body []stmt, sc *scope) (Text, error) {
	out := in.out
	in.out = &builder{}
	err := in.run(body, sc)
	t := in.out.text()
	in.out = out
	return t, err
}
