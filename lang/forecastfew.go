package lang

import "slices"

// few takes apart what the branches of a fork cost, for the low end of a fork that does
// not wait for all of them: what the others asked is given up, and not counted.
type few struct {
	need     int // branches that are waited for
	total    tally
	nodes    map[string]*nodeTally
	branches []tally
	asked    []map[string]*nodeTally // for each branch, by node
}

// fewest returns nil if all branches of a fork are waited for in any case.
func (f *forecaster) fewest(n *Node, l *line, count int) *few {
	need := count
	switch {
	case f.hi:
		return nil
	case n.Fork.Join.Kind == "first":
		need = 1
	case n.Fork.Join.Kind == "quorum":
		need = n.Fork.Join.N
	case l.frail && n.Fork.Join.Kind != "collect" && mayFail(n):
		need = 1 // the one that fails ends the others
	}
	if need >= count {
		return nil
	}
	return &few{need: need}
}

func (w *few) begin(f *forecaster) {
	if w != nil {
		w.total, w.nodes = f.total, f.nodes
		f.total, f.nodes = tally{}, map[string]*nodeTally{}
	}
}

func (w *few) end(f *forecaster) {
	if w != nil {
		w.branches, w.asked = append(w.branches, f.total), append(w.asked, f.nodes)
		f.total, f.nodes = w.total, w.nodes
	}
}

// settle counts the cheapest branches.
func (w *few) settle(f *forecaster) {
	if w == nil {
		return
	}
	f.total.add(w.least(w.branches))
	var ids []string
	for _, asked := range w.asked {
		for id := range asked {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	for _, id := range ids {
		t := f.nodes[id]
		if t == nil {
			t = &nodeTally{}
			f.nodes[id] = t
		}
		list, times := make([]tally, len(w.asked)), make([]int, len(w.asked))
		for i, asked := range w.asked {
			if a := asked[id]; a != nil {
				list[i], times[i], t.shape = a.tally, a.times, a.shape
			}
		}
		t.add(w.least(list))
		t.times += w.sum(times)
	}
}

// least adds up the cheapest branches, for each count those that are so in it.
func (w *few) least(list []tally) (sum tally) {
	of := func(count func(t *tally) *int) {
		all := make([]int, len(list))
		for i := range list {
			all[i] = *count(&list[i])
		}
		*count(&sum) = w.sum(all)
	}
	of(func(t *tally) *int { return &t.prompt })
	of(func(t *tally) *int { return &t.computed })
	of(func(t *tally) *int { return &t.cached })
	of(func(t *tally) *int { return &t.forced })
	of(func(t *tally) *int { return &t.sampled })
	of(func(t *tally) *int { return &t.without })
	of(func(t *tally) *int { return &t.passes })
	for _, t := range list {
		sum.luck += t.luck
	}
	return sum
}

func (w *few) sum(all []int) (n int) {
	slices.Sort(all)
	for _, x := range all[:min(w.need, len(all))] {
		n += x
	}
	return n
}

// mayFail reports whether a step may end its branch with an error, other than that of a
// backend that does not answer.
func mayFail(n *Node) bool {
	switch n.Kind {
	case KindCall:
		return true
	case KindGen, KindJSON:
		checks, _ := n.Checks()
		cut := n.JSON != nil || n.Gen != nil && (n.Gen.Regex != "" || n.Gen.EBNF != "" || n.Gen.Tags != nil)
		return len(checks) > 0 || cut
	case KindWait:
		return n.Wait.Timeout > 0 && n.Wait.Default == nil
	case KindRun:
		return n.Run.graph.Budget != (Budget{}) || slices.ContainsFunc(n.Run.graph.Body, mayFail)
	case KindFork:
		if n.Fork.Join.Kind == "collect" {
			return false
		}
	}
	for _, b := range n.bodies() {
		if slices.ContainsFunc(b.nodes, mayFail) {
			return true
		}
	}
	return false
}
