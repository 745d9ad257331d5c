package compute

import (
	"math"
	"sync"
)

// TileTokens is the number of tokens that a kernel computes together.
const TileTokens = 8

// A Form is a form of activations. Which one a product takes depends on the
// weights, see Matrix.Form; all are those of llama.cpp's ggml, so that both
// engines multiply the same integers.
type Form uint8

const (
	// Blocks has 32 columns to a scale, which is rounded to a half float.
	Blocks Form = iota
	// Sums is Blocks, but also rounds the scale times the sum of the integers,
	// which minima are multiplied with, to a half float.
	Sums
	// Wide has 256 columns to a scale, in float32.
	Wide
	// Floats leaves the activations as they are.
	Floats
	forms // their number
)

// blocksPerScale is the number of blocks of BlockCols that share a scale.
func (f Form) blocksPerScale() int {
	if f == Wide {
		return 8
	}
	return 1
}

// Forms is a set of forms.
type Forms uint8

// Add adds a form to the set.
func (s *Forms) Add(f Form) { *s |= 1 << f }

// Has tells whether the form is in the set.
func (s Forms) Has(f Form) bool { return s>>f&1 != 0 }

// Acts are the activations of up to a fixed number of tokens, [tokens][cols],
// in the forms that the kernels read. Tokens are grouped in tiles of
// TileTokens; the last tile holds the rest.
//
// In the quantised forms value i of a block is scale*q[i] with
// scale = max|x|/127 and q rounded to nearest even. It depends on the token
// alone.
type Acts struct {
	n, cols, nb int

	quants [Floats]quants
	f      []float32 // [tile][cols][t] unquantised

	width int // columns that there is room for
	mu    sync.Mutex
	rooms [][]byte // for unpacked panels of that width, not in use
}

// quants are activations in a quantised form.
type quants struct {
	q     []int8    // [tile][block][8 groups][t][4]
	sx    []float32 // [tile][block][t] scales
	xs    []float32 // [tile][block][t] scale times sum of q: for minima
	init  []int32   // [tile][block][t] -128 times the sum of q: for offset 128
	init2 []int32   // [tile][block][2 halves][t] the same for half blocks
}

// NewActs returns room for the given numbers of tokens and columns.
func NewActs(tokens, cols int) *Acts {
	nb := (cols + BlockCols - 1) / BlockCols
	a := &Acts{f: make([]float32, tokens*cols), width: nb * BlockCols}
	for i := range a.quants {
		a.quants[i] = quants{
			q:     alignedInt8(tokens * nb * BlockCols),
			sx:    make([]float32, tokens*nb),
			xs:    make([]float32, tokens*nb),
			init:  make([]int32, tokens*nb),
			init2: make([]int32, tokens*nb*2),
		}
	}
	return a
}

// borrow returns room for the bytes of one panel, aligned to a cache line.
func (a *Acts) borrow() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.rooms); n > 0 {
		room := a.rooms[n-1]
		a.rooms = a.rooms[:n-1]
		return room
	}
	room := make([]byte, PanelRows*a.width+63)
	return room[alignOffset(room, 64):][: PanelRows*a.width : PanelRows*a.width]
}

// giveBack ends the use of a room.
func (a *Acts) giveBack(room []byte) {
	a.mu.Lock()
	a.rooms = append(a.rooms, room[:cap(room)])
	a.mu.Unlock()
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

// Bytes returns the memory that a takes, without the room for an unpacked panel
// that each thread needs, see RoomBytes.
func (a *Acts) Bytes() int64 {
	n := 4 * int64(len(a.f))
	for i := range a.quants {
		q := &a.quants[i]
		n += int64(len(q.q)) + 4*int64(len(q.sx)+len(q.xs)+len(q.init)+len(q.init2))
	}
	return n
}

// RoomBytes returns the size of the room for an unpacked panel.
func (a *Acts) RoomBytes() int64 { return int64(PanelRows * a.width) }

// Tokens returns the number of tokens.
func (a *Acts) Tokens() int { return a.n }

// tile returns the number of tokens in the tile of token i, and i's place.
func (a *Acts) tile(i int) (first, t, at int) {
	first = i &^ (TileTokens - 1)
	return first, min(TileTokens, a.n-first), i - first
}

// SetRow stores the activations of token i in the given forms.
// x is padded with zeros to whole blocks; len(x) >= 32*blocks.
// Different tokens may be set at the same time.
func (a *Acts) SetRow(i int, x []float32, in Forms) {
	cols := a.cols
	if in != 1<<Floats {
		cols = a.nb * BlockCols
	}
	a.SetPart(i, 0, x[:cols], in)
}

// PartCols is what the first column of a part must be a multiple of.
const PartCols = 256

// SetPart is SetRow for the columns of x alone, the first of which is column from.
// Different parts of a token may be set at the same time.
func (a *Acts) SetPart(i, from int, x []float32, in Forms) {
	if len(x) == 0 {
		return
	}
	first, t, at := a.tile(i)
	if in.Has(Floats) {
		f := a.f[first*a.cols+from*t:][:t*min(len(x), a.cols-from)]
		for c := 0; c*t < len(f); c++ {
			f[c*t+at] = x[c]
		}
	}
	for form := range Floats {
		if in.Has(form) {
			quantise(a, form, first, t, at, from/BlockCols, x)
		}
	}
}

// tiny is the largest magnitude that is quantised to zero.
const tiny = 0x1p-100

// quantiseGo is the reference of the quantise kernels: whole blocks of the token at
// place at of a tile, from block on.
func quantiseGo(a *Acts, form Form, first, t, at, block int, x []float32) {
	to := &a.quants[form]
	q := to.q[(first*a.nb+block*t)*BlockCols:]
	meta := first*a.nb + block*t
	per, blocks := form.blocksPerScale(), len(x)/BlockCols
	var inv, scale float32
	for b := range blocks {
		if b%per == 0 {
			inv, scale = scaleOf(form, x[b*BlockCols:min(b+per, blocks)*BlockCols])
		}
		var sum [2]int32
		qb := q[b*BlockCols*t:][:BlockCols*t]
		for i, v := range x[b*BlockCols:][:BlockCols] {
			n := roundEven(v * inv)
			sum[i/16] += n
			qb[(i/4*t+at)*4+i%4] = int8(n)
		}
		s, xs := scale, scale*float32(sum[0]+sum[1])
		switch form {
		case Blocks:
			s = throughHalf(s)
			xs = s * float32(sum[0]+sum[1])
		case Sums:
			s, xs = throughHalf(s), throughHalf(xs)
		}
		to.sx[meta+b*t+at] = s
		to.xs[meta+b*t+at] = xs
		to.init[meta+b*t+at] = -128 * (sum[0] + sum[1])
		to.init2[2*meta+2*b*t+at] = -128 * sum[0]
		to.init2[2*meta+(2*b+1)*t+at] = -128 * sum[1]
	}
}

// scaleOf returns the factor that makes integers of x, and about its inverse.
func scaleOf(form Form, x []float32) (inv, scale float32) {
	var amax float32
	for _, v := range x {
		amax = max(amax, float32(math.Abs(float64(v))))
	}
	if amax >= tiny {
		inv = 127 / amax
	}
	scale = amax / 127
	if form == Wide && amax >= tiny {
		scale = 1 / inv
	}
	return inv, scale
}

// throughHalf rounds f to a half float.
func throughHalf(f float32) float32 { return halfToFloat(floatToHalf(f)) }

// roundEven rounds to the nearest integer, ties to even, for |v| < 2^22. A product that
// is handed to it is rounded first: fused with the sum, it might become its neighbour.
func roundEven(v float32) int32 {
	const magic = 3 << 22 // pushes the fraction out of the significand
	return int32(math.Float32bits(float32(v)+magic)&0x7fffff) - 1<<22
}
