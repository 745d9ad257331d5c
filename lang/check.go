package lang

type analysis struct {
	g         *Graph
	claims    map[*Node][]claim
	errs      Errors
	output    *Type
	outputPos Pos
}

func (c *analysis) check() error { return c.errs.err() }

// Check checks the graph.
func (g *Graph) Check() error { return (&analysis{g: g}).check() }
