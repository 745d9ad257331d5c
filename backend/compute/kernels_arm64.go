package compute

import (
	"math"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// tiersHere are the tiers that there are for such a processor.
var tiersHere = []tier{tierGo, tierNEON}

// best is the highest tier to use, and use the one in use, which only tests
// change.
var (
	best = min(detect(), allowed(tiersHere, os.Getenv("COPPICE_CPU")))
	use  = best
)

// detect returns the highest tier of the processor. All Macs have the 8-bit dot
// product; older versions of their system do not say so.
func detect() tier {
	if cpu.ARM64.HasASIMDDP || runtime.GOOS == "darwin" {
		return tierNEON
	}
	return tierGo
}

// Tier names the kernels in use: "neon" or "go". The environment variable COPPICE_CPU
// set to "go" keeps the process from using the others; results are the same, only later.
func Tier() string { return tierNames[use] }

// wantsPairs tells whether the attention kernels take pairs of bfloat16.
func wantsPairs() bool { return false }

// runTokens is the largest number of tokens for which gemm takes several panels at
// once.
func runTokens() int {
	if use == tierNEON {
		return 2
	}
	return 0
}

func gemm(kind Kind, a *gemmArgs, t int) {
	if use == tierGo {
		gemmGo(kind, a, t)
		return
	}
	gemmParts(kind, false, a, t)
}

// unpacks tells whether there are kernels that unpack panels of the kind.
func unpacks(kind Kind) bool { return kind.quantised() && use == tierNEON }

// unpack makes bytes of n blocks of a panel at src, as gemmUnpacked takes them.
func unpack(kind Kind, dst, src *byte, n int) {
	switch kind {
	case Int8, Int8Half:
		unpackInt8NEON(dst, src, n)
	case Int5:
		unpackInt5NEON(dst, src, n)
	case Int5Min:
		unpackInt5MinNEON(dst, src, n)
	case Int4:
		unpackInt4NEON(dst, src, n)
	case Int4Min:
		unpackInt4MinNEON(dst, src, n)
	}
}

// gemmUnpacked is gemm for a panel that unpack has made.
func gemmUnpacked(kind Kind, a *gemmArgs, t int) { gemmParts(kind, true, a, t) }

// gemmParts computes a tile, a few tokens at a time.
func gemmParts(kind Kind, unpacked bool, a *gemmArgs, t int) {
	part := *a
	const n = 4
	for i := 0; i < t; i += n {
		p, c := (*byte)(unsafe.Pointer(&part)), min(n, t-i)
		switch {
		case unpacked && kind.hasMin():
			gemmSignedMinNEON(p, c, t)
		case unpacked && kind == Int8Half:
			gemmSignedHalfNEON(p, c, t)
		case unpacked:
			gemmSignedNEON(p, c, t)
		case kind == Float32:
			gemmFloat32NEON(p, c, t)
		case kind == Float16:
			gemmFloat16NEON(p, c, t)
		case kind == Int8:
			gemmInt8NEON(p, c, t)
		case kind == Int8Half:
			gemmInt8HalfNEON(p, c, t)
		case kind == Int5:
			gemmInt5NEON(p, c, t)
		case kind == Int5Min:
			gemmInt5MinNEON(p, c, t)
		case kind == Int4:
			gemmInt4NEON(p, c, t)
		case kind == Int4Min:
			gemmInt4MinNEON(p, c, t)
		}
		if i+n < t {
			part.x = skip(part.x, 4*n)
			part.sx, part.xs = skip(part.sx, n), skip(part.xs, n)
			part.xf = skip(part.xf, n)
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
	quantiseNEON((*byte)(unsafe.Pointer(&args)))
}

func scores(a *scoreArgs, t int) {
	if use == tierGo {
		scoresGo(a, t)
		return
	}
	part := *a
	for i := 0; i < t; {
		n := queriesOf(t - i)
		scoresNEON((*byte)(unsafe.Pointer(&part)), n, t)
		if i += n; i < t {
			part.q, part.s = skip(part.q, n), skip(part.s, n*Span)
		}
	}
}

// queriesOf returns how many of the queries that are left the attention kernels take.
func queriesOf(left int) int {
	if left >= 8 {
		return 8
	}
	return min(left, 4)
}

func mix(a *mixArgs, t int) {
	if use == tierGo || a.dim%16 != 0 {
		mixGo(a, t)
		return
	}
	part := *a
	for i := 0; i < t; {
		n := queriesOf(t - i)
		for c := 0; c < a.dim; {
			w := 1
			if n <= 2 && a.dim-c >= 32 {
				w = 2
			}
			part.v, part.o, part.p = skip(a.v, 2*c), skip(a.o, i*a.dim+c), skip(a.p, i*Span)
			mixNEON((*byte)(unsafe.Pointer(&part)), n, w)
			c += 16 * w
		}
		i += n
	}
}

func scores8(a *score8Args, t int) {
	if use == tierGo {
		scores8Go(a, t)
		return
	}
	scores8Pages(a, t, true)
}

func mix8(a *mix8Args, t int) {
	if use == tierGo {
		mix8Go(a, t)
		return
	}
	part := *a
	for i := 0; i < t; {
		n := 1 // query, 2 or 4
		for 2*n <= min(4, t-i) {
			n *= 2
		}
		part.p, part.unit, part.o = skip(a.p, i*2*Span), skip(a.unit, i), skip(a.o, i*a.dim)
		mix8NEON((*byte)(unsafe.Pointer(&part)), n)
		i += n
	}
}

func weigh(a *weighArgs) float32 {
	if use == tierGo {
		return weighGo(a)
	}
	return weighNEON((*byte)(unsafe.Pointer(a)))
}

func narrow(s []float32, inv float32, p []byte) {
	if use == tierGo {
		narrowGo(s, inv, p)
		return
	}
	narrowNEON(&s[0], &p[0], len(s), inv)
}

func softmaxPlain(s []float32) (m, sum float32) {
	if use == tierGo {
		return softmaxPlainGo(s)
	}
	return softmaxPlainNEON(&s[0], len(s))
}

// softmaxLines is the number of lines that softmax fetches with 16 scores.
const softmaxLines = 0

// softmax is softmaxGo of each query; what is near is not fetched.
func softmax(a *softmaxArgs, t int) {
	if use == tierGo {
		softmaxTileGo(a, t)
		return
	}
	top, sum := at(a.top, t), at(a.sum, t)
	for i := range t {
		top[i], sum[i] = softmaxNEON(skip(a.s, i*Span), a.n)
	}
}

func foldTile(a *foldArgs, t int) { foldTileGo(a, t) }

func brainPairs(dst []uint32, v []float32) { brainPairsGo(dst, v) }

// vectored tells whether the element-wise kernels can do n elements.
func vectored(n int) bool { return use != tierGo && n > 0 && n%16 == 0 }

func norm(dst, x, w []float32, eps float32) {
	if !vectored(len(x)) {
		normGo(dst, x, w, eps)
		return
	}
	sum := sumSquaresNEON(&x[0], len(x))
	scale := 1 / float32(math.Sqrt(float64(sum/float32(len(x))+eps)))
	scaleMulNEON(&dst[0], &x[0], &w[0], len(x), scale)
}

func gateUp(dst, gate, up []float32, gelu bool) {
	g := 0
	if gelu {
		g = 1
	}
	if !vectored(len(dst)) {
		gateGo(dst, gate, up, gelu)
		return
	}
	gateNEON(&dst[0], &gate[0], &up[0], len(dst), g)
}

func add(dst, x []float32) {
	if !vectored(len(dst)) {
		addGo(dst, x)
		return
	}
	addNEON(&dst[0], &x[0], len(dst))
}

func blend(dst, x []float32, a, b float32) {
	if !vectored(len(dst)) {
		blendGo(dst, x, a, b)
		return
	}
	blendNEON(&dst[0], &x[0], len(dst), a, b)
}

// hasTop tells whether there are kernels for Top.
func hasTop(bool) bool { return use == tierNEON }

// topOf returns the greatest of x, of those in set if it is not nil, and the greatest
// of their bits without signs.
func topOf(x []float32, set []uint64) (m float32, bits uint32) {
	if set != nil {
		return topOfNEON(&x[0], &set[0], len(set))
	}
	return topNEON(&x[0], len(x))
}

// find returns the index of the first of x that is m, rounded down to a multiple of 16,
// or len(x).
func find(x []float32, m float32) int { return findNEON(&x[0], len(x), &m) }

// What dotPeak(1) and floatPeak(1) do, in multiply-adds.
var dotPeakMACs, floatPeakMACs = peakMACs()

func peakMACs() (dot, float int) {
	if best == tierNEON {
		return 16 * 16, 16 * 4
	}
	return goPeakMACs, goPeakMACs
}

// brainPeakMACs is 0: there are no products of bfloat16 of their own.
const brainPeakMACs = 0

func brainPeak(int) {}

func readPeak(b []byte) {
	if best == tierNEON {
		readNEON(&b[0], len(b))
		return
	}
	readPeakGo(b)
}

func dotPeak(n int) {
	if best == tierNEON {
		dotPeakNEON(n)
		return
	}
	dotPeakGo(n)
}

func floatPeak(n int) {
	if best == tierNEON {
		floatPeakNEON(n)
		return
	}
	floatPeakGo(n)
}
