package runtime

import (
	"encoding/json"
	"slices"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// Report is what a run gave. Its JSON is what `coppice run --json` prints.
type Report struct {
	// Value is what the program returned; null if it returned nothing. Objects
	// that a model wrote keep the model's order of keys.
	Value json.RawMessage `json:"value"`
	// Variables are those of the trunk, inputs included, as a JSON object in
	// the order in which they were first set.
	Variables json.RawMessage `json:"variables"`
	Usage     Usage           `json:"usage"`
	// Branches are those of the trunk's forks, in the order they started.
	Branches []Branch `json:"branches"`
	// Tasks counts the tasks whose results the run used.
	Tasks int `json:"tasks"`
	// Restored is how many of them came from a journal. Their usage is counted
	// as it was recorded.
	Restored int `json:"restored"`
	// Run is the name of the run.
	Run string `json:"run"`
	// Emulated names what the backend could not do itself and how it was done
	// instead, each way once.
	Emulated []string `json:"emulated,omitempty"`
	// Retries counts the attempts that failed and were made again.
	Retries int `json:"retries,omitempty"`
	// Fallbacks counts what was answered by each fallback.
	Fallbacks map[string]int `json:"fallbacks,omitempty"`
	// Turns is the trunk's context at the end.
	Turns []backend.Turn `json:"-"`
}

// Branch is one branch of a fork, or a program that was a step.
type Branch struct {
	ID     string          `json:"id"`    // instance id, e.g. "looks[1]"
	Fork   string          `json:"fork"`  // instance id of its fork; of a program its own
	Index  int             `json:"index"` // among the fork's branches
	Label  string          `json:"label"` // its item, or the name of its arm or program
	Status Status          `json:"status"`
	Error  string          `json:"error,omitempty"`
	Value  json.RawMessage `json:"value"` // what it yielded
	// Variables are those that it set itself, its item included.
	Variables json.RawMessage `json:"variables"`
	// Turns is what it added to the context of its parent.
	Turns    []Turn   `json:"turns"`
	Usage    Usage    `json:"usage"` // with the branches below it
	Branches []Branch `json:"branches,omitempty"`
	// Err is the error that Error is the text of.
	Err error `json:"-"`
}

// Turn is a turn of a report: its content as text.
type Turn struct {
	Role backend.Role `json:"role"`
	Text string       `json:"text"`
}

// Report returns what the run gave so far.
func (m *Machine) Report() *Report {
	e := m.encoder()
	r := &Report{
		Value:     json.RawMessage("null"),
		Variables: e.variables(m.trunk),
		Branches:  e.branches(m.trunk),
		Tasks:     len(m.results),
		Run:       m.opt.Run,
		Turns:     m.trunk.prompt.turns,
	}
	if m.text != nil {
		r.Value = m.text
	}
	var c cost
	c.addBranch(m.trunk)
	r.Usage = c.usage()
	seen := map[string]bool{}
	for i := range m.results {
		if ran := m.results[i].Ran; ran != nil {
			r.Tasks += ran.Tasks - 1
			r.Retries += ran.Retries
			for by, n := range ran.Fallbacks {
				if r.Fallbacks == nil {
					r.Fallbacks = map[string]int{}
				}
				r.Fallbacks[by] += n
			}
		}
		if a := m.results[i].Attempts; a > 1 {
			r.Retries += a - 1
		}
		if by := m.results[i].By; by != "" {
			if r.Fallbacks == nil {
				r.Fallbacks = map[string]int{}
			}
			r.Fallbacks[by]++
		}
		var emulated []string
		switch res := &m.results[i]; {
		case res.Generate != nil:
			emulated = res.Generate.Emulated
		case res.Score != nil:
			emulated = res.Score.Emulated
		case res.Ran != nil:
			emulated = res.Ran.Emulated
		}
		for _, e := range emulated {
			if !seen[e] {
				seen[e] = true
				r.Emulated = append(r.Emulated, e)
			}
		}
	}
	slices.Sort(r.Emulated)
	return r
}

// Branches returns the branches that the trunk started, and in them theirs.
func (m *Machine) Branches() []Branch {
	return m.encoder().branches(m.trunk)
}

func (e *encoder) branches(b *branch) []Branch {
	n := 0
	for _, f := range b.forks {
		n += len(f.branches)
	}
	out := make([]Branch, 0, n)
	for _, f := range b.forks {
		for _, c := range f.branches {
			if c.ran != nil {
				out = append(out, c.ran.Branch)
				continue
			}
			var used cost
			used.addBranch(c)
			turns := c.prompt.since(c.base, c.parts)
			br := Branch{
				ID: c.id, Fork: f.id, Index: c.index, Label: c.label, Status: c.status,
				Value:     e.shown(c.value, f.yields()),
				Variables: e.variables(c),
				Turns:     turnsOf(turns),
				Usage:     used.usage(),
				Err:       c.err,
			}
			if c.err != nil {
				br.Error = c.err.Error()
			}
			if len(c.forks) > 0 {
				br.Branches = e.branches(c)
			}
			out = append(out, br)
		}
	}
	return out
}

// yields returns the type of what the branches of a fork give.
func (f *fork) yields() lang.Type {
	if f.node.Run != nil {
		return f.node.Run.Graph().Output
	}
	return f.node.Fork.Elem
}

func turnsOf(turns []backend.Turn) []Turn {
	out := make([]Turn, 0, len(turns))
	for _, t := range turns {
		out = append(out, Turn{Role: t.Role, Text: t.Text()})
	}
	return out
}

// shown returns a value for a report.
func (e *encoder) shown(v any, t lang.Type) json.RawMessage {
	start := len(e.buf)
	e.show(v, t)
	return e.since(start)
}

// variables returns those that b set as a JSON object.
func (e *encoder) variables(b *branch) json.RawMessage {
	start := len(e.buf)
	e.buf = append(e.buf, '{')
	for i, name := range b.own {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.string(name)
		e.buf = append(e.buf, ':')
		e.show(b.vars[name], lang.Type{})
	}
	e.buf = append(e.buf, '}')
	return e.since(start)
}
