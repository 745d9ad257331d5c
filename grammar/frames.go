package grammar

import (
	"encoding/binary"
	"math"
	"slices"
)

// A frame is the place inside one container: which members were written and
// what may come next. Frames are interned; a stack of them, innermost first,
// is the nesting of the text written so far.
type frameID int32

type frameKind uint8

const (
	frObject frameKind = iota
	frArray
	frColon  // after a key, before its colon
	frRecord // inside an item or a name whose text must be remembered
	frRule   // inside a rule of an EBNF grammar
)

type frame struct {
	kind    frameKind
	started bool   // a member was written
	node    int32  // object, array, colon action or rule item
	pos     int32  // next name in order; items written
	cnt     int32  // properties written, where they must be counted
	duties  uint32 // duties fulfilled
	set     int32  // interned: names or values seen, tallies
	free    int32  // interned: free names written, where none may come twice
	depth   int32  // nesting, where white space depends on it
}

// actID says what happens when a lexeme is complete.
type actID int32

type actKind uint8

const (
	actPop    actKind = iota // the value is complete
	actGo                    // go on in a frame
	actPush                  // begin a value inside a frame
	actBegin                 // begin a value in place of another
	actChoice                // a name was written: its label tells which
	actMany                  // all of list
)

type action struct {
	kind  actKind
	frame frameID
	val   *valueNode
	list  []actID
	rec   int32 // of a push, if not 0: remember the text of the value, number rec-1 of its kind
}

// item is a lexeme that may be written and what follows it.
type item struct {
	node nodeID
	act  actID
}

// writer turns the nodes of a compiled grammar into frames and items, as they
// are needed.
type writer struct {
	*pool
	anyOrder bool
	ws       Whitespace
	objects  []*objectNode
	arrays   []*arrayNode
	plans    []*objectPlan
	ledgers  []*ledger // of arrays
	valueIDs int32
	others   map[otherKey]*valueNode // values less some texts
	ropes    map[ropeKey]int32       // texts under way
	ropeList []ropeKey

	conts    []continuation
	contIDs  map[contKey]int32
	repExprs map[repKey]*expr

	labels   map[int32]int32 // see labelled
	frames   []frame
	frameIDs steadyMap[frame, frameID]
	frameLex [][]item // per frame, nil: not computed
	frameRep []frameID
	acts     []action
	actIDs   steadyMap[actKey, actID]
	sets     []string
	setIDs   steadyMap[string, int32]
	starts   [][]item // per value id
	span     int      // bytes of the longest token: what one token can see
}

type actKey struct {
	kind  actKind
	frame frameID
	val   int32
	list  string
	rec   int32
}

// objectPlan is what is known of an object for all its frames.
type objectPlan struct {
	sorted   []int32   // names by text
	nextReq  []int32   // [i]: first required name at or after i, len(names) if none
	required []int32   // [i]: required names at or after i
	tails    [][]int32 // per name: leaves of its rest from each byte on
	suffix   string    // what is written after a name
	tries    map[string]int32
	costs    map[int32]restCosts // of what may follow a place or, in any order, a set of names
	free     []*valueNode        // the names of each cell, with their closing quotes
}

func (w *writer) init() {
	w.setID("")
	w.act(action{kind: actPop})
	w.plans = make([]*objectPlan, len(w.objects))
	w.ledgers = make([]*ledger, len(w.arrays))
}

func (w *writer) frameID(f frame) frameID {
	if id, ok := w.frameIDs.get(f); ok {
		return id
	}
	w.frames = append(w.frames, f)
	w.frameLex = append(w.frameLex, nil)
	w.frameRep = append(w.frameRep, -1)
	id := frameID(len(w.frames) - 1)
	w.frameIDs.put(f, id)
	return id
}

func (w *writer) act(a action) actID {
	k := actKey{kind: a.kind, frame: a.frame, val: -1, rec: a.rec}
	if a.val != nil {
		k.val = a.val.id
	}
	if len(a.list) > 0 {
		if len(a.list) == 1 {
			return a.list[0]
		}
		b := make([]byte, 0, 4*len(a.list))
		for _, x := range a.list {
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
		}
		k.list = string(b)
	}
	if id, ok := w.actIDs.get(k); ok {
		return id
	}
	w.acts = append(w.acts, a)
	id := actID(len(w.acts) - 1)
	w.actIDs.put(k, id)
	return id
}

func (w *writer) setID(s string) int32 {
	if id, ok := w.setIDs.get(s); ok {
		return id
	}
	w.sets = append(w.sets, s)
	id := int32(len(w.sets) - 1)
	w.setIDs.put(s, id)
	return id
}

// start is the lexemes that a value begins with, at a nesting depth.
func (w *writer) start(v *valueNode, depth int32) []item {
	if w.ws.Indent == 0 {
		depth = 0
		for int(v.id) >= len(w.starts) {
			w.starts = append(w.starts, nil)
		}
		if s := w.starts[v.id]; s != nil {
			return s
		}
	}
	var out []item
	if v.rule != nil {
		out = w.expand(out, v.rule, 0)
	}
	if v.scalar != rxEmpty {
		out = append(out, item{v.scalar, 0})
	}
	for _, o := range v.objects {
		f := w.frameID(frame{kind: frObject, node: o.id, depth: depth})
		out = append(out, item{w.bytes("{"), w.act(action{kind: actGo, frame: f})})
	}
	for _, a := range v.arrays {
		f := w.frameID(frame{kind: frArray, node: a.id, depth: depth})
		out = append(out, item{w.bytes("["), w.act(action{kind: actGo, frame: f})})
	}
	if w.ws.Indent == 0 {
		w.starts[v.id] = out
	}
	return out
}

// blank is the white space between two tokens; depth is that of the next.
func (w *writer) blank(depth int32) nodeID {
	switch {
	case w.ws.Max > 0:
		return w.rep(w.leafNode(w.mkLeaf(false, []edge{{'\t', '\n', leafEnd}, {'\r', '\r', leafEnd}, {' ', ' ', leafEnd}})), 0, int32(w.ws.Max))
	case w.ws.Indent > 0:
		return w.bytes((&form{w.ws.Indent}).newline(int(depth)))
	}
	return rxEps
}

// colon is what stands between a name and its value.
func (w *writer) colon() nodeID {
	switch {
	case w.ws.Max > 0:
		return w.seq(w.blank(0), w.bytes(":"), w.blank(0))
	case w.ws.Indent > 0:
		return w.bytes(": ")
	}
	return w.bytes(":")
}

// before is the white space in front of a comma or closing bracket.
func (w *writer) before(depth int32) nodeID {
	if w.ws.Max > 0 {
		return w.blank(depth)
	}
	return rxEps
}

// lex is the lexemes that may come next in a frame.
func (w *writer) lex(id frameID) []item {
	if l := w.frameLex[id]; l != nil {
		return l
	}
	f := w.frames[id]
	var l []item
	switch f.kind {
	case frObject:
		l = w.lexObject(id, f)
	case frArray:
		l = w.lexArray(f)
	case frColon:
		l = []item{{w.colon(), actID(f.node)}}
	case frRule:
		l = w.lexRule(f)
	}
	if l == nil {
		l = []item{}
	}
	w.frameLex[id] = l
	return l
}

func (w *writer) plan(n int32) *objectPlan {
	if p := w.plans[n]; p != nil {
		return p
	}
	o := w.objects[n]
	p := &objectPlan{tries: map[string]int32{}, costs: map[int32]restCosts{}, suffix: `":`, tails: make([][]int32, len(o.names))}
	switch {
	case w.ws.Max > 0:
		p.suffix = `"`
	case w.ws.Indent > 0:
		p.suffix = `": `
	}
	p.nextReq = make([]int32, len(o.names)+1)
	p.required = make([]int32, len(o.names)+1)
	p.nextReq[len(o.names)] = int32(len(o.names))
	for i := len(o.names) - 1; i >= 0; i-- {
		p.nextReq[i], p.required[i] = p.nextReq[i+1], p.required[i+1]
		if o.names[i].required {
			p.nextReq[i] = int32(i)
			p.required[i]++
		}
		p.sorted = append(p.sorted, int32(i))
	}
	slices.SortFunc(p.sorted, func(a, b int32) int {
		if o.names[a].text < o.names[b].text {
			return -1
		}
		return 1
	})
	w.plans[n] = p
	return p
}

// remaining calls yield for every name that f may still write.
func (w *writer) remaining(o *objectNode, p *objectPlan, f *frame, yield func(i int32)) {
	if w.anyOrder {
		seen := w.sets[f.set]
		for i := range o.names {
			if i>>3 >= len(seen) || seen[i>>3]&(1<<(i&7)) == 0 {
				yield(int32(i))
			}
		}
		return
	}
	for i := f.pos; i < int32(len(o.names)); i++ {
		yield(i)
	}
}

// member is the frame after name i (-1: a free name) was written.
func (w *writer) member(o *objectNode, f frame, i int32, duties uint32) frame {
	f.started = true
	f.duties |= duties
	if o.bound {
		f.cnt++
	}
	switch {
	case !w.anyOrder && i < 0:
		f.pos = int32(len(o.names))
	case !w.anyOrder:
		f.pos = i + 1
	case i >= 0:
		seen := []byte(w.sets[f.set])
		for len(seen) <= int(i>>3) {
			seen = append(seen, 0)
		}
		seen[i>>3] |= 1 << (i & 7)
		f.set = w.setID(string(seen))
	}
	if !o.distinct(&f) {
		f.free = 0
	}
	return f
}

// canFinish reports whether an object can be closed some time after f.
func (w *writer) canFinish(o *objectNode, p *objectPlan, f *frame) bool {
	if !o.bound && o.duty == 0 {
		return true
	}
	rest := w.costs(o, p, f)
	least := rest.duties[(1<<o.duty-1)&^f.duties]
	return least < impossible && (!o.bound || f.cnt+least <= o.max && f.cnt+rest.names >= o.min)
}

// restCosts is what the properties that may still come cost.
type restCosts struct {
	duties dutyCosts
	names  int32 // how many there can be at most
}

// costs is what may still come after f costs.
func (w *writer) costs(o *objectNode, p *objectPlan, f *frame) restCosts {
	key := f.pos
	if w.anyOrder {
		key = f.set
	}
	if c, ok := p.costs[key]; ok {
		return c
	}
	all := func(option) bool { return true }
	c := restCosts{duties: o.cellCosts(all)}
	w.remaining(o, p, f, func(i int32) {
		c.names++
		c.duties.name(&o.names[i], all)
	})
	if len(o.cells) > 0 {
		c.names = math.MaxInt32 >> 1
	}
	if len(p.costs) > maxKnown {
		clear(p.costs)
	}
	p.costs[key] = c
	return c
}

// nameLead is what stands before the next name of an object, its quote included.
func (w *writer) nameLead(f frame) nodeID {
	lead := w.cat(w.blank(f.depth+1), w.bytes(`"`))
	if f.started {
		lead = w.seq(w.before(f.depth), w.bytes(","), lead)
	}
	return lead
}

func (w *writer) lexObject(id frameID, f frame) []item {
	o, p := w.objects[f.node], w.plan(f.node)
	lead := w.nameLead(f)
	var out []item
	// Names that may come next.
	allowed := func(i int32) bool {
		if !o.bound && o.duty == 0 {
			return true
		}
		for _, x := range o.names[i].options {
			if g := w.member(o, f, i, x.duties); w.canFinish(o, p, &g) {
				return true
			}
		}
		return false
	}
	var next []int32
	missing := false
	if w.anyOrder {
		w.remaining(o, p, &f, func(i int32) {
			missing = missing || o.names[i].required
			if allowed(i) {
				next = append(next, i)
			}
		})
	} else {
		missing = p.required[f.pos] > 0
		last := min(p.nextReq[f.pos], int32(len(o.names))-1)
		for i := f.pos; i <= last; i++ {
			if allowed(i) {
				next = append(next, i)
			}
		}
	}
	if len(next) > 0 {
		out = append(out, item{w.cat(lead, w.leafNode(w.nameTrie(o, p, next))), w.act(action{kind: actChoice, frame: id})})
	}
	if w.anyOrder || !missing {
		for i := range o.cells {
			c := &o.cells[i]
			act, ok := w.memberAct(o, p, f, -1, c.options)
			switch {
			case !ok:
			case o.distinct(&f):
				if v := w.without(w.nameValue(p, i, c), w.ids(f.free)); v != nil {
					out = append(out, item{lead, w.act(action{kind: actPush, frame: id, val: v, rec: int32(i) + 1})})
				}
			default:
				out = append(out, item{w.seq(lead, c.lang, w.bytes(`"`), w.colon()), act})
			}
		}
	}
	if !missing && f.duties == 1<<o.duty-1 && (!o.bound || f.cnt >= o.min) {
		out = append(out, item{w.closing(f), 0})
	}
	return out
}

// closing is what closes the object of a frame.
func (w *writer) closing(f frame) nodeID {
	close := w.before(f.depth)
	if f.started {
		close = w.blank(f.depth)
	}
	return w.cat(close, w.bytes("}"))
}

// memberAct begins the value of a name in all the ways that can be finished.
func (w *writer) memberAct(o *objectNode, p *objectPlan, f frame, i int32, options []option) (actID, bool) {
	var list []actID
	for _, x := range options {
		if g := w.member(o, f, i, x.duties); w.canFinish(o, p, &g) {
			list = append(list, w.act(action{kind: actPush, frame: w.frameID(g), val: x.val}))
		}
	}
	if len(list) == 0 {
		return 0, false
	}
	return w.act(action{kind: actMany, list: list}), true
}

// choose is the action after the name with a label was written in frame id.
func (w *writer) choose(id frameID, label int32) actID {
	f := w.frames[id]
	o := w.objects[f.node]
	i := label - 1
	act, _ := w.memberAct(o, w.plan(f.node), f, i, o.names[i].options)
	if w.ws.Max > 0 {
		colon := w.frameID(frame{kind: frColon, node: int32(act)})
		return w.act(action{kind: actGo, frame: colon})
	}
	return act
}

func (w *writer) lexArray(f frame) []item {
	a := w.arrays[f.node]
	var out []item
	var list []actID
	tally, seen := w.arraySet(a, f.set)
	rec := int32(0)
	if a.texts {
		rec = 1
	}
	if f.pos < a.max {
		for _, x := range a.slot(f.pos) {
			if a.unique && !a.texts && slices.Contains(seen, int32(x.val.f)) {
				continue
			}
			val := x.val
			g := f
			g.started = true
			g.pos++
			if a.counted() {
				t, ok := countDuties(a.tally, tally, x.duties)
				if !ok {
					continue
				}
				s := seen
				if a.unique && !a.texts {
					s = append(slices.Clone(seen), int32(x.val.f))
					slices.Sort(s)
				}
				if val = w.itemValue(f.node, x, g.pos, t, s); val == nil {
					continue
				}
				g.set = w.arraySetID(t, s)
			}
			g.pos = w.foldPos(a, g.pos)
			list = append(list, w.act(action{kind: actPush, frame: w.frameID(g), val: val, rec: rec}))
		}
	}
	if len(list) > 0 {
		lead := w.blank(f.depth + 1)
		if f.started {
			lead = w.seq(w.before(f.depth), w.bytes(","), lead)
		}
		out = append(out, item{lead, w.act(action{kind: actMany, list: list})})
	}
	met := f.pos >= a.min
	for j, n := range a.tally {
		if n > 0 && tally[j] < n {
			met = false
		}
	}
	if met {
		close := w.before(f.depth)
		if f.started {
			close = w.blank(f.depth)
		}
		out = append(out, item{w.cat(close, w.bytes("]")), 0})
	}
	return out
}

// foldPos maps places that never differ again to one: past the last slot and
// the least number of items of an array without end.
func (w *writer) foldPos(a *arrayNode, pos int32) int32 {
	if a.max == math.MaxInt32 {
		return min(pos, max(a.min, int32(len(a.slots))))
	}
	return pos
}

// arraySet splits an interned set into tallies and seen values.
func (w *writer) arraySet(a *arrayNode, set int32) (tally, seen []int32) {
	s := w.sets[set]
	tally = make([]int32, len(a.tally))
	for i := 0; i+4 <= len(s); i += 4 {
		v := int32(binary.LittleEndian.Uint32([]byte(s[i : i+4])))
		if i/4 < len(tally) {
			tally[i/4] = v
		} else {
			seen = append(seen, v)
		}
	}
	return tally, seen
}

func (w *writer) arraySetID(tally, seen []int32) int32 {
	var b []byte
	for _, v := range append(slices.Clone(tally), seen...) {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return w.setID(string(b))
}
