package compute

import (
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

// detect returns the highest tier of the processor. All of Apple's have the 8-bit dot
// product; older systems do not say so.
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
	quantiseGo(a, form, first, t, at, block, x)
}

func scores(a *scoreArgs, t int)                                         { scoresGo(a, t) }
func mix(a *mixArgs, t int)                                              { mixGo(a, t) }
func softmax(s []float32, _ []uint16, _ *uint16, _ int) (m, sum float32) { return softmaxGo(s) }

func scores8(a *score8Args, t int) {
	if use == tierGo {
		scores8Go(a, t)
		return
	}
	scores8Pages(a, t, true)
}

func mix8(a *mix8Args, t int)                   { mix8Go(a, t) }
func weigh(a *weighArgs) float32                { return weighGo(a) }
func narrow(s []float32, inv float32, p []byte) { narrowGo(s, inv, p) }
func softmaxPlain(s []float32) (m, sum float32) { return softmaxPlainGo(s) }
func norm(dst, x, w []float32, eps float32)     { normGo(dst, x, w, eps) }
func gateUp(dst, gate, up []float32, gelu bool) { gateGo(dst, gate, up, gelu) }
func add(dst, x []float32)                      { addGo(dst, x) }
func blend(dst, x []float32, a, b float32)      { blendGo(dst, x, a, b) }

// hasTop tells whether there are kernels for Top.
func hasTop(bool) bool                                   { return false }
func topOf([]float32, []uint64) (m float32, bits uint32) { return 0, 0 }
func find(x []float32, _ float32) int                    { return len(x) }

// softmaxLines is the number of lines that softmax fetches with 16 scores.
const softmaxLines = 0

const dotPeakMACs, floatPeakMACs, brainPeakMACs = goPeakMACs, goPeakMACs, 0

func readPeak(b []byte) { readPeakGo(b) }
func dotPeak(n int)     { dotPeakGo(n) }
func floatPeak(n int)   { floatPeakGo(n) }
func brainPeak(int)     {}
