package grammar

import (
	"slices"
	"strconv"
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
	c     *compiler
	src   string
	pos   int
	depth int
	rules map[string]int32
	names []string
	at    []int // offset of a rule's first use or definition
	body  []*expr
}

// expr is an expression of a rule.
type expr struct {
	kind exprKind
	lex  nodeID
	list []*expr // of a sequence or choice; [0] of a repetition
	rule int32
	val  *valueNode // of a reference, once rules are values
	m, n int32
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
)

func (p *ebnfParser) fail(kind error, msg string) {
	failf(kind, "ebnf", offset(p.pos), "", msg)
}

func (c *compiler) compileEBNF() (*valueNode, error) {
	p := &ebnfParser{c: c, src: c.spec.EBNF, rules: map[string]int32{}}
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
	for i, b := range p.body {
		if b == nil {
			p.pos = p.at[i]
			p.fail(ErrInvalid, "rule "+strconv.Quote(p.names[i])+" is not defined")
		}
	}
	return c.linkRules(p, root)
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
						p.fail(pe.kind, pe.msg)
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
		return nil, &Error{Kind: ErrUnsatisfiable, Source: "ebnf", Msg: "root has no finite text"}
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

// findRecursion marks the rules that reach themselves, and those that use such
// rules.
func (l *linker) findRecursion() {
	n := len(l.body)
	index, low := make([]int, n), make([]int, n)
	on := make([]bool, n)
	var stack []int32
	next := 1
	var visit func(r int32, depth int)
	visit = func(r int32, depth int) {
		if depth > 20000 {
			failf(ErrTooLarge, "ebnf", "", "", "rules are nested too deep")
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
