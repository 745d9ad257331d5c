package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in foldArgs.
const foldTop, foldSum, foldAcc, foldDim, foldTopO, foldSumO, foldO, foldStride, foldA, foldB = 0, 8, 16, 24, 32, 40, 48, 56, 64, 128

// foldResults writes the kernel that merges the results of a tile: the factors of 16
// queries at once, then the vectors.
func foldResults() {
	TEXT("foldAVX512", NOSPLIT, "func(a *byte, t int)")
	Pragma("noescape")
	Doc("foldAVX512 is foldTileGo for t <= 16 queries and a multiple of 16 columns; a points",
		"to foldArgs.")
	a, t := Load(Param("a"), GP64()), Load(Param("t"), GP64())
	tops, sums, topsO, sumsO := field(a, foldTop), field(a, foldSum), field(a, foldTopO), field(a, foldSumO)
	c := loadExp2()
	lanes, ones := GP32(), GP32() // a bit for each query
	MOVL(I32(-1), ones)
	BZHIL(t.(reg.GP).As32(), ones, lanes)
	queries := K()
	KMOVW(lanes, queries)
	load := func(base reg.Register) vec {
		v := avx512.vec()
		VMOVUPS_Z(Mem{Base: base}, queries, v[0])
		return v
	}
	m, mo, top := load(tops), load(topsO), avx512.vec()
	VMAXPS(m[0], mo[0], top[0]) // of equals the first, m
	sub(m, top, m)
	sub(mo, top, mo)
	exp2(m, c)
	exp2(mo, c)
	VMOVUPS(top[0], queries, Mem{Base: tops})
	m.store(Mem{Base: a, Disp: foldA})
	mo.store(Mem{Base: a, Disp: foldB})
	l, lo := load(sums), load(sumsO)
	mul(l, m, l)
	mul(lo, mo, lo)
	add(l, lo, l)
	VMOVUPS(l[0], queries, Mem{Base: sums})
	acc, o, gap, dim := field(a, foldAcc), field(a, foldO), field(a, foldStride), field(a, foldDim)
	SUBQ(dim, gap)
	SHLQ(Imm(2), gap)
	Label("row")
	fa, fb := avx512.splat(Mem{Base: a, Disp: foldA}), avx512.splat(Mem{Base: a, Disp: foldB})
	n := GP64()
	MOVQ(dim, n)
	loop16("columns", n, func() {
		x, y := avx512.vec(), avx512.vec()
		VMULPS(Mem{Base: acc}, fa[0], x[0])
		VMULPS(Mem{Base: o}, fb[0], y[0])
		add(x, y, x)
		x.store(Mem{Base: acc})
	}, acc, o)
	ADDQ(gap, o)
	ADDQ(Imm(4), a)
	DECQ(t)
	JNZ(LabelRef("row"))
	VZEROUPPER()
	RET()
}
