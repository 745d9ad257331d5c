package grammar

import (
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// This file reads grammars in the notation of Lark, as far as llguidance takes
// it:
//
//	start: "answer" ":" (NUMBER | word)+   // a comment
//	word[capture]: /[a-z]+/ | "A".."Z"
//	object: %json {"type": "object"}
//	NUMBER: /[0-9]+/ & ~"0"
//	%import common.WS
//	%ignore WS
//
// Names of terminals begin with a capital letter; a terminal is one lexeme and
// does not recurse. The grammar is read byte by byte, without a lexer before
// it: a text belongs to it if some way to cut it into terminals does.

// larkParser reads one grammar.
type larkParser struct {
	ebnfParser
	inside int // brackets that are open: line ends do not count
	ignore []*expr
}

// looksLark reports whether a grammar is written in Lark's notation rather than
// in GBNF's: it has a rule named start and none with "::=".
func looksLark(src string) bool {
	return !strings.Contains(src, "::=") && larkStart.MatchString(src)
}

var larkStart = regexp.MustCompile(`(?m)^[ \t]*[?!]?start\b[^:\n]*:`)

// larkCommon are the terminals of "%import common", as patterns.
var larkCommon = map[string]string{
	"DIGIT": `[0-9]`, "HEXDIGIT": `[0-9a-fA-F]`, "INT": `[0-9]+`, "SIGNED_INT": `[+-]?[0-9]+`,
	"DECIMAL": `[0-9]+\.[0-9]*|\.[0-9]+`, "FLOAT": `[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?`,
	"SIGNED_FLOAT":  `[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)`,
	"NUMBER":        `[0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?`,
	"SIGNED_NUMBER": `[+-]?([0-9]+([eE][+-]?[0-9]+)?|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)`,
	"LCASE_LETTER":  `[a-z]`, "UCASE_LETTER": `[A-Z]`, "LETTER": `[a-zA-Z]`, "WORD": `[a-zA-Z]+`, "CNAME": `[a-zA-Z_][a-zA-Z0-9_]*`,
	"_EXP":       `[eE][+-]?[0-9]+`,
	"SH_COMMENT": `#[^\n]*`, "CPP_COMMENT": `//[^\n]*`, "SQL_COMMENT": `--[^\n]*`, "C_COMMENT": `/\*[^*]*\*+([^/*][^*]*\*+)*/`,
	"ESCAPED_STRING": `"([^"\\\n]|\\[^\n])*"`,
	"WS_INLINE":      `[ \t]+`, "WS": `[ \t\f\r\n]+`, "CR": `\r`, "LF": `\n`, "NEWLINE": `(\r?\n)+`,
}

func (c *compiler) compileLark(src string) (*valueNode, error) {
	p := &larkParser{ebnfParser: ebnfParser{c: c, source: "lark", src: src, rules: map[string]int32{}}}
	if !utf8.ValidString(src) {
		p.fail(ErrInvalid, "not UTF-8")
	}
	for p.lines(); p.pos < len(p.src); p.lines() {
		p.statement()
	}
	start, ok := p.rules["start"]
	if !ok || p.body[start] == nil {
		return nil, &Error{Kind: ErrInvalid, Source: "lark", Msg: "no rule named start"}
	}
	p.defined()
	if len(p.ignore) > 0 {
		skip := &expr{kind: exRep, list: []*expr{{kind: exAlt, list: p.ignore}}, n: -1}
		for r, b := range p.body {
			if !isTerminal(p.names[r]) {
				p.body[r] = p.skipping(b, skip)
			}
		}
		root := p.rule("", 0)
		p.body[root] = &expr{kind: exSeq, list: []*expr{{kind: exRef, rule: start}, skip}}
		start = root
	}
	return c.linkRules(&p.ebnfParser, start)
}

// skipping puts skip in front of every lexeme of e.
func (p *larkParser) skipping(e, skip *expr) *expr {
	switch {
	case e.kind == exLex || e.kind == exVal || e.kind == exAnd || e.kind == exNot || e.kind == exRef && isTerminal(p.names[e.rule]):
		return &expr{kind: exSeq, list: []*expr{skip, e}}
	case e.kind == exRef:
		return e
	}
	out := *e
	out.list = make([]*expr, len(e.list))
	for i, x := range e.list {
		out.list[i] = p.skipping(x, skip)
	}
	return &out
}

// isTerminal reports whether a name is a terminal's: its first letter is a
// capital.
func isTerminal(name string) bool {
	name = strings.TrimLeft(name, "_")
	return name != "" && name[0] >= 'A' && name[0] <= 'Z'
}

// lines skips blanks, comments and line ends.
func (p *larkParser) lines() {
	p.inside++
	p.space()
	p.inside--
}

// space skips blanks and comments, and line ends inside brackets.
func (p *larkParser) space() {
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == ' ' || c == '\t' || c == '\r' || c == '\n' && p.inside > 0:
			p.pos++
		case c == '#' || strings.HasPrefix(p.src[p.pos:], "//"):
			for p.pos < len(p.src) && p.src[p.pos] != '\n' {
				p.pos++
			}
		default:
			return
		}
	}
}

func (p *larkParser) name() string {
	start := p.pos
	for p.pos < len(p.src) {
		c := p.src[p.pos]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_'
		if !letter && (p.pos == start || !(c >= '0' && c <= '9' || c == '-')) {
			break
		}
		p.pos++
	}
	return p.src[start:p.pos]
}

// statement reads one rule or directive.
func (p *larkParser) statement() {
	start := p.pos
	if p.peek() == '%' {
		p.directive()
		return
	}
	if c := p.peek(); c == '?' || c == '!' {
		p.pos++ // how a tree is shaped is of no interest
	}
	name := p.name()
	if name == "" {
		p.fail(ErrInvalid, "expected a rule: name: ...")
	}
	if p.peek() == '.' { // a priority, which only a lexer has use for
		for p.pos++; p.peek() == '-' || p.peek() >= '0' && p.peek() <= '9'; {
			p.pos++
		}
	}
	attrs := p.attributes()
	p.space()
	if p.peek() != ':' {
		p.fail(ErrInvalid, "expected a colon after "+strconv.Quote(name))
	}
	p.pos++
	r := p.rule(name, start)
	if p.body[r] != nil {
		p.pos = start
		p.fail(ErrInvalid, "rule "+strconv.Quote(name)+" is defined twice")
	}
	p.body[r] = attrs.apply(p, p.alternatives())
	p.endOfLine()
}

func (p *larkParser) endOfLine() {
	p.space()
	if p.pos < len(p.src) && p.peek() != '\n' {
		p.fail(ErrInvalid, "unexpected "+strconv.QuoteRune(p.rune()))
	}
}

func (p *larkParser) rune() rune {
	r, _ := utf8.DecodeRuneInString(p.src[p.pos:])
	return r
}

func (p *larkParser) directive() {
	start := p.pos
	p.pos++
	switch word := p.name(); word {
	case "ignore":
		p.ignore = append(p.ignore, p.alternatives())
	case "import":
		p.space()
		ok := p.name() == "common"
		if p.peek() == '.' {
			p.pos++
		} else if p.space(); p.peek() != '(' {
			ok = false
		}
		if !ok {
			p.fail(ErrUnsupported, "only terminals of common can be imported")
		}
		for _, name := range p.imported() {
			src, ok := larkCommon[name[0]]
			if !ok {
				p.fail(ErrUnsupported, "common."+name[0]+" is not known")
			}
			r := p.rule(name[1], start)
			if p.body[r] != nil {
				p.fail(ErrInvalid, "rule "+strconv.Quote(name[1])+" is defined twice")
			}
			p.body[r] = &expr{lex: p.pattern(src, start, patternFlags{})}
		}
	case "llguidance":
		var options map[string]json.RawMessage
		if err := json.Unmarshal(p.json(), &options); err != nil {
			p.fail(ErrInvalid, "options that are no JSON object")
		}
		for name := range options {
			if name != "no_forcing" && name != "allow_initial_skip" {
				p.pos = start
				p.fail(ErrUnsupported, "option "+strconv.Quote(name))
			}
		}
	default:
		p.pos = start
		p.fail(ErrUnsupported, "directive %"+word)
	}
	p.endOfLine()
}

// imported reads NAME, NAME -> OTHER or (NAME, NAME) as pairs of names.
func (p *larkParser) imported() [][2]string {
	if p.peek() == '(' {
		var out [][2]string
		p.inside++
		for ok := true; ok; ok = p.peek() == ',' {
			p.pos++
			p.space()
			n := p.name()
			out = append(out, [2]string{n, n})
			p.space()
		}
		if p.inside--; p.peek() != ')' {
			p.fail(ErrInvalid, "missing )")
		}
		p.pos++
		return out
	}
	n := [2]string{p.name()}
	n[1] = n[0]
	if p.space(); strings.HasPrefix(p.src[p.pos:], "->") {
		p.pos += 2
		p.space()
		n[1] = p.name()
	}
	return [][2]string{n}
}

// larkAttributes change the text of a rule.
type larkAttributes struct {
	lazy   bool
	suffix string
	at     int
}

// attributes reads [name, name="value"].
func (p *larkParser) attributes() (a larkAttributes) {
	a.at = p.pos
	if p.peek() != '[' {
		return a
	}
	p.inside++
	for ok := true; ok; ok = p.peek() == ',' {
		p.pos++
		p.space()
		at := p.pos
		name, value := p.name(), ""
		if p.space(); p.peek() == '=' {
			p.pos++
			if p.space(); p.peek() != '"' {
				p.pos = at
				p.fail(ErrUnsupported, "attribute "+name+" with such a value")
			}
			value = p.text()
		}
		switch p.space(); {
		case name == "capture":
		case name == "lazy" && value == "":
			a.lazy = true
		case name == "suffix" && value != "":
			a.suffix = value
		default:
			p.pos = at
			p.fail(ErrUnsupported, "attribute "+strconv.Quote(name))
		}
	}
	if p.inside--; p.peek() != ']' {
		p.fail(ErrInvalid, "missing ]")
	}
	p.pos++
	return a
}

// apply is the rule with the attributes.
func (a larkAttributes) apply(p *larkParser, e *expr) *expr {
	if a.lazy {
		e = &expr{kind: exAnd, list: []*expr{e, {kind: exNot, list: []*expr{{kind: exSeq, list: []*expr{e, {lex: p.c.rep(p.c.anyChar[encRaw], 1, -1)}}}}}}, at: a.at}
	}
	if a.suffix != "" {
		end := &expr{lex: p.c.bytes(a.suffix)}
		e = &expr{kind: exAnd, list: []*expr{{kind: exSeq, list: []*expr{e, end}}, {lex: p.c.upTo([]string{a.suffix}, a.suffix)}}, at: a.at}
	}
	return e
}

func (p *larkParser) alternatives() *expr {
	if p.depth++; p.depth > p.c.limits.Depth {
		p.fail(ErrTooLarge, "nested too deep")
	}
	defer func() { p.depth-- }()
	e := &expr{kind: exAlt, list: []*expr{p.conjunction()}}
	for p.bar() {
		e.list = append(e.list, p.conjunction())
	}
	return e
}

// bar skips a | that may stand on the next line.
func (p *larkParser) bar() bool {
	start := p.pos
	p.lines()
	if p.peek() == '|' {
		p.pos++
		return true
	}
	p.pos = start
	return false
}

func (p *larkParser) conjunction() *expr {
	at := p.pos
	list := []*expr{p.sequence()}
	for p.space(); p.peek() == '&'; p.space() {
		p.pos++
		list = append(list, p.sequence())
	}
	if strings.HasPrefix(p.src[p.pos:], "->") { // the name of an alternative
		p.pos += 2
		p.space()
		p.name()
	}
	if len(list) == 1 {
		return list[0]
	}
	return &expr{kind: exAnd, list: list, at: at}
}

func (p *larkParser) sequence() *expr {
	e := &expr{kind: exSeq}
	for {
		p.space()
		switch c := p.peek(); c {
		case 0:
			if p.pos < len(p.src) {
				p.fail(ErrInvalid, "a NUL character")
			}
			return e
		case '\n', '|', ')', ']', '&', '-':
			return e
		}
		e.list = append(e.list, p.item())
	}
}

// item reads one part of a sequence and how often it comes.
func (p *larkParser) item() *expr {
	start := p.pos
	var e *expr
	switch c := p.peek(); {
	case c == '~':
		if p.pos++; p.depth >= p.c.limits.Depth {
			p.fail(ErrTooLarge, "nested too deep")
		}
		p.depth++
		p.space()
		e = &expr{kind: exNot, list: []*expr{p.item()}, at: start}
		p.depth--
		return e
	case c == '(' || c == '[':
		p.inside++
		p.pos++
		e = p.alternatives()
		p.space()
		if want := byte(c + 1 + c>>6); p.peek() != want { // ) or ]
			p.fail(ErrInvalid, "missing "+string(rune(want)))
		}
		p.inside--
		p.pos++
		if c == '[' {
			e = &expr{kind: exRep, list: []*expr{e}, n: 1}
		}
	case c == '"':
		e = p.quoted()
	case c == '/':
		e = p.regex()
	case c == '%':
		p.pos++
		switch p.name() {
		case "json":
			e = p.value(start)
		case "regex":
			e = p.substring(start)
		default:
			p.pos = start
			p.fail(ErrUnsupported, "such a part of a rule; there are %json and %regex")
		}
	case c == '<':
		p.fail(ErrUnsupported, "special tokens")
	default:
		name := p.name()
		if name == "" {
			p.fail(ErrInvalid, "unexpected "+strconv.QuoteRune(p.rune()))
		}
		e = &expr{kind: exRef, rule: p.rule(name, start)}
	}
	return p.times(e)
}

// times reads ?, *, +, {m,n} and ~ m..n.
func (p *larkParser) times(e *expr) *expr {
	e = p.repeated(e)
	start := p.pos
	p.space()
	if p.peek() != '~' {
		p.pos = start
		return e
	}
	p.pos++
	p.space()
	m, ok := p.count()
	if !ok {
		p.pos = start
		return e
	}
	n := m
	if strings.HasPrefix(p.src[p.pos:], "..") {
		p.pos += 2
		if n, ok = p.count(); !ok || n < m {
			p.fail(ErrInvalid, "a broken ~ m..n")
		}
	}
	return &expr{kind: exRep, list: []*expr{e}, m: m, n: n}
}

func (p *larkParser) count() (int32, bool) {
	start := p.pos
	for p.peek() >= '0' && p.peek() <= '9' {
		p.pos++
	}
	n, err := strconv.Atoi(p.src[start:p.pos])
	if err != nil {
		return 0, false
	}
	if n > maxRepeat {
		p.fail(ErrTooLarge, "a repeat count over "+strconv.Itoa(maxRepeat))
	}
	return int32(n), true
}

// text reads a string.
func (p *larkParser) text() string {
	p.pos++
	var b strings.Builder
	for p.peek() != '"' {
		if p.pos >= len(p.src) || p.peek() == '\n' {
			p.fail(ErrInvalid, "unfinished string")
		}
		b.WriteRune(p.char())
	}
	p.pos++
	return b.String()
}

// quoted reads "text", "text"i or "a".."z".
func (p *larkParser) quoted() *expr {
	s := p.text()
	switch {
	case p.peek() == 'i':
		p.pos++
		out := rxEps
		for _, r := range slices.Backward([]rune(s)) {
			out = p.c.cat(p.c.class(encRaw, foldCase([]rng{{r, r}})), out)
		}
		return &expr{lex: out}
	case strings.HasPrefix(p.src[p.pos:], "..") && p.pos+2 < len(p.src) && p.src[p.pos+2] == '"':
		p.pos += 2
		lo, hi := []rune(s), []rune(p.text())
		if len(lo) != 1 || len(hi) != 1 || lo[0] > hi[0] {
			p.fail(ErrInvalid, "a range is of two characters in order")
		}
		return &expr{lex: p.c.class(encRaw, []rng{{lo[0], hi[0]}})}
	}
	return &expr{lex: p.c.bytes(s)}
}

// regex reads /pattern/ and its flags.
func (p *larkParser) regex() *expr {
	start := p.pos
	for p.pos++; p.peek() != '/'; p.pos++ {
		if p.peek() == '\\' {
			p.pos++
		}
		if p.pos >= len(p.src) {
			p.pos = start
			p.fail(ErrInvalid, "unfinished pattern")
		}
	}
	src := p.src[start+1 : p.pos]
	var flags patternFlags
	for p.pos++; p.peek() >= 'a' && p.peek() <= 'z'; p.pos++ {
		if !flags.set(p.peek(), true) {
			p.fail(ErrUnsupported, "flag "+string(rune(p.peek()))+" of a pattern: there are i, s, m, x and u")
		}
	}
	return &expr{lex: p.pattern(src, start+1, flags)}
}

// pattern compiles the pattern at a place.
func (p *larkParser) pattern(src string, at int, flags patternFlags) nodeID {
	id, err := p.c.compileDialect(src, encRaw, true, p.c.limits.Depth, dialect{lark: true, breaks: []rng{{'\n', '\n'}}, flags: flags})
	if pe, ok := asPatternError(err); ok {
		p.pos = at + pe.at
		p.fail(pe.kind, pe.text())
	}
	return id
}
