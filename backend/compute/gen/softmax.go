package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// What softmax leaves of the weights.
const (
	roundedWeights = iota // in place, rounded to bfloat16
	plainWeights          // in place, as they are
)

// softmax writes softmaxGo or softmaxPlainGo.
func softmax(i isa, leave int) {
	name := "softmax" + i.suffix()
	doc := []string{name + " is softmaxGo for a positive multiple of 16 scores."}
	if leave == plainWeights {
		name = "softmaxPlain" + i.suffix()
		doc = []string{name + " is softmaxPlainGo for a positive multiple of 16", "scores."}
	}
	TEXT(name, NOSPLIT, "func(s *float32, n int) (m float32, sum float32)")
	Pragma("noescape")
	Doc(doc...)
	s, n := Load(Param("s"), GP64()), Load(Param("n"), GP64())
	p, left := GP64(), GP64()
	MOVQ(s, p)
	MOVQ(n, left)
	top := i.vec()
	top.load(Mem{Base: s})
	loop16("max", left, func() {
		x := i.vec()
		x.load(Mem{Base: p})
		vmax(x, top, top)
	}, p)
	m := fold(top, vmaxOp)
	Store(m, Return("m"))
	mv := i.vec()
	for j := range mv {
		VBROADCASTSS(m.AsX(), mv[j])
	}
	acc := i.vec()
	acc.zero()
	if i == avx2 {
		exps256(s, n, m, acc, leave)
		Store(fold(acc, vaddOp), Return("sum"))
		VZEROUPPER()
		RET()
		return
	}
	c := loadExp2()
	loop16("exp", n, func() {
		x := i.vec()
		x.load(Mem{Base: s})
		sub(x, mv, x)
		exp2(x, c)
		if leave == roundedWeights {
			roundBrain(x)
		}
		add(acc, x, acc)
		x.store(Mem{Base: s})
	}, s)
	Store(fold(acc, vaddOp), Return("sum"))
	VZEROUPPER()
	RET()
}

// softmaxBrain writes the kernel of a tile of queries for the tier with bfloat16. While
// the last scores of a query are in work the processor begins with the next, which is why
// a call takes all.
func softmaxBrain() {
	TEXT("softmaxBF16", NOSPLIT, "func(a *byte, t int)")
	Pragma("noescape")
	Doc("softmaxBF16 is softmaxGo for t queries, but leaves the weights in pairs; a points",
		"to softmaxArgs. With 16 scores it fetches two lines.")
	a, t := Load(Param("a"), GP64()), Load(Param("t"), GP64())
	scores, pairs := field(a, softmaxS), field(a, softmaxPairs)
	tops, sums := field(a, softmaxTop), field(a, softmaxSum)
	near, step := field(a, softmaxNear), field(a, softmaxStep)
	c := loadExp2()
	// Number j goes to the upper half of lane j.
	widen, upper := ZMM(), K()
	lanes := make([]uint32, 16)
	for j := range lanes {
		lanes[j] = uint32(j) << 16
	}
	VMOVDQU32(words("widen", lanes...), widen)
	odd := GP32()
	MOVL(U32(0xaaaaaaaa), odd)
	KMOVD(odd, upper)
	Label("query")
	s, n, p := GP64(), field(a, softmaxN), GP64()
	MOVQ(scores, s)
	// Two maxima, so that each need not wait for the one before; the last 16 scores may
	// be seen twice.
	top, last := avx512.vec(), avx512.vec()
	top.load(Mem{Base: s})
	last.load(Mem{Base: s, Index: n, Scale: 4, Disp: -64})
	SHRQ(Imm(5), n)
	JZ(LabelRef("top"))
	Label("max")
	VMAXPS(Mem{Base: s}, top[0], top[0])
	VMAXPS(Mem{Base: s, Disp: 64}, last[0], last[0])
	ADDQ(U32(128), s)
	DECQ(n)
	JNZ(LabelRef("max"))
	Label("top")
	vmax(last, top, top)
	m := fold(top, vmaxOp)
	VMOVSS(m.AsX(), Mem{Base: tops})
	mv := avx512.vec()
	VBROADCASTSS(m.AsX(), mv[0])
	acc := avx512.vec()
	acc.zero()
	MOVQ(scores, s)
	MOVQ(pairs, p)
	n = field(a, softmaxN)
	loop16("exp", n, func() {
		x := avx512.vec()
		x.load(Mem{Base: s})
		sub(x, mv, x)
		exp2(x, c)
		for range 2 { // softmaxLines
			PREFETCHT0(Mem{Base: near})
			ADDQ(step, near)
		}
		VMOVAPS(x[0], reg.Z31)
		toBrain()
		VMOVDQU(reg.Y15, Mem{Base: p})
		ADDQ(Imm(32), p)
		VPERMW_Z(reg.Z15, widen, upper, reg.Z31)
		VADDPS(reg.Z31, acc[0], acc[0])
	}, s)
	sum := fold(acc, vaddOp)
	VMOVSS(sum.AsX(), Mem{Base: sums})
	ADDQ(Imm(4), tops)
	ADDQ(Imm(4), sums)
	ADDQ(U32(spanBytes), scores)
	ADDQ(U32(spanBytes/2), pairs)
	DECQ(t)
	JNZ(LabelRef("query"))
	VZEROUPPER()
	RET()
}

// Offsets in softmaxArgs.
const softmaxS, softmaxN, softmaxPairs, softmaxTop, softmaxSum, softmaxNear, softmaxStep = 0, 8, 16, 24, 32, 40, 48

// exps256 replaces the n scores at s by the powers of 2 of what they are above m, and
// adds them to acc. The steps are those of exp2 and roundBrain, of 32 scores at a time
// where there are: each waits for the one before, and two registers alone would leave
// the processor idle.
func exps256(s, n reg.Register, m reg.VecVirtual, acc vec, leave int) {
	top := YMM()
	VBROADCASTSS(m.AsX(), top)
	CMPQ(n, Imm(32))
	JLT(LabelRef("rest"))
	Label("exp32")
	exps(4, s, top, acc, leave)
	ADDQ(U32(128), s)
	SUBQ(Imm(32), n)
	CMPQ(n, Imm(32))
	JGE(LabelRef("exp32"))
	Label("rest")
	TESTQ(n, n)
	JZ(LabelRef("sum"))
	exps(2, s, top, acc, leave)
	Label("sum")
}

// exps does so many registers of exps256.
func exps(regs int, s reg.Register, top reg.VecVirtual, acc vec, leave int) {
	x, n, p := make(vec, regs), make(vec, regs), make(vec, regs)
	all := func(f func(j int)) { each(f, x) }
	float := func(name string, v float32) Mem { return wide(name, math.Float32bits(v)) }
	at := func(j int) Mem { return Mem{Base: s, Disp: 32 * j} }
	magic := float("exp2WideMagic", 3<<22)
	all(func(j int) { x[j], n[j], p[j] = YMM(), YMM(), YMM() })
	all(func(j int) { VMOVUPS(at(j), x[j]) })
	all(func(j int) { VSUBPS(top, x[j], x[j]) })
	all(func(j int) { VADDPS(magic, x[j], n[j]) })
	all(func(j int) { VSUBPS(magic, n[j], p[j]) })
	all(func(j int) { VSUBPS(p[j], x[j], x[j]) }) // r
	all(func(j int) { VMOVUPS(float("exp2Wide4", 0.00958285), p[j]) })
	for _, c := range []struct {
		name string
		v    float32
	}{{"exp2Wide3", 0.05590642}, {"exp2Wide2", 0.24024099}, {"exp2Wide1", 0.69312419}, {"exp2Wide0", 1}} {
		all(func(j int) { VFMADD213PS(float(c.name, c.v), x[j], p[j]) })
	}
	all(func(j int) { VPSLLD(Imm(23), n[j], n[j]) })
	all(func(j int) { VPADDD(n[j], p[j], p[j]) })
	// What is too small becomes zero. There is no register to keep which is.
	all(func(j int) { VMOVUPS(at(j), x[j]) })
	all(func(j int) { VSUBPS(top, x[j], x[j]) })
	all(func(j int) { VCMPPS(Imm(13), float("exp2Least", -125), x[j], x[j]) })
	all(func(j int) { VANDPS(x[j], p[j], p[j]) })
	if leave == roundedWeights {
		all(func(j int) { VPSRLD(Imm(16), p[j], n[j]) })
		all(func(j int) { VPAND(wide("ones32", 1), n[j], n[j]) })
		all(func(j int) { VPADDD(wide("brainHalf256", 0x7fff), n[j], n[j]) })
		all(func(j int) { VPADDD(n[j], p[j], p[j]) })
		all(func(j int) { VPAND(wide("upperHalf", 0xffff0000), p[j], p[j]) })
	}
	all(func(j int) { VADDPS(p[j], acc[j%2], acc[j%2]) })
	all(func(j int) { VMOVUPS(p[j], at(j)) })
}

// toBrain emits VCVTNEPS2BF16 from Z31 to Y15, which neither avo nor the Go
// assembler knows: EVEX.512.F3.0F38.W0 72 /r.
func toBrain() {
	for _, b := range []uint64{0x62, 0x12, 0x7e, 0x48, 0x72, 0xff} {
		Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []Op{Imm(b)}})
	}
}

// roundBrain rounds finite values to bfloat16, to nearest even, as roundBrain in
// half.go does; subnormal numbers do not occur.
func roundBrain(x vec) {
	t := avx512.vec()
	VPSRLD(Imm(16), x[0], t[0])
	VPANDD_BCST(constant("int1", U32(1)), t[0], t[0])
	VPADDD_BCST(constant("brainHalf", U32(0x7fff)), t[0], t[0])
	VPADDD(t[0], x[0], x[0])
	VPANDD_BCST(constant("upper", U32(0xffff0000)), x[0], x[0])
}

func vmaxOp(ops ...Op) { VMAXPS(ops...) }
func vaddOp(ops ...Op) { VADDPS(ops...) }
