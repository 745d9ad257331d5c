package grammar

import (
	"math/big"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// value is a JSON value that keeps the order of keys and the spelling of
// numbers. Of equal keys of one object the last counts.
type value struct {
	kind byte   // 'n' null, 't', 'f', '0' number, 's' string, '[', '{'
	str  string // content of a string, spelling of a number
	list []*value
	keys []string
}

func (v *value) get(key string) *value {
	if v.kind == '{' {
		for i, k := range v.keys {
			if k == key {
				return v.list[i]
			}
		}
	}
	return nil
}

// jsonParser reads RFC 8259 text with bounded nesting.
type jsonParser struct {
	src   []byte
	pos   int
	depth int
}

type syntaxError struct {
	at  int
	msg string
	big bool
}

func (e *syntaxError) Error() string { return e.msg + " at offset " + strconv.Itoa(e.at) }

// parseJSON reads one JSON text nested at most depth levels.
func parseJSON(src []byte, depth int) (v *value, err error) {
	p := &jsonParser{src: src, depth: depth}
	defer func() {
		switch f := recover().(type) {
		case nil:
		case *syntaxError:
			err = f
		default:
			panic(f)
		}
	}()
	v = p.value()
	p.space()
	if p.pos < len(src) {
		p.fail("text after the value")
	}
	return v, nil
}

func (p *jsonParser) fail(msg string) { panic(&syntaxError{at: p.pos, msg: msg}) }

func (p *jsonParser) space() {
	for p.pos < len(p.src) && (p.src[p.pos] == ' ' || p.src[p.pos] == '\n' || p.src[p.pos] == '\t' || p.src[p.pos] == '\r') {
		p.pos++
	}
}

func (p *jsonParser) peek() byte {
	p.space()
	if p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

func (p *jsonParser) value() *value {
	if p.depth--; p.depth < 0 {
		panic(&syntaxError{at: p.pos, msg: "nested too deep", big: true})
	}
	defer func() { p.depth++ }()
	switch c := p.peek(); c {
	case '{':
		p.pos++
		v := &value{kind: '{'}
		var seen map[string]int
		for p.peek() != '}' {
			if len(v.keys) > 0 {
				if p.peek() != ',' {
					p.fail("expected , or }")
				}
				p.pos++
			}
			if p.peek() != '"' {
				p.fail("expected a key")
			}
			k := p.string()
			if p.peek() != ':' {
				p.fail("expected :")
			}
			p.pos++
			x := p.value()
			if i, ok := seen[k]; ok {
				v.list[i] = x
				continue
			}
			if seen == nil {
				seen = map[string]int{}
			}
			seen[k] = len(v.keys)
			v.keys = append(v.keys, k)
			v.list = append(v.list, x)
		}
		p.pos++
		return v
	case '[':
		p.pos++
		v := &value{kind: '['}
		for p.peek() != ']' {
			if len(v.list) > 0 {
				if p.peek() != ',' {
					p.fail("expected , or ]")
				}
				p.pos++
			}
			v.list = append(v.list, p.value())
		}
		p.pos++
		return v
	case '"':
		return &value{kind: 's', str: p.string()}
	case 't':
		return p.word("true", 't')
	case 'f':
		return p.word("false", 'f')
	case 'n':
		return p.word("null", 'n')
	default:
		return &value{kind: '0', str: p.number()}
	}
}

func (p *jsonParser) word(w string, kind byte) *value {
	if !strings.HasPrefix(string(p.src[p.pos:min(len(p.src), p.pos+len(w))]), w) {
		p.fail("unknown word")
	}
	p.pos += len(w)
	return &value{kind: kind}
}

func (p *jsonParser) number() string {
	start := p.pos
	digits := func() {
		from := p.pos
		for p.pos < len(p.src) && p.src[p.pos] >= '0' && p.src[p.pos] <= '9' {
			p.pos++
		}
		if p.pos == from {
			p.fail("expected a value")
		}
	}
	at := func(set string) bool {
		return p.pos < len(p.src) && strings.IndexByte(set, p.src[p.pos]) >= 0
	}
	if at("-") {
		p.pos++
	}
	if at("0") {
		p.pos++
	} else {
		digits()
	}
	if at(".") {
		p.pos++
		digits()
	}
	if at("eE") {
		p.pos++
		if at("+-") {
			p.pos++
		}
		digits()
	}
	return string(p.src[start:p.pos])
}

func (p *jsonParser) string() string {
	p.pos++
	var b strings.Builder
	for {
		if p.pos >= len(p.src) {
			p.fail("unfinished string")
		}
		c := p.src[p.pos]
		switch {
		case c == '"':
			p.pos++
			return b.String()
		case c < 0x20:
			p.fail("control character in a string")
		case c == '\\':
			p.pos++
			if p.pos >= len(p.src) {
				p.fail("unfinished string")
			}
			c = p.src[p.pos]
			p.pos++
			switch c {
			case '"', '\\', '/':
				b.WriteByte(c)
			case 'b':
				b.WriteByte('\b')
			case 'f':
				b.WriteByte('\f')
			case 'n':
				b.WriteByte('\n')
			case 'r':
				b.WriteByte('\r')
			case 't':
				b.WriteByte('\t')
			case 'u':
				r := p.hex4()
				if utf16.IsSurrogate(r) {
					low := rune(-1)
					if p.pos+1 < len(p.src) && p.src[p.pos] == '\\' && p.src[p.pos+1] == 'u' {
						p.pos += 2
						low = p.hex4()
					}
					if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
						p.fail("a lone surrogate")
					}
				}
				b.WriteRune(r)
			default:
				p.fail("unknown escape")
			}
		default:
			r, n := utf8.DecodeRune(p.src[p.pos:])
			if r == utf8.RuneError && n < 2 {
				p.fail("not UTF-8")
			}
			b.Write(p.src[p.pos : p.pos+n])
			p.pos += n
		}
	}
}

func (p *jsonParser) hex4() rune {
	if p.pos+4 > len(p.src) {
		p.fail("unfinished escape")
	}
	v := rune(0)
	for range 4 {
		d := hexValue(p.src[p.pos])
		if d < 0 {
			p.fail("a broken \\u escape")
		}
		v = v<<4 | rune(d)
		p.pos++
	}
	return v
}

// appendKey writes the content of a JSON string in its plain spelling: UTF-8,
// escapes only where JSON asks for them.
func appendKey(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, '\\', 'b')
		case '\f':
			b = append(b, '\\', 'f')
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			if c < 0x20 {
				b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
			} else {
				b = append(b, c)
			}
		}
	}
	return b
}

// keyText is s in its plain spelling, without quotes.
func keyText(s string) string { return string(appendKey(nil, s)) }

// appendJSON writes v in the form that a grammar writes: plain spelling, the
// white space of f.
func (v *value) appendJSON(b []byte, f *form, depth int) []byte {
	switch v.kind {
	case 'n':
		return append(b, "null"...)
	case 't':
		return append(b, "true"...)
	case 'f':
		return append(b, "false"...)
	case '0':
		return append(b, numberText(v.str)...)
	case 's':
		b = append(b, '"')
		return append(appendKey(b, v.str), '"')
	}
	open, close := byte('['), byte(']')
	if v.kind == '{' {
		open, close = '{', '}'
	}
	b = append(b, open)
	for i, x := range v.list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, f.newline(depth+1)...)
		if v.kind == '{' {
			b = append(b, '"')
			b = append(appendKey(b, v.keys[i]), '"', ':')
			b = append(b, f.afterColon()...)
		}
		b = x.appendJSON(b, f, depth+1)
	}
	if len(v.list) > 0 {
		b = append(b, f.newline(depth)...)
	}
	return append(b, close)
}

// form is the white space that is always written.
type form struct{ indent int }

func (f *form) newline(depth int) string {
	if f.indent == 0 {
		return ""
	}
	return "\n" + strings.Repeat(" ", f.indent*depth)
}

func (f *form) afterColon() string {
	if f.indent == 0 {
		return ""
	}
	return " "
}

// maxDigits bounds the digits on each side of the point that a grammar writes.
const maxDigits = 40

// decimal is a number as digits x 10^exp, without leading or trailing zeros in
// digits ("" is zero).
type decimal struct {
	neg    bool
	digits string
	exp    int
}

// parseDecimal reads a JSON number; ok is false when its exponent is absurd.
func parseDecimal(s string) (d decimal, ok bool) {
	if strings.HasPrefix(s, "-") {
		d.neg = true
		s = s[1:]
	}
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		e, err := strconv.Atoi(strings.TrimPrefix(s[i+1:], "+"))
		if err != nil || e > 1<<20 || e < -(1<<20) {
			return d, false
		}
		d.exp = e
		s = s[:i]
	}
	if i := strings.IndexByte(s, '.'); i >= 0 {
		d.exp -= len(s) - i - 1
		s = s[:i] + s[i+1:]
	}
	s = strings.TrimLeft(s, "0")
	t := strings.TrimRight(s, "0")
	d.exp += len(s) - len(t)
	d.digits = t
	if t == "" {
		d = decimal{}
	}
	return d, true
}

// plain is the number without an exponent, as whole and fraction digits.
func (d decimal) plain() (whole, frac string) {
	switch n := len(d.digits) + d.exp; {
	case d.digits == "":
		return "0", ""
	case d.exp >= 0:
		return d.digits + strings.Repeat("0", d.exp), ""
	case n > 0:
		return d.digits[:n], d.digits[n:]
	default:
		return "0", strings.Repeat("0", -n) + d.digits
	}
}

func (d decimal) isInt() bool { return d.exp >= 0 }

// small reports whether the plain form keeps within maxDigits on each side.
func (d decimal) small() bool {
	return len(d.digits)+d.exp <= maxDigits && -d.exp <= maxDigits
}

func (d decimal) rat() *big.Rat {
	r := new(big.Rat)
	if d.digits == "" {
		return r
	}
	n, _ := new(big.Int).SetString(d.digits, 10)
	pow := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(d.exp, -d.exp))), nil)
	if d.exp >= 0 {
		r.SetInt(n.Mul(n, pow))
	} else {
		r.SetFrac(n, pow)
	}
	if d.neg {
		r.Neg(r)
	}
	return r
}

// cmp compares two numbers.
func (d decimal) cmp(e decimal) int {
	if d.neg != e.neg {
		if d.neg {
			return -1
		}
		return 1
	}
	c := d.cmpAbs(e)
	if d.neg {
		return -c
	}
	return c
}

func (d decimal) cmpAbs(e decimal) int {
	if d.digits == "" || e.digits == "" {
		return len(d.digits) - len(e.digits)
	}
	if a, b := len(d.digits)+d.exp, len(e.digits)+e.exp; a != b {
		return a - b
	}
	return strings.Compare(d.digits, e.digits)
}

// numberText is the plain spelling of a JSON number: no exponent and no zeros
// that say nothing, unless the plain form would be too long.
func numberText(s string) string {
	d, ok := parseDecimal(s)
	if !ok || !d.small() {
		return s
	}
	whole, frac := d.plain()
	if d.neg {
		whole = "-" + whole
	}
	if frac != "" {
		whole += "." + frac
	}
	return whole
}

// equal compares values as JSON Schema does: numbers by value, objects without
// regard to order.
func (v *value) equal(w *value) bool {
	if v.kind != w.kind {
		return false
	}
	switch v.kind {
	case '0':
		a, ok1 := parseDecimal(v.str)
		b, ok2 := parseDecimal(w.str)
		if !ok1 || !ok2 {
			return v.str == w.str
		}
		return a == b
	case 's':
		return v.str == w.str
	case '[':
		if len(v.list) != len(w.list) {
			return false
		}
		for i := range v.list {
			if !v.list[i].equal(w.list[i]) {
				return false
			}
		}
	case '{':
		if len(v.keys) != len(w.keys) {
			return false
		}
		for i, k := range v.keys {
			x := w.get(k)
			if x == nil || !v.list[i].equal(x) {
				return false
			}
		}
	}
	return true
}
