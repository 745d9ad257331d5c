package grammar

import (
	"errors"
	"strings"
	"testing"
)

const arithmetic = `
root ::= expr
expr ::= term (("+" | "-") term)*   # left to right
term ::= factor ("*" factor)*
factor ::= num | "(" expr ")"
num ::= [0-9]+ ("." [0-9]{1,2})?
`

func TestEBNF(t *testing.T) {
	for _, c := range []struct {
		src, yes, no string // texts divided by spaces; _ is the empty one
	}{
		{`root ::= "yes" | "no"`, "yes no", "y yess _"},
		{arithmetic, "1 1+2*3 (1-2)*(3.14) ((((7))))", "1+ ( (1 1.234 _"},
		{"root ::= root \"a\" | \"b\"", "b ba baaa", "a ab _"},
		{"root ::= e\ne ::= e \"+\" t | e \"-\" t | t\nt ::= [0-9] | \"(\" e \")\"", "1 1+2-3 (1+2)-(3)", "1+ +1"},
		{"root ::= \"[\" (root (\",\" root)*)? \"]\"", "[] [[],[[]]]", "[ [,] []]"},
		{"root ::= \"a\" root \"b\" | \"\"", "_ ab aaabbb", "a aab ba"},
		{"root ::= x{2,3}\nx ::= \"(\" x? \")\"", "()() (())()((()))", "() ()()()()"},
		{`root ::= [^a-c\]]+ "\u00e9"? '\x41'`, "dA déA", "aA A ]A"},
		{"root ::= .{2}", "ab éé", "a abc"},
		{"list ::= item | item \",\" list\nroot ::= list\nitem ::= [a-z]", "a a,b,c", "a, ,a"},
	} {
		g, err := Compile(t.Context(), Spec{EBNF: c.src}, ByteVocab())
		if err != nil {
			t.Errorf("%q: %v", c.src, err)
			continue
		}
		for _, s := range strings.Fields(c.yes) {
			if !g.Match([]byte(strings.ReplaceAll(s, "_", ""))) {
				t.Errorf("%q does not match %q", c.src, s)
			}
		}
		for _, s := range strings.Fields(c.no) {
			if g.Match([]byte(strings.ReplaceAll(s, "_", ""))) {
				t.Errorf("%q matches %q", c.src, s)
			}
		}
	}
	for src, kind := range map[string]error{
		"":                                   ErrInvalid,
		"root ::= \"a\"\nroot ::= \"b\"":     ErrInvalid,
		"root ::= other":                     ErrInvalid,
		"other ::= \"a\"":                    ErrInvalid,
		"root ::= (\"a\"":                    ErrInvalid,
		"root ::= \"a":                       ErrInvalid,
		"root ::= [z-a]":                     ErrInvalid,
		"root ::= root":                      ErrUnsatisfiable,
		"root ::= \"a\" root":                ErrUnsatisfiable,
		"root ::= x \"a\"\nx ::= root \"b\"": ErrUnsupported,
		"root ::= " + strings.Repeat("(", 100000) + "\"a\"": ErrTooLarge,
	} {
		if err := compileError(Spec{EBNF: src}); !errors.Is(err, kind) {
			t.Errorf("%.50q: %v, want %v", src, err, kind)
		}
	}
}
