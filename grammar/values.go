package grammar

import "slices"

// valueNode is the set of JSON values that one formula allows, in the form
// that the machine writes: an expression for scalars and for fixed texts, and
// nodes for containers.
type valueNode struct {
	f       fid
	id      int32
	scalar  nodeID // whole texts
	objects []*objectNode
	arrays  []*arrayNode
	rule    *expr // a rule of an EBNF grammar
	state   uint8 // 0 not compiled, 1 in work, 2 compiled
	alive   bool  // some finite text exists
	visited bool
	maybe   int8 // of possible: 0 unknown, 1 in work, 2 yes, 3 no
}

// value is the node of a formula.
func (c *compiler) value(f fid) *valueNode {
	for range 100 {
		n := &c.fs.nodes[f]
		if n.kind != fkRef {
			break
		}
		f = c.read(n.schema)
	}
	if v, ok := c.values[f]; ok {
		return v
	}
	v := &valueNode{f: f}
	c.values[f] = v
	return v
}

func (c *compiler) compileValue(v *valueNode) {
	if v.state != 0 {
		return
	}
	v.state = 1
	if c.cancel != nil {
		if err := c.cancel(); err != nil {
			panic(fail{err})
		}
	}
	var alts []nodeID
	var fixed []string // texts that are told by themselves: one trie
	for _, typ := range []typeMask{tNull, tBool, tNumber, tString, tArray, tObject} {
		t := c.restrict(v.f, typ, false)
		if t.kind == trFalse {
			continue
		}
		switch typ {
		case tNull, tBool:
			fixed = append(fixed, c.literals(t, typ)...)
		case tNumber:
			alts = append(alts, c.numberLang(t))
		case tString:
			if t.kind == trLit && !t.lit.neg && c.fs.atoms[t.lit.atom].kind == aEnum {
				for _, v := range c.fs.atoms[t.lit.atom].values {
					fixed = append(fixed, `"`+keyText(v.str)+`"`)
				}
				continue
			}
			quote := c.bytes(`"`)
			alts = append(alts, c.seq(quote, c.stringLang(t, encString), quote))
		default:
			list, exact := c.dnf(t)
			if !exact {
				c.leftOut()
			}
			for _, conj := range list {
				texts, ok := c.fixedTexts(conj)
				switch {
				case ok:
					fixed = append(fixed, texts...)
				case typ == tArray:
					if a := c.array(conj); a != nil {
						v.arrays = append(v.arrays, a)
					}
				default:
					if o := c.object(conj); o != nil {
						v.objects = append(v.objects, o)
					}
				}
			}
		}
	}
	v.scalar = c.alt(append(alts, c.words(fixed))...)
	if !c.nonEmpty(v.scalar) {
		v.scalar = rxEmpty
	}
	v.state = 2
}

// fixedTexts is the texts of a conjunction that holds an enumeration; ok is
// false when it holds none.
func (c *compiler) fixedTexts(conj []lit) (texts []string, ok bool) {
	i := slices.IndexFunc(conj, func(l lit) bool { return !l.neg && c.fs.atoms[l.atom].kind == aEnum })
	if i < 0 {
		return nil, false
	}
next:
	for _, v := range c.fs.atoms[conj[i].atom].values {
		for _, l := range conj {
			if !c.holdsLit(l, v) {
				continue next
			}
		}
		texts = append(texts, string(v.appendJSON(nil, &c.form, 0)))
	}
	return texts, true
}

// children calls visit for every value inside v.
func (v *valueNode) children(visit func(*valueNode)) {
	for _, o := range v.objects {
		for i := range o.names {
			for _, opt := range o.names[i].options {
				visit(opt.val)
			}
		}
		for i := range o.cells {
			for _, opt := range o.cells[i].options {
				visit(opt.val)
			}
		}
	}
	for _, a := range v.arrays {
		for i := range a.slots {
			for _, opt := range a.slots[i] {
				visit(opt.val)
			}
		}
	}
}

// compileAll compiles root and all that it can contain, and finds out which
// values have a finite text.
func (c *compiler) compileAll(root *valueNode) {
	work := []*valueNode{root}
	root.visited = true
	for i := 0; i < len(work); i++ {
		c.compileValue(work[i])
		work[i].children(func(x *valueNode) {
			if !x.visited {
				x.visited = true
				work = append(work, x)
			}
		})
	}
	c.all = append(c.all, work...)
	for changed := true; changed; {
		changed = false
		for i := len(work) - 1; i >= 0; i-- {
			v := work[i]
			if v.alive {
				continue
			}
			c.spend(1)
			v.alive = v.scalar != rxEmpty ||
				slices.ContainsFunc(v.objects, (*objectNode).productive) ||
				slices.ContainsFunc(v.arrays, (*arrayNode).productive)
			changed = changed || v.alive
		}
	}
	for _, v := range work {
		v.id = c.newValueID()
		v.objects = slices.DeleteFunc(v.objects, func(o *objectNode) bool { return !o.productive() })
		v.arrays = slices.DeleteFunc(v.arrays, func(a *arrayNode) bool { return !a.productive() })
		for _, o := range v.objects {
			c.addObject(o)
		}
		for _, a := range v.arrays {
			c.addArray(a)
		}
	}
}

func (c *compiler) newValueID() int32 {
	c.valueIDs++
	return c.valueIDs - 1
}

// possible reports whether v may have a text; no is certain. It compiles only
// what it must look at.
func (c *compiler) possible(v *valueNode) bool {
	switch v.maybe {
	case 1, 2:
		return true
	case 3:
		return false
	}
	if v.state == 1 {
		return true
	}
	v.maybe = 1
	if !c.lookInto(v) {
		v.maybe = 0
		return true
	}
	yes := v.scalar != rxEmpty
	for i := 0; i < len(v.objects) && !yes; i++ {
		yes = c.possibleObject(v.objects[i])
	}
	for i := 0; i < len(v.arrays) && !yes; i++ {
		yes = c.possibleArray(v.arrays[i])
	}
	v.maybe = 3
	if yes {
		v.maybe = 2
	}
	return yes
}

// comesBack is the panic value when a look into a value needs a formula that
// is still being restricted.
type comesBack struct{}

// lookInto compiles v before its turn; false when that is not possible yet.
func (c *compiler) lookInto(v *valueNode) (ok bool) {
	base, open, expanded := c.openBase, len(c.open), c.expanded
	c.openBase = open
	defer func() {
		c.openBase = base
		switch f := recover().(type) {
		case nil:
		case comesBack:
			for _, k := range c.open[open:] {
				delete(c.norm, k)
			}
			c.open, c.expanded = c.open[:open], expanded
			v.state, v.objects, v.arrays = 0, nil, nil
			ok = false
		default:
			panic(f)
		}
	}()
	c.compileValue(v)
	return true
}

// plainlyEmpty reports that no array or object satisfies the conjunction; it
// may miss some that none does.
func (c *compiler) plainlyEmpty(conj []lit, typ typeMask) bool {
	if texts, ok := c.fixedTexts(conj); ok {
		return len(texts) == 0
	}
	if typ == tArray {
		a := c.array(conj)
		return a == nil || !c.possibleArray(a)
	}
	o := c.object(conj)
	return o == nil || !c.possibleObject(o)
}

func (c *compiler) possibleObject(o *objectNode) bool {
	for i := range o.names {
		if n := &o.names[i]; n.required && !slices.ContainsFunc(n.options, func(x option) bool { return c.possible(x.val) }) {
			return false
		}
	}
	return o.min <= o.max
}

func (c *compiler) possibleArray(a *arrayNode) bool {
	for i := range min(int(a.min), len(a.slots)) {
		if !slices.ContainsFunc(a.slots[i], func(x option) bool { return c.possible(x.val) }) {
			return false
		}
	}
	return a.min <= a.max
}
