package grammar

import (
	"slices"
	"strconv"
)

// This file turns the rules of an EBNF grammar into what the machine runs:
// lexemes where nothing recurs, continuations elsewhere, no left recursion.

// linkRules turns the rules into values. What no recursion goes through
// becomes part of lexemes; the rest stays rules.
func (c *compiler) linkRules(p *ebnfParser, root int32) (*valueNode, error) {
	l := &linker{ebnfParser: p, state: make([]uint8, len(p.body)), lexeme: make([]nodeID, len(p.body)), recursive: make([]bool, len(p.body))}
	l.findRecursion()
	for r := range p.body {
		l.fold(int32(r))
	}
	l.leftRecursion()
	l.prune()
	if !l.live[root] {
		return nil, &Error{Kind: ErrUnsatisfiable, Source: p.source, Msg: "the first rule has no finite text"}
	}
	if !l.recursive[root] {
		return c.scalar(l.lexeme[root]), nil
	}
	values := make([]*valueNode, len(p.body))
	for r := range l.body {
		values[r] = &valueNode{id: c.newValueID(), state: 2, alive: true}
	}
	for r, b := range l.body {
		b.link(values)
		values[r].rule = b
	}
	return values[root], nil
}

type linker struct {
	*ebnfParser
	state     []uint8
	lexeme    []nodeID // of rules without recursion
	recursive []bool
	live      []bool
}

// uses calls visit for every rule that e names.
func (e *expr) uses(visit func(int32)) {
	if e.kind == exRef {
		visit(e.rule)
	}
	for _, x := range e.list {
		x.uses(visit)
	}
}

// hasValue reports whether e holds a JSON value, which is no lexeme.
func (e *expr) hasValue() bool {
	return e.kind == exVal || slices.ContainsFunc(e.list, (*expr).hasValue)
}

// findRecursion marks the rules that reach themselves or hold values, and those
// that use such rules.
func (l *linker) findRecursion() {
	n := len(l.body)
	for r, b := range l.body {
		l.recursive[r] = b.hasValue()
	}
	index, low := make([]int, n), make([]int, n)
	on := make([]bool, n)
	var stack []int32
	next := 1
	var visit func(r int32, depth int)
	visit = func(r int32, depth int) {
		if depth > 20000 {
			failf(ErrTooLarge, l.source, "", "", "rules are nested too deep")
		}
		index[r], low[r] = next, next
		next++
		stack = append(stack, r)
		on[r] = true
		l.body[r].uses(func(s int32) {
			switch {
			case s == r:
				l.recursive[r] = true
			case index[s] == 0:
				visit(s, depth+1)
				low[r] = min(low[r], low[s])
			case on[s]:
				low[r] = min(low[r], index[s])
			}
			if l.recursive[s] {
				l.recursive[r] = true
			}
		})
		if low[r] == index[r] {
			i := slices.Index(stack, r)
			for _, s := range stack[i:] {
				on[s] = false
				if len(stack)-i > 1 {
					l.recursive[s] = true
				}
			}
			if l.recursive[r] {
				for _, s := range stack[i:] {
					l.recursive[s] = true
				}
			}
			stack = stack[:i]
		}
	}
	for r := range n {
		if index[r] == 0 {
			visit(int32(r), 0)
		}
	}
	// A rule that uses a recursive one found later is not a lexeme either.
	for changed := true; changed; {
		changed = false
		for r := range n {
			if l.recursive[r] {
				continue
			}
			l.body[r].uses(func(s int32) {
				if l.recursive[s] && !l.recursive[r] {
					l.recursive[r] = true
					changed = true
				}
			})
		}
	}
}

// fold replaces what is regular in a rule by lexemes.
func (l *linker) fold(r int32) {
	if l.state[r] != 0 {
		return
	}
	l.state[r] = 1
	l.body[r] = l.foldExpr(l.body[r])
	if !l.recursive[r] {
		l.lexeme[r] = l.body[r].lex
	}
	l.state[r] = 2
}

func (l *linker) foldExpr(e *expr) *expr {
	c := l.c
	switch e.kind {
	case exRef:
		if l.recursive[e.rule] {
			return e
		}
		l.fold(e.rule)
		return &expr{lex: l.lexeme[e.rule]}
	case exRep:
		x := l.foldExpr(e.list[0])
		if x.kind == exLex {
			return &expr{lex: c.rep(x.lex, e.m, e.n)}
		}
		return &expr{kind: exRep, list: []*expr{x}, m: e.m, n: e.n}
	case exAnd, exNot:
		list := make([]nodeID, len(e.list))
		for i, x := range e.list {
			if x = l.foldExpr(x); x.kind != exLex {
				l.pos = e.at
				l.fail(ErrUnsupported, "& and ~ are for terminals, and lazy and suffix for rules that do not recurse")
			}
			list[i] = x.lex
		}
		if e.kind == exNot {
			return &expr{lex: c.and(c.anyText[encRaw], c.pool.not(list[0]))}
		}
		lex := c.and(list...)
		if !c.nonEmpty(lex) {
			lex = rxEmpty
		}
		return &expr{lex: lex}
	case exSeq:
		var out []*expr
		for _, x := range e.list {
			x = l.foldExpr(x)
			if x.kind == exSeq {
				out = append(out, x.list...)
				continue
			}
			out = append(out, x)
		}
		joined := out[:0:0]
		for _, x := range out {
			if n := len(joined); n > 0 && x.kind == exLex && joined[n-1].kind == exLex {
				joined[n-1] = &expr{lex: c.cat(joined[n-1].lex, x.lex)}
				continue
			}
			joined = append(joined, x)
		}
		switch len(joined) {
		case 0:
			return &expr{lex: rxEps}
		case 1:
			return joined[0]
		}
		return &expr{kind: exSeq, list: joined}
	case exAlt:
		var out []*expr
		lex := rxEmpty
		for _, x := range e.list {
			x = l.foldExpr(x)
			if x.kind == exLex {
				lex = c.alt(lex, x.lex)
				continue
			}
			out = append(out, x)
		}
		if lex != rxEmpty || len(out) == 0 {
			out = append(out, &expr{lex: lex})
		}
		if len(out) == 1 {
			return out[0]
		}
		return &expr{kind: exAlt, list: out}
	}
	return e
}

// nullable reports whether e may be empty, given which rules may be.
func (l *linker) nullable(e *expr, rules []bool) bool {
	switch e.kind {
	case exLex:
		return l.c.pool.nullable(e.lex)
	case exRef:
		return rules[e.rule]
	case exVal:
		return false
	case exRep:
		return e.m == 0 || l.nullable(e.list[0], rules)
	case exAlt:
		return slices.ContainsFunc(e.list, func(x *expr) bool { return l.nullable(x, rules) })
	}
	return !slices.ContainsFunc(e.list, func(x *expr) bool { return !l.nullable(x, rules) })
}

// leftRecursion rewrites A ::= A x | y as A ::= y x* and refuses what remains
// of left recursion.
func (l *linker) leftRecursion() {
	for r, b := range l.body {
		if !l.recursive[r] {
			continue
		}
		alts := []*expr{b}
		if b.kind == exAlt {
			alts = b.list
		}
		var rest, more []*expr
		self := false
		for _, a := range alts {
			switch {
			case a.kind == exRef && a.rule == int32(r): // A ::= A
				self = true
			case a.kind == exSeq && a.list[0].kind == exRef && a.list[0].rule == int32(r):
				more = append(more, &expr{kind: exSeq, list: a.list[1:]})
			default:
				rest = append(rest, a)
			}
		}
		switch {
		case self && len(more) == 0:
			l.body[r] = l.foldExpr(&expr{kind: exAlt, list: rest})
		case len(more) > 0:
			l.body[r] = l.foldExpr(&expr{kind: exSeq, list: []*expr{{kind: exAlt, list: rest},
				{kind: exRep, list: []*expr{{kind: exAlt, list: more}}, n: -1}}})
		}
	}
	rules := make([]bool, len(l.body))
	for changed := true; changed; {
		changed = false
		for r, b := range l.body {
			if !rules[r] && l.nullable(b, rules) {
				rules[r], changed = true, true
			}
		}
	}
	// What may stand first in each rule.
	first := make([][]int32, len(l.body))
	for r, b := range l.body {
		first[r] = l.firstRules(nil, b, rules)
	}
	color := make([]uint8, len(l.body))
	var visit func(r int32)
	visit = func(r int32) {
		color[r] = 1
		for _, s := range first[r] {
			switch color[s] {
			case 0:
				visit(s)
			case 1:
				l.pos = l.at[s]
				l.fail(ErrUnsupported, "rule "+strconv.Quote(l.names[s])+" begins with itself by way of other rules or of what may be empty")
			}
		}
		color[r] = 2
	}
	for r := range l.body {
		if color[r] == 0 {
			visit(int32(r))
		}
	}
}

func (l *linker) firstRules(out []int32, e *expr, rules []bool) []int32 {
	switch e.kind {
	case exRef:
		return append(out, e.rule)
	case exRep:
		return l.firstRules(out, e.list[0], rules)
	case exAlt:
		for _, x := range e.list {
			out = l.firstRules(out, x, rules)
		}
	case exSeq:
		for _, x := range e.list {
			out = l.firstRules(out, x, rules)
			if !l.nullable(x, rules) {
				break
			}
		}
	}
	return out
}

// prune finds the rules with a finite text and removes what uses others.
func (l *linker) prune() {
	l.live = make([]bool, len(l.body))
	var ok func(e *expr) bool
	ok = func(e *expr) bool {
		switch e.kind {
		case exLex:
			return e.lex != rxEmpty
		case exRef:
			return l.live[e.rule]
		case exVal:
			return true
		case exRep:
			return e.m == 0 || ok(e.list[0])
		case exAlt:
			return slices.ContainsFunc(e.list, ok)
		}
		return !slices.ContainsFunc(e.list, func(x *expr) bool { return !ok(x) })
	}
	for changed := true; changed; {
		changed = false
		for r, b := range l.body {
			if !l.live[r] && ok(b) {
				l.live[r], changed = true, true
			}
		}
	}
	var cut func(e *expr) *expr
	cut = func(e *expr) *expr {
		out := *e
		out.list = nil
		for _, x := range e.list {
			switch {
			case ok(x):
				out.list = append(out.list, cut(x))
			case e.kind == exRep:
				return &expr{lex: rxEps} // only none at all is possible
			}
		}
		return &out
	}
	for r, b := range l.body {
		if l.live[r] {
			l.body[r] = cut(b)
		}
	}
}
