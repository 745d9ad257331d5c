package lang

import (
	"fmt"
	"slices"
	"strings"
)

// setTrunk notes the context that all branches share.
func (f *forecaster) setTrunk(l *line, opening bool) {
	f.trunkSeen = true
	ids := f.prompt(l, opening)
	f.trunk = len(ids)
	f.trunkOpen = f.open.texts || f.open.rounds || f.open.made
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

// waitsFor is how many tokens an engine waits for that another request is about to
// compute, if the two are not siblings.
const waitsFor = 16

// alike is how many tokens of b may be those of a, if texts that are not known are the
// same where they stand at the same place.
func alike(a, b []int32) int {
	i, n := 0, 0
	for i < len(a) && n < len(b) {
		switch {
		case a[i] == b[n]:
			i, n = i+1, n+1
		case a[i] < 0 && b[n] < 0:
			for i < len(a) && a[i] < 0 {
				i++
			}
			for n < len(b) && b[n] < 0 {
				n++
			}
		default:
			return n
		}
	}
	return n
}

// ask counts the prompt of a request and returns it with its tally.
func (f *forecaster) ask(n *Node, l *line) ([]int32, *tally, bool) {
	if f.asked == maxAsked || f.total.prompt > maxCount {
		f.open.rounds = true
		f.note("only the first %d requests are counted", f.asked)
		return nil, nil, false
	}
	f.asked++
	if !f.trunkSeen && !l.inner && !f.hasFork() {
		f.setTrunk(l, true)
	}
	ids := f.prompt(l, true)
	hit := 0
	for _, d := range slices.Concat(l.done, l.beside) {
		hit = max(hit, common(d, ids))
	}
	near := hit
	for _, d := range l.maybe {
		near = max(near, common(d, ids))
	}
	if near-hit >= waitsFor {
		hit = near
	}
	luck := near
	for _, d := range slices.Concat(l.done, l.beside, l.maybe) {
		luck = max(luck, alike(d, ids))
	}
	u := &tally{prompt: len(ids)}
	if len(ids) > 0 {
		u.cached = min(hit, len(ids)-1)
		u.luck = min(luck, len(ids)-1) - u.cached
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
		return !found && n.Run == nil
	})
	return found
}

// closed reports whether what a model writes next is a turn of its own.
func (l *line) closed() bool {
	k := len(l.turns)
	return k == 0 || !l.turns[k-1].open && l.turns[k-1].role != ""
}

// count books a request and what it appended: made tokens, of which the cache has the
// first fed from now on, and the prompt; nothing if fed is less than 0.
func (f *forecaster) count(n *Node, l *line, ids []int32, u *tally, made, fed int, shape string) {
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
	if fed >= 0 {
		seq := append(ids[:len(ids):len(ids)], hole[:min(fed, len(hole))]...)
		l.computed(seq)
		if l.first == nil {
			l.first = seq
		}
	}
	part := fpart{hole: hole, label: "${" + n.Name + "}", volatile: true}
	if l.closed() {
		l.add("assistant", []fpart{part})
	} else {
		l.add("", []fpart{part})
	}
	l.vars[n.Name] = worth{tokens: made, volatile: true, count: -1, parts: []fpart{part}}
	if name := n.Logprobs(); name != "" {
		l.vars[name] = worth{count: made, volatile: true, open: f.hi}
	}
}

// cutReason is what is said of an answer that ends too soon.
const cutReason = "cut at the length limit inside the JSON value (max_tokens %d, %d bytes came): raise the limit or ask for less"

// generate counts a gen or json. At the upper end each of its tries but the last
// is refused.
func (f *forecaster) generate(n *Node, l *line, c Constraint, least, most int) {
	checks, tries := n.Checks()
	if !f.hi || tries == 1 || l.raw() && f.greedy(n) {
		f.generateOnce(n, l, c, least, most)
		return
	}
	reason := ""
	if most > 0 && (len(c.Schema) > 0 || c.Regex != "" || c.EBNF != "") {
		reason = fmt.Sprintf(cutReason, most, 10*most)
	}
	for _, k := range checks {
		if len(k.Reason()) > len(reason) {
			reason = k.Reason()
		}
		if k.Func != "" {
			f.open.texts = true
			f.note("%s: what the function %s says is not known", n.ID, k.Func)
		}
	}
	at := l.clone()
	for k := 1; k <= tries && f.going(); k++ {
		f.generateOnce(n, at, c, least, most)
		if k == tries || l.raw() {
			continue
		}
		if !l.closed() {
			at.turns[len(at.turns)-1].open = false
		}
		at.add("user", []fpart{{text: RefusalText(reason), volatile: true}})
		if !l.closed() {
			open := l.turns[len(l.turns)-1]
			open.parts = append([]fpart(nil), open.parts...)
			for i := range open.parts {
				open.parts[i].at = 0 // elsewhere among the known tokens
			}
			at.turns = append(at.turns, open)
		}
	}
	l.done, l.first = at.done, at.first
	w, ok := at.vars[n.Name]
	if !ok {
		return // not counted
	}
	w.parts = append([]fpart(nil), w.parts...)
	for i := range w.parts {
		w.parts[i].at = 0
	}
	l.vars[n.Name] = w
	if l.closed() {
		l.add("assistant", w.parts)
	} else {
		l.add("", w.parts)
	}
}

// greedy reports whether a node draws the same text each time.
func (f *forecaster) greedy(n *Node) bool {
	if n.Gen != nil {
		return n.Gen.Sampling.Temperature == 0
	}
	return n.JSON.Sampling.Temperature == 0
}

// raw reports whether the line ends in text without turns.
func (l *line) raw() bool {
	k := len(l.turns)
	return k > 0 && !l.turns[k-1].open && l.turns[k-1].role == ""
}

func (f *forecaster) generateOnce(n *Node, l *line, c Constraint, least, most int) {
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
	made := lo
	if bound {
		lo = min(lo, hi)
		made = lo
	}
	if f.hi && bound {
		made = hi
	}
	if f.hi && !bound {
		f.open.made = true
		f.note("%s has no bound: give it max_tokens", n.ID)
	}
	u.forced = min(shape.Forced.Min, made)
	u.sampled = made - u.forced
	if f.hi && !shape.Forced.Open {
		u.forced = min(max(shape.Forced.Max, u.forced), made)
	} else if f.hi && shape.Forced.Open {
		u.forced = made // any of it may be forced
	}
	// A text that ends by its limit or with its grammar ends with its last token,
	// which is fed to the model no more; otherwise one more draw says that it ends.
	fed := made
	u.passes = made
	if made > 0 && (made == most || len(c.Schema) > 0 || c.Regex != "" || c.EBNF != "") {
		fed--
	} else {
		u.passes++
	}
	u.computed += fed
	u.without += max(u.passes-1, 0)
	if all := shape.Tokens; made > 0 && u.forced == made && !all.Open && all.Min == all.Max {
		u.computed, u.cached, u.luck, fed = 0, 0, 0, -1 // the model is not asked at all
	}
	f.count(n, l, ids, u, made, fed, shape.Text)
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
			f.open.made = true
			f.note("%s: its options are not known", n.ID)
		}
	}
	ids, u, ok := f.ask(n, l)
	if !ok {
		return
	}
	method := n.Select.Method
	closed := l.closed() && (method == "" || method == Exact)
	if f.hi && method == Exact {
		f.open.made = true
		f.note("%s: in how many ways its options can be written is not known", n.ID)
	}
	least, most, alone := 0, 0, 0
	var tokens [][]int32
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
		u.without += len(t)
		if closed { // the end of the turn is scored too
			t = append(t[:len(t):len(t)], -1)
		} else {
			u.without-- // nothing is asked after the last token
		}
		tokens = append(tokens, t)
		if method == UnconditionalLikelihoodNormalized && len(t) > 1 { // once more, alone
			u.computed += len(t) - 1
			u.without += len(t) - 1
			alone++
		}
		if i > 0 {
			u.without += len(ids)
		}
	}
	u.computed += fedOptions(tokens, 0)
	u.computed = max(u.computed, u.prompt-u.cached)
	u.passes = max(1, len(options)+alone)
	made := least
	if f.hi {
		made = most
	}
	fed := made
	if !closed {
		fed--
	}
	f.count(n, l, ids, u, made, max(fed, 0), "")
	if s := n.Select.Shares; s != "" {
		l.vars[s] = worth{count: len(options), volatile: true, open: f.hi}
	}
}

// fedOptions is how many tokens a select feeds for options that agree on their first
// depth tokens: each but the last of an option once, and once for several options that
// begin alike if that saves a pass's worth.
func fedOptions(options [][]int32, depth int) (fed int) {
	const worth = 16
	for len(options) > 0 {
		next := options[0]
		part, rest := options[:1:1], [][]int32(nil)
		shared := len(next)
		for _, t := range options[1:] {
			k := 0
			if len(next) > depth && len(t) > depth {
				k = common(next[depth:], t[depth:])
			}
			if k == 0 {
				rest = append(rest, t)
				continue
			}
			part = append(part, t)
			shared = min(shared, depth+k)
		}
		options = rest
		if len(part) > 1 && (shared-depth)*(len(part)-1) >= worth {
			fed += shared - depth + fedOptions(part, shared)
			continue
		}
		for _, t := range part {
			fed += max(0, len(t)-1-depth)
		}
	}
	return fed
}
