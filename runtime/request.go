package runtime

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/grammar"
	"github.com/coppice-run/coppice/lang"
)

// add registers a task and makes its branch wait for it.
func (m *Machine) add(b *branch, n *lang.Node, t *task) {
	t.branch, t.node = b, n
	t.Node, t.Branch = n, b.id
	if t.Base = b.base; t.Base > 0 {
		// The last of them may have grown since, or ended.
		if len(b.prompt.turns[t.Base-1].Parts) > b.parts || b.fork.parent.prompt.open() {
			t.Base--
		}
	}
	if (t.Generate != nil || t.Score != nil) && !b.asked {
		t.first, b.asked = true, true
	}
	if a := m.asked(b); a != nil {
		t.trace = a.Trace
		if t.Call != nil {
			if f, ok := a.Funcs[t.Call.Func]; ok {
				t.fn = &f
			}
		}
	}
	b.task = t
	m.tasks[t.ID] = t
	m.fresh = append(m.fresh, t)
}

// startAsk asks the model for the text of a gen or json; in a trial that was
// refused before, with what it was told.
func (m *Machine) startAsk(b *branch, n *lang.Node, tr *trial) error {
	t := &task{Task: Task{ID: b.instance(n)}, trial: tr}
	if tr != nil {
		t.ID = tr.taskID()
	}
	salt, err := m.salt(b, n)
	if err != nil {
		return err
	}
	t.Generate = m.request(b, t.ID, samplingOf(n))
	t.Generate.Salt, t.Generate.Priority = salt, n.Terms().Priority
	if g := n.Gen; g != nil {
		t.Generate.MaxTokens, t.Generate.MinTokens, t.Generate.Stop = g.MaxTokens, g.MinTokens, g.Stop
		t.Generate.IgnoreEOS = g.IgnoreEOS
		t.Generate.Tokens = backend.TokenRules{Stop: g.Tokens.Stop, Allowed: g.Tokens.Allowed, Banned: g.Tokens.Banned, StopRegex: g.StopRegex}
	} else {
		t.Generate.MaxTokens = n.JSON.MaxTokens
	}
	t.Generate.Constraint = constraintOf(n)
	t.Generate.Logprobs = n.Logprobs() != ""
	if tr != nil && tr.n > 1 {
		if len(tr.prompt.turns) > 0 {
			t.Generate.Turns = tr.prompt.view()
		}
		if samplingOf(n).Seed != nil { // the same numbers would give the same answer
			t.Generate.Sampling.Seed = deriveSeed(t.Generate.Sampling.Seed, t.ID)
		}
	}
	m.add(b, n, t)
	return nil
}

// salt returns the cache salt of a node's requests: the run's, with the node's
// behind it. The length of the run's keeps the two apart.
func (m *Machine) salt(b *branch, n *lang.Node) (string, error) {
	of := n.Terms().Salt
	if of == "" {
		return m.opt.Salt, nil
	}
	s, err := b.graph.Expand(of, b.vars)
	if err != nil || s == "" {
		return m.opt.Salt, err
	}
	return strconv.Itoa(len(m.opt.Salt)) + ":" + m.opt.Salt + ":" + s, nil
}

// request returns a generation that continues the prompt of b.
func (m *Machine) request(b *branch, id string, s lang.Sampling) *backend.Request {
	r := &backend.Request{
		ID:    id,
		Turns: b.prompt.view(),
		Hints: m.hints(b),
		Sampling: backend.Sampling{
			Temperature:       s.Temperature,
			TopK:              s.TopK,
			TopP:              s.TopP,
			MinP:              s.MinP,
			RepetitionPenalty: s.RepetitionPenalty,
			FrequencyPenalty:  s.FrequencyPenalty,
			PresencePenalty:   s.PresencePenalty,
			LogitBias:         s.LogitBias,
		},
	}
	if s.Seed != nil {
		r.Sampling.Seed = *s.Seed
	} else {
		r.Sampling.Seed = deriveSeed(m.opt.Seed, id)
	}
	return r
}

// deriveSeed gives every instance of a node its own seed, the same in each run
// with that seed.
func deriveSeed(seed uint64, id string) uint64 {
	buf := make([]byte, 0, 128)
	buf = binary.LittleEndian.AppendUint64(buf, seed)
	return xxhash.Sum64(append(buf, id...))
}

func (m *Machine) startSelect(b *branch, n *lang.Node) error {
	options := n.Select.Options
	if n.Select.From != "" {
		v, err := m.eval(b, n.Select.From)
		if err != nil {
			return err
		}
		items, err := list(n.Select.From, v)
		if err != nil {
			return err
		}
		options = make([]string, len(items))
		for i, it := range items {
			s, ok := it.(string)
			if !ok {
				return fmt.Errorf("option %d of %q is %s, not a string", i, n.Select.From, kindOf(it))
			}
			options[i] = s
		}
	}
	method := backend.ScoreMethod(n.Select.Method)
	closed := !b.prompt.continues() && method.Ends()
	if err := checkOptions(options, closed); err != nil {
		return err
	}
	salt, err := m.salt(b, n)
	if err != nil {
		return err
	}
	t := &task{Task: Task{ID: b.instance(n)}}
	t.Score = &backend.ScoreRequest{
		ID:      t.ID,
		Turns:   b.prompt.view(),
		Options: options,
		// A turn of its own ends after the option; in an open turn and in raw
		// text more may follow.
		Closed:   closed,
		Method:   method,
		Salt:     salt,
		Priority: n.Select.Terms.Priority,
		Hints:    m.hints(b),
	}
	m.add(b, n, t)
	return nil
}

// checkOptions refuses option lists of which no choice can be made. To say
// nothing is a choice only where the turn ends with it.
func checkOptions(options []string, closed bool) error {
	if len(options) == 0 {
		return errors.New("select from no options: give at least one")
	}
	seen := make(map[string]int, len(options))
	for i, o := range options {
		if o == "" && !closed {
			return fmt.Errorf("option %d is empty, and here more text may follow: every context continues with nothing", i)
		}
		if j, dup := seen[o]; dup {
			return fmt.Errorf("options %d and %d are both %q", j, i, o)
		}
		seen[o] = i
	}
	return nil
}

func (m *Machine) startCall(b *branch, n *lang.Node) error {
	args := make([]any, len(n.Call.Args))
	for i, e := range n.Call.Args {
		v, err := m.eval(b, e)
		if err != nil {
			return err
		}
		args[i] = v
	}
	t := &task{Task: Task{ID: b.instance(n)}}
	t.Call = &Call{Func: n.Call.Func, Args: args, Unsafe: n.Call.Unsafe, Key: m.key(t.ID)}
	m.add(b, n, t)
	return nil
}

// key returns the idempotency key of a task. The length of the run's name keeps
// names that run into ids apart.
func (m *Machine) key(id string) string {
	return strconv.Itoa(len(m.opt.Run)) + ":" + m.opt.Run + ":" + id
}

// take puts the result of a task into its branch.
func (m *Machine) take(b *branch, t *task, r *Result) error {
	switch {
	case t.generation != nil:
		return m.takeVerdict(b, t, r)
	case r.Failure != nil:
		return r.Failure
	case t.Generate != nil:
		return m.takeGenerated(b, t, r.Generate)
	case t.Score != nil:
		rank := t.Score.Method.Rank(r.Score.Options)
		best := rank.Best
		v := any(t.Score.Options[best])
		if vals := t.node.Select.Values; vals != nil {
			var err error
			if v, err = m.decode(vals[best], t.node.Select.Type); err != nil {
				return err
			}
		}
		b.set(t.node.Name, v)
		if name := t.node.Select.Shares; name != "" {
			shares := make([]any, len(rank.P))
			for i, p := range rank.P {
				shares[i] = p
			}
			b.set(name, shares)
		}
		part := r.Score.Options[best].Part
		if part.Text != t.Score.Options[best] {
			part = backend.Part{Text: t.Score.Options[best]}
		}
		b.prompt.generated(part)
		b.pristine = false
	case t.Call != nil:
		v, err := m.decode(r.Value, t.node.Call.Result)
		if err != nil {
			return fmt.Errorf("result of %s: %w", t.Call.Func, err)
		}
		b.set(t.node.Name, v)
	case t.Wait != nil:
		v, err := m.decode(r.Value, t.Wait.Type)
		if err != nil {
			return fmt.Errorf("the answer: %w", err)
		}
		b.set(t.node.Name, v)
	}
	return nil
}

// truncated is the error of a generation that its limit ended too soon.
func truncated(t *task, g *backend.Result, where string) error {
	came := strconv.Itoa(len(g.Part.Text)) + " bytes came"
	if n := g.ContextFull; n > 0 {
		return fmt.Errorf("%w %s (%s): the context of %d tokens is full, and %d of them are the prompt: shorten the prompt, ask for less, or use a model with a longer context",
			ErrTruncated, where, came, n, g.Usage.PromptTokens)
	}
	limit := "what is left of the model's context"
	if n := t.Generate.MaxTokens; n > 0 {
		limit = "max_tokens " + strconv.Itoa(n)
	}
	return fmt.Errorf("%w %s (%s, %s): raise the limit or ask for less", ErrTruncated, where, limit, came)
}

// cutShort reports whether the length limit ended a generation where its pattern
// or grammar could not end. What cannot be decided counts as cut.
func cutShort(c backend.Constraint, g *backend.Result) (cut bool) {
	if g.Finish != backend.FinishLength || c.Regex == "" && c.EBNF == "" {
		return false
	}
	defer func() {
		if recover() != nil {
			cut = true
		}
	}()
	compiled, err := grammar.Compile(context.Background(), grammar.Spec{Regex: c.Regex, EBNF: c.EBNF}, grammar.ByteVocab())
	return err != nil || !compiled.Match([]byte(g.Part.Text))
}
