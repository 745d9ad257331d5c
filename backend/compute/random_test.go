package compute

import (
	"math/rand/v2"
	"slices"
)

func randFloats(r *rand.Rand, n int, scale float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(r.NormFloat64() * scale)
	}
	return v
}

// randMatrix returns a matrix of random values of the kind.
func randMatrix(r *rand.Rand, kind Kind, rows, cols int) *Matrix {
	mem, err := NewMemory(MatrixBytes(kind, rows, cols))
	if err != nil {
		panic(err)
	}
	m := NewMatrix(kind, rows, cols, mem.Bytes()[:MatrixBytes(kind, rows, cols)])
	if kind.quantised() && r.IntN(2) == 0 {
		m.Form = Wide
	}
	for i := range rows {
		if !kind.quantised() {
			m.SetFloats(i, randFloats(r, cols, 1))
			continue
		}
		blocks := make([]Block, cols/BlockCols)
		for b := range blocks {
			for j := range blocks[b].Q {
				blocks[b].Q[j] = uint8(r.Uint32())
				switch kind {
				case Int4, Int4Min:
					blocks[b].Q[j] &= 15
				case Int5, Int5Min:
					blocks[b].Q[j] &= 31
				}
			}
			blocks[b].D = [2]float32{r.Float32(), r.Float32()}
			blocks[b].M = [2]float32{-r.Float32(), -r.Float32()}
		}
		m.SetBlocks(i, blocks)
	}
	return m
}

func randActs(r *rand.Rand, n, cols int) *Acts {
	a := NewActs(n, cols)
	a.Reset(n, cols)
	for i := range n {
		row := make([]float32, (cols+BlockCols-1)/BlockCols*BlockCols)
		copy(row, randFloats(r, cols, 2))
		a.SetRow(i, row, 1<<forms-1)
	}
	return a
}

// randPaged returns two spans of keys and values on shuffled pages.
func randPaged(r *rand.Rand, dim, pages int) (*Paged, []int32) {
	kv := &Paged{Data: make([]uint16, pages*dim*64), Keys: dim * 32, Values: dim * 48, Stride: dim * 64, Dim: dim}
	for i, v := range randFloats(r, len(kv.Data), 1) {
		kv.Data[i] = brain(v)
	}
	var table []int32
	for _, p := range r.Perm(pages)[:2*Span/pagePositions] {
		table = append(table, int32(p))
	}
	return kv, table
}

// attendAll computes n random queries over the two spans.
func attendAll(r *rand.Rand, kv *Paged, pages []int32, n int, window bool) []float32 {
	q := NewQueries(n, kv.Dim)
	q.Reset(n, kv.Dim, n)
	for i := range n {
		hi := 1 + r.IntN(2*Span)
		lo := 0
		if window {
			lo = r.IntN(hi)
		}
		q.Set(i, randFloats(r, kv.Dim, 0.5), lo, hi, i)
	}
	p := &Partials{Max: make([]float32, 2*n), Sum: make([]float32, 2*n), Out: make([]float32, 2*n*kv.Dim)}
	const per = Span / pagePositions
	q.Attend(p, kv, 0, pages[:per], pages[per:])
	q.Flush(p, 1)
	q.First = 1
	q.Attend(p, kv, 1, pages[per:], nil)
	q.Flush(p, 2)
	return slices.Concat(p.Max, p.Sum, p.Out)
}
