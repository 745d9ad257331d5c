package lang

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
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
	r.Mapper = func(t reflect.Type) *jsonschema.Schema {
		if t.Kind() == reflect.Map && !recursive && !ownForm(t) && !ownForm(t.Key()) {
			if lo, hi, ok := intRange(t.Key()); ok {
				elem := r.ReflectFromType(t.Elem())
				elem.Version = ""
				return &jsonschema.Schema{
					Type:                 "object",
					PatternProperties:    map[string]*jsonschema.Schema{intPattern(strconv.FormatInt(lo, 10), strconv.FormatInt(hi, 10)): elem},
					AdditionalProperties: jsonschema.FalseSchema,
				}
			}
		}
		return boundedSchema(t)
	}
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
	quoteInts(doc)
	return doc.appendJSON(nil), nil
}

// base64Text is what encoding/json writes for bytes.
const base64Text = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

// boundedSchema gives whole numbers and single floats the range of their Go type
// and bytes the form that decodes, so that no value of the schema fails to decode.
// It returns nil for other types. Double floats have no bounds, which would take
// their exponents from the model: a number beyond them is an error of the node
// that the model wrote it for.
func boundedSchema(t reflect.Type) *jsonschema.Schema {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if ownForm(t) {
		return nil
	}
	if lo, hi, ok := intRange(t); ok {
		return &jsonschema.Schema{
			Type:    "integer",
			Minimum: json.Number(strconv.FormatInt(lo, 10)),
			Maximum: json.Number(strconv.FormatInt(hi, 10)),
		}
	}
	if t.Kind() == reflect.Float32 {
		limit := strconv.FormatFloat(math.MaxFloat32, 'g', -1, 64)
		return &jsonschema.Schema{Type: "number", Minimum: json.Number("-" + limit), Maximum: json.Number(limit)}
	}
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 && !ownForm(t.Elem()) {
		return &jsonschema.Schema{Type: "string", ContentEncoding: "base64", Pattern: base64Text}
	}
	return nil
}

// intRange returns the range of a type of whole numbers, as far as variables
// hold it: what does not fit an int64 would be a float.
func intRange(t reflect.Type) (lo, hi int64, ok bool) {
	switch t.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		hi = math.MaxInt64 >> (64 - t.Bits())
		return -hi - 1, hi, true
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return 0, math.MaxInt64 >> max(0, 63-t.Bits()), true
	}
	return 0, 0, false
}

// ownForm reports whether a type says itself what its JSON or its schema is.
func ownForm(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	for _, i := range [...]reflect.Type{
		marshalerType, reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextMarshaler](), reflect.TypeFor[encoding.TextUnmarshaler](),
	} {
		if p.Implements(i) {
			return true
		}
	}
	for _, name := range [...]string{"JSONSchema", "JSONSchemaExtend", "JSONSchemaAlias", "EnumDescriptor"} {
		if _, ok := p.MethodByName(name); ok {
			return true
		}
	}
	return false
}

// floatText is a number within a single float, written plainly.
const floatText = "^-?(?:0|[1-9][0-9]{0,37})(?:\\.[0-9]{1,40})?$"

// quoteInts gives numbers that are written as texts (the option "string" of json
// tags) a pattern of their range in place of the bounds, which say nothing of
// texts.
func quoteInts(t *tree) {
	lo, hi := t.get("minimum"), t.get("maximum")
	if ty := t.get("type"); ty != nil && ty.kind == treeString && ty.text == "string" && lo != nil && hi != nil && lo.kind == treeNumber && hi.kind == treeNumber {
		keys, vals, at := t.keys, t.vals, t.at
		t.keys, t.vals, t.at = nil, nil, nil
		for i, k := range keys {
			if k != "minimum" && k != "maximum" {
				t.keys, t.vals = append(t.keys, k), append(t.vals, vals[i])
				if i < len(at) {
					t.at = append(t.at, at[i])
				}
			}
		}
		pattern := floatText
		if strings.Trim(lo.text+hi.text, "-0123456789") == "" {
			pattern = intPattern(lo.text, hi.text)
		}
		if t.get("pattern") == nil {
			t.put("pattern", strTree(pattern))
		}
	}
	for _, v := range t.vals {
		quoteInts(v)
	}
}

// intPattern returns a pattern of the whole numbers from lo, which is not above
// 0, to hi.
func intPattern(lo, hi string) string {
	pattern := "^(?:" + upTo(hi)
	if neg, ok := strings.CutPrefix(lo, "-"); ok {
		pattern += "|-(?:" + upTo(neg) + ")"
	}
	return pattern + ")$"
}

// upTo returns a pattern of the whole numbers from 0 to a number given by its
// digits, without leading zeros.
func upTo(digits string) string {
	alts := []string{"0"}
	n := len(digits)
	if n > 1 {
		alts = append(alts, fmt.Sprintf("[1-9][0-9]{0,%d}", n-2))
	}
	for i := range n {
		least := byte('0')
		if i == 0 {
			least = '1'
		}
		if d := digits[i] - 1; d >= least && digits[i] > least {
			alts = append(alts, fmt.Sprintf("%s[%c-%c][0-9]{%d}", digits[:i], least, d, n-i-1))
		}
	}
	return strings.Join(append(alts, digits), "|")
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
