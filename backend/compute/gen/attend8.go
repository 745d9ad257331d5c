package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of attention over 8-bit keys and values. Their sums are of
// integers, so no order matters but that of the blocks of a score.

// Offsets in score8Args, weighArgs and mix8Args.
const (
	score8K, score8D, score8Pages, score8NP, score8Stride, score8StrideD, score8X, score8SX, score8Init, score8N, score8S = 0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80
	weighS, weighD, weighPages, weighNP, weighStrideD                                                                     = 0, 8, 16, 24, 32
	mix8P, mix8V, mix8Pages, mix8NP, mix8Stride, mix8Dim, mix8O, mix8Unit                                                 = 0, 8, 16, 24, 32, 40, 48, 56
)

// span is the number of positions of a row of weights.
const span = 256

// scores8 writes the AVX-512 kernel of query-key products: a page of 16 keys is a
// panel of 16 rows of a matrix product, see gemmIntTile.
func scores8() {
	TEXT("scores8AVX512", NOSPLIT, "func(a *byte, t int)")
	Pragma("noescape")
	Doc("scores8AVX512 is scores8Go for t <= 8 queries; a points to score8Args.")
	a, t := Load(Param("a"), GP64()), Load(Param("t"), GP64())
	k, d, pages, np := field(a, score8K), field(a, score8D), field(a, score8Pages), field(a, score8NP)
	stride, strideD, s := field(a, score8Stride), field(a, score8StrideD), field(a, score8S)
	for n := 1; n < tile; n++ {
		CMPQ(t, Imm(uint64(n)))
		JEQ(LabelRef(fmt.Sprintf("t%d", n)))
	}
	for n := tile; n >= 1; n-- {
		Label(fmt.Sprintf("t%d", n))
		Label(fmt.Sprintf("page%d", n))
		key, scale := pageAt(k, pages, stride), pageAt(d, pages, strideD)
		ADDQ(Imm(4), pages)
		next := nextPage(k, pages, stride, np)
		x, sx, init, blocks := field(a, score8X), field(a, score8SX), field(a, score8Init), field(a, score8N)
		acc := make([]reg.VecVirtual, n)
		for j := range acc {
			acc[j] = ZMM()
			VPXORD(acc[j], acc[j], acc[j])
		}
		Label(fmt.Sprintf("block%d", n))
		dot := make([]reg.VecVirtual, n)
		for j := range dot {
			dot[j] = ZMM()
			VPBROADCASTD(Mem{Base: init, Disp: 4 * j}, dot[j])
		}
		for g := range 8 {
			kz := ZMM()
			VMOVDQU64(Mem{Base: key, Disp: 64 * g}, kz)
			PREFETCHT0(Mem{Base: next, Disp: 64 * g})
			for j := range dot {
				VPDPBUSD_BCST(Mem{Base: x, Disp: 4 * (g*n + j)}, kz, dot[j])
			}
		}
		dz, tmp := ZMM(), ZMM()
		VCVTPH2PS(Mem{Base: scale}, dz)
		for j, r := range acc {
			VCVTDQ2PS(dot[j], dot[j])
			VMULPS_BCST(Mem{Base: sx, Disp: 4 * j}, dz, tmp)
			VFMADD231PS(tmp, dot[j], r)
		}
		ADDQ(U32(512), key)
		ADDQ(U32(512), next)
		ADDQ(Imm(32), scale)
		ADDQ(U32(uint32(32*n)), x)
		ADDQ(Imm(uint64(4*n)), sx)
		ADDQ(Imm(uint64(4*n)), init)
		DECQ(blocks)
		JNZ(LabelRef(fmt.Sprintf("block%d", n)))
		for j, r := range acc {
			VMOVUPS(r, Mem{Base: s, Disp: spanBytes * j})
		}
		ADDQ(Imm(64), s)
		DECQ(np)
		JNZ(LabelRef(fmt.Sprintf("page%d", n)))
		VZEROUPPER()
		RET()
	}
}

// weigh writes weighGo: per page 16 weights times 16 scales.
func weigh(i isa) {
	name := "weigh" + i.suffix()
	TEXT(name, NOSPLIT, "func(a *byte) float32")
	Pragma("noescape")
	Doc(name + " is weighGo; a points to weighArgs.")
	a := Load(Param("a"), GP64())
	s, d, pages := field(a, weighS), field(a, weighD), field(a, weighPages)
	np, strideD := field(a, weighNP), field(a, weighStrideD)
	top := i.vec()
	top.zero()
	Label("page")
	scale := pageAt(d, pages, strideD)
	ADDQ(Imm(4), pages)
	w, x := i.vec(), i.vec()
	w.loadHalf(Mem{Base: scale})
	x.load(Mem{Base: s})
	mul(x, w, x)
	vmax(x, top, top)
	x.store(Mem{Base: s})
	ADDQ(Imm(64), s)
	DECQ(np)
	JNZ(LabelRef("page"))
	Store(fold(top, vmaxOp), ReturnIndex(0))
	VZEROUPPER()
	RET()
}

// narrow writes narrowGo: 16 weights become 16 bytes of upper and 16 of lower
// parts.
func narrow(i isa) {
	name := "narrow" + i.suffix()
	TEXT(name, NOSPLIT, "func(s *float32, n int, inv float32, p *byte)")
	Pragma("noescape")
	Doc(name + " is narrowGo for a positive multiple of 16 weights.")
	s, n, p := Load(Param("s"), GP64()), Load(Param("n"), GP64()), Load(Param("p"), GP64())
	by := Load(Param("inv"), XMM()).(reg.VecVirtual)
	inv, mask := i.vec(), i.vec()
	for j := range inv {
		VBROADCASTSS(by.AsX(), inv[j])
		VPBROADCASTD(constant("seven", U32(127)), mask[j])
	}
	Label("loop")
	x, hi := i.vec(), i.vec()
	x.load(Mem{Base: s})
	mul(x, inv, x)
	for j := range x {
		VCVTPS2DQ(x[j], x[j])
		VPSRLD(Imm(7), x[j], hi[j])
		if i == avx512 {
			VPANDD(mask[j], x[j], x[j])
		} else {
			VPAND(mask[j], x[j], x[j])
		}
	}
	i.storeBytes(hi, Mem{Base: p})
	i.storeBytes(x, Mem{Base: p, Disp: span})
	ADDQ(Imm(64), s)
	ADDQ(Imm(16), p)
	SUBQ(Imm(16), n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// storeBytes stores 16 integers below 128 as bytes.
func (i isa) storeBytes(v vec, to Mem) {
	if i == avx512 {
		VPMOVDB(v[0], to)
		return
	}
	// Packing works within halves of a register, so they are put in order between.
	b, h := YMM(), XMM()
	VPACKUSDW(v[1], v[0], b)
	VPERMQ(Imm(0xd8), b, b)
	VEXTRACTI128(Imm(1), b, h)
	VPACKUSWB(h, b.AsX(), h)
	VMOVDQU(h, to)
}

// mix8Shapes are the tiles of the mix8 kernels, as in mixShapes; a query has two
// accumulators for each 16 columns.
func (i isa) mix8Shapes() [][2]int {
	if i == avx512 {
		return [][2]int{{3, 4}, {6, 2}, {8, 1}}
	}
	return [][2]int{{2, 1}}
}

// mix8 writes the kernels of weight-value products: per four positions w loads of
// values and for each query two products, of the upper and of the lower parts of
// its weights. At the end they become one integer.
func mix8(i isa) {
	name := "mix8" + i.suffix()
	TEXT(name, NOSPLIT, "func(a *byte, t int, w int)")
	Pragma("noescape")
	Doc(name+" is mix8Go for t queries and 16*w columns; a points to mix8Args.",
		"Only the shapes that the generator lists are there.")
	a, t, w := Load(Param("a"), GP64()), Load(Param("t"), GP64()), Load(Param("w"), GP64())
	for _, shape := range i.mix8Shapes() {
		top, wide := shape[0], shape[1]
		if wide > 1 {
			CMPQ(w, Imm(uint64(wide)))
			JNE(LabelRef(fmt.Sprintf("below%d", wide)))
		}
		for n := 1; n < top; n++ {
			CMPQ(t, Imm(uint64(n)))
			JEQ(LabelRef(fmt.Sprintf("t%dw%d", n, wide)))
		}
		for n := top; n >= 1; n-- {
			i.mix8Tile(n, wide, a)
		}
		if wide > 1 {
			Label(fmt.Sprintf("below%d", wide))
		}
	}
}

func (i isa) mix8Tile(n, wide int, a reg.Register) {
	id := fmt.Sprintf("t%dw%d", n, wide)
	Label(id)
	v, pages, np, stride := field(a, mix8V), field(a, mix8Pages), field(a, mix8NP), field(a, mix8Stride)
	p, row := field(a, mix8P), field(a, mix8Dim)
	SHLQ(Imm(2), row)  // bytes of the values of four positions, and of a row of o
	var acc [2][][]vec // [part][query][columns]
	for part := range acc {
		for range n {
			vs := i.vecs(wide)
			for _, r := range vs {
				r.zero()
			}
			acc[part] = append(acc[part], vs)
		}
	}
	Label("page" + id)
	value := pageAt(v, pages, stride)
	ADDQ(Imm(4), pages)
	next := nextPage(v, pages, stride, np)
	pos := GP64()
	MOVQ(U32(4), pos)
	Label("pos" + id)
	weights := func(part, j int) Mem { return Mem{Base: p, Disp: (2*j + part) * span} }
	for c := range wide {
		PREFETCHT0(Mem{Base: next, Disp: 64 * c})
	}
	if i == avx512 {
		cols := make([]reg.VecVirtual, wide)
		for c := range cols {
			cols[c] = ZMM()
			VMOVDQU64(Mem{Base: value, Disp: 64 * c}, cols[c])
		}
		for part := range acc {
			for j := range n {
				b := ZMM()
				VPBROADCASTD(weights(part, j), b)
				for c := range cols {
					VPDPBUSD(cols[c], b, acc[part][j][c][0])
				}
			}
		}
	} else {
		for half := range 2 {
			col := YMM()
			VMOVDQU(Mem{Base: value, Disp: 32 * half}, col)
			for part := range acc {
				for j := range n {
					b := YMM()
					VPBROADCASTD(weights(part, j), b)
					VPMADDUBSW(col, b, b)
					VPMADDWD(wide16(), b, b)
					r := acc[part][j][0][half]
					VPADDD(b, r, r)
				}
			}
		}
	}
	ADDQ(row, value)
	ADDQ(row, next)
	ADDQ(Imm(4), p)
	DECQ(pos)
	JNZ(LabelRef("pos" + id))
	DECQ(np)
	JNZ(LabelRef("page" + id))
	o, unit := field(a, mix8O), field(a, mix8Unit)
	for j := range n {
		u := i.splat(Mem{Base: unit, Disp: 4 * j})
		for c := range wide {
			hi, lo := acc[0][j][c], acc[1][j][c]
			for r := range hi {
				VPSLLD(Imm(7), hi[r], hi[r])
				VPADDD(lo[r], hi[r], hi[r])
				VCVTDQ2PS(hi[r], hi[r])
			}
			mul(hi, u, hi)
			hi.store(Mem{Base: o, Disp: 64 * c})
		}
		if j+1 < n {
			ADDQ(row, o)
		}
	}
	VZEROUPPER()
	RET()
}

// wide16 is eight pairs of 16-bit ones.
func wide16() Mem { return wide("ones16", 0x00010001) }
