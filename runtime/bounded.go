package runtime

import (
	"slices"
	"time"

	"github.com/coppice-run/coppice/lang"
)

// bounded is a program that is a step and has a budget of its own. What the bound
// ends is recorded as a result, the failure of the step's task, so that a run which
// is resumed goes the same way.
type bounded struct {
	task   string
	budget lang.Budget
	clock  *time.Timer // of its time, once it runs
	news   bool        // it used something since it was looked at
}

// bound follows the programs with budgets.
func (r *runner) bound(changes []BranchChange) {
	for _, c := range changes {
		if c.Status == Running {
			if c.Budget != (lang.Budget{}) {
				r.bounded = append(r.bounded, &bounded{task: c.ID, budget: c.Budget, news: true})
				if r.late == nil {
					r.late = make(chan string)
				}
			}
			continue
		}
		r.bounded = slices.DeleteFunc(r.bounded, func(b *bounded) bool {
			over := b.task == c.ID
			if over && b.clock != nil {
				b.clock.Stop()
			}
			return over
		})
	}
}

// spentBy notes whose budgets the result of a task counts for: those of the programs
// around it.
func (r *runner) spentBy(task string) {
	if len(r.bounded) == 0 {
		return
	}
	for b := r.m.tasks[task].branch; b.fork != nil; b = b.fork.parent {
		for _, x := range r.bounded {
			x.news = x.news || x.task == b.fork.id
		}
	}
}

// overspent ends the programs that used up their budgets, and reports whether
// there were any. The clocks of those that run begin here.
func (r *runner) overspent() (bool, error) {
	for _, b := range r.bounded {
		if b.news {
			if err := OverBudget(b.budget, r.m.usedBy(b.task), r.cfg.prices); err != nil {
				return true, r.end(b.task, err)
			}
			b.news = false
		}
		if d := b.budget.Time; d > 0 && b.clock == nil {
			late, gone, task := r.late, r.gone, b.task
			b.clock = time.AfterFunc(d, func() {
				select {
				case late <- task:
				case <-gone:
				}
			})
		}
	}
	return false, nil
}

// outOfTime ends a program whose time is over, if it still runs.
func (r *runner) outOfTime(task string) error {
	for _, b := range r.bounded {
		if b.task == task {
			d := b.budget.Time.String()
			return r.end(task, &BudgetError{"time", d, d})
		}
	}
	return nil
}

// end ends a program that is a step.
func (r *runner) end(task string, err error) error {
	res := Result{Task: task, Failure: NewFailure(err)}
	if r.j != nil {
		if err := r.j.results([]Result{res}, r.stampRecord); err != nil {
			return err
		}
	}
	return r.m.Apply(res)
}

func (r *runner) stopClocks() {
	for _, b := range r.bounded {
		if b.clock != nil {
			b.clock.Stop()
		}
	}
}
