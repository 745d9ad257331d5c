package serve

import (
	"testing"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/runtime"
)

// The tree of a run shows it as far as it is, and in the end whole.
func TestTree(t *testing.T) {
	m, gate := looksModel(), puppet.NewGate()
	m.SetGate(gate)
	c := serveFor(t, m, nil)
	c.ok("/v1/programs", looks)
	begun := c.ok("/v1/programs/looks/runs", tree{"inputs": tree{"topic": "x"}})
	if err := gate.HeldCount(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	path := "/v1/runs/" + begun["id"].(string) + "/tree"
	_, half := c.call("GET", path, nil)
	if half["status"] != "running" || len(at(half, "trunk", "branches").([]any)) != 2 || at(half, "trunk", "branches", 1, "label") != "bad" ||
		at(half, "trunk", "branches", 0, "nodes", 0, "status") != "running" || len(at(half, "trunk", "nodes").([]any)) != 0 {
		t.Error(half)
	}
	gate.Open()
	events, _ := readSSE(t, c.do("GET", "/v1/runs/"+begun["id"].(string)+"/events", nil).Body)
	c.srv.Close()
	_, whole := c.call("GET", path, nil)
	if whole["status"] != "finished" || whole["seq"] != events[len(events)-1]["seq"] || at(whole, "trunk", "nodes", 0, "text") != "take it" ||
		at(whole, "trunk", "branches", 0, "nodes", 0, "text") != "good enough" || at(whole, "trunk", "branches", 0, "status") == nil || at(whole, "trunk", "nodes", 0, "cost") == nil {
		t.Error(whole)
	}
	if status, _ := c.call("GET", "/v1/runs/run-none/tree", nil); status != 404 {
		t.Error(status)
	}
}

// Branches are where their paths say, and text that was dropped is taken as it
// was told.
func TestTreeOf(t *testing.T) {
	trunk, last := treeOf([]runtime.Event{
		{Seq: 1, Kind: runtime.RunStarted},
		{Seq: 2, Kind: runtime.BranchStarted, Branch: "a[0]", Label: "x"},
		{Seq: 3, Kind: runtime.BranchStarted, Branch: "a[0]/loop[2]/b[1]", Label: "y"},
		{Seq: 4, Kind: runtime.NodeStarted, Branch: "a[0]/loop[2]/b[1]", Task: "t", Node: "n", Does: "gen"},
		{Seq: 9, Kind: runtime.Dropped, First: 5, Texts: map[string]string{"t": "one two"}},
		{Seq: 10, Kind: runtime.TextDelta, Task: "t", Text: "lost", Offset: 99},
		{Seq: 11, Kind: runtime.TextDelta, Task: "t", Text: " three", Offset: 7},
		{Seq: 12, Kind: runtime.NodeFinished, Task: "u", Node: "m", Does: "call", Error: "no"},
	})
	deep := trunk.Branches[0].Branches[0]
	if last != 12 || deep.Label != "y" || deep.Nodes[0].Text != "one two three" || deep.Nodes[0].Status != runRunning {
		t.Errorf("%+v", deep)
	}
	if n := trunk.Nodes[0]; n.Task != "u" || n.Status != runFailed || n.Error != "no" {
		t.Errorf("%+v", n)
	}
}
