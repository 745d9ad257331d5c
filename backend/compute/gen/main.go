// Command gen writes the amd64 assembly of package compute.
//
// It is a module of its own, so that users of coppice need neither avo nor the
// tools it depends on. Run it with go generate in the folder above.
//
// Every kernel has a reference in kernels_go.go and gives the same bits: it
// does the same operations, fused or not, in the same order per output element. Vectors are 16 lanes wide, as one 512-bit register or as two
// of 256 bits; the file vec.go hides the difference where it can.
package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
)

func main() {
	ConstraintExpr("amd64")
	spinHint()
	fetchLines()
	for _, isa := range []isa{avx512, avx2} {
		vectors(isa)
		scores(isa)
		mix(isa)
		weigh(isa)
		narrow(isa)
		mix8(isa)
		top(isa)
	}
	for _, k := range []gemmKind{float32s, float16s, int8s, int8Half, int5s, int5Min, int4s, int4Min} {
		gemm512(k)
		gemm256(k)
	}
	gemm512(int8Min)
	for _, k := range []gemmKind{int5s, int5Min, int4s, int4Min} {
		unpack512(k)
	}
	scores8()
	scoresBrain()
	mixBrain()
	topOf()
	limits()
	Generate()
}

func spinHint() {
	TEXT("spinHint", NOSPLIT, "func()")
	Doc("spinHint executes PAUSE, which tells the processor that a loop waits.")
	PAUSE()
	PAUSE()
	RET()
}

func fetchLines() {
	TEXT("fetchLines", NOSPLIT, "func(from *byte)")
	Pragma("noescape")
	Doc("fetchLines asks for the fetchBytes bytes at from in the second-level cache.")
	from := Load(Param("from"), GP64())
	for i := range 4 {
		PREFETCHT1(Mem{Base: from, Disp: 64 * i})
	}
	RET()
}
