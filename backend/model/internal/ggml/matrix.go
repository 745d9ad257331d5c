package ggml

import (
	"encoding/binary"
	"fmt"

	"github.com/coppice-run/coppice/backend/gguf"
)

// PanelRows is the number of rows that a task computes at the least.
const PanelRows = 16

// A Matrix is a matrix of weights as the file has it. It does not own its memory.
type Matrix struct {
	t          gguf.Type
	form       form
	rows, cols int
	data       []byte
}

// NewMatrix returns the matrix whose rows are data, cols values stored as t in
// each.
func NewMatrix(t gguf.Type, rows, cols int, data []byte) (*Matrix, error) {
	form, ok := formOf(t)
	if !ok {
		return nil, fmt.Errorf("ggml: no product with weights stored as %v", t)
	}
	if cols%t.BlockSize() != 0 || len(data) != t.RowBytes(rows*cols) {
		return nil, fmt.Errorf("ggml: %d bytes do not hold %d rows of %d values as %v", len(data), rows, cols, t)
	}
	return &Matrix{t: t, form: form, rows: rows, cols: cols, data: data}, nil
}

// Size returns the numbers of rows and columns.
func (m *Matrix) Size() (rows, cols int) { return m.rows, m.cols }

// Panels returns the number of runs of PanelRows rows.
func (m *Matrix) Panels() int { return (m.rows + PanelRows - 1) / PanelRows }

// Row decodes row r into dst.
func (m *Matrix) Row(dst []float32, r int) {
	// Type and sizes were checked by NewMatrix.
	_ = gguf.Dequantize(m.t, m.row(r), dst[:m.cols])
}

func (m *Matrix) row(r int) []byte {
	size := m.t.RowBytes(m.cols)
	return m.data[r*size:][:size]
}

// Mul multiplies the rows of panels p0 up to p1 with the activations. The result
// of row r and token i goes to y[i*stride+r]. worker names the thread.
func (m *Matrix) Mul(worker int, y []float32, stride int, a *Acts, p0, p1 int) {
	m.multiply(worker, a, p0, p1, func(i int) []float32 { return y[i*stride:] })
}

// MulTo is Mul with the results of token i in to[i].
func (m *Matrix) MulTo(worker int, to [][]float32, a *Acts, p0, p1 int) {
	m.multiply(worker, a, p0, p1, func(i int) []float32 { return to[i] })
}

func (m *Matrix) multiply(worker int, a *Acts, p0, p1 int, to func(i int) []float32) {
	room := a.rooms[worker]
	for r := p0 * PanelRows; r < min(m.rows, p1*PanelRows); r += group {
		n := min(group, m.rows-r)
		switch m.form {
		case blocks:
			room.unpackBlocks(m, r, n)
			for i := range a.n {
				room.dotBlocks(to(i)[r:][:n], m.t, a, i)
			}
		case supers:
			room.unpackSupers(m, r, n)
			for i := range a.n {
				room.dotSupers(to(i)[r:][:n], a, i)
			}
		default:
			for j := range n {
				m.Row(room.floats, r+j)
				for i := range a.n {
					to(i)[r+j] = Dot(room.floats[:m.cols], a.f[m.form][i*a.cols:][:m.cols])
				}
			}
		}
	}
}

// group is the number of rows that are unpacked and multiplied together.
const group = 4

// A room is what a thread unpacks rows to.
//
// An integer of q holds those of two rows, the second 32 bits higher. The sum of
// its products with activations is then both rows' sums: as long as they fit in
// 32 bits the lower one is the sum's lower half and the upper one the rest.
type room struct {
	q      [group / 2][]int64 // by column; in super blocks by lane, times the scale
	d, m   [group][]float32   // scales and minima of blocks, or those of super blocks
	mins   [group][]int32     // of super blocks: integer minima of 32 columns
	row    []int16            // one row's integers
	floats []float32
}

func newRoom(cols int) *room {
	r := &room{row: make([]int16, cols), floats: make([]float32, cols)}
	nb := (cols + blockCols - 1) / blockCols
	for i := range r.q {
		r.q[i] = make([]int64, cols)
	}
	for i := range group {
		r.d[i], r.m[i], r.mins[i] = make([]float32, nb), make([]float32, nb), make([]int32, nb)
	}
	return r
}

func (r *room) bytes() int64 {
	n := 2*len(r.row) + 4*len(r.floats)
	for i := range r.q {
		n += 8 * len(r.q[i])
	}
	for i := range group {
		n += 4 * (len(r.d[i]) + len(r.m[i]) + len(r.mins[i]))
	}
	return int64(n)
}

// put adds the integers of the i-th row of the group to q.
func (r *room) put(i, cols int) {
	q := r.q[i/2][:cols]
	row := r.row[:len(q)]
	if i%2 == 0 {
		for c, v := range row {
			q[c] = int64(v)
		}
		return
	}
	for c, v := range row {
		q[c] += int64(v) << 32
	}
}

// unpackBlocks unpacks n rows of the types with blocks of 32. What is left of an
// earlier group stays in the place of rows that are missing.
func (r *room) unpackBlocks(m *Matrix, first, n int) {
	size := m.t.BlockBytes()
	for i := range n {
		src := m.row(first + i)
		d, mins := r.d[i], r.m[i]
		for b := range m.cols / blockCols {
			blk := src[b*size:][:size]
			q := (*[blockCols]int16)(r.row[b*blockCols:])
			d[b] = half(blk)
			switch m.t {
			case gguf.Q8_0:
				for j, v := range blk[2:34] {
					q[j] = int16(int8(v))
				}
			case gguf.Q4_0:
				nibbles(q, blk[2:18], 8)
			case gguf.Q4_1:
				mins[b] = half(blk[2:])
				nibbles(q, blk[4:20], 0)
			case gguf.Q5_0:
				nibbles(q, blk[6:22], 16)
				fifthBits(q, binary.LittleEndian.Uint32(blk[2:]))
			case gguf.Q5_1:
				mins[b] = half(blk[2:])
				nibbles(q, blk[8:24], 0)
				fifthBits(q, binary.LittleEndian.Uint32(blk[4:]))
			}
		}
		r.put(i, m.cols)
	}
}

func half(b []byte) float32 { return gguf.HalfToFloat(binary.LittleEndian.Uint16(b)) }

// nibbles unpacks the low halves of the bytes, then the high ones, less offset.
func nibbles(q *[blockCols]int16, b []byte, offset int16) {
	for j, v := range b[:16] {
		q[j] = int16(v&15) - offset
		q[j+16] = int16(v>>4) - offset
	}
}

// fifthBits adds 16 where a bit is set.
func fifthBits(q *[blockCols]int16, bits uint32) {
	for j := range q {
		q[j] += int16(bits>>j&1) << 4
	}
}

// unpackSupers unpacks n rows of the types with blocks of 256.
func (r *room) unpackSupers(m *Matrix, first, n int) {
	size := m.t.BlockBytes()
	for i := range n {
		src := m.row(first + i)
		for b := range m.cols / superCols {
			blk := src[b*size:][:size]
			q := (*[superCols]int16)(r.row[b*superCols:])
			if m.t == gguf.Q6_K {
				r.d[i][b], r.m[i][b] = unpack6K(q, blk), 0
				clear(r.mins[i][b*8:][:8])
			} else {
				r.d[i][b], r.m[i][b] = unpack45K(q, (*[8]int32)(r.mins[i][b*8:]), blk, m.t == gguf.Q5_K)
			}
		}
		r.put(i, m.cols)
	}
}

// lane returns the place of column c of a super block in an order by lane.
func lane(c int) int { return c%lanes*(superCols/lanes) + c/lanes }

// unpack45K reads a block of Q4_K or Q5_K: integers times their scales, minima,
// and the scales of both.
func unpack45K(q *[superCols]int16, mins *[8]int32, b []byte, five bool) (d, dmin float32) {
	s, high, low := b[4:16], b[16:48], b[16:]
	if five {
		low = b[48:]
	}
	for j := range 8 {
		// Six bits each: the first four are whole, the others have their upper bits
		// in the former's.
		scale, least := s[j&3]&63, s[j&3+4]&63
		if j >= 4 {
			scale, least = s[j+4]&15|s[j-4]>>6<<4, s[j+4]>>4|s[j]>>6<<4
		}
		mins[j] = int32(least)
		for i, v := range low[j/2*32:][:32] {
			v = v >> (j % 2 * 4) & 15
			if five {
				v |= high[i] >> j & 1 << 4
			}
			q[lane(32*j+i)] = int16(v) * int16(scale)
		}
	}
	return half(b), half(b[2:])
}

// unpack6K reads a block of Q6_K: integers times their scales, one for each 16.
func unpack6K(q *[superCols]int16, b []byte) (d float32) {
	for j := range 8 {
		part, k := j/4, j%4 // halves of 128 values, quarters of them
		low, high := b[64*part+32*(k%2):], b[128+32*part:]
		for i := range 32 {
			v := low[i]>>(k/2*4)&15 | high[i]>>(2*k)&3<<4
			q[lane(32*j+i)] = (int16(v) - 32) * int16(int8(b[192+2*j+i/16]))
		}
	}
	return half(b[208:])
}
