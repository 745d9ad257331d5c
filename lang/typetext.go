package lang

import (
	"fmt"
	"strconv"
	"strings"
)

// String returns the type as it is written in program files: string, int,
// float, bool, any, []T, {a: T, b?: T}.
func (t Type) String() string {
	var b strings.Builder
	t.write(&b, 0)
	return b.String()
}

func (t Type) write(b *strings.Builder, depth int) {
	if depth > maxTypeDepth {
		b.WriteString("any")
		return
	}
	switch t.Kind {
	case TypeList:
		b.WriteString("[]")
		if t.Elem == nil {
			b.WriteString("any")
			return
		}
		t.Elem.write(b, depth+1)
	case TypeObject:
		b.WriteByte('{')
		for i, f := range t.Fields {
			if i > 0 {
				b.WriteString(", ")
			}
			if isName(f.Name) {
				b.WriteString(f.Name)
			} else {
				b.WriteString(strconv.Quote(f.Name))
			}
			if f.Optional {
				b.WriteByte('?')
			}
			b.WriteString(": ")
			f.Type.write(b, depth+1)
		}
		b.WriteByte('}')
	case "":
		b.WriteString("any")
	default:
		b.WriteString(string(t.Kind))
	}
}

// maxTypeDepth bounds the nesting of types.
const maxTypeDepth = 64

// ParseType reads a type in the form that String writes.
func ParseType(s string) (Type, error) {
	p := typeParser{s: s}
	t, err := p.parse(0)
	if err != nil {
		return Type{}, err
	}
	p.space()
	if p.i < len(p.s) {
		return Type{}, fmt.Errorf("type %q: %q after the end", s, p.s[p.i:])
	}
	return t, nil
}

type typeParser struct {
	s string
	i int
}

func (p *typeParser) space() {
	for p.i < len(p.s) && strings.IndexByte(" \t\r\n", p.s[p.i]) >= 0 {
		p.i++
	}
}

func (p *typeParser) eat(tok string) bool {
	p.space()
	if strings.HasPrefix(p.s[p.i:], tok) {
		p.i += len(tok)
		return true
	}
	return false
}

func (p *typeParser) word() string {
	p.space()
	start := p.i
	for p.i < len(p.s) && (isNameByte(p.s[p.i])) {
		p.i++
	}
	return p.s[start:p.i]
}

func (p *typeParser) errorf(format string, args ...any) error {
	return fmt.Errorf("type %q: %s", p.s, fmt.Sprintf(format, args...))
}

func (p *typeParser) parse(depth int) (Type, error) {
	if depth > maxTypeDepth {
		return Type{}, p.errorf("nested deeper than %d", maxTypeDepth)
	}
	switch {
	case p.eat("[]"):
		elem, err := p.parse(depth + 1)
		if err != nil {
			return Type{}, err
		}
		return ListOf(elem), nil
	case p.eat("{"):
		t := Type{Kind: TypeObject}
		for !p.eat("}") {
			if len(t.Fields) > 0 && !p.eat(",") {
				return Type{}, p.errorf("want , or } at %q", p.s[p.i:])
			}
			name, err := p.fieldName()
			if err != nil {
				return Type{}, err
			}
			f := Field{Name: name, Optional: p.eat("?")}
			if _, ok := t.field(name); ok {
				return Type{}, p.errorf("field %q twice", name)
			}
			if !p.eat(":") {
				return Type{}, p.errorf("want : after field %q", name)
			}
			if f.Type, err = p.parse(depth + 1); err != nil {
				return Type{}, err
			}
			t.Fields = append(t.Fields, f)
		}
		return t, nil
	}
	w := p.word()
	switch k := TypeKind(w); k {
	case TypeAny, TypeString, TypeInt, TypeFloat, TypeBool:
		return Type{Kind: k}, nil
	}
	switch w {
	case "":
		return Type{}, p.errorf("want a type, one of %s", typeNames)
	case "list", "array":
		return Type{}, p.errorf("write a list as []any, or []string and so on")
	case "object", "map":
		return Type{}, p.errorf("write an object as {} or {name: string, n?: int}")
	}
	hint := didYouMean(w, []string{"any", "string", "int", "float", "bool"})
	if alias, ok := typeAliases[w]; ok {
		hint = "write " + alias
	}
	return Type{}, p.errorf("no type %q: %s", w, hint)
}

const typeNames = "string, int, float, bool, any, []T, {name: T}"

var typeAliases = map[string]string{
	"integer": "int", "int64": "int", "number": "float", "double": "float", "float64": "float",
	"boolean": "bool", "str": "string", "text": "string",
}

func (p *typeParser) fieldName() (string, error) {
	p.space()
	if p.i < len(p.s) && p.s[p.i] == '"' {
		q, err := strconv.QuotedPrefix(p.s[p.i:])
		if err != nil {
			return "", p.errorf("bad field name at %q", p.s[p.i:])
		}
		p.i += len(q)
		return strconv.Unquote(q)
	}
	w := p.word()
	if w == "" {
		return "", p.errorf("want a field name at %q", p.s[p.i:])
	}
	return w, nil
}

// ListOf returns the type of lists of elem.
func ListOf(elem Type) Type { return Type{Kind: TypeList, Elem: &elem} }

// field returns the field of an object type.
func (t Type) field(name string) (Field, bool) {
	for _, f := range t.Fields {
		if f.Name == name {
			return f, true
		}
	}
	return Field{}, false
}

// isAny reports whether nothing is known of the type.
func (t Type) isAny() bool { return t.Kind == TypeAny || t.Kind == "" }

// hasFields reports whether the type says an order of keys.
func (t Type) hasFields() bool {
	return len(t.Fields) > 0 || t.Kind == TypeList && t.Elem != nil && t.Elem.hasFields()
}

// elem returns the type of a list's elements.
func (t Type) elem() Type {
	if t.Kind == TypeList && t.Elem != nil {
		return *t.Elem
	}
	return Type{Kind: TypeAny}
}

// Equal reports whether t and u are the same type.
func (t Type) Equal(u Type) bool {
	if t.isAny() || u.isAny() {
		return t.isAny() && u.isAny()
	}
	if t.Kind != u.Kind || len(t.Fields) != len(u.Fields) {
		return false
	}
	if t.Kind == TypeList {
		return t.elem().Equal(u.elem())
	}
	for i, f := range t.Fields {
		g := u.Fields[i]
		if f.Name != g.Name || f.Optional != g.Optional || !f.Type.Equal(g.Type) {
			return false
		}
	}
	return true
}

// AssignableTo reports whether a value of type t may stand where u is wanted: u
// or t is any, t equals u, t is an int and u a float, and so on inside.
func (t Type) AssignableTo(u Type) bool {
	if t.isAny() || u.isAny() {
		return true
	}
	if t.Kind == TypeInt && u.Kind == TypeFloat {
		return true
	}
	if t.Kind != u.Kind {
		return false
	}
	switch t.Kind {
	case TypeList:
		return t.elem().AssignableTo(u.elem())
	case TypeObject:
		if len(t.Fields) == 0 {
			return true // an object of which nothing is known
		}
		for _, f := range u.Fields {
			g, ok := t.field(f.Name)
			if !ok {
				if f.Optional {
					continue
				}
				return false
			}
			if g.Optional && !f.Optional || !g.Type.AssignableTo(f.Type) {
				return false
			}
		}
	}
	return true
}

// isName reports whether s can name a variable.
func isName(s string) bool {
	if s == "" || s[0] >= '0' && s[0] <= '9' {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !isNameByte(s[i]) {
			return false
		}
	}
	return true
}

func isNameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}
