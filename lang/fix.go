package lang

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// FixResult is a program whose layout was changed so that more of it is shared,
// and what that saves.
type FixResult struct {
	// Graph is the changed program. If nothing was changed it says the same as the
	// one that was given.
	Graph *Graph `json:"graph"`
	Fixes []Lint `json:"fixes"` // what was changed, in the order of the program
	// Left are the lints of the changed program: what Fix does not mend, because it
	// would have to guess what is meant.
	Left   []Lint      `json:"left"`
	Before FixForecast `json:"before"`
	After  FixForecast `json:"after"`
}

// FixForecast is the part of an explanation that a layout decides.
type FixForecast struct {
	Stable Range    `json:"stable_tokens"` // at the beginning of each run, the same in all
	Usage  Forecast `json:"usage"`
}

// Fix changes the layout of a program where text that changes stands before text
// that does not, and where branches begin with the same turns. It moves whole
// sentences, lines and turns: every request has the same texts in its context as
// before, in another order. What a sentence refers to ("it", "this") stays before it
// as far as that can be seen; whoever takes the program should read what was moved.
//
// Nothing is moved from one role to another, over an answer, or in a turn of
// several nodes. Such layouts stay in Left.
func Fix(g *Graph, o ExplainOptions) (*FixResult, error) {
	before, err := Explain(g, o)
	if err != nil {
		return nil, err
	}
	out, err := g.clone()
	if err != nil {
		return nil, err
	}
	if o.Estimator == nil {
		o.Estimator = byLength{}
	}
	f := &fixer{l: &linter{g: out, o: o}}
	out.Body = f.body(out.Body, f.l.inputNames(), false)
	out.Body = f.hoist(out.Body)
	if out, err = out.clone(); err != nil {
		return nil, err
	}
	after, err := Explain(out, o)
	if err != nil {
		return nil, err
	}
	r := &FixResult{Graph: out, Fixes: f.l.lints, Left: after.Lints,
		Before: FixForecast{before.Trunk.Stable, before.Usage}, After: FixForecast{after.Trunk.Stable, after.Usage}}
	if r.Fixes == nil {
		r.Fixes = []Lint{}
	}
	return r, nil
}

// clone returns a copy of a graph, checked.
func (g *Graph) clone() (*Graph, error) {
	doc, err := g.JSON()
	if err != nil {
		return nil, err
	}
	return Decode(doc, g.Name)
}

// fixer moves texts. What it did stands in its linter's lints.
type fixer struct{ l *linter }

// body orders the turns of a body up to its first answer, and of the branches of
// all its forks. volatile are the variables that change; it is added to. branch
// says that they change between the branches of a fork.
func (f *fixer) body(body []*Node, volatile map[string]bool, branch bool) []*Node {
	var out, run []*Node // run: texts of one role, with what does not touch the context between them
	role, asked := "", false
	flush := func() {
		out = append(out, f.turns(run, volatile, branch)...)
		run, role = nil, ""
	}
	for _, n := range body {
		if asked && n.Kind != KindFork {
			out = append(out, n)
			continue
		}
		switch n.Kind {
		case KindText:
			if n.Text.Role == "" || n.Text.Role != role {
				flush()
				role = n.Text.Role
			}
			f.sentences(n, volatile, branch)
			run = append(run, n)
			continue
		case KindLet:
			for _, r := range n.Reads {
				if volatile[r] {
					volatile[n.Name] = true
				}
			}
			run = append(run, n)
			continue
		case KindCall, KindWait, KindRun:
			volatile[n.Name] = true
			run = append(run, n)
			continue
		}
		flush()
		switch n.Kind {
		case KindGen, KindJSON, KindSelect, KindRepeat, KindForEach:
			asked = true
		case KindRole:
			asked = asked || asksModel(n)
		case KindWhen:
			n.When.Then = f.body(n.When.Then, volatile, branch)
			if n.When.Else != nil {
				n.When.Else = f.body(n.When.Else, volatile, branch)
			}
			asked = asked || asksModel(n)
		case KindFork:
			item := func() map[string]bool {
				if n.Fork.As == "" {
					return map[string]bool{}
				}
				return map[string]bool{n.Fork.As: true}
			}
			if n.Fork.Body != nil {
				n.Fork.Body = f.body(n.Fork.Body, item(), true)
			}
			for i := range n.Fork.Arms {
				n.Fork.Arms[i].Body = f.body(n.Fork.Arms[i].Body, item(), true)
			}
			asked = true
		}
		out = append(out, n)
	}
	flush()
	return out
}

// reads returns the first changing variable that a text reads, or "".
func (f *fixer) reads(t Template, volatile map[string]bool) string {
	for _, e := range t.exprs() {
		x, err := parseExpr(e)
		if err != nil {
			continue
		}
		for _, r := range x.reads {
			if volatile[r] {
				return r
			}
		}
	}
	return ""
}

// turns puts the constant turns of a run of one role before the others, if they are
// long enough.
func (f *fixer) turns(run []*Node, volatile map[string]bool, branch bool) []*Node {
	var first *Node // the first that changes
	var what string
	var ahead, behind []*Node
	moved := 0
	for _, n := range run {
		if n.Kind == KindText {
			if r := f.reads(n.Text.Content, volatile); r != "" && first == nil {
				first, what = n, r
			}
			if first != nil && len(n.Text.Content.exprs()) == 0 {
				if k := f.l.tokens(string(n.Text.Content)); k >= minStable {
					moved += k
					ahead = append(ahead, n)
					continue
				}
			}
		}
		if first == nil {
			ahead = append(ahead, n)
		} else {
			behind = append(behind, n)
		}
	}
	if moved == 0 {
		return run
	}
	f.note(first, what, moved, branch, "moved "+strconv.Itoa(moved)+" tokens in constant turns")
	return append(ahead, behind...)
}

func (f *fixer) note(n *Node, what string, moved int, branch bool, did string) {
	why := "which changes from run to run"
	if branch {
		why = "which differs between the branches"
	}
	f.l.add(LintVolatileFirst, n, moved, "%s before %s, %s", did, strconv.Quote(what), why)
}

// unit is a sentence or line of a turn, with what stands between it and the next.
type unit struct {
	parts []piece
	space string
	last  bool // of its turn
}

// sentences puts the constant sentences of a turn before those that change, if they
// are long enough.
func (f *fixer) sentences(n *Node, volatile map[string]bool, branch bool) {
	what := f.reads(n.Text.Content, volatile)
	if what == "" {
		return
	}
	ps, err := n.Text.Content.pieces()
	if err != nil {
		return
	}
	var ahead, stay, behind []unit
	moved := 0
	for _, u := range units(ps) {
		changes, constant := false, true
		for _, p := range u.parts {
			if p.ex != "" {
				constant = false
				changes = changes || f.reads(templateOf([]piece{p}), volatile) != ""
			}
		}
		switch last := len(behind) - 1; {
		case last < 0 && !changes:
			stay = append(stay, u)
		case !changes && constant && !refersBack(u):
			for _, p := range u.parts {
				moved += f.l.tokens(p.text)
			}
			ahead = append(ahead, u)
		default:
			behind = append(behind, u)
		}
	}
	if moved < minStable {
		return
	}
	all := append(append(stay, ahead...), behind...)
	// What stood behind the turn's last sentence stands behind the new last one.
	for i := range all {
		if last := len(all) - 1; all[i].last {
			all[i].space, all[last].space = all[last].space, all[i].space
			break
		}
	}
	var parts []piece
	for _, u := range all {
		parts = append(parts, u.parts...)
		parts = append(parts, piece{text: u.space})
	}
	n.Text.Content = templateOf(parts)
	f.note(n, what, moved, branch, "moved "+strconv.Itoa(moved)+" tokens of constant text")
}

// units cuts a turn behind sentences and lines that end. Where it is not clear that
// one ends it does not.
func units(ps []piece) []unit {
	var out []unit
	var u unit
	for _, p := range ps {
		if p.ex != "" {
			u.parts = append(u.parts, p)
			continue
		}
		for rest := p.text; rest != ""; {
			end, space := sentenceEnd(rest, len(u.parts) > 0)
			if end < 0 {
				u.parts = append(u.parts, piece{text: rest})
				break
			}
			u.parts = append(u.parts, piece{text: rest[:end]})
			u.space = rest[end : end+space]
			out, u = append(out, u), unit{}
			rest = rest[end+space:]
		}
	}
	if len(u.parts) > 0 {
		out = append(out, u)
	}
	if len(out) > 0 {
		out[len(out)-1].last = true
	}
	return out
}

// sentenceEnd returns where the first sentence or line of s ends and how much space
// is behind it, or -1. after says that s stands right behind an expression.
func sentenceEnd(s string, after bool) (end, space int) {
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if !unicode.IsSpace(r) {
			i += size
			continue
		}
		j := len(s) - len(strings.TrimLeftFunc(s[i:], unicode.IsSpace))
		if i == 0 && !after {
			i = j
			continue
		}
		next, _ := utf8.DecodeRuneInString(s[j:])
		fresh := j == len(s) || unicode.IsUpper(next) || unicode.IsDigit(next) || strings.ContainsRune("#-*<", next)
		switch lines := strings.Count(s[i:j], "\n"); {
		case lines > 1, fresh && lines == 1 && i == 0, fresh && ends(s[:i], lines > 0):
			return i, j - i
		}
		i = j
	}
	return -1, 0
}

// ends reports whether s ends in the end of a sentence. "e.g.", "1." and the like
// end one only at the end of a line.
func ends(s string, line bool) bool {
	s = strings.TrimRight(s, "\"')]}*_`")
	if s == "" || !strings.ContainsRune(".!?", rune(s[len(s)-1])) {
		return false
	}
	word := s[strings.LastIndexAny(s, " \n\t")+1:]
	short := len(word) <= 3 && strings.ContainsFunc(word, unicode.IsLetter) || strings.Count(word, ".") > 1
	return line || !short && !unicode.IsDigit(rune(word[0]))
}

// backwards are words by which a sentence begins that refers to what is before it.
var backwards = map[string]bool{
	"it": true, "its": true, "this": true, "that": true, "these": true, "those": true, "they": true, "them": true,
	"their": true, "he": true, "she": true, "his": true, "her": true, "then": true, "so": true, "such": true,
	"also": true, "but": true, "and": true, "or": true, "however": true, "therefore": true, "otherwise": true,
	"thus": true, "hence": true, "both": true, "above": true,
}

func refersBack(u unit) bool {
	if len(u.parts) == 0 {
		return false
	}
	word := strings.TrimLeftFunc(u.parts[0].text, func(r rune) bool { return !unicode.IsLetter(r) })
	if i := strings.IndexFunc(word, func(r rune) bool { return !unicode.IsLetter(r) }); i >= 0 {
		word = word[:i]
	}
	return backwards[strings.ToLower(word)]
}

// hoist puts turns by which all branches of a fork begin before the fork, where the
// context is empty there and nobody sees it afterwards.
func (f *fixer) hoist(body []*Node) []*Node {
	for i, n := range body {
		if n.Kind != KindFork {
			if n.Kind == KindText || n.Kind == KindRole || asksModel(n) {
				return body // there is a context
			}
			continue
		}
		for _, later := range body[i+1:] {
			if asksModel(later) {
				return body
			}
		}
		bodies := n.bodies()
		if len(bodies) == 0 {
			return body
		}
		k := 0
		for ; k < len(bodies[0].nodes); k++ {
			first := bodies[0].nodes[k]
			if first.Kind != KindText || first.Text.Role == "" || len(first.Text.Content.exprs()) > 0 {
				break
			}
			same := true
			for _, b := range bodies[1:] {
				same = same && k < len(b.nodes) && b.nodes[k].Kind == KindText &&
					b.nodes[k].Text.Role == first.Text.Role && b.nodes[k].Text.Content == first.Text.Content
			}
			if !same {
				break
			}
		}
		if k == 0 {
			return body
		}
		shared := bodies[0].nodes[:k:k]
		tokens := 0
		for _, s := range shared {
			tokens += f.l.tokens(string(s.Text.Content))
		}
		if n.Fork.Body != nil {
			n.Fork.Body = n.Fork.Body[k:]
		}
		for j := range n.Fork.Arms {
			n.Fork.Arms[j].Body = n.Fork.Arms[j].Body[k:]
		}
		f.l.add(LintNoSharedPrefix, n, tokens, "put what all branches begin with (%s) before the fork", countOf(k, "turn"))
		return append(append(append([]*Node{}, body[:i]...), shared...), body[i:]...)
	}
	return body
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// String returns what was changed and what it saves, for a terminal.
func (r *FixResult) String() string {
	var b strings.Builder
	for _, x := range r.Fixes {
		fmt.Fprintf(&b, "%s: %s\n", x.Where, x.Message)
	}
	if len(r.Fixes) == 0 {
		b.WriteString("nothing to change\n")
	} else {
		fmt.Fprintf(&b, "the same in every run: %s tokens, were %s\n", r.After.Stable, r.Before.Stable)
		fmt.Fprintf(&b, "computed in a first run: %s tokens, were %s\n", r.After.Usage.Computed, r.Before.Usage.Computed)
	}
	for _, l := range r.Left {
		fmt.Fprintf(&b, "left: %s\n", l)
	}
	return b.String()
}
