package compute

import (
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// tiersHere are the tiers that there are for such a processor.
var tiersHere = []tier{tierGo, tierAVX2, tierAVX512, tierBF16}

// best is the highest tier to use, and use the one in use, which only tests
// change.
var (
	best = min(detect(), allowed(tiersHere, os.Getenv("COPPICE_CPU")))
	use  = best
)

// detect returns the highest tier of the processor.
func detect() tier {
	x := &cpu.X86
	if !x.HasAVX2 || !x.HasFMA || !x.HasF16C {
		return tierGo
	}
	if x.HasAVX512F && x.HasAVX512BW && x.HasAVX512VL && x.HasAVX512DQ && x.HasAVX512VNNI && x.HasBMI2 {
		if x.HasAVX512BF16 {
			return tierBF16
		}
		return tierAVX512
	}
	return tierAVX2
}

// Tier names the kernels in use: "avx512bf16", "avx512", "avx2" or "go". The
// environment variable COPPICE_CPU, set to one of these, keeps the process from
// using a higher one; results are the same, only later.
func Tier() string { return tierNames[use] }

// wantsPairs tells whether the attention kernels take pairs of bfloat16.
func wantsPairs() bool { return use == tierBF16 }

// runTokens is the largest number of tokens for which gemm takes several panels at
// once.
func runTokens() int {
	switch {
	case use >= tierAVX512:
		return TileTokens
	case use == tierAVX2:
		return 2
	}
	return 0
}

func gemm(kind Kind, a *gemmArgs, t int) {
	switch use {
	case tierAVX512, tierBF16:
		p := (*byte)(unsafe.Pointer(a))
		switch kind {
		case Float32:
			gemmFloat32AVX512(p, t)
		case Float16:
			gemmFloat16AVX512(p, t)
		case Int8:
			gemmInt8AVX512(p, t)
		case Int8Half:
			gemmInt8HalfAVX512(p, t)
		case Int5:
			gemmInt5AVX512(p, t)
		case Int5Min:
			gemmInt5MinAVX512(p, t)
		case Int4:
			gemmInt4AVX512(p, t)
		case Int4Min:
			gemmInt4MinAVX512(p, t)
		}
	case tierAVX2:
		gemmParts(kind, a, t)
	default:
		gemmGo(kind, a, t)
	}
}

// unpacks tells whether there are kernels that unpack panels of the kind.
func unpacks(kind Kind) bool {
	return kind >= Int5 && use >= tierAVX512
}

// unpack makes bytes of n blocks of a panel at src, as gemmUnpacked takes them.
func unpack(kind Kind, dst, src *byte, n int) {
	var add uint32 // what makes the offset that of Int8
	if !kind.hasMin() {
		add = uint32(128-kind.offset()) * 0x01010101
	}
	switch kind {
	case Int5:
		unpackInt5AVX512(dst, src, n, add)
	case Int5Min:
		unpackInt5MinAVX512(dst, src, n, add)
	case Int4:
		unpackInt4AVX512(dst, src, n, add)
	case Int4Min:
		unpackInt4MinAVX512(dst, src, n, add)
	}
}

// gemmUnpacked is gemm for a panel that unpack has made.
func gemmUnpacked(kind Kind, a *gemmArgs, t int) {
	if kind.hasMin() {
		gemmInt8MinAVX512((*byte)(unsafe.Pointer(a)), t)
	} else {
		gemmInt8AVX512((*byte)(unsafe.Pointer(a)), t)
	}
}

// gemmParts computes a tile by the AVX2 kernels, a few tokens at a time.
func gemmParts(kind Kind, a *gemmArgs, t int) {
	part := *a
	const n = 4
	for i := 0; i < t; i += n {
		p, c := (*byte)(unsafe.Pointer(&part)), min(n, t-i)
		switch kind {
		case Float32:
			gemmFloat32AVX2(p, c, t)
		case Float16:
			gemmFloat16AVX2(p, c, t)
		case Int8:
			gemmInt8AVX2(p, c, t)
		case Int8Half:
			gemmInt8HalfAVX2(p, c, t)
		case Int5:
			gemmInt5AVX2(p, c, t)
		case Int5Min:
			gemmInt5MinAVX2(p, c, t)
		case Int4:
			gemmInt4AVX2(p, c, t)
		case Int4Min:
			gemmInt4MinAVX2(p, c, t)
		}
		if i+n < t {
			part.x = skip(part.x, 4*n)
			part.sx, part.xs, part.xf = skip(part.sx, n), skip(part.xs, n), skip(part.xf, n)
			part.init = skip(part.init, n) // of kinds with one scale per block, as are all that read it
			part.y = skip(part.y, n*a.stride)
		}
	}
}

func quantise(a *Acts, form Form, first, t, at, block int, x []float32) {
	if use == tierGo {
		quantiseGo(a, form, first, t, at, block, x)
		return
	}
	args := a.quantArgs(form, first, t, at, block, x)
	quantiseAVX2((*byte)(unsafe.Pointer(&args)))
}

func scores(a *scoreArgs, t int) {
	switch use {
	case tierBF16:
		scoresBF16((*byte)(unsafe.Pointer(a)), t)
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
		if use == tierBF16 {
			expandPairs(a, t)
		}
		mixGo(a, t)
		return
	}
	// The shapes of the kernels: see mixShapes of the generator.
	queries, widest := 16, 1
	switch {
	case use == tierAVX2:
		queries = 4
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
			part.v, part.o = skip(a.v, 2*c), skip(a.o, i*a.dim+c)
			part.p, part.pairs = skip(a.p, i*Span), skip(a.pairs, i*Span)
			p, n := (*byte)(unsafe.Pointer(&part)), min(queries, t-i)
			switch use {
			case tierBF16:
				mixBF16(p, n, w)
			case tierAVX512:
				mixAVX512(p, n, w)
			default:
				mixAVX2(p, n, w)
			}
			c += 16 * w
		}
	}
}

func scores8(a *score8Args, t int) {
	switch use {
	case tierAVX512, tierBF16:
		scores8AVX512((*byte)(unsafe.Pointer(a)), t)
	case tierAVX2:
		scores8Pages(a, t, true)
	default:
		scores8Go(a, t)
	}
}

func mix8(a *mix8Args, t int) {
	if use == tierGo {
		mix8Go(a, t)
		return
	}
	// The shapes of the kernels: see mix8Shapes of the generator.
	queries, widest := 8, 1
	switch {
	case use == tierAVX2:
		queries = 2
	case t <= 3:
		queries, widest = 3, 4
	case t <= 6:
		queries, widest = 6, 2
	}
	part := *a
	for i := 0; i < t; i += queries {
		part.p, part.unit = skip(a.p, i*2*Span), skip(a.unit, i)
		n := min(queries, t-i)
		for c := 0; c < a.dim; {
			w := widest
			if w*16 > a.dim-c {
				w = 1
			}
			part.v, part.o = skip(a.v, 4*c), skip(a.o, i*a.dim+c)
			if use >= tierAVX512 {
				mix8AVX512((*byte)(unsafe.Pointer(&part)), n, w)
			} else {
				mix8AVX2((*byte)(unsafe.Pointer(&part)), n, w)
			}
			c += 16 * w
		}
	}
}

func weigh(a *weighArgs) float32 {
	switch {
	case use >= tierAVX512:
		return weighAVX512((*byte)(unsafe.Pointer(a)))
	case use == tierAVX2:
		return weighAVX2((*byte)(unsafe.Pointer(a)))
	}
	return weighGo(a)
}

func narrow(s []float32, inv float32, p []byte) {
	switch {
	case use >= tierAVX512:
		narrowAVX512(&s[0], len(s), inv, &p[0])
	case use == tierAVX2:
		narrowAVX2(&s[0], len(s), inv, &p[0])
	default:
		narrowGo(s, inv, p)
	}
}

func softmaxPlain(s []float32) (m, sum float32) {
	switch {
	case use >= tierAVX512:
		return softmaxPlainAVX512(&s[0], len(s))
	case use == tierAVX2:
		return softmaxPlainAVX2(&s[0], len(s))
	}
	return softmaxPlainGo(s)
}

// expandPairs gives mixGo the weights in the form that it reads.
func expandPairs(a *mixArgs, t int) {
	p, pairs := at(a.p, t*Span), at(a.pairs, t*Span)
	for i, v := range pairs {
		p[i], _ = brainPair([]uint16{v, 0})
	}
}

// softmaxLines is the number of lines that softmaxBF16 fetches with 16 scores.
const softmaxLines = 2

// softmax is softmaxGo of each query, or leaves the weights in pairs where wantsPairs and
// fetches what is near meanwhile.
func softmax(a *softmaxArgs, t int) {
	switch use {
	case tierBF16:
		softmaxBF16((*byte)(unsafe.Pointer(a)), t)
		return
	case tierGo:
		softmaxTileGo(a, t)
		return
	}
	top, sum := at(a.top, t), at(a.sum, t)
	for i := range t {
		if s := skip(a.s, i*Span); use == tierAVX512 {
			top[i], sum[i] = softmaxAVX512(s, a.n)
		} else {
			top[i], sum[i] = softmaxAVX2(s, a.n)
		}
	}
}

func foldTile(a *foldArgs, t int) {
	if use >= tierAVX512 && a.dim%16 == 0 {
		foldAVX512((*byte)(unsafe.Pointer(a)), t)
		return
	}
	foldTileGo(a, t)
}

func brainPairs(dst []uint32, v []float32) {
	if use == tierBF16 && len(v)%16 == 0 {
		brainBF16((*uint16)(unsafe.Pointer(&dst[0])), &v[0], len(v))
		return
	}
	brainPairsGo(dst, v)
}

// vectored tells whether the element-wise kernels can do n elements.
func vectored(n int) bool { return use != tierGo && n > 0 && n%16 == 0 }

func norm(dst, x, w []float32, eps float32) {
	if !vectored(len(x)) {
		normGo(dst, x, w, eps)
		return
	}
	var sum float32
	if use >= tierAVX512 {
		sum = sumSquaresAVX512(&x[0], len(x))
	} else {
		sum = sumSquaresAVX2(&x[0], len(x))
	}
	scale := 1 / float32(math.Sqrt(float64(sum/float32(len(x))+eps)))
	if use >= tierAVX512 {
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
	case use >= tierAVX512:
		gateAVX512(&dst[0], &gate[0], &up[0], len(dst), g)
	default:
		gateAVX2(&dst[0], &gate[0], &up[0], len(dst), g)
	}
}

func add(dst, x []float32) {
	switch {
	case !vectored(len(dst)):
		addGo(dst, x)
	case use >= tierAVX512:
		addAVX512(&dst[0], &x[0], len(dst))
	default:
		addAVX2(&dst[0], &x[0], len(dst))
	}
}

func blend(dst, x []float32, a, b float32) {
	switch {
	case !vectored(len(dst)):
		blendGo(dst, x, a, b)
	case use >= tierAVX512:
		blendAVX512(&dst[0], &x[0], len(dst), a, b)
	default:
		blendAVX2(&dst[0], &x[0], len(dst), a, b)
	}
}

// hasTop tells whether there are kernels for Top, of all values or of those of a set.
func hasTop(set bool) bool { return use >= tierAVX512 || use == tierAVX2 && !set }

// topOf returns the greatest of x, of those in set if it is not nil, and the greatest
// of their bits without signs.
func topOf(x []float32, set []uint64) (m float32, bits uint32) {
	switch {
	case set != nil:
		return topOfAVX512(&x[0], &set[0], len(set))
	case use >= tierAVX512:
		return topAVX512(&x[0], len(x))
	}
	return topAVX2(&x[0], len(x))
}

// find returns the index of the first of x that is m, or len(x).
func find(x []float32, m float32) int {
	if use >= tierAVX512 {
		return findAVX512(&x[0], len(x), m)
	}
	return findAVX2(&x[0], len(x), m)
}

// What dotPeak(1), floatPeak(1) and brainPeak(1) do, in multiply-adds.
var dotPeakMACs, floatPeakMACs, brainPeakMACs = peakMACs()

func peakMACs() (dot, float, brain int) {
	switch best {
	case tierBF16:
		return 16 * 64, 16 * 16, 16 * 32
	case tierAVX512:
		return 16 * 64, 16 * 16, 0
	case tierAVX2:
		return 12 * 32, 12 * 8, 0
	}
	return goPeakMACs, goPeakMACs, 0
}

func brainPeak(n int) { brainPeakBF16(n) }

func readPeak(b []byte) {
	switch {
	case best >= tierAVX512:
		readAVX512(&b[0], len(b))
	case best == tierAVX2:
		readAVX2(&b[0], len(b))
	default:
		readPeakGo(b)
	}
}

func dotPeak(n int) {
	switch {
	case best >= tierAVX512:
		dotPeakAVX512(n)
	case best == tierAVX2:
		dotPeakAVX2(n)
	default:
		dotPeakGo(n)
	}
}

func floatPeak(n int) {
	switch {
	case best >= tierAVX512:
		floatPeakAVX512(n)
	case best == tierAVX2:
		floatPeakAVX2(n)
	default:
		floatPeakGo(n)
	}
}
