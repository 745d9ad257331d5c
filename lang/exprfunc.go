package lang

import (
	"fmt"
	"sort"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/builtin"
)

// exprFunctions replace builtins of expr-lang whose results depend on the order
// of a Go map or on how Go prints values, or that make texts without bound.
var exprFunctions = []expr.Option{
	expr.Function("string", func(a ...any) (any, error) {
		return FormatValue(a[0], orderOf(a)), nil
	}, new(func(any) string), new(func(any, Type) string)),
	expr.Function("toJSON", func(a ...any) (any, error) {
		return string(FormatJSON(a[0], orderOf(a))), nil
	}, new(func(any) string), new(func(any, Type) string)),
	expr.Function("fromJSON", func(a ...any) (any, error) {
		s, ok := a[0].(string)
		if !ok {
			return nil, fmt.Errorf("fromJSON wants a string, got %s", describe(a[0]))
		}
		return DecodeValue([]byte(s))
	}, new(func(string) any)),
	expr.Function("join", func(a ...any) (any, error) {
		sep, elem := "", orderOf(a).elem()
		if len(a) > 1 {
			switch s := a[1].(type) {
			case string:
				sep = s
			case Type:
			default:
				return nil, fmt.Errorf("join wants a string between the parts, got %s", describe(a[1]))
			}
		}
		v, err := Normalize(a[0])
		if err != nil {
			return nil, err
		}
		parts, ok := v.([]any)
		if !ok {
			return nil, fmt.Errorf("join wants a list, got %s", describe(v))
		}
		var b []byte
		for i, x := range parts {
			if i > 0 {
				b = append(b, sep...)
			}
			b = append(b, FormatValue(x, elem)...)
			if len(b) > maxExprGrowth {
				return nil, errTooLong
			}
		}
		return string(b), nil
	}, new(func([]any) string), new(func([]any, string) string), new(func([]string) string), new(func([]string, string) string),
		new(func([]int) string), new(func([]int, string) string),
		new(func([]any, Type) string), new(func([]any, string, Type) string)),
	expr.Function("repeat", func(a ...any) (any, error) {
		s, ok := a[0].(string)
		n, ok2 := a[1].(int)
		switch {
		case !ok || !ok2 || n < 0:
			return nil, fmt.Errorf("repeat wants a string and a number from 0, got %s and %s", describe(a[0]), describe(a[1]))
		case len(s) > 0 && n > maxExprGrowth/len(s):
			return nil, errTooLong
		}
		return strings.Repeat(s, n), nil
	}, new(func(string, int) string)),
	expr.Function("replace", func(a ...any) (any, error) {
		s, ok := a[0].(string)
		old, ok2 := a[1].(string)
		with, ok3 := a[2].(string)
		if !ok || !ok2 || !ok3 {
			return nil, fmt.Errorf("replace wants three strings, got %s, %s and %s", describe(a[0]), describe(a[1]), describe(a[2]))
		}
		if len(with) > 0 && strings.Count(s, old) > maxExprGrowth/len(with) {
			return nil, errTooLong
		}
		return strings.ReplaceAll(s, old, with), nil
	}, new(func(string, string, string) string)),
	expr.Function("keys", func(a ...any) (any, error) {
		m, err := object("keys", a[0])
		if err != nil {
			return nil, err
		}
		out := make([]any, 0, len(m))
		for _, k := range sortedKeys(m) {
			out = append(out, k)
		}
		return out, nil
	}, new(func(map[string]any) []string)),
	expr.Function("values", func(a ...any) (any, error) {
		m, err := object("values", a[0])
		if err != nil {
			return nil, err
		}
		out := make([]any, 0, len(m))
		for _, k := range sortedKeys(m) {
			out = append(out, m[k])
		}
		return out, nil
	}, new(func(map[string]any) []any)),
	expr.Function("toPairs", func(a ...any) (any, error) {
		m, err := object("toPairs", a[0])
		if err != nil {
			return nil, err
		}
		out := make([]any, 0, len(m))
		for _, k := range sortedKeys(m) {
			out = append(out, []any{k, m[k]})
		}
		return out, nil
	}, new(func(map[string]any) []any)),
}

// orderOf returns the type that a text function got behind its arguments.
func orderOf(args []any) Type {
	t, _ := args[len(args)-1].(Type)
	return t
}

var errTooLong = fmt.Errorf("the text would be longer than %d bytes", maxExprGrowth)

func object(name string, v any) (map[string]any, error) {
	m, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s wants an object, got %s", name, describe(v))
	}
	return m, nil
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// clocks are the builtins of expr-lang that know the time.
var clocks = map[string]bool{"now": true, "date": true, "duration": true, "timezone": true}

// knownFunctions are the names that can be called, of both kinds.
var knownFunctions = func() map[string]bool {
	m := map[string]bool{}
	for _, f := range builtin.Builtins {
		m[f.Name] = true
	}
	for name := range clocks {
		delete(m, name)
	}
	return m
}()

func functionNames() []string {
	names := make([]string, 0, len(knownFunctions))
	for n := range knownFunctions {
		names = append(names, n)
	}
	return names
}

// reserved are the words that cannot name a variable because expressions read
// them otherwise.
var reserved = map[string]bool{
	"true": true, "false": true, "nil": true, "null": true,
	"in": true, "not": true, "and": true, "or": true,
	"matches": true, "contains": true, "startsWith": true, "endsWith": true,
	"let": true, "if": true, "else": true,
}
