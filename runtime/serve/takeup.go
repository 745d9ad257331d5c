package serve

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// takeUp makes the events of a run that goes on in a new process follow those
// that were told by an earlier one: numbers go on, what was told is not told
// again, and what was at work when the earlier process ended is tried again.
type takeUp struct {
	last     uint64 // number of the last event that was told
	lastKind runtime.EventKind
	started  bool
	over     runtime.Event                // that ended the run, if Seq is not 0
	open     map[string]runtime.Event     // tasks at work when it ended, by their beginnings
	finished map[string]bool              // tasks that have their result
	tries    map[string]int               // attempts of tasks that failed
	refused  map[string]int               // values of tasks that were refused, and not told again yet
	branches map[string]runtime.EventKind // the last that was told of each
	asked    map[string]bool              // tasks that waited for an answer, and are not yet known to do so again
}

func newTakeUp() *takeUp {
	return &takeUp{
		open: map[string]runtime.Event{}, finished: map[string]bool{}, tries: map[string]int{},
		refused: map[string]int{}, branches: map[string]runtime.EventKind{}, asked: map[string]bool{},
	}
}

// told takes in an event of the earlier process.
func (u *takeUp) told(e runtime.Event) {
	u.last, u.lastKind = e.Seq, e.Kind
	switch e.Kind {
	case runtime.RunStarted:
		u.started = true
	case runtime.NodeStarted:
		u.open[e.Task] = e
		delete(u.finished, e.Task)
		if e.Does == string(lang.KindWait) {
			u.asked[e.Task] = true
		}
	case runtime.NodeRetried:
		u.tries[e.Task]++
	case runtime.NodeRefused:
		u.refused[e.Task]++
	case runtime.NodeFinished, runtime.NodeCancelled:
		delete(u.open, e.Task)
		delete(u.asked, e.Task)
		u.finished[e.Task] = true
	case runtime.BranchStarted, runtime.BranchFinished:
		u.branches[e.Branch] = e.Kind
	case runtime.RunFinished, runtime.RunFailed:
		u.over = e
	}
}

// there reports, for each event of this process, whether the run is where it was: all
// that waited for answers does so again. What waits begins before what works.
func (u *takeUp) there(e *runtime.Event) bool {
	switch e.Kind {
	case runtime.NodeStarted:
		if e.Does != string(lang.KindWait) && e.Does != string(lang.KindSleep) {
			return true
		}
		delete(u.asked, e.Task)
	case runtime.NodeFinished, runtime.NodeCancelled:
		delete(u.asked, e.Task)
	case runtime.RunWaits, runtime.RunFinished, runtime.RunFailed:
		return true
	}
	return len(u.asked) == 0
}

// next returns what readers are told of an event of this process.
func (u *takeUp) next(e runtime.Event) (out []runtime.Event) {
	tell := func(e runtime.Event) {
		u.last++
		e.Seq, u.lastKind = u.last, e.Kind
		out = append(out, e)
	}
	switch e.Kind {
	case runtime.RunStarted:
		if u.started {
			return nil
		}
	case runtime.BranchStarted, runtime.BranchFinished:
		if was := u.branches[e.Branch]; was == e.Kind || was == runtime.BranchFinished {
			return nil
		}
		u.branches[e.Branch] = e.Kind
		if e.Kind == runtime.BranchFinished {
			u.cancel(e, func(x runtime.Event) bool {
				return x.Branch == e.Branch || strings.HasPrefix(x.Branch, e.Branch+"/")
			}, tell)
		}
	case runtime.NodeRefused:
		if u.refused[e.Task] > 0 {
			u.refused[e.Task]--
			return nil
		}
	case runtime.NodeFinished, runtime.NodeCancelled:
		if e.Restored > 0 && u.finished[e.Task] {
			return nil
		}
		delete(u.open, e.Task)
	case runtime.NodeStarted:
		if _, open := u.open[e.Task]; open {
			delete(u.open, e.Task)
			if e.Does == string(lang.KindWait) || e.Does == string(lang.KindSleep) {
				return nil // it waits as before
			}
			e = runtime.Event{
				Time: e.Time, Kind: runtime.NodeRetried, Task: e.Task, Node: e.Node, Branch: e.Branch, Does: e.Does,
				Error: "the server was stopped while it was at work", Attempt: u.tries[e.Task] + 1,
			}
		}
	case runtime.RunWaits:
		if u.lastKind == runtime.RunWaits {
			return nil
		}
	case runtime.RunFinished, runtime.RunFailed:
		u.cancel(e, func(runtime.Event) bool { return true }, tell)
	}
	tell(e)
	return out
}

// cancel tells the end of tasks that were at work and do not go on, because
// something at the same time as the end of the earlier process made them needless.
func (u *takeUp) cancel(at runtime.Event, which func(runtime.Event) bool, tell func(runtime.Event)) {
	byNumber := func(a, b runtime.Event) int { return cmp.Compare(a.Seq, b.Seq) }
	for _, x := range slices.SortedFunc(maps.Values(u.open), byNumber) {
		if which(x) {
			delete(u.open, x.Task)
			tell(runtime.Event{Time: at.Time, Kind: runtime.NodeCancelled, Task: x.Task, Node: x.Node, Branch: x.Branch, Does: x.Does})
		}
	}
}
