package lang

import (
	"fmt"
	"slices"
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
	open  unbounded
	asked int
	steps *int // nodes visited, in all clones together

	trunk, stable int
	trunkText     string
	trunkOpen     bool
	trunkSeen     bool

	longest   int // tokens of the longest context, its generation included
	longestAt *Node
	nextHole  int32
}

// unbounded says what has no upper bound.
type unbounded struct {
	texts  bool // lengths of texts of the program
	rounds bool // how often something is asked
	made   bool // lengths of generated texts
}

// tally is a usage, counted.
type tally struct {
	prompt, computed, cached, forced, sampled int
	without, passes                           int
	// luck is how much more may be cached, and need not be computed, if what others ask
	// at the same time happens to come first.
	luck int
}

func (t *tally) add(u tally) {
	t.prompt += u.prompt
	t.computed += u.computed
	t.cached += u.cached
	t.forced += u.forced
	t.sampled += u.sampled
	t.without += u.without
	t.passes += u.passes
	t.luck += u.luck
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
	// parts are what the text is made of, if that is known better than its length.
	parts []fpart
	elems []worth // of a list
}

// line is one line of execution: variables, context, and what the cache holds
// of it.
type line struct {
	vars  map[string]worth
	turns []fturn
	done  [][]int32 // sequences that are computed by now, none the beginning of the next
	first []int32   // of its first request
	apart bool      // which is that of a fork or program in it
	maybe [][]int32 // sequences that others compute at about the same time
	// The first requests of branches that begin with this line. Its own first request is
	// in a batch with them; those of forks and programs in it come when they come.
	beside [][]int32
	// A node inside of the fork, arm or round whose path is in has the instance id
	// of that with the rest of its own path behind.
	in, id string
	limb   int // index of its limb, -1 on the trunk
	ended  bool

	frail  bool  // its end by an error ends a branch, and not the run
	inner  bool  // of a program that a step runs
	result worth // what that program returns
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
	maxSeqs   = 32        // sequences that a line looks for prefixes in
	maxCount  = 5_000_000 // tokens of all prompts
	maxVisits = 100_000
	maxRounds = 100
	maxHole   = 1 << 20
)

func forecast(g *Graph, o ExplainOptions, known map[string]any, hi bool) (*forecaster, error) {
	f := &forecaster{g: g, o: o, hi: hi, nodes: map[string]*nodeTally{}, nextHole: -1, steps: new(int)}
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
		if *f.steps++; *f.steps > maxVisits {
			f.open.rounds = true
			f.note("only the first %d steps are counted", maxVisits)
			return
		}
		f.node(n, l)
		if l.frail && !f.hi && mayFail(n) {
			l.ended = true
		}
	}
}

// going reports whether another round or branch is worth a look.
func (f *forecaster) going() bool { return f.err == nil && *f.steps <= maxVisits }

func (f *forecaster) node(n *Node, l *line) {
	switch n.Kind {
	case KindText:
		l.add(n.Text.Role, f.expand(n, n.Text.Content, l))
	case KindImage:
		f.open.texts = true
		f.note("%s: how many tokens a picture has is up to the model", n.ID)
		l.add("", []fpart{{hole: f.holes(1), label: "[image]"}})
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
	case KindWait:
		w := worth{volatile: true, count: -1}
		w.tokens, w.open = f.unknownOf(n.Wait.Type)
		l.vars[n.Name] = w
	case KindRun:
		f.program(n, l)
	case KindWhen:
		f.when(n, l)
	case KindRepeat:
		f.repeat(n, l)
	case KindForEach:
		f.forEach(n, l)
	case KindLet:
		l.vars[n.Name] = f.value(n.Let.Value, n.Let.Type, l)
	case KindReturn:
		if l.inner {
			l.result = f.value(n.Return.Value, f.g.Output, l)
		}
		l.ended = true
	}
}

// instance returns the instance id of a node: its path with the branches and
// rounds that the line is in.
func (l *line) instance(n *Node) string { return l.id + strings.TrimPrefix(n.ID, l.in) }

// leave puts a line back to where it was before a loop.
func (l *line) leave(in, id string) { l.in, l.id = in, id }

// computed notes a sequence that the cache holds from now on.
func (l *line) computed(ids []int32) {
	if k := len(l.done); k > 0 && common(l.done[k-1], ids) == len(l.done[k-1]) {
		l.done[k-1] = ids
		return
	}
	if len(l.done) == maxSeqs {
		l.done = append(l.done[:0:0], l.done[1:]...)
	}
	l.done = append(l.done, ids)
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

// program forecasts a program that a step runs: in a context of its own, but with
// the cache that is there.
func (f *forecaster) program(n *Node, l *line) {
	g := n.Run.graph
	done, maybe := l.around()
	in := &line{vars: map[string]worth{}, done: done, maybe: maybe, limb: l.limb, in: n.ID, id: l.instance(n), inner: true, frail: l.frail}
	in.result = worth{known: true, count: -1}
	for i := range g.Inputs {
		input := &g.Inputs[i]
		w := worth{count: -1}
		if k := slices.IndexFunc(n.Run.With, func(a Arg) bool { return a.Name == input.Name }); k >= 0 {
			w = f.value(n.Run.With[k].Value, input.Type, l)
		} else if v, err := DecodeValue(input.Default); err == nil {
			w.value, w.known = v, true
		}
		in.vars[input.Name] = w
	}
	outer := f.g
	f.g = g
	if g.Budget == (Budget{}) || !l.frail || f.hi { // else it may end at once
		f.body(g.Body, in)
	}
	f.g = outer
	l.done = in.done
	if l.first == nil {
		l.first, l.apart = in.first, true
	}
	if n.Name != "" {
		l.vars[n.Name] = in.result
	}
}

// around returns what is computed, and what may be, for a line that begins inside of l.
func (l *line) around() (done, maybe [][]int32) {
	if l.first == nil || l.apart {
		return slices.Clone(l.done), slices.Concat(l.maybe, l.beside)
	}
	return slices.Concat(l.done, l.beside), slices.Clone(l.maybe)
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
	id := l.instance(n)
	defer l.leave(l.in, l.id)
	if r.Until != "" && !f.hi {
		rounds = 1
	}
	for i := 0; i < rounds && !l.ended && f.going(); i++ {
		if i == maxRounds {
			f.open.rounds = true
			f.note("%s: only %d of %d rounds are counted", n.ID, maxRounds, rounds)
			break
		}
		if r.Index != "" {
			l.vars[r.Index] = worth{known: true, value: i, count: -1}
		}
		l.in, l.id = n.ID, id+"["+strconv.Itoa(i)+"]"
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
	count, items := f.items(n, n.ForEach.Over, l)
	out := worth{count: count, volatile: true}
	id := l.instance(n)
	defer l.leave(l.in, l.id)
	for i := 0; i < count && !l.ended && f.going(); i++ {
		if i == maxRounds {
			f.open.rounds = true
			f.note("%s: only %d of %d items are counted", n.ID, maxRounds, count)
			break
		}
		l.vars[n.ForEach.As] = item(items, i)
		l.in, l.id = n.ID, id+"["+strconv.Itoa(i)+"]"
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
		text := FormatValue(w.value, Type{})
		w = worth{tokens: f.length(text), parts: []fpart{{text: text, volatile: w.volatile}}, count: -1}
	}
	out.tokens += w.tokens
	out.open = out.open || w.open
	out.elems = append(out.elems, w)
}

func item(items []worth, i int) worth {
	if i < len(items) {
		return items[i]
	}
	return worth{volatile: true, open: true, count: -1}
}

func (f *forecaster) fork(n *Node, l *line) {
	fk := n.Fork
	if !f.trunkSeen && !l.inner {
		f.setTrunk(l, false)
	}
	id := l.instance(n)
	var count int
	var items []worth
	switch {
	case len(fk.Arms) > 0:
		count = len(fk.Arms)
	case fk.Over != "":
		count, items = f.items(n, fk.Over, l)
	default:
		count = len(fk.Items)
		for _, s := range fk.Items {
			items = append(items, worth{known: true, value: s, count: -1})
		}
	}
	out := worth{count: count, volatile: true}
	var siblings, cousins [][]int32
	tolerant := fk.Join.Kind != "" && fk.Join.Kind != "all"
	few := f.fewest(n, l, count)
	for i := 0; i < count && f.going(); i++ {
		c := l.clone()
		c.frail = c.frail || tolerant
		c.done, c.maybe = l.around()
		c.beside = siblings[:len(siblings):len(siblings)]
		c.maybe = append(c.maybe, cousins...)
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
		if c.in, c.id = n.ID, lb.id; len(fk.Arms) > 0 {
			c.id = id // the arm's name is in the paths
		}
		f.limbs = append(f.limbs, lb)
		few.begin(f)
		before := f.total.computed
		c.first, c.apart = nil, false
		if len(fk.Arms) > 0 {
			f.body(fk.Arms[i].Body, c)
		} else {
			c.vars[fk.As] = item(items, i)
			f.body(fk.Body, c)
		}
		f.limbs[c.limb].own = f.total.computed - before
		few.end(f)
		f.gather(&out, yield, c)
		switch {
		case c.first == nil || len(siblings)+len(cousins) >= maxSeqs/2:
		case c.apart:
			cousins = append(cousins, c.first)
		default:
			siblings = append(siblings, c.first)
		}
	}
	few.settle(f)
	for _, s := range slices.Concat(siblings, cousins) {
		l.computed(s)
		if l.first == nil {
			l.first, l.apart = s, true
		}
	}
	switch fk.Join.Kind {
	case "first":
		out.count = 1
	case "quorum":
		out.count = fk.Join.N
	}
	if len(out.elems) > out.count {
		out.elems = out.elems[:out.count]
	}
	l.vars[n.Name] = out
	if fk.Errors != "" { // texts that are empty if all goes well
		l.vars[fk.Errors] = worth{count: count, volatile: true, open: f.hi}
	}
}
