package lang

import (
	"reflect"
	"strconv"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/checker/nature"
	"github.com/expr-lang/expr/types"
)

// envOf describes the variables that an expression reads to expr-lang's type
// checker. Those that vars lacks may be anything.
func envOf(reads []string, vars map[string]Type) types.Map {
	env := make(types.Map, len(reads))
	for _, name := range reads {
		env[name] = exprType(vars[name], 0)
	}
	return env
}

func exprType(t Type, depth int) types.Type {
	if depth > maxTypeDepth {
		return types.Any
	}
	switch t.Kind {
	case TypeString:
		return types.String
	case TypeInt:
		return types.Int
	case TypeFloat:
		return types.Float64
	case TypeBool:
		return types.Bool
	case TypeList:
		return types.Array(exprType(t.elem(), depth+1))
	case TypeObject:
		m := make(types.Map, len(t.Fields)+1)
		for _, f := range t.Fields {
			if f.Optional {
				m[f.Name] = types.Any // may be nil
			} else {
				m[f.Name] = exprType(f.Type, depth+1)
			}
		}
		if len(t.Fields) == 0 {
			m[types.Extra] = types.Any
		}
		return m
	}
	return types.Any
}

// typeOfNode returns the type of a node that the checker has seen. It knows more
// than the checker where types of variables are handed through.
func typeOfNode(n ast.Node, vars map[string]Type, depth int) Type {
	unknown := Type{Kind: TypeAny}
	if depth > maxTypeDepth {
		return unknown
	}
	of := func(n ast.Node) Type { return typeOfNode(n, vars, depth+1) }
	switch n := n.(type) {
	case *ast.IdentifierNode:
		if t, ok := vars[n.Value]; ok {
			return t
		}
	case *ast.MemberNode:
		t := of(n.Node)
		if p, ok := n.Property.(*ast.StringNode); ok && t.Kind == TypeObject {
			if f, ok := t.field(p.Value); ok && !f.Optional {
				return f.Type
			}
			return unknown
		}
		if t.Kind == TypeList {
			return t.elem()
		}
	case *ast.MapNode:
		return typeOfMap(n, of)
	case *ast.ArrayNode:
		if len(n.Nodes) == 0 {
			return ListOf(unknown)
		}
		elem := of(n.Nodes[0])
		for _, x := range n.Nodes[1:] {
			elem = unify(elem, of(x))
		}
		return ListOf(elem)
	case *ast.ConditionalNode:
		return unify(of(n.Exp1), of(n.Exp2))
	case *ast.SliceNode:
		return of(n.Node)
	case *ast.BuiltinNode:
		if len(n.Arguments) == 0 {
			break
		}
		switch n.Name {
		case "map":
			if p, ok := n.Arguments[1].(*ast.PredicateNode); ok && len(n.Arguments) == 2 {
				return ListOf(of(p.Node))
			}
		case "filter", "sort", "sortBy", "reverse", "take", "uniq":
			return of(n.Arguments[0])
		case "first", "last", "find", "findLast", "get":
			return unknown // may be nil
		}
	case *ast.ChainNode:
		return unknown // a?.b may be nil
	}
	nt := n.Nature()
	if nt == nil {
		return unknown
	}
	return typeOfNature(*nt, depth)
}

// typeOfMap returns the type of {a: x, b: y}, fields in that order.
func typeOfMap(n *ast.MapNode, of func(ast.Node) Type) Type {
	t := Type{Kind: TypeObject}
	for _, p := range n.Pairs {
		pair, ok := p.(*ast.PairNode)
		if !ok {
			return Type{Kind: TypeObject}
		}
		key := ""
		switch k := pair.Key.(type) {
		case *ast.StringNode:
			key = k.Value
		case *ast.IntegerNode:
			key = strconv.Itoa(k.Value)
		default:
			return Type{Kind: TypeObject}
		}
		if _, twice := t.field(key); twice {
			return Type{Kind: TypeObject}
		}
		t.Fields = append(t.Fields, Field{Name: key, Type: of(pair.Value)})
	}
	return t
}

func typeOfNature(n nature.Nature, depth int) Type {
	if n.Type == nil || depth > maxTypeDepth {
		return Type{Kind: TypeAny}
	}
	switch n.Kind {
	case reflect.String:
		return Type{Kind: TypeString}
	case reflect.Bool:
		return Type{Kind: TypeBool}
	case reflect.Float32, reflect.Float64:
		return Type{Kind: TypeFloat}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return Type{Kind: TypeInt}
	case reflect.Slice, reflect.Array:
		if n.Ref != nil {
			return ListOf(typeOfNature(*n.Ref, depth+1))
		}
		return ListOf(typeOfNature(nature.FromType(n.Type.Elem()), depth+1))
	case reflect.Map:
		return Type{Kind: TypeObject}
	}
	return Type{Kind: TypeAny}
}

// unify returns the type that covers values of t and of u.
func unify(t, u Type) Type {
	switch {
	case t.Equal(u):
		return t
	case t.Kind == TypeInt && u.Kind == TypeFloat, t.Kind == TypeFloat && u.Kind == TypeInt:
		return Type{Kind: TypeFloat}
	case t.Kind == TypeList && u.Kind == TypeList:
		return ListOf(unify(t.elem(), u.elem()))
	case t.Kind == TypeObject && u.Kind == TypeObject:
		return Type{Kind: TypeObject}
	}
	return Type{Kind: TypeAny}
}
