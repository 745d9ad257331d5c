package lang

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// Version is the version of the file format that is written, and the newest that
// is read.
const Version = 1

// JSON returns the graph as a JSON document with the positions of its nodes.
// Decode reads it back without loss.
func (g *Graph) JSON() ([]byte, error) {
	raw := g.tree(true).appendJSON(nil)
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("program %s: %w", g.Name, err)
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

// MarshalJSON makes encoding/json write what JSON returns.
func (g *Graph) MarshalJSON() ([]byte, error) { return g.JSON() }

// UnmarshalJSON reads what JSON returns and checks it, as Decode does.
func (g *Graph) UnmarshalJSON(data []byte) error {
	d, err := Decode(data, "")
	if err != nil {
		return err
	}
	g.Name, g.Doc, g.Inputs, g.Body, g.Output, g.Budget = d.Name, d.Doc, d.Inputs, d.Body, d.Output, d.Budget
	g.Programs, g.depth, g.size = d.Programs, d.depth, d.size
	g.compiled.exprs.Clear()
	g.compiled.templates.Clear()
	g.compiled.nodes = d.compiled.nodes
	return nil
}

// YAML returns the graph as a YAML document for people to read and edit. Decode
// reads it back without loss, but for the positions: those of the document take
// their place.
func (g *Graph) YAML() ([]byte, error) { return g.tree(false).yaml() }

// Hash names the version of the program: it changes whenever what the program
// says does, and not when only its place in a file does.
func (g *Graph) Hash() string {
	return fmt.Sprintf("%016x", xxhash.Sum64(g.tree(false).appendJSON(nil)))
}

// tree returns the graph as a document; at says whether with positions.
func (g *Graph) tree(at bool) *tree {
	e := encoder{at: at}
	t := new(tree).put("coppice", intTree(Version)).put("name", strTree(g.Name))
	e.parts(t, g)
	return t
}

// parts puts all but the name of a program into a document.
func (e encoder) parts(t *tree, g *Graph) {
	e.str(t, "doc", g.Doc)
	e.budget(t, g.Budget)
	if len(g.Inputs) > 0 {
		ins := &tree{kind: treeMap, block: true}
		for i := range g.Inputs {
			ins.put(g.Inputs[i].Name, e.input(&g.Inputs[i]))
		}
		t.put("inputs", ins)
	}
	if within := g.closure(); !e.inner && len(within) > 0 {
		ps := &tree{kind: treeMap, block: true}
		for _, p := range within {
			pt := &tree{kind: treeMap, block: true}
			encoder{at: e.at, inner: true}.parts(pt, p)
			ps.put(p.Name, pt)
		}
		t.put("programs", ps)
	}
	t.put("steps", e.steps(g.Body))
}

type encoder struct {
	at    bool // with positions
	inner bool // a program inside of a document
}

func (e encoder) input(in *Input) *tree {
	if in.Doc == "" && in.Default == nil && !(e.at && in.Pos.Line > 0) {
		return strTree(in.Type.String())
	}
	t := new(tree).put("type", strTree(in.Type.String()))
	e.str(t, "doc", in.Doc)
	if in.Default != nil {
		t.put("default", e.raw(in.Default))
	}
	e.pos(t, in.Pos)
	return t
}

func (e encoder) pos(t *tree, p Pos) {
	if e.at && p.Line > 0 {
		t.put("at", strTree(p.String()))
	}
}

func (encoder) raw(doc json.RawMessage) *tree {
	t, err := parseJSON(doc)
	if err != nil {
		return strTree(string(doc)) // a checked graph has none
	}
	return t
}

func (encoder) str(t *tree, key, s string) {
	if s != "" {
		v := strTree(s)
		v.raw = true
		t.put(key, v)
	}
}

func (e encoder) expr(t *tree, key string, x Expr) { e.str(t, key, string(x)) }

func (encoder) int(t *tree, key string, n int) {
	if n != 0 {
		t.put(key, intTree(n))
	}
}

func (encoder) float(t *tree, key string, f float64) {
	if f != 0 {
		t.put(key, floatTree(f))
	}
}

func (e encoder) steps(body []*Node) *tree {
	t := listTree()
	for _, n := range body {
		t.vals = append(t.vals, e.step(n))
	}
	return t
}

func (e encoder) step(n *Node) *tree {
	key, v := e.node(n)
	t := new(tree).put(key, v)
	t.block = true
	e.pos(t, n.Pos)
	return t
}

// node returns the key and value of a step.
func (e encoder) node(n *Node) (string, *tree) {
	m := &tree{kind: treeMap}
	if n.Text != nil {
		s := strTree(string(n.Text.Content))
		s.raw = true
		if n.Text.Role == "" {
			return "text", s
		}
		return n.Text.Role, s
	}
	if n.Image != nil {
		return "image", strTree(string(n.Image.URL))
	}
	if n.Return != nil {
		return "return", strTree(string(n.Return.Value))
	}
	e.str(m, "name", n.Name)
	switch {
	case n.Role != nil:
		m.put("role", strTree(n.Role.Role)).put("steps", e.steps(n.Role.Body))
	case n.Gen != nil:
		g := n.Gen
		e.int(m, "max_tokens", g.MaxTokens)
		e.int(m, "min_tokens", g.MinTokens)
		if len(g.Stop) > 0 {
			m.put("stop", strings2tree(g.Stop))
		}
		if len(g.StopRegex) > 0 {
			m.put("stop_regex", strings2tree(g.StopRegex))
		}
		e.str(m, "regex", g.Regex)
		e.str(m, "ebnf", g.EBNF)
		if g.Tags != nil {
			m.put("tags", e.tags(g.Tags))
		}
		e.sampling(m, &g.Sampling)
		if g.IgnoreEOS {
			m.put("ignore_eos", boolTree(true))
		}
		e.tokenRules(m, &g.Tokens)
		e.str(m, "logprobs", g.Logprobs)
		e.checks(m, g.Checks, g.Tries)
		e.terms(m, &g.Terms)
	case n.Select != nil:
		if len(n.Select.Options) > 0 {
			m.put("options", strings2tree(n.Select.Options))
		}
		e.expr(m, "from", n.Select.From)
		if len(n.Select.Values) > 0 {
			vals := listTree()
			vals.flow = true
			for _, v := range n.Select.Values {
				vals.vals = append(vals.vals, e.raw(v))
			}
			m.put("values", vals)
		}
		e.str(m, "method", string(n.Select.Method))
		e.str(m, "shares", n.Select.Shares)
		e.terms(m, &n.Select.Terms)
	case n.JSON != nil:
		m.put("schema", e.raw(n.JSON.Schema))
		e.str(m, "go_type", n.JSON.GoType)
		e.int(m, "max_tokens", n.JSON.MaxTokens)
		e.sampling(m, &n.JSON.Sampling)
		e.str(m, "logprobs", n.JSON.Logprobs)
		e.checks(m, n.JSON.Checks, n.JSON.Tries)
		e.terms(m, &n.JSON.Terms)
	case n.Fork != nil:
		e.fork(m, n.Fork)
	case n.Call != nil:
		c := n.Call
		m.put("func", strTree(c.Func))
		if len(c.Args) > 0 {
			args := make([]string, len(c.Args))
			for i, a := range c.Args {
				args[i] = string(a)
			}
			m.put("args", strings2tree(args))
		}
		if !c.Result.isAny() {
			m.put("result", strTree(c.Result.String()))
		}
		if c.Unsafe {
			m.put("unsafe", boolTree(true))
		}
		e.terms(m, &c.Terms)
	case n.When != nil:
		e.expr(m, "if", n.When.If)
		m.put("then", e.steps(n.When.Then))
		if n.When.Else != nil {
			m.put("else", e.steps(n.When.Else))
		}
	case n.Repeat != nil:
		r := n.Repeat
		m.put("max", intTree(r.Max))
		e.expr(m, "until", r.Until)
		e.str(m, "index", r.Index)
		m.put("steps", e.steps(r.Body))
	case n.ForEach != nil:
		f := n.ForEach
		e.expr(m, "over", f.Over)
		e.str(m, "as", f.As)
		m.put("steps", e.steps(f.Body))
		e.expr(m, "yield", f.Yield)
	case n.Run != nil:
		e.run(m, n.Run)
	case n.Sleep != nil:
		e.sleep(m, n.Sleep)
	case n.Wait != nil:
		e.wait(m, n.Wait)
	case n.Let != nil:
		e.expr(m, "value", n.Let.Value)
		if !n.Let.Type.Equal(n.Let.inferred) {
			m.put("type", strTree(n.Let.Type.String()))
		}
	}
	return string(n.Kind), m
}

func (e encoder) fork(m *tree, f *ForkNode) {
	switch {
	case len(f.Arms) > 0:
		arms := listTree()
		for _, a := range f.Arms {
			t := new(tree).put("name", strTree(a.Name)).put("steps", e.steps(a.Body))
			e.expr(t, "yield", a.Yield)
			arms.vals = append(arms.vals, t)
		}
		m.put("arms", arms)
	case f.Over != "":
		e.expr(m, "over", f.Over)
	default:
		m.put("each", strings2tree(f.Items))
	}
	if len(f.Arms) == 0 {
		e.str(m, "as", f.As)
		m.put("steps", e.steps(f.Body))
		e.expr(m, "yield", f.Yield)
	}
	switch f.Join.Kind {
	case "":
	case "quorum":
		q := new(tree).put("quorum", intTree(f.Join.N))
		q.flow = true
		m.put("join", q)
	default:
		m.put("join", strTree(f.Join.Kind))
	}
	e.str(m, "errors", f.Errors)
}

func (e encoder) sampling(m *tree, s *Sampling) {
	e.float(m, "temperature", s.Temperature)
	e.int(m, "top_k", s.TopK)
	e.float(m, "top_p", s.TopP)
	e.float(m, "min_p", s.MinP)
	e.float(m, "repetition_penalty", s.RepetitionPenalty)
	e.float(m, "frequency_penalty", s.FrequencyPenalty)
	e.float(m, "presence_penalty", s.PresencePenalty)
	if s.Seed != nil {
		m.put("seed", &tree{kind: treeNumber, text: strconv.FormatUint(*s.Seed, 10)})
	}
	e.logitBias(m, s.LogitBias)
}
