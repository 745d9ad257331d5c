package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// limits writes the loops that measure the peaks of the machine.
func limits() {
	TEXT("readAVX512", NOSPLIT, "func(p *byte, n int)")
	Pragma("noescape")
	Doc("readAVX512 reads n bytes, a positive multiple of 1024.")
	p, n := Load(Param("p"), GP64()), Load(Param("n"), GP64())
	Label("loop")
	z := ZMM()
	for j := range 16 {
		VMOVDQU64(Mem{Base: p, Disp: 64 * j}, z)
	}
	ADDQ(U32(1024), p)
	SUBQ(U32(1024), n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()

	TEXT("dotPeakAVX512", NOSPLIT, "func(n int)")
	Doc("dotPeakAVX512 executes 16*n VPDPBUSD, of 64 multiply-adds each.")
	n = Load(Param("n"), GP64())
	peak(n, func(acc, x reg.VecVirtual) { VPDPBUSD(x, x, acc) })

	TEXT("floatPeakAVX512", NOSPLIT, "func(n int)")
	Doc("floatPeakAVX512 executes 16*n VFMADD231PS, of 16 multiply-adds each.")
	n = Load(Param("n"), GP64())
	peak(n, func(acc, x reg.VecVirtual) { VFMADD231PS(x, x, acc) })

	TEXT("brainPeakBF16", NOSPLIT, "func(n int)")
	Doc("brainPeakBF16 executes 16*n VDPBF16PS, of 32 multiply-adds each.")
	Load(Param("n"), reg.RCX)
	LEAQ(constant("one", U32(0x3f800000)), reg.RAX)
	for j := range 17 {
		VPXORD(zmm[j], zmm[j], zmm[j])
	}
	Label("loop")
	for j := range 16 {
		dotBrain(0, 0, 16, j)
	}
	DECQ(reg.RCX)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func peak(n reg.Register, op func(acc, x reg.VecVirtual)) {
	x := ZMM()
	VPXORD(x, x, x)
	var acc [16]reg.VecVirtual
	for j := range acc {
		acc[j] = ZMM()
		VPXORD(acc[j], acc[j], acc[j])
	}
	Label("loop")
	for j := range acc {
		op(acc[j], x)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
