package runtime

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// trial is a node whose value must pass checks, from its first generation to
// the one that passes:
//
//	generate NAME   -> conditions -> functions NAME/check[i] -> accepted
//	generate NAME~2 <- refused: the answer and the reason are added to the
//	                   trial's prompt, never to the branch's
type trial struct {
	id      string // instance id of the node
	n       int    // number of the generation, from 1
	prompt  prompt // of further generations, once one was refused
	refused []string
	// Of the generation whose functions are being asked:
	result *backend.Result
	value  any
	at     int // index of the check
}

// Refusal says that a generated value did not pass the checks of its node.
type Refusal struct {
	Task   string // the generation
	Node   string
	Branch string
	Reason string
}

// CheckError is the failure of a node of which no generated value passed its
// checks. It is ErrCheck.
type CheckError struct {
	Answer  string   // the last, shortened
	Reasons []string // one for each answer
	// Err is why the last answer was no value at all, nil if it was one.
	Err error
}

func (e *CheckError) Error() string {
	last := e.Reasons[len(e.Reasons)-1]
	s := fmt.Sprintf("%v in %d tries; of the last, %q, it was said: %s", ErrCheck, len(e.Reasons), e.Answer, last)
	if len(e.Reasons) == 1 {
		s = fmt.Sprintf("%v: of %q it was said: %s", ErrCheck, e.Answer, last)
	}
	return s
}

// Is makes errors.Is(err, ErrCheck) true.
func (e *CheckError) Is(target error) bool { return target == ErrCheck }

// Unwrap returns why the last answer was no value.
func (e *CheckError) Unwrap() error { return e.Err }

// newTrial returns the trial of a node, nil if what is generated is accepted as
// it is.
func newTrial(id string, n *lang.Node) *trial {
	if checks, tries := n.Checks(); len(checks) == 0 && tries == 1 {
		return nil
	}
	return &trial{id: id, n: 1}
}

// taskID returns the id of the running generation.
func (tr *trial) taskID() string {
	if tr.n == 1 {
		return tr.id
	}
	return tr.id + "~" + strconv.Itoa(tr.n)
}

// takeGenerated puts what a gen or json generated into its branch, or has it
// checked.
func (m *Machine) takeGenerated(b *branch, t *task, g *backend.Result) error {
	if t.Generate.Logprobs && len(g.Logprobs) == 0 && g.Part.Text != "" {
		return fmt.Errorf("%w: the backend tells no log-probabilities, which are wanted as %s", backend.ErrUnsupported, t.node.Logprobs())
	}
	v, err := m.generatedValue(t, g)
	if t.trial == nil {
		if err == nil {
			m.accept(b, t.node, g, v)
		}
		return err
	}
	if err != nil {
		return m.refuse(b, t, g, err.Error(), err)
	}
	t.trial.result, t.trial.value, t.trial.at = g, v, 0
	return m.checks(b, t)
}

func (m *Machine) generatedValue(t *task, g *backend.Result) (any, error) {
	if t.node.Kind == lang.KindJSON {
		v, err := m.decode([]byte(g.Part.Text), t.node.JSON.Type)
		switch {
		case err == nil:
			return v, nil
		case g.Finish == backend.FinishLength:
			return nil, truncated(t, g, "inside the JSON value")
		}
		return nil, fmt.Errorf("the model's text is not a value of the schema: %w", err)
	}
	if cutShort(t.Generate.Constraint, g) {
		what := "grammar"
		if t.Generate.Constraint.Regex != "" {
			what = "pattern"
		}
		return nil, truncated(t, g, "before the end of its "+what)
	}
	return g.Part.Text, nil
}

func (m *Machine) accept(b *branch, n *lang.Node, g *backend.Result, v any) {
	b.set(n.Name, v)
	if name := n.Logprobs(); name != "" {
		lps := make([]any, len(g.Logprobs))
		for i, lp := range g.Logprobs {
			lps[i] = lp
		}
		b.set(name, lps)
	}
	b.prompt.generated(g.Part)
	b.pristine = false
}

// checks asks the checks of t's node from trial.at on. A function is a task of
// its own; the rest is asked when its result is there.
func (m *Machine) checks(b *branch, t *task) error {
	tr := t.trial
	all, _ := t.node.Checks()
	for ; tr.at < len(all); tr.at++ {
		c := all[tr.at]
		if c.Func != "" {
			k := &task{Task: Task{ID: tr.taskID() + "/check[" + strconv.Itoa(tr.at) + "]"}, trial: tr, generation: t}
			k.Call = &Call{Func: c.Func, Args: []any{tr.value}, Key: m.key(k.ID)}
			m.add(b, t.node, k)
			return nil
		}
		ok, err := m.holds(b, t.node.Name, tr.value, c.Expr)
		if err != nil {
			return err
		}
		if !ok {
			return m.refuse(b, t, tr.result, c.Reason(), nil)
		}
	}
	m.accept(b, t.node, tr.result, tr.value)
	return nil
}

// holds evaluates a condition in which name has a value that is not set yet.
func (m *Machine) holds(b *branch, name string, v any, e lang.Expr) (bool, error) {
	b.vars[name] = v // a name is set once, so there is nothing to put back
	got, err := m.eval(b, e)
	delete(b.vars, name)
	if err != nil {
		return false, fmt.Errorf("check: %w", err)
	}
	ok, isBool := got.(bool)
	if !isBool {
		return false, fmt.Errorf("check %q is %s, not a bool", e, kindOf(got))
	}
	return ok, nil
}

// judged returns what a check that returned v finds wrong, nothing if all is
// right; no is what a bare false says.
func judged(fn, no string, v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case bool:
		if v {
			no = ""
		}
		return no, nil
	case string:
		return v, nil
	}
	return "", fmt.Errorf("check %s returned %s: it must return an error, a text that says what is wrong, or a bool", fn, kindOf(v))
}

// takeVerdict goes on with a trial after a function's result. A function that
// failed in another way than by returning an error says nothing of the value.
func (m *Machine) takeVerdict(b *branch, k *task, r *Result) error {
	tr, t := k.trial, k.generation
	checks, _ := t.node.Checks()
	c := checks[tr.at]
	reason := ""
	switch {
	case r.Failure != nil && r.Failure.Code != codeError:
		return r.Failure
	case r.Failure != nil:
		reason = r.Failure.Message
	default:
		v, err := lang.DecodeValue(r.Value)
		if err != nil {
			return err
		}
		if reason, err = judged(c.Func, c.Reason(), v); err != nil {
			return err
		}
	}
	if reason != "" {
		return m.refuse(b, t, tr.result, reason, nil)
	}
	tr.at++
	return m.checks(b, t)
}

// refuse asks the model again, or ends the node if it was asked often enough.
func (m *Machine) refuse(b *branch, t *task, g *backend.Result, reason string, cause error) error {
	tr := t.trial
	reason = oneLine(reason, 1000)
	tr.refused = append(tr.refused, reason)
	m.changes.Refused = append(m.changes.Refused, Refusal{Task: tr.taskID(), Node: t.node.ID, Branch: b.id, Reason: reason})
	_, tries := t.node.Checks()
	// Where text goes on without turns the model cannot be told anything; it can
	// only draw anew.
	raw := b.prompt.continues() && !b.prompt.open()
	if tr.n >= tries || raw && samplingOf(t.node).Temperature == 0 {
		if cause != nil && tr.n == 1 {
			return cause
		}
		return &CheckError{Answer: oneLine(g.Part.Text, 80), Reasons: slices.Clone(tr.refused), Err: cause}
	}
	if err := m.count(); err != nil {
		return err
	}
	if !raw {
		tr.tell(&b.prompt, g.Part, reason)
	}
	tr.n++
	tr.result, tr.value = nil, nil
	return m.startAsk(b, t.node, tr)
}

// tell adds a refused answer to the trial's prompt, and what is wrong with it as
// a user's turn. In an open turn the text that the answer went on with opens the
// next one too.
func (tr *trial) tell(of *prompt, answer backend.Part, reason string) {
	if tr.prompt.turns == nil {
		tr.prompt = of.child()
	}
	p := &tr.prompt
	p.generated(answer)
	p.close()
	p.push(backend.Turn{Role: backend.User, Parts: []backend.Part{{Text: lang.RefusalText(reason)}}})
	if of.open() {
		last := of.turns[len(of.turns)-1]
		p.push(backend.Turn{Role: last.Role, Parts: slices.Clip(last.Parts), Open: true})
	}
}

func samplingOf(n *lang.Node) lang.Sampling {
	if n.Gen != nil {
		return n.Gen.Sampling
	}
	return n.JSON.Sampling
}

// oneLine shortens a text to about n bytes of one line.
func oneLine(s string, n int) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// ErrCheck: nothing that a model generated for a node passed its checks.
var ErrCheck = errors.New("no answer passed its checks")
