package compute

import "math"

// A Paged locates the keys and values of one kv head of one layer: those of
// page i start at element i*Stride, keys as [Dim][16], values at Values as
// [16][Dim].
type Paged struct {
	Half   []uint16
	Keys   int // offset of the head's keys in a page
	Values int // offset of the head's values in a page
	Stride int // elements from page to page
	Dim    int
}

// Partials receives attention over single spans: for slot i the maximum of the
// scores, the sum of the weights relative to it, and the weighted sum of the
// values, Out[i*dim:][:dim].
type Partials struct {
	Max, Sum, Out []float32
}

// queryTile is the number of queries that a kernel computes together.
const queryTile = 16

// Queries is a block of queries, packed for Attend in tiles of queryTile. It
// is the scratch space of one thread.
type Queries struct {
	n, dim int
	q      []float32 // [tile][dim][t]
	lo, hi []int     // positions that a query sees: lo <= p < hi
	slot   []int     // where the query's partial result of span 0 would go
	step   int       // from the slot of a span to that of the next
	s      []float32 // scores of a tile, [queryTile][Span]
	o      []float32 // results of a tile, [queryTile][dim]
	sa     scoreArgs
	ma     mixArgs
}

// NewQueries returns room for n queries of width dim.
func NewQueries(n, dim int) *Queries {
	return &Queries{
		q:  make([]float32, n*dim),
		lo: make([]int, n), hi: make([]int, n), slot: make([]int, n),
		s: make([]float32, queryTile*Span),
		o: make([]float32, queryTile*dim),
	}
}

// Reset declares that the block has n queries of width dim, and that the
// partial result of a query over span s belongs in slot slot+s*step.
func (q *Queries) Reset(n, dim, step int) { q.n, q.dim, q.step = n, dim, step }

// Set stores query i, which sees the positions lo up to hi. The scale of the
// scores is part of v.
func (q *Queries) Set(i int, v []float32, lo, hi, slot int) {
	first := i &^ (queryTile - 1)
	t := min(queryTile, q.n-first)
	out := q.q[first*q.dim+i-first:]
	for d, x := range v[:q.dim] {
		out[d*t] = x
	}
	q.lo[i], q.hi[i], q.slot[i] = lo, hi, slot
}

// Attend computes the partial attention over one span of all queries that see
// a part of it. pages are the pages of the span, from its first position on, as
// far as any query sees.
func (q *Queries) Attend(p *Partials, kv *Paged, span int, pages []int32) {
	base := span * Span
	for first := 0; first < q.n; first += queryTile {
		t := min(queryTile, q.n-first)
		lo, hi := Span, 0
		for i := first; i < first+t; i++ {
			l, h := max(0, q.lo[i]-base), min(Span, q.hi[i]-base)
			if l < h {
				lo, hi = min(lo, l), max(hi, h)
			}
		}
		if lo >= hi {
			continue
		}
		p0, p1 := lo/pagePositions, (hi+pagePositions-1)/pagePositions
		q.tile(p, kv, span, base+p0*pagePositions, pages[p0:p1], first, t)
	}
}

// tile computes one tile over the pages that start at position base.
func (q *Queries) tile(p *Partials, kv *Paged, span, base int, pages []int32, first, t int) {
	n := len(pages) * pagePositions
	q.sa = scoreArgs{
		q: &q.q[first*q.dim], k: &kv.Half[kv.Keys], pages: &pages[0], np: len(pages),
		stride: kv.Stride, dim: q.dim, s: &q.s[0],
	}
	scores(&q.sa, t)
	for i := range t {
		s := q.s[i*Span:][:n]
		lo, hi := max(0, q.lo[first+i]-base), min(n, q.hi[first+i]-base)
		if lo >= hi {
			clear(s)
			continue
		}
		for j := range s[:lo] {
			s[j] = float32(math.Inf(-1))
		}
		for j := hi; j < n; j++ {
			s[j] = float32(math.Inf(-1))
		}
		slot := q.slot[first+i] + span*q.step
		p.Max[slot], p.Sum[slot] = softmax(s)
	}
	q.ma = mixArgs{
		p: &q.s[0], v: &kv.Half[kv.Values], pages: &pages[0], np: len(pages),
		stride: kv.Stride, dim: q.dim, o: &q.o[0],
	}
	mix(&q.ma, t)
	for i := range t {
		if max(0, q.lo[first+i]-base) < min(n, q.hi[first+i]-base) {
			slot := q.slot[first+i] + span*q.step
			copy(p.Out[slot*q.dim:][:q.dim], q.o[i*q.dim:])
		}
	}
}

// Merge folds the partial results of one query, in ascending order of spans,
// into dst, [Dim]: maxs and sums have one element per span, stride apart; outs
// one vector per span, outStride apart.
func Merge(dst []float32, maxs, sums []float32, stride int, outs []float32, outStride, spans int) {
	m, l := maxs[0], sums[0]
	copy(dst, outs[:len(dst)])
	for s := 1; s < spans; s++ {
		ms, ls, o := maxs[s*stride], sums[s*stride], outs[s*outStride:][:len(dst)]
		top := max(m, ms)
		a, b := exp32(m-top), exp32(ms-top)
		blend(dst, o, a, b)
		l = float32(l*a) + float32(ls*b)
		m = top
	}
	inv := 1 / l
	for i := range dst {
		dst[i] *= inv
	}
}

// StoreKV rounds the key and value of one kv head to half floats and stores
// them at position pos of a page: keys as [dim][16], then values as [16][dim].
func StoreKV(page []uint16, key, value []float32, pos int) {
	for d, v := range key {
		page[d*pagePositions+pos] = floatToHalf(v)
	}
	ToHalf(page[(pagePositions+pos)*len(value):][:len(value)], value)
}
