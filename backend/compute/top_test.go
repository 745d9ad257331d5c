//go:build amd64 || arm64

package compute

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// TestTop compares the kernels with the plain loop: values with many equals, minus
// infinity and not-a-number in places, sets from empty to full, of any length.
func TestTop(t *testing.T) {
	tiers(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 7))
		inf, nan := float32(math.Inf(-1)), float32(math.NaN())
		for _, n := range []int{0, 1, 63, 64, 65, 128, 200, 1000, 4096 + 17} {
			for round := range 300 {
				x := make([]float32, n)
				few := []float32{1, 7, 300, 1e6}[r.IntN(4)]
				for i := range x {
					x[i] = float32(math.Floor(float64((r.Float32() - 0.9) * few)))
					switch k := r.IntN(200); {
					case k == 0 && round%4 == 0:
						x[i] = -nan
					case k < 100 && round%7 == 0 || round%11 == 0:
						x[i] = inf
					case x[i] == 0 && k < 100:
						x[i] = float32(math.Copysign(0, -1))
					}
				}
				sets := [][]uint64{nil}
				for _, bits := range []int{0, 1, 3} {
					set := make([]uint64, max(0, (n+63)/64+r.IntN(3)-1))
					for i := range set {
						if set[i] = r.Uint64(); bits == 0 {
							set[i] &= r.Uint64() & r.Uint64() & r.Uint64() & r.Uint64() & r.Uint64()
						} else if bits == 3 {
							set[i] = math.MaxUint64
						}
					}
					sets = append(sets, set)
				}
				if len(sets[1]) > 0 && round%5 == 0 {
					clear(sets[1])
				}
				for k, set := range sets {
					at, bad := Top(x, set)
					want, wantBad := topGo(x, set)
					if bad != wantBad || !bad && at != want {
						t.Fatalf("%d values, round %d, set %d: %d, %v, want %d, %v", n, round, k, at, bad, want, wantBad)
					}
				}
			}
		}
	})
}

func BenchmarkTop(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 7))
	x := randFloats(r, 151936, 1)
	set := make([]uint64, len(x)/64)
	for i := range set {
		set[i] = r.Uint64() | r.Uint64()
	}
	for _, s := range [][]uint64{nil, set} {
		b.Run(fmt.Sprint("set ", s != nil), func(b *testing.B) {
			b.ReportMetric(fastest(b, func() { Top(x, s) }), "ns-best")
		})
		b.Run(fmt.Sprint("plain, set ", s != nil), func(b *testing.B) {
			b.ReportMetric(fastest(b, func() { topGo(x, s) }), "ns-best")
		})
	}
}
