package workflows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// inputFormat is the version of Input that is written. It changes when a worker
// of the old one would misread the new, or drive the run another way: a run keeps
// the format that it began with. 2: Ends; new histories are worth what they cost. 3:
// programs begin a few at a time.
const inputFormat = 3

// Input is what the workflow of a run is given: the program itself, so that a run
// ends on the graph that it began with, whatever is deployed meanwhile.
type Input struct {
	Format    int             `json:"format"`
	Coppice   string          `json:"coppice"` // version that began the run
	Name      string          `json:"name"`    // of the run
	Program   string          `json:"program"`
	GraphHash string          `json:"graph_hash"`
	Graph     json.RawMessage `json:"graph"`
	Inputs    json.RawMessage `json:"inputs"`
	Seed      uint64          `json:"seed"`
	Salt      string          `json:"salt,omitempty"`
	Limits    runtime.Limits  `json:"limits"`
	Deadline  time.Time       `json:"deadline,omitzero"`
	Ends      time.Time       `json:"ends,omitzero"` // when the time of the budget is over
	Budget    lang.Budget     `json:"budget,omitzero"`
	Timeout   time.Duration   `json:"timeout,omitempty"` // of an attempt at a node without one
	Prices    *runtime.Prices `json:"prices,omitempty"`  // of a budget's cost

	Window    int           `json:"window"`    // activities at a time
	Retry     Retry         `json:"retry"`     // of requests to a model
	Heartbeat time.Duration `json:"heartbeat"` // after which a silent worker is given up
	Longest   time.Duration `json:"longest"`   // of one attempt
	// HomeWait is how long a task waits for the worker that has its prompt in the
	// cache; 0: homeWait.
	HomeWait time.Duration `json:"home_wait,omitempty"`
	// History is the number of events after which the run goes on in a new
	// history; 0 leaves it to the server.
	History int `json:"history,omitempty"`
	// Attributes says that the run has search attributes.
	Attributes bool `json:"attributes,omitempty"`

	// Of a program that is a step of a run: the ids of the node and of the task, and
	// that of the run's first history. Graph and Name are those of the run.
	At     string `json:"at,omitempty"`
	Within string `json:"within,omitempty"`
	First  string `json:"first,omitempty"`

	// What a run carries from one history to the next.
	Results []runtime.Result `json:"results,omitempty"`
	Due     []Due            `json:"due,omitempty"`
	Unknown []Unknown        `json:"unknown,omitempty"`
	Early   []Answer         `json:"early,omitempty"`
	// Children are programs that were handed over.
	Children []Child `json:"children,omitempty"`
	Home     string  `json:"home,omitempty"`
	Status   string  `json:"status,omitempty"` // that the search attribute has
}

// Due is when a sleep or a wait ends.
type Due struct {
	Task string    `json:"task"`
	At   time.Time `json:"at"`
}

// Outcome is the JSON of a runtime.Report, which coppice run prints.
type Outcome struct {
	json.RawMessage
}

func outcomeOf(r *runtime.Report) *Outcome {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // a value's own text must come back as it was
	if err := enc.Encode(r); err != nil {
		return &Outcome{json.RawMessage("null")}
	}
	return &Outcome{bytes.TrimSpace(b.Bytes())}
}

// Report returns the report.
func (o *Outcome) Report() (*runtime.Report, error) {
	r := new(runtime.Report)
	if err := json.Unmarshal(o.RawMessage, r); err != nil {
		return nil, fmt.Errorf("workflows: the report: %w", err)
	}
	return r, nil
}

// programs are the graphs of the runs that a worker knows. Workflow code reads
// its graph at each replay; the same text gives the same graph, so it is decoded
// once.
type programs struct {
	mu     sync.Mutex
	graphs map[string]*lang.Graph
	old    []string
}

// keptPrograms bounds the graphs in memory.
const keptPrograms = 256

func (p *programs) get(in *Input) (*lang.Graph, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g := p.graphs[in.GraphHash]; g != nil {
		return g, nil
	}
	g, err := lang.Decode(in.Graph, in.Program)
	if err != nil {
		return nil, fmt.Errorf("its graph cannot be read by this version: %w", err)
	}
	if h := g.Hash(); h != in.GraphHash {
		return nil, fmt.Errorf("its graph has the hash %s in this version, not %s", h, in.GraphHash)
	}
	if p.graphs == nil {
		p.graphs = map[string]*lang.Graph{}
	}
	if len(p.old) == keptPrograms {
		delete(p.graphs, p.old[0])
		p.old = p.old[1:]
	}
	p.graphs[in.GraphHash] = g
	p.old = append(p.old, in.GraphHash)
	return g, nil
}
