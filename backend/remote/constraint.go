package remote

import (
	"encoding/json"
	"regexp/syntax"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// choiceSchema is the schema that stands for a choice on servers that know
// schemas only. The strict rules of OpenAI want an object.
func choiceSchema(choices []string) json.RawMessage {
	list, err := json.Marshal(choices)
	if err != nil {
		panic(err) // a list of strings
	}
	return json.RawMessage(`{"type":"object","properties":{"choice":{"type":"string","enum":` + string(list) +
		`}},"required":["choice"],"additionalProperties":false}`)
}

// choiceRegex is the expression that stands for a choice on SGLang.
func choiceRegex(choices []string) string {
	var b strings.Builder
	b.WriteByte('(')
	for i, c := range choices {
		if i > 0 {
			b.WriteByte('|')
		}
		for _, r := range c {
			if strings.ContainsRune(`\.+*?()|[]{}^$`, r) {
				b.WriteByte('\\')
			}
			b.WriteRune(r)
		}
	}
	b.WriteByte(')')
	return b.String()
}

// choiceGrammar is the GBNF grammar that stands for a choice on llama-server.
func choiceGrammar(choices []string) string {
	var b strings.Builder
	b.WriteString("root ::= ")
	for i, c := range choices {
		if i > 0 {
			b.WriteString(" | ")
		}
		writeLiteral(&b, c)
	}
	return b.String()
}

// writeLiteral writes s as a GBNF string.
func writeLiteral(b *strings.Builder, s string) {
	b.WriteByte('"')
	for _, r := range s {
		writeRune(b, r, `"\`)
	}
	b.WriteByte('"')
}

// writeRune writes one character of a GBNF string or class, escaped if it is
// one of special or does not print.
func writeRune(b *strings.Builder, r rune, special string) {
	switch {
	case r == '\n':
		b.WriteString(`\n`)
	case r == '\r':
		b.WriteString(`\r`)
	case r == '\t':
		b.WriteString(`\t`)
	case strings.ContainsRune(special, r) && (r == '"' || r == '\\' || r == '[' || r == ']'):
		b.WriteByte('\\')
		b.WriteRune(r)
	case r < 0x20 || r == 0x7f || strings.ContainsRune(special, r):
		b.WriteString(`\x` + hexRune(r, 2))
	default:
		b.WriteRune(r)
	}
}

func hexRune(r rune, width int) string {
	h := strings.ToUpper(strconv.FormatInt(int64(r), 16))
	return strings.Repeat("0", max(0, width-len(h))) + h
}

// regexGrammar writes a regular expression (Go's syntax, whole text) as a GBNF
// grammar. It refuses word boundaries and anchors inside the expression.
func regexGrammar(pattern string) (string, error) {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return "", unsupportedf("this backend writes a regex as a grammar and cannot read this one: %v", err)
	}
	var b strings.Builder
	b.WriteString("root ::= ")
	if err := writeRegex(&b, re); err != nil {
		return "", err
	}
	return b.String(), nil
}

func writeRegex(b *strings.Builder, re *syntax.Regexp) error {
	switch re.Op {
	case syntax.OpEmptyMatch:
		b.WriteString(`""`)
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			writeLiteral(b, string(re.Rune))
			return nil
		}
		b.WriteByte('(')
		for i, r := range re.Rune {
			if i > 0 {
				b.WriteByte(' ')
			}
			writeClass(b, foldOrbit(r))
		}
		b.WriteByte(')')
	case syntax.OpCharClass:
		if len(re.Rune) == 0 {
			return unsupportedf("the regex holds a class that matches nothing")
		}
		writeClass(b, re.Rune)
	case syntax.OpAnyCharNotNL:
		b.WriteString(`[^\n]`)
	case syntax.OpAnyChar:
		b.WriteString(`[\x00-\U0010FFFF]`)
	case syntax.OpBeginText, syntax.OpEndText:
		// Without effect at the edges, where alone they make sense for a
		// whole match; elsewhere nothing could match.
		b.WriteString(`""`)
	case syntax.OpCapture:
		return group(b, re.Sub[0], "")
	case syntax.OpStar:
		return group(b, re.Sub[0], "*")
	case syntax.OpPlus:
		return group(b, re.Sub[0], "+")
	case syntax.OpQuest:
		return group(b, re.Sub[0], "?")
	case syntax.OpRepeat:
		bounds := "{" + strconv.Itoa(re.Min)
		switch {
		case re.Max < 0:
			bounds += ","
		case re.Max != re.Min:
			bounds += "," + strconv.Itoa(re.Max)
		}
		return group(b, re.Sub[0], bounds+"}")
	case syntax.OpConcat:
		for i, sub := range re.Sub {
			if sub.Op == syntax.OpBeginText && i > 0 || sub.Op == syntax.OpEndText && i < len(re.Sub)-1 {
				return unsupportedf("the regex has an anchor in its middle")
			}
			if i > 0 {
				b.WriteByte(' ')
			}
			if err := group(b, sub, ""); err != nil {
				return err
			}
		}
	case syntax.OpAlternate:
		b.WriteByte('(')
		for i, sub := range re.Sub {
			if i > 0 {
				b.WriteString(" | ")
			}
			if err := writeRegex(b, sub); err != nil {
				return err
			}
		}
		b.WriteByte(')')
	default:
		return unsupportedf("the regex uses %s, which a grammar cannot express", re.Op)
	}
	return nil
}

func group(b *strings.Builder, re *syntax.Regexp, suffix string) error {
	b.WriteByte('(')
	if err := writeRegex(b, re); err != nil {
		return err
	}
	b.WriteString(")" + suffix)
	return nil
}

// writeClass writes ranges, as regexp/syntax keeps them, as a GBNF class.
func writeClass(b *strings.Builder, ranges []rune) {
	b.WriteByte('[')
	for i := 0; i+1 < len(ranges); i += 2 {
		lo, hi := ranges[i], ranges[i+1]
		writeRune(b, lo, `\[]^-`)
		if hi > lo {
			b.WriteByte('-')
			if hi == utf8.MaxRune {
				b.WriteString(`\U0010FFFF`)
			} else {
				writeRune(b, hi, `\[]^-`)
			}
		}
	}
	b.WriteByte(']')
}

// foldOrbit returns, as ranges, the runes that equal r if case is ignored.
func foldOrbit(r rune) []rune {
	out := []rune{r, r}
	for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
		out = append(out, f, f)
	}
	return out
}
