package compute

// Chain is the number of spans whose partial results are merged first: those of a query
// over spans k*Chain up to (k+1)*Chain, as far as it sees them, one after the other, and
// then the results of the chains, one after the other. Most partial results so never
// leave the cache of the thread that makes them, whichever spans a thread is given.
const Chain = 4

// chainStart returns the first span of the chain of span s for a query whose first span
// is from.
func chainStart(s, from int) int { return max(s/Chain*Chain, from) }

// Covered tells whether the partial result over span s is merged into that of an earlier
// span where a query, which sees the spans from up to end, is given the spans first up to
// last of Queries with the given Fold, first <= s < last.
func Covered(s, from, end, first, last int, fold bool) bool {
	if start := chainStart(s, from); s > start {
		return start >= first
	}
	// The first of a chain: all of the chain must be there.
	return fold && s > from && min((s/Chain+1)*Chain, end) <= last
}

// sums are results of attention of a number of queries.
type sums struct {
	at  []int     // the span in whose slot the result belongs, -1 for none
	top []float32 // the maximum of the scores
	sum []float32 // the sum of the weights
	acc []float32 // the weighted sum of the values, [n][dim]
}

func newSums(n, dim int) sums {
	return sums{make([]int, n), make([]float32, n), make([]float32, n), make([]float32, n*dim)}
}

func (a *sums) clear(n int) {
	for i := range n {
		a.at[i] = -1
	}
}

// add merges a result into that of query i, which goes to the slot of span at where it is
// the first.
func (a *sums) add(i, at int, top, sum float32, out []float32) {
	acc := a.acc[i*len(out):][:len(out)]
	if a.at[i] < 0 {
		a.at[i], a.top[i], a.sum[i] = at, top, sum
		copy(acc, out)
		return
	}
	a.top[i], a.sum[i] = fold(acc, a.top[i], a.sum[i], out, top, sum)
}

// keep merges or stores the results of a tile over span, those of n positions from
// base on; the vectors are stride apart in q.o.
func (q *Queries) keep(p *Partials, span, base, n, first, t, stride int) {
	switch goesOn, begins := q.together(span, base, n, first, t); {
	case goesOn:
		q.fold(&q.chain, first, t, &q.top[0], &q.sum[0], &q.o[0], stride)
		return
	case begins:
		q.begin(p, span, first, t, stride)
		return
	}
	for i := range t {
		c := first + i
		if max(0, q.lo[c]-base) >= min(n, q.hi[c]-base) {
			continue
		}
		o := q.o[i*stride:][:q.dim]
		start := chainStart(span, q.lo[c]/Span)
		if start < q.First {
			q.store(p, c, span, q.top[i], q.sum[i], o)
			continue
		}
		if span == start {
			q.endChain(p, c, true)
		}
		q.chain.add(c, start, q.top[i], q.sum[i], o)
	}
}

// together tells whether all queries of a tile see some of the n positions from base on and
// have begun the chain of the span, or see some and all begin it.
func (q *Queries) together(span, base, n, first, t int) (goesOn, begins bool) {
	goesOn, begins = true, span >= q.First
	for c := first; c < first+t; c++ {
		if max(0, q.lo[c]-base) >= min(n, q.hi[c]-base) {
			return false, false
		}
		start := span == chainStart(span, q.lo[c]/Span)
		goesOn = goesOn && !start && q.chain.at[c] >= 0
		begins = begins && start
	}
	return goesOn, begins
}

// fold merges results of the queries of a tile into those of a, which has some of each.
func (q *Queries) fold(a *sums, first, t int, top, sum, o *float32, stride int) {
	q.fa = foldArgs{
		top: &a.top[first], sum: &a.sum[first], acc: &a.acc[first*q.dim], dim: q.dim,
		topO: top, sumO: sum, o: o, stride: stride,
	}
	foldTile(&q.fa, t)
}

// begin ends the chains that the queries of a tile are in, and begins new ones with the
// results over span; all of the queries begin one there.
func (q *Queries) begin(p *Partials, span, first, t, stride int) {
	a, all := &q.chain, true
	for c := first; c < first+t; c++ {
		all = all && q.chains.at[c] >= 0 // then Fold is set, and the query is in a chain
	}
	if all {
		q.fold(&q.chains, first, t, &a.top[first], &a.sum[first], &a.acc[first*q.dim], q.dim)
	} else {
		for c := first; c < first+t; c++ {
			q.endChain(p, c, true)
		}
	}
	copy(a.top[first:][:t], q.top[:])
	copy(a.sum[first:][:t], q.sum[:])
	for i := range t {
		a.at[first+i] = span
		copy(a.acc[(first+i)*q.dim:][:q.dim], q.o[i*stride:])
	}
}

// endChain stores the chain that query c is in, or adds it to those before.
func (q *Queries) endChain(p *Partials, c int, whole bool) {
	at := q.chain.at[c]
	if at < 0 {
		return
	}
	top, sum, acc := q.chain.top[c], q.chain.sum[c], q.chain.acc[c*q.dim:][:q.dim]
	if q.Fold && whole {
		q.chains.add(c, at, top, sum, acc)
	} else {
		q.store(p, c, at, top, sum, acc)
	}
	q.chain.at[c] = -1
}

// store stores a result of query c in the slot of a span.
func (q *Queries) store(p *Partials, c, span int, top, sum float32, out []float32) {
	slot := q.slot[c] + span*q.step
	p.Max[slot], p.Sum[slot] = top, sum
	copy(p.Out[slot*q.dim:][:q.dim], out)
}

// Flush stores what has been merged over the spans up to end.
func (q *Queries) Flush(p *Partials, end int) {
	for c := range q.n {
		if at := q.chain.at[c]; at >= 0 {
			q.endChain(p, c, (at/Chain+1)*Chain <= end || q.hi[c] <= end*Span)
		}
		if at := q.chains.at[c]; at >= 0 {
			q.store(p, c, at, q.chains.top[c], q.chains.sum[c], q.chains.acc[c*q.dim:][:q.dim])
			q.chains.at[c] = -1
		}
	}
}

// fold merges the partial result o into that of the spans before it. What is no number
// away from the greater maximum has no weight.
func fold(dst []float32, m, l float32, o []float32, mo, lo float32) (float32, float32) {
	top, a, b := m, float32(1), float32(1)
	if mo > m {
		top = mo
	}
	if d := m - top; d != 0 {
		a = exp2f(d)
	}
	if d := mo - top; d != 0 {
		b = exp2f(d)
	}
	blend(dst, o, a, b)
	return top, float32(l*a) + float32(lo*b)
}

// Merge merges the partial results of one query into dst, [Dim], in the order that Chain
// says, and changes p: the result over the i-th of the spans that it sees is that of slot
// at+i*stride, but for those that are covered. Its first span is from.
func Merge(dst []float32, p *Partials, at, stride, from int, covered []bool) {
	out := func(i int) []float32 { return p.Out[(at+i*stride)*len(dst):][:len(dst)] }
	var (
		m, l  float32
		begun bool
		c     int // the span of the chain's result so far
	)
	end := func() {
		slot := at + c*stride
		if !begun {
			copy(dst, out(c))
			m, l, begun = p.Max[slot], p.Sum[slot], true
			return
		}
		m, l = fold(dst, m, l, out(c), p.Max[slot], p.Sum[slot])
	}
	for i := 1; i < len(covered); i++ {
		switch {
		case covered[i]:
		case (from+i)/Chain == (from+c)/Chain:
			slot, s := at+c*stride, at+i*stride
			p.Max[slot], p.Sum[slot] = fold(out(c), p.Max[slot], p.Sum[slot], out(i), p.Max[s], p.Sum[s])
		default:
			end()
			c = i
		}
	}
	end()
	inv := 1 / l
	for i := range dst {
		dst[i] *= inv
	}
}
