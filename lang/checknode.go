package lang

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// inputs checks the inputs and returns the flow at the start of the program.
func (c *analysis) inputs() *flow {
	f := &flow{vars: map[string]*variable{}}
	for i := range c.g.Inputs {
		in := &c.g.Inputs[i]
		n := &Node{Pos: in.Pos, ID: in.Name}
		switch {
		case in.Name == "":
			c.fail(n, "an input without a name", "name it")
			continue
		case !c.goodName(n, in.Name):
			continue
		case f.vars[in.Name] != nil:
			c.fail(n, fmt.Sprintf("input %q twice, first at %s", in.Name, f.vars[in.Name].pos), "use another name")
			continue
		}
		if in.Type.Kind == "" {
			in.Type = Type{Kind: TypeAny}
		}
		if in.Default != nil {
			v, err := DecodeValue(in.Default)
			if err == nil {
				v, err = Convert(v, in.Type)
			}
			if err != nil {
				c.fail(n, "default: "+err.Error(), "give a default of type "+in.Type.String())
			} else {
				in.Default = FormatJSON(v, in.Type)
			}
		}
		c.utf8(n, "doc", in.Doc)
		f.vars[in.Name] = &variable{typ: in.Type, pos: in.Pos, fixed: true}
	}
	c.utf8(&Node{}, "doc", c.g.Doc)
	return f
}

// limits checks what each node says for itself.
func (c *analysis) limits(body []*Node) {
	for _, n := range body {
		c.terms(n)
		switch n.Kind {
		case KindText:
			c.utf8(n, "text", string(n.Text.Content))
		case KindImage:
			c.utf8(n, "image", string(n.Image.URL))
			if n.Image.URL == "" {
				c.fail(n, "no picture", "give its URL")
			}
		case KindRole:
			c.pathName(n)
		case KindGen:
			c.needsName(n)
			c.gen(n, n.Gen)
		case KindSelect:
			c.needsName(n)
			c.selects(n, n.Select)
		case KindJSON:
			c.needsName(n)
			c.json(n, n.JSON)
		case KindFork:
			c.needsName(n)
			c.forks(n, n.Fork)
		case KindCall:
			if !isPathName(n.Call.Func) {
				c.fail(n, fmt.Sprintf("%q is no name of a function", clip(n.Call.Func, 40)), "use letters, digits, _ - and .")
			}
			if n.Call.Result.Kind == "" {
				n.Call.Result = Type{Kind: TypeAny}
			}
		case KindWhen:
			c.pathName(n)
			if n.When.If == "" {
				c.fail(n, "no condition", "write one, e.g. severity == \"high\"")
			}
		case KindRepeat:
			c.pathName(n)
			if r := n.Repeat; r.Max < 1 {
				c.fail(n, fmt.Sprintf("repeat needs a bound of at least 1, not %d", r.Max), "say how often at most with max")
			} else if r.Max > maxRepeat {
				c.fail(n, fmt.Sprintf("a bound of %d, the limit is %d", r.Max, maxRepeat), "use a smaller one")
			}
		case KindForEach:
			c.needsName(n)
			if n.ForEach.As == "" {
				c.fail(n, "no name for the item", "give one with as")
			}
			if n.ForEach.Over == "" {
				c.fail(n, "no list", "give one with over")
			}
		case KindRun:
			if n.Run.Program != "" && !isPathName(n.Run.Program) {
				c.fail(n, fmt.Sprintf("%q is no name of a program", clip(n.Run.Program, 40)), "use letters, digits, _ - and .")
			}
		case KindSleep:
			c.pathName(n)
			c.sleeps(n)
		case KindWait:
			c.needsName(n)
			c.waits(n)
		case KindLet:
			c.needsName(n)
		}
		for _, b := range n.bodies() {
			c.limits(b.nodes)
		}
	}
}

func (c *analysis) needsName(n *Node) {
	if n.Name == "" {
		c.fail(n, "a "+string(n.Kind)+" without a name", "name it: the name is the variable that it sets")
	}
}

func (c *analysis) pathName(n *Node) {
	if n.Name != "" && !isPathName(n.Name) {
		c.fail(n, fmt.Sprintf("%q cannot name a %s", clip(n.Name, 40), n.Kind), "use letters, digits, _ - and .")
	}
}

func (c *analysis) utf8(n *Node, what, s string) {
	if !utf8.ValidString(s) {
		c.fail(n, what+" is not UTF-8", "convert it; bytes that are no text cannot be in a prompt")
	}
}

func (c *analysis) gen(n *Node, g *GenNode) {
	c.tokens(n, g.MaxTokens)
	if g.MinTokens < 0 {
		c.fail(n, fmt.Sprintf("min_tokens is %d", g.MinTokens), "use 0 or more")
	}
	if g.MaxTokens > 0 && g.MinTokens > g.MaxTokens {
		c.fail(n, fmt.Sprintf("min_tokens %d is more than max_tokens %d", g.MinTokens, g.MaxTokens), "lower one or raise the other")
	}
	for _, s := range g.Stop {
		if s == "" {
			c.fail(n, "an empty stop string would end every text at once", "remove it")
		}
		c.utf8(n, "stop", s)
	}
	for _, p := range g.StopRegex {
		c.stopRegex(n, p)
	}
	if g.Regex != "" && g.EBNF != "" {
		c.fail(n, "both regex and ebnf", "a text can follow one of them: remove the other")
	}
	if g.Tags != nil {
		if g.Regex != "" || g.EBNF != "" {
			c.fail(n, "tags beside regex or ebnf", "a text can follow one of them: remove the other")
		}
		c.tags(n, g.Tags)
	}
	c.utf8(n, "ebnf", g.EBNF)
	if g.Regex != "" {
		c.regex(n, "regex", g.Regex)
	}
	c.sampling(n, &g.Sampling)
	c.tokenRules(n, &g.Tokens)
}

func (c *analysis) tokens(n *Node, max int) {
	if max < 0 {
		c.fail(n, fmt.Sprintf("max_tokens is %d", max), "use a positive number, or 0 for what is left of the context")
	}
}

// stopRegex checks a pattern that ends a text.
func (c *analysis) stopRegex(n *Node, pattern string) {
	re, err := regexp.Compile(pattern)
	var se *syntax.Error
	switch {
	case errors.As(err, &se):
		c.fail(n, "stop_regex "+strconv.Quote(clip(pattern, 60))+": "+se.Code.String(), "correct the pattern: it is one of Go's package regexp")
	case re.MatchString(""):
		c.fail(n, "stop_regex "+strconv.Quote(clip(pattern, 60))+" matches nothing at all, so that every text ends at once", "make it match what ends the text")
	}
}

// regex is a first look at a pattern: what no dialect takes is refused here,
// the rest is for the grammar of the backend.
func (c *analysis) regex(n *Node, what, pattern string) {
	if msg := badRegex(pattern); msg != "" {
		c.fail(n, what+" "+strconv.Quote(clip(pattern, 60))+": "+msg, "correct the pattern")
	}
}

func badRegex(pattern string) string {
	if !utf8.ValidString(pattern) {
		return "not UTF-8"
	}
	_, err := syntax.Parse(pattern, syntax.Perl)
	var se *syntax.Error
	if !errors.As(err, &se) {
		return ""
	}
	switch se.Code {
	case syntax.ErrInvalidEscape, syntax.ErrInvalidRepeatSize, syntax.ErrInvalidPerlOp, syntax.ErrInvalidNamedCapture, syntax.ErrLarge:
		return "" // other dialects have more escapes, groups and repeats
	}
	if strings.Contains(pattern, "(?") && se.Code == syntax.ErrMissingRepeatArgument {
		return ""
	}
	msg := se.Code.String()
	if se.Expr != "" && len(se.Expr) < 40 {
		msg += " at " + strconv.Quote(se.Expr)
	}
	return msg
}

func (c *analysis) sampling(n *Node, s *Sampling) {
	check := func(name string, v, lo, hi float64) {
		if math.IsNaN(v) || v < lo || v > hi {
			want := fmt.Sprintf("use a number from %g to %g", lo, hi)
			if hi > 1e9 {
				want = fmt.Sprintf("use a number of at least %g", lo)
			}
			c.fail(n, fmt.Sprintf("%s is %g", name, v), want)
		}
	}
	check("temperature", s.Temperature, 0, 100)
	check("top_p", s.TopP, 0, 1)
	check("min_p", s.MinP, 0, 1)
	check("repetition_penalty", s.RepetitionPenalty, 0, 100)
	check("frequency_penalty", s.FrequencyPenalty, -2, 2)
	check("presence_penalty", s.PresencePenalty, -2, 2)
	c.logitBias(n, s.LogitBias)
	if s.TopK < 0 {
		c.fail(n, fmt.Sprintf("top_k is %d", s.TopK), "use a positive number, or 0 for all tokens")
	}
}

func (c *analysis) selects(n *Node, s *SelectNode) {
	switch {
	case len(s.Options) == 0 && s.From == "":
		c.fail(n, "no options", "give at least one, or a list with from")
		s.Type = Type{Kind: TypeString}
		return
	case len(s.Options) > 0 && s.From != "":
		c.fail(n, "both options and from", "remove one of them")
	}
	c.values(n, s)
	if s.Method != "" && !slices.Contains(scoreMethods, s.Method) {
		names := make([]string, len(scoreMethods))
		for i, m := range scoreMethods {
			names[i] = string(m)
		}
		c.fail(n, fmt.Sprintf("no method %q", clip(string(s.Method), 40)), didYouMean(string(s.Method), names))
	}
	seen := map[string]bool{}
	for _, o := range s.Options {
		if o == "" {
			c.fail(n, "an empty option", "name what the model may choose, e.g. \"none\"")
		}
		if seen[o] {
			c.fail(n, fmt.Sprintf("the option %q twice", clip(o, 40)), "remove one")
		}
		seen[o] = true
		c.utf8(n, "option", o)
	}
}

func (c *analysis) json(n *Node, j *JSONNode) {
	c.tokens(n, j.MaxTokens)
	c.sampling(n, &j.Sampling)
	j.Type = Type{Kind: TypeAny}
	if len(j.Schema) == 0 {
		c.fail(n, "no schema", "give one; {} allows every JSON value")
		return
	}
	s, err := parseJSON(j.Schema)
	if err != nil {
		c.fail(n, "schema: "+err.Error(), "a schema is a JSON document")
		return
	}
	j.Schema = s.appendJSON(nil)
	for _, p := range checkSchema(s) {
		where := ""
		if p.at != "" {
			where = " at " + p.at
		}
		at := n.Pos
		if j.written != nil {
			if part, ok := resolveRef(j.written, "#"+p.at); ok && part.line > 0 {
				at.Line = part.line
			}
		}
		c.errs = append(c.errs, &Error{Pos: at, Node: n.ID, Msg: "schema" + where + ": " + p.msg, Hint: p.hint})
	}
	j.written = nil // it was for this
	j.Type = (&schemaTyper{root: s}).of(s, 0)
}

func (c *analysis) forks(n *Node, f *ForkNode) {
	ways := 0
	branches := 0
	if len(f.Items) > 0 {
		ways, branches = ways+1, len(f.Items)
	}
	if f.Over != "" {
		ways++
	}
	if len(f.Arms) > 0 {
		ways, branches = ways+1, len(f.Arms)
	}
	switch {
	case ways == 0:
		c.fail(n, "a fork of no branches", "give it items with each, a list with over, or arms")
	case ways > 1:
		c.fail(n, "more than one of each, over and arms", "keep one of them")
	}
	for _, s := range f.Items {
		c.utf8(n, "item", s)
	}
	if len(f.Arms) > 0 {
		if f.As != "" || len(f.Body) > 0 || f.Yield != "" {
			c.fail(n, "a fork with arms has no item, steps or yield of its own", "put them into the arms")
		}
		seen := map[string]bool{}
		for _, a := range f.Arms {
			if !isPathName(a.Name) {
				c.fail(n, fmt.Sprintf("%q cannot name an arm", clip(a.Name, 40)), "use letters, digits, _ - and .")
			}
			if seen[a.Name] {
				c.fail(n, fmt.Sprintf("two arms are named %q", a.Name), "use another name")
			}
			seen[a.Name] = true
		}
	} else if f.As == "" && ways > 0 {
		c.fail(n, "no name for the item", "give one with as")
	}
	switch f.Join.Kind {
	case "", "all", "collect", "first":
		if f.Join.N != 0 {
			c.fail(n, fmt.Sprintf("join %q takes no number", f.Join.Kind), "only quorum does")
		}
	case "quorum":
		if f.Join.N < 1 || branches > 0 && f.Join.N > branches {
			c.fail(n, fmt.Sprintf("a quorum of %d", f.Join.N), "use a number from 1 to the number of branches")
		}
	default:
		c.fail(n, fmt.Sprintf("no join %q", clip(f.Join.Kind, 40)), didYouMean(f.Join.Kind, []string{"all", "collect", "first", "quorum"}))
	}
	if f.Join.Kind == "all" {
		f.Join.Kind = "" // the default has one form
	}
	if f.Errors != "" && f.Join.Kind == "" {
		c.fail(n, "errors, but one failed branch fails the fork", "write join: collect, first or {quorum: 2}")
	}
}
