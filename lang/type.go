package lang

// Type is the type of a variable as far as a program can know it.
type Type struct {
	Kind   TypeKind
	Elem   *Type   // of a list
	Fields []Field // of an object, in order
}

// TypeKind is the outermost kind of a Type.
type TypeKind string

// The kinds of types. Any is a value whose type is not known before the run.
const (
	TypeAny    TypeKind = "any"
	TypeString TypeKind = "string"
	TypeInt    TypeKind = "int"
	TypeFloat  TypeKind = "float"
	TypeBool   TypeKind = "bool"
	TypeList   TypeKind = "list"
	TypeObject TypeKind = "object"
)

// Field is a field of an object type.
type Field struct {
	Name     string
	Type     Type
	Optional bool
}
