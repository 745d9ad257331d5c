package lang

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
)

// forecaster runs a program without a model, at one end of what can happen: the
// shortest texts, fewest rounds and cheaper cases, or the longest, most and
// dearer. What a model will write stands in contexts as tokens of its own kind,
// so that shared prefixes are found as a cache would find them.
type forecaster struct {
	g   *Graph
	o   ExplainOptions
	hi  bool
	err error

	total tally
	nodes map[string]*nodeTally
	limbs []limb
	notes []string
	open  bool // something has no upper bound
	asked int

	trunk, stable int
	trunkText     string
	trunkOpen     bool
	trunkSeen     bool

	longest   int // tokens of the longest context, its generation included
	longestAt *Node
	nextHole  int32
}

// tally is a usage, counted.
type tally struct {
	prompt, computed, cached, forced, sampled int
	without, passes                           int
}

func (t *tally) add(u tally) {
	t.prompt += u.prompt
	t.computed += u.computed
	t.cached += u.cached
	t.forced += u.forced
	t.sampled += u.sampled
	t.without += u.without
	t.passes += u.passes
}

type nodeTally struct {
	tally
	times int
	shape string
}

type limb struct {
	id, fork, label string
	shared, own     int
	asked           bool
}

// worth is what is known of a variable's value.
type worth struct {
	known    bool
	value    any
	tokens   int // of its text, if the value is not known
	open     bool
	volatile bool // differs from run to run
	count    int  // elements of a list, -1 if not known
}

// line is one line of execution: variables, context, and what the cache holds
// of it.
type line struct {
	vars  map[string]worth
	turns []fturn
	done  [][]int32 // sequences that are computed by now
	id    string    // instance id of the branch
	limb  int       // index of its limb, -1 on the trunk
	ended bool
}

type fturn struct {
	role  string
	open  bool
	parts []fpart
}

// fpart is text, or tokens whose text is not known.
type fpart struct {
	text     string
	hole     []int32
	label    string // for readers
	at       int    // position of the hole among the known tokens, from 1
	volatile bool
}

// Bounds of a forecast; what is beyond them is left out and said.
const (
	maxAsked  = 2000
	maxRounds = 100
	maxHole   = 1 << 20
)

func forecast(g *Graph, o ExplainOptions, known map[string]any, hi bool) (*forecaster, error) {
	f := &forecaster{g: g, o: o, hi: hi, nodes: map[string]*nodeTally{}, nextHole: -1}
	l := &line{vars: map[string]worth{}, limb: -1}
	for _, in := range g.Inputs {
		w := worth{volatile: true, count: -1}
		if v, ok := known[in.Name]; ok {
			w.known, w.value = true, v
		} else {
			w.tokens, w.open = f.unknownOf(in.Type)
			if w.open {
				f.note("input %s is not given: its length is not known", in.Name)
			}
		}
		l.vars[in.Name] = w
	}
	f.body(g.Body, l)
	if !f.trunkSeen {
		f.setTrunk(l, false)
	}
	return f, f.err
}

func (f *forecaster) note(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	for _, n := range f.notes {
		if n == s {
			return
		}
	}
	f.notes = append(f.notes, s)
}

// unknownOf returns the tokens of a value of which only the type is known.
func (f *forecaster) unknownOf(t Type) (tokens int, open bool) {
	switch t.Kind {
	case TypeBool:
		return 1, false
	case TypeInt, TypeFloat:
		if f.hi {
			return 8, false
		}
		return 1, false
	}
	return 0, true
}

func (f *forecaster) body(nodes []*Node, l *line) {
	for _, n := range nodes {
		if f.err != nil || l.ended {
			return
		}
		f.node(n, l)
	}
}

func (f *forecaster) node(n *Node, l *line) {
	switch n.Kind {
	case KindText:
		l.add(n.Text.Role, f.expand(n, n.Text.Content, l))
	case KindRole:
		l.turns = append(l.turns, fturn{role: n.Role.Role, open: true})
		f.body(n.Role.Body, l)
		if k := len(l.turns); k > 0 {
			l.turns[k-1].open = false
		}
	case KindGen:
		f.generate(n, l, Constraint{Regex: n.Gen.Regex, EBNF: n.Gen.EBNF}, n.Gen.MinTokens, n.Gen.MaxTokens)
	case KindJSON:
		f.generate(n, l, Constraint{Schema: n.JSON.Schema}, 0, n.JSON.MaxTokens)
	case KindSelect:
		f.choose(n, l)
	case KindFork:
		f.fork(n, l)
	case KindCall:
		if n.Name != "" {
			w := worth{volatile: true, count: -1}
			w.tokens, w.open = f.unknownOf(n.Call.Result)
			l.vars[n.Name] = w
		}
	case KindWhen:
		f.when(n, l)
	case KindRepeat:
		f.repeat(n, l)
	case KindForEach:
		f.forEach(n, l)
	case KindLet:
		l.vars[n.Name] = f.value(n.Let.Value, n.Let.Type, l)
	case KindReturn:
		l.ended = true
	}
}

// add appends parts: a turn of a role, or text to the open turn or raw text.
func (l *line) add(role string, parts []fpart) {
	k := len(l.turns)
	if role == "" && k > 0 && (l.turns[k-1].open || l.turns[k-1].role == "") {
		t := &l.turns[k-1]
		t.parts = append(t.parts[:len(t.parts):len(t.parts)], parts...)
		return
	}
	l.turns = append(l.turns, fturn{role: role, parts: parts})
}

// expand returns the parts of a text.
func (f *forecaster) expand(n *Node, t Template, l *line) []fpart {
	ps, err := t.pieces()
	if err != nil {
		return nil
	}
	var typs []Type
	if x, ok := f.g.compiled.templates.Load(t); ok {
		for _, p := range x.(*text).pieces {
			if p.ex != nil {
				typs = append(typs, p.typ)
			}
		}
	}
	var out []fpart
	exprs := 0
	for _, p := range ps {
		if p.ex == "" {
			out = append(out, fpart{text: p.text})
			continue
		}
		t := Type{Kind: TypeAny}
		if exprs < len(typs) {
			t = typs[exprs]
		}
		exprs++
		w := f.value(p.ex, t, l)
		if w.known {
			out = append(out, fpart{text: FormatValue(w.value, t), volatile: w.volatile})
			continue
		}
		if w.open {
			f.open = true
		}
		out = append(out, fpart{hole: f.holes(w.tokens), label: "${" + string(p.ex) + "}", volatile: true})
	}
	return out
}

func (f *forecaster) holes(n int) []int32 {
	ids := make([]int32, min(n, maxHole))
	for i := range ids {
		ids[i] = f.nextHole
		f.nextHole--
	}
	return ids
}

// value returns what is known of an expression.
func (f *forecaster) value(ex Expr, t Type, l *line) worth {
	w := worth{known: true, count: -1}
	reads := f.reads(ex)
	for _, name := range reads {
		v, ok := l.vars[name]
		w.known = w.known && ok && v.known
		w.volatile = w.volatile || v.volatile
	}
	if w.known {
		vars := make(map[string]any, len(reads))
		for _, name := range reads {
			vars[name] = l.vars[name].value
		}
		if v, err := f.g.Eval(ex, vars); err == nil {
			w.value = v
			return w
		}
		w.known = false
	}
	w.volatile = true
	if len(reads) == 1 && string(ex) == reads[0] {
		return l.vars[reads[0]]
	}
	switch t.Kind {
	case TypeBool, TypeInt, TypeFloat:
		w.tokens, _ = f.unknownOf(t)
		return w
	}
	// A text made of some variables is about as long as they are together; at
	// the low end only a join has to hold them all.
	whole := f.hi || strings.HasPrefix(string(ex), "join(")
	for _, name := range reads {
		v := l.vars[name]
		if v.known {
			if whole {
				w.tokens += lengthOf(FormatValue(v.value, Type{}))
			}
			continue
		}
		if whole {
			w.tokens += v.tokens + max(0, v.count-1)
		}
		w.open = w.open || v.open
	}
	return w
}

func (f *forecaster) reads(ex Expr) []string {
	if p, ok := f.g.compiled.exprs.Load(ex); ok {
		return p.(*program).reads
	}
	p, err := compileExpr(ex)
	if err != nil {
		return nil
	}
	f.g.compiled.exprs.Store(ex, p)
	return p.reads
}

// items returns how many elements a list has and those that are known.
func (f *forecaster) items(what string, n *Node, ex Expr, l *line) (int, []worth) {
	w := f.value(ex, Type{Kind: TypeList}, l)
	if list, ok := w.value.([]any); w.known && ok {
		out := make([]worth, len(list))
		for i, v := range list {
			out[i] = worth{known: true, value: v, volatile: w.volatile, count: -1}
		}
		return len(out), out
	}
	if w.count >= 0 {
		return w.count, nil
	}
	f.open = true
	f.note("%s: how many items %s has is not known: counted as %s", n.ID, clip(string(ex), 40), map[bool]string{true: "one or more", false: "none or more"}[f.hi])
	if f.hi {
		return 1, nil
	}
	return 0, nil
}

func (f *forecaster) when(n *Node, l *line) {
	w := f.value(n.When.If, Type{Kind: TypeBool}, l)
	if yes, ok := w.value.(bool); w.known && ok {
		if yes {
			f.body(n.When.Then, l)
		} else {
			f.body(n.When.Else, l)
		}
		return
	}
	// Neither is known to happen: take the cheaper or the dearer.
	a, b := f.clone(), f.clone()
	la, lb := l.clone(), l.clone()
	a.body(n.When.Then, la)
	b.body(n.When.Else, lb)
	if (a.total.computed >= b.total.computed) == f.hi {
		*f, *l = *a, *la
	} else {
		*f, *l = *b, *lb
	}
}

func (f *forecaster) clone() *forecaster {
	g := *f
	g.nodes = make(map[string]*nodeTally, len(f.nodes))
	for k, v := range f.nodes {
		c := *v
		g.nodes[k] = &c
	}
	g.limbs = append([]limb(nil), f.limbs...)
	g.notes = append([]string(nil), f.notes...)
	return &g
}

func (l *line) clone() *line {
	c := *l
	c.vars = make(map[string]worth, len(l.vars))
	for k, v := range l.vars {
		c.vars[k] = v
	}
	c.turns = append([]fturn(nil), l.turns...)
	c.done = append([][]int32(nil), l.done...)
	return &c
}

func (f *forecaster) repeat(n *Node, l *line) {
	r := n.Repeat
	rounds := r.Max
	if r.Until != "" && !f.hi {
		rounds = 1
	}
	for i := 0; i < rounds && !l.ended && f.err == nil; i++ {
		if i == maxRounds {
			f.open = true
			f.note("%s: only %d of %d rounds are counted", n.ID, maxRounds, rounds)
			break
		}
		if r.Index != "" {
			l.vars[r.Index] = worth{known: true, value: i, count: -1}
		}
		f.body(r.Body, l)
		if r.Until != "" {
			w := f.value(r.Until, Type{Kind: TypeBool}, l)
			if yes, ok := w.value.(bool); w.known && ok {
				if yes {
					break
				}
				rounds = r.Max
			}
		}
	}
	delete(l.vars, r.Index)
}

func (f *forecaster) forEach(n *Node, l *line) {
	count, items := f.items("foreach", n, n.ForEach.Over, l)
	out := worth{count: count, volatile: true}
	for i := 0; i < count && !l.ended && f.err == nil; i++ {
		if i == maxRounds {
			f.open = true
			f.note("%s: only %d of %d items are counted", n.ID, maxRounds, count)
			break
		}
		l.vars[n.ForEach.As] = item(items, i)
		f.body(n.ForEach.Body, l)
		f.gather(&out, n.ForEach.Yield, l)
	}
	delete(l.vars, n.ForEach.As)
	l.vars[n.Name] = out
}

// gather adds what a branch or round yields to its list.
func (f *forecaster) gather(out *worth, yield Expr, l *line) {
	if yield == "" {
		return
	}
	w := f.value(yield, Type{Kind: TypeAny}, l)
	if w.known {
		w.tokens = lengthOf(FormatValue(w.value, Type{}))
	}
	out.tokens += w.tokens
	out.open = out.open || w.open
}

func item(items []worth, i int) worth {
	if i < len(items) {
		return items[i]
	}
	return worth{volatile: true, open: true, count: -1}
}

func (f *forecaster) fork(n *Node, l *line) {
	fk := n.Fork
	if !f.trunkSeen {
		f.setTrunk(l, false)
	}
	id := n.ID
	if l.id != "" {
		id = l.id + "/" + n.Name
	}
	var count int
	var items []worth
	switch {
	case len(fk.Arms) > 0:
		count = len(fk.Arms)
	case fk.Over != "":
		count, items = f.items("fork", n, fk.Over, l)
	default:
		count = len(fk.Items)
		for _, s := range fk.Items {
			items = append(items, worth{known: true, value: s, count: -1})
		}
	}
	out := worth{count: count, volatile: true}
	var siblings [][]int32
	for i := 0; i < count && f.err == nil; i++ {
		c := l.clone()
		c.done = append(c.done, siblings...)
		c.limb = len(f.limbs)
		lb := limb{fork: n.ID}
		yield := fk.Yield
		if len(fk.Arms) > 0 {
			lb.id, lb.label, yield = id+"/"+fk.Arms[i].Name, fk.Arms[i].Name, fk.Arms[i].Yield
		} else {
			lb.id = id + "[" + strconv.Itoa(i) + "]"
			if i < len(items) {
				lb.label = FormatValue(items[i].value, Type{})
			}
		}
		c.id = lb.id
		f.limbs = append(f.limbs, lb)
		before := f.total.computed
		known := len(c.done)
		if len(fk.Arms) > 0 {
			f.body(fk.Arms[i].Body, c)
		} else {
			c.vars[fk.As] = item(items, i)
			f.body(fk.Body, c)
		}
		f.limbs[c.limb].own = f.total.computed - before
		f.gather(&out, yield, c)
		if len(c.done) > known && len(siblings) < 16 {
			siblings = append(siblings, c.done[known]) // its first request
		}
	}
	l.done = append(l.done, siblings...)
	switch fk.Join.Kind {
	case "first":
		out.count = 1
	case "quorum":
		out.count = fk.Join.N
	}
	l.vars[n.Name] = out
}

// setTrunk notes the context that all branches share.
func (f *forecaster) setTrunk(l *line, opening bool) {
	f.trunkSeen = true
	ids := f.prompt(l, opening)
	f.trunk = len(ids)
	f.trunkOpen = f.open
	var b strings.Builder
	stable := &line{}
	volatile := false
	for i, t := range l.turns {
		if i > 0 {
			b.WriteString("\n")
		}
		if t.role != "" {
			b.WriteString("[" + t.role + "] ")
		}
		if !volatile {
			stable.turns = append(stable.turns, fturn{role: t.role, open: t.open})
		}
		for _, p := range t.parts {
			b.WriteString(p.text + p.label)
			if p.volatile && !volatile {
				volatile = true
				stable.turns[i].open = true
			}
			if !volatile {
				s := &stable.turns[i]
				s.parts = append(s.parts, p)
			}
		}
	}
	f.trunkText = b.String()
	f.stable = min(len(f.prompt(stable, false)), f.trunk)
}

// prompt returns the tokens of the context, with the opening of an assistant
// turn where a generation would begin one.
func (f *forecaster) prompt(l *line, generate bool) []int32 {
	turns := make([]Turn, len(l.turns))
	for i, t := range l.turns {
		var b strings.Builder
		for _, p := range t.parts {
			b.WriteString(p.text)
		}
		turns[i] = Turn{Role: t.role, Text: b.String(), Open: t.open && i == len(l.turns)-1}
	}
	if k := len(turns); k > 0 && (turns[k-1].Open || turns[k-1].Role == "") {
		generate = false
	}
	ids, err := f.o.Estimator.Tokenize(turns, generate)
	if err != nil {
		f.fail(err)
		return nil
	}
	out := make([]int32, 0, len(ids)+64)
	from := 0
	for i := range l.turns {
		text := ""
		parts := l.turns[i].parts
		for j := range parts {
			p := &parts[j]
			text += p.text
			if p.hole == nil {
				continue
			}
			if p.at == 0 {
				head := append(append([]Turn(nil), turns[:i]...), Turn{Role: turns[i].Role, Text: text, Open: true})
				known, err := f.o.Estimator.Tokenize(head, false)
				if err != nil {
					f.fail(err)
					return nil
				}
				p.at = 1 + common(known, ids)
			}
			to := min(max(from, p.at-1), len(ids))
			out = append(append(out, ids[from:to]...), p.hole...)
			from = to
		}
	}
	return append(out, ids[from:]...)
}

func (f *forecaster) fail(err error) {
	if f.err == nil {
		f.err = fmt.Errorf("counting tokens: %w", err)
	}
}

func common(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// ask counts the prompt of a request and returns it with its tally.
func (f *forecaster) ask(n *Node, l *line) ([]int32, *tally, bool) {
	if f.asked++; f.asked > maxAsked {
		f.open = true
		f.note("only the first %d requests are counted", maxAsked)
		return nil, nil, false
	}
	if !f.trunkSeen && !f.hasFork() {
		f.setTrunk(l, true)
	}
	ids := f.prompt(l, true)
	hit := 0
	for _, d := range l.done {
		hit = max(hit, common(d, ids))
	}
	u := &tally{prompt: len(ids)}
	if len(ids) > 0 {
		u.cached = min(hit, len(ids)-1)
	}
	u.computed = len(ids) - u.cached
	u.without = len(ids)
	if l.limb >= 0 && !f.limbs[l.limb].asked {
		f.limbs[l.limb].asked = true
		f.limbs[l.limb].shared = u.cached
	}
	return ids, u, true
}

func (f *forecaster) hasFork() bool {
	found := false
	f.g.Walk(func(n *Node) bool {
		found = found || n.Kind == KindFork
		return !found
	})
	return found
}

// count books a request and what it appended.
func (f *forecaster) count(n *Node, l *line, ids []int32, u *tally, made int, shape string) {
	f.total.add(*u)
	t := f.nodes[n.ID]
	if t == nil {
		t = &nodeTally{shape: shape}
		f.nodes[n.ID] = t
	}
	t.times++
	t.add(*u)
	if size := len(ids) + made; size > f.longest {
		f.longest, f.longestAt = size, n
	}
	hole := f.holes(made)
	l.done = append(l.done, append(ids[:len(ids):len(ids)], hole...))
	part := fpart{hole: hole, label: "${" + n.Name + "}", volatile: true}
	if k := len(l.turns); k > 0 && (l.turns[k-1].open || l.turns[k-1].role == "") {
		l.add("", []fpart{part})
	} else {
		l.add("assistant", []fpart{part})
	}
	l.vars[n.Name] = worth{tokens: made, volatile: true, count: -1}
}

func (f *forecaster) generate(n *Node, l *line, c Constraint, least, most int) {
	shape := Shape{Tokens: Range{Open: true}}
	if len(c.Schema) > 0 || c.Regex != "" || c.EBNF != "" {
		var err error
		if shape, err = f.o.Estimator.Constrained(c); err != nil {
			f.note("%s: %v", n.ID, err)
			shape = Shape{Tokens: Range{Open: true}, Forced: Range{Open: true}}
		}
	}
	ids, u, ok := f.ask(n, l)
	if !ok {
		return
	}
	lo, hi := max(least, shape.Tokens.Min), shape.Tokens.Max
	bound := !shape.Tokens.Open
	if most > 0 && (!bound || most < hi) {
		hi, bound = most, true
	}
	if room := f.o.Context - len(ids); !bound && room > 0 {
		hi, bound = room, true
	}
	made := lo
	if bound {
		lo = min(lo, hi)
		made = lo
	}
	if f.hi && bound {
		made = hi
	}
	if f.hi && !bound {
		f.open = true
		f.note("%s has no bound: give it max_tokens", n.ID)
	}
	u.forced = min(shape.Forced.Min, made)
	u.sampled = made - u.forced
	if f.hi && !shape.Forced.Open {
		u.forced = min(max(shape.Forced.Max, u.forced), made)
	} else if f.hi && shape.Forced.Open {
		u.forced = made // any of it may be forced
	}
	u.computed += made
	u.without += made
	u.passes = made + 1
	f.count(n, l, ids, u, made, shape.Text)
}

func (f *forecaster) choose(n *Node, l *line) {
	options := n.Select.Options
	if n.Select.From != "" {
		w := f.value(n.Select.From, Type{Kind: TypeList}, l)
		if list, ok := w.value.([]any); ok && w.known {
			options = nil
			for _, v := range list {
				options = append(options, FormatValue(v, Type{}))
			}
		} else {
			f.open = true
			f.note("%s: its options are not known", n.ID)
		}
	}
	ids, u, ok := f.ask(n, l)
	if !ok {
		return
	}
	options = append([]string(nil), options...)
	sort.Strings(options)
	least, most := 0, 0
	var before []int32
	for i, s := range options {
		t, err := f.o.Estimator.Tokenize([]Turn{{Text: s}}, false)
		if err != nil {
			f.fail(err)
			return
		}
		if i == 0 || len(t) < least {
			least = len(t)
		}
		most = max(most, len(t))
		u.computed += len(t) - common(before, t)
		u.without += len(t)
		if i > 0 {
			u.without += len(ids)
		}
		before = t
	}
	u.passes = max(1, len(options))
	made := least
	if f.hi {
		made = most
	}
	f.count(n, l, ids, u, made, "")
}
