package jinja

import (
	"fmt"
	"slices"
)

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct{ body []stmt }

const (
	maxSource = 4 << 20 // bytes of a template
	maxDepth  = 150     // of nested blocks and expressions
	maxChain  = 500     // operators in a row
)

// parser is a recursive descent over the tokens. Errors are panics of *Error, caught
// in Parse; depth bounds the recursion.
type parser struct {
	tokens []token
	at     int
	depth  int
	loops  int // loops around, for break and continue
}

// Parse reads a template.
func Parse(src string) (t *Template, err error) {
	if len(src) > maxSource {
		return nil, limitf("%d bytes long, at most %d are read", len(src), maxSource)
	}
	tokens, err := lex(src)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	defer func() {
		if e, ok := recover().(*Error); ok {
			t, err = nil, e
		}
	}()
	body := p.block()
	if p.peek().kind != tEOF {
		p.fail("unexpected %s", p.peek2())
	}
	return &Template{body}, nil
}

func (p *parser) fail(format string, args ...any) {
	panic(&Error{p.peek().line, fmt.Errorf(format, args...)})
}

// deeper counts a level of nesting; call the result when leaving it.
func (p *parser) deeper() func() {
	if p.depth++; p.depth > maxDepth {
		panic(&Error{p.peek().line, limitf("nested more than %d deep", maxDepth)})
	}
	return func() { p.depth-- }
}

// chain bounds the length of a chain of operators, which is a tree as deep as long.
func (p *parser) chain(n int) {
	if n > maxChain {
		panic(&Error{p.peek().line, limitf("more than %d operators in a row", maxChain)})
	}
}

func (p *parser) peek() token { return p.tokens[p.at] }

// peek2 is the token after an opening one, for messages about blocks.
func (p *parser) peek2() token {
	if p.peek().kind == tOpen && p.at+1 < len(p.tokens) {
		return p.tokens[p.at+1]
	}
	return p.peek()
}

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tEOF {
		p.at++
	}
	return t
}

func (p *parser) isOp(op string) bool { return p.peek().kind == tOperator && p.peek().text == op }

func (p *parser) skipOp(op string) bool {
	if p.isOp(op) {
		p.at++
		return true
	}
	return false
}

func (p *parser) needOp(op string) {
	if !p.skipOp(op) {
		p.fail("expected %q, found %s", op, p.peek())
	}
}

func (p *parser) isName(names ...string) bool {
	return p.peek().kind == tName && slices.Contains(names, p.peek().text)
}

func (p *parser) skipName(name string) bool {
	if p.isName(name) {
		p.at++
		return true
	}
	return false
}

func (p *parser) name() string {
	if p.peek().kind != tName {
		p.fail("expected a name, found %s", p.peek())
	}
	return p.next().text
}

func (p *parser) close() {
	if p.peek().kind != tClose {
		p.fail("expected the end of the tag, found %s", p.peek())
	}
	p.at++
}

// atBlock tells whether the next tag is {% name ... with one of the names.
func (p *parser) atBlock(names ...string) bool {
	return p.peek().kind == tOpen && p.peek().text == "{%" && slices.Contains(names, p.peek2().text) && p.peek2().kind == tName
}

// end reads {% name %}.
func (p *parser) end(name, opened string, line int) {
	if !p.atBlock(name) {
		p.fail("%q of line %d needs %q, found %s", opened, line, name, p.peek2())
	}
	p.at += 2
	p.close()
}

// block reads statements up to a tag with one of the given names, or one that does
// not begin a statement.
func (p *parser) block(until ...string) (out []stmt) {
	defer p.deeper()()
	for {
		t := p.peek()
		switch {
		case t.kind == tEOF:
			return out
		case t.kind == tData:
			p.at++
			out = append(out, &textStmt{t.text})
		case t.text == "{{":
			p.at++
			out = append(out, &printStmt{t.line, p.tuple(true)})
			p.close()
		case p.atBlock(until...):
			return out
		default:
			s := p.statement()
			if s == nil {
				return out
			}
			out = append(out, s)
		}
	}
}

// statement reads one block; nil if the tag does not begin one.
func (p *parser) statement() stmt {
	start := p.at
	p.at++ // {%
	line := p.peek().line
	if p.peek().kind != tName {
		p.fail("expected a statement, found %s", p.peek())
	}
	switch name := p.next().text; name {
	case "if":
		return p.ifStmt(line)
	case "for":
		return p.forStmt(line)
	case "set":
		return p.setStmt(line)
	case "macro":
		return p.macroStmt(line)
	case "with":
		return p.withStmt(line)
	case "filter":
		f := &filterStmt{line: line, pipe: p.filters(&captured{})}
		p.close()
		f.body = p.block("endfilter")
		p.end("endfilter", "filter", line)
		return f
	case "generation": // marks what the model wrote, for training; prints its body
		p.close()
		body := p.block("endgeneration")
		p.end("endgeneration", "generation", line)
		return &groupStmt{body}
	case "do":
		s := &doStmt{line, p.tuple(true)}
		p.close()
		return s
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%q outside a loop", name)
		}
		p.close()
		if name == "break" {
			return &jumpStmt{errBreak}
		}
		return &jumpStmt{errContinue}
	case "include", "import", "from", "extends", "block", "call", "autoescape", "trans":
		p.at--
		p.fail("%q is not supported in chat templates", name)
	}
	p.at = start
	return nil
}

func (p *parser) ifStmt(line int) stmt {
	s := &ifStmt{line: line}
	for {
		cond := p.tuple(true)
		p.close()
		s.arms = append(s.arms, arm{cond, p.block("elif", "else", "endif")})
		if p.atBlock("elif") {
			p.at += 2
			continue
		}
		if p.atBlock("else") {
			p.at += 2
			p.close()
			s.other = p.block("endif")
		}
		p.end("endif", "if", line)
		return s
	}
}

func (p *parser) forStmt(line int) stmt {
	s := &forStmt{line: line, target: p.target()}
	if !p.skipName("in") {
		p.fail("expected \"in\", found %s", p.peek())
	}
	s.iter = p.tuple(false)
	if p.skipName("if") {
		s.cond = p.expr()
	}
	if p.isName("recursive") {
		p.fail("recursive loops are not supported in chat templates")
	}
	p.close()
	p.loops++
	s.body = p.block("else", "endfor")
	p.loops--
	if p.atBlock("else") {
		p.at += 2
		p.close()
		s.other = p.block("endfor")
	}
	p.end("endfor", "for", line)
	return s
}

// target reads one or more names to assign to.
func (p *parser) target() (names []string) {
	paren := p.skipOp("(")
	for {
		n := p.name()
		switch n {
		case "true", "false", "none", "True", "False", "None", "loop":
			p.fail("cannot assign to %q", n)
		}
		names = append(names, n)
		if !p.skipOp(",") || p.isName("in") || p.isOp("=") {
			break
		}
	}
	if paren {
		p.needOp(")")
	}
	return names
}

func (p *parser) setStmt(line int) stmt {
	s := &setStmt{line: line, names: p.target()}
	if len(s.names) == 1 && p.skipOp(".") {
		s.attr = p.name()
	}
	if p.skipOp("=") {
		s.value = p.tuple(true)
		p.close()
		return s
	}
	if len(s.names) != 1 {
		p.fail("a block sets one name")
	}
	if p.isOp("|") {
		s.value = p.filters(&captured{})
	}
	p.close()
	s.block = true
	s.body = p.block("endset")
	p.end("endset", "set", line)
	return s
}

func (p *parser) macroStmt(line int) stmt {
	m := &macroStmt{line: line, name: p.name()}
	p.needOp("(")
	for !p.isOp(")") {
		prm := param{name: p.name()}
		if p.skipOp("=") {
			prm.fallback = p.expr()
		} else if n := len(m.params); n > 0 && m.params[n-1].fallback != nil {
			p.fail("parameter %q without a default follows one with a default", prm.name)
		}
		m.params = append(m.params, prm)
		if !p.skipOp(",") {
			break
		}
	}
	p.needOp(")")
	p.close()
	loops := p.loops
	p.loops = 0
	m.body = p.block("endmacro")
	p.loops = loops
	p.end("endmacro", "macro", line)
	return m
}

func (p *parser) withStmt(line int) stmt {
	w := &withStmt{line: line}
	for p.peek().kind == tName {
		w.names = append(w.names, p.name())
		p.needOp("=")
		w.values = append(w.values, p.expr())
		if !p.skipOp(",") {
			break
		}
	}
	p.close()
	w.body = p.block("endwith")
	p.end("endwith", "with", line)
	return w
}
