package lang

import (
	"fmt"
	"strings"
)

// piece is a part of a template: literal text, or an expression if ex is set.
type piece struct {
	text string
	ex   Expr
	at   int // byte offset of the expression in the template
}

// pieces splits t into its literal texts and expressions.
func (t Template) pieces() ([]piece, error) {
	s := string(t)
	var out []piece
	var lit strings.Builder
	flush := func() {
		if lit.Len() > 0 {
			out = append(out, piece{text: lit.String()})
			lit.Reset()
		}
	}
	for i := 0; i < len(s); {
		d := strings.IndexByte(s[i:], '$')
		if d < 0 {
			lit.WriteString(s[i:])
			break
		}
		lit.WriteString(s[i : i+d])
		i += d
		switch {
		case strings.HasPrefix(s[i:], "$${"):
			lit.WriteString("${")
			i += 3
		case strings.HasPrefix(s[i:], "${"):
			end := exprEnd(s, i+2)
			if end < 0 {
				return nil, fmt.Errorf("${ without its } at %q: close it, or write $${ for a plain ${", clip(s[i:], 40))
			}
			src := s[i+2 : end]
			if strings.TrimSpace(src) == "" {
				return nil, fmt.Errorf("empty ${} in the text: name a variable, or write $${} for a plain ${}")
			}
			flush()
			out = append(out, piece{ex: Expr(strings.TrimSpace(src)), at: i})
			i = end + 1
		default:
			lit.WriteByte('$')
			i++
		}
	}
	flush()
	return out, nil
}

// exprEnd returns the offset of the } that ends the expression which begins at
// i, or -1. Braces and quotes inside the expression are skipped.
func exprEnd(s string, i int) int {
	depth := 0
	for i < len(s) {
		switch c := s[i]; c {
		case '{':
			depth++
		case '}':
			if depth == 0 {
				return i
			}
			depth--
		case '"', '\'':
			i++
			for i < len(s) && s[i] != c {
				if s[i] == '\\' {
					i++
				}
				i++
			}
		case '`':
			i++
			for i < len(s) && s[i] != '`' {
				i++
			}
		}
		i++
	}
	return -1
}

// Escape returns the template that stands for the text s.
func Escape(s string) Template {
	return Template(strings.ReplaceAll(s, "${", "$${"))
}

// templateOf joins pieces to a template that splits into them again.
func templateOf(parts []piece) Template {
	var ps []piece
	for _, p := range parts {
		if n := len(ps); n > 0 && p.ex == "" && ps[n-1].ex == "" {
			ps[n-1].text += p.text
			continue
		}
		ps = append(ps, p)
	}
	var b strings.Builder
	for i, p := range ps {
		if p.ex != "" {
			b.WriteString("${")
			b.WriteString(string(p.ex))
			b.WriteString("}")
			continue
		}
		text := p.text
		if i+1 < len(ps) && ps[i+1].ex != "" {
			// A dollar right before an expression would read as an escape.
			cut := len(strings.TrimRight(text, "$"))
			b.WriteString(string(Escape(text[:cut])))
			if cut < len(text) {
				b.WriteString(`${"` + text[cut:] + `"}`)
			}
			continue
		}
		b.WriteString(string(Escape(text)))
	}
	return Template(b.String())
}

// text is a template ready to be filled.
type text struct {
	pieces []textPiece
}

type textPiece struct {
	lit string
	ex  *program // nil: lit
	typ Type     // of ex, for the order of keys; any if not known
}

// expand fills the template from vars.
func (t *text) expand(vars map[string]any) (string, error) {
	var b strings.Builder
	for i := range t.pieces {
		p := &t.pieces[i]
		if p.ex == nil {
			b.WriteString(p.lit)
			continue
		}
		v, err := p.ex.run(vars)
		if err != nil {
			return "", err
		}
		b.WriteString(FormatValue(v, p.typ))
	}
	return b.String(), nil
}
