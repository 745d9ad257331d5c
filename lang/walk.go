package lang

// Walk calls f for each node in the order of the source, a node before its
// bodies. If f returns false the node's bodies are left out. The steps of a program
// that a node runs are its body.
func (g *Graph) Walk(f func(*Node) bool) { walkBody(g.Body, f) }

func walkBody(body []*Node, f func(*Node) bool) {
	for _, n := range body {
		if n == nil || !f(n) {
			continue
		}
		for _, b := range n.bodies() {
			walkBody(b.nodes, f)
		}
	}
}

// Node returns the node with the ID, or nil.
func (g *Graph) Node(id string) *Node {
	if g.compiled.nodes != nil {
		return g.compiled.nodes[id]
	}
	var found *Node
	g.Walk(func(n *Node) bool {
		if n.ID == id {
			found = n
		}
		return found == nil
	})
	return found
}

// body is one of the bodies of a node with the name that stands for it in
// paths; empty for nodes with a single one.
type body struct {
	name  string
	nodes []*Node
}

// bodies returns the bodies of a node in the order of the source.
func (n *Node) bodies() []body {
	switch {
	case n.Role != nil:
		return []body{{nodes: n.Role.Body}}
	case n.Fork != nil:
		if len(n.Fork.Arms) > 0 {
			out := make([]body, len(n.Fork.Arms))
			for i, a := range n.Fork.Arms {
				out[i] = body{a.Name, a.Body}
			}
			return out
		}
		return []body{{nodes: n.Fork.Body}}
	case n.When != nil:
		out := []body{{"then", n.When.Then}}
		if n.When.Else != nil {
			out = append(out, body{"else", n.When.Else})
		}
		return out
	case n.Repeat != nil:
		return []body{{nodes: n.Repeat.Body}}
	case n.ForEach != nil:
		return []body{{nodes: n.ForEach.Body}}
	case n.Run != nil && n.Run.graph != nil:
		return []body{{nodes: n.Run.graph.Body}}
	}
	return nil
}
