package model

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/coppice-run/coppice/backend/compute"
	"github.com/coppice-run/coppice/backend/gguf"
)

// TestPackedRowsEqualDequantized packs random blocks of every type and reads the
// rows back. Scales are rounded to half floats where the file derives them from
// two numbers, which is all that may differ.
func TestPackedRowsEqualDequantized(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 9))
	for typ, bound := range map[gguf.Type]float64{
		gguf.F32: 0, gguf.BF16: 0, gguf.F16: 0,
		gguf.Q8_0: 0, gguf.Q4_0: 1e-6, gguf.Q4_1: 0, gguf.Q5_0: 0, gguf.Q5_1: 0,
		gguf.Q4_K: 1e-3, gguf.Q5_K: 1e-3, gguf.Q6_K: 1e-3,
	} {
		const rows, cols = 37, 512
		size := typ.RowBytes(cols)
		data := make([]byte, rows*size)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		// Sane scales: random bits may be infinite. The half floats of a block are at
		// its start, or at its end in Q6_K.
		for at := 0; at < len(data); at += typ.BlockBytes() {
			b := data[at:][:typ.BlockBytes()]
			put := func(i int) {
				h := gguf.FloatToHalf(float32(0.01 + 0.1*r.Float64()))
				b[i], b[i+1] = byte(h), byte(h>>8)
			}
			switch typ {
			case gguf.F32, gguf.BF16, gguf.F16:
				b[len(b)-1] &= 0xbf // small exponent
			case gguf.Q6_K:
				put(208)
			case gguf.Q4_1, gguf.Q5_1, gguf.Q4_K, gguf.Q5_K:
				put(0)
				put(2)
			default:
				put(0)
			}
		}
		kind, ok := kindOf(typ)
		if !ok {
			t.Fatalf("%v has no kind", typ)
		}
		n := compute.MatrixBytes(kind, rows, cols)
		mem, err := compute.NewMemory(n)
		if err != nil {
			t.Fatal(err)
		}
		m := compute.NewMatrix(kind, rows, cols, mem.Bytes()[:n])
		j := packJob{t: gguf.Tensor{Type: typ, Data: data}, kind: kind, rows: rows, cols: cols}
		j.rowsInto(m, 0, rows)
		got, want := make([]float32, cols), make([]float32, cols)
		for row := range rows {
			if err := gguf.Dequantize(typ, data[row*size:][:size], want); err != nil {
				t.Fatal(err)
			}
			m.Row(got, row)
			top := 0.0
			for _, w := range want {
				top = max(top, math.Abs(float64(w)))
			}
			for c := range want {
				if d := math.Abs(float64(got[c]) - float64(want[c])); !(d <= bound*top) {
					t.Fatalf("%v row %d column %d: %v, want %v", typ, row, c, got[c], want[c])
				}
			}
		}
		mem.Free()
	}
}
