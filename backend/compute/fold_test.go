package compute

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestFold: results that are merged span by span, while they are in the cache, are
// those that Merge makes of partial results.
func TestFold(t *testing.T) {
	const n, spans, pages = 19, 5, 5*Span/pagePositions + 3
	for _, kv8 := range []bool{false, true} {
		for _, dim := range []int{16, 64, 80} {
			r := rand.New(rand.NewPCG(5, uint64(dim)))
			q := NewQueries(n, dim)
			if kv8 {
				q = NewQueriesInt8(n, dim)
			}
			plain := &Paged{Data: make([]uint16, pages*2*dim*pagePositions), Values: dim * pagePositions, Stride: 2 * dim * pagePositions, Dim: dim}
			data, scales := Int8Page(dim)
			small := &PagedInt8{Keys: make([]uint8, pages*data), Values: make([]int8, pages*data), Scales: make([]uint16, pages*scales), Dim: dim}
			table := make([]int32, 0, pages)
			for _, p := range r.Perm(pages) {
				table = append(table, int32(p))
			}
			for pos := range spans * Span {
				k, v := randFloats(r, dim, 1), randFloats(r, dim, 1)
				plain.Store(int(table[pos/pagePositions]), pos%pagePositions, k, v)
				small.Store(int(table[pos/pagePositions]), pos%pagePositions, k, v)
			}
			attend := func(fold bool, merged int) []float32 {
				r := rand.New(rand.NewPCG(6, 1))
				q.Reset(n, dim, n)
				q.Fold = fold
				lows, highs := make([]int, n), make([]int, n)
				for i := range n {
					highs[i] = 1 + r.IntN(spans*Span)
					if i%2 == 0 {
						lows[i] = r.IntN(highs[i])
					}
					q.Set(i, randFloats(r, dim, 0.5), lows[i], highs[i], i)
				}
				p := &Partials{Max: make([]float32, spans*n), Sum: make([]float32, spans*n), Out: make([]float32, spans*n*dim)}
				for s := range spans {
					if s == merged {
						q.Flush(p, s)
						q.Fold = false
					}
					run := table[s*Span/pagePositions:][:Span/pagePositions]
					if kv8 {
						q.AttendInt8(p, small, s, run)
					} else {
						q.Attend(p, plain, s, run, table[(s+1)*Span/pagePositions:])
					}
				}
				q.Flush(p, spans)
				var out []float32
				for i := range n {
					from, to := lows[i]/Span, (highs[i]-1)/Span+1
					folded := 1
					if fold {
						folded = max(1, min(merged, to)-from)
					}
					one := make([]float32, dim)
					at := from*n + i
					Merge(one, p.Max[at:], p.Sum[at:], n, p.Out[at*dim:], n*dim, folded, to-from)
					out = append(out, one...)
				}
				return out
			}
			want := attend(false, spans)
			for merged := 1; merged <= spans; merged++ {
				if got := attend(true, merged); !slices.Equal(got, want) {
					t.Errorf("dim %d, 8 bits %v, %d spans merged at once: other bits", dim, kv8, merged)
				}
			}
		}
	}
}

// TestAttendInRow: pages in a row are read in another way than pages that lie apart,
// to the same bits.
func TestAttendInRow(t *testing.T) {
	const dim, pages = 64, 40
	r := rand.New(rand.NewPCG(7, 7))
	apart, table := randPaged(r, dim, pages)
	row := &Paged{Data: make([]uint16, len(apart.Data)), Keys: apart.Keys, Values: apart.Values, Stride: apart.Stride, Dim: dim}
	straight := make([]int32, len(table))
	for i, p := range table {
		straight[i] = int32(i + 3)
		copy(row.Data[(i+3)*row.Stride:][:row.Stride], apart.Data[int(p)*row.Stride:])
	}
	if inRow(table) || !inRow(straight) {
		t.Fatal("the pages are not as meant")
	}
	for _, n := range []int{1, 3, 16, 21} {
		want := attendAll(rand.New(rand.NewPCG(8, uint64(n))), apart, table, n, true)
		got := attendAll(rand.New(rand.NewPCG(8, uint64(n))), row, straight, n, true)
		if !slices.Equal(got, want) {
			t.Errorf("%d queries: pages in a row give another result", n)
		}
	}
}
