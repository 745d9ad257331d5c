package lang

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// Args are the inputs of a run by name. Values are Go values of the inputs'
// types, or strings, which are read as the input's type.
type Args map[string]any

// Bind checks args against the inputs of the program and returns their values,
// defaults filled in. All that is wrong is reported at once.
func (g *Graph) Bind(args Args) (map[string]any, error) {
	vars := make(map[string]any, len(g.Inputs))
	var es Errors
	for i := range g.Inputs {
		in := &g.Inputs[i]
		v, given := args[in.Name]
		if !given {
			if in.Default == nil {
				es = append(es, &Error{Pos: in.Pos, Msg: fmt.Sprintf("input %q (%s) is missing", in.Name, in.Type), Hint: "give it, the program takes " + g.inputList()})
				continue
			}
			d, err := DecodeValue(in.Default)
			if err == nil {
				d, err = Convert(d, in.Type)
			}
			if err != nil {
				es = append(es, &Error{Pos: in.Pos, Msg: fmt.Sprintf("default of input %q: %v", in.Name, err)})
				continue
			}
			vars[in.Name] = d
			continue
		}
		c, err := bindValue(v, in.Type)
		if err != nil {
			es = append(es, &Error{Pos: in.Pos, Msg: fmt.Sprintf("input %q: %v", in.Name, err)})
			continue
		}
		vars[in.Name] = c
	}
	unknown := make([]string, 0)
	for name := range args {
		if !g.hasInput(name) {
			unknown = append(unknown, name)
		}
	}
	sort.Strings(unknown)
	for _, name := range unknown {
		hint := "the program takes " + g.inputList()
		if n := nearest(name, g.inputNames()); n != "" {
			hint = "did you mean " + strconv.Quote(n) + "? " + hint
		}
		es = append(es, &Error{Msg: fmt.Sprintf("no input %q", name), Hint: hint})
	}
	if len(es) > 0 {
		return nil, es // in the order of the inputs
	}
	return vars, nil
}

func (g *Graph) hasInput(name string) bool {
	for i := range g.Inputs {
		if g.Inputs[i].Name == name {
			return true
		}
	}
	return false
}

func (g *Graph) inputNames() []string {
	names := make([]string, len(g.Inputs))
	for i := range g.Inputs {
		names[i] = g.Inputs[i].Name
	}
	return names
}

// inputList writes the inputs with their types for a message.
func (g *Graph) inputList() string {
	if len(g.Inputs) == 0 {
		return "no inputs"
	}
	parts := make([]string, len(g.Inputs))
	for i, in := range g.Inputs {
		parts[i] = in.Name + " (" + in.Type.String()
		if in.Default != nil {
			parts[i] += ", optional"
		}
		parts[i] += ")"
	}
	return strings.Join(parts, ", ")
}

// bindValue reads v as a value of type t.
func bindValue(v any, t Type) (any, error) {
	s, ok := v.(string)
	if !ok {
		return Convert(v, t)
	}
	switch t.Kind {
	case TypeString, TypeAny, "":
		return s, nil
	case TypeBool:
		switch strings.ToLower(strings.TrimSpace(s)) {
		case "true", "yes", "1":
			return true, nil
		case "false", "no", "0":
			return false, nil
		}
		return nil, fmt.Errorf("want true or false, got %q", clip(s, 40))
	}
	x, err := DecodeValue([]byte(s))
	if err != nil {
		return nil, fmt.Errorf("want %s, got %q: %s", t, clip(s, 40), exampleOf(t))
	}
	return Convert(x, t)
}

// exampleOf says how a value of t is written on a command line.
func exampleOf(t Type) string {
	switch t.Kind {
	case TypeInt:
		return "write a whole number such as 3"
	case TypeFloat:
		return "write a number such as 0.5"
	case TypeList:
		if t.elem().Kind == TypeString {
			return `write JSON such as ["a", "b"]`
		}
		return "write JSON such as [1, 2]"
	}
	return `write JSON such as {"a": 1}`
}
