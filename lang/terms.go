package lang

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"
)

// Terms say how the task of a gen, select, json or call is carried out. They
// change whether and when an answer comes, not what is asked for.
type Terms struct {
	// Timeout bounds one attempt, and each call of a check's function; 0: the run's,
	// or none. What a backend or function returns later is thrown away.
	Timeout time.Duration
	// Retry says what is done about failures that may pass.
	Retry Retry
	// Fallback names backends of the run that are asked in this order after the
	// run's own has failed. nil: those that the run has for all nodes.
	Fallback []string
	// Priority among the requests that an engine has waiting: higher is earlier.
	Priority int
	// Salt keeps what the request leaves in a cache apart from other salts; it is
	// added to the run's. A template, e.g. "${tenant}".
	Salt Template
}

// Retry says how often and how patiently a failed attempt is made again. Waits
// double from the first, less a random part; what a server asks for in
// Retry-After is kept to.
type Retry struct {
	// Attempts is the number of attempts in all, the first included. 0 leaves it
	// to the run, and if that says nothing to the backend; a call is then made
	// once.
	Attempts int
	Wait     time.Duration // before the second attempt; 0: half a second
	// Max bounds a single wait; a server that asks for more is not waited for.
	// 0: one minute.
	Max time.Duration
}

// Validator is something that a generated value must pass. A value that does not is
// shown to the model together with what is wrong with it, and the model is asked
// again.
type Validator struct {
	// Expr is a condition in which the node's own variable has the new value; or
	Expr Expr
	// Func names a registered function of the value. It says what is wrong as its
	// error, or as a text that is not empty, or by false.
	Func string
	// Say is what the model is told if the condition does not hold. Empty: the
	// condition itself.
	Say string

	fn any // the Go function, from the builder
}

// DefaultTries is how often a node with checks asks the model in all, if it does
// not say so itself.
const DefaultTries = 3

// maxTries and maxAttempts bound what a node can ask for.
const (
	maxTries    = 100
	maxAttempts = 1000
)

// Terms returns the terms of a node that is carried out by somebody, nil for
// other nodes.
func (n *Node) Terms() *Terms {
	switch {
	case n.Gen != nil:
		return &n.Gen.Terms
	case n.Select != nil:
		return &n.Select.Terms
	case n.JSON != nil:
		return &n.JSON.Terms
	case n.Call != nil:
		return &n.Call.Terms
	}
	return nil
}

// Checks returns what a generated value of the node must pass, and how often the
// model is asked for one in all.
func (n *Node) Checks() (checks []Validator, tries int) {
	switch {
	case n.Gen != nil:
		checks, tries = n.Gen.Checks, n.Gen.Tries
	case n.JSON != nil:
		checks, tries = n.JSON.Checks, n.JSON.Tries
	}
	if tries == 0 {
		tries = 1
		if len(checks) > 0 {
			tries = DefaultTries
		}
	}
	return checks, tries
}

// Reason returns what is said of a value for which the check does not hold.
func (c Validator) Reason() string {
	switch {
	case c.Say != "":
		return c.Say
	case c.Expr != "":
		return "this must hold: " + string(c.Expr)
	}
	return c.Func + " did not accept it"
}

// terms checks the terms of a node.
func (c *analysis) terms(n *Node) {
	t := n.Terms()
	if t == nil {
		return
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"timeout", t.Timeout}, {"retry: wait", t.Retry.Wait}, {"retry: max_wait", t.Retry.Max}} {
		if d.d < 0 {
			c.fail(n, fmt.Sprintf("%s is %s", d.name, d.d), "use a positive duration such as 30s")
		}
	}
	if a := t.Retry.Attempts; a < 0 || a > maxAttempts {
		c.fail(n, fmt.Sprintf("retry: %d attempts", a), fmt.Sprintf("use a number from 1 to %d", maxAttempts))
	}
	for i, f := range t.Fallback {
		switch {
		case !isPathName(f):
			c.fail(n, fmt.Sprintf("%q cannot name a backend", clip(f, 40)), "use letters, digits, _ - and .")
		case slices.Contains(t.Fallback[:i], f):
			c.fail(n, fmt.Sprintf("the fallback %q twice", f), "remove one")
		}
	}
	c.utf8(n, "salt", string(t.Salt))
	if n.Call != nil {
		if len(t.Fallback) > 0 || t.Priority != 0 || t.Salt != "" {
			c.fail(n, "fallback, priority and salt are of requests to a model", "remove them from the call")
		}
		if n.Call.Unsafe && t.Retry.Attempts > 1 {
			c.fail(n, "an unsafe function must not be called twice, and retry does", "remove one of them")
		}
	}
	checks, tries := n.Checks()
	if tries < 1 || tries > maxTries {
		c.fail(n, fmt.Sprintf("tries is %d", tries), fmt.Sprintf("use a number from 1 to %d", maxTries))
	}
	for i, k := range checks {
		c.utf8(n, "check", k.Say)
		switch {
		case (k.Expr == "") == (k.Func == ""):
			c.fail(n, "check "+strconv.Itoa(i+1)+" needs a condition or a function", "write - len(x) < 80, or - {func: name}")
		case k.Func != "" && !isPathName(k.Func):
			c.fail(n, fmt.Sprintf("%q is no name of a function", clip(k.Func, 40)), "use letters, digits, _ - and .")
		}
	}
}

// conditions checks the expressions of a node's checks, in which the variable
// that it sets is known.
func (c *analysis) conditions(n *Node, f *flow, e effects) {
	if t := n.Terms(); t != nil && t.Salt != "" {
		c.template(n, t.Salt, f, e)
	}
	checks, _ := n.Checks()
	if len(checks) == 0 || f.vars[n.Name] == nil {
		return
	}
	of := newEffects()
	for _, k := range checks {
		if k.Expr == "" {
			continue
		}
		if t := c.expr(n, "check", k.Expr, f, of); t.Kind != TypeBool && !t.isAny() {
			c.fail(n, fmt.Sprintf("check %q is %s, not a bool", clip(string(k.Expr), 60), t), "compare it with something")
		}
	}
	delete(of.reads, n.Name)
	e.then(of)
}

// Timeout bounds each attempt at a task, see [Terms].
func Timeout(d time.Duration) TaskOption { return termsOption(func(t *Terms) { t.Timeout = d }) }

// Retries makes up to attempts attempts at a task while it fails in ways that may
// pass. A call is made again after any error that does not say by a method
// Retryable() bool that it is final.
func Retries(attempts int) TaskOption {
	return termsOption(func(t *Terms) { t.Retry.Attempts = attempts })
}

// RetryWait sets the wait before the second attempt, which doubles with each
// further one up to most.
func RetryWait(first, most time.Duration) TaskOption {
	return termsOption(func(t *Terms) { t.Retry.Wait, t.Retry.Max = first, most })
}

// Fallback names the backends that are asked, in this order, when the run's own
// cannot answer.
func Fallback(names ...string) AskOption {
	return termsOption(func(t *Terms) { t.Fallback = append(t.Fallback, names...) })
}

// Priority puts a request before those with a lower one in an engine's queue.
func Priority(n int) AskOption { return termsOption(func(t *Terms) { t.Priority = n }) }

// Salt keeps what a request leaves in a cache apart from requests with other
// salts, e.g. those of other tenants. Give it a text, a Template or a
// Var[string].
func Salt[S string | Template | Var[string]](salt S) AskOption {
	var t Template
	switch s := any(salt).(type) {
	case string:
		t = Escape(s)
	case Template:
		t = s
	case Var[string]:
		t = templateOf([]piece{{ex: s.Expr()}})
	}
	return termsOption(func(terms *Terms) { terms.Salt = t })
}

type termsOption func(*Terms)

func (o termsOption) gen(g *GenNode)    { o(&g.Terms) }
func (o termsOption) json(j *JSONNode)  { o(&j.Terms) }
func (o termsOption) sel(s *SelectNode) { o(&s.Terms) }
func (o termsOption) call(c *CallNode)  { o(&c.Terms) }

// Check makes a generated value pass cond: an expression, as a string or Expr, in
// which the node's own variable has the new value, or a Go function of one
// argument besides a context. A value that does not pass is shown to the model
// with what is wrong with it, which is the function's error or the text that it
// returns, or else say, and the model is asked again; see Tries. A function is
// registered as NAME_check, NAME being the node's.
func Check(cond any, say ...string) ModelOption {
	o := checkOption{Say: words(say)}
	switch c := cond.(type) {
	case string:
		o.Expr = Expr(c)
	case Expr:
		o.Expr = c
	default:
		o.fn = cond
	}
	return o
}

// CheckFunc is Check with a Go function under a name of its own.
func CheckFunc(name string, fn any, say ...string) ModelOption {
	return checkOption{Func: name, Say: words(say), fn: fn}
}

func words(say []string) string {
	if len(say) == 0 {
		return ""
	}
	return say[0]
}

type checkOption Validator

func (o checkOption) gen(g *GenNode)   { g.Checks = append(g.Checks, Validator(o)) }
func (o checkOption) json(j *JSONNode) { j.Checks = append(j.Checks, Validator(o)) }

type triesOption int

func (o triesOption) gen(g *GenNode)   { g.Tries = int(o) }
func (o triesOption) json(j *JSONNode) { j.Tries = int(o) }

// Tries bounds how often the model is asked for a value that passes the checks,
// the first time included; 3 otherwise. A JSON node without checks asks again
// when its text is not a value of the schema.
func Tries(n int) ModelOption { return triesOption(n) }

// checked registers the Go functions of a node's checks.
func (p *Program) checked(n *Node, pos Pos) {
	checks, _ := n.Checks()
	for i := range checks {
		k := &checks[i]
		if k.fn == nil {
			continue
		}
		if k.Func == "" {
			k.Func = n.Name + "_check"
			if i > 0 {
				k.Func += strconv.Itoa(i + 1)
			}
		}
		f, err := NewFunc(k.Func, k.fn)
		if err != nil {
			p.b.errorf(pos, n.Name, "check %s: %v", k.Func, err)
			continue
		}
		if len(f.Params) != 1 {
			p.b.errs = append(p.b.errs, &Error{Pos: pos, Node: n.Name, Msg: fmt.Sprintf("check %s takes %d arguments", k.Func, len(f.Params)), Hint: "give it one, the value"})
			continue
		}
		p.b.register(pos, f, k.fn)
	}
}

// linkChecks checks that fs has the functions of a node's checks.
func linkChecks(n *Node, fs Funcs) (es Errors) {
	checks, _ := n.Checks()
	want := Type{Kind: TypeString}
	if n.JSON != nil {
		want = n.JSON.Type
	}
	for _, k := range checks {
		if k.Func == "" {
			continue
		}
		f, ok := fs[k.Func]
		switch {
		case !ok || f.Call == nil:
			es = append(es, missingFunc(n, k.Func, fs))
		case len(f.Params) != 1 || !want.AssignableTo(f.Params[0]):
			es = append(es, &Error{Pos: n.Pos, Node: n.ID, Msg: fmt.Sprintf("check %s takes %s, not one %s", k.Func, typeList(f.Params), want), Hint: "a check takes the value alone"})
		}
	}
	return es
}

// missingFunc is the error of a function that is not registered.
func missingFunc(n *Node, name string, fs Funcs) *Error {
	hint := didYouMean(name, fs.Names())
	if len(fs) == 0 {
		hint = "register it: this run has no functions"
	}
	return &Error{Pos: n.Pos, Node: n.ID, Msg: "no function " + strconv.Quote(name), Hint: hint}
}

// Budget bounds what a run may use. Zero fields bound nothing. What is in flight
// when a bound is reached is stopped; with a journal the run can be resumed with
// a larger budget.
type Budget struct {
	// Tokens bounds the tokens that go through a model: prompts, without what is
	// read from a cache, and what is generated.
	Tokens int `json:"tokens,omitempty"`
	// Generated bounds the generated tokens.
	Generated int `json:"generated,omitempty"`
	// Cost bounds the money, in the unit of the run's prices.
	Cost float64 `json:"cost,omitempty"`
	// Time bounds the wall time for which processes have the run, together.
	Time time.Duration `json:"time,omitempty"`
}

func (c *analysis) budget(b Budget) {
	bad := func(what string) {
		c.errs = append(c.errs, &Error{Pos: c.outputPos, Msg: "budget: " + what, Hint: "use a positive number, or leave it out"})
	}
	switch {
	case b.Tokens < 0:
		bad(fmt.Sprintf("tokens is %d", b.Tokens))
	case b.Generated < 0:
		bad(fmt.Sprintf("generated is %d", b.Generated))
	case b.Time < 0:
		bad(fmt.Sprintf("time is %s", b.Time))
	case b.Cost < 0 || math.IsNaN(b.Cost) || math.IsInf(b.Cost, 0):
		bad(fmt.Sprintf("cost is %g", b.Cost))
	}
}

// Budget bounds what a run of the program may use, unless the run says otherwise.
func (p *Program) Budget(b Budget) { p.b.budget = b }

// RefusalText is what a model is told of an answer that did not pass a check, as
// a user's turn after it.
func RefusalText(reason string) string {
	return "That answer was not accepted: " + reason + "\nAnswer again, with nothing but the corrected answer."
}
