package lang

import (
	"fmt"
	"strconv"
	"strings"
)

// Mermaid returns a picture of the graph in the language of Mermaid.
func Mermaid(g *Graph) string {
	p := drawing{pen: &mermaidPen{}}
	return p.draw(g)
}

// DOT returns a picture of the graph in the language of Graphviz.
func DOT(g *Graph) string {
	p := drawing{pen: &dotPen{}}
	return p.draw(g)
}

// pen writes a picture in some language.
type pen interface {
	begin(name string)
	box(id, label string, shape boxShape)
	open(id, label string) // a frame around what follows
	close()
	arrow(from, to, label string)
	end() string
}

// boxShape says what a box stands for.
type boxShape uint8

const (
	boxText  boxShape = iota // text of the program
	boxModel                 // the model is asked
	boxCall                  // a Go function
	boxTest                  // a condition
	boxPoint                 // a fork or join
	boxEnd                   // input or result
)

// drawing walks a graph and draws it with a pen.
//
// Arrows come after all boxes: both languages take a box that an arrow names
// inside a frame to be inside of it.
type drawing struct {
	pen    pen
	next   int
	arrows [][3]string // from, to, label

	inner   int    // programs that a step runs around this place
	returns []port // of the innermost of them
}

// port is the end of an arrow that is still to be drawn.
type port struct{ from, label string }

func (d *drawing) id() string {
	d.next++
	return "n" + strconv.Itoa(d.next)
}

func (d *drawing) draw(g *Graph) string {
	d.pen.begin(g.Name)
	start := d.id()
	label := g.Name
	for i, in := range g.Inputs {
		if i == 0 {
			label += "("
		} else {
			label += ", "
		}
		label += in.Name + " " + in.Type.String()
	}
	if len(g.Inputs) > 0 {
		label += ")"
	}
	d.pen.box(start, label, boxEnd)
	out := d.body(g.Body, []port{{start, ""}})
	if len(out) > 0 {
		end := d.id()
		d.pen.box(end, "end", boxEnd)
		d.join(out, end)
	}
	for _, a := range d.arrows {
		d.pen.arrow(a[0], a[1], a[2])
	}
	return d.pen.end()
}

func (d *drawing) join(from []port, to string) {
	for _, p := range from {
		d.arrows = append(d.arrows, [3]string{p.from, to, p.label})
	}
}

// body draws a body that is entered from the ports and returns those that leave
// it. Texts in a row are one box.
func (d *drawing) body(nodes []*Node, in []port) []port {
	for i := 0; i < len(nodes); i++ {
		n := nodes[i]
		if n.Kind == KindText {
			var lines []string
			for ; i < len(nodes) && nodes[i].Kind == KindText; i++ {
				lines = append(lines, textLabel(nodes[i]))
			}
			i--
			in = d.step(in, strings.Join(lines, "\n"), boxText)
			continue
		}
		in = d.node(n, in)
	}
	return in
}

func (d *drawing) step(in []port, label string, shape boxShape) []port {
	id := d.id()
	d.pen.box(id, label, shape)
	d.join(in, id)
	return []port{{id, ""}}
}

func (d *drawing) node(n *Node, in []port) []port {
	switch n.Kind {
	case KindRole:
		d.pen.open(d.id(), n.Role.Role+" turn")
		in = d.body(n.Role.Body, in)
		d.pen.close()
	case KindGen, KindJSON:
		in = d.step(in, string(n.Kind)+" "+n.Name, boxModel)
	case KindSelect:
		label := "select " + n.Name
		if len(n.Select.Options) > 0 {
			label += "\n" + preview(strings.Join(n.Select.Options, " | "), 60)
		} else {
			label += "\nfrom " + preview(string(n.Select.From), 40)
		}
		if n.Select.Method != "" {
			label += "\nby " + string(n.Select.Method)
		}
		in = d.step(in, label, boxModel)
	case KindCall:
		label := "call " + n.Call.Func
		if n.Name != "" && n.Name != n.Call.Func {
			label = n.Name + " = " + n.Call.Func
		}
		in = d.step(in, label, boxCall)
	case KindSleep:
		in = d.step(in, "sleep "+n.Sleep.For.String(), boxCall)
	case KindWait:
		label := "wait for " + n.Name
		if n.Wait.Timeout > 0 {
			label += "\nat most " + n.Wait.Timeout.String()
		}
		in = d.step(in, label, boxCall)
	case KindLet:
		in = d.step(in, n.Name+" = "+preview(string(n.Let.Value), 40), boxText)
	case KindRun:
		in = d.program(n, in)
	case KindReturn:
		out := d.step(in, "return "+preview(string(n.Return.Value), 40), boxEnd)
		if d.inner > 0 { // back to what runs the program
			d.returns = append(d.returns, out...)
		}
		return nil
	case KindFork:
		in = d.fork(n, in)
	case KindWhen:
		test := d.step(in, preview(string(n.When.If), 60), boxTest)[0].from
		yes := d.body(n.When.Then, []port{{test, "yes"}})
		no := d.body(n.When.Else, []port{{test, "no"}})
		in = append(yes, no...)
	case KindRepeat:
		label := fmt.Sprintf("repeat %s, at most %d times", n.Name, n.Repeat.Max)
		if n.Repeat.Until != "" {
			label += "\nuntil " + preview(string(n.Repeat.Until), 50)
		}
		in = d.loop(n, label, n.Repeat.Body, in)
	case KindForEach:
		in = d.loop(n, fmt.Sprintf("for each %s of %s", n.ForEach.As, preview(string(n.ForEach.Over), 40)), n.ForEach.Body, in)
	}
	return in
}

func (d *drawing) loop(n *Node, label string, body []*Node, in []port) []port {
	d.pen.open(d.id(), label)
	head := d.step(in, n.Name, boxPoint)
	out := d.body(body, head)
	d.pen.close()
	for _, p := range out {
		if p.from != head[0].from {
			d.arrows = append(d.arrows, [3]string{p.from, head[0].from, "again"})
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// program draws a program that a step runs, in a frame.
func (d *drawing) program(n *Node, in []port) []port {
	label := n.Run.Program
	if n.Name != "" && n.Name != label {
		label = n.Name + " = " + label
	}
	d.pen.open(d.id(), "run "+label)
	head := d.step(in, label, boxEnd)
	outer := d.returns
	d.returns, d.inner = nil, d.inner+1
	out := append(d.body(n.Run.graph.Body, head), d.returns...)
	d.returns, d.inner = outer, d.inner-1
	d.pen.close()
	return out
}

func (d *drawing) fork(n *Node, in []port) []port {
	f := n.Fork
	top := d.step(in, "fork "+n.Name, boxPoint)[0].from
	var ends []port
	branch := func(label string, body []*Node, yield Expr) {
		d.pen.open(d.id(), label)
		out := d.body(body, []port{{top, ""}})
		d.pen.close()
		for _, p := range out {
			if p.from == top {
				p.label = preview(label, 30)
			}
			if p.label == "" && yield != "" {
				p.label = preview(string(yield), 30)
			}
			ends = append(ends, p)
		}
	}
	switch {
	case len(f.Arms) > 0:
		for _, a := range f.Arms {
			branch(a.Name, a.Body, a.Yield)
		}
	case f.Over != "":
		branch("for each "+f.As+" of "+preview(string(f.Over), 40), f.Body, f.Yield)
	default:
		branch("for each "+f.As+" of "+preview(strings.Join(f.Items, ", "), 60), f.Body, f.Yield)
	}
	label := n.Name
	switch f.Join.Kind {
	case "quorum":
		label += "\nquorum of " + strconv.Itoa(f.Join.N)
	case "":
	default:
		label += "\n" + f.Join.Kind
	}
	return d.step(ends, label, boxPoint)
}

func textLabel(n *Node) string {
	role := n.Text.Role
	if role == "" {
		role = "text"
	}
	return role + ": " + preview(string(n.Text.Content), 48)
}

type mermaidPen struct {
	b      strings.Builder
	indent int
}

func (p *mermaidPen) line(format string, args ...any) {
	p.b.WriteString(strings.Repeat("  ", p.indent+1))
	fmt.Fprintf(&p.b, format, args...)
	p.b.WriteByte('\n')
}

func (p *mermaidPen) begin(string) { p.b.WriteString("flowchart TD\n") }

func (p *mermaidPen) box(id, label string, shape boxShape) {
	l, r := "[", "]"
	switch shape {
	case boxModel:
		l, r = "([", "])"
	case boxCall:
		l, r = "[[", "]]"
	case boxTest:
		l, r = "{", "}"
	case boxPoint:
		l, r = "((", "))"
	case boxEnd:
		l, r = "(", ")"
	}
	p.line("%s%s%s%s", id, l, mermaidQuote(label), r)
}

func (p *mermaidPen) open(id, label string) {
	p.line("subgraph %s[%s]", id, mermaidQuote(label))
	p.indent++
}

func (p *mermaidPen) close() {
	p.indent--
	p.line("end")
}

func (p *mermaidPen) arrow(from, to, label string) {
	if label == "" {
		p.line("%s --> %s", from, to)
		return
	}
	p.line("%s -- %s --> %s", from, mermaidQuote(label), to)
}

func (p *mermaidPen) end() string { return p.b.String() }

// mermaidQuote writes a label so that nothing in it is read as Mermaid or HTML.
func mermaidQuote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '\n':
			b.WriteString("<br>")
		case strings.ContainsRune("\"#<>&`\\;", r):
			fmt.Fprintf(&b, "#%d;", r)
		case r < ' ':
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

type dotPen struct {
	b      strings.Builder
	indent int
}

func (p *dotPen) line(format string, args ...any) {
	p.b.WriteString(strings.Repeat("\t", p.indent))
	fmt.Fprintf(&p.b, format, args...)
	p.b.WriteByte('\n')
}

func (p *dotPen) begin(name string) {
	p.line("digraph %s {", dotQuote(name))
	p.indent++
	p.line("rankdir=TB; node [fontname=\"sans-serif\", shape=box]; edge [fontname=\"sans-serif\"];")
}

func (p *dotPen) box(id, label string, shape boxShape) {
	style := "shape=box"
	switch shape {
	case boxModel:
		style = "shape=box, style=\"rounded,filled\", fillcolor=\"#e8f0ff\""
	case boxCall:
		style = "shape=component"
	case boxTest:
		style = "shape=diamond"
	case boxPoint:
		style = "shape=ellipse"
	case boxEnd:
		style = "shape=box, style=rounded"
	}
	p.line("%s [label=%s, %s];", id, dotQuote(label), style)
}

func (p *dotPen) open(id, label string) {
	p.line("subgraph cluster_%s {", id)
	p.indent++
	p.line("label=%s; style=dashed;", dotQuote(label))
}

func (p *dotPen) close() {
	p.indent--
	p.line("}")
}

func (p *dotPen) arrow(from, to, label string) {
	if label == "" {
		p.line("%s -> %s;", from, to)
		return
	}
	p.line("%s -> %s [label=%s];", from, to, dotQuote(label))
}

func (p *dotPen) end() string {
	p.b.WriteString("}\n")
	return p.b.String()
}

// dotQuote writes a label as a quoted string of DOT.
func dotQuote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r < ' ':
			b.WriteByte(' ')
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
