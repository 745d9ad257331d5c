package lang

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
)

// Gen asks the model for a value of the Go type T: text for a string, otherwise a
// JSON value whose grammar lets nothing else through, e.g. Gen[int], Gen[bool],
// Gen[time.Time] or Gen[[]string]. Stop, Regex, EBNF and the other options of
// texts are for strings only.
func Gen[T any](at Builder, name string, opts ...GenOption) Var[T] {
	p := at.program()
	pos := caller()
	if isText[T]() {
		g := &GenNode{}
		for _, o := range opts {
			o.gen(g)
		}
		n := &Node{Kind: KindGen, Name: name, Gen: g}
		return ask[T](p, pos, g.asks, n, Type{Kind: TypeString})
	}
	var of []JSONOption
	for _, o := range opts {
		j, ok := o.(JSONOption)
		if !ok {
			p.b.errs = append(p.b.errs, &Error{Pos: pos, Node: name, Msg: fmt.Sprintf("an option of texts, for a %s", reflect.TypeFor[T]()), Hint: "remove Stop, MinTokens, Regex, EBNF and the like, or use Gen[string]"})
			continue
		}
		of = append(of, j)
	}
	return JSON[T](p, name, of...)
}

// isText reports whether a T is plain text: of a string type that does not say
// itself what its JSON is.
func isText[T any]() bool {
	t := reflect.TypeFor[T]()
	return t.Kind() == reflect.String && !ownForm(t)
}

// GenN asks the model n times from one context, all at once, and gives the list of
// its answers. It is a Fork: of the answers nothing is in the context afterwards
// but what the program puts there.
func GenN[T any](at Builder, name string, n int, opts ...GenOption) Var[[]T] {
	return GenNWith[T](at, name, n, nil, opts...)
}

// GenNWith is GenN with options of the fork.
func GenNWith[T any](at Builder, name string, n int, fork []ForkOption, opts ...GenOption) Var[[]T] {
	p := at.program()
	pos := caller()
	items := Each[int]()
	if what, hint := badSamples(n); what != "" {
		p.b.errs = append(p.b.errs, &Error{Pos: pos, Node: name, Msg: what, Hint: hint})
		n = 1
	}
	for i := range n {
		items.static = append(items.static, i)
	}
	return Fork(p, name, items, func(b *Branch, _ Var[int]) Var[T] {
		v := Gen[T](b, name, opts...)
		if k := len(b.nodes); k > 0 && n > 1 {
			if what, hint := badSampling(samplingOf(b.nodes[k-1])); what != "" {
				p.b.errs = append(p.b.errs, &Error{Pos: pos, Node: name, Msg: what, Hint: hint})
			}
		}
		return v
	}, append([]ForkOption{ItemName(name + "_n")}, fork...)...)
}

// maxSamples is how often GenN can ask.
const maxSamples = 10_000

func badSamples(n int) (what, hint string) {
	if n < 1 || n > maxSamples {
		return fmt.Sprintf("n is %d", n), fmt.Sprintf("use a number from 1 to %d", maxSamples)
	}
	return "", ""
}

// badSampling says why several answers with this sampling would be one.
func badSampling(s *Sampling) (what, hint string) {
	switch {
	case s == nil:
		return "", ""
	case s.Temperature == 0:
		return "without a temperature all n answers are the same", "give it one, e.g. 0.8"
	case s.Seed != nil:
		return "with one seed all n answers are the same", "remove it: each answer has its own from the run's seed"
	}
	return "", ""
}

// samplingOf returns the sampling of a gen or json, nil of other nodes.
func samplingOf(n *Node) *Sampling {
	switch {
	case n.Gen != nil:
		return &n.Gen.Sampling
	case n.JSON != nil:
		return &n.JSON.Sampling
	}
	return nil
}

// samples turns a gen or json step with n into the fork that it stands for.
func (d *decoder) samples(n *Node, f *fields) {
	think := d.think(f)
	t := f.get("n")
	if t == nil {
		if think != nil {
			one := *n
			*n = *think.around(&one)
		}
		return
	}
	count := f.int("n")
	what, hint := badSamples(count)
	if what == "" && count > 1 {
		what, hint = badSampling(samplingOf(n))
	}
	if what != "" {
		d.errorf(t.line, hint, "%s: %s", f.what, what)
		return
	}
	one := *n
	fk := &ForkNode{As: n.Name + "_n", Body: []*Node{think.around(&one)}, Yield: Expr(n.Name), Errors: f.str("errors")}
	if fk.Join = d.join(f); fk.Join.N > count {
		d.errorf(t.line, "use a number from 1 to n", "%s: a quorum of %d of %d answers", f.what, fk.Join.N, count)
	}
	items := make([]int, count)
	for i := range items {
		items[i] = i
	}
	fk.Over, _ = literal(items)
	n.Kind, n.Gen, n.JSON, n.Fork = KindFork, nil, nil, fk
}

// Select asks the model which of some options is likeliest to follow. Options of a
// string type stand for themselves. Others, e.g. numbers, bools, structs or the
// constants of an enumeration, stand in the context by their String method or in
// the form of FormatValue, and the variable has the option itself.
func Select[T any](at Builder, name string, options ...T) Var[T] {
	return SelectWith(at, name, nil, options...)
}

// SelectWith is Select with options of the node.
func SelectWith[T any](at Builder, name string, opts []SelectOption, options ...T) Var[T] {
	p := at.program()
	pos := caller()
	s := &SelectNode{}
	for _, o := range opts {
		o.sel(s)
	}
	typ := Type{Kind: TypeString}
	if !isText[T]() {
		var err error
		if typ, err = typeOfGo(reflect.TypeFor[T]()); err != nil {
			p.b.errorf(pos, name, "options: %v", err)
		}
	}
	for i, o := range options {
		if isText[T]() {
			s.Options = append(s.Options, reflect.ValueOf(o).String())
			continue
		}
		v, err := Normalize(o)
		if err != nil {
			p.b.errorf(pos, name, "option %d: %v", i+1, err)
			continue
		}
		text := FormatValue(v, typ)
		if str, ok := any(o).(fmt.Stringer); ok {
			text = str.String()
		}
		s.Options = append(s.Options, text)
		s.Values = append(s.Values, FormatJSON(v, typ))
	}
	p.selects(name, s, pos, nil)
	return newVar[T](p, name, typ, pos)
}

// selects adds a select, of which shares may be wanted.
func (p *Program) selects(name string, s *SelectNode, pos Pos, options *handle) {
	n := &Node{Kind: KindSelect, Name: name, Select: s}
	if s.sharesTo != nil {
		s.Shares = name + "_shares"
	}
	p.claim(n, 0, options)
	p.addAt(pos, n)
	if s.sharesTo != nil {
		*s.sharesTo = otherVar[float64](p, n, s.Shares)
	}
}

// values checks the values of a select and sets the type of its variable.
func (c *analysis) values(n *Node, s *SelectNode) {
	s.Type = Type{Kind: TypeString}
	if len(s.Values) == 0 {
		return
	}
	if len(s.Values) != len(s.Options) {
		c.fail(n, fmt.Sprintf("%d values for %d options", len(s.Values), len(s.Options)), "give each option its value")
		return
	}
	trees := make([]*tree, len(s.Values))
	for i, v := range s.Values {
		t, err := parseJSON(v)
		if err != nil {
			c.fail(n, "value "+strconv.Itoa(i+1)+": "+err.Error(), "a value is JSON")
			return
		}
		trees[i] = t
		s.Values[i] = t.appendJSON(nil)
	}
	s.Type = valuesType(trees)
	for i, v := range s.Values {
		x, err := DecodeValue(v)
		if err == nil {
			_, err = Convert(x, s.Type)
		}
		if err != nil {
			c.fail(n, "value "+strconv.Itoa(i+1)+": "+err.Error(), "give all options values of one type")
		}
	}
}

// values reads the values of a select's options.
func (d *decoder) values(f *fields) []json.RawMessage {
	t := f.get("values")
	if t == nil {
		return nil
	}
	if t.kind != treeList {
		d.errorf(t.line, "write one for each option", "%s: values are %s, not a list", f.what, t.kind)
		return nil
	}
	var out []json.RawMessage
	for _, v := range t.vals {
		out = append(out, v.appendJSON(nil))
	}
	return out
}
