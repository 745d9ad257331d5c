package grammar

import (
	"fmt"
	"strconv"
	"strings"
)

// drawing is what a picture of an automaton shows.
type drawing struct {
	places []drawnPlace
	edges  []drawnEdge
}

type drawnPlace struct {
	readings int // ways to read the text so far that are followed at once
	end      bool
}

// drawnEdge leads from one place to another, -1 for one that is not drawn.
type drawnEdge struct {
	from, to int
	label    string
	forced   bool
}

// draw walks the automaton breadth first from the start, at most max places.
func (g *Grammar) draw(max int) *drawing {
	m := g.m
	m.mu.Lock()
	defer m.mu.Unlock()
	out := &drawing{}
	index := map[*place]int{m.begin: 0}
	order := []*place{m.begin}
	number := func(p *place) int {
		i, ok := index[p]
		if !ok {
			if len(order) >= max {
				return -1
			}
			i = len(order)
			index[p] = i
			order = append(order, p)
		}
		return i
	}
	for i := 0; i < len(order); i++ {
		p := order[i]
		out.places = append(out.places, drawnPlace{len(p.configs), p.canEnd})
		if f := m.forcedText(p); len(f) > 0 {
			q := p
			for _, c := range f {
				q = m.step(q, c)
			}
			out.edges = append(out.edges, drawnEdge{i, number(q), string(f), true})
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
			out.edges = append(out.edges, drawnEdge{i, number(q), byteSet(bytesTo[q]), false})
		}
	}
	return out
}

// Dot draws the automaton in the DOT language, breadth first from the start,
// at most max places: a node is a place, doubled where the text may end, with
// the number of readings followed at once; an edge is the bytes that lead on.
// Forced text is drawn as one edge. Edges to places beyond max end in "more".
func (g *Grammar) Dot(max int) string {
	d := g.draw(max)
	var b strings.Builder
	b.WriteString("digraph grammar {\n\trankdir=LR;\n\tnode [shape=circle, label=\"\"];\n")
	edges := d.edges
	for i, p := range d.places {
		shape := "circle"
		if p.end {
			shape = "doublecircle"
		}
		fmt.Fprintf(&b, "\tn%d [shape=%s, label=%q];\n", i, shape, strconv.Itoa(p.readings))
		for ; len(edges) > 0 && edges[0].from == i; edges = edges[1:] {
			e := edges[0]
			to, style := "more", ""
			if e.to >= 0 {
				to = "n" + strconv.Itoa(e.to)
			}
			if e.forced {
				style = ", style=bold"
			}
			fmt.Fprintf(&b, "\tn%d -> %s [label=%q%s];\n", i, to, e.label, style)
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// Mermaid is Dot as a Mermaid flowchart: a place where the text may end is a
// double circle, a forced text a thick arrow.
func (g *Grammar) Mermaid(max int) string {
	d := g.draw(max)
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	for i, p := range d.places {
		if p.end {
			fmt.Fprintf(&b, "\tn%d(((%d)))\n", i, p.readings)
		} else {
			fmt.Fprintf(&b, "\tn%d((%d))\n", i, p.readings)
		}
	}
	for _, e := range d.edges {
		to, arrow := "more", "-->"
		if e.to >= 0 {
			to = "n" + strconv.Itoa(e.to)
		}
		if e.forced {
			arrow = "==>"
		}
		fmt.Fprintf(&b, "\tn%d %s|\"%s\"| %s\n", e.from, arrow, mermaidText(e.label), to)
	}
	return b.String()
}

// mermaidText writes what Mermaid would read as markup as character codes.
func mermaidText(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r < ' ' || strings.ContainsRune("\"#`<>|&;\\[](){}", r) || r == 0xFFFD {
			fmt.Fprintf(&b, "#%d;", r)
			continue
		}
		b.WriteRune(r)
	}
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
