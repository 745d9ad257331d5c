package compute

import "math"

// A PagedInt8 locates the keys and values of one kv head of one layer as 8-bit
// integers. Wide is Dim rounded up to whole blocks of BlockCols; what lies
// beyond Dim counts for nothing.
//
// Keys of page i start at i*16*Wide as [Wide/4][16 positions][4], offset 128,
// with a scale for each position and 32 dimensions. Values start there too, as
// [4 groups][Wide][4 positions], with one scale for each position. The scales of
// page i start at i*16*(Wide/32+1) as [Wide/32 for keys, then values][16], half
// floats.
type PagedInt8 struct {
	Keys   []uint8
	Values []int8
	Scales []uint16
	Dim    int
}

// Int8Page returns how many bytes the keys of a page of the given width take, as
// many as the values, and how many half floats its scales.
func Int8Page(dim int) (data, scales int) {
	nb := (dim + BlockCols - 1) / BlockCols
	return pagePositions * BlockCols * nb, pagePositions * (nb + 1)
}

func (p *PagedInt8) wide() int { return (p.Dim + BlockCols - 1) &^ (BlockCols - 1) }

// Store rounds a key and a value to 8 bits and stores them at position pos of a
// page.
func (p *PagedInt8) Store(page, pos int, key, value []float32) {
	data, scales := Int8Page(p.Dim)
	k, v := p.Keys[page*data:][:data], p.Values[page*data:][:data]
	s := p.Scales[page*scales:][:scales]
	key, value = key[:p.Dim], value[:p.Dim]
	for b := 0; b*BlockCols < len(key); b++ {
		x := key[b*BlockCols : min(len(key), (b+1)*BlockCols)]
		inv, half := int8Scale(x)
		s[b*pagePositions+pos] = half
		out := k[b*BlockCols*pagePositions+4*pos:]
		for d, f := range x {
			out[d/4*4*pagePositions+d%4] = uint8(roundEven(f*inv) + 128)
		}
	}
	inv, half := int8Scale(value)
	s[scales-pagePositions+pos] = half
	v = v[pos/4*4*p.wide()+pos%4:]
	for c, f := range value {
		v[4*c] = int8(roundEven(f * inv))
	}
}

// int8Scale returns the factor that makes integers of x, and their scale as a
// half float. The factor goes with the scale as it is stored, so that rounding
// it adds no error.
func int8Scale(x []float32) (inv float32, half uint16) {
	var amax float32
	for _, f := range x {
		amax = max(amax, float32(math.Abs(float64(f))))
	}
	half = floatToHalf(amax / 127)
	if s := halfToFloat(half); s > 0 {
		inv = 1 / s
		if amax*inv >= 127.5 { // a subnormal half float that was rounded down, or the largest
			half = min(half+1, maxHalf)
			inv = min(1/halfToFloat(half), 127/amax)
		}
	}
	return inv, half
}

// int8Queries is the part of Queries that attention over 8-bit keys and values
// needs.
type int8Queries struct {
	acts  *Acts
	row   []float32 // a query, padded
	parts []byte    // weights of a tile as two parts, [TileTokens][2][Span]
	unit  [TileTokens]float32
	sa    score8Args
	wa    weighArgs
	ma    mix8Args
}

// score8Args are the operands of a tile of queries against a run of pages of
// 8-bit keys. Queries are a tile of Acts.
type score8Args struct {
	k       *uint8  // keys of page 0
	d       *uint16 // scales of page 0
	pages   *int32
	np      int
	stride  int // bytes from the keys of a page to those of the next
	strideD int // bytes from scales to scales
	x       *int8
	sx      *float32
	init    *int32
	n       int      // blocks
	s       *float32 // [t][Span]
}

// weighArgs are the operands that make integers of the weights of one query.
type weighArgs struct {
	s       *float32 // weights
	d       *uint16  // scales of the values of page 0
	pages   *int32
	np      int
	strideD int
}

// mix8Args are the operands of a tile of weights against a run of pages of 8-bit
// values.
type mix8Args struct {
	p      *byte // [t][2][Span]
	v      *int8 // values of page 0
	pages  *int32
	np     int
	stride int // bytes from page to page
	dim    int // a multiple of 16
	o      *float32
	unit   *float32
}

// NewQueriesInt8 is NewQueries for keys and values in 8 bits.
func NewQueriesInt8(n, dim int) *Queries {
	wide := (dim + BlockCols - 1) &^ (BlockCols - 1)
	return &Queries{
		lo: make([]int, n), hi: make([]int, n), slot: make([]int, n),
		s:     make([]float32, TileTokens*Span),
		o:     make([]float32, TileTokens*wide),
		chain: newSums(n, dim), chains: newSums(n, dim),
		int8: &int8Queries{
			acts: NewActs(n, dim), row: make([]float32, wide), parts: make([]byte, TileTokens*2*Span),
		},
	}
}

// set stores query i.
func (q *int8Queries) set(i int, v []float32) {
	copy(q.row, v)
	var in Forms
	in.Add(Blocks)
	q.acts.SetRow(i, q.row, in)
}

// AttendInt8 is Attend for queries that NewQueriesInt8 has made. The products are
// those of integers, whose sums are exact: queries and keys of 8 bits, and values
// of 8 bits with weights of 14.
func (q *Queries) AttendInt8(p *Partials, kv *PagedInt8, span int, pages []int32) {
	base := span * Span
	for first := 0; first < q.n; first += TileTokens {
		t := min(TileTokens, q.n-first)
		if p0, p1, _ := q.seen(first, t, base); p0 < p1 {
			q.tileInt8(p, kv, span, base+p0*pagePositions, pages[p0:p1], first, t)
		}
	}
}

// tileInt8 computes one tile over the pages that start at position base.
func (q *Queries) tileInt8(p *Partials, kv *PagedInt8, span, base int, pages []int32, first, t int) {
	x, n := q.int8, len(pages)*pagePositions
	wide := kv.wide()
	data, scales := Int8Page(kv.Dim)
	nb := wide / BlockCols
	to := &x.acts.quants[Blocks]
	x.sa = score8Args{
		k: &kv.Keys[0], d: &kv.Scales[0], pages: &pages[0], np: len(pages), stride: data, strideD: 2 * scales,
		x: &to.q[first*wide], sx: &to.sx[first*nb], init: &to.init[first*nb], n: nb, s: &q.s[0],
	}
	scores8(&x.sa, t)
	for i := range t {
		s := q.s[i*Span:][:n]
		parts := x.parts[i*2*Span:][:2*Span]
		lo, hi := q.mask(s, first+i, base)
		if lo >= hi {
			clear(parts)
			x.unit[i] = 0
			continue
		}
		q.top[i], q.sum[i] = softmaxPlain(s)
		x.wa = weighArgs{s: &s[0], d: &kv.Scales[nb*pagePositions], pages: &pages[0], np: len(pages), strideD: 2 * scales}
		top := weigh(&x.wa)
		var inv float32
		if top >= tiny {
			inv = weightMax / top
		}
		x.unit[i] = top / weightMax
		narrow(s, inv, parts)
	}
	x.ma = mix8Args{
		p: &x.parts[0], v: &kv.Values[0], pages: &pages[0], np: len(pages),
		stride: data, dim: wide, o: &q.o[0], unit: &x.unit[0],
	}
	mix8(&x.ma, t)
	q.keep(p, span, base, n, first, t, wide)
}

// weightMax is the largest weight, of two parts of 7 bits. Parts of 7 bits and
// not 8 let AVX2 add two products in 16 bits.
const weightMax = 1<<14 - 1

// scores8Go computes s[i][p] as a product of matrices whose rows are the keys of a
// page.
func scores8Go(a *score8Args, t int) { scores8Pages(a, t, false) }

// scores8Pages does scores8 page by page with the kernel in use for 8-bit weights, which
// have the layout of keys, or with gemmGo. Were that a function to be passed, the
// operands would be allocated at each call.
func scores8Pages(a *score8Args, t int, kernel bool) {
	g := gemmArgs{x: a.x, sx: a.sx, init: a.init, n: a.n, stride: Span, panels: 1}
	for j, page := range at(a.pages, a.np) {
		g.w = skip(a.k, int(page)*a.stride)
		g.d = skip(a.d, int(page)*a.strideD/2)
		g.y = skip(a.s, j*pagePositions)
		if kernel {
			gemm(Int8, &g, t)
		} else {
			gemmGo(Int8, &g, t)
		}
	}
}

// weighGo multiplies weights by the scales of their values and returns the largest
// product.
func weighGo(a *weighArgs) float32 {
	var top float32
	for j, page := range at(a.pages, a.np) {
		s := at(skip(a.s, j*pagePositions), pagePositions)
		for i, d := range at(skip(a.d, int(page)*a.strideD/2), pagePositions) {
			s[i] *= halfToFloat(d)
			top = max(top, s[i])
		}
	}
	return top
}

// narrowGo makes integers of weights: 128*p[i] + p[Span+i].
func narrowGo(s []float32, inv float32, p []byte) {
	for i, f := range s {
		n := roundEven(f * inv)
		p[i], p[Span+i] = byte(n>>7), byte(n&127)
	}
}

// mix8Go computes o[i][c], the sum over positions of their weights times their
// values. It is a sum of integers, in which no order matters.
func mix8Go(a *mix8Args, t int) {
	unit := at(a.unit, t)
	for i := range t {
		p := at(skip(a.p, i*2*Span), 2*Span)
		o := at(skip(a.o, i*a.dim), a.dim)
		for c := range o {
			var sum int32
			for j, page := range at(a.pages, a.np) {
				v := at(skip(a.v, int(page)*a.stride), a.stride)
				for pos := range pagePositions {
					w := int32(p[j*pagePositions+pos])<<7 + int32(p[Span+j*pagePositions+pos])
					sum += w * int32(v[pos/4*4*a.dim+4*c+pos%4])
				}
			}
			o[c] = float32(sum) * unit[i]
		}
	}
}

// softmaxPlainGo is softmaxGo that leaves the weights as they are.
func softmaxPlainGo(s []float32) (m, sum float32) {
	m = s[0]
	for _, v := range s {
		m = max(m, v)
	}
	var acc [lanes]float32
	for i, v := range s {
		s[i] = exp2f(v - m)
		acc[i%lanes] += s[i]
	}
	return m, sumLanes(&acc)
}
