package main

import (
	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// What softmax leaves of the weights.
const (
	roundedWeights = iota // in place, rounded to bfloat16
	pairedWeights         // apart, as bfloat16
	plainWeights          // in place, as they are
)

// softmax writes softmaxGo or softmaxPlainGo.
func softmax(i isa, leave int) {
	name := "softmax" + i.suffix()
	sig := "func(s *float32, n int) (m float32, sum float32)"
	doc := []string{name + " is softmaxGo for a positive multiple of 16 scores."}
	switch leave {
	case pairedWeights:
		name = "softmaxBF16"
		sig = "func(s *float32, n int, pairs *uint16, near *byte, step int) (m float32, sum float32)"
		doc = []string{"softmaxBF16 is softmaxGo for a positive multiple of 16 scores, but leaves", "the weights in pairs. With 16 scores it fetches two lines, the first at near,", "each step bytes after the last."}
	case plainWeights:
		name = "softmaxPlain" + i.suffix()
		doc = []string{name + " is softmaxPlainGo for a positive multiple of 16", "scores."}
	}
	TEXT(name, NOSPLIT, sig)
	Pragma("noescape")
	Doc(doc...)
	s, n := Load(Param("s"), GP64()), Load(Param("n"), GP64())
	var pairs, near, step reg.Register
	if leave == pairedWeights {
		pairs = Load(Param("pairs"), GP64())
		near, step = Load(Param("near"), GP64()), Load(Param("step"), GP64())
	}
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
	loop16("exp", n, func() {
		x := i.vec()
		x.load(Mem{Base: s})
		sub(x, mv, x)
		i.exp2(x)
		switch leave {
		case pairedWeights:
			for range 2 { // softmaxLines
				PREFETCHT0(Mem{Base: near})
				ADDQ(step, near)
			}
			VMOVAPS(x[0], reg.Z31)
			toBrain()
			VMOVDQU(reg.Y15, Mem{Base: pairs})
			ADDQ(Imm(32), pairs)
			VPMOVZXWD(reg.Y15, reg.Z31)
			VPSLLD(Imm(16), reg.Z31, reg.Z31)
			VADDPS(reg.Z31, acc[0], acc[0])
			return
		case roundedWeights:
			i.roundBrain(x)
		}
		add(acc, x, acc)
		x.store(Mem{Base: s})
	}, s)
	Store(fold(acc, vaddOp), Return("sum"))
	VZEROUPPER()
	RET()
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
func (i isa) roundBrain(x vec) {
	t := i.vec()
	for j := range x {
		VPSRLD(Imm(16), x[j], t[j])
	}
	if i == avx512 {
		VPANDD_BCST(constant("int1", U32(1)), t[0], t[0])
	} else {
		for j := range t {
			VPAND(wide("ones32", 1), t[j], t[j])
		}
	}
	i.withConst(VPADDD, VPADDD_BCST, constant("brainHalf", U32(0x7fff)), t, t)
	for j := range x {
		VPADDD(t[j], x[j], x[j])
		if i == avx512 {
			VPANDD_BCST(constant("upper", U32(0xffff0000)), x[j], x[j])
		} else {
			VPAND(wide("upperHalf", 0xffff0000), x[j], x[j])
		}
	}
}

func vmaxOp(ops ...Op) { VMAXPS(ops...) }
func vaddOp(ops ...Op) { VADDPS(ops...) }
