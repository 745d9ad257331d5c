package grammar

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// This file reads EBNF in the notation of GBNF and of XGrammar:
//
//	root ::= "yes" | "no" | list    # a comment
//	list ::= "[" item ("," item){0,9} "]"
//	item ::= [a-z]+ | list | .
//
// A rule ends where the next one begins. Literals and classes take the escapes
// \n \r \t \\ \" \' \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH.

type ebnfParser struct {
	c      *compiler
	source string // "ebnf" or "lark"
	src    string
	pos    int
	depth  int
	rules  map[string]int32
	names  []string
	at     []int // offset of a rule's first use or definition
	body   []*expr
}

// expr is an expression of a rule.
type expr struct {
	kind exprKind
	lex  nodeID
	list []*expr // of a sequence or choice; [0] of a repetition
	rule int32
	val  *valueNode // of a reference, once rules are values; of a value
	m, n int32
	at   int // offset in the source, of exAnd and exNot
}

// link sets the values of references to rules.
func (e *expr) link(values []*valueNode) {
	if e.kind == exRef {
		e.val = values[e.rule]
	}
	for _, x := range e.list {
		x.link(values)
	}
}

type exprKind uint8

const (
	exLex exprKind = iota
	exSeq
	exAlt
	exRef
	exRep
	exVal // a JSON value
	exAnd // of lexemes: the texts of all
	exNot // of a lexeme: the texts that it does not have
)

func (p *ebnfParser) fail(kind error, msg string) {
	failf(kind, p.source, p.where(p.pos), "", msg)
}

// where is a place of the source by line and column, in characters, from 1 on.
func (p *ebnfParser) where(at int) string {
	before := p.src[:min(at, len(p.src))]
	start := strings.LastIndexByte(before, '\n') + 1
	return fmt.Sprintf("line %d, column %d", strings.Count(before, "\n")+1, utf8.RuneCountInString(before[start:])+1)
}

func (c *compiler) compileEBNF() (*valueNode, error) {
	p := &ebnfParser{c: c, source: "ebnf", src: c.spec.EBNF, rules: map[string]int32{}}
	if !utf8.ValidString(p.src) {
		p.fail(ErrInvalid, "not UTF-8")
	}
	for p.space(); p.pos < len(p.src); p.space() {
		start := p.pos
		name := p.name()
		if name == "" || !p.define() {
			p.fail(ErrInvalid, "expected a rule: name ::= ...")
		}
		r := p.rule(name, start)
		if p.body[r] != nil {
			p.pos = start
			p.fail(ErrInvalid, "rule "+strconv.Quote(name)+" is defined twice")
		}
		p.body[r] = p.alternatives()
	}
	root, ok := p.rules["root"]
	if !ok || p.body[root] == nil {
		return nil, &Error{Kind: ErrInvalid, Source: "ebnf", Msg: "no rule named root"}
	}
	p.defined()
	return c.linkRules(p, root)
}

// defined fails when a rule that is used is not defined.
func (p *ebnfParser) defined() {
	for i, b := range p.body {
		if b == nil {
			p.pos = p.at[i]
			p.fail(ErrInvalid, "rule "+strconv.Quote(p.names[i])+" is not defined")
		}
	}
}

func (p *ebnfParser) rule(name string, at int) int32 {
	if r, ok := p.rules[name]; ok {
		return r
	}
	r := int32(len(p.body))
	p.rules[name] = r
	p.names = append(p.names, name)
	p.at = append(p.at, at)
	p.body = append(p.body, nil)
	return r
}

func (p *ebnfParser) peek() byte {
	if p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

func (p *ebnfParser) space() {
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			p.pos++
		case c == '#':
			for p.pos < len(p.src) && p.src[p.pos] != '\n' {
				p.pos++
			}
		default:
			return
		}
	}
}

func (p *ebnfParser) name() string {
	start := p.pos
	for p.pos < len(p.src) {
		c := p.src[p.pos]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_'
		if !letter && (p.pos == start || !(c >= '0' && c <= '9' || c == '-' || c == '.')) {
			break
		}
		p.pos++
	}
	return p.src[start:p.pos]
}

// define skips "::=".
func (p *ebnfParser) define() bool {
	p.space()
	if len(p.src)-p.pos < 3 || p.src[p.pos:p.pos+3] != "::=" {
		return false
	}
	p.pos += 3
	return true
}

func (p *ebnfParser) alternatives() *expr {
	if p.depth++; p.depth > p.c.limits.Depth {
		p.fail(ErrTooLarge, "nested too deep")
	}
	defer func() { p.depth-- }()
	e := &expr{kind: exAlt, list: []*expr{p.sequence()}}
	for p.space(); p.peek() == '|'; p.space() {
		p.pos++
		e.list = append(e.list, p.sequence())
	}
	return e
}

func (p *ebnfParser) sequence() *expr {
	e := &expr{kind: exSeq}
	for {
		p.space()
		start := p.pos
		switch c := p.peek(); c {
		case 0, '|', ')':
			if c == 0 && p.pos < len(p.src) {
				p.fail(ErrInvalid, "a NUL character")
			}
			return e
		case '(':
			p.pos++
			in := p.alternatives()
			p.space()
			if p.peek() != ')' {
				p.fail(ErrInvalid, "missing )")
			}
			p.pos++
			e.list = append(e.list, p.repeated(in))
		case '"', '\'':
			e.list = append(e.list, p.repeated(p.literal(c)))
		case '[':
			p.pos++
			e.list = append(e.list, p.repeated(p.class()))
		case '.':
			p.pos++
			e.list = append(e.list, p.repeated(&expr{lex: p.c.anyChar[encRaw]}))
		default:
			name := p.name()
			if name == "" {
				p.fail(ErrInvalid, "unexpected "+strconv.QuoteRune(rune(c)))
			}
			after := p.pos
			if p.define() {
				p.pos = start // the next rule
				return e
			}
			p.pos = after
			e.list = append(e.list, p.repeated(&expr{kind: exRef, rule: p.rule(name, start)}))
		}
	}
}

func (p *ebnfParser) repeated(e *expr) *expr {
	for {
		m, n := int32(0), int32(-1)
		switch p.peek() {
		case '*':
		case '+':
			m = 1
		case '?':
			n = 1
		case '{':
			end := p.pos
			for end < len(p.src) && p.src[end] != '}' {
				end++
			}
			q := pattern{p: p.c.pool, src: p.src[:min(end+1, len(p.src))], pos: p.pos}
			lo, hi, ok := int32(0), int32(0), false
			func() {
				defer func() {
					if pe, is := recover().(*patternError); is {
						p.fail(pe.kind, pe.text())
					}
				}()
				lo, hi, ok = q.braces()
			}()
			if !ok {
				p.fail(ErrInvalid, "a broken {m,n}")
			}
			m, n = lo, hi
			p.pos = q.pos - 1
		default:
			return e
		}
		p.pos++
		e = &expr{kind: exRep, list: []*expr{e}, m: m, n: n}
	}
}

func (p *ebnfParser) literal(quote byte) *expr {
	p.pos++
	out := ""
	for p.peek() != quote {
		if p.pos >= len(p.src) || p.peek() == '\n' {
			p.fail(ErrInvalid, "unfinished literal")
		}
		out += string(p.char())
	}
	p.pos++
	return &expr{lex: p.c.bytes(out)}
}

// char reads one character or escape.
func (p *ebnfParser) char() rune {
	if p.peek() != '\\' {
		r, n := utf8.DecodeRuneInString(p.src[p.pos:])
		p.pos += n
		return r
	}
	p.pos++
	c := p.peek()
	p.pos++
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'x', 'u', 'U':
		n := map[byte]int{'x': 2, 'u': 4, 'U': 8}[c]
		v := rune(0)
		for range n {
			d := hexValue(p.peek())
			if d < 0 || v > 0x10FFFF {
				p.fail(ErrInvalid, "a broken hexadecimal escape")
			}
			v = v<<4 | rune(d)
			p.pos++
		}
		if !utf8.ValidRune(v) {
			p.fail(ErrInvalid, "an escape that is no character")
		}
		return v
	case '\\', '"', '\'', '[', ']', '-', '^', '/', '.', '(', ')', '{', '}', '*', '+', '?', '|', '$':
		return rune(c)
	}
	p.fail(ErrInvalid, "unknown escape")
	return 0
}

func (p *ebnfParser) class() *expr {
	neg := false
	if p.peek() == '^' {
		neg = true
		p.pos++
	}
	var out []rng
	for p.peek() != ']' {
		if p.pos >= len(p.src) {
			p.fail(ErrInvalid, "missing ]")
		}
		if p.peek() == '\\' && p.pos+1 < len(p.src) {
			shorthand := map[byte][]rng{'d': digitClass, 'w': wordClass, 's': spaceClass}
			if set := shorthand[p.src[p.pos+1]]; set != nil {
				p.pos += 2
				out = append(out, set...)
				continue
			}
		}
		lo := p.char()
		hi := lo
		if p.peek() == '-' && p.pos+1 < len(p.src) && p.src[p.pos+1] != ']' {
			p.pos++
			hi = p.char()
		}
		if lo > hi {
			p.fail(ErrInvalid, "range out of order in a class")
		}
		out = append(out, rng{lo, hi})
	}
	p.pos++
	out = normRanges(out)
	if neg {
		out = negate(out)
	}
	return &expr{lex: p.c.class(encRaw, out)}
}
