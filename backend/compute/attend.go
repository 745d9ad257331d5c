package compute

import "math"

// A Paged locates the keys and values of one kv head of one layer, in bfloat16:
// those of page i start at element i*Stride, keys at Keys as [Dim/2][16][2],
// values at Values as [8][Dim][2]. The inner pairs, of dimensions and of
// positions, are what the processor's dot product takes at once.
type Paged struct {
	Data   []uint16
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
	// Softcap c makes scores s into c*tanh(s/c); 0 for none.
	Softcap float32

	// First is the first span of those that come; they come in ascending order, and
	// Flush after the last. What a query finds in the spans of a chain is merged into
	// the partial result of the chain's first span, if that is among them.
	First int

	// Fold merges whole chains too, into the partial result of the first span that a
	// query sees, which must be among those that come.
	Fold bool

	n, dim int
	q      []float32          // [tile][dim][t], rounded to bfloat16
	pairs  []uint32           // [tile][dim/2][t], the same as pairs
	lo, hi []int              // positions that a query sees: lo <= p < hi
	slot   []int              // where the query's partial result of span 0 would go
	step   int                // from the slot of a span to that of the next
	s      []float32          // scores of a tile, [queryTile][Span]
	p      []uint16           // their weights in bfloat16, [queryTile][Span]
	o      []float32          // results of a tile, [queryTile][dim]
	row    []uint32           // a query in pairs
	top    [queryTile]float32 // maxima of the scores of a tile
	sum    [queryTile]float32 // sums of its weights
	chain  sums               // of the chain that each query is in
	chains sums               // with Fold, of the chains before
	sa     scoreArgs
	xa     softmaxArgs
	ma     mixArgs
	fa     foldArgs
	int8   *int8Queries // nil for bfloat16
}

// NewQueries returns room for n queries of width dim, which is even.
func NewQueries(n, dim int) *Queries {
	return &Queries{
		q: make([]float32, n*dim), pairs: make([]uint32, n*dim/2),
		lo: make([]int, n), hi: make([]int, n), slot: make([]int, n),
		s:     make([]float32, queryTile*Span),
		p:     make([]uint16, queryTile*Span),
		o:     make([]float32, queryTile*dim),
		row:   make([]uint32, dim/2),
		chain: newSums(n, dim), chains: newSums(n, dim),
	}
}

// Reset declares that the block has n queries of width dim, and that the
// partial result of a query over span s belongs in slot slot+s*step.
func (q *Queries) Reset(n, dim, step int) {
	q.n, q.dim, q.step = n, dim, step
	q.chain.clear(n)
	q.chains.clear(n)
	if q.int8 != nil {
		q.int8.acts.Reset(n, dim)
	}
}

// Set stores query i, which sees the positions lo up to hi. The scale of the
// scores is part of v, and so is a factor of log2(e): weights are powers of 2.
func (q *Queries) Set(i int, v []float32, lo, hi, slot int) {
	q.lo[i], q.hi[i], q.slot[i] = lo, hi, slot
	v = v[:q.dim]
	if q.int8 != nil {
		q.int8.set(i, v)
		return
	}
	first := i &^ (queryTile - 1)
	t := min(queryTile, q.n-first)
	if wantsPairs() {
		out := q.pairs[first*q.dim/2+i-first:]
		row := q.row[:q.dim/2]
		brainPairs(row, v)
		for d, p := range row {
			out[d*t] = p
		}
	} else {
		out := q.q[first*q.dim+i-first:]
		for d, x := range v {
			out[d*t] = roundBrain(x)
		}
	}
}

// Attend computes the partial attention over one span of all queries that see
// a part of it. pages are the pages of the span, from its first position on, as
// far as any query sees, and next those of a span that the same thread reads
// after it, if any: kernels may bring its keys near meanwhile, where it has as
// many pages.
func (q *Queries) Attend(p *Partials, kv *Paged, span int, pages, next []int32) {
	base := span * Span
	for first := 0; first < q.n; first += queryTile {
		t := min(queryTile, q.n-first)
		if p0, p1, whole := q.seen(first, t, base); p0 < p1 {
			q.tile(p, kv, span, base+p0*pagePositions, pages[p0:p1], next, first, t, whole)
		}
	}
}

// seen returns which pages of the span at position base the t queries from first
// on see a part of, none if p0 >= p1, and whether each sees all of them.
func (q *Queries) seen(first, t, base int) (p0, p1 int, whole bool) {
	lo, hi, last, least := Span, 0, 0, Span
	for i := first; i < first+t; i++ {
		l, h := max(0, q.lo[i]-base), min(Span, q.hi[i]-base)
		last, least = max(last, l), min(least, h)
		if l < h {
			lo, hi = min(lo, l), max(hi, h)
		}
	}
	if lo >= hi {
		return 0, 0, false
	}
	p0, p1 = lo/pagePositions, (hi+pagePositions-1)/pagePositions
	return p0, p1, last <= p0*pagePositions && least >= p1*pagePositions
}

// mask caps the scores of query i, the first of which is that of position base,
// and takes out those that it does not see; it sees lo up to hi of them.
func (q *Queries) mask(s []float32, i, base int) (lo, hi int) {
	lo, hi = max(0, q.lo[i]-base), min(len(s), q.hi[i]-base)
	if lo >= hi {
		return lo, hi
	}
	if q.Softcap > 0 {
		Softcap(s[lo:hi], q.Softcap)
	}
	for j := range s[:lo] {
		s[j] = float32(math.Inf(-1))
	}
	for j := hi; j < len(s); j++ {
		s[j] = float32(math.Inf(-1))
	}
	return lo, hi
}

// tile computes one tile over the pages that start at position base; whole says that
// each of its queries sees all of them.
func (q *Queries) tile(p *Partials, kv *Paged, span, base int, pages, next []int32, first, t int, whole bool) {
	n := len(pages) * pagePositions
	q.sa = scoreArgs{
		q: &q.q[first*q.dim], k: &kv.Data[kv.Keys], pages: &pages[0], np: len(pages),
		stride: kv.Stride, dim: q.dim, s: &q.s[0], pairs: &q.pairs[first*q.dim/2],
		values: 2 * (kv.Values - kv.Keys), near: 1,
	}
	keys, step := 2*(kv.Keys-kv.Values), 0
	switch {
	case inRow(pages):
		next, keys, step = pages, 0, 64
		q.sa.values, q.sa.near = 0, len(pages)
	case len(next) < len(pages):
		next = pages
	}
	scores(&q.sa, t)
	// The memory would be idle while weights are computed: they fetch values.
	near := kv.Values + int(pages[0])*kv.Stride
	rows := t // that softmax takes at once
	masked := !whole || q.Softcap != 0
	if masked {
		rows = 1
	}
	for i := 0; i < t; i += rows {
		s := q.s[i*Span:][:n]
		if masked {
			if lo, hi := q.mask(s, first+i, base); lo >= hi {
				clear(s)
				clear(q.p[i*Span:][:n])
				continue
			}
		}
		q.xa = softmaxArgs{
			s: &s[0], n: n, pairs: &q.p[i*Span], top: &q.top[i], sum: &q.sum[i],
			near: &kv.Data[min(near, len(kv.Data)-1)], step: step,
		}
		softmax(&q.xa, rows)
		near += rows * softmaxLines * step / 2 * n / 16
	}
	q.ma = mixArgs{
		p: &q.s[0], v: &kv.Data[kv.Values], pages: &pages[0], np: len(pages),
		stride: kv.Stride, dim: q.dim, o: &q.o[0], pairs: &q.p[0],
		next: &next[0], keys: keys,
	}
	mix(&q.ma, t)
	q.keep(p, span, base, n, first, t, q.dim)
}

// inRow tells whether pages lie one behind the other, but for a gap or two, as where
// a branch leaves the pages that it shares.
func inRow(pages []int32) bool {
	gaps := 0
	for i := 1; i < len(pages); i++ {
		if pages[i] != pages[i-1]+1 {
			gaps++
		}
	}
	return 8*gaps <= len(pages)
}

// Store rounds a key and a value to bfloat16 and stores them at position pos of
// a page.
func (p *Paged) Store(page, pos int, key, value []float32) {
	n := p.Dim * pagePositions
	k := p.Data[p.Keys+page*p.Stride:][:n]
	v := p.Data[p.Values+page*p.Stride:][:n]
	k = k[2*pos:]
	for d := 0; d+1 < len(key); d += 2 {
		k[d*pagePositions] = brain(key[d])
		k[d*pagePositions+1] = brain(key[d+1])
	}
	v = v[pos/2*2*p.Dim+pos%2:]
	for c, x := range value {
		v[2*c] = brain(x)
	}
}
