package lang

import (
	"encoding/json"
	"fmt"
	"strings"
)

// TypeOfSchema returns the type of the values that a JSON Schema allows, as far
// as a Type can say it.
func TypeOfSchema(schema json.RawMessage) (Type, error) {
	t, err := parseJSON(schema)
	if err != nil {
		return Type{}, fmt.Errorf("schema: %w", err)
	}
	ty := schemaTyper{root: t}
	return ty.of(t, 0), nil
}

// schemaTyper turns schemas into types. Schemas that hold themselves are cut
// off by depth and by the number of parts.
type schemaTyper struct {
	root  *tree
	parts int
}

func (ty *schemaTyper) of(s *tree, depth int) Type {
	unknown := Type{Kind: TypeAny}
	if ty.parts++; ty.parts > 1<<14 || depth > maxTypeDepth/2 || s == nil || s.kind != treeMap {
		return unknown
	}
	if ref := s.get("$ref"); ref != nil && ref.kind == treeString {
		to, ok := resolveRef(ty.root, ref.text)
		if !ok {
			return unknown
		}
		return ty.of(to, depth+8) // a type that holds itself ends soon
	}
	kind := ""
	if t := s.get("type"); t != nil {
		if t.kind != treeString {
			return unknown // several types
		}
		kind = t.text
	}
	if kind == "" {
		vals := s.get("enum")
		if c := s.get("const"); c != nil {
			vals = listTree(c)
		}
		if vals != nil && len(vals.vals) > 0 {
			return valuesType(vals.vals)
		}
		for _, key := range []string{"anyOf", "oneOf"} {
			if alts := s.get(key); alts != nil && len(alts.vals) > 0 {
				t := ty.of(alts.vals[0], depth+1)
				for _, a := range alts.vals[1:] {
					t = unify(t, ty.of(a, depth+1))
				}
				return t
			}
		}
		if s.get("properties") == nil {
			return unknown
		}
		kind = "object"
	}
	switch kind {
	case "string":
		return Type{Kind: TypeString}
	case "integer":
		return Type{Kind: TypeInt}
	case "number":
		return Type{Kind: TypeFloat}
	case "boolean":
		return Type{Kind: TypeBool}
	case "array":
		items := s.get("items")
		if s.get("prefixItems") != nil {
			items = nil
		}
		return ListOf(ty.of(items, depth+1))
	case "object":
		t := Type{Kind: TypeObject}
		required := map[string]bool{}
		if r := s.get("required"); r != nil {
			for _, v := range r.vals {
				required[v.text] = true
			}
		}
		if props := s.get("properties"); props != nil && props.kind == treeMap {
			for i, k := range props.keys {
				t.Fields = append(t.Fields, Field{Name: k, Type: ty.of(props.vals[i], depth+1), Optional: !required[k]})
			}
		}
		return t
	}
	return unknown
}

// valuesType returns the type that covers some values.
func valuesType(vals []*tree) Type {
	one := func(v *tree) Type {
		switch v.kind {
		case treeString:
			return Type{Kind: TypeString}
		case treeBool:
			return Type{Kind: TypeBool}
		case treeNumber:
			if strings.ContainsAny(v.text, ".eE") {
				return Type{Kind: TypeFloat}
			}
			return Type{Kind: TypeInt}
		case treeList:
			return ListOf(Type{Kind: TypeAny})
		case treeMap:
			return Type{Kind: TypeObject}
		}
		return Type{Kind: TypeAny}
	}
	t := one(vals[0])
	for _, v := range vals[1:] {
		t = unify(t, one(v))
	}
	return t
}

// resolveRef follows a reference inside a schema: "#" or "#/a/b".
func resolveRef(root *tree, ref string) (*tree, bool) {
	if ref == "#" {
		return root, true
	}
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil, false
	}
	t := root
	for _, step := range strings.Split(path, "/") {
		step = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
		next := t.get(step)
		if next == nil && t.kind == treeList {
			for i, v := range t.vals {
				if fmt.Sprint(i) == step {
					next = v
				}
			}
		}
		if next == nil {
			return nil, false
		}
		t = next
	}
	return t, true
}
