package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// top writes the kernels that find the greatest of many values. Whether one of
// them is not a number shows in the greatest of their bits without the sign.
func top(i isa) {
	name := "top" + i.suffix()
	TEXT(name, NOSPLIT, "func(x *float32, n int) (m float32, bits uint32)")
	Pragma("noescape")
	Doc(name+" returns the greatest of n values, a positive multiple of 16,", "and the greatest of their bits without signs.")
	x, n := Load(Param("x"), GP64()), Load(Param("n"), GP64())
	sign := wide("absolute", 0x7fffffff)
	most, bits := i.infinite(), i.vec()
	bits.zero()
	loop16("next", n, func() {
		v := i.vec()
		v.load(Mem{Base: x})
		vmax(v, most, most)
		for j := range v {
			if i == avx512 {
				VPANDD_BCST(sign, v[j], v[j])
			} else {
				VPAND(sign, v[j], v[j])
			}
			VPMAXUD(v[j], bits[j], bits[j])
		}
	}, x)
	Store(fold(most, vmaxOp), Return("m"))
	storeBits(fold(bits, vmaxBits))
	VZEROUPPER()
	RET()

	name = "find" + i.suffix()
	TEXT(name, NOSPLIT, "func(x *float32, n int, m float32) int")
	Pragma("noescape")
	Doc(name+" returns the index of the first of n values that is m, or n;", "n is a positive multiple of 16.")
	x, n = Load(Param("x"), GP64()), Load(Param("n"), GP64())
	m := i.vec()
	low := XMM()
	Load(Param("m"), low)
	for j := range m {
		VBROADCASTSS(low, m[j])
	}
	at, hit := GP64(), GP32()
	XORQ(at, at)
	Label("next")
	if i == avx512 {
		k := K()
		VCMPPS(Imm(0), Mem{Base: x}, m[0], k)
		KMOVW(k, hit)
	} else {
		a, b, upper := YMM(), YMM(), GP32()
		VCMPPS(Imm(0), Mem{Base: x}, m[0], a)
		VCMPPS(Imm(0), Mem{Base: x, Disp: 32}, m[1], b)
		VMOVMSKPS(a, hit)
		VMOVMSKPS(b, upper)
		SHLL(Imm(8), upper)
		ORL(upper, hit)
	}
	TESTL(hit, hit)
	JNZ(LabelRef("found"))
	ADDQ(Imm(16), at)
	ADDQ(Imm(64), x)
	CMPQ(at, n)
	JLT(LabelRef("next"))
	JMP(LabelRef("done"))
	Label("found")
	BSFL(hit, hit)
	ADDQ(hit.As64(), at)
	Label("done")
	Store(at, ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// topOf writes top over those of the values whose bit is set.
func topOf() {
	TEXT("topOfAVX512", NOSPLIT, "func(x *float32, set *uint64, words int) (m float32, bits uint32)")
	Pragma("noescape")
	Doc("topOfAVX512 is topAVX512 over those of 64 values a word of set whose bit", "is set; m is minus infinity if there are none.")
	x, set, words := Load(Param("x"), GP64()), Load(Param("set"), GP64()), Load(Param("words"), GP64())
	sign := wide("absolute", 0x7fffffff)
	var most, bits [4]vec
	for j := range most {
		most[j], bits[j] = avx512.infinite(), avx512.vec()
		bits[j].zero()
	}
	Label("next")
	for j := range most {
		k, v := K(), ZMM()
		KMOVW(Mem{Base: set, Disp: 2 * j}, k)
		VMOVUPS(Mem{Base: x, Disp: 64 * j}, v)
		VMAXPS(v, most[j][0], k, most[j][0])
		VPANDD_BCST_Z(sign, v, k, v)
		VPMAXUD(v, bits[j][0], bits[j][0])
	}
	ADDQ(U32(256), x)
	ADDQ(Imm(8), set)
	DECQ(words)
	JNZ(LabelRef("next"))
	for j := 1; j < 4; j++ {
		vmax(most[j], most[0], most[0])
		VPMAXUD(bits[j][0], bits[0][0], bits[0][0])
	}
	Store(fold(most[0], vmaxOp), Return("m"))
	storeBits(fold(bits[0], vmaxBits))
	VZEROUPPER()
	RET()
}

// infinite returns lanes of minus infinity.
func (i isa) infinite() vec {
	v := i.vec()
	for _, r := range v {
		VBROADCASTSS(constant("minusInfinity", U32(0xff800000)), r)
	}
	return v
}

func vmaxBits(ops ...Op) { VPMAXUD(ops...) }

func storeBits(x reg.Register) {
	r := GP32()
	VMOVD(x, r)
	Store(r, Return("bits"))
}
