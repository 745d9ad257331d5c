//go:build amd64 || arm64

package compute

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"unsafe"
)

// tiers calls f once for each tier of assembly that the processor has.
func tiers(t *testing.T, f func(t *testing.T)) {
	for _, tr := range tiersHere[1:] {
		if tr > best {
			continue
		}
		use = tr
		t.Run(Tier(), f)
	}
	use = best
}

// withGo runs f with the reference kernels.
func withGo(f func()) {
	old := use
	use = tierGo
	f()
	use = old
}

// TestAllowedTier: COPPICE_CPU bounds the tiers of the processor that it is for.
func TestAllowedTier(t *testing.T) {
	// As under QEMU: else the tests of all tiers would pass without one of them.
	if name := os.Getenv("COPPICE_CPU"); runtime.GOARCH == "arm64" && name == "neon" && Tier() != name {
		t.Errorf("the processor has no kernels of %s", name)
	}
	x86, arm := []tier{tierGo, tierAVX2, tierAVX512, tierBF16}, []tier{tierGo, tierNEON}
	for _, c := range []struct {
		tiers []tier
		name  string
		want  tier
	}{
		{x86, "", tierBF16}, {x86, "go", tierGo}, {x86, "avx2", tierAVX2}, {x86, "avx512", tierAVX512},
		{x86, "avx512bf16", tierBF16}, {x86, "neon", tierBF16}, {x86, "sse", tierBF16},
		{arm, "", tierNEON}, {arm, "go", tierGo}, {arm, "avx2", tierNEON}, {arm, "neon", tierNEON}, {arm, "sse", tierNEON},
	} {
		if got := allowed(c.tiers, c.name); got != c.want {
			t.Errorf("COPPICE_CPU=%q of %v allows %v, want %v", c.name, c.tiers, got, c.want)
		}
	}
}

func TestArgumentOffsets(t *testing.T) {
	var g gemmArgs
	var s scoreArgs
	var m mixArgs
	var q quantArgs
	var s8 score8Args
	var w weighArgs
	var m8 mix8Args
	var x softmaxArgs
	var f foldArgs
	got := []uintptr{
		unsafe.Offsetof(g.w), unsafe.Offsetof(g.d), unsafe.Offsetof(g.m), unsafe.Offsetof(g.x),
		unsafe.Offsetof(g.sx), unsafe.Offsetof(g.xs), unsafe.Offsetof(g.init), unsafe.Offsetof(g.xf),
		unsafe.Offsetof(g.n), unsafe.Offsetof(g.y), unsafe.Offsetof(g.stride), unsafe.Offsetof(g.panels),
		unsafe.Offsetof(s.q), unsafe.Offsetof(s.k), unsafe.Offsetof(s.pages), unsafe.Offsetof(s.np),
		unsafe.Offsetof(s.stride), unsafe.Offsetof(s.dim), unsafe.Offsetof(s.s), unsafe.Offsetof(s.pairs), unsafe.Offsetof(s.values), unsafe.Offsetof(s.near),
		unsafe.Offsetof(m.p), unsafe.Offsetof(m.v), unsafe.Offsetof(m.pages), unsafe.Offsetof(m.np),
		unsafe.Offsetof(m.stride), unsafe.Offsetof(m.dim), unsafe.Offsetof(m.o), unsafe.Offsetof(m.pairs), unsafe.Offsetof(m.next), unsafe.Offsetof(m.keys),
		unsafe.Offsetof(q.x), unsafe.Offsetof(q.q), unsafe.Offsetof(q.sx), unsafe.Offsetof(q.xs),
		unsafe.Offsetof(q.init), unsafe.Offsetof(q.init2), unsafe.Offsetof(q.n), unsafe.Offsetof(q.t), unsafe.Offsetof(q.form),
		unsafe.Offsetof(s8.k), unsafe.Offsetof(s8.d), unsafe.Offsetof(s8.pages), unsafe.Offsetof(s8.np), unsafe.Offsetof(s8.stride),
		unsafe.Offsetof(s8.strideD), unsafe.Offsetof(s8.x), unsafe.Offsetof(s8.sx), unsafe.Offsetof(s8.init), unsafe.Offsetof(s8.n), unsafe.Offsetof(s8.s),
		unsafe.Offsetof(w.s), unsafe.Offsetof(w.d), unsafe.Offsetof(w.pages), unsafe.Offsetof(w.np), unsafe.Offsetof(w.strideD),
		unsafe.Offsetof(m8.p), unsafe.Offsetof(m8.v), unsafe.Offsetof(m8.pages), unsafe.Offsetof(m8.np), unsafe.Offsetof(m8.stride),
		unsafe.Offsetof(m8.dim), unsafe.Offsetof(m8.o), unsafe.Offsetof(m8.unit),
		unsafe.Offsetof(x.s), unsafe.Offsetof(x.n), unsafe.Offsetof(x.pairs), unsafe.Offsetof(x.top), unsafe.Offsetof(x.sum),
		unsafe.Offsetof(x.near), unsafe.Offsetof(x.step),
		unsafe.Offsetof(f.top), unsafe.Offsetof(f.sum), unsafe.Offsetof(f.acc), unsafe.Offsetof(f.dim), unsafe.Offsetof(f.topO),
		unsafe.Offsetof(f.sumO), unsafe.Offsetof(f.o), unsafe.Offsetof(f.stride), unsafe.Offsetof(f.a), unsafe.Offsetof(f.b),
	}
	want := []uintptr{
		0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88,
		0, 8, 16, 24, 32, 40, 48, 56, 64, 72,
		0, 8, 16, 24, 32, 40, 48, 56, 64, 72,
		0, 8, 16, 24, 32, 40, 48, 56, 64,
		0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80,
		0, 8, 16, 24, 32,
		0, 8, 16, 24, 32, 40, 48, 56,
		0, 8, 16, 24, 32, 40, 48,
		0, 8, 16, 24, 32, 40, 48, 56, 64, 128,
	}
	if !slices.Equal(got, want) {
		t.Errorf("offsets are %v, the generator has %v", got, want)
	}
}

func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: element %d is %v, reference %v", what, i, got[i], want[i])
		}
	}
}

func TestVectorKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tiers(t, func(t *testing.T) {
		for _, n := range []int{1, 15, 16, 17, 48, 64, 80, 256, 576} {
			x, w, u := randFloats(r, n, 3), randFloats(r, n, 1), randFloats(r, n, 9)
			x[0], u[n/2], u[n-1] = 0, 60, -1e6
			got, want := make([]float32, n), make([]float32, n)
			Norm(got, x, w, 1e-5)
			withGo(func() { Norm(want, x, w, 1e-5) })
			sameBits(t, fmt.Sprint("norm ", n), got, want)
			for _, gelu := range []bool{false, true} {
				Gate(got, u, w, gelu)
				withGo(func() { Gate(want, u, w, gelu) })
				sameBits(t, fmt.Sprint("gate ", n, gelu), got, want)
			}
			Add(got, x)
			withGo(func() { Add(want, x) })
			sameBits(t, fmt.Sprint("add ", n), got, want)
			blend(got, x, 0.3, 0.7)
			withGo(func() { blend(want, x, 0.3, 0.7) })
			sameBits(t, fmt.Sprint("blend ", n), got, want)
		}
		for n := 16; n <= Span; n += 16 {
			rows := queryTile
			if n%32 == 0 {
				rows = 1 + r.IntN(queryTile)
			}
			a := randFloats(r, rows*Span, 30)
			for i := range rows {
				a[i*Span+n-1], a[i*Span+n/2] = float32(math.Inf(-1)), -200
				// Each row's own maximum moves to another lane and block.
				row := a[i*Span:][:n]
				at := slices.Index(row, slices.Max(row))
				to := (i+r.IntN(2))%(n/16)*16 + i
				row[at], row[to] = row[to], row[at]
			}
			b := slices.Clone(a)
			pairs := make([]uint16, rows*Span)
			got, want := make([]float32, 2*rows), make([]float32, 2*rows)
			softmax(&softmaxArgs{s: &a[0], n: n, pairs: &pairs[0], top: &got[0], sum: &got[rows], near: &pairs[0]}, rows)
			for i := range rows {
				s, row := a[i*Span:][:n], b[i*Span:][:n]
				if wantsPairs() {
					for j, p := range pairs[i*Span:][:n] {
						s[j], _ = brainPair([]uint16{p, 0})
					}
				}
				want[i], want[rows+i] = softmaxGo(row)
				sameBits(t, fmt.Sprint("softmax ", n, i), s, row)
			}
			sameBits(t, fmt.Sprint("maxima and sums ", n), got, want)
		}
		for _, dim := range []int{16, 48, 64, 80, 13} {
			for rows := 1; rows <= queryTile; rows++ {
				acc, o := randFloats(r, rows*dim, 3), randFloats(r, rows*(dim+16), 3)
				tops, sums := randFloats(r, 2*queryTile, 20), randFloats(r, 2*queryTile, 5)
				minus, inf, nan := float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.NaN())
				for i, pair := range [][2]float32{
					{2, 2}, {minus, 0}, {0, minus}, {-inf, 3}, {3, -inf}, {-300, 5}, {5, -300}, {-120, 5.25}, {-120, 5},
					{-inf, -inf}, {inf, inf}, {inf, 3}, {nan, 3}, {3, nan},
				} {
					if i < rows {
						tops[rows-1-i], tops[queryTile+rows-1-i] = pair[0], pair[1]
					}
				}
				run := func(f func(*foldArgs, int)) []float32 {
					x, m, l := slices.Clone(acc), slices.Clone(tops), slices.Clone(sums)
					f(&foldArgs{
						top: &m[0], sum: &l[0], acc: &x[0], dim: dim,
						topO: &m[queryTile], sumO: &l[queryTile], o: &o[0], stride: dim + 16,
					}, rows)
					return slices.Concat(x, m, l)
				}
				var want []float32
				withGo(func() { want = run(foldTileGo) })
				sameBits(t, fmt.Sprint("fold ", rows, dim), run(foldTile), want)
			}
		}
		special := []uint32{
			0x3f808000, 0x3f818000, 0xbf808000, 0xbf818000, 0x3f808001, 0x3f817fff, // ties and what is next to them
			0x7f7fffff, 0x7f800000, 0xff800000, 0x007fffff, 0x807fffff, 0x00800000, 0, 0x80000000, 0x7fc00000, 0x7fffffff,
		}
		for _, n := range []int{2, 16, 30, 64, 80} {
			x := randFloats(r, n, 3)
			for i := range min(n, len(special)) {
				x[n-1-i] = math.Float32frombits(special[i])
			}
			got, want := make([]uint32, n/2), make([]uint32, n/2)
			brainPairs(got, x)
			brainPairsGo(want, x)
			if !slices.Equal(got, want) {
				t.Errorf("%d numbers in bfloat16: %x, reference %x", n, got, want)
			}
		}
	})
}

func TestQuantiseKernel(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	tiers(t, func(t *testing.T) {
		for _, n := range []int{1, 2, 3, 7, 8, 9, 19} {
			for _, cols := range []int{32, 96, 576, 1024} {
				got, want := NewActs(n, cols), NewActs(n, cols)
				got.Reset(n, cols)
				want.Reset(n, cols)
				for i := range n {
					x := randFloats(r, cols, math.Exp(r.NormFloat64()*6))
					if i == 0 {
						clear(x[:32])
					}
					if i == 1 {
						x[13] = 1e30
					}
					cut := cols / PartCols / 2 * PartCols
					got.SetPart(i, 0, x[:cut], 1<<forms-1)
					got.SetPart(i, cut, x[cut:], 1<<forms-1)
					withGo(func() { want.SetRow(i, x, 1<<forms-1) })
				}
				for form := range Floats {
					what := fmt.Sprint("quantise ", n, cols, form)
					got, want := &got.quants[form], &want.quants[form]
					if !slices.Equal(got.q, want.q) {
						t.Errorf("%s: integers differ", what)
					}
					if !slices.Equal(got.init, want.init) || !slices.Equal(got.init2, want.init2) {
						t.Errorf("%s: sums differ", what)
					}
					sameBits(t, what, got.sx, want.sx)
					sameBits(t, what, got.xs, want.xs)
				}
			}
		}
	})
}

// TestPartsOfARow: a token that is stored in parts, in any order, is what it is as a
// whole, with each tier and with the reference.
func TestPartsOfARow(t *testing.T) {
	compare := func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 5))
		for _, n := range []int{1, 3, 8, 11} {
			for _, cols := range []int{40, 256, 300, 544, 1000, 1536} {
				got, want := NewActs(n, cols), NewActs(n, cols)
				got.Reset(n, cols)
				want.Reset(n, cols)
				for i := range n {
					x := make([]float32, (cols+BlockCols-1)/BlockCols*BlockCols)
					copy(x, randFloats(r, cols, 2))
					want.SetRow(i, x, 1<<forms-1)
					for from := (cols - 1) / PartCols * PartCols; from >= 0; from -= PartCols {
						got.SetPart(i, from, x[from:min(len(x), from+PartCols)], 1<<forms-1)
					}
				}
				what := fmt.Sprint(n, " tokens of ", cols)
				sameBits(t, what, got.f, want.f)
				for form := range Floats {
					got, want := &got.quants[form], &want.quants[form]
					if !slices.Equal(got.q, want.q) || !slices.Equal(got.init, want.init) || !slices.Equal(got.init2, want.init2) {
						t.Errorf("%s, form %d: integers differ", what, form)
					}
					sameBits(t, what, got.sx, want.sx)
					sameBits(t, what, got.xs, want.xs)
				}
			}
		}
	}
	withGo(func() { t.Run("go", compare) })
	tiers(t, compare)
}

func TestGemmKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	tiers(t, func(t *testing.T) {
		for kind := Float32; kind < kinds; kind++ {
			for n := 1; n <= 17; n++ {
				rows, cols := 1+r.IntN(70), 32*(1+r.IntN(9))
				if !kind.quantised() { // blocks are whole
					cols -= r.IntN(32)
				}
				m, x := randMatrix(r, kind, rows, cols), randActs(r, n, cols)
				stride := m.Panels() * PanelRows
				got, want := make([]float32, n*stride), make([]float32, n*stride)
				m.Mul(got, stride, x, 0, m.Panels())
				withGo(func() { m.Mul(want, stride, x, 0, m.Panels()) })
				sameBits(t, fmt.Sprintf("%v %d tokens %dx%d", kind, n, rows, cols), got, want)
			}
		}
	})
}

// TestGemmExtremes: where weights and activations are all as large as they can be, of
// either sign, no sum of products overflows.
func TestGemmExtremes(t *testing.T) {
	tiers(t, func(t *testing.T) {
		for kind := Int8; kind < kinds; kind++ {
			const rows, cols = 2 * PanelRows, 96
			most := uint8(255)
			switch kind {
			case Int4, Int4Min:
				most = 15
			case Int5, Int5Min:
				most = 31
			}
			m := NewMatrix(kind, rows, cols, make([]byte, MatrixBytes(kind, rows, cols)))
			for i := range rows {
				blocks := make([]Block, cols/BlockCols)
				for b := range blocks {
					blocks[b].D, blocks[b].M = [2]float32{1, 1}, [2]float32{-1, -1}
					for j := range blocks[b].Q {
						blocks[b].Q[j] = most * uint8((i+i/4*j)%2) // all zero, all the most, or in turn
					}
				}
				m.SetBlocks(i, blocks)
			}
			for n := 1; n <= 9; n++ {
				x := NewActs(n, cols)
				x.Reset(n, cols)
				for i := range n {
					row := make([]float32, cols)
					for j := range row {
						row[j] = float32(1 - 2*((i+i/4*j)%2))
					}
					x.SetRow(i, row, 1<<forms-1)
				}
				got, want := make([]float32, n*rows), make([]float32, n*rows)
				m.Mul(got, rows, x, 0, m.Panels())
				withGo(func() { m.Mul(want, rows, x, 0, m.Panels()) })
				sameBits(t, fmt.Sprintf("%v, %d tokens", kind, n), got, want)
			}
		}
	})
}

// TestGemmRuns: products over some of the panels, none of them, and more than a call
// takes, and with a destination for each token, are those of one panel at a time.
func TestGemmRuns(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 6))
	tiers(t, func(t *testing.T) {
		for kind := Float32; kind < kinds; kind++ {
			const cols = 2048
			m := randMatrix(r, kind, 1+PanelRows*(2+callBytes/MatrixBytes(kind, PanelRows, cols)), cols)
			if per := m.panelsPerCall(); per >= m.Panels() || per < 2 {
				t.Fatalf("%v: %d of %d panels a call", kind, per, m.Panels())
			}
			stride := m.Panels() * PanelRows
			for _, n := range []int{1, 2, 3, 8, 9} {
				x := randActs(r, n, cols)
				want := make([]float32, n*stride)
				withGo(func() { m.Mul(want, stride, x, 0, m.Panels()) })
				for _, cut := range [][2]int{{0, m.Panels()}, {1, m.Panels() - 1}, {m.Panels() - 1, m.Panels()}, {2, 2}, {m.Panels(), m.Panels()}} {
					got, part := make([]float32, n*stride), make([]float32, n*stride)
					rows := make([][]float32, n)
					for i := range n {
						lo, hi := i*stride+cut[0]*PanelRows, i*stride+cut[1]*PanelRows
						copy(part[lo:hi], want[lo:hi])
						rows[i] = make([]float32, m.Rows)
					}
					m.Mul(got, stride, x, cut[0], cut[1])
					sameBits(t, fmt.Sprintf("%v %d tokens, panels %v", kind, n, cut), got, part)
					m.MulTo(rows, x, cut[0], cut[1])
					for i, row := range rows {
						sameBits(t, fmt.Sprintf("%v token %d of %d, panels %v", kind, i, n, cut), row, part[i*stride:][:m.Rows])
					}
				}
			}
		}
		none := NewActs(1, 64)
		none.Reset(0, 64)
		randMatrix(r, Int8, 20, 64).Mul(nil, 0, none, 0, 2)
	})
}

func TestAttendKernels(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	tiers(t, func(t *testing.T) {
		for _, dim := range []int{8, 16, 32, 48, 64, 80, 96, 128, 256} {
			kv, pages := randPaged(r, dim, 40)
			for n := 1; n <= 17; n += 1 + r.IntN(3) {
				for _, window := range []bool{false, true} {
					var want []float32
					seed := func() *rand.Rand { return rand.New(rand.NewPCG(9, uint64(n))) }
					got := attendAll(seed(), kv, pages, n, window)
					withGo(func() { want = attendAll(seed(), kv, pages, n, window) })
					sameBits(t, fmt.Sprintf("attend %d queries of %d", n, dim), got, want)
				}
			}
		}
	})
}

func TestAttendInt8Kernels(t *testing.T) {
	type shape struct {
		dim, n int
		window bool
	}
	compute := func(s shape) []float32 {
		r := rand.New(rand.NewPCG(uint64(s.dim), uint64(s.n)))
		kv, pages, _, _ := randPagedInt8(r, s.dim, 40)
		p, _, _ := attendInt8(r, kv, pages, s.n, s.window)
		return slices.Concat(p.Max, p.Sum, p.Out)
	}
	want := map[shape][]float32{}
	withGo(func() {
		for i, dim := range []int{8, 48, 64, 80, 96, 128} {
			for n := 1; n <= 9; n++ {
				if s := (shape{dim, n, n%2 == 0}); dim == 64 || n%5 == i%5 {
					want[s] = compute(s)
				}
			}
		}
	})
	tiers(t, func(t *testing.T) {
		for s, w := range want {
			sameBits(t, fmt.Sprintf("%+v", s), compute(s), w)
		}
	})
}
