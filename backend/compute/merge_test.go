package compute

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestChains: whichever runs of spans are given at once, and whether chains are merged on
// the way or not, the result is that of merging the spans of each chain and then the
// chains.
func TestChains(t *testing.T) {
	const n, spans, pages = 59, 3*Chain + 2, (3*Chain+2)*Span/pagePositions + 3
	for _, kv8 := range []bool{false, true} {
		for _, dim := range []int{16, 80} {
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
			lows, highs, queries := make([]int, n), make([]int, n), make([][]float32, n)
			for i := range n {
				highs[i] = 1 + r.IntN(spans*Span)
				if i%2 == 0 {
					lows[i] = r.IntN(highs[i])
				}
				switch i / 16 { // these tiles are merged as one
				case 1:
					lows[i], highs[i] = 0, spans*Span
				case 2:
					lows[i], highs[i] = Span+Span/3, spans*Span-Span/5
				case 3: // all begin the chain of span 2*Chain, after other pasts
					lows[i], highs[i] = r.IntN((2*Chain+1)*Span), spans*Span
				}
				queries[i] = randFloats(r, dim, 0.5)
			}
			highs[0], lows[50] = spans*Span, 2*Chain*Span
			// attend computes runs of spans that begin at the given ones, and returns
			// partial results and which of them are covered.
			attend := func(starts []int, fold bool) (*Partials, [][]bool) {
				p := &Partials{Max: make([]float32, spans*n), Sum: make([]float32, spans*n), Out: make([]float32, spans*n*dim)}
				covered := make([][]bool, n)
				for i := range n {
					covered[i] = make([]bool, (highs[i]-1)/Span+1-lows[i]/Span)
				}
				for i, first := range starts {
					last := spans
					if i+1 < len(starts) {
						last = starts[i+1]
					}
					q.Reset(n, dim, n)
					q.First, q.Fold = first, fold && first == 0
					for i := range n {
						q.Set(i, queries[i], lows[i], highs[i], i)
						from, end := lows[i]/Span, (highs[i]-1)/Span+1
						for s := max(first, from); s < min(last, end); s++ {
							covered[i][s-from] = Covered(s, from, end, first, last, q.Fold)
						}
					}
					for s := first; s < last; s++ {
						run := table[s*Span/pagePositions:][:Span/pagePositions]
						if kv8 {
							q.AttendInt8(p, small, s, run)
						} else {
							q.Attend(p, plain, s, run, table[(s+1)*Span/pagePositions:])
						}
					}
					q.Flush(p, last)
				}
				return p, covered
			}
			var each []int
			for s := range spans {
				each = append(each, s)
			}
			single, covered := attend(each, false)
			want := make([][]float32, n)
			for i := range n {
				if slices.Contains(covered[i], true) {
					t.Fatalf("spans computed one by one are covered: %v", covered[i])
				}
				var all, chain sums
				all, chain = newSums(1, dim), newSums(1, dim)
				all.clear(1)
				from, end := lows[i]/Span, (highs[i]-1)/Span+1
				for s := from; s < end; {
					chain.clear(1)
					for next := (s/Chain + 1) * Chain; s < min(next, end); s++ {
						slot := s*n + i
						chain.add(0, 0, single.Max[slot], single.Sum[slot], single.Out[slot*dim:][:dim])
					}
					all.add(0, 0, chain.top[0], chain.sum[0], chain.acc)
				}
				for d := range all.acc {
					all.acc[d] *= 1 / all.sum[0]
				}
				want[i] = all.acc
			}
			for try := range 40 {
				starts := []int{0}
				for s := 1; s < spans; s++ {
					if r.IntN(2+try/4) == 0 {
						starts = append(starts, s)
					}
				}
				p, covered := attend(starts, try%2 == 0)
				for i := range n {
					// Only what the slots say is read.
					got, from := make([]float32, dim), lows[i]/Span
					for j, c := range covered[i] {
						if c {
							slot := (from+j)*n + i
							p.Max[slot], p.Sum[slot] = 1e9, -1
						}
					}
					Merge(got, p, from*n+i, n, from, covered[i])
					if !slices.Equal(got, want[i]) {
						t.Fatalf("dim %d, 8 bits %v, runs %v, folded %v, query of %d to %d: other bits", dim, kv8, starts, try%2 == 0, lows[i], highs[i])
					}
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

// TestWhole: what queries do not see changes nothing, nor do other queries, also where all
// see the same whole pages or nearly so.
func TestWhole(t *testing.T) {
	const dim, n = 32, 3
	tiers(t, func(t *testing.T) {
		for _, softcap := range []float32{0, 5} {
			for _, lo := range []int{0, 15, 16, 17, 31} {
				for _, hi := range []int{47, 48, 49, 255, 256} {
					attend := func(seed uint64, more int) []float32 {
						r := rand.New(rand.NewPCG(11, 11))
						kv, pages := randPaged(r, dim, 2*Span/pagePositions)
						other := rand.New(rand.NewPCG(12, seed))
						for pos := range Span {
							if pos < lo || pos >= hi {
								kv.Store(int(pages[pos/pagePositions]), pos%pagePositions, randFloats(other, dim, 9), randFloats(other, dim, 9))
							}
						}
						p := &Partials{Max: make([]float32, n+1), Sum: make([]float32, n+1), Out: make([]float32, (n+1)*dim)}
						q := NewQueries(n+1, dim)
						q.Softcap = softcap
						q.Reset(n+more, dim, n+1)
						for i := range n {
							q.Set(i, randFloats(r, dim, 0.5), lo, hi, i)
						}
						if more > 0 {
							q.Set(n, randFloats(r, dim, 0.5), lo+1, hi-1, n)
						}
						q.Attend(p, kv, 0, pages[:Span/pagePositions], nil)
						q.Flush(p, 1)
						return slices.Concat(p.Max[:n], p.Sum[:n], p.Out[:n*dim])
					}
					sameBits(t, fmt.Sprint("capped at ", softcap, " ", lo, " to ", hi), attend(1, 0), attend(2, 1))
				}
			}
		}
	})
}
