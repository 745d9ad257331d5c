package grammar

// This file runs the rules of an EBNF grammar. What is left to do in a rule
// after a part of it is a continuation: a list of expressions. A frame of kind
// frRule holds one.

// continuation is an expression and what comes after it; 0 is nothing.
type continuation struct {
	e    *expr
	next int32
}

type contKey struct {
	e    *expr
	next int32
}

type repKey struct {
	x    *expr
	m, n int32
}

func (w *writer) contID(e *expr, next int32) int32 {
	k := contKey{e, next}
	if id, ok := w.contIDs[k]; ok {
		return id
	}
	if w.contIDs == nil {
		w.contIDs = map[contKey]int32{}
		w.conts = append(w.conts, continuation{})
	}
	w.conts = append(w.conts, continuation{e, next})
	id := int32(len(w.conts) - 1)
	w.contIDs[k] = id
	return id
}

// repExpr interns x{m,n}.
func (w *writer) repExpr(x *expr, m, n int32) *expr {
	k := repKey{x, m, n}
	if e, ok := w.repExprs[k]; ok {
		return e
	}
	if w.repExprs == nil {
		w.repExprs = map[repKey]*expr{}
	}
	e := &expr{kind: exRep, list: []*expr{x}, m: m, n: n}
	w.repExprs[k] = e
	return e
}

func (w *writer) lexRule(f frame) []item {
	c := w.conts[f.node]
	return w.expand(nil, c.e, c.next)
}

// goOn is the action that continues with k.
func (w *writer) goOn(k int32) actID {
	if k == 0 {
		return 0
	}
	return w.act(action{kind: actGo, frame: w.frameID(frame{kind: frRule, node: k})})
}

// expand appends the lexemes that e, followed by k, begins with.
func (w *writer) expand(out []item, e *expr, k int32) []item {
	switch e.kind {
	case exLex:
		return append(out, item{e.lex, w.goOn(k)})
	case exAlt:
		for _, x := range e.list {
			out = w.expand(out, x, k)
		}
	case exSeq:
		for i := len(e.list) - 1; i > 0; i-- {
			k = w.contID(e.list[i], k)
		}
		return w.expand(out, e.list[0], k)
	case exRef, exVal:
		v := e.val
		if k == 0 {
			return append(out, item{rxEps, w.act(action{kind: actBegin, val: v})})
		}
		return append(out, item{rxEps, w.act(action{kind: actPush, frame: w.frameID(frame{kind: frRule, node: k}), val: v})})
	case exRep:
		if e.m == 0 {
			out = append(out, item{rxEps, w.goOn(k)})
		}
		if e.n != 0 {
			x := e.list[0]
			out = w.expand(out, x, w.contID(w.repExpr(x, max(e.m-1, 0), max(e.n-1, -1)), k))
		}
	}
	return out
}
