package compute

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

const (
	// PanelRows is the number of output rows that a kernel computes together.
	PanelRows = 16
	// BlockCols is the number of columns that share a scale.
	BlockCols = 32
)

// Kind is the way in which a Matrix stores its values.
type Kind uint8

const (
	// Float32 stores values as they are: 32 bits per weight.
	Float32 Kind = iota
	// Float16 stores half floats: 16 bits.
	Float16
	// Int8 stores d*(q-128), one d per block: 8.5 bits.
	Int8
	// Int8Half stores d*(q-128), one d per half block of 16 columns: 9 bits.
	Int8Half
	// Int5 stores d*(q-16) with q < 32, one d per block: 5.5 bits.
	Int5
	// Int5Min stores d*q+m with q < 32, one d and m per block: 6 bits.
	Int5Min
	// Int4 stores d*(q-8) with q < 16, one d per block: 4.5 bits.
	Int4
	// Int4Min stores d*q+m with q < 16, one d and m per block: 5 bits.
	Int4Min
	kinds // their number
)

// String returns the name of the kind.
func (k Kind) String() string {
	return [kinds]string{"Float32", "Float16", "Int8", "Int8Half", "Int5", "Int5Min", "Int4", "Int4Min"}[k]
}

// quantised tells whether products with the kind take quantised activations.
func (k Kind) quantised() bool { return k >= Int8 }

// form returns the form of activations that the kind takes unless told otherwise.
func (k Kind) form() Form {
	switch {
	case !k.quantised():
		return Floats
	case k.hasMin():
		return Sums
	}
	return Blocks
}

// blockBytes returns the bytes of the integers of one block of one panel.
func (k Kind) blockBytes() int {
	switch k {
	case Int4, Int4Min:
		return PanelRows * BlockCols / 2
	case Int5, Int5Min:
		return PanelRows * BlockCols * 5 / 8
	}
	return PanelRows * BlockCols
}

// scalesPerBlock returns the number of scales per row and block.
func (k Kind) scalesPerBlock() int {
	if k == Int8Half {
		return 2
	}
	return 1
}

// hasMin tells whether a minimum is stored for each row and block.
func (k Kind) hasMin() bool { return k == Int4Min || k == Int5Min }

// offset is the integer that stands for zero in the kinds without a minimum.
func (k Kind) offset() int {
	switch k {
	case Int4:
		return 8
	case Int5:
		return 16
	}
	return 128
}

// A Block is 32 consecutive values of a row in quantised form: value i is
// D[i/16]*Q[i] + M[i/16], or in the kinds without a minimum D[i/16] times what
// Q[i] is above the kind's offset.
type Block struct {
	Q    [BlockCols]uint8
	D, M [2]float32
}

// A Matrix is a matrix of weights [Rows][Cols] packed in panels. It does not
// own its memory.
type Matrix struct {
	Rows, Cols int
	Kind       Kind
	Form       Form // that the products take activations in; a quantised Kind may have Wide instead

	panels int
	nb     int       // blocks per row
	q      []byte    // quantised: [panel][block] integers
	d, m   []uint16  // quantised: [panel][block][scales][16] half floats
	f      []float32 // Float32: [panel][Cols][16]
	h      []uint16  // Float16: [panel][Cols][16]
}

// MatrixBytes returns the memory that a matrix takes, a multiple of 64.
func MatrixBytes(kind Kind, rows, cols int) int {
	panels, nb := (rows+PanelRows-1)/PanelRows, (cols+BlockCols-1)/BlockCols
	switch kind {
	case Float32:
		return panels * cols * PanelRows * 4
	case Float16:
		return (panels*cols*PanelRows*2 + 63) &^ 63
	}
	n := panels * nb * (kind.blockBytes() + kind.scalesPerBlock()*PanelRows*2)
	if kind.hasMin() {
		n += panels * nb * PanelRows * 2
	}
	return (n + 63) &^ 63
}

// NewMatrix returns a matrix of zeros in buf, which must be zeroed, aligned to
// 64 bytes and of MatrixBytes bytes.
func NewMatrix(kind Kind, rows, cols int, buf []byte) *Matrix {
	if len(buf) != MatrixBytes(kind, rows, cols) {
		panic(fmt.Sprintf("compute: %d bytes for a %v matrix of %d x %d", len(buf), kind, rows, cols))
	}
	m := &Matrix{
		Rows: rows, Cols: cols, Kind: kind,
		panels: (rows + PanelRows - 1) / PanelRows,
		nb:     (cols + BlockCols - 1) / BlockCols,
		Form:   kind.form(),
	}
	words := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(buf))), len(buf)/2)
	switch kind {
	case Float32:
		m.f = unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(buf))), len(buf)/4)
	case Float16:
		m.h = words
	default:
		n := m.panels * m.nb * kind.blockBytes()
		m.q = buf[:n:n]
		words = words[n/2:]
		s := m.panels * m.nb * kind.scalesPerBlock() * PanelRows
		m.d = words[:s:s]
		if kind.hasMin() {
			m.m = words[s : 2*s : 2*s]
		}
	}
	return m
}

// Size returns the numbers of rows and columns.
func (m *Matrix) Size() (rows, cols int) { return m.Rows, m.Cols }

// Panels returns the number of panels.
func (m *Matrix) Panels() int { return m.panels }

// Bytes returns the size of the packed weights, which a product reads once.
func (m *Matrix) Bytes() int { return MatrixBytes(m.Kind, m.Rows, m.Cols) }

// SetFloats stores row r of a Float32 or Float16 matrix.
func (m *Matrix) SetFloats(r int, row []float32) {
	base := r/PanelRows*m.Cols*PanelRows + r%PanelRows
	for c, v := range row[:m.Cols] {
		if m.Kind == Float16 {
			m.h[base+c*PanelRows] = floatToHalf(v)
		} else {
			m.f[base+c*PanelRows] = v
		}
	}
}

// SetBlocks stores row r of a quantised matrix, a block for each 32 columns.
func (m *Matrix) SetBlocks(r int, blocks []Block) {
	p, r := r/PanelRows, r%PanelRows
	per := m.Kind.scalesPerBlock()
	for b := range blocks[:m.nb] {
		blk := &blocks[b]
		q := m.q[(p*m.nb+b)*m.Kind.blockBytes():][:m.Kind.blockBytes()]
		// Four columns at a time, as a little-endian word.
		if m.Kind >= Int5 {
			for g := range 4 {
				low, high := binary.LittleEndian.Uint32(blk.Q[4*g:]), binary.LittleEndian.Uint32(blk.Q[4*g+16:])
				binary.LittleEndian.PutUint32(q[g*64+r*4:], low&0x0f0f0f0f|high<<4&0xf0f0f0f0)
			}
			setFifthBits(q[PanelRows*BlockCols/2:], &blk.Q, r)
		} else {
			for g := range 8 {
				binary.LittleEndian.PutUint32(q[g*64+r*4:], binary.LittleEndian.Uint32(blk.Q[4*g:]))
			}
		}
		for h := range per {
			at := ((p*m.nb+b)*per+h)*PanelRows + r
			m.d[at] = floatToHalf(blk.D[h])
			if m.m != nil {
				m.m[at] = floatToHalf(blk.M[h])
			}
		}
	}
}

// Row decodes row r into dst, of length Cols.
func (m *Matrix) Row(dst []float32, r int) {
	p, r := r/PanelRows, r%PanelRows
	dst = dst[:m.Cols]
	if !m.Kind.quantised() {
		base := p*m.Cols*PanelRows + r
		for c := range dst {
			if m.Kind == Float16 {
				dst[c] = halfToFloat(m.h[base+c*PanelRows])
			} else {
				dst[c] = m.f[base+c*PanelRows]
			}
		}
		return
	}
	per := m.Kind.scalesPerBlock()
	for c := range dst {
		b, i := c/BlockCols, c%BlockCols
		at := ((p*m.nb+b)*per+i*per/BlockCols)*PanelRows + r
		q := m.q[(p*m.nb+b)*m.Kind.blockBytes():]
		d := halfToFloat(m.d[at])
		var v int
		if m.Kind >= Int5 {
			v = int(q[i%16/4*64+r*4+i%4] >> (i / 16 * 4) & 15)
			if m.Kind.blockBytes() > PanelRows*BlockCols/2 {
				v |= int(q[PanelRows*BlockCols/2+i/4*8+r/2]>>(r%2*4+i%4)&1) << 4
			}
		} else {
			v = int(q[i/4*64+r*4+i%4])
		}
		if m.Kind.hasMin() {
			dst[c] = float32(d*float32(v)) + halfToFloat(m.m[at])
		} else {
			dst[c] = d * float32(v-m.Kind.offset())
		}
	}
}

// setFifthBits stores the fifth bits of row r of a block, where the kind has
// them: bit 4*r+c of the g-th 64-bit word belongs to column 4*g+c.
func setFifthBits(bits []byte, q *[BlockCols]uint8, r int) {
	if len(bits) == 0 {
		return
	}
	for g := range BlockCols / 4 {
		v := q[4*g]>>4&1 | q[4*g+1]>>3&2 | q[4*g+2]>>2&4 | q[4*g+3]>>1&8
		bits[g*8+r/2] |= v << (r % 2 * 4)
	}
}
