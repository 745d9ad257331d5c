package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// loop16 writes a loop over n elements, 16 at a time, n being a positive
// multiple of 16.
func loop16(name string, n reg.Register, body func(), ptrs ...reg.Register) {
	Label(name)
	body()
	for _, p := range ptrs {
		ADDQ(Imm(64), p)
	}
	SUBQ(Imm(16), n)
	JNZ(LabelRef(name))
}

// vectors writes the element-wise kernels of a tier.
func vectors(i isa) {
	softmax(i, roundedWeights)
	softmax(i, plainWeights)
	gate(i)
	sumSquares(i)
	scaleMul(i)
	addTo(i)
	merge(i)
	if i == avx2 {
		quantise() // serves all tiers
		softmaxBrain()
		foldResults()
		brainRow()
	}
}

// expMem returns the operand for a float32 constant.
func expMem(name string, v float64) Mem {
	return constant(name, U32(math.Float32bits(float32(v))))
}

// withConst applies op(constant, a, dst), with the constant as a broadcast
// operand where there is one.
func (i isa) withConst(op, bcst func(...Op), m Mem, a, dst vec) {
	if i == avx512 {
		bcst(m, a[0], dst[0])
		return
	}
	c := YMM()
	VBROADCASTSS(m, c)
	for j := range dst {
		op(c, a[j], dst[j])
	}
}

func (i isa) addConst(m Mem, a, dst vec) { i.withConst(VADDPS, VADDPS_BCST, m, a, dst) }
func (i isa) subConst(m Mem, a, dst vec) { i.withConst(VSUBPS, VSUBPS_BCST, m, a, dst) }
func (i isa) mulConst(m Mem, a, dst vec) { i.withConst(VMULPS, VMULPS_BCST, m, a, dst) }

// exp replaces x by exp32(x), see there for the steps.
func (i isa) exp(x vec) {
	low := expMem("expLow", -87)
	// Lanes below the limit, or NaN, become zero in the end.
	var keepK reg.OpmaskVirtual
	var keep vec
	if i == avx512 {
		keepK = K()
		VCMPPS_BCST(Imm(13), low, x[0], keepK)
	} else {
		keep = i.vec()
		l := YMM()
		VBROADCASTSS(low, l)
		for j := range x {
			VCMPPS(Imm(13), l, x[j], keep[j])
		}
	}
	i.withConst(VMINPS, VMINPS_BCST, expMem("expHigh", 88), x, x)
	n, e, p, t := i.vec(), i.vec(), i.vec(), i.vec()
	magic := expMem("expMagic", 3<<22)
	i.mulConst(expMem("expLog2e", 1.44269504088896341), x, n)
	i.addConst(magic, n, n)
	for j := range e {
		VPSLLD(Imm(23), n[j], e[j])
	}
	bias := constant("expBias", U32(127<<23))
	i.withConst(VPADDD, VPADDD_BCST, bias, e, e)
	i.subConst(magic, n, n)
	i.mulConst(expMem("expC1", 0.693359375), n, t)
	sub(x, t, x)
	i.mulConst(expMem("expC2", -2.12194440e-4), n, t)
	sub(x, t, x) // r
	i.mulConst(expMem("expP0", 1.9875691500e-4), x, p)
	i.addConst(expMem("expP1", 1.3981999507e-3), p, p)
	for _, c := range []struct {
		name string
		v    float64
	}{{"expP2", 8.3334519073e-3}, {"expP3", 4.1665795894e-2}, {"expP4", 1.6666665459e-1}, {"expP5", 5.0000001201e-1}} {
		mul(p, x, p)
		i.addConst(expMem(c.name, c.v), p, p)
	}
	mul(x, x, t)
	mul(p, t, p)
	add(p, x, p)
	i.addConst(expMem("one", 1), p, p)
	if i == avx512 {
		VMULPS_Z(e[0], p[0], keepK, x[0])
		return
	}
	mul(p, e, p)
	for j := range x {
		VANDPS(keep[j], p[j], x[j])
	}
}

// exp2Constants are the constants of exp2.
type exp2Constants struct{ low, magic, c4, c3, c2, c1, one vec }

func loadExp2() exp2Constants {
	load := func(name string, v float64) vec { return avx512.splat(expMem(name, v)) }
	return exp2Constants{
		load("exp2Low", -125), load("expMagic", 3<<22), load("exp2C4", 0.00958285), load("exp2C3", 0.05590642),
		load("exp2C2", 0.24024099), load("exp2C1", 0.69312419), load("one", 1),
	}
}

// exp2 replaces x by exp2f(x), see there for the steps; for AVX2 see exps256.
func exp2(x vec, c exp2Constants) {
	keep := K()
	VCMPPS(Imm(13), c.low[0], x[0], keep)
	n, p := avx512.vec(), avx512.vec()
	add(x, c.magic, n)
	sub(n, c.magic, p)
	sub(x, p, x) // r
	VPSLLD(Imm(23), n[0], n[0])
	VMOVAPS(c.c4[0], p[0])
	for _, v := range []vec{c.c3, c.c2, c.c1, c.one} {
		VFMADD213PS(v[0], x[0], p[0])
	}
	VPADDD_Z(n[0], p[0], keep, x[0])
}

func gate(i isa) {
	name := "gate" + i.suffix()
	TEXT(name, NOSPLIT, "func(dst *float32, gate *float32, up *float32, n int, gelu int)")
	Pragma("noescape")
	Doc(name+" is gateGo for a positive multiple of 16 elements;", "gelu is 1 or 0.")
	dst, g, up := Load(Param("dst"), GP64()), Load(Param("gate"), GP64()), Load(Param("up"), GP64())
	n, gelu := Load(Param("n"), GP64()), Load(Param("gelu"), GP64())
	body := func(gelu bool) func() {
		return func() {
			x, z := i.vec(), i.vec()
			x.load(Mem{Base: g})
			if gelu {
				// z = ((x*x*a + 1) * x) * b
				mul(x, x, z)
				i.mulConst(expMem("geluA", 0.044715), z, z)
				i.addConst(expMem("one", 1), z, z)
				mul(z, x, z)
				i.mulConst(expMem("geluB", 2*0.79788456080286535588), z, z)
				i.withConst(VXORPS, VXORPS_BCST, constant("sign", U32(1<<31)), z, z)
			} else {
				i.withConst(VXORPS, VXORPS_BCST, constant("sign", U32(1<<31)), x, z)
			}
			i.exp(z)
			i.addConst(expMem("one", 1), z, z)
			div(x, z, x)
			z.load(Mem{Base: up})
			mul(x, z, x)
			x.store(Mem{Base: dst})
		}
	}
	CMPQ(gelu, Imm(0))
	JNE(LabelRef("gelu"))
	loop16("silu", n, body(false), dst, g, up)
	VZEROUPPER()
	RET()
	Label("gelu")
	loop16("geluloop", n, body(true), dst, g, up)
	VZEROUPPER()
	RET()
}

func sumSquares(i isa) {
	name := "sumSquares" + i.suffix()
	TEXT(name, NOSPLIT, "func(x *float32, n int) float32")
	Pragma("noescape")
	Doc(name + " adds the squares of a positive multiple of 16 elements as normGo does.")
	x, n := Load(Param("x"), GP64()), Load(Param("n"), GP64())
	acc := i.vec()
	acc.zero()
	loop16("loop", n, func() {
		v := i.vec()
		v.load(Mem{Base: x})
		mul(v, v, v)
		add(acc, v, acc)
	}, x)
	Store(fold(acc, vaddOp), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

func scaleMul(i isa) {
	name := "scaleMul" + i.suffix()
	TEXT(name, NOSPLIT, "func(dst *float32, x *float32, w *float32, n int, scale float32)")
	Pragma("noescape")
	Doc(name + " computes dst = (x*scale)*w for a positive multiple of 16 elements.")
	dst, x, w := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("w"), GP64())
	n := Load(Param("n"), GP64())
	sc := Load(Param("scale"), XMM())
	s := i.vec()
	for j := range s {
		VBROADCASTSS(sc.(reg.VecVirtual).AsX(), s[j])
	}
	loop16("loop", n, func() {
		v, u := i.vec(), i.vec()
		v.load(Mem{Base: x})
		u.load(Mem{Base: w})
		mul(v, s, v)
		mul(v, u, v)
		v.store(Mem{Base: dst})
	}, dst, x, w)
	VZEROUPPER()
	RET()
}

func addTo(i isa) {
	name := "add" + i.suffix()
	TEXT(name, NOSPLIT, "func(dst *float32, x *float32, n int)")
	Pragma("noescape")
	Doc(name + " is addGo for a positive multiple of 16 elements.")
	dst, x, n := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("n"), GP64())
	loop16("loop", n, func() {
		v, u := i.vec(), i.vec()
		v.load(Mem{Base: dst})
		u.load(Mem{Base: x})
		add(v, u, v)
		v.store(Mem{Base: dst})
	}, dst, x)
	VZEROUPPER()
	RET()
}

// merge writes dst = dst*a + x*b, the inner loop of Merge.
func merge(i isa) {
	name := "blend" + i.suffix()
	TEXT(name, NOSPLIT, "func(dst *float32, x *float32, n int, a float32, b float32)")
	Pragma("noescape")
	Doc(name + " is blendGo for a positive multiple of 16 elements.")
	dst, x, n := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("n"), GP64())
	ax, bx := Load(Param("a"), XMM()), Load(Param("b"), XMM())
	a, b := i.vec(), i.vec()
	for j := range a {
		VBROADCASTSS(ax.(reg.VecVirtual).AsX(), a[j])
		VBROADCASTSS(bx.(reg.VecVirtual).AsX(), b[j])
	}
	loop16("loop", n, func() {
		v, u := i.vec(), i.vec()
		v.load(Mem{Base: dst})
		u.load(Mem{Base: x})
		mul(v, a, v)
		mul(u, b, u)
		add(v, u, v)
		v.store(Mem{Base: dst})
	}, dst, x)
	VZEROUPPER()
	RET()
}

// Offsets in quantArgs.
const (
	quantX, quantQ, quantSX, quantXS, quantInit, quantInit2, quantN, quantT, quantForm = 0, 8, 16, 24, 32, 40, 48, 56, 64
)

// quantise writes quantiseGo with AVX2: per block of 32 columns two
// vectors of 16 lanes.
func quantise() {
	TEXT("quantiseAVX2", NOSPLIT, "func(a *byte)")
	Pragma("noescape")
	Doc("quantiseAVX2 is quantiseGo for one token; a points to quantArgs.")
	a := Load(Param("a"), GP64())
	x, q, sx, xs := field(a, quantX), field(a, quantQ), field(a, quantSX), field(a, quantXS)
	init, init2, n, t := field(a, quantInit), field(a, quantInit2), field(a, quantN), field(a, quantT)
	SHLQ(Imm(2), t) // bytes from a value of a token to its next
	t3 := GP64()
	LEAQ(Mem{Base: t, Index: t, Scale: 2}, t3)
	form, left, p := field(a, quantForm), GP64(), GP64()
	abs := YMM()
	VBROADCASTSS(constant("abs", U32(1<<31-1)), abs)
	Label("group")
	// The blocks that share a scale: 1, or up to 8 in form 2.
	MOVQ(U32(1), left)
	CMPQ(form, Imm(2))
	JNE(LabelRef("counted"))
	MOVQ(U32(8), left)
	CMPQ(n, left)
	CMOVQLT(n, left)
	Label("counted")
	SUBQ(left, n)
	top := YMM()
	VXORPS(top, top, top)
	MOVQ(x, p)
	count := GP64()
	MOVQ(left, count)
	Label("top")
	for j := range 4 {
		m := YMM()
		VANDPS(Mem{Base: p, Disp: 32 * j}, abs, m)
		VMAXPS(m, top, top)
	}
	ADDQ(Imm(128), p)
	DECQ(count)
	JNZ(LabelRef("top"))
	amax := XMM()
	VEXTRACTF128(Imm(1), top, amax)
	VMAXPS(top.AsX(), amax, amax)
	h := XMM()
	VMOVHLPS(amax, amax, h)
	VMAXPS(h, amax, amax)
	VMOVSHDUP(amax, h)
	VMAXPS(h, amax, amax)
	// inv = 127/amax, or 0 for a tiny amax; scale = amax/127.
	c127, inv, scale, big := XMM(), XMM(), XMM(), XMM()
	VMOVSS(expMem("c127", 127), c127)
	VDIVSS(amax, c127, inv)
	VMOVSS(expMem("tiny", 0x1p-100), big)
	VCMPSS(Imm(13), big, amax, big) // amax >= tiny
	VANDPS(big, inv, inv)
	// The scale is stored as it is in form 2, through a half float in the others.
	stored, most, least := XMM(), XMM(), XMM()
	VMOVSS(expMem("halfMax", 65504), most)
	VMOVSS(expMem("halfMin", -65504), least)
	CMPQ(form, Imm(2))
	JEQ(LabelRef("wide"))
	VDIVSS(c127, amax, scale)
	VMINSS(most, scale, stored)
	VCVTPS2PH(Imm(0), stored, stored)
	VCVTPH2PS(stored, stored)
	JMP(LabelRef("scaled"))
	Label("wide")
	VDIVSS(inv, one(), scale)
	VANDPS(big, scale, scale)
	VMOVAPS(scale, stored)
	Label("scaled")
	invs := YMM()
	VBROADCASTSS(inv, invs)
	Label("block")
	VMOVSS(stored, Mem{Base: sx})
	var v [4]reg.VecVirtual
	for j := range v {
		v[j] = YMM()
		VMOVUPS(Mem{Base: x, Disp: 32 * j}, v[j])
	}
	var sums [2]reg.VecVirtual
	for j := range v {
		VMULPS(invs, v[j], v[j])
		VCVTPS2DQ(v[j], v[j])
	}
	for j := range sums {
		s := YMM()
		VPADDD(v[2*j], v[2*j+1], s)
		y := XMM()
		VEXTRACTI128(Imm(1), s, y)
		VPADDD(s.AsX(), y, y)
		u := XMM()
		VPSHUFD(Imm(0x4e), y, u)
		VPADDD(u, y, y)
		VPSHUFD(Imm(0xb1), y, u)
		VPADDD(u, y, y)
		sums[j] = y
	}
	all, f := XMM(), XMM()
	VPADDD(sums[0], sums[1], all)
	VCVTDQ2PS(all, f)
	CMPQ(form, Imm(1))
	JEQ(LabelRef("halfSum"))
	VMULSS(f, stored, f)
	JMP(LabelRef("summed"))
	Label("halfSum")
	VMULSS(f, scale, f)
	VMINSS(most, f, f)
	VMAXSS(least, f, f)
	VCVTPS2PH(Imm(0), f, f)
	VCVTPH2PS(f, f)
	Label("summed")
	VMOVSS(f, Mem{Base: xs})
	for j, s := range []reg.VecVirtual{all, sums[0], sums[1]} {
		u := XMM()
		VPSLLD(Imm(7), s, s)
		VPXOR(u, u, u)
		VPSUBD(s, u, u)
		switch j {
		case 0:
			VMOVD(u, Mem{Base: init})
		case 1:
			VMOVD(u, Mem{Base: init2})
		case 2:
			VMOVD(u, Mem{Base: init2, Index: t, Scale: 1})
		}
	}
	// Narrow to bytes: 32 bits to 16 to 8, within 128-bit lanes, then in order.
	lo, hi := YMM(), YMM()
	VPACKSSDW(v[1], v[0], lo)
	VPACKSSDW(v[3], v[2], hi)
	VPACKSSWB(hi, lo, lo)
	order := YMM()
	VMOVDQU(quantOrder(), order)
	VPERMD(lo, order, lo)
	// Eight groups of four bytes, 4*t apart.
	x0, x1 := lo.AsX(), XMM()
	VEXTRACTI128(Imm(1), lo, x1)
	for _, part := range []reg.Register{x0, x1} {
		VPEXTRD(Imm(0), part, Mem{Base: q})
		VPEXTRD(Imm(1), part, Mem{Base: q, Index: t, Scale: 1})
		VPEXTRD(Imm(2), part, Mem{Base: q, Index: t, Scale: 2})
		VPEXTRD(Imm(3), part, Mem{Base: q, Index: t3, Scale: 1})
		LEAQ(Mem{Base: q, Index: t, Scale: 4}, q)
	}
	ADDQ(Imm(128), x)
	ADDQ(t, sx)
	ADDQ(t, xs)
	ADDQ(t, init)
	LEAQ(Mem{Base: init2, Index: t, Scale: 2}, init2)
	DECQ(left)
	JNZ(LabelRef("block"))
	TESTQ(n, n)
	JNZ(LabelRef("group"))
	VZEROUPPER()
	RET()
}

// one returns a register that holds 1 in lane 0.
func one() reg.VecVirtual {
	r := XMM()
	VMOVSS(expMem("one", 1), r)
	return r
}

// quantOrder undoes the lane order of the two packing steps.
func quantOrder() Mem { return words("quantOrder", 0, 4, 1, 5, 2, 6, 3, 7) }

// brainRow writes the kernel that rounds a row to bfloat16 in whole numbers, as
// roundBrain in half.go does: VCVTNEPS2BF16 leaves subnormal numbers their sign.
func brainRow() {
	TEXT("brainBF16", NOSPLIT, "func(dst *uint16, x *float32, n int)")
	Pragma("noescape")
	Doc("brainBF16 is brainPairsGo for a positive multiple of 16 numbers.")
	dst, src, n := Load(Param("dst"), GP64()), Load(Param("x"), GP64()), Load(Param("n"), GP64())
	loop16("columns", n, func() {
		x, normal := avx512.vec(), K()
		x.load(Mem{Base: src})
		VPTESTMD_BCST(constant("exponent", U32(0x7f800000)), x[0], normal)
		roundBrain(x)
		VPSRLD_Z(Imm(16), x[0], normal, x[0])
		VPMOVDW(x[0], Mem{Base: dst})
		ADDQ(Imm(32), dst)
	}, src)
	VZEROUPPER()
	RET()
}
