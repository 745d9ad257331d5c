package compute

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// randPagedInt8 returns two spans of keys and values in 8 bits on shuffled pages,
// and what they are before rounding.
func randPagedInt8(r *rand.Rand, dim, pages int) (kv *PagedInt8, table []int32, keys, values [][]float32) {
	data, scales := Int8Page(dim)
	kv = &PagedInt8{Keys: make([]uint8, pages*data), Values: make([]int8, pages*data), Scales: make([]uint16, pages*scales), Dim: dim}
	for i := range kv.Keys { // what was there before must not matter
		kv.Keys[i], kv.Values[i] = uint8(r.Uint32()), int8(r.Uint32())
	}
	for i := range kv.Scales {
		kv.Scales[i] = floatToHalf(r.Float32())
	}
	for _, p := range r.Perm(pages)[:2*Span/pagePositions] {
		table = append(table, int32(p))
	}
	for pos := range 2 * Span {
		k, v := randFloats(r, dim, 1), randFloats(r, dim, math.Exp(r.NormFloat64()))
		kv.Store(int(table[pos/pagePositions]), pos%pagePositions, k, v)
		keys, values = append(keys, k), append(values, v)
	}
	return kv, table, keys, values
}

// attendInt8 computes n random queries over the two spans.
func attendInt8(r *rand.Rand, kv *PagedInt8, pages []int32, n int, window bool) (*Partials, [][]float32, [][2]int) {
	q := NewQueriesInt8(n, kv.Dim)
	q.Reset(n, kv.Dim, n)
	var vs [][]float32
	var seen [][2]int
	for i := range n {
		hi := 1 + r.IntN(2*Span)
		lo := 0
		if window {
			lo = r.IntN(hi)
		}
		v := randFloats(r, kv.Dim, 2/math.Sqrt(float64(kv.Dim)))
		q.Set(i, v, lo, hi, i)
		vs, seen = append(vs, v), append(seen, [2]int{lo, hi})
	}
	p := &Partials{Max: make([]float32, 2*n), Sum: make([]float32, 2*n), Out: make([]float32, 2*n*kv.Dim)}
	const per = Span / pagePositions
	q.AttendInt8(p, kv, 0, pages[:per])
	q.Flush(p, 1)
	q.First = 1
	q.AttendInt8(p, kv, 1, pages[per:])
	q.Flush(p, 2)
	return p, vs, seen
}

// TestAttendInt8 compares with attention from its definition in float64.
func TestAttendInt8(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 8))
	for _, dim := range []int{16, 64, 80, 128} {
		kv, pages, keys, values := randPagedInt8(r, dim, 40)
		const n = 11
		p, queries, seen := attendInt8(r, kv, pages, n, true)
		var off, all float64
		for i := range n {
			lo, hi := seen[i][0], seen[i][1]
			var sum float64
			want := make([]float64, dim)
			for pos := lo; pos < hi; pos++ {
				s := 0.0
				for d, x := range queries[i] {
					s += float64(x) * float64(keys[pos][d])
				}
				w := math.Exp2(s)
				sum += w
				for d, x := range values[pos] {
					want[d] += w * float64(x)
				}
			}
			got := make([]float32, dim)
			first, last := lo/Span, (hi-1)/Span
			Merge(got, p, first*n+i, n, first, make([]bool, last-first+1))
			for d := range want {
				e := want[d]/sum - float64(got[d])
				off += e * e
				all += want[d] / sum * want[d] / sum
			}
		}
		if rel := math.Sqrt(off / all); rel > 0.02 {
			t.Errorf("dim %d: %.4f off relative to the result", dim, rel)
		} else {
			t.Logf("dim %d: %.4f off", dim, rel)
		}
	}
}

// TestAttendInt8Bounds: extreme and zero values neither overflow nor divide by zero.
func TestAttendInt8Bounds(t *testing.T) {
	const dim = 32
	data, scales := Int8Page(dim)
	for _, c := range []struct{ key, value, want float32 }{
		{0, 0, 0}, {1, 3, 3}, {-1, -3, -3}, {1e-9, 1e-9, 0}, {1e20, 1, 1}, {1, 60000, 60000}, {100, -1e-4, -1e-4},
	} {
		kv := &PagedInt8{Keys: make([]uint8, 16*data), Values: make([]int8, 16*data), Scales: make([]uint16, 16*scales), Dim: dim}
		key, value := slices.Repeat([]float32{c.key}, dim), slices.Repeat([]float32{c.value}, dim)
		var pages []int32
		for i := range 16 {
			pages = append(pages, int32(i))
			for pos := range pagePositions {
				kv.Store(i, pos, key, value)
			}
		}
		q := NewQueriesInt8(1, dim)
		q.Reset(1, dim, 1)
		q.Set(0, slices.Repeat([]float32{0.1}, dim), 0, Span, 0)
		p := &Partials{Max: make([]float32, 1), Sum: make([]float32, 1), Out: make([]float32, dim)}
		q.AttendInt8(p, kv, 0, pages)
		q.Flush(p, 1)
		for _, o := range p.Out {
			got := o / p.Sum[0]
			if math.Abs(float64(got-c.want)) > 0.003*math.Abs(float64(c.want))+1e-8 {
				t.Fatalf("key %v, value %v: %v, want %v", c.key, c.value, got, c.want)
			}
		}
	}
}
