package compute

import "math"

// TileTokens is the number of tokens that a kernel computes together.
const TileTokens = 8

// Acts are the activations of up to a fixed number of tokens, [tokens][cols],
// in the forms that the kernels read. Tokens are grouped in tiles of
// TileTokens; the last tile holds the rest.
//
// Quantised: value i of a block of 32 columns is Scale*q[i] with
// Scale = max|x|/127 and q rounded to nearest even. It depends on the token
// alone.
type Acts struct {
	n, cols, nb int

	q     []int8    // [tile][block][8 groups][t][4]
	sx    []float32 // [tile][block][t] scales
	xs    []float32 // [tile][block][t] scale times sum of q: for minima
	init  []int32   // [tile][block][t] -128 times the sum of q: for offset 128
	init2 []int32   // [tile][block][2 halves][t] the same for half blocks
	f     []float32 // [tile][cols][t] unquantised
}

// NewActs returns room for the given numbers of tokens and columns.
func NewActs(tokens, cols int) *Acts {
	nb := (cols + BlockCols - 1) / BlockCols
	return &Acts{
		q:     alignedInt8(tokens * nb * BlockCols),
		sx:    make([]float32, tokens*nb),
		xs:    make([]float32, tokens*nb),
		init:  make([]int32, tokens*nb),
		init2: make([]int32, tokens*nb*2),
		f:     make([]float32, tokens*cols),
	}
}

// alignedInt8 returns n bytes that start at a cache line.
func alignedInt8(n int) []int8 {
	mem := make([]byte, n+63)
	off := alignOffset(mem, 64)
	return bytesAsInt8(mem[off : off+n])
}

// Reset declares that a holds n tokens of cols columns, to be set by SetRow.
func (a *Acts) Reset(n, cols int) {
	a.n, a.cols, a.nb = n, cols, (cols+BlockCols-1)/BlockCols
}

// Tokens returns the number of tokens.
func (a *Acts) Tokens() int { return a.n }

// tile returns the number of tokens in the tile of token i, and i's place.
func (a *Acts) tile(i int) (first, t, at int) {
	first = i &^ (TileTokens - 1)
	return first, min(TileTokens, a.n-first), i - first
}

// SetRow stores the activations of token i in the forms that matrices of the
// given kinds read. x is padded with zeros to whole blocks; len(x) >= 32*blocks.
// Different tokens may be set at the same time.
func (a *Acts) SetRow(i int, x []float32, quantised, float bool) {
	first, t, at := a.tile(i)
	if float {
		f := a.f[first*a.cols:][:t*a.cols]
		for c, v := range x[:a.cols] {
			f[c*t+at] = v
		}
	}
	if quantised {
		quantise(a, first, t, at, x[:a.nb*BlockCols])
	}
}

// tiny is the largest magnitude that is quantised to zero.
const tiny = 0x1p-100

// quantiseGo is the reference of the quantise kernels.
func quantiseGo(a *Acts, first, t, at int, x []float32) {
	q := a.q[first*a.nb*BlockCols:]
	meta := first * a.nb
	for b := range a.nb {
		blk := x[b*BlockCols:][:BlockCols]
		var amax float32
		for _, v := range blk {
			amax = max(amax, float32(math.Abs(float64(v))))
		}
		var inv float32
		if amax >= tiny {
			inv = 127 / amax
		}
		var sum [2]int32
		qb := q[b*BlockCols*t:][:BlockCols*t]
		for i, v := range blk {
			n := roundEven(v * inv)
			sum[i/16] += n
			qb[(i/4*t+at)*4+i%4] = int8(n)
		}
		scale := amax / 127
		a.sx[meta+b*t+at] = scale
		a.xs[meta+b*t+at] = scale * float32(sum[0]+sum[1])
		a.init[meta+b*t+at] = -128 * (sum[0] + sum[1])
		a.init2[2*meta+2*b*t+at] = -128 * sum[0]
		a.init2[2*meta+(2*b+1)*t+at] = -128 * sum[1]
	}
}

// roundEven rounds to the nearest integer, ties to even, for |v| < 2^22.
func roundEven(v float32) int32 {
	const magic = 3 << 22 // pushes the fraction out of the significand
	return int32(math.Float32bits(float32(v+magic))&0x7fffff) - 1<<22
}
