package lang

import "strings"

// expand returns the parts of a text.
func (f *forecaster) expand(n *Node, t Template, l *line) []fpart {
	ps, err := t.pieces()
	if err != nil {
		return nil
	}
	var typs []Type
	if x, ok := f.g.compiled.templates.Load(t); ok {
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
		if w.open {
			f.open.texts = true
		}
		out = append(out, fpart{hole: f.holes(w.tokens), label: "${" + string(p.ex) + "}", volatile: true})
	}
	return out
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
	switch t.Kind {
	case TypeBool, TypeInt, TypeFloat:
		w.tokens, _ = f.unknownOf(t)
		return w
	}
	// A text made of some variables is about as long as they are together; at
	// the low end only a join has to hold them all.
	whole := f.hi || strings.HasPrefix(string(ex), "join(")
	for _, name := range reads {
		v := l.vars[name]
		if v.known {
			if whole {
				w.tokens += lengthOf(FormatValue(v.value, Type{}))
			}
			continue
		}
		if whole {
			w.tokens += v.tokens + max(0, v.count-1)
		}
		w.open = w.open || v.open
	}
	return w
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
