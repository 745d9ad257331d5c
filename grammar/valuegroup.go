package grammar

import (
	"cmp"
	"slices"
)

// valueGroup is a value alone, or values that hold each other.
type valueGroup struct {
	members []*valueNode
	texts   map[int32]ending // the shortest of each, as far as is known
	busy    bool             // they are being settled
}

// groupOf returns the group of a value. Groups are the strongly connected components
// of the values; they are found as Tarjan does ("Depth-first search and linear graph
// algorithms", 1972), so that they do not depend on which value is asked for first.
func (m *machine) groupOf(v *valueNode) *valueGroup {
	e := &m.ends
	if e.groups == nil {
		e.groups = map[*valueNode]*valueGroup{}
	}
	if g := e.groups[v]; g != nil {
		return g
	}
	index, low := map[*valueNode]int{}, map[*valueNode]int{}
	var stack []*valueNode
	var visit func(x *valueNode)
	visit = func(x *valueNode) {
		index[x] = len(index) + 1
		low[x] = index[x]
		stack = append(stack, x)
		x.within(func(y *valueNode) {
			switch {
			case e.groups[y] != nil: // it does not lead back here
			case index[y] == 0:
				visit(y)
				low[x] = min(low[x], low[y])
			default:
				low[x] = min(low[x], index[y])
			}
		})
		if low[x] < index[x] {
			return
		}
		i := slices.Index(stack, x)
		g := &valueGroup{members: slices.Clone(stack[i:])}
		slices.SortFunc(g.members, func(a, b *valueNode) int { return cmp.Compare(a.id, b.id) })
		for _, y := range g.members {
			e.groups[y] = g
		}
		stack = stack[:i]
	}
	visit(v)
	return e.groups[v]
}

// within calls visit for every value inside v and every one that its rule names.
func (v *valueNode) within(visit func(*valueNode)) {
	v.children(visit)
	var named func(x *expr)
	named = func(x *expr) {
		if x.val != nil {
			visit(x.val)
		}
		for _, y := range x.list {
			named(y)
		}
	}
	if v.rule != nil {
		named(v.rule)
	}
}
