package lang

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"
)

// expand returns the parts of a text.
func (f *forecaster) expand(n *Node, t Template, l *line) []fpart {
	ps, err := t.pieces()
	if err != nil {
		return nil
	}
	var typs []Type
	g := f.g
	if g.origin != nil {
		g = g.origin
	}
	if x, ok := g.compiled.templates.Load(t); ok {
		for _, p := range x.(*text).pieces {
			if p.ex != nil {
				typs = append(typs, p.typ)
			}
		}
	}
	var out []fpart
	exprs := 0
	for _, p := range ps {
		if p.ex == "" {
			out = append(out, fpart{text: p.text})
			continue
		}
		t := Type{Kind: TypeAny}
		if exprs < len(typs) {
			t = typs[exprs]
		}
		exprs++
		w := f.value(p.ex, t, l)
		if w.known {
			out = append(out, fpart{text: FormatValue(w.value, t), volatile: w.volatile})
			continue
		}
		if w.open || f.hi && t.composite() { // as JSON it has more than its parts
			f.open.texts = true
		}
		if w.parts != nil {
			out = append(out, w.parts...)
		} else {
			out = append(out, fpart{hole: f.holes(w.tokens), label: "${" + string(p.ex) + "}", volatile: true})
		}
	}
	out = slices.DeleteFunc(out, func(p fpart) bool { return p.text == "" && p.hole == nil })
	for i := range out {
		out[i].at = 0 // its place in this context is not known yet
	}
	if !f.hi {
		shrink(out)
	}
	return out
}

// shrink makes texts that are not known shorter where they meet others without a sign
// or space between: there the whole may be a word of one token.
func shrink(parts []fpart) {
	joins := func(at int, end bool) bool {
		if at < 0 || at >= len(parts) {
			return false
		}
		p := parts[at]
		r, _ := utf8.DecodeRuneInString(p.text)
		if end {
			r, _ = utf8.DecodeLastRuneInString(p.text)
		}
		return p.text != "" && (unicode.IsLetter(r) || unicode.IsDigit(r)) || p.hole != nil
	}
	for i := range parts {
		if parts[i].hole == nil {
			continue
		}
		n := len(parts[i].hole)
		switch before, after := joins(i-1, true), joins(i+1, false); {
		case before || after && parts[i+1].hole == nil:
			n = 0
		case after:
			n = min(n, 1)
		}
		parts[i].hole = parts[i].hole[:n:n]
	}
}

// composite reports whether values of a type are written as JSON in texts.
func (t Type) composite() bool {
	return t.Kind == TypeList || t.Kind == TypeObject || t.Kind == TypeAny
}

func (f *forecaster) holes(n int) []int32 {
	ids := make([]int32, min(n, maxHole))
	for i := range ids {
		ids[i] = f.nextHole
		f.nextHole--
	}
	return ids
}

// value returns what is known of an expression.
func (f *forecaster) value(ex Expr, t Type, l *line) worth {
	w := worth{known: true, count: -1}
	reads := f.reads(ex)
	for _, name := range reads {
		v, ok := l.vars[name]
		w.known = w.known && ok && v.known
		w.volatile = w.volatile || v.volatile
	}
	if w.known {
		vars := make(map[string]any, len(reads))
		for _, name := range reads {
			vars[name] = l.vars[name].value
		}
		if v, err := f.g.Eval(ex, vars); err == nil {
			w.value = v
			return w
		}
		w.known = false
	}
	w.volatile = true
	if len(reads) == 1 && string(ex) == reads[0] {
		return l.vars[reads[0]]
	}
	if p, err := parseExpr(ex); err == nil {
		if w, ok := f.spell(p.tree.Node, l); ok {
			return w
		}
	}
	switch t.Kind {
	case TypeBool, TypeInt, TypeFloat:
		w.tokens, _ = f.unknownOf(t)
		return w
	}
	// A text made of some variables is at most about as long as they are
	// together; at the low end only a join has to hold them all.
	whole := f.hi || strings.HasPrefix(string(ex), "join(")
	for _, name := range reads {
		v := l.vars[name]
		if v.known && whole {
			w.tokens += f.length(FormatValue(v.value, Type{}))
		} else if !v.known && whole {
			w.tokens += v.tokens
		}
		w.open = w.open || v.open || f.hi && !v.known && v.count >= 0 && !strings.HasPrefix(string(ex), "join(")
		if v.count > 1 && f.hi {
			w.tokens += (v.count - 1) * f.lengthOf(f.texts(ex)) // what stands between the elements
		}
	}
	if f.hi {
		w.tokens += f.lengthOf(f.texts(ex))
	}
	return w
}

// spell puts a text together of its parts, for expressions that only do that:
// variables, strings, +, join, and elements of lists.
func (f *forecaster) spell(n ast.Node, l *line) (worth, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return worth{parts: []fpart{{text: n.Value}}, count: -1}, true
	case *ast.IdentifierNode:
		w, ok := l.vars[n.Value]
		if w.known {
			w.parts = []fpart{{text: FormatValue(w.value, Type{}), volatile: w.volatile}}
			if list, ok := w.value.([]any); ok {
				for _, v := range list {
					w.elems = append(w.elems, worth{parts: []fpart{{text: FormatValue(v, Type{}), volatile: w.volatile}}})
				}
			}
		}
		return w, ok && !w.open
	case *ast.BinaryNode:
		a, ok1 := f.spell(n.Left, l)
		b, ok2 := f.spell(n.Right, l)
		if n.Operator != "+" || !ok1 || !ok2 || a.parts == nil || b.parts == nil {
			return worth{}, false
		}
		return f.together(a.parts, b.parts), true
	case *ast.MemberNode:
		list, ok := f.spell(n.Node, l)
		if i, isInt := n.Property.(*ast.IntegerNode); ok && isInt && i.Value < len(list.elems) {
			return list.elems[i.Value], list.elems[i.Value].parts != nil
		}
	case *ast.CallNode:
		if c := textCall(n); c == nil || c.Callee.(*ast.IdentifierNode).Value != "join" {
			break
		}
		list, ok := f.spell(n.Arguments[0], l)
		if !ok || list.elems == nil && list.count != 0 {
			break
		}
		var sep []fpart
		if len(n.Arguments) > 1 {
			w, ok := f.spell(n.Arguments[1], l)
			if !ok {
				break
			}
			sep = w.parts
		}
		var all [][]fpart
		for i, e := range list.elems {
			if e.parts == nil {
				return worth{}, false
			}
			if i > 0 {
				all = append(all, sep)
			}
			all = append(all, e.parts)
		}
		return f.together(all...), true
	}
	return f.spelled(n, l)
}

// spelled is spell for a part of an expression that reads what is known.
func (f *forecaster) spelled(n ast.Node, l *line) (worth, bool) {
	ex := Expr(n.String())
	vars := map[string]any{}
	for _, name := range f.reads(ex) {
		v, ok := l.vars[name]
		if !ok || !v.known {
			return worth{}, false
		}
		vars[name] = v.value
	}
	v, err := f.g.Eval(ex, vars)
	if err != nil {
		return worth{}, false
	}
	return worth{parts: []fpart{{text: FormatValue(v, Type{})}}, count: -1}, true
}

// together returns the worth of some texts one after the other.
func (f *forecaster) together(texts ...[]fpart) worth {
	w := worth{parts: []fpart{}, volatile: true, count: -1}
	for _, ps := range texts {
		for _, p := range ps {
			w.tokens += len(p.hole)
			if p.text != "" {
				w.tokens += f.length(p.text)
			}
		}
		w.parts = append(w.parts, ps...)
	}
	return w
}

// length bounds the tokens of a text that stands beside another: at its edges
// one may be more or less than alone.
func (f *forecaster) length(s string) int {
	if s == "" {
		return 0
	}
	ids, err := f.o.Estimator.Tokenize([]Turn{{Text: s}}, false)
	if err != nil {
		f.fail(err)
	}
	if f.hi {
		return len(ids) + 1
	}
	return max(0, len(ids)-2)
}

func (f *forecaster) lengthOf(texts []string) int {
	n := 0
	for _, s := range texts {
		n += f.length(s)
	}
	return n
}

// texts returns the strings that an expression holds.
func (f *forecaster) texts(ex Expr) []string {
	p, err := f.g.program(ex)
	if err != nil {
		return nil
	}
	return p.texts
}

func (f *forecaster) reads(ex Expr) []string {
	p, err := f.g.program(ex)
	if err != nil {
		return nil
	}
	return p.reads
}

// items returns how many elements a list has and those that are known.
func (f *forecaster) items(n *Node, ex Expr, l *line) (int, []worth) {
	w := f.value(ex, Type{Kind: TypeList}, l)
	if list, ok := w.value.([]any); w.known && ok {
		out := make([]worth, len(list))
		for i, v := range list {
			out[i] = worth{known: true, value: v, volatile: w.volatile, count: -1}
		}
		return len(out), out
	}
	if w.count >= 0 {
		return w.count, nil
	}
	f.open.rounds = true
	f.note("%s: how many items %s has is not known", n.ID, clip(string(ex), 40))
	if f.hi {
		return 1, nil
	}
	return 0, nil
}
