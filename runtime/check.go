package runtime

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// Missing is something that a node needs and a backend cannot do.
type Missing struct {
	Node string // id in the program
	Pos  lang.Pos
	Need string // name of the capability, as in backend.Capabilities' JSON
	Why  string // what of the node needs it
}

// UnsupportedError lists all that a program needs and a backend cannot do. It
// is backend.ErrUnsupported.
type UnsupportedError struct {
	Program string
	Model   string
	Missing []Missing
}

func (e *UnsupportedError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "program %s cannot run on %s, which lacks what these nodes need:", e.Program, e.Model)
	for _, m := range e.Missing {
		b.WriteString("\n  ")
		writePos(&b, m.Pos)
		fmt.Fprintf(&b, "%s: %s (%s)", m.Node, m.Need, m.Why)
	}
	return b.String()
}

// Is makes errors.Is(err, backend.ErrUnsupported) true.
func (e *UnsupportedError) Is(target error) bool { return target == backend.ErrUnsupported }

// Check reports whether a backend of that description can run the program: nil
// or an *UnsupportedError.
func Check(g *lang.Graph, info backend.Info) error { return checkFor(g, info, nil) }

// checkFor is Check for the requests of some nodes; nil: of all.
func checkFor(g *lang.Graph, info backend.Info, uses func(*lang.Node) bool) error {
	c := checker{have: info.Capabilities, uses: uses}
	c.body(g.Body, false)
	if len(c.missing) == 0 {
		return nil
	}
	return &UnsupportedError{Program: g.Name, Model: info.Model, Missing: c.missing}
}

// CanRun reports whether a backend can run the program: what Check says of its
// description, and, of a backend that can tell, whether it takes each schema,
// pattern and grammar. It makes no call of the model. Run and its like ask it
// themselves; it is for those who take programs in to run them later.
func CanRun(ctx context.Context, g *lang.Graph, be backend.Backend) error {
	if err := Check(g, be.Info()); err != nil {
		return err
	}
	if err := checkStops(g); err != nil {
		return err
	}
	return checkConstraints(ctx, g, be, nil)
}

// checkStops refuses patterns that end a text and are too large to be looked for at
// each token.
func checkStops(g *lang.Graph) error {
	var refused []error
	g.Walk(func(n *lang.Node) bool {
		if n.Gen != nil && len(n.Gen.StopRegex) > 0 {
			if _, err := backend.CompileStops(n.Gen.StopRegex); err != nil {
				refused = append(refused, &NodeError{Task: n.ID, Node: n.ID, Pos: n.Pos, Err: err})
			}
		}
		return true
	})
	return errors.Join(refused...)
}

// checkConstraints asks a backend that can tell whether it takes the schemas,
// patterns and grammars of the program, those of nodes that may never run too.
// The error joins a *NodeError for each that it refuses.
func checkConstraints(ctx context.Context, g *lang.Graph, be backend.Backend, uses func(*lang.Node) bool) error {
	ck, ok := be.(backend.ConstraintChecker)
	if !ok {
		return nil
	}
	tags := be.Info().Capabilities.Tags
	type held struct {
		n *lang.Node
		c backend.Constraint
	}
	var all []held
	g.Walk(func(n *lang.Node) bool {
		c := constraintOf(n)
		if c.Tags != nil && !tags {
			return true // asked without
		}
		if !c.IsZero() && (uses == nil || uses(n)) {
			all = append(all, held{n, c})
		}
		return true
	})
	if len(all) == 0 {
		return nil
	}
	done := make(chan error, 1) // the backend may not heed ctx
	go func() {
		var refused []error
		defer func() {
			if v := recover(); v != nil {
				refused = append(refused, &PanicError{Value: v, Stack: debug.Stack()})
			}
			done <- errors.Join(refused...)
		}()
		for _, h := range all {
			if ctx.Err() != nil {
				return
			}
			if err := ck.CheckConstraint(ctx, h.c); err != nil {
				refused = append(refused, &NodeError{Task: h.n.ID, Node: h.n.ID, Pos: h.n.Pos, Err: err})
			}
		}
	}()
	select {
	case err := <-done:
		if ctx.Err() == nil {
			return err
		}
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

// constraintOf returns what limits the output of a node.
func constraintOf(n *lang.Node) backend.Constraint {
	switch n.Kind {
	case lang.KindGen:
		return backend.Constraint{Regex: n.Gen.Regex, EBNF: n.Gen.EBNF, Tags: tagsOf(n.Gen.Tags)}
	case lang.KindJSON:
		return backend.Constraint{JSONSchema: n.JSON.Schema}
	}
	return backend.Constraint{}
}

// tagsOf are structural tags as backends take them.
func tagsOf(t *lang.Tags) *backend.Tags {
	if t == nil {
		return nil
	}
	out := &backend.Tags{Triggers: t.Triggers, AtLeastOne: t.AtLeastOne, StopAfterFirst: t.StopAfterFirst}
	for _, x := range t.Tags {
		out.Tags = append(out.Tags, backend.Tag(x))
	}
	return out
}

type checker struct {
	have    backend.Capabilities
	uses    func(*lang.Node) bool
	missing []Missing
	begun   bool // the open turn has text
}

func (c *checker) need(n *lang.Node, have bool, need, why string) {
	if !have {
		c.missing = append(c.missing, Missing{Node: n.ID, Pos: n.Pos, Need: need, Why: why})
	}
}

// body checks nodes; role says whether they are inside a role block.
func (c *checker) body(nodes []*lang.Node, role bool) {
	for _, n := range nodes {
		if c.uses != nil && n.Terms() != nil && !c.uses(n) {
			continue
		}
		switch n.Kind {
		case lang.KindGen, lang.KindJSON, lang.KindSelect:
			c.need(n, !role || !c.begun || c.have.OpenTurns, "open_turns", "it goes on with a turn that has text")
			c.need(n, n.Logprobs() == "" || c.have.Logprobs, "logprobs", "it wants to know how likely its tokens are")
			c.begun = true
		}
		switch n.Kind {
		case lang.KindImage:
			c.begun = true
			c.need(n, c.have.Images, "images", "it shows the model a picture")
		case lang.KindText:
			c.begun = true
			c.need(n, role || n.Text.Role != "" || c.have.Raw, "raw", "text outside of any turn")
		case lang.KindGen:
			c.need(n, n.Gen.Regex == "" || c.have.Regex, "regex", "its output is limited by a regular expression")
			c.need(n, n.Gen.EBNF == "" || c.have.EBNF, "ebnf", "its output is limited by a grammar")
			c.need(n, len(n.Gen.StopRegex) == 0 || c.have.TokenRules, "token_rules", "it ends behind a pattern")
			c.need(n, len(n.Gen.Tokens.Stop) == 0 && n.Gen.Tokens.Allowed == nil && len(n.Gen.Tokens.Banned) == 0 || c.have.TokenRules, "token_rules", "it has rules about single tokens")
			c.need(n, n.Gen.Sampling.Seed == nil || c.have.Seed, "seed", "it has a seed")
		case lang.KindJSON:
			c.need(n, c.have.JSONSchema, "json_schema", "its output is limited by a JSON schema")
			c.need(n, n.JSON.Sampling.Seed == nil || c.have.Seed, "seed", "it has a seed")
		case lang.KindSelect:
			c.need(n, c.have.Score, "score", "it compares the likelihood of options")
			switch n.Select.Method {
			case "":
			case lang.Exact:
				c.need(n, c.have.ScoreExact, "score_exact", "it compares options in all ways to write them")
			default:
				c.need(n, c.have.ScoreTokens, "score_tokens", "it compares the tokens of options by "+string(n.Select.Method))
			}
		case lang.KindRun:
			c.branch(n.Run.Graph().Body, false)
		case lang.KindRole:
			c.begun = c.begun && role
			c.body(n.Role.Body, true)
		case lang.KindWhen:
			before := c.begun
			c.body(n.When.Then, role)
			after := c.begun
			c.begun = before
			c.body(n.When.Else, role)
			c.begun = c.begun || after
		case lang.KindRepeat:
			if n.Repeat.Max > 1 {
				c.loop(n.Repeat.Body, role)
			} else {
				c.body(n.Repeat.Body, role)
			}
		case lang.KindForEach:
			c.loop(n.ForEach.Body, role)
		case lang.KindFork:
			c.branch(n.Fork.Body, role)
			for i := range n.Fork.Arms {
				c.branch(n.Fork.Arms[i].Body, role)
			}
		}
	}
}

// loop is body for nodes that may run again: their second round finds the turn as
// the first one left it.
func (c *checker) loop(nodes []*lang.Node, role bool) {
	before := c.begun
	c.body(nodes, role)
	if before || !c.begun || !role {
		return
	}
	first := len(c.missing)
	c.body(nodes, role)
	again := c.missing[first:]
	c.missing = c.missing[:first:first]
	for _, m := range again {
		known := func(k Missing) bool { return k.Node == m.Node && k.Need == m.Need }
		if !slices.ContainsFunc(c.missing, known) {
			c.missing = append(c.missing, m)
		}
	}
}

// branch is body for nodes that write nothing to the turn around them.
func (c *checker) branch(nodes []*lang.Node, role bool) {
	begun := c.begun
	c.body(nodes, role)
	c.begun = begun
}
