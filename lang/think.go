package lang

import "strings"

// thinking lets a model think before it answers: in the turn of the answer it first
// writes a thought between two marks, of so many tokens at most. Then the second
// mark is written for it, and it goes on with the answer:
//
//	role: assistant
//	  text: <think>
//	  gen NAME_thought, which stops at </think> or at the limit
//	  text: </think>
//	  gen or json NAME
//
// There is no node of its own for it, so that thoughts are explained, stored,
// resumed and paid as all that is generated.
type thinking struct {
	tokens      int
	open, close string
	to          *Var[string]
}

// The marks of Qwen3, DeepSeek-R1 and many others.
const (
	thinkOpen  = "<think>\n"
	thinkClose = "\n</think>\n\n"
)

// ThinkOption is an option of Think.
type ThinkOption func(*thinking)

// ThinkMarks are what stands before and behind a thought, blanks included, instead of
// <think> and </think>. An empty open is for models whose chat template begins the
// thought itself.
func ThinkMarks(open, close string) ThinkOption {
	return func(t *thinking) { t.open, t.close = open, close }
}

// ThoughtTo makes *thought what was thought. Its variable is the node's name with
// _thought.
func ThoughtTo(thought *Var[string]) ThinkOption { return func(t *thinking) { t.to = thought } }

// Think lets a model that was made for it think before it answers, with at most so
// many tokens: then the thought is closed for it and the answer follows, in the form
// that is asked for. The answer alone is the value; the thought stands before it in
// the context. Sampling and terms are those of the answer.
func Think(tokens int, opts ...ThinkOption) ModelOption {
	t := &thinking{tokens: tokens, open: thinkOpen, close: thinkClose}
	for _, o := range opts {
		o(t)
	}
	return thinkOption{t}
}

type thinkOption struct{ *thinking }

func (o thinkOption) gen(g *GenNode)   { g.think = o.thinking }
func (o thinkOption) json(j *JSONNode) { j.think = o.thinking }

// bad says why there is no such thought.
func (t *thinking) bad() (what, hint string) {
	switch {
	case t.tokens < 1:
		return "think: a thought of no tokens", "say how many tokens it may have"
	case strings.TrimSpace(t.close) == "":
		return "think: nothing ends the thought", "give the mark that the model ends it with, e.g. </think>"
	}
	return "", ""
}

// before are the nodes in front of an answer.
func (t *thinking) before(answer *Node) []*Node {
	text := func(s string) *Node {
		return &Node{Kind: KindText, Pos: answer.Pos, Text: &TextNode{Content: Escape(s)}}
	}
	g := &GenNode{MaxTokens: t.tokens, Sampling: *samplingOf(answer), Terms: *answer.Terms()}
	// What the model writes of the closing mark is not part of the thought.
	for _, stop := range []string{strings.TrimRight(t.close, blank), strings.TrimSpace(t.close)} {
		if len(g.Stop) == 0 || g.Stop[0] != stop {
			g.Stop = append(g.Stop, stop)
		}
	}
	var out []*Node
	if t.open != "" {
		out = append(out, text(t.open))
	}
	thought := &Node{Kind: KindGen, Name: answer.Name + "_thought", Pos: answer.Pos, Gen: g}
	return append(out, thought, text(t.close))
}

const blank = " \t\r\n"

// ask adds a gen or json, behind a thought if it wants one.
func ask[T any](p *Program, pos Pos, a asks, n *Node, typ Type) (v Var[T]) {
	if a.logprobsTo != nil {
		n.wantLogprobs()
	}
	add := func(p *Program) Var[T] {
		p.checked(n, pos)
		p.addAt(pos, n)
		if a.logprobsTo != nil {
			*a.logprobsTo = otherVar[float64](p, n, n.Logprobs())
		}
		return newVar[T](p, n.Name, typ, pos)
	}
	t := a.think
	if t == nil {
		return add(p)
	}
	if what, hint := t.bad(); what != "" {
		p.b.errs = append(p.b.errs, &Error{Pos: pos, Node: n.Name, Msg: what, Hint: hint})
		return add(p)
	}
	p.turnOf("assistant", func(p *Program) {
		for _, m := range t.before(n) {
			p.addAt(pos, m)
			if m.Gen != nil && t.to != nil {
				*t.to = newVar[string](p, m.Name, Type{Kind: TypeString}, pos)
			}
		}
		v = add(p)
	})
	return v
}

// turnOf is Role, of a script too.
func (p *Program) turnOf(role string, build func(p *Program)) {
	if p.live() {
		p.script.Role(role, func(s *S) { build(s.Program) })
		return
	}
	p.Role(role, build)
}

// think reads how an answer is thought about: a number of tokens, or a map.
func (d *decoder) think(f *fields) *thinking {
	v := f.get("think")
	if v == nil {
		return nil
	}
	t := &thinking{open: thinkOpen, close: thinkClose}
	if v.kind == treeMap {
		tf := d.fields(v, f.what+": think")
		t.tokens = tf.int("tokens")
		for _, m := range []struct {
			key string
			to  *string
		}{{"open", &t.open}, {"close", &t.close}} {
			if tf.get(m.key) != nil {
				*m.to = tf.str(m.key)
			}
		}
		tf.done()
	} else {
		t.tokens = f.int("think")
	}
	if what, hint := t.bad(); what != "" {
		d.errorf(v.line, hint, "%s: %s", f.what, what)
		return nil
	}
	return t
}

// around is the answer with the thought before it, as one step.
func (t *thinking) around(answer *Node) *Node {
	if t == nil {
		return answer
	}
	body := append(t.before(answer), answer)
	return &Node{Kind: KindRole, Pos: answer.Pos, Role: &RoleNode{Role: "assistant", Body: body}}
}
