package compute

//go:generate sh -c "cd gen && go run . -out ../kernels_gen_amd64.s -stubs ../kernels_gen_amd64.go -pkg compute"

import (
	"math"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// tier is a set of instructions that kernels exist for.
type tier int

const (
	tierGo tier = iota
	tierAVX2
	tierAVX512
)

// best is the highest tier of this processor, and use the one in use, which
// only tests change.
var (
	best = detect()
	use  = best
)

func detect() tier {
	x := &cpu.X86
	if !x.HasAVX2 || !x.HasFMA || !x.HasF16C {
		return tierGo
	}
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ && x.HasAVX512VNNI {
		return tierAVX512
	}
	return tierAVX2
}

// Tier names the kernels in use: "avx512", "avx2" or "go".
func Tier() string { return [...]string{"go", "avx2", "avx512"}[use] }

func gemm(kind Kind, a *gemmArgs, t int) {
	switch use {
	case tierAVX512:
		p := (*byte)(unsafe.Pointer(a))
		switch kind {
		case Float32:
			gemmFloat32AVX512(p, t)
		case Float16:
			gemmFloat16AVX512(p, t)
		case Int8:
			gemmInt8AVX512(p, t)
		case Int8Min:
			gemmInt8MinAVX512(p, t)
		case Int8Half:
			gemmInt8HalfAVX512(p, t)
		case Int4Min:
			gemmInt4MinAVX512(p, t)
		}
	case tierAVX2:
		gemmParts(kind, a, t)
	default:
		gemmGo(kind, a, t)
	}
}

// gemmParts computes a tile by the AVX2 kernels, a few tokens at a time.
func gemmParts(kind Kind, a *gemmArgs, t int) {
	part := *a
	n := 2
	if !kind.quantised() {
		n = 4
	}
	for i := 0; i < t; i += n {
		p, c := (*byte)(unsafe.Pointer(&part)), min(n, t-i)
		switch kind {
		case Float32:
			gemmFloat32AVX2(p, c, t)
		case Float16:
			gemmFloat16AVX2(p, c, t)
		case Int8:
			gemmInt8AVX2(p, c, t)
		case Int8Min:
			gemmInt8MinAVX2(p, c, t)
		case Int8Half:
			gemmInt8HalfAVX2(p, c, t)
		case Int4Min:
			gemmInt4MinAVX2(p, c, t)
		}
		if i+n < t {
			part.x = skip(part.x, 4*n)
			part.sx, part.xs, part.xf = skip(part.sx, n), skip(part.xs, n), skip(part.xf, n)
			part.y = skip(part.y, n*a.stride)
		}
	}
}

// skip moves a pointer on by n elements; nil stays nil.
func skip[T any](p *T, n int) *T {
	if p == nil {
		return nil
	}
	return (*T)(unsafe.Add(unsafe.Pointer(p), n*int(unsafe.Sizeof(*p))))
}

// quantArgs are the operands of the quantise kernel.
type quantArgs struct {
	x           *float32
	q           *int8    // of the token in its tile
	sx, xs      *float32 // likewise
	init, init2 *int32
	n           int // blocks
	t           int // tokens of the tile
}

func quantise(a *Acts, first, t, at int, x []float32) {
	if use == tierGo {
		quantiseGo(a, first, t, at, x)
		return
	}
	meta := first*a.nb + at
	args := quantArgs{
		x: &x[0], q: &a.q[first*a.nb*BlockCols+at*4],
		sx: &a.sx[meta], xs: &a.xs[meta], init: &a.init[meta], init2: &a.init2[2*first*a.nb+at],
		n: a.nb, t: t,
	}
	quantiseAVX2((*byte)(unsafe.Pointer(&args)))
}

func scores(a *scoreArgs, t int) {
	switch use {
	case tierAVX512:
		scoresAVX512((*byte)(unsafe.Pointer(a)), t, t)
	case tierAVX2:
		part := *a
		for i := 0; i < t; i += 4 {
			scoresAVX2((*byte)(unsafe.Pointer(&part)), min(4, t-i), t)
			if i+4 < t {
				part.q, part.s = skip(part.q, 4), skip(part.s, 4*Span)
			}
		}
	default:
		scoresGo(a, t)
	}
}

func mix(a *mixArgs, t int) {
	if use == tierGo || a.dim%16 != 0 {
		mixGo(a, t)
		return
	}
	// The shapes of the kernels: see mixShapes of the generator.
	queries, widest := 16, 1
	switch {
	case use == tierAVX2:
		queries = 2
	case t <= 4:
		queries, widest = 4, 4
	}
	part := *a
	for i := 0; i < t; i += queries {
		for c := 0; c < a.dim; {
			w := widest
			if w*16 > a.dim-c {
				w = 1
			}
			part.v, part.o, part.p = skip(a.v, c), skip(a.o, i*a.dim+c), skip(a.p, i*Span)
			if use == tierAVX512 {
				mixAVX512((*byte)(unsafe.Pointer(&part)), min(queries, t-i), w)
			} else {
				mixAVX2((*byte)(unsafe.Pointer(&part)), min(queries, t-i), w)
			}
			c += 16 * w
		}
	}
}

func softmax(s []float32) (m, sum float32) {
	switch use {
	case tierAVX512:
		return softmaxAVX512(&s[0], len(s))
	case tierAVX2:
		return softmaxAVX2(&s[0], len(s))
	}
	return softmaxGo(s)
}

// vectored tells whether the element-wise kernels can do n elements.
func vectored(n int) bool { return use != tierGo && n > 0 && n%16 == 0 }

func norm(dst, x, w []float32, eps float32) {
	if !vectored(len(x)) {
		normGo(dst, x, w, eps)
		return
	}
	var sum float32
	if use == tierAVX512 {
		sum = sumSquaresAVX512(&x[0], len(x))
	} else {
		sum = sumSquaresAVX2(&x[0], len(x))
	}
	scale := 1 / float32(math.Sqrt(float64(sum/float32(len(x))+eps)))
	if use == tierAVX512 {
		scaleMulAVX512(&dst[0], &x[0], &w[0], len(x), scale)
	} else {
		scaleMulAVX2(&dst[0], &x[0], &w[0], len(x), scale)
	}
}

func gateUp(dst, gate, up []float32, gelu bool) {
	g := 0
	if gelu {
		g = 1
	}
	switch {
	case !vectored(len(dst)):
		gateGo(dst, gate, up, gelu)
	case use == tierAVX512:
		gateAVX512(&dst[0], &gate[0], &up[0], len(dst), g)
	default:
		gateAVX2(&dst[0], &gate[0], &up[0], len(dst), g)
	}
}

func add(dst, x []float32) {
	switch {
	case !vectored(len(dst)):
		addGo(dst, x)
	case use == tierAVX512:
		addAVX512(&dst[0], &x[0], len(dst))
	default:
		addAVX2(&dst[0], &x[0], len(dst))
	}
}

func blend(dst, x []float32, a, b float32) {
	switch {
	case !vectored(len(dst)):
		blendGo(dst, x, a, b)
	case use == tierAVX512:
		blendAVX512(&dst[0], &x[0], len(dst), a, b)
	default:
		blendAVX2(&dst[0], &x[0], len(dst), a, b)
	}
}

// toHalf rounds src to half floats.
func toHalf(dst []uint16, src []float32) {
	n := 0
	if use != tierGo {
		if n = len(src) &^ 7; n > 0 {
			toHalfAVX2(&dst[0], &src[0], n)
		}
	}
	for i, v := range src[n:] {
		dst[n+i] = floatToHalf(v)
	}
}

// What dotPeak(1) and floatPeak(1) do, in multiply-adds.
var dotPeakMACs, floatPeakMACs = peakMACs()

func peakMACs() (dot, float int) {
	if best == tierAVX512 {
		return 16 * 64, 16 * 16
	}
	return goPeakMACs, goPeakMACs
}

func readPeak(b []byte) {
	if best == tierAVX512 {
		readAVX512(&b[0], len(b))
	} else {
		readPeakGo(b)
	}
}

func dotPeak(n int) {
	if best == tierAVX512 {
		dotPeakAVX512(n)
	} else {
		dotPeakGo(n)
	}
}

func floatPeak(n int) {
	if best == tierAVX512 {
		floatPeakAVX512(n)
	} else {
		floatPeakGo(n)
	}
}
