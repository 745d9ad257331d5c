package lang

import (
	"strings"
	"sync"
)

// compiled holds the expressions and templates of a graph in the form that
// runs. It only grows, and is safe for concurrent use.
type compiled struct {
	exprs     sync.Map         // Expr -> *program
	templates sync.Map         // Template -> *text
	nodes     map[string]*Node // by ID; set when the graph is checked
}

// Eval returns the value of e over vars. It is pure and safe for concurrent
// use. Each expression is compiled once for the graph. Errors name the
// expression and, where one is at fault, the variable.
func (g *Graph) Eval(e Expr, vars map[string]any) (any, error) {
	p, err := g.program(e)
	if err != nil {
		return nil, err
	}
	return p.run(vars)
}

// program returns e in the form that runs.
func (g *Graph) program(e Expr) (*program, error) {
	if g.origin != nil {
		g = g.origin
	}
	if p, ok := g.compiled.exprs.Load(e); ok {
		return p.(*program), nil
	}
	p, err := compileExpr(e)
	if err != nil {
		return nil, err
	}
	g.compiled.exprs.Store(e, p)
	return p, nil
}

// Expand returns the text of t with its expressions replaced by their values in
// the form of FormatValue. It is pure and safe for concurrent use.
func (g *Graph) Expand(t Template, vars map[string]any) (string, error) {
	if !strings.Contains(string(t), "${") {
		return string(t), nil
	}
	if g.origin != nil {
		g = g.origin
	}
	if x, ok := g.compiled.templates.Load(t); ok {
		return x.(*text).expand(vars)
	}
	x, err := g.compileTemplate(t, nil)
	if err != nil {
		return "", err
	}
	g.compiled.templates.Store(t, x)
	return x.expand(vars)
}

// compileTemplate makes t ready to be filled. types, if not nil, are those of
// its expressions in order.
func (g *Graph) compileTemplate(t Template, types []Type) (*text, error) {
	ps, err := t.pieces()
	if err != nil {
		return nil, err
	}
	x := &text{pieces: make([]textPiece, 0, len(ps))}
	n := 0
	for _, p := range ps {
		if p.ex == "" {
			x.pieces = append(x.pieces, textPiece{lit: p.text})
			continue
		}
		prog, err := g.program(p.ex)
		if err != nil {
			return nil, err
		}
		tp := textPiece{ex: prog}
		if n < len(types) {
			tp.typ = types[n]
		}
		n++
		x.pieces = append(x.pieces, tp)
	}
	return x, nil
}
