package lang

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"sort"
	"strconv"
	"unicode/utf8"
)

// Values of variables have one form everywhere, the one that JSON has: nil,
// bool, int, float64, string, []any and map[string]any. Whole numbers are int.

// maxValueDepth bounds the nesting of values that come from outside.
const maxValueDepth = 512

// FormatValue returns v as it looks in a text. Strings stand as they are,
// numbers plainly, nil is nothing; lists and objects are compact JSON with no
// HTML escapes, the keys of an object in the order of the fields of t and those
// that t does not know after them, sorted.
func FormatValue(v any, t Type) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return v
	case int:
		return strconv.Itoa(v)
	case bool:
		return strconv.FormatBool(v)
	}
	return string(appendValue(nil, v, t, 0))
}

// FormatJSON is FormatValue for places that must hold JSON: strings are quoted
// and nil is null.
func FormatJSON(v any, t Type) []byte { return appendValue(nil, v, t, 0) }

func appendValue(b []byte, v any, t Type, depth int) []byte {
	if depth > maxValueDepth {
		return append(b, "null"...)
	}
	switch v := v.(type) {
	case nil:
		return append(b, "null"...)
	case bool:
		return strconv.AppendBool(b, v)
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case float64:
		return appendFloat(b, v)
	case string:
		return appendString(b, v)
	case []any:
		var elem Type
		if t.Kind == TypeList && t.Elem != nil {
			elem = *t.Elem
		}
		b = append(b, '[')
		for i, x := range v {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendValue(b, x, elem, depth+1)
		}
		return append(b, ']')
	case map[string]any:
		b = append(b, '{')
		first := true
		put := func(k string, x any, ft Type) {
			if !first {
				b = append(b, ',')
			}
			first = false
			b = appendString(b, k)
			b = append(b, ':')
			b = appendValue(b, x, ft, depth+1)
		}
		known := 0
		for _, f := range t.Fields {
			if x, ok := v[f.Name]; ok {
				put(f.Name, x, f.Type)
				known++
			}
		}
		if known < len(v) {
			rest := make([]string, 0, len(v)-known)
			for k := range v {
				if _, ok := t.field(k); !ok {
					rest = append(rest, k)
				}
			}
			sort.Strings(rest)
			for _, k := range rest {
				put(k, v[k], Type{})
			}
		}
		return append(b, '}')
	}
	n, err := Normalize(v)
	if err != nil {
		return appendString(b, fmt.Sprint(v))
	}
	return appendValue(b, n, t, depth+1)
}

// appendFloat writes f as JSON does: plain digits unless it is very large or
// very small. What JSON has no number for is null.
func appendFloat(b []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(b, "null"...)
	}
	format := byte('f')
	if a := math.Abs(f); a != 0 && (a < 1e-6 || a >= 1e21) {
		format = 'e'
	}
	return strconv.AppendFloat(b, f, format, -1, 64)
}

const hexDigits = "0123456789abcdef"

// appendString writes s as a JSON string with only the escapes that JSON
// demands. Bytes that are no UTF-8 become U+FFFD.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= 0x20 && c != '"' && c != '\\' {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			b = append(b, s[start:i]...)
			b = append(b, "\ufffd"...)
			i++
			start = i
			continue
		}
		i += n
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}

// Normalize returns v in the form that variables have. Go values of other types
// go through their JSON.
func Normalize(v any) (any, error) { return normalize(v, 0) }

func normalize(v any, depth int) (any, error) {
	if depth > maxValueDepth {
		return nil, fmt.Errorf("value is nested deeper than %d", maxValueDepth)
	}
	switch v := v.(type) {
	case nil, bool, int, string:
		return v, nil
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("%v is not a number that JSON has", v)
		}
		return v, nil
	case []any:
		out := v // copied when the first element changes
		for i, x := range v {
			if plain(x) {
				continue
			}
			n, err := normalize(x, depth+1)
			if err != nil {
				return nil, err
			}
			if same(n, x) {
				continue
			}
			if &out[0] == &v[0] {
				out = append([]any(nil), v...)
			}
			out[i] = n
		}
		return out, nil
	case map[string]any:
		var out map[string]any // a copy, made when the first value changes
		for k, x := range v {
			if plain(x) {
				continue
			}
			n, err := normalize(x, depth+1)
			if err != nil {
				return nil, err
			}
			if same(n, x) {
				continue
			}
			if out == nil {
				out = make(map[string]any, len(v))
				for k, x := range v {
					out[k] = x
				}
			}
			out[k] = n
		}
		if out == nil {
			return v, nil
		}
		return out, nil
	case json.Number:
		return number(v.String())
	case []string:
		out := make([]any, len(v))
		for i, s := range v {
			out[i] = s
		}
		return out, nil
	}
	rv := reflect.ValueOf(v)
	if _, ok := v.(json.Marshaler); !ok {
		switch rv.Kind() {
		case reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Int:
			return int(rv.Int()), nil
		case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
			if u := rv.Uint(); u <= math.MaxInt64 {
				return int(u), nil
			}
			return float64(rv.Uint()), nil
		case reflect.Float32:
			return normalize(rv.Float(), depth)
		case reflect.Map:
			if rv.Type().Key().Kind() == reflect.Interface {
				return normalizeMap(rv, depth)
			}
		}
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return DecodeValue(raw)
}

// normalizeMap makes an object of a map whose keys are of any type.
func normalizeMap(m reflect.Value, depth int) (any, error) {
	out := make(map[string]any, m.Len())
	for it := m.MapRange(); it.Next(); {
		k, err := normalize(it.Key().Interface(), depth+1)
		if err != nil {
			return nil, err
		}
		key := FormatValue(k, Type{})
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("two keys are both %q", clip(key, 40))
		}
		if out[key], err = normalize(it.Value().Interface(), depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// plain reports whether v needs no walk.
func plain(v any) bool {
	switch v.(type) {
	case nil, bool, int, string:
		return true
	}
	return false
}

// same reports whether a and b are the same value without comparing contents.
func same(a, b any) bool {
	switch a := a.(type) {
	case float64:
		bb, ok := b.(float64)
		return ok && a == bb
	case []any:
		bb, ok := b.([]any)
		return ok && len(a) == len(bb) && (len(a) == 0 || &a[0] == &bb[0])
	case map[string]any:
		bb, ok := b.(map[string]any)
		return ok && reflect.ValueOf(a).Pointer() == reflect.ValueOf(bb).Pointer()
	}
	return false
}

// DecodeValue reads one JSON value into the form that variables have.
func DecodeValue(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	if dec.More() {
		return nil, fmt.Errorf("more than one JSON value")
	}
	return normalize(v, 0)
}

// number reads a JSON number: an int if it is written as one and fits.
func number(s string) (any, error) {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return int(i), nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		return nil, fmt.Errorf("number %s is out of range", s)
	}
	return f, nil
}

// Convert returns v as a value of type t: whole floats become ints where t asks
// for int, ints become floats, and what does not fit is an error that says
// which part does not.
func Convert(v any, t Type) (any, error) {
	n, err := Normalize(v)
	if err != nil {
		return nil, err
	}
	return convert(n, t, "", 0)
}

func convert(v any, t Type, at string, depth int) (any, error) {
	if depth > maxValueDepth {
		return nil, fmt.Errorf("value is nested deeper than %d", maxValueDepth)
	}
	bad := func() error {
		where := ""
		if at != "" {
			where = at + ": "
		}
		return fmt.Errorf("%swant %s, got %s", where, t, describe(v))
	}
	switch t.Kind {
	case TypeAny, "":
		return v, nil
	case TypeString:
		if _, ok := v.(string); ok {
			return v, nil
		}
	case TypeBool:
		if _, ok := v.(bool); ok {
			return v, nil
		}
	case TypeInt:
		switch x := v.(type) {
		case int:
			return v, nil
		case float64:
			if x == math.Trunc(x) && math.Abs(x) < 1<<63 {
				return int(x), nil
			}
		}
	case TypeFloat:
		switch x := v.(type) {
		case float64:
			return v, nil
		case int:
			return float64(x), nil
		}
	case TypeList:
		l, ok := v.([]any)
		if !ok {
			return nil, bad()
		}
		if t.Elem == nil || t.Elem.Kind == TypeAny {
			return v, nil
		}
		out := make([]any, len(l))
		for i, x := range l {
			c, err := convert(x, *t.Elem, at+"["+strconv.Itoa(i)+"]", depth+1)
			if err != nil {
				return nil, err
			}
			out[i] = c
		}
		return out, nil
	case TypeObject:
		m, ok := v.(map[string]any)
		if !ok {
			return nil, bad()
		}
		out := make(map[string]any, len(m))
		for k, x := range m {
			out[k] = x
		}
		for _, f := range t.Fields {
			x, ok := m[f.Name]
			if !ok || x == nil && f.Optional {
				if !f.Optional {
					return nil, fmt.Errorf("%s is missing", join(at, f.Name))
				}
				continue
			}
			c, err := convert(x, f.Type, join(at, f.Name), depth+1)
			if err != nil {
				return nil, err
			}
			out[f.Name] = c
		}
		return out, nil
	}
	return nil, bad()
}

func join(at, name string) string {
	if at == "" {
		return name
	}
	return at + "." + name
}

// describe names a value in an error: its kind and, if it is short, itself.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case []any:
		return "a list of " + strconv.Itoa(len(v))
	case map[string]any:
		return "an object"
	case string:
		if len(v) > 40 {
			return "a string of " + strconv.Itoa(len(v)) + " bytes"
		}
		return "the string " + strconv.Quote(v)
	case bool:
		return "the bool " + strconv.FormatBool(v)
	case int:
		return "the int " + strconv.Itoa(v)
	case float64:
		return "the float " + string(appendFloat(nil, v))
	}
	return fmt.Sprintf("a %T", v)
}
