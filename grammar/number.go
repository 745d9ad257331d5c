package grammar

import "strings"

// This file writes conditions on numbers as expressions over their spelling.
// Where only the kind of number matters every JSON spelling is offered; where
// the value matters, plain decimals without exponent and without a negative
// zero.

func (p *pool) digits(m, n int32) nodeID { return p.rep(p.byteRange('0', '9'), m, n) }

func (p *pool) byteRange(lo, hi byte) nodeID {
	if lo > hi {
		return rxEmpty
	}
	return p.leafNode(p.mkLeaf(false, []edge{{lo, hi, leafEnd}}))
}

// wholeDigits is at most so many digits without a leading zero, -1: no bound.
func (p *pool) wholeDigits(most int32) nodeID {
	return p.alt(p.bytes("0"), p.cat(p.byteRange('1', '9'), p.digits(0, max(most-1, -1))))
}

// someFrac is a fraction above zero, with its point.
func (p *pool) someFrac() nodeID {
	return p.seq(p.bytes("."), p.rep(p.bytes("0"), 0, maxDigits-1), p.byteRange('1', '9'), p.digits(0, maxDigits-1))
}

func (p *pool) anyFrac() nodeID { return p.cat(p.bytes("."), p.digits(1, maxDigits)) }

// anyNumber is every JSON number of bounded length.
func (p *pool) anyNumber() nodeID { return p.number(maxDigits, 3) }

// number is every JSON number of at most so many digits before and behind the
// point, and in the exponent; -1: no bound.
func (p *pool) number(most, exponent int32) nodeID {
	exp := p.seq(p.alt(p.bytes("e"), p.bytes("E")), p.opt(p.alt(p.bytes("+"), p.bytes("-"))), p.digits(1, exponent))
	return p.seq(p.integer(most), p.opt(p.cat(p.bytes("."), p.digits(1, most))), p.opt(exp))
}

func (p *pool) anyInteger() nodeID { return p.integer(maxDigits) }

// integer is every integer of at most so many digits, -1: no bound.
func (p *pool) integer(most int32) nodeID {
	return p.cat(p.opt(p.bytes("-")), p.wholeDigits(most))
}

// above is the positive plain decimals.
func (p *pool) above() nodeID {
	big := p.seq(p.byteRange('1', '9'), p.digits(0, maxDigits-1), p.opt(p.anyFrac()))
	return p.alt(big, p.cat(p.bytes("0"), p.someFrac()))
}

// aboveInt is the positive integers.
func (p *pool) aboveInt() nodeID { return p.cat(p.byteRange('1', '9'), p.digits(0, maxDigits-1)) }

// plainNumber is the numbers that conditions on values are about.
func (p *pool) plainNumber() nodeID {
	zero := p.cat(p.bytes("0"), p.opt(p.cat(p.bytes("."), p.rep(p.bytes("0"), 1, maxDigits))))
	return p.alt(zero, p.cat(p.opt(p.bytes("-")), p.above()))
}

func (p *pool) plainInteger() nodeID {
	return p.alt(p.bytes("0"), p.cat(p.opt(p.bytes("-")), p.aboveInt()))
}

// plainWhole is the integers in any plain spelling, 1.0 too.
func (p *pool) plainWhole() nodeID {
	return p.cat(p.plainInteger(), p.opt(p.cat(p.bytes("."), p.rep(p.bytes("0"), 1, maxDigits))))
}

// atLeast is the plain decimals without sign that are >= d (strict: > d).
func (p *pool) atLeast(d decimal, strict bool) nodeID {
	w, f := d.plain()
	frac := p.opt(p.anyFrac())
	n := int32(len(w))
	alts := []nodeID{p.seq(p.byteRange('1', '9'), p.digits(n, max(n, maxDigits-1)), frac)}
	for i := range w {
		if w[i] < '9' {
			alts = append(alts, p.seq(p.bytes(w[:i]), p.byteRange(w[i]+1, '9'), p.digits(n-int32(i)-1, n-int32(i)-1), frac))
		}
	}
	same := p.bytes(w)
	for i := range f {
		if f[i] < '9' {
			alts = append(alts, p.seq(same, p.bytes("."+f[:i]), p.byteRange(f[i]+1, '9'), p.digits(0, maxDigits)))
		}
	}
	switch {
	case strict:
		more := p.seq(p.rep(p.bytes("0"), 0, maxDigits), p.byteRange('1', '9'), p.digits(0, maxDigits))
		alts = append(alts, p.seq(same, p.bytes("."+f), more))
	case f == "":
		alts = append(alts, p.cat(same, frac))
	default:
		alts = append(alts, p.seq(same, p.bytes("."+f), p.digits(0, maxDigits)))
	}
	return p.alt(alts...)
}

// atMost is the plain decimals without sign that are <= d (strict: < d).
func (p *pool) atMost(d decimal, strict bool) nodeID {
	w, f := d.plain()
	frac := p.opt(p.anyFrac())
	n := int32(len(w))
	var alts []nodeID
	if n > 1 {
		alts = append(alts, p.cat(p.alt(p.bytes("0"), p.cat(p.byteRange('1', '9'), p.digits(0, n-2))), frac))
	}
	for i := range w {
		lo := byte('0')
		if i == 0 && n > 1 {
			lo = '1'
		}
		if w[i] > lo {
			alts = append(alts, p.seq(p.bytes(w[:i]), p.byteRange(lo, w[i]-1), p.digits(n-int32(i)-1, n-int32(i)-1), frac))
		}
	}
	same := p.bytes(w)
	if f != "" {
		alts = append(alts, same)
	}
	for i := range f {
		if f[i] > '0' {
			alts = append(alts, p.seq(same, p.bytes("."+f[:i]), p.byteRange('0', f[i]-1), p.digits(0, maxDigits)))
		}
		if i > 0 {
			alts = append(alts, p.seq(same, p.bytes("."+f[:i])))
		}
	}
	if !strict {
		zeros := p.rep(p.bytes("0"), 0, maxDigits)
		if f == "" {
			alts = append(alts, p.cat(same, p.opt(p.seq(p.bytes(".0"), zeros))))
		} else {
			alts = append(alts, p.seq(same, p.bytes("."+f), zeros))
		}
	}
	return p.alt(alts...)
}

// boundLang is the plain decimals on the given side of d.
func (p *pool) boundLang(d decimal, atLeast, strict bool) nodeID {
	abs := d
	abs.neg = false
	minus := func(x nodeID) nodeID { return p.cat(p.bytes("-"), p.and(x, p.above())) }
	unsigned := p.alt(p.bytes("0"), p.cat(p.bytes("0."), p.rep(p.bytes("0"), 1, maxDigits)), p.above())
	if atLeast {
		if d.neg {
			return p.alt(unsigned, minus(p.atMost(abs, strict)))
		}
		return p.atLeast(abs, strict)
	}
	if d.neg {
		return minus(p.atLeast(abs, strict))
	}
	return p.alt(minus(p.above()), p.atMost(abs, strict))
}

// maxMultipleStates bounds the automaton of a multipleOf.
const maxMultipleStates = 60_000

// multipleLang is the plain decimals that are multiples of d: an automaton
// over the remainder of the digits read so far.
func (p *pool) multipleLang(d decimal) (nodeID, bool) {
	whole, frac := d.plain()
	scale := len(frac)
	text := strings.TrimLeft(whole+frac, "0")
	if len(text) > 9 {
		return rxEmpty, false
	}
	m := 0
	for _, ch := range text {
		m = m*10 + int(ch-'0')
	}
	if m*(scale+2) > maxMultipleStates {
		return rxEmpty, false
	}
	p.spend(m * (scale + 2) * 4)
	// State (r, k): remainder r of the digits read, k digits of fraction (k =
	// -1: no point yet). The number so far times 10^scale is r*10^(scale-k).
	base := int32(len(p.leaves))
	at := func(r, k int) int32 { return base + int32((k+1)*m+r) }
	zeros := base + int32((scale+2)*m) // only zeros follow
	start := zeros + 1
	pow := make([]int, scale+1)
	pow[0] = 1 % m
	for i := 1; i <= scale; i++ {
		pow[i] = pow[i-1] * 10 % m
	}
	for k := -1; k <= scale; k++ {
		for r := range m {
			var lf leaf
			lf.accept = k != 0 && r*pow[scale-max(k, 0)]%m == 0
			if k < 0 {
				lf.edges = append(lf.edges, edge{'.', '.', at(r, 0)})
			}
			switch {
			case k < scale:
				next := k
				if k >= 0 {
					next++
				}
				for c := range 10 {
					lf.edges = append(lf.edges, edge{byte('0' + c), byte('0' + c), at((r*10+c)%m, next)})
				}
			case r == 0:
				lf.edges = append(lf.edges, edge{'0', '0', zeros})
			}
			p.leaves = append(p.leaves, lf)
		}
	}
	p.leaves = append(p.leaves, leaf{accept: true, edges: []edge{{'0', '0', zeros}}})
	p.leaves = append(p.leaves, leaf{edges: append([]edge{{'-', '-', at(0, -1)}}, p.leaves[at(0, -1)].edges[1:]...)})
	p.trim(base)
	return p.leafNode(start), true
}

// trim removes edges to states, from base on, that reach no accepting one.
func (p *pool) trim(base int32) {
	n := int32(len(p.leaves)) - base
	back := make([][]int32, n)
	live := make([]bool, n)
	var work []int32
	for i := range n {
		lf := &p.leaves[base+i]
		if lf.accept {
			live[i] = true
			work = append(work, i)
		}
		for _, e := range lf.edges {
			if e.to >= base {
				back[e.to-base] = append(back[e.to-base], i)
			}
		}
	}
	for len(work) > 0 {
		i := work[len(work)-1]
		work = work[:len(work)-1]
		for _, j := range back[i] {
			if !live[j] {
				live[j] = true
				work = append(work, j)
			}
		}
	}
	for i := range n {
		lf := &p.leaves[base+i]
		kept := lf.edges[:0:0]
		for _, e := range lf.edges {
			if e.to < base || live[e.to-base] {
				kept = append(kept, e)
			}
		}
		lf.edges = kept
	}
}

// numberLang is the spellings of the numbers that satisfy t.
func (c *compiler) numberLang(t *tree) nodeID {
	if t.kind == trLit && !t.lit.neg && c.fs.atoms[t.lit.atom].kind == aEnum {
		return c.numberLit(t.lit)
	}
	valued, integer := c.scanNumber(t)
	top := integer // every number is plainly an integer
	switch {
	case !valued && t.kind == trTrue:
		return c.anyNumber()
	case !valued && top && t.kind == trLit:
		return c.anyInteger()
	case !valued && top:
		return c.and(c.anyInteger(), c.numberTree(t))
	}
	base := c.plainNumber()
	if top {
		base = c.plainInteger()
	}
	return c.and(base, c.numberTree(t))
}

// scanNumber reports whether the tree speaks of values, and whether all its
// numbers are plainly integers.
func (c *compiler) scanNumber(t *tree) (valued, integer bool) {
	switch t.kind {
	case trLit:
		a := &c.fs.atoms[t.lit.atom]
		isInt := a.kind == aInt
		return !isInt || t.lit.neg, isInt && !t.lit.neg
	case trAnd, trOr:
		integer = t.kind == trOr
		for _, x := range t.list {
			v, i := c.scanNumber(x)
			valued = valued || v
			if t.kind == trOr {
				integer = integer && i
			} else {
				integer = integer || i
			}
		}
		// Alternatives of plain and of constrained numbers: all in plain form.
		if t.kind == trOr && !integer {
			valued = true
		}
	}
	return valued, integer
}

func (c *compiler) numberTree(t *tree) nodeID {
	switch t.kind {
	case trTrue:
		return c.plainNumber()
	case trFalse:
		return rxEmpty
	case trLit:
		x := c.numberLit(t.lit)
		if t.lit.neg {
			x = c.and(c.plainNumber(), c.pool.not(x))
		}
		return x
	}
	list := make([]nodeID, len(t.list))
	for i, x := range t.list {
		list[i] = c.numberTree(x)
	}
	if t.kind == trAnd {
		return c.and(list...)
	}
	return c.alt(list...)
}

// numberLit is the plain decimals of an atom.
func (c *compiler) numberLit(l lit) nodeID {
	a := c.fs.atoms[l.atom]
	tooLong := func(d decimal) {
		if !d.small() {
			failf(ErrUnsupported, "schema", clip(a.ptr), "", "a number of more than 40 digits")
		}
	}
	switch a.kind {
	case aInt:
		if l.neg {
			return c.plainWhole()
		}
		return c.plainInteger()
	case aMin, aMax:
		tooLong(a.num)
		return c.boundLang(a.num, a.kind == aMin, a.strict)
	case aMultiple:
		x, ok := c.multipleLang(a.num)
		if !ok {
			failf(ErrTooLarge, "schema", clip(a.ptr), "multipleOf", "too many digits")
		}
		return x
	case aEnum:
		var words []string
		var alts []nodeID
		for _, v := range a.values {
			d, ok := parseDecimal(v.str)
			if !l.neg {
				words = append(words, numberText(v.str))
				continue
			}
			if !ok {
				failf(ErrUnsupported, "schema", clip(a.ptr), "", "a number of this size")
			}
			tooLong(d)
			alts = append(alts, c.and(c.boundLang(d, true, false), c.boundLang(d, false, false)))
		}
		if !l.neg {
			return c.words(words)
		}
		return c.alt(alts...)
	}
	return rxEmpty
}
