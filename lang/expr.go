package lang

import (
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/checker"
	"github.com/expr-lang/expr/compiler"
	"github.com/expr-lang/expr/conf"
	"github.com/expr-lang/expr/file"
	"github.com/expr-lang/expr/optimizer"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"
)

// Limits of expressions. They keep a program from a stranger from taking the
// process down; programs written by hand stay far below them.
const (
	maxExprBytes  = 64 << 10
	maxExprNodes  = 4096
	maxExprDepth  = 128
	maxExprSteps  = 250_000  // rounds of nested predicates and of reduce in one evaluation
	maxExprGrowth = 32 << 20 //  bytes that reduce may carry from round to round, summed
)

// stepsVar is the name under which an evaluation finds its step counter. It is
// no name that a program can use.
const stepsVar = "$steps"

// program is an expression ready to run. It is immutable and safe for
// concurrent use.
type program struct {
	src    Expr
	ident  string // set if the expression is only this variable
	vm     *vm.Program
	reads  []string // the variables that it reads, sorted
	counts bool     // has loops that need a step counter
	orders []Type   // the types by which its functions order the keys of objects
	texts  []string // the strings that it holds
}

// parsed is an expression as a tree, with what its identifiers are.
type parsed struct {
	tree  *parser.Tree
	reads []string
	at    map[string]file.Location // where each of reads stands first
	// counts is set if the loops of the expression need a step counter.
	counts bool
	texts  []string
	// orders are the types of what its text functions write, by their places.
	orders map[int]Type
}

// exprError is what is wrong with an expression, apart from where it stands.
type exprError struct {
	src     Expr
	msg     string
	hint    string
	snippet string // the line of the source with a caret under the place
}

func (e *exprError) Error() string {
	s := "expression " + strconv.Quote(clip(string(e.src), 120)) + ": " + e.msg
	if e.hint != "" {
		s += ": " + e.hint
	}
	return s
}

// baseConfig has the functions that programs have. Clocks and time zones are
// out, and so is what depends on the order of a Go map. Nothing changes it.
var baseConfig = func() *conf.Config {
	c := conf.CreateNew()
	expr.MaxNodes(maxExprNodes)(c)
	for name := range clocks {
		expr.DisableBuiltin(name)(c)
		delete(c.Builtins, name)
	}
	for _, f := range exprFunctions {
		f(c)
	}
	return c
}()

// configFor returns a configuration with the variables that an expression reads.
func configFor(reads []string, vars map[string]Type) *conf.Config {
	c := *baseConfig
	c.WithEnv(envOf(reads, vars))
	return &c
}

// parseExpr parses src and finds the variables that it reads.
func parseExpr(src Expr) (*parsed, error) {
	if len(src) > maxExprBytes {
		return nil, &exprError{src: src, msg: fmt.Sprintf("%d bytes long, the limit is %d", len(src), maxExprBytes)}
	}
	if d := exprNesting(string(src)); d > maxExprDepth {
		return nil, &exprError{src: src, msg: fmt.Sprintf("nested %d deep, the limit is %d", d, maxExprDepth)}
	}
	if strings.TrimSpace(string(src)) == "" {
		return nil, &exprError{src: src, msg: "empty", hint: "write an expression such as len(items) > 2"}
	}
	tree, err := parser.ParseWithConfig(string(src), baseConfig)
	if err != nil {
		return nil, asExprError(src, err)
	}
	v := identVisitor{src: src, idents: map[*ast.IdentifierNode]bool{}, locals: map[string]bool{}}
	ast.Walk(&tree.Node, &v)
	if v.err != nil {
		return nil, v.err
	}
	p := &parsed{tree: tree, counts: v.loops > 1 || v.reduces > 0, texts: v.texts, at: map[string]file.Location{}}
	for id := range v.idents {
		if name := id.Value; !v.locals[name] {
			at, seen := p.at[name]
			if !seen {
				p.reads = append(p.reads, name)
			}
			if !seen || id.Location().From < at.From {
				p.at[name] = id.Location()
			}
		}
	}
	sort.Strings(p.reads)
	return p, nil
}

// exprNesting returns how deep the brackets and prefix operators of src nest,
// from above.
func exprNesting(src string) int {
	depth, most, run := 0, 0, 0
	for i := 0; i < len(src); i++ {
		switch src[i] {
		case '(', '[', '{', '?':
			depth++
		case ')', ']', '}':
			depth--
		}
		switch src[i] {
		case '-', '+', '!':
			run++
		case ' ':
		default:
			run = 0
		}
		most = max(most, depth, run)
	}
	return most
}

// identVisitor collects what an expression refers to.
type identVisitor struct {
	src     Expr
	idents  map[*ast.IdentifierNode]bool
	locals  map[string]bool // names of let inside the expression
	texts   []string
	loops   int
	reduces int
	err     error
}

func (v *identVisitor) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.IdentifierNode:
		if strings.HasPrefix(n.Value, "$") {
			v.fail(n, "no variable "+strconv.Quote(n.Value), "use the names of the program's variables")
		}
		v.idents[n] = true
	case *ast.VariableDeclaratorNode:
		v.locals[n.Name] = true
	case *ast.PredicateNode:
		v.loops++
	case *ast.StringNode:
		v.texts = append(v.texts, n.Value)
	case *ast.BuiltinNode:
		if n.Name == "reduce" {
			v.reduces++
		}
	case *ast.CallNode:
		id, ok := n.Callee.(*ast.IdentifierNode)
		if !ok {
			v.fail(n, "only functions can be called", "")
			return
		}
		delete(v.idents, id)
		if !knownFunctions[id.Value] {
			hint := didYouMean(id.Value, functionNames())
			if clocks[id.Value] {
				hint = "expressions have no clock, so that a run can be repeated: make the time an input"
			}
			v.fail(id, "there is no function "+strconv.Quote(id.Value), hint)
		}
	}
}

func (v *identVisitor) fail(n ast.Node, msg, hint string) {
	if v.err == nil {
		v.err = &exprError{src: v.src, msg: msg, hint: hint, snippet: snippetAt(v.src, n.Location())}
	}
}

// checkExpr checks src against the types of the variables in scope and returns
// its type.
func checkExpr(p *parsed, src Expr, types map[string]Type) (Type, error) {
	if _, err := checker.Check(p.tree, configFor(p.reads, types)); err != nil {
		return Type{}, asExprError(src, err)
	}
	w := orderVisitor{types: types, orders: map[int]Type{}}
	ast.Walk(&p.tree.Node, &w)
	p.orders = w.orders
	return typeOfNode(p.tree.Node, types, 0), nil
}

// textFunctions write values as text. They take the type of the value as one
// more argument, which says the order of keys.
var textFunctions = map[string]bool{"join": true, "string": true, "toJSON": true}

// textCall returns the call of a text function that a node is.
func textCall(node ast.Node) *ast.CallNode {
	if c, ok := node.(*ast.CallNode); ok && len(c.Arguments) > 0 {
		if id, ok := c.Callee.(*ast.IdentifierNode); ok && textFunctions[id.Value] {
			return c
		}
	}
	return nil
}

// orderVisitor notes the types of what text functions write, in a checked tree.
type orderVisitor struct {
	types  map[string]Type
	orders map[int]Type
}

func (v *orderVisitor) Visit(node *ast.Node) {
	if c := textCall(*node); c != nil {
		if t := typeOfNode(c.Arguments[0], v.types, 0); t.hasFields() {
			v.orders[c.Location().From] = t
		}
	}
}

// orderKeys hands the types that orderVisitor found to the text functions.
type orderKeys struct {
	orders map[int]Type
	used   []Type
}

func (v *orderKeys) Visit(node *ast.Node) {
	c := textCall(*node)
	if c == nil {
		return
	}
	if t, ok := v.orders[c.Location().From]; ok {
		c.Arguments = append(c.Arguments, &ast.ConstantNode{Value: t})
		v.used = append(v.used, t)
	}
}

// compileExpr makes a program of src. Types are not looked at: the program is
// right for whatever types its variables have when it runs.
func compileExpr(src Expr) (*program, error) {
	p, err := parseExpr(src)
	if err != nil {
		return nil, err
	}
	return compileParsed(p, src)
}

func compileParsed(p *parsed, src Expr) (*program, error) {
	out := &program{src: src, reads: p.reads, counts: p.counts, texts: p.texts}
	if id, ok := p.tree.Node.(*ast.IdentifierNode); ok {
		out.ident = id.Value
		return out, nil
	}
	// Variables are of any type, and named apart from functions.
	config := configFor(p.reads, nil)
	config.Strict = false
	tree, err := parser.ParseWithConfig(string(src), baseConfig)
	if err != nil {
		return nil, asExprError(src, err)
	}
	if len(p.orders) > 0 {
		v := orderKeys{orders: p.orders}
		ast.Walk(&tree.Node, &v)
		out.orders = v.used
	}
	if p.counts {
		ast.Walk(&tree.Node, countSteps{})
	}
	if _, err := checker.Check(tree, config); err != nil {
		return nil, asExprError(src, err)
	}
	if err := optimizer.Optimize(&tree.Node, config); err != nil {
		return nil, asExprError(src, err)
	}
	if out.vm, err = compiler.Compile(tree, config); err != nil {
		return nil, asExprError(src, err)
	}
	return out, nil
}

// countSteps makes each round of a loop call the step counter first.
type countSteps struct{}

func (countSteps) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.PredicateNode:
		n.Node = stepThen(n.Node, nil)
	case *ast.BuiltinNode:
		if n.Name != "reduce" {
			return
		}
		// The predicate of a reduce was wrapped already; give its counter the
		// carried value too.
		if p, ok := n.Arguments[1].(*ast.PredicateNode); ok {
			p.Node = stepThen(p.Node, &ast.PointerNode{Name: "acc"})
		}
	}
}

func stepThen(body, carried ast.Node) ast.Node {
	if carried == nil {
		carried = &ast.NilNode{}
	}
	call := &ast.CallNode{Callee: &ast.IdentifierNode{Value: stepsVar}, Arguments: []ast.Node{carried}}
	return &ast.ConditionalNode{Cond: call, Exp1: body, Exp2: &ast.NilNode{}}
}

// stepCounter returns the counter of one evaluation.
func stepCounter() func(any) bool {
	steps, grown := 0, 0
	return func(carried any) bool {
		switch c := carried.(type) {
		case string:
			grown += len(c)
		case []any:
			grown += 16 * len(c)
		}
		if steps++; steps > maxExprSteps || grown > maxExprGrowth {
			panic("the loops of this expression take too many steps")
		}
		return true
	}
}

var vms = sync.Pool{New: func() any { return new(vm.VM) }}

// run evaluates the program over vars.
func (p *program) run(vars map[string]any) (any, error) {
	for _, name := range p.reads {
		if _, ok := vars[name]; !ok {
			return nil, p.unset(name, vars)
		}
	}
	if p.ident != "" {
		return vars[p.ident], nil
	}
	if p.counts {
		withSteps := make(map[string]any, len(vars)+1)
		for k, v := range vars {
			withSteps[k] = v
		}
		withSteps[stepsVar] = stepCounter()
		vars = withSteps
	}
	m := vms.Get().(*vm.VM)
	v, err := m.Run(p.vm, vars)
	vms.Put(m)
	if err != nil {
		return nil, asExprError(p.src, err)
	}
	n, err := Normalize(v)
	if err != nil {
		return nil, &exprError{src: p.src, msg: err.Error()}
	}
	return n, nil
}

func (p *program) unset(name string, vars map[string]any) error {
	names := make([]string, 0, len(vars))
	for k := range vars {
		names = append(names, k)
	}
	return &exprError{src: p.src, msg: "variable " + strconv.Quote(name) + " is not set", hint: didYouMean(name, names)}
}

// asExprError turns an error of expr-lang into one of ours.
func asExprError(src Expr, err error) error {
	e := &exprError{src: src, msg: err.Error()}
	var fe *file.Error
	if errors.As(err, &fe) {
		e.msg = strings.TrimSpace(fe.Message)
		e.snippet = snippetAt(src, fe.Location)
	}
	e.msg = exprMessages.Replace(e.msg)
	return e
}

// exprMessages puts what expr-lang says of Go types into the words of programs.
var exprMessages = strings.NewReplacer(
	"map[string]interface {}", "object",
	"[]interface {}", "list",
	"interface {}", "any",
	"float64", "float",
	"unexpected token EOF", "unexpected end",
)

// snippetAt draws the line of src that holds loc, with a caret under it.
func snippetAt(src Expr, loc file.Location) string {
	r := []rune(string(src))
	at := min(max(loc.From, 0), len(r))
	start := at
	for start > 0 && r[start-1] != '\n' {
		start--
	}
	end := at
	for end < len(r) && r[end] != '\n' {
		end++
	}
	if end-start > 160 {
		start = max(start, at-60)
		end = min(end, start+160)
	}
	line := strings.Map(func(c rune) rune {
		if c < ' ' {
			return ' '
		}
		return c
	}, string(r[start:end]))
	return " | " + line + "\n | " + strings.Repeat(".", at-start) + "^"
}

// clip shortens s for a message.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n] + "…"
}
