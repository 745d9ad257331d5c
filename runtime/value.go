package runtime

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"

	"github.com/coppice-run/coppice/lang"
)

// rawTable remembers, for the objects that came as JSON text, that text: a
// variable that a model wrote is printed with the model's order of keys, which
// the map that expressions work on has lost. Objects are recognised by identity;
// the table keeps them alive, so an identity is never given out twice.
type rawTable map[uintptr]rawObject

type rawObject struct {
	object map[string]any
	text   []byte // compact
}

func identity(v map[string]any) uintptr { return reflect.ValueOf(v).Pointer() }

// decode reads a JSON text as a value of type t.
func (m *Machine) decode(text []byte, t lang.Type) (any, error) {
	v, err := lang.DecodeValue(text)
	if err != nil {
		return nil, err
	}
	if v, err = lang.Convert(v, t); err != nil {
		return nil, err
	}
	switch v.(type) {
	case map[string]any, []any:
		var compact bytes.Buffer
		if err := json.Compact(&compact, text); err != nil {
			return nil, err
		}
		if m.raws == nil {
			m.raws = rawTable{}
		}
		m.raws.add(v, compact.Bytes())
	}
	return v, nil
}

// add remembers the objects in v, whose compact JSON is text.
func (r rawTable) add(v any, text []byte) {
	switch v := v.(type) {
	case map[string]any:
		r[identity(v)] = rawObject{v, text}
		for _, mb := range members(text) {
			r.add(v[mb.key], mb.value)
		}
	case []any:
		for i, mb := range members(text) {
			if i < len(v) {
				r.add(v[i], mb.value)
			}
		}
	}
}

// member is an entry of an object, or with no key of a list.
type member struct {
	key   string
	value json.RawMessage
}

// members splits the valid JSON text of an object or list one level deep.
func members(text []byte) []member {
	dec := json.NewDecoder(bytes.NewReader(text))
	open, err := dec.Token()
	if err != nil {
		return nil
	}
	var out []member
	for dec.More() {
		var mb member
		if open == json.Delim('{') {
			k, err := dec.Token()
			if err != nil {
				return nil
			}
			mb.key, _ = k.(string)
		}
		if dec.Decode(&mb.value) != nil {
			return nil
		}
		out = append(out, mb)
	}
	return out
}

// errTooLarge ends the encoding of a value whose parts are shared so often that
// its text would not fit into memory.
var errTooLarge = errors.New("its JSON is too large")

// encode returns the JSON of a value: objects that came as JSON as they came,
// others with the keys in the order of t, then sorted.
func (m *Machine) encode(v any, t lang.Type) (json.RawMessage, error) {
	e := m.encoder()
	if err := e.value(v, t, 0); err != nil {
		return nil, err
	}
	return e.since(0), nil
}

// encoder writes values as JSON, one behind the other, until they are larger
// than a limit. The texts it returns stay valid as it goes on.
type encoder struct {
	raws  rawTable
	buf   []byte
	limit int // bytes of buf
}

func (m *Machine) encoder() *encoder {
	return &encoder{raws: m.raws, limit: m.opt.Limits.Text}
}

// since returns what was written after the first start bytes.
func (e *encoder) since(start int) json.RawMessage {
	return e.buf[start:len(e.buf):len(e.buf)]
}

func (e *encoder) value(v any, t lang.Type, depth int) error {
	if len(e.buf) > e.limit || depth > 1000 {
		return errTooLarge
	}
	switch v := v.(type) {
	case nil:
		e.buf = append(e.buf, "null"...)
	case string:
		e.string(v)
	case map[string]any:
		if raw, ok := e.raws[identity(v)]; ok {
			e.buf = append(e.buf, raw.text...)
			return nil
		}
		return e.object(v, t, depth)
	case []any:
		elem := lang.Type{}
		if t.Elem != nil {
			elem = *t.Elem
		}
		e.buf = append(e.buf, '[')
		for i, x := range v {
			if i > 0 {
				e.buf = append(e.buf, ',')
			}
			if err := e.value(x, elem, depth+1); err != nil {
				return err
			}
		}
		e.buf = append(e.buf, ']')
	default:
		e.buf = append(e.buf, lang.FormatJSON(v, t)...)
	}
	return nil
}

// string writes a JSON string; most need no escapes.
func (e *encoder) string(s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			e.buf = append(e.buf, lang.FormatJSON(s, lang.Type{})...)
			return
		}
	}
	e.buf = append(e.buf, '"')
	e.buf = append(e.buf, s...)
	e.buf = append(e.buf, '"')
}

func (e *encoder) object(v map[string]any, t lang.Type, depth int) error {
	keys := make([]string, 0, len(v))
	types := make([]lang.Type, 0, len(v))
	for _, f := range t.Fields {
		if _, ok := v[f.Name]; ok {
			keys = append(keys, f.Name)
			types = append(types, f.Type)
		}
	}
	if known := len(keys); known < len(v) {
		for k := range v {
			if !slices.Contains(keys[:known], k) {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys[known:])
	}
	e.buf = append(e.buf, '{')
	for i, k := range keys {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.string(k)
		e.buf = append(e.buf, ':')
		ft := lang.Type{}
		if i < len(types) {
			ft = types[i]
		}
		if err := e.value(v[k], ft, depth+1); err != nil {
			return err
		}
	}
	e.buf = append(e.buf, '}')
	return nil
}

// show writes a value for a report. One that there is no room left for is
// replaced by a string that says so.
func (e *encoder) show(v any, t lang.Type) {
	start := len(e.buf)
	if err := e.value(v, t, 0); err != nil || len(e.buf) > e.limit {
		e.buf = e.buf[:start]
		e.string("(not shown: too large)")
	}
}
