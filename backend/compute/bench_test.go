package compute

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// limitsOnce measures the machine once per run of the benchmarks.
var limitsOnce = sync.OnceValue(func() Limits {
	l, err := MeasureLimits(1)
	if err != nil {
		panic(err)
	}
	return l
})

// fastest returns the shortest time of f in nanoseconds: on a busy machine the
// only figure that says something about f.
func fastest(b *testing.B, f func()) float64 {
	best := math.MaxFloat64
	for b.Loop() {
		start := time.Now()
		f()
		best = min(best, float64(time.Since(start).Nanoseconds()))
	}
	return best
}

// BenchmarkGemm prints the rate of matrix products on one thread, and the share
// of what the machine can do: of the read bandwidth for one token, with weights
// beyond the caches, and of the dot products for many.
func BenchmarkGemm(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	for kind := Float32; kind < kinds; kind++ {
		const cols = 4096
		rows := (72 << 20) / MatrixBytes(kind, 16, cols) * 16 // beyond the caches
		m := randMatrix(r, kind, 16, cols)
		big := repeatPanels(m, rows)
		for _, n := range []int{1, 2, 4, 8, 64} {
			b.Run(fmt.Sprintf("%v/%d", kind, n), func(b *testing.B) {
				w := big
				if n == 64 {
					w = repeatPanels(m, 256)
				}
				x := randActs(r, n, cols)
				y := make([]float32, n*w.Rows)
				ns := fastest(b, func() { w.Mul(y, w.Rows, x, 0, w.Panels()) })
				gbs, gmacs := float64(w.Bytes())/ns, float64(n*w.Rows*cols)/ns
				l := limitsOnce()
				peak := l.Int8GMACs
				if !kind.quantised() {
					peak = l.F32GMACs
				}
				b.ReportMetric(gbs, "GB/s")
				b.ReportMetric(100*gbs/l.ReadGBs, "%read")
				b.ReportMetric(gmacs, "GMAC/s")
				b.ReportMetric(100*gmacs/peak, "%peak")
			})
		}
	}
}

// repeatPanels returns a matrix of the given rows whose panels are copies of m's
// first.
func repeatPanels(m *Matrix, rows int) *Matrix {
	n := MatrixBytes(m.Kind, rows, m.Cols)
	mem, err := NewMemory(n)
	if err != nil {
		panic(err)
	}
	out := NewMatrix(m.Kind, rows, m.Cols, mem.Bytes()[:n])
	for p := range out.panels {
		copy(out.q[p*len(m.q):], m.q)
		copy(out.d[p*len(m.d):], m.d)
		if m.m != nil {
			copy(out.m[p*len(m.m):], m.m)
		}
		if m.f != nil {
			copy(out.f[p*m.Cols*PanelRows:], m.f[:m.Cols*PanelRows])
		}
		if m.h != nil {
			copy(out.h[p*m.Cols*PanelRows:], m.h[:m.Cols*PanelRows])
		}
	}
	return out
}

// BenchmarkAttend prints the rate of attention over one span, in cache: QK and
// PV products together, beside the peak of bfloat16 products.
func BenchmarkAttend(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, dim := range []int{64, 128, 256} {
		kv, pages := randPaged(r, dim, 40)
		kv8, pages8, _, _ := randPagedInt8(r, dim, 40)
		for _, n := range []int{1, 3, 8, 32} {
			p := &Partials{Max: make([]float32, n), Sum: make([]float32, n), Out: make([]float32, n*dim)}
			run := func(name string, q *Queries, bytes int, attend func()) {
				b.Run(fmt.Sprintf("%s/dim%d/%d", name, dim, n), func(b *testing.B) {
					q.Reset(n, dim, n)
					for i := range n {
						q.Set(i, randFloats(r, dim, 0.1), 0, Span, i)
					}
					ns := fastest(b, attend)
					gmacs := float64(2*n*dim*Span) / ns
					b.ReportMetric(gmacs, "GMAC/s")
					b.ReportMetric(100*gmacs/limitsOnce().BF16GMACs, "%peak")
					b.ReportMetric(float64(bytes)/ns, "GB/s")
				})
			}
			q, q8 := NewQueries(n, dim), NewQueriesInt8(n, dim)
			run("bf16", q, Span*dim*4, func() { q.Attend(p, kv, 0, pages[:Span/pagePositions], nil) })
			data, scales := Int8Page(dim)
			run("q8", q8, Span/pagePositions*2*(data+scales), func() { q8.AttendInt8(p, kv8, 0, pages8[:Span/pagePositions]) })
		}
	}
}

func BenchmarkLimits(b *testing.B) {
	l := limitsOnce()
	two, err := MeasureLimits(0)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
	}
	b.ReportMetric(l.ReadGBs, "GB/s")
	b.ReportMetric(l.Int8GMACs, "int8-GMAC/s")
	b.ReportMetric(l.F32GMACs, "f32-GMAC/s")
	b.ReportMetric(l.BF16GMACs, "bf16-GMAC/s")
	b.Logf("%d threads: %.1f GB/s, %.0f int8 GMAC/s, %.0f f32 GMAC/s", two.Threads, two.ReadGBs, two.Int8GMACs, two.F32GMACs)
}
