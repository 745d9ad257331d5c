package serve

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/runtime"
)

// The JSON of a run's tree: what its events up to a number add up to.
type (
	runTree struct {
		Run     string       `json:"run"`
		Program string       `json:"program"`
		Status  string       `json:"status"`
		Seq     uint64       `json:"seq"` // of the last event that is in it
		Trunk   *treeBranch  `json:"trunk"`
		Error   *errorObject `json:"error,omitempty"`
	}
	treeBranch struct {
		Branch   string         `json:"branch"` // empty for the trunk
		Label    string         `json:"label,omitempty"`
		Status   runtime.Status `json:"status,omitempty"` // once it is over
		Error    string         `json:"error,omitempty"`
		Nodes    []*treeNode    `json:"nodes"`
		Branches []*treeBranch  `json:"branches"`
	}
	treeNode struct {
		Task   string               `json:"task"`
		Node   string               `json:"node"`
		Does   string               `json:"does"`
		Status string               `json:"status"`        // running, waiting, finished, failed or cancelled
		Ask    *runtime.Question    `json:"ask,omitempty"` // of one that waits
		Text   string               `json:"text,omitempty"`
		Finish backend.FinishReason `json:"finish,omitempty"`
		Value  json.RawMessage      `json:"value,omitempty"`
		Error  string               `json:"error,omitempty"`
		Cost   *backend.Usage       `json:"cost,omitempty"`
	}
)

// treeOf folds events, which begin with the first.
func treeOf(events []runtime.Event) (trunk *treeBranch, last uint64) {
	trunk = &treeBranch{Nodes: []*treeNode{}, Branches: []*treeBranch{}}
	branches := map[string]*treeBranch{"": trunk}
	nodes := map[string]*treeNode{}
	// within is the branch that a branch is in: the longest beginning of its
	// path that is one.
	within := func(id string) *treeBranch {
		for {
			at := strings.LastIndexByte(id, '/')
			if at < 0 {
				return trunk
			}
			if id = id[:at]; branches[id] != nil {
				return branches[id]
			}
		}
	}
	branch := func(id string) *treeBranch {
		b := branches[id]
		if b == nil {
			b = &treeBranch{Branch: id, Nodes: []*treeNode{}, Branches: []*treeBranch{}}
			up := within(id)
			up.Branches = append(up.Branches, b)
			branches[id] = b
		}
		return b
	}
	node := func(e *runtime.Event) *treeNode {
		n := nodes[e.Task]
		if n == nil {
			n = &treeNode{Task: e.Task, Node: e.Node, Does: e.Does, Status: runRunning}
			b := branch(e.Branch)
			b.Nodes = append(b.Nodes, n)
			nodes[e.Task] = n
		}
		return n
	}
	for i := range events {
		e := events[i].Finite()
		last = e.Seq
		switch e.Kind {
		case runtime.BranchStarted:
			branch(e.Branch).Label = e.Label
		case runtime.BranchFinished:
			b := branch(e.Branch)
			b.Status, b.Error = e.Status, e.Error
		case runtime.NodeStarted:
			if n := node(&e); e.Ask != nil {
				n.Status, n.Ask = runWaiting, e.Ask
			}
		case runtime.TextDelta:
			if n := nodes[e.Task]; n != nil && len(n.Text) == e.Offset {
				n.Text += e.Text
			}
		case runtime.Dropped:
			for task, text := range e.Texts {
				if n := nodes[task]; n != nil {
					n.Text = text
				}
			}
		case runtime.NodeRetried: // what it wrote is void
			if n := nodes[e.Task]; n != nil {
				n.Text = ""
			}
		case runtime.NodeCancelled:
			node(&e).Status = runCancelled
		case runtime.NodeFinished:
			n := node(&e)
			n.Status, n.Error, n.Value, n.Finish, n.Cost = runFinished, e.Error, e.Value, e.Finish, e.Cost
			if e.Error != "" {
				n.Status = runFailed
			} else {
				n.Text = e.Text
			}
		}
	}
	return trunk, last
}

// showTree is GET /v1/runs/{id}/tree: the run as far as it is, in one document.
func (s *Server) showTree(w http.ResponseWriter, r *http.Request) error {
	x, err := tenantOf(r.Context()).run(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	if err := x.settle(r.Context()); err != nil {
		return err
	}
	events, _ := x.history().Since(0)
	out := runTree{Run: x.id, Program: x.program, Status: x.status(), Error: x.info(false).Error}
	out.Trunk, out.Seq = treeOf(events)
	writeJSON(w, http.StatusOK, out)
	return nil
}
