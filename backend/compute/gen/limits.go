package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// limits writes the loops that measure the peaks of the machine.
func limits() {
	limits256()
	read("readAVX512", 64, func(m Mem) { VMOVDQU64(m, ZMM()) })

	TEXT("dotPeakAVX512", NOSPLIT, "func(n int)")
	Doc("dotPeakAVX512 executes 16*n VPDPBUSD, of 64 multiply-adds each.")
	n := Load(Param("n"), GP64())
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

// read writes a loop over memory, by loads of so many bytes.
func read(name string, bytes int, load func(Mem)) {
	TEXT(name, NOSPLIT, "func(p *byte, n int)")
	Pragma("noescape")
	Doc(name + " reads n bytes, a positive multiple of 1024.")
	p, n := Load(Param("p"), GP64()), Load(Param("n"), GP64())
	Label("loop")
	for at := 0; at < 1024; at += bytes {
		load(Mem{Base: p, Disp: at})
	}
	ADDQ(U32(1024), p)
	SUBQ(U32(1024), n)
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

// limits256 writes those for processors without AVX-512. Products of bytes are as exact
// there as the kernels need them: pairs are added in 16 bits, then in 32.
func limits256() {
	read("readAVX2", 32, func(m Mem) { VMOVDQU(m, YMM()) })

	TEXT("dotPeakAVX2", NOSPLIT, "func(n int)")
	Doc("dotPeakAVX2 does 32 multiply-adds of bytes 12*n times: VPMADDUBSW, VPMADDWD and VPADDD.")
	n := Load(Param("n"), GP64())
	peak256(n, func(acc, x, t reg.VecVirtual) {
		VPMADDUBSW(x, x, t)
		VPMADDWD(x, t, t)
		VPADDD(t, acc, acc)
	})

	TEXT("floatPeakAVX2", NOSPLIT, "func(n int)")
	Doc("floatPeakAVX2 executes 12*n VFMADD231PS, of 8 multiply-adds each.")
	n = Load(Param("n"), GP64())
	peak256(n, func(acc, x, _ reg.VecVirtual) { VFMADD231PS(x, x, acc) })
}

func peak256(n reg.Register, op func(acc, x, t reg.VecVirtual)) {
	x := YMM()
	VPXOR(x, x, x)
	var acc [12]reg.VecVirtual
	for j := range acc {
		acc[j] = YMM()
		VPXOR(acc[j], acc[j], acc[j])
	}
	t := []reg.VecVirtual{YMM(), YMM(), YMM()}
	Label("loop")
	for j := range acc {
		op(acc[j], x, t[j%len(t)])
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
