package lang

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"sync"

	"github.com/invopop/jsonschema"
)

// SchemaOf returns the JSON Schema of a Go type: everything inline, keys in the
// order of the fields, no other keys allowed, fields required unless they have
// omitempty. A type that holds itself has $defs and $ref.
func SchemaOf(t reflect.Type) (json.RawMessage, error) {
	if t == nil {
		return nil, fmt.Errorf("no type")
	}
	if s, ok := schemas.Load(t); ok {
		return s.(json.RawMessage), nil
	}
	recursive, err := inspectGo(t, nil, 0)
	if err != nil {
		return nil, err
	}
	s, err := reflectSchema(t, recursive)
	if err != nil {
		return nil, fmt.Errorf("the Go type %s: %w", t, err)
	}
	schemas.Store(t, s)
	return s, nil
}

var schemas sync.Map // reflect.Type -> json.RawMessage

func reflectSchema(t reflect.Type, recursive bool) (out json.RawMessage, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	r := jsonschema.Reflector{Anonymous: true, DoNotReference: !recursive}
	s := r.ReflectFromType(t)
	s.Version = ""
	// Without HTML escapes: < > & stand in enums as they are.
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return nil, err
	}
	doc, err := parseJSON(b.Bytes())
	if err != nil {
		return nil, err
	}
	typeFirst(doc)
	return doc.appendJSON(nil), nil
}

// typeFirst moves the type of each schema to its front, where readers look.
func typeFirst(t *tree) {
	for i, k := range t.keys {
		if k == "type" && t.vals[i].kind == treeString {
			ty := t.vals[i]
			copy(t.keys[1:i+1], t.keys[:i])
			copy(t.vals[1:i+1], t.vals[:i])
			t.keys[0], t.vals[0] = k, ty
		}
	}
	for _, v := range t.vals {
		typeFirst(v)
	}
}

// inspectGo reports whether t holds itself, and refuses what has no JSON.
func inspectGo(t reflect.Type, above []reflect.Type, depth int) (recursive bool, err error) {
	if depth > maxTypeDepth {
		return false, fmt.Errorf("the Go type %s is nested deeper than %d", t, maxTypeDepth)
	}
	for _, a := range above {
		if a == t {
			return true, nil
		}
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		return inspectGo(t.Elem(), append(above, t), depth+1)
	case reflect.Map:
		switch t.Key().Kind() {
		case reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
			reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		default:
			return false, fmt.Errorf("the Go type %s has no JSON form: use string keys", t)
		}
		return inspectGo(t.Elem(), append(above, t), depth+1)
	case reflect.Struct:
		if t == reflect.TypeFor[jsonschema.Schema]() {
			return false, nil
		}
		for i := 0; i < t.NumField(); i++ {
			f := t.Field(i)
			if !f.IsExported() && !f.Anonymous || f.Tag.Get("json") == "-" {
				continue
			}
			if t.PkgPath() == "time" || t.PkgPath() == "net/url" {
				continue
			}
			r, err := inspectGo(f.Type, append(above, t), depth+1)
			if err != nil {
				return false, fmt.Errorf("field %s of %s: %w", f.Name, t, err)
			}
			recursive = recursive || r
		}
	case reflect.Func, reflect.Chan, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer, reflect.Uintptr:
		return false, fmt.Errorf("the Go type %s has no JSON form: use strings, numbers, bools, slices, maps or structs", t)
	}
	return recursive, nil
}

// typeOfGo returns the type of variables that hold Go values of type t.
func typeOfGo(t reflect.Type) (Type, error) {
	if !t.Implements(marshalerType) {
		switch t.Kind() {
		case reflect.String:
			return Type{Kind: TypeString}, nil
		case reflect.Bool:
			return Type{Kind: TypeBool}, nil
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
			reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			return Type{Kind: TypeInt}, nil
		case reflect.Float32, reflect.Float64:
			return Type{Kind: TypeFloat}, nil
		case reflect.Interface:
			return Type{Kind: TypeAny}, nil
		case reflect.Slice:
			if t.Elem().Kind() != reflect.Uint8 {
				e, err := typeOfGo(t.Elem())
				return ListOf(e), err
			}
		}
	}
	s, err := SchemaOf(t)
	if err != nil {
		return Type{}, err
	}
	return TypeOfSchema(s)
}

var marshalerType = reflect.TypeFor[json.Marshaler]()
