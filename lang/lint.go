package lang

import (
	"fmt"
	"regexp"
	"sort"
	"strconv"
	"strings"
)

// Lint is a layout that costs more than it needs, or a part that does nothing.
type Lint struct {
	Code    string `json:"code"`
	Where   string `json:"where"` // file:line
	Node    string `json:"node,omitempty"`
	Message string `json:"message"`
	// SavesTokens is what the change saves: for each run after the first where
	// texts are in the wrong order, in each run otherwise.
	SavesTokens int `json:"saves_tokens"`
}

// String returns "file:line: node: message [code]".
func (l Lint) String() string {
	s := ""
	for _, part := range []string{l.Where, l.Node} {
		if part != "" {
			s += part + ": "
		}
	}
	s += l.Message
	if l.SavesTokens > 0 {
		s += fmt.Sprintf(" (saves %s tokens)", thousands(l.SavesTokens))
	}
	return s + " [" + l.Code + "]"
}

// The codes of lints.
const (
	LintVolatileFirst  = "volatile-before-stable" // text that changes stands before text that does not
	LintNoSharedPrefix = "fork-without-prefix"    // branches have no context in common
	LintUnreachable    = "unreachable"            // a node after the end of the program, or behind a condition that never holds
	LintUnused         = "unused-variable"        // nothing reads it
	LintNearContext    = "near-context"           // a prompt fills the model's context
	LintOneOption      = "one-option"             // a select with nothing to choose
	LintOptionalKeys   = "optional-keys"          // a schema with many keys that may be left out
	LintNoContext      = "empty-context"          // a model is asked with no prompt at all
	LintTwoAnswers     = "two-answers"            // assistant turns without a turn between them
	LintSameBranches   = "same-branches"          // branches that cannot differ
	LintUselessTries   = "useless-tries"          // asking again gives the same answer
	LintSecret         = "secret"                 // a key or password in a prompt that leaves the machine
)

// minStable is how long a text must be for its place to matter, in tokens.
const minStable = 64

// linter finds lints. Each of its rules is a method that reads the graph.
type linter struct {
	g     *Graph
	o     ExplainOptions
	lints []Lint
}

func lint(g *Graph, o ExplainOptions, x *Explanation, high *forecaster) []Lint {
	l := &linter{g: g, o: o}
	l.order(g.Body, &layout{volatile: l.inputNames()})
	l.unreachable(g.Body)
	l.unused()
	l.each(high)
	l.sameBranches()
	l.secrets()
	l.context(high)
	sort.SliceStable(l.lints, func(i, j int) bool { return l.lints[i].SavesTokens > l.lints[j].SavesTokens })
	return l.lints
}

func (l *linter) add(code string, n *Node, saves int, format string, args ...any) {
	l.lints = append(l.lints, Lint{Code: code, Where: n.Pos.String(), Node: n.ID, Message: fmt.Sprintf(format, args...), SavesTokens: saves})
}

func (l *linter) inputNames() map[string]bool {
	m := map[string]bool{}
	for _, in := range l.g.Inputs {
		m[in.Name] = true
	}
	return m
}

// tokens counts a text alone.
func (l *linter) tokens(s string) int {
	ids, err := l.o.Estimator.Tokenize([]Turn{{Text: s}}, false)
	if err != nil {
		return lengthOf(s)
	}
	return len(ids)
}

// layout is what is known of the texts of a context so far.
type layout struct {
	volatile map[string]bool // variables that change from run to run (or branch to branch) and could stand later
	first    *Node           // the first text that reads one
	reads    string          // which
	asked    bool            // a model was asked: what follows depends on its answers
	branches int             // of the fork that the context is in; 0: none
}

// order finds long constant texts behind texts that change. Only texts before
// the first request of a context are judged: they can be moved freely.
func (l *linter) order(body []*Node, at *layout) {
	for _, n := range body {
		switch n.Kind {
		case KindText:
			l.orderText(n, at)
		case KindRole:
			l.order(n.Role.Body, at)
		case KindGen, KindJSON, KindSelect:
			at.asked = true
		case KindLet:
			for _, r := range n.Reads {
				if at.volatile[r] {
					at.volatile[n.Name] = true
				}
			}
		case KindCall, KindWait, KindRun:
			at.volatile[n.Name] = true
		case KindFork:
			bodies := n.bodies()
			count := max(len(n.Fork.Items), len(n.Fork.Arms))
			for _, b := range bodies {
				in := &layout{volatile: map[string]bool{}, branches: count}
				if n.Fork.As != "" {
					in.volatile[n.Fork.As] = true
				}
				l.order(b.nodes, in)
			}
			at.asked = true
		case KindWhen:
			l.order(n.When.Then, &layout{volatile: at.volatile, asked: at.asked, first: at.first, reads: at.reads, branches: at.branches})
			l.order(n.When.Else, &layout{volatile: at.volatile, asked: at.asked, first: at.first, reads: at.reads, branches: at.branches})
		case KindRepeat, KindForEach:
			at.asked = true
		}
	}
}

func (l *linter) orderText(n *Node, at *layout) {
	if at.asked {
		return
	}
	ps, err := n.Text.Content.pieces()
	if err != nil {
		return
	}
	for _, p := range ps {
		if p.ex != "" {
			if at.first != nil {
				continue
			}
			x, err := parseExpr(p.ex)
			if err != nil {
				continue
			}
			for _, r := range x.reads {
				if at.volatile[r] {
					at.first, at.reads = n, r
				}
			}
			continue
		}
		if at.first == nil {
			continue
		}
		saves := l.tokens(p.text)
		if saves < minStable {
			continue
		}
		what := fmt.Sprintf("%s changes from run to run, so the %d tokens of constant text at %s are computed anew in each", strconv.Quote(at.reads), saves, n.Pos)
		do := "put it after them"
		if at.branches > 0 {
			what = fmt.Sprintf("%s differs between the branches, so each computes the %d tokens of constant text at %s", strconv.Quote(at.reads), saves, n.Pos)
			do = "put that text before the fork"
			saves *= at.branches - 1
		}
		l.add(LintVolatileFirst, at.first, saves, "%s: %s", what, do)
	}
}

func (l *linter) unreachable(body []*Node) {
	for i, n := range body {
		for _, b := range n.bodies() {
			l.unreachable(b.nodes)
		}
		if n.When != nil {
			l.neverTaken(n)
		}
		if i+1 < len(body) && endsInReturn(body[:i+1]) {
			l.add(LintUnreachable, body[i+1], 0, "nothing from here on is run: the program ends at %s", n.Pos)
			return
		}
	}
}

// neverTaken finds the way of a condition that reads nothing and is the same in every run.
func (l *linter) neverTaken(n *Node) {
	p, err := parseExpr(n.When.If)
	if err != nil || len(p.reads) > 0 {
		return
	}
	v, err := l.g.Eval(n.When.If, nil)
	if err != nil {
		return
	}
	never := n.When.Else
	if v == false {
		never = n.When.Then
	}
	if len(never) > 0 {
		l.add(LintUnreachable, never[0], 0, "this is never run: %s is always %v", n.When.If, v)
	}
}

// unused finds variables that nothing reads. What a model writes stays in the
// context, so only a value that no later request can see is of no use.
func (l *linter) unused() {
	read := map[string]bool{}
	l.g.Walk(func(n *Node) bool {
		for _, e := range n.exprs() {
			if e == "" {
				continue
			}
			if p, err := parseExpr(e); err == nil {
				for _, r := range p.reads {
					if r != n.Name || n.Let != nil { // a node's checks read its own value
						read[r] = true
					}
				}
			}
		}
		return n.Run == nil // a program of its own
	})
	for i := range l.g.Inputs {
		if in := &l.g.Inputs[i]; !read[in.Name] {
			l.lints = append(l.lints, Lint{Code: LintUnused, Where: in.Pos.String(), Message: fmt.Sprintf("nothing reads the input %q: remove it, or put it into a text", in.Name)})
		}
	}
	var walk func(body []*Node, seen bool)
	walk = func(body []*Node, seen bool) {
		// seen: a later request reads this context.
		for i := len(body) - 1; i >= 0; i-- {
			n := body[i]
			switch n.Kind {
			case KindFork:
				for _, b := range n.bodies() {
					walk(b.nodes, false)
				}
				if !read[n.Name] {
					if !contextFree(n) {
						l.add(LintUnused, n, 0, "nothing reads %q: of the branches' work nothing comes back but this list", n.Name)
					}
				}
				seen = seen || asksModel(n)
			case KindRepeat, KindForEach:
				loop := false
				for _, b := range n.bodies() {
					for _, k := range b.nodes {
						loop = loop || asksModel(k)
					}
					walk(b.nodes, seen || loop)
				}
				seen = seen || loop
			case KindWhen, KindRole:
				any := false
				for _, b := range n.bodies() {
					walk(b.nodes, seen)
					for _, k := range b.nodes {
						any = any || asksModel(k)
					}
				}
				seen = seen || any
			case KindGen, KindJSON, KindSelect:
				if !seen && !read[n.Name] {
					l.add(LintUnused, n, 0, "nothing reads %q, and no later request sees its text: return it, or remove the %s", n.Name, n.Kind)
				}
				seen = true
			case KindLet:
				if !read[n.Name] {
					l.add(LintUnused, n, 0, "nothing reads %q", n.Name)
				}
			}
		}
	}
	walk(l.g.Body, false)
}

// asksModel reports whether n or a node inside of it asks the model.
func asksModel(n *Node) bool {
	found := false
	walkBody([]*Node{n}, func(k *Node) bool {
		switch k.Kind {
		case KindGen, KindJSON, KindSelect:
			found = true
		}
		return !found && k.Run == nil // a program has its own context
	})
	return found
}

// contextFree reports whether a fork is there for what its calls do.
func contextFree(n *Node) bool {
	calls := false
	walkBody([]*Node{n}, func(k *Node) bool {
		calls = calls || k.Kind == KindCall || k.Kind == KindWait || k.Kind == KindSleep || k.Kind == KindRun
		return !calls
	})
	return calls
}

// exprs returns the expressions of a template.
func (t Template) exprs() []Expr {
	var out []Expr
	ps, _ := t.pieces()
	for _, p := range ps {
		if p.ex != "" {
			out = append(out, p.ex)
		}
	}
	return out
}

// exprs returns the expressions of a node itself, those of its text included.
func (n *Node) exprs() []Expr {
	switch {
	case n.Text != nil:
		return n.Text.Content.exprs()
	case n.Image != nil:
		return n.Image.URL.exprs()
	case n.Gen != nil, n.JSON != nil:
		var out []Expr
		checks, _ := n.Checks()
		for _, c := range checks {
			out = append(out, c.Expr)
		}
		return append(out, n.saltExprs()...)
	case n.Select != nil:
		return append([]Expr{n.Select.From}, n.saltExprs()...)
	case n.Fork != nil:
		out := []Expr{n.Fork.Over, n.Fork.Yield}
		for _, a := range n.Fork.Arms {
			out = append(out, a.Yield)
		}
		return out
	case n.Call != nil:
		return n.Call.Args
	case n.Wait != nil:
		return n.Wait.Ask.exprs()
	case n.Run != nil:
		out := make([]Expr, len(n.Run.With))
		for i, a := range n.Run.With {
			out[i] = a.Value
		}
		return out
	case n.When != nil:
		return []Expr{n.When.If}
	case n.Repeat != nil:
		return []Expr{n.Repeat.Until}
	case n.ForEach != nil:
		return []Expr{n.ForEach.Over, n.ForEach.Yield}
	case n.Let != nil:
		return []Expr{n.Let.Value}
	case n.Return != nil:
		return []Expr{n.Return.Value}
	}
	return nil
}

// saltExprs returns the expressions of a node's salt.
func (n *Node) saltExprs() (out []Expr) {
	ps, _ := n.Terms().Salt.pieces()
	for _, p := range ps {
		if p.ex != "" {
			out = append(out, p.ex)
		}
	}
	return out
}

// each judges nodes one by one, and the contexts at them.
func (l *linter) each(high *forecaster) {
	l.g.Walk(func(n *Node) bool {
		switch {
		case n.Select != nil && len(n.Select.Options) == 1:
			l.add(LintOneOption, n, 0, "a select with one option always gives %q: use let, or add options", clip(n.Select.Options[0], 40))
		case n.JSON != nil:
			if t, err := parseJSON(n.JSON.Schema); err == nil {
				if at, many := optionalKeys(t, "", 0); many > maxOptional {
					l.add(LintOptionalKeys, n, 0, "%d keys may be left out%s: at each of them the model chooses, little is forced and the grammar grows; require what is always there", many, at)
				}
			}
		}
		return true
	})
	l.turns(l.g.Body, &speech{})
}

// speech is who spoke last in a context.
type speech struct {
	any  bool // there is a context at all
	last string
	turn bool // inside of a role block
}

// turns finds requests without a context, forks without a prefix, and answers
// that follow answers.
func (l *linter) turns(body []*Node, s *speech) {
	for _, n := range body {
		switch n.Kind {
		case KindText:
			if n.Text.Role != "" {
				s.last = n.Text.Role
			} else {
				s.last = "text"
			}
			s.any = true
		case KindRole:
			if s.last == "assistant" && n.Role.Role == "assistant" {
				l.add(LintTwoAnswers, n, 0, "an assistant turn after an assistant turn: many chat templates were not made for that; put a user turn between them or make them one")
			}
			outer := s.turn
			s.any, s.last, s.turn = true, "open", true
			l.turns(n.Role.Body, s)
			s.last, s.turn = n.Role.Role, outer
		case KindGen, KindJSON, KindSelect:
			if !s.any {
				l.add(LintNoContext, n, 0, "the model is asked with nothing before it: add a user turn")
			}
			if s.last == "assistant" {
				l.add(LintTwoAnswers, n, 0, "an assistant turn after an assistant turn: many chat templates were not made for that; put a user turn between them, or an assistant block around them")
			}
			if _, tries := n.Checks(); tries > 1 && s.last == "text" && !s.turn && samplingOf(n).Temperature == 0 {
				l.add(LintUselessTries, n, 0, "in raw text the model cannot be told what is wrong, and without a temperature it gives the same answer each time: write turns, or give it a temperature")
			}
			if s.last != "open" && s.last != "text" {
				s.last = "assistant"
			}
			s.any = true
		case KindFork:
			if !s.any && asksModel(n) {
				l.add(LintNoSharedPrefix, n, 0, "the branches begin with an empty context, so they share nothing: put what they have in common before the fork")
			}
			for _, b := range n.bodies() {
				in := *s
				l.turns(b.nodes, &in)
			}
		case KindWhen:
			a, b := *s, *s
			l.turns(n.When.Then, &a)
			l.turns(n.When.Else, &b)
			s.any = a.any || b.any
			if a.last != b.last {
				s.last = ""
			} else {
				s.last = a.last
			}
		case KindRepeat, KindForEach:
			for _, b := range n.bodies() {
				l.turns(b.nodes, s)
			}
		}
	}
}

// maxOptional is how many optional keys one object may have unremarked.
const maxOptional = 8

// optionalKeys returns the most optional keys that an object of a schema has,
// and where.
func optionalKeys(t *tree, at string, depth int) (string, int) {
	if depth > maxTreeDepth {
		return "", 0
	}
	where, most := "", 0
	if props := t.get("properties"); props != nil && props.kind == treeMap {
		most = len(props.keys)
		if r := t.get("required"); r != nil {
			most -= len(r.vals)
		}
		if at != "" {
			where = " at " + at
		}
	}
	for i, v := range t.vals {
		step := strconv.Itoa(i)
		if t.kind == treeMap {
			step = t.keys[i]
		}
		if w, n := optionalKeys(v, pointer(at, step), depth+1); n > most {
			where, most = w, n
		}
	}
	return where, most
}

func (l *linter) context(high *forecaster) {
	if l.o.Context <= 0 || high.longestAt == nil {
		return
	}
	n := high.longestAt
	switch size := high.longest; {
	case size > l.o.Context:
		l.add(LintNearContext, n, 0, "the context may grow to %s tokens, and the model's holds %s: shorten the texts or bound what is generated", thousands(size), thousands(l.o.Context))
	case size*10 > l.o.Context*9:
		l.add(LintNearContext, n, 0, "the context may grow to %s of the %s tokens that the model's holds", thousands(size), thousands(l.o.Context))
	}
}

var secrets = []struct {
	what string
	re   *regexp.Regexp
}{
	{"a private key", regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----`)},
	{"an access key", regexp.MustCompile(`\b(AKIA|ASIA)[0-9A-Z]{16}\b`)},
	{"an API key", regexp.MustCompile(`\b(sk|pk|rk)-[A-Za-z0-9_-]{20,}\b`)},
	{"an API key", regexp.MustCompile(`\bAIza[A-Za-z0-9_-]{35}\b`)},
	{"an API key", regexp.MustCompile(`\b(sk|pk|rk)_(live|test)_[A-Za-z0-9]{16,}\b`)},
	{"a token", regexp.MustCompile(`\b(gh[pousr]|github_pat|glpat|hf|npm|xox[abeprs])[-_][A-Za-z0-9_-]{16,}\b`)},
	{"a token", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{16,}`)},
	{"a password", regexp.MustCompile(`\b[a-z][a-z0-9+.-]*://[^\s/:@]*:[^\s/:@]{4,}@[^\s/]`)},
	{"a password", regexp.MustCompile(`(?i)\b(password|passwd|secret|api[_-]?key)\s*[:=]\s*[^\s$]{6,}`)},
}

// secretIn names the kind of secret that a text seems to hold.
func secretIn(s string) string {
	if len(s) > 1<<20 {
		s = s[:1<<20]
	}
	for _, k := range secrets {
		if m := k.re.FindString(s); m != "" && !strings.Contains(m, "${") {
			return k.what
		}
	}
	return ""
}
