package lang

import (
	"fmt"
	"strconv"
)

// Limits of programs.
const (
	maxBodyDepth = 64
	maxNodes     = 1 << 17
	maxRepeat    = 1_000_000
)

// structure checks that the graph is a tree whose nodes hold exactly what their
// kinds say. The other passes rely on it.
func (c *analysis) structure() bool {
	seen := map[*Node]bool{}
	ok := true
	var walk func(body []*Node, depth int, around Pos)
	walk = func(body []*Node, depth int, around Pos) {
		if depth > maxBodyDepth {
			c.errs = append(c.errs, &Error{Pos: around, Msg: fmt.Sprintf("bodies nested deeper than %d", maxBodyDepth), Hint: "split the program"})
			ok = false
			return
		}
		for _, n := range body {
			if n == nil {
				c.errs = append(c.errs, &Error{Pos: around, Msg: "a node is nil"})
				ok = false
				continue
			}
			if seen[n] {
				c.errs = append(c.errs, &Error{Pos: n.Pos, Msg: "a node stands in two places or inside of itself", Hint: "write it once for each place"})
				ok = false
				continue
			}
			seen[n] = true
			if len(seen) > maxNodes {
				if ok {
					c.errs = append(c.errs, &Error{Pos: n.Pos, Msg: fmt.Sprintf("more than %d nodes", maxNodes), Hint: "use foreach or fork over a list"})
				}
				ok = false
				return
			}
			if n.payload() != n.Kind || n.payloads() != 1 {
				c.errs = append(c.errs, &Error{Pos: n.Pos, Msg: fmt.Sprintf("node of kind %q does not hold exactly a %q", n.Kind, n.Kind)})
				ok = false
				continue
			}
			for _, b := range n.bodies() {
				walk(b.nodes, depth+1, n.Pos)
			}
		}
	}
	walk(c.g.Body, 0, Pos{})
	return ok
}

// payload returns the kind of what the node holds.
func (n *Node) payload() Kind {
	switch {
	case n.Text != nil:
		return KindText
	case n.Image != nil:
		return KindImage
	case n.Role != nil:
		return KindRole
	case n.Gen != nil:
		return KindGen
	case n.Select != nil:
		return KindSelect
	case n.JSON != nil:
		return KindJSON
	case n.Fork != nil:
		return KindFork
	case n.Call != nil:
		return KindCall
	case n.When != nil:
		return KindWhen
	case n.Repeat != nil:
		return KindRepeat
	case n.ForEach != nil:
		return KindForEach
	case n.Run != nil:
		return KindRun
	case n.Sleep != nil:
		return KindSleep
	case n.Wait != nil:
		return KindWait
	case n.Let != nil:
		return KindLet
	case n.Return != nil:
		return KindReturn
	}
	return ""
}

func (n *Node) payloads() int {
	count := 0
	for _, set := range []bool{n.Text != nil, n.Image != nil, n.Role != nil, n.Gen != nil, n.Select != nil, n.JSON != nil, n.Fork != nil,
		n.Call != nil, n.When != nil, n.Repeat != nil, n.ForEach != nil, n.Run != nil, n.Sleep != nil, n.Wait != nil, n.Let != nil, n.Return != nil} {
		if set {
			count++
		}
	}
	return count
}

// assignIDs gives each node its path.
func (c *analysis) assignIDs(body []*Node, prefix string) {
	named := map[string]int{}
	for _, n := range body {
		if n.Name != "" {
			named[n.Name]++
		}
	}
	used := map[string]int{}
	for _, n := range body {
		base := n.Name
		if base == "" {
			base = n.anonymous()
			if named[base] > 0 && used[base] == 0 {
				used[base] = 1 // a name takes the plain form
			}
		}
		used[base]++
		n.ID = prefix + base
		if k := used[base]; k > 1 {
			n.ID += "#" + strconv.Itoa(k)
		}
		if n.Name != "" && used[base] > 1 && (n.Kind == KindRole || n.Kind == KindSleep || n.Kind == KindWhen || n.Kind == KindRepeat) {
			c.fail(n, fmt.Sprintf("the name %q is taken in this body", n.Name), "give the "+string(n.Kind)+" another name")
		}
		for _, b := range n.bodies() {
			p := n.ID + "/"
			if b.name != "" {
				p += b.name + "/"
			}
			c.assignIDs(b.nodes, p)
		}
	}
}

// anonymous returns what stands for a node without a name in paths.
func (n *Node) anonymous() string {
	if n.Text != nil && n.Text.Role != "" {
		return n.Text.Role
	}
	return string(n.Kind)
}

// isPathName reports whether s can stand in a path.
func isPathName(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i := 0; i < len(s); i++ {
		if !isNameByte(s[i]) && (i == 0 || s[i] != '-' && s[i] != '.') {
			return false
		}
	}
	return true
}
