package runtime

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// WithTimeout bounds each attempt at a task whose node has no timeout of its
// own.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }

// WithRetry is the policy for requests whose node has none of its own. Without
// it the backend's own holds. Calls of functions are made again only if their
// node says so.
func WithRetry(r lang.Retry) Option { return func(c *config) { c.retry = r } }

// WithFallback adds a backend that is asked when the run's own, and the fallbacks
// added before, cannot answer: they are overloaded, unavailable, too slow, closed,
// or their context is too short. Nodes that name fallbacks use those instead. The
// caller closes it.
func WithFallback(name string, be backend.Backend) Option {
	return func(c *config) { c.fallback = append(c.fallback, named{name, be}) }
}

// WithBudget bounds what the run may use, in place of the program's own budget.
func WithBudget(b lang.Budget) Option { return func(c *config) { c.budget = &b } }

// Prices are of a million tokens each, in any unit of money.
type Prices struct {
	Input  float64 `json:"input"`  // tokens of prompts that are computed
	Cached float64 `json:"cached"` // tokens of prompts that are read from a cache
	Output float64 `json:"output"` // generated tokens
}

// Of returns what a usage costs.
func (p Prices) Of(u Usage) float64 {
	return (float64(u.PromptTokens-u.CachedTokens)*p.Input + float64(u.CachedTokens)*p.Cached + float64(u.ForcedTokens+u.SampledTokens)*p.Output) / 1e6
}

// WithPrices sets the prices by which a budget's cost is reckoned.
func WithPrices(p Prices) Option { return func(c *config) { c.prices = &p } }

// ErrBudget: the run used up its budget.
var ErrBudget = errors.New("the budget of the run is used up")

// BudgetError says which bound of a budget was reached. It is ErrBudget. A run
// with a journal goes on where it stopped if it is resumed with a larger budget; of
// its time, what earlier processes spent of it is gone.
type BudgetError struct {
	What  string // tokens, generated, cost or time
	Limit string
	Used  string
}

func (e *BudgetError) Error() string {
	return fmt.Sprintf("%v: %s %s of %s", ErrBudget, e.What, e.Used, e.Limit)
}

// Is makes errors.Is(err, ErrBudget) true.
func (e *BudgetError) Is(target error) bool { return target == ErrBudget }

// budget returns the one that holds for the run.
func (r *runner) budget() lang.Budget {
	if r.cfg.budget != nil {
		return *r.cfg.budget
	}
	return r.graph.Budget
}

// overBudget returns a *BudgetError if a bound on what models do is reached.
func (r *runner) overBudget() error {
	b := r.budget()
	if b.Tokens <= 0 && b.Generated <= 0 && b.Cost <= 0 {
		return nil
	}
	return OverBudget(b, r.used.usage(), r.cfg.prices)
}

// OverBudget returns a *BudgetError if what models did has reached a bound of b;
// the time is not looked at. Without prices there is no cost. Only drivers of a
// Machine need it.
func OverBudget(b lang.Budget, u Usage, p *Prices) error {
	made := u.ForcedTokens + u.SampledTokens
	switch {
	case b.Tokens > 0 && u.ComputedTokens >= b.Tokens:
		return &BudgetError{"tokens", strconv.Itoa(b.Tokens), strconv.Itoa(u.ComputedTokens)}
	case b.Generated > 0 && made >= b.Generated:
		return &BudgetError{"generated tokens", strconv.Itoa(b.Generated), strconv.Itoa(made)}
	case b.Cost > 0 && p != nil && p.Of(u) >= b.Cost:
		return &BudgetError{"cost", fmt.Sprintf("%.6g", b.Cost), fmt.Sprintf("%.6g", p.Of(u))}
	}
	return nil
}

// inTime returns a context that ends with the run's time, of which earlier
// processes may have spent some.
func (r *runner) inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	d := r.budget().Time
	if d <= 0 {
		return ctx, func() {}
	}
	if begin := r.now(); r.j != nil {
		r.j.spent = func() time.Duration { return r.spent + r.now().Sub(begin) }
	}
	used := max(d, r.spent.Round(time.Millisecond)).String()
	return context.WithTimeoutCause(ctx, d-r.spent, &BudgetError{"time", d.String(), used})
}

// CheckTerms reports whether options give what the nodes of a program ask for:
// that the fallbacks they name are there and can carry them out, and prices for a
// budget of cost. Run and its like ask it themselves; it is for other drivers of a
// Machine.
func CheckTerms(ctx context.Context, g *lang.Graph, opts ...Option) error {
	r := &runner{cfg: newConfig(opts), graph: g}
	return r.checkReliable(ctx)
}

// checkReliable refuses terms that the run cannot keep to.
func (r *runner) checkReliable(ctx context.Context) error {
	if b := r.budget(); b.Cost > 0 && r.cfg.prices == nil {
		return errors.New("runtime: the budget bounds the cost, and no prices are given: use WithPrices (--price-input and --price-output)")
	}
	names := make([]string, 0, len(r.cfg.fallback))
	for _, f := range r.cfg.fallback {
		switch {
		case f.be == nil:
			return fmt.Errorf("runtime: fallback %q is nil", f.name)
		case f.name == "" || slices.Contains(names, f.name):
			return fmt.Errorf("runtime: fallback %q: the name is missing or taken", f.name)
		}
		names = append(names, f.name)
	}
	var errs []error
	r.graph.Walk(func(n *lang.Node) bool {
		if n.Run != nil && n.Run.Graph().Budget.Cost > 0 && r.cfg.prices == nil {
			errs = append(errs, &NodeError{Task: n.ID, Node: n.ID, Pos: n.Pos, Err: fmt.Errorf("the budget of program %s bounds the cost, and no prices are given: use WithPrices (--price-input and --price-output)", n.Run.Program)})
		}
		if t := n.Terms(); t != nil {
			for _, f := range t.Fallback {
				if !slices.Contains(names, f) {
					errs = append(errs, &NodeError{Task: n.ID, Node: n.ID, Pos: n.Pos, Err: fmt.Errorf("no fallback %q: the run has %s", f, orNone(names))})
				}
			}
		}
		return true
	})
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for _, f := range r.cfg.fallback {
		uses := func(n *lang.Node) bool {
			t := n.Terms()
			return t != nil && (t.Fallback == nil || slices.Contains(t.Fallback, f.name))
		}
		if err := checkFor(r.graph, f.be.Info(), uses); err != nil {
			errs = append(errs, fmt.Errorf("fallback %s: %w", f.name, err))
		} else if err := checkConstraints(ctx, r.graph, f.be, uses); err != nil {
			errs = append(errs, fmt.Errorf("fallback %s: %w", f.name, err))
		}
	}
	return errors.Join(errs...)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none; add them with WithFallback (--fallback NAME=URL)"
	}
	return strings.Join(names, ", ")
}
