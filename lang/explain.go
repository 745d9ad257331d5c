package lang

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Explanation says what a run of a program will cost before it is run, and what
// could cost less. Numbers are exact where the program leaves nothing open, and
// ranges elsewhere.
type Explanation struct {
	Program string `json:"program"`
	Hash    string `json:"hash"`
	// Estimated is set if tokens were not counted with the model's tokenizer but
	// reckoned from the lengths of texts.
	Estimated bool             `json:"estimated"`
	Trunk     Trunk            `json:"trunk"`
	Branches  []BranchForecast `json:"branches"`
	Calls     []NodeForecast   `json:"calls"`
	Usage     Forecast         `json:"usage"`
	// Notes say what could not be foreseen.
	Notes []string `json:"notes,omitempty"`
	Lints []Lint   `json:"lints"`
}

// Trunk is what every branch shares: the context at the first fork, or, in a
// program without forks, the context of the first request.
type Trunk struct {
	Text   string `json:"text"` // ${name} where a value is not known
	Tokens Range  `json:"tokens"`
	// Stable is the part at its beginning that is the same in every run.
	Stable Range `json:"stable_tokens"`
}

// BranchForecast is one branch of a fork.
type BranchForecast struct {
	ID     string `json:"id"`
	Fork   string `json:"fork"`
	Label  string `json:"label"`
	Shared Range  `json:"shared_tokens"`   // of its first request, in the cache already
	Own    Range  `json:"computed_tokens"` // that only this branch computes
}

// NodeForecast is what a node asks of the model, all its instances together.
type NodeForecast struct {
	Node  string   `json:"node"`
	Where string   `json:"where"`
	Kind  Kind     `json:"kind"`
	Times Range    `json:"times"`
	Usage Forecast `json:"usage"`
	// Shape is what is known of the generated text: forced text with … for what
	// the model chooses.
	Shape string `json:"shape,omitempty"`
}

// Forecast is a predicted usage, in the words of the usage that a run reports.
type Forecast struct {
	Prompt   Range `json:"prompt_tokens"`
	Computed Range `json:"computed_tokens"`
	Cached   Range `json:"cached_tokens"`
	Forced   Range `json:"forced_tokens"`
	Sampled  Range `json:"sampled_tokens"`
	// Without is what the same requests cost with every prompt computed anew and
	// every token in a pass of its own. A select is a request for each of its
	// options.
	Without struct {
		Computed Range `json:"computed_tokens"`
		Passes   Range `json:"forward_passes"`
	} `json:"without"`
}

// Range is a number between two bounds. As JSON it is the number if it is known
// and {"min", "max"} otherwise, max missing if there is none.
type Range struct {
	Min, Max int
	Open     bool // there is no upper bound, and Max is Min
}

// MarshalJSON writes the number or its bounds.
func (r Range) MarshalJSON() ([]byte, error) {
	switch {
	case r.Open:
		return fmt.Appendf(nil, `{"min":%d}`, r.Min), nil
	case r.Min == r.Max:
		return strconv.AppendInt(nil, int64(r.Min), 10), nil
	}
	return fmt.Appendf(nil, `{"min":%d,"max":%d}`, r.Min, r.Max), nil
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Range) UnmarshalJSON(data []byte) error {
	if n, err := strconv.Atoi(string(data)); err == nil {
		*r = Range{Min: n, Max: n}
		return nil
	}
	var b struct{ Min, Max *int }
	if err := json.Unmarshal(data, &b); err != nil {
		return err
	}
	if b.Min == nil {
		return fmt.Errorf("a range without min: %s", data)
	}
	*r = Range{Min: *b.Min, Max: *b.Min, Open: b.Max == nil}
	if b.Max != nil {
		r.Max = *b.Max
	}
	return nil
}

// String returns "6,012", "40-120" or "40 or more".
func (r Range) String() string {
	switch {
	case r.Open:
		return thousands(r.Min) + " or more"
	case r.Min == r.Max:
		return thousands(r.Min)
	}
	return thousands(r.Min) + "-" + thousands(r.Max)
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Turn is one turn of a prompt, for an Estimator.
type Turn struct {
	Role string // system, user, assistant, tool; empty: raw text
	Text string
	Open bool // the last turn is not finished
}

// Constraint is what a generation must match, for an Estimator. At most one
// field is set.
type Constraint struct {
	Schema json.RawMessage
	Regex  string
	EBNF   string
}

// Shape is what is known of the tokens of a constrained generation.
type Shape struct {
	Tokens Range // all
	Forced Range // of them those that the constraint leaves no choice for
	Text   string
}

// Estimator counts tokens for Explain. Implementations that know the model are
// exact; without one texts are counted by their length.
type Estimator interface {
	// Tokenize returns the ids that a prompt becomes, with the opening of an
	// assistant turn at its end if open is set.
	Tokenize(turns []Turn, open bool) ([]int32, error)
	// Constrained returns what is known of what c lets a model generate.
	Constrained(c Constraint) (Shape, error)
}

// ExplainOptions are options of Explain.
type ExplainOptions struct {
	// Inputs are the inputs that are known. Those that are missing and have no
	// default make ranges.
	Inputs Args
	// Estimator counts tokens, see runtime.NewEstimator; nil: by the length of texts.
	Estimator Estimator
	// Context is the length of the model's context in tokens; 0: unknown.
	Context int
	// Remote is set if prompts leave the machine.
	Remote bool
}

// Explain predicts what a run of the program costs and looks for layouts that
// cost more than they need. It calls no model.
func Explain(g *Graph, o ExplainOptions) (*Explanation, error) {
	x := &Explanation{Program: g.Name, Hash: g.Hash(), Branches: []BranchForecast{}, Calls: []NodeForecast{}, Lints: []Lint{}}
	if o.Estimator == nil {
		o.Estimator, x.Estimated = byLength{}, true
	}
	known, err := g.known(o.Inputs)
	if err != nil {
		return nil, err
	}
	low, err := forecast(g, o, known, false)
	if err != nil {
		return nil, err
	}
	high, err := forecast(g, o, known, true)
	if err != nil {
		return nil, err
	}
	x.merge(g, low, high)
	x.Lints = append(x.Lints, lint(g, o, x, high)...)
	return x, nil
}

// known returns the values of the inputs that are given or have defaults.
func (g *Graph) known(args Args) (map[string]any, error) {
	some := &Graph{}
	for _, in := range g.Inputs {
		if _, given := args[in.Name]; given || in.Default != nil {
			some.Inputs = append(some.Inputs, in)
		}
	}
	for name := range args {
		if !g.hasInput(name) {
			_, err := g.Bind(args) // says which
			return nil, err
		}
	}
	return some.Bind(args)
}

// merge puts the two ends of the forecast together.
func (x *Explanation) merge(g *Graph, low, high *forecaster) {
	between := func(a, b int, open bool) Range {
		if open {
			return Range{Min: min(a, b), Max: min(a, b), Open: true}
		}
		return Range{Min: min(a, b), Max: max(a, b)}
	}
	o := high.open
	anything := o.texts || o.rounds || o.made
	made := o.rounds || o.made
	usage := func(a, b tally) Forecast {
		f := Forecast{
			Prompt:   between(a.prompt, b.prompt, anything),
			Computed: between(max(0, a.computed-a.luck), b.computed, anything),
			Cached:   between(a.cached, b.cached+b.luck, anything),
			Forced:   between(a.forced, b.forced, made && b.forced > 0),
			Sampled:  between(a.sampled, b.sampled, made),
		}
		f.Without.Computed = between(a.without, b.without, anything)
		f.Without.Passes = between(a.passes, b.passes, made)
		return f
	}
	x.Usage = usage(low.total, high.total)
	x.Trunk = Trunk{Text: high.trunkText, Tokens: between(low.trunk, high.trunk, high.trunkOpen), Stable: between(low.stable, high.stable, false)}
	for i, l := range high.limbs {
		m := l
		if i < len(low.limbs) && low.limbs[i].id == l.id {
			m = low.limbs[i]
		} else {
			m.shared, m.own = 0, 0
		}
		x.Branches = append(x.Branches, BranchForecast{ID: l.id, Fork: l.fork, Label: l.label, Shared: between(m.shared, l.shared, anything), Own: between(m.own, l.own, anything)})
	}
	g.Walk(func(n *Node) bool {
		b := high.nodes[n.ID]
		if b == nil {
			return true
		}
		a := low.nodes[n.ID]
		if a == nil {
			a = &nodeTally{}
		}
		x.Calls = append(x.Calls, NodeForecast{Node: n.ID, Where: n.Pos.String(), Kind: n.Kind,
			Times: between(a.times, b.times, o.rounds), Usage: usage(a.tally, b.tally), Shape: b.shape})
		return true
	})
	x.Notes = high.notes
}

// String returns the explanation for a terminal.
func (x *Explanation) String() string {
	var b strings.Builder
	about := ""
	if x.Estimated {
		about = " (tokens reckoned from the lengths of texts)"
	}
	fmt.Fprintf(&b, "%s %s%s\n\n", x.Program, x.Hash, about)
	fmt.Fprintf(&b, "trunk     %s tokens, the first %s the same in every run\n", x.Trunk.Tokens, x.Trunk.Stable)
	fmt.Fprintf(&b, "          %s\n", preview(x.Trunk.Text, 70))
	if len(x.Branches) > 0 {
		b.WriteString("\nbranches\n")
		rows := [][]string{{"", "shared", "own"}}
		for _, l := range x.Branches {
			name := l.ID
			if l.Label != "" && !strings.HasSuffix(l.ID, "/"+l.Label) {
				name += " " + preview(l.Label, 24)
			}
			rows = append(rows, []string{name, l.Shared.String(), l.Own.String()})
		}
		table(&b, rows)
	}
	if len(x.Calls) > 0 {
		b.WriteString("\nasked of the model\n")
		rows := [][]string{{"", "times", "prompt", "computed", "cached", "forced", "sampled"}}
		for _, c := range x.Calls {
			u := c.Usage
			rows = append(rows, []string{c.Node, c.Times.String(), u.Prompt.String(), u.Computed.String(), u.Cached.String(), u.Forced.String(), u.Sampled.String()})
		}
		u := x.Usage
		rows = append(rows, []string{"all", "", u.Prompt.String(), u.Computed.String(), u.Cached.String(), u.Forced.String(), u.Sampled.String()})
		table(&b, rows)
		note := ""
		if slices.ContainsFunc(x.Calls, func(c NodeForecast) bool { return c.Kind == KindSelect }) {
			note = ", a select being a call for each option"
		}
		fmt.Fprintf(&b, "  without sharing and jump-forward%s: %s tokens computed, %s passes\n", note, u.Without.Computed, u.Without.Passes)
		for _, c := range x.Calls {
			if c.Shape != "" {
				fmt.Fprintf(&b, "  %s is %s\n", c.Node, preview(c.Shape, 100))
			}
		}
	}
	for _, n := range x.Notes {
		fmt.Fprintf(&b, "\nnote: %s", n)
	}
	if len(x.Notes) > 0 {
		b.WriteByte('\n')
	}
	if len(x.Lints) > 0 {
		b.WriteByte('\n')
	}
	for _, l := range x.Lints {
		fmt.Fprintf(&b, "%s\n", l)
	}
	return b.String()
}

// table writes rows in columns, the first left and the others right.
func table(b *strings.Builder, rows [][]string) {
	var width []int
	for _, r := range rows {
		for i, c := range r {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], len([]rune(c)))
		}
	}
	for _, r := range rows {
		line := " "
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-len([]rune(c)))
			if i == 0 {
				line += " " + c + pad
			} else {
				line += "  " + pad + c
			}
		}
		b.WriteString(strings.TrimRight(line, " "))
		b.WriteByte('\n')
	}
}

// preview returns the beginning of s on one line, without control characters.
func preview(s string, n int) string {
	s = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return -1
		}
		return c
	}, strings.Join(strings.Fields(s), " "))
	r := []rune(s)
	if len(r) <= n {
		return s
	}
	return string(r[:n-1]) + "…"
}
