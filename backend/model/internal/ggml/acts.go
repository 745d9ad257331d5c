package ggml

import (
	"math"

	"github.com/coppice-run/coppice/backend/gguf"
)

const (
	blockCols = 32  // columns of a block of Q8_0 and Q8_1
	superCols = 256 // of Q8_K
	lanes     = 8   // in which a dot product with Q8_K adds up
)

// A form is a type in which activations are multiplied with weights.
type form uint8

const (
	floats form = iota // F32
	halves             // F16
	brains             // BF16
	blocks             // Q8_0 and Q8_1, which hold the same integers
	supers             // Q8_K
	forms              // their number
)

// formOf returns the form for weights of type t.
func formOf(t gguf.Type) (form, bool) {
	switch t {
	case gguf.F32:
		return floats, true
	case gguf.F16:
		return halves, true
	case gguf.BF16:
		return brains, true
	case gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0:
		return blocks, true
	case gguf.Q4_K, gguf.Q5_K, gguf.Q6_K:
		return supers, true
	}
	return 0, false
}

// Acts are the activations of up to a fixed number of tokens.
type Acts struct {
	n, cols int
	reads   [forms]bool

	f     [blocks][]float32 // [token][cols] floats, halves, brains
	q     []int8            // blocks: [token][cols]
	d, s  []float32         // [token][block] scale, and scale times sum of the integers
	kq    []int8            // supers: [token][super block][lane][32]
	kd    []float32         // [token][super block]
	ksums []int32           // [token][block of 32] sums of the integers
	rooms []*room           // of the threads
}

// NewActs returns room for the given numbers of tokens and columns, and for the
// threads that multiply.
func NewActs(tokens, cols, threads int) *Acts {
	n, nb := tokens*cols, tokens*((cols+blockCols-1)/blockCols)
	a := &Acts{
		q: make([]int8, n), d: make([]float32, nb), s: make([]float32, nb),
		kq: make([]int8, n), kd: make([]float32, tokens*(cols/superCols+1)), ksums: make([]int32, nb),
	}
	for i := range a.f {
		a.f[i] = make([]float32, n)
	}
	for range threads {
		a.rooms = append(a.rooms, newRoom(cols))
	}
	return a
}

// Bytes returns the memory that a takes.
func (a *Acts) Bytes() int64 {
	n := int64(len(a.q)+len(a.kq)) + 4*int64(len(a.d)+len(a.s)+len(a.kd)+len(a.ksums))
	for _, f := range a.f {
		n += 4 * int64(len(f))
	}
	for _, r := range a.rooms {
		n += r.bytes()
	}
	return n
}

// Reset declares that a holds n tokens of cols columns, which no matrix reads yet.
func (a *Acts) Reset(n, cols int) {
	a.n, a.cols, a.reads = n, cols, [forms]bool{}
}

// ReadBy declares that the activations will be multiplied with m.
func (a *Acts) ReadBy(m *Matrix) { a.reads[m.form] = true }

// SetRow stores the activations of token i, as all that was declared reads them.
// Different tokens may be set at the same time.
func (a *Acts) SetRow(i int, x []float32) {
	x = x[:a.cols]
	if a.reads[floats] {
		copy(a.f[floats][i*a.cols:], x)
	}
	if a.reads[halves] {
		for c, v := range x {
			a.f[halves][i*a.cols+c] = gguf.HalfToFloat(gguf.FloatToHalf(v))
		}
	}
	if a.reads[brains] {
		for c, v := range x {
			a.f[brains][i*a.cols+c] = gguf.BrainToFloat(gguf.FloatToBrain(v))
		}
	}
	if a.reads[blocks] {
		nb := a.cols / blockCols
		for b := range nb {
			at := i*nb + b
			a.d[at], a.s[at] = quantiseBlock(a.q[at*blockCols:][:blockCols], x[b*blockCols:][:blockCols])
		}
	}
	if a.reads[supers] {
		nb := a.cols / superCols
		for b := range nb {
			at := i*nb + b
			a.kd[at] = quantiseSuper(a.kq[at*superCols:][:superCols], a.ksums[at*8:][:8], x[b*superCols:][:superCols])
		}
	}
}

// quantiseBlock makes a block of Q8_1, which is one of Q8_0 and the scaled sum of
// its integers: quantize_row_q8_1_ref. Scales pass through half floats.
func quantiseBlock(q []int8, x []float32) (scale, sum float32) {
	var most float32
	for _, v := range x {
		most = max(most, abs(v))
	}
	d := most / 127
	var inverse float32
	if d != 0 {
		inverse = 1 / d
	}
	total := 0
	for i, v := range x {
		// roundf: halves go away from zero. Only a scale that has no finite inverse
		// gives more than 127.
		n := math.Round(float64(float32(v * inverse)))
		q[i] = int8(max(-128, min(127, n)))
		total += int(q[i])
	}
	return throughHalf(d), throughHalf(float32(total) * d)
}

// quantiseSuper makes a block of Q8_K: quantize_row_q8_K_ref. The integers go to q
// by lane, that is by column modulo 8, since products add up so; sums are those of
// 32 columns.
func quantiseSuper(q []int8, sums []int32, x []float32) (scale float32) {
	var most, signed float32
	for _, v := range x {
		if a := abs(v); a > most {
			most, signed = a, v
		}
	}
	if most == 0 {
		clear(q)
		clear(sums)
		return 0
	}
	inverse := -127 / signed
	clear(sums)
	for i, v := range x {
		n := min(127, roundEven(float32(inverse*v)))
		q[i%lanes*(superCols/lanes)+i/lanes] = int8(n)
		sums[i/32] += int32(int8(n))
	}
	return 1 / inverse
}

// roundEven rounds to the nearest integer, ties to even, for |v| < 2^22: the sum
// has no room for a fraction.
func roundEven(v float32) int32 {
	return int32(math.Float32bits(v+0x1.8p23)&0x7fffff) - 1<<22
}

func abs(v float32) float32 { return math.Float32frombits(math.Float32bits(v) &^ (1 << 31)) }

// throughHalf rounds f to a half float.
func throughHalf(f float32) float32 { return gguf.HalfToFloat(gguf.FloatToHalf(f)) }
