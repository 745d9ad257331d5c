package grammar

import (
	"fmt"
	"strconv"
	"strings"
)

// Dot draws the automaton in the DOT language, breadth first from the start,
// at most max places: a node is a place, doubled where the text may end, with
// the number of readings followed at once; an edge is the bytes that lead on.
// Forced text is drawn as one edge.
func (g *Grammar) Dot(max int) string {
	m := g.m
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	b.WriteString("digraph grammar {\n\trankdir=LR;\n\tnode [shape=circle, label=\"\"];\n")
	index := map[*place]int{m.begin: 0}
	order := []*place{m.begin}
	number := func(p *place) (int, bool) {
		i, ok := index[p]
		if !ok {
			if len(order) >= max {
				return 0, false
			}
			i = len(order)
			index[p] = i
			order = append(order, p)
		}
		return i, true
	}
	for i := 0; i < len(order); i++ {
		p := order[i]
		shape := "circle"
		if p.canEnd {
			shape = "doublecircle"
		}
		fmt.Fprintf(&b, "\tn%d [shape=%s, label=%q];\n", i, shape, strconv.Itoa(len(p.configs)))
		if f := m.forcedText(p); len(f) > 0 {
			q := p
			for _, c := range f {
				q = m.step(q, c)
			}
			if j, ok := number(q); ok {
				fmt.Fprintf(&b, "\tn%d -> n%d [label=%q, style=bold];\n", i, j, string(f))
			}
			continue
		}
		// One edge a target, in the order of its first byte.
		var targets []*place
		bytesTo := map[*place][]byte{}
		first := m.firstBytes(p)
		for c := range 256 {
			if first[c>>6]&(1<<(c&63)) == 0 {
				continue
			}
			if q := m.step(p, byte(c)); q != nil {
				if bytesTo[q] == nil {
					targets = append(targets, q)
				}
				bytesTo[q] = append(bytesTo[q], byte(c))
			}
		}
		for _, q := range targets {
			if j, ok := number(q); ok {
				fmt.Fprintf(&b, "\tn%d -> n%d [label=%q];\n", i, j, byteSet(bytesTo[q]))
			} else {
				fmt.Fprintf(&b, "\tn%d -> more [label=%q];\n", i, byteSet(bytesTo[q]))
			}
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// byteSet writes ascending bytes as ranges.
func byteSet(list []byte) string {
	show := func(c byte) string {
		if c > ' ' && c < 0x7F {
			return string(rune(c))
		}
		return fmt.Sprintf("\\x%02x", c)
	}
	var b strings.Builder
	for i := 0; i < len(list); {
		j := i
		for j+1 < len(list) && list[j+1] == list[j]+1 {
			j++
		}
		b.WriteString(show(list[i]))
		if j > i+1 {
			b.WriteString("-")
		}
		if j > i {
			b.WriteString(show(list[j]))
		}
		i = j + 1
	}
	return b.String()
}
