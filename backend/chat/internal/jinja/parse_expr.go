package jinja

import (
	"slices"
	"strconv"
)

// tuple reads an expression, or several with commas, which make a tuple. Without
// ternary "a if b" is not read, so that a loop may have a condition.
func (p *parser) tuple(ternary bool) expr {
	one := p.or
	if ternary {
		one = p.expr
	}
	line := p.peek().line
	first := one()
	if !p.isOp(",") {
		return first
	}
	items := []expr{first}
	for p.skipOp(",") {
		if p.peek().kind == tClose || p.isOp(")") || p.isOp("=") {
			break
		}
		items = append(items, one())
	}
	return &listExpr{line, items, true}
}

// expr reads an expression with "a if b else c".
func (p *parser) expr() expr {
	defer p.deeper()()
	line := p.peek().line
	e := p.or()
	for n := 0; p.skipName("if"); n++ {
		p.chain(n)
		c := &ternary{line: line, cond: p.or(), yes: e}
		if p.skipName("else") {
			c.no = p.expr()
		}
		e = c
	}
	return e
}

func (p *parser) or() expr {
	e := p.and()
	for n := 0; p.isName("or"); n++ {
		p.chain(n)
		line := p.next().line
		e = &logical{line, e, p.and(), true}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for n := 0; p.isName("and"); n++ {
		p.chain(n)
		line := p.next().line
		e = &logical{line, e, p.not(), false}
	}
	return e
}

func (p *parser) not() expr {
	if p.isName("not") {
		defer p.deeper()()
		line := p.next().line
		return &notExpr{line, p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	line := p.peek().line
	c := &compareExpr{line: line, first: p.sum()}
	for {
		op := ""
		switch t := p.peek(); {
		case t.kind == tOperator && slices.Contains([]string{"==", "!=", "<", "<=", ">", ">="}, t.text):
			op = t.text
			p.at++
		case p.isName("in"):
			op = "in"
			p.at++
		case p.isName("not") && p.tokens[p.at+1].kind == tName && p.tokens[p.at+1].text == "in":
			op = "not in"
			p.at += 2
		}
		if op == "" {
			break
		}
		c.ops = append(c.ops, op)
		c.rest = append(c.rest, p.sum())
	}
	if len(c.ops) == 0 {
		return c.first
	}
	return c
}

// binary reads a chain of operators of one precedence, from left to right.
func (p *parser) binary(inner func() expr, ops ...string) expr {
	e := inner()
	for n := 0; p.peek().kind == tOperator && slices.Contains(ops, p.peek().text); n++ {
		p.chain(n)
		t := p.next()
		e = &binaryExpr{t.line, t.text, e, inner()}
	}
	return e
}

func (p *parser) sum() expr {
	return p.binary(p.join, "+", "-")
}

func (p *parser) join() expr {
	line := p.peek().line
	first := p.product()
	if !p.isOp("~") {
		return first
	}
	j := &joinExpr{line, []expr{first}}
	for p.skipOp("~") {
		j.parts = append(j.parts, p.product())
	}
	return j
}

func (p *parser) product() expr {
	return p.binary(p.power, "*", "/", "//", "%")
}

func (p *parser) power() expr {
	return p.binary(func() expr { return p.unary(true) }, "**")
}

func (p *parser) unary(withFilters bool) expr {
	defer p.deeper()()
	var e expr
	if p.isOp("-") || p.isOp("+") {
		t := p.next()
		e = &signExpr{t.line, t.text == "-", p.unary(false)}
	} else {
		e = p.primary()
	}
	e = p.postfix(e)
	if withFilters {
		e = p.filtersAndTests(e)
	}
	return e
}

func (p *parser) primary() expr {
	t := p.next()
	switch t.kind {
	case tName:
		switch t.text {
		case "true", "True":
			return &literal{true}
		case "false", "False":
			return &literal{false}
		case "none", "None":
			return &literal{nil}
		case "and", "or", "not", "in", "is", "if", "else":
			p.at--
			p.fail("unexpected %s", t)
		}
		return &nameExpr{t.line, t.text}
	case tString:
		s := []byte(t.text)
		for p.peek().kind == tString {
			s = append(s, p.next().text...)
		}
		return &literal{Text{S: string(s)}}
	case tInt:
		if n, err := strconv.ParseInt(t.text, 10, 64); err == nil {
			return &literal{n}
		}
		return &literal{BigInt(t.text)}
	case tFloat:
		f, _ := strconv.ParseFloat(t.text, 64) // infinite when too large
		return &literal{f}
	case tOperator:
		switch t.text {
		case "(":
			if p.skipOp(")") {
				return &listExpr{t.line, nil, true}
			}
			defer p.deeper()()
			e := p.tuple(true)
			p.needOp(")")
			return e
		case "[":
			return &listExpr{t.line, p.items("]"), false}
		case "{":
			return p.dict(t.line)
		}
	}
	p.at--
	if t.kind == tEOF {
		p.at = len(p.tokens) - 1
	}
	p.fail("unexpected %s", t)
	return nil
}

// items reads expressions up to the closing bracket.
func (p *parser) items(end string) (out []expr) {
	for !p.isOp(end) {
		out = append(out, p.expr())
		if !p.skipOp(",") {
			break
		}
	}
	p.needOp(end)
	return out
}

func (p *parser) dict(line int) expr {
	d := &dictExpr{line: line}
	for !p.isOp("}") {
		d.keys = append(d.keys, p.expr())
		p.needOp(":")
		d.vals = append(d.vals, p.expr())
		if !p.skipOp(",") {
			break
		}
	}
	p.needOp("}")
	return d
}

// postfix reads attributes, subscripts and calls.
func (p *parser) postfix(e expr) expr {
	for n := 0; ; n++ {
		p.chain(n)
		line := p.peek().line
		switch {
		case p.skipOp("."):
			if p.peek().kind == tInt {
				i, _ := strconv.ParseInt(p.next().text, 10, 64)
				e = &indexExpr{line, e, &literal{i}}
				continue
			}
			e = &attrExpr{line, e, p.name()}
		case p.skipOp("["):
			e = p.subscript(line, e)
		case p.isOp("("):
			e = &callExpr{line, e, p.args()}
		default:
			return e
		}
	}
}

func (p *parser) subscript(line int, e expr) expr {
	var parts [3]expr
	n, slice := 0, false
	for !p.isOp("]") {
		if p.skipOp(":") {
			slice = true
			if n++; n > 2 {
				p.fail("too many colons in a slice")
			}
			continue
		}
		if parts[n] != nil {
			p.fail("expected \"]\", found %s", p.peek())
		}
		parts[n] = p.expr()
	}
	p.needOp("]")
	if slice {
		return &sliceExpr{line, e, parts}
	}
	if parts[0] == nil {
		p.fail("an index is missing")
	}
	return &indexExpr{line, e, parts[0]}
}

// args reads call arguments with their parentheses.
func (p *parser) args() (a arguments) {
	p.needOp("(")
	for !p.isOp(")") {
		if p.isOp("*") || p.isOp("**") {
			p.fail("spreading arguments with %q is not supported", p.peek().text)
		}
		if p.peek().kind == tName && p.tokens[p.at+1].kind == tOperator && p.tokens[p.at+1].text == "=" {
			a.names = append(a.names, p.next().text)
			p.at++
			a.named = append(a.named, p.expr())
		} else {
			if len(a.names) > 0 {
				p.fail("an argument without name follows one with a name")
			}
			a.args = append(a.args, p.expr())
		}
		if !p.skipOp(",") {
			break
		}
	}
	p.needOp(")")
	return a
}

// filters reads |filter|filter applied to e; the first bar may be missing, as in
// {% filter name %}.
func (p *parser) filters(e expr) expr {
	p.skipOp("|")
	for n := 0; ; n++ {
		p.chain(n)
		e = p.filter(e)
		if !p.skipOp("|") {
			return e
		}
	}
}

func (p *parser) filter(e expr) expr {
	line := p.peek().line
	name := p.name()
	f, ok := filters[name]
	if !ok {
		p.at--
		p.fail("there is no filter %q", name)
	}
	x := &filterExpr{line: line, name: name, f: f, in: e}
	if p.isOp("(") {
		x.args = p.args()
	}
	return x
}

// filtersAndTests reads |filter, is test and calls after e.
func (p *parser) filtersAndTests(e expr) expr {
	for n := 0; ; n++ {
		p.chain(n)
		switch {
		case p.skipOp("|"):
			e = p.filter(e)
		case p.isName("is"):
			e = p.test(e)
		case p.isOp("("):
			e = &callExpr{p.peek().line, e, p.args()}
		default:
			return e
		}
	}
}

func (p *parser) test(e expr) expr {
	line := p.next().line // is
	not := p.skipName("not")
	name := p.name()
	f, ok := tests[name]
	if !ok {
		p.at--
		p.fail("there is no test %q", name)
	}
	x := &testExpr{line: line, name: name, f: f, in: e, not: not}
	switch next := p.peek(); {
	case p.isOp("("):
		x.args = p.args()
	case f.args > 0 && (next.kind == tString || next.kind == tInt || next.kind == tFloat || p.isOp("[") || p.isOp("{") ||
		next.kind == tName && !p.isName("else", "or", "and", "is", "if", "not")):
		x.args.args = []expr{p.postfix(p.primary())}
	}
	return x
}
