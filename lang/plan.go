package lang

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// errUnknownYet is what Get returns while a script is only being explained.
var errUnknownYet = errors.New("the value is not known before the run")

// ExplainScript predicts what a run of a script costs as far as it can be known
// without a model. The script is run on its inputs up to the first value that it
// waits for, in the trunk and in each arm of a Map; the steps until there are
// explained as Explain does, and Notes say where the unknown begins. The inputs
// must be complete, and the script must keep the rules of [Script]: it has no
// effects then, since Do and calls are not carried out.
func ExplainScript(script Scripted, o ExplainOptions) (*Explanation, error) {
	g, notes, err := KnownSteps(script, o.Inputs)
	if err != nil {
		return nil, err
	}
	x, err := Explain(g, o)
	if err != nil {
		return nil, err
	}
	// Inputs stand in the texts as if they were the same in every run.
	x.Trunk.Stable = Range{Min: 0, Max: x.Trunk.Stable.Max}
	x.Notes = append(x.Notes, notes...)
	return x, nil
}

// KnownSteps returns the steps that a script takes on some inputs before it
// needs an answer, as a graph: an arm of a Map is one of its fork's arms, named
// by its item or its number. The notes say what comes after them.
func KnownSteps(script Scripted, args Args) (*Graph, []string, error) {
	g, err := script.Open()
	if err != nil {
		return nil, nil, err
	}
	vars, err := g.Bind(args)
	if err != nil {
		return nil, nil, err
	}
	p := &planner{}
	script.Play(p, g, vars)
	if p.err != nil && !errors.Is(p.err, errUnknownYet) {
		return nil, nil, p.err
	}
	known := &Graph{Name: g.Name, Inputs: g.Inputs}
	if p.trunk != nil {
		known.Body = planBody(p.trunk, p.trunk.nodes, map[string]bool{})
	}
	if err := known.Check(); err != nil {
		return nil, nil, fmt.Errorf("the steps of script %s cannot be explained: %w", g.Name, err)
	}
	return known, p.notes, nil
}

// planner is a world in which nothing is ever answered.
type planner struct {
	trunk *S
	notes []string
	err   error // of the trunk
}

func (p *planner) Now() time.Time      { return time.Time{} }
func (p *planner) Seed() uint64        { return 0 }
func (p *planner) Spawn(f func(Seams)) { f(p) }
func (p *planner) begin(s *S)          { p.trunk, s.run.plan = s, true }
func (p *planner) waits(x *asked) {
	p.note("what follows depends on the value of "+x.node.ID, x.node.Pos)
}
func (p *planner) note(s string, at Pos) { p.notes = append(p.notes, at.String()+": "+s) }

func (p *planner) Await(ready func() bool) error {
	if ready() {
		return nil
	}
	return errUnknownYet
}

func (p *planner) Ask(a Ask) Answer {
	if a.Kind == AskEnd && a.Line == "" {
		p.err = a.Err
	}
	return unanswered{}
}

type unanswered struct{}

func (unanswered) Done() bool                { return false }
func (unanswered) Value() (any, error)       { return nil, errUnknownYet }
func (unanswered) Other(string) (any, error) { return nil, errUnknownYet }

// planBody makes a body of steps that were asked for. Names that loops set again
// get a number, since a graph sets a variable once.
func planBody(s *S, nodes []*Node, set map[string]bool) []*Node {
	var out []*Node
	for _, n := range nodes {
		c := *n
		fresh := func(old string) string {
			name := old
			for k := 2; set[name]; k++ {
				name = old + "_" + strconv.Itoa(k)
			}
			set[name] = true
			return name
		}
		if c.Name != "" {
			c.Name = fresh(c.Name)
		}
		switch {
		case c.Logprobs() != "" && c.Gen != nil:
			g := *c.Gen
			g.Logprobs = fresh(g.Logprobs)
			c.Gen = &g
		case c.Logprobs() != "":
			j := *c.JSON
			j.Logprobs = fresh(j.Logprobs)
			c.JSON = &j
		case c.Select != nil && c.Select.Shares != "":
			s := *c.Select
			s.Shares = fresh(s.Shares)
			c.Select = &s
		case c.Fork != nil && c.Fork.Errors != "":
			f := *c.Fork
			f.Errors = fresh(f.Errors)
			c.Fork = &f
		}
		switch {
		case c.Role != nil:
			r := *c.Role
			r.Body = planBody(s, r.Body, set)
			c.Role = &r
		case c.Run != nil:
			r := *c.Run
			c.Run = &r
		case c.Repeat != nil && s.rounds[n] > 0:
			r := *c.Repeat
			r.Body = planBody(s, r.Body, set)
			r.Max = s.rounds[n]
			c.Repeat = &r
		case c.Fork != nil && s.arms[n] != nil:
			f := ForkNode{Join: c.Fork.Join, Errors: c.Fork.Errors}
			names := map[string]bool{}
			for i, arm := range s.arms[n] {
				name := strconv.Itoa(i)
				if i < len(c.Fork.Items) && isPathName(c.Fork.Items[i]) && !names[c.Fork.Items[i]] {
					name = c.Fork.Items[i]
				}
				names[name] = true
				inner := make(map[string]bool, len(set))
				for k := range set {
					inner[k] = true
				}
				f.Arms = append(f.Arms, Arm{Name: name, Body: planBody(arm, arm.nodes, inner)})
			}
			if len(f.Arms) == 0 {
				continue
			}
			c.Fork = &f
		}
		out = append(out, &c)
	}
	return out
}
