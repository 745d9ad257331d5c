package lang

import (
	"fmt"
	"strings"
)

// secrets finds keys and passwords in all that may stand in a prompt: texts,
// strings inside of expressions, items, options, schemas and defaults of inputs.
func (l *linter) secrets() {
	if !l.o.Remote {
		return
	}
	for i := range l.g.Inputs {
		in := &l.g.Inputs[i]
		if what := secretIn(string(in.Default)); what != "" {
			l.lints = append(l.lints, Lint{Code: LintSecret, Where: in.Pos.String(), Message: fmt.Sprintf("the default of input %q seems to hold %s and leaves the machine: take it from a function instead", in.Name, what)})
		}
	}
	l.g.Walk(func(n *Node) bool {
		texts := n.exprTexts()
		switch {
		case n.Text != nil:
			texts = append(texts, string(n.Text.Content))
		case n.Fork != nil:
			texts = append(texts, n.Fork.Items...)
		case n.Select != nil:
			texts = append(texts, n.Select.Options...)
		case n.JSON != nil:
			texts = append(texts, string(n.JSON.Schema))
		}
		for _, s := range texts {
			if what := secretIn(s); what != "" {
				l.add(LintSecret, n, 0, "this seems to hold %s and leaves the machine: take it from a function instead", what)
				break
			}
		}
		return true
	})
}

// exprTexts returns the strings in the expressions of a node.
func (n *Node) exprTexts() (out []string) {
	for _, e := range n.exprs() {
		if e == "" || !strings.ContainsAny(string(e), "\"'`") {
			continue
		}
		if p, err := parseExpr(e); err == nil {
			out = append(out, p.texts...)
		}
	}
	return out
}

// sameBranches finds forks whose branches cannot differ: nothing in them reads
// the item, and the model always gives the same answer to the same prompt.
func (l *linter) sameBranches() {
	l.g.Walk(func(n *Node) bool {
		f := n.Fork
		if f == nil || len(f.Arms) > 0 || !asksModel(n) {
			return true
		}
		count := len(f.Items)
		if f.Over != "" {
			count = 2 // if it is not known
			if v, err := l.g.Eval(f.Over, map[string]any{}); err == nil {
				if items, ok := v.([]any); ok {
					count = len(items)
				}
			}
		}
		if count < 2 || readsName(f.Yield, f.As) {
			return true
		}
		differ := false
		walkBody(f.Body, func(k *Node) bool {
			for _, e := range k.exprs() {
				differ = differ || readsName(e, f.As)
			}
			if s := samplingOf(k); s != nil {
				differ = differ || s.Temperature != 0 && s.Seed == nil
			}
			differ = differ || k.Call != nil
			return !differ
		})
		if !differ {
			l.add(LintSameBranches, n, 0, "all branches do the same and get the same answers: read %q in them, or give what they generate a temperature", f.As)
		}
		return true
	})
}

func readsName(e Expr, name string) bool {
	if e == "" {
		return false
	}
	p, err := parseExpr(e)
	if err != nil {
		return true
	}
	for _, r := range p.reads {
		if r == name {
			return true
		}
	}
	return false
}
