package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in scoreArgs and mixArgs.
const (
	scoreQ, scoreK, scorePages, scoreNP, scoreStride, scoreDim, scoreS, scorePairs, scoreValues, scoreNear = 0, 8, 16, 24, 32, 40, 48, 56, 64, 72
	mixP, mixV, mixPages, mixNP, mixStride, mixDim, mixO, mixPairs, mixNext, mixKeys                       = 0, 8, 16, 24, 32, 40, 48, 56, 64, 72
)

// spanBytes is the size of a row of scores.
const spanBytes = 256 * 4

// pageAt computes the address of the next page.
func pageAt(base, pages, stride reg.Register) reg.GPVirtual {
	p := GP64()
	MOVLQSX(Mem{Base: pages}, p)
	IMULQ(stride, p)
	ADDQ(base, p)
	return p
}

// nextPage computes the address of the page after the current one, whose entry
// pages has just left behind, or of the current one where it is the last.
func nextPage(base, pages, stride, np reg.Register) reg.GPVirtual {
	entry, last := GP64(), GP64()
	MOVQ(pages, entry)
	LEAQ(Mem{Base: pages, Disp: -4}, last)
	CMPQ(np, Imm(1))
	CMOVQEQ(last, entry)
	return pageAt(base, entry, stride)
}

// nextPage is that of the page whose lines a kernel fetches while it computes the current
// one: with AVX2 the second one after it, since computing a page of few queries takes no
// longer than memory does to answer.
func (i isa) nextPage(base, pages, stride, np reg.Register) reg.GPVirtual {
	if i != avx2 {
		return nextPage(base, pages, stride, np)
	}
	entry, last := GP64(), GP64()
	LEAQ(Mem{Base: pages, Disp: 4}, entry)
	LEAQ(Mem{Base: pages, Index: np, Scale: 4, Disp: -8}, last)
	CMPQ(entry, last)
	CMOVQHI(last, entry)
	return pageAt(base, entry, stride)
}

// scores writes the kernel of query-key products for tiers without a bfloat16
// dot product: per page of 16 positions and tile of t queries, one accumulator
// of 16 lanes per query. Per pair of dimensions: one load of 16 pairs, their
// expansion to float32, and per query two fused multiply-adds, the odd
// dimension first. The next page is prefetched: pages lie apart, and the
// processor does not see where it goes on.
//
// With AVX2 a call computes up to 4 queries of a tile of step queries.
func scores(i isa) {
	name := "scores" + i.suffix()
	TEXT(name, NOSPLIT, "func(a *byte, t int, step int)")
	Pragma("noescape")
	Doc(name+" is scoresGo for t queries of a tile that has step; a points to",
		"scoreArgs. AVX-512 takes up to 16, AVX2 up to 4 queries.")
	a := Load(Param("a"), GP64())
	t := Load(Param("t"), GP64())
	step := Load(Param("step"), GP64())
	SHLQ(Imm(2), step)
	k, pages, np := field(a, scoreK), field(a, scorePages), field(a, scoreNP)
	stride, s := field(a, scoreStride), field(a, scoreS)
	SHLQ(Imm(1), stride)
	top := 16
	if i == avx2 {
		top = 4
	}
	for n := 1; n < top; n++ {
		CMPQ(t, Imm(uint64(n)))
		JEQ(LabelRef(fmt.Sprintf("t%d", n)))
	}
	for n := top; n >= 1; n-- {
		Label(fmt.Sprintf("t%d", n))
		Label(fmt.Sprintf("page%d", n))
		key := pageAt(k, pages, stride)
		ADDQ(Imm(4), pages)
		next := i.nextPage(k, pages, stride, np)
		q, dim := field(a, scoreQ), field(a, scoreDim)
		acc := i.vecs(n)
		for _, v := range acc {
			v.zero()
		}
		Label(fmt.Sprintf("dim%d", n))
		even, odd := i.pairs(Mem{Base: key})
		PREFETCHT0(Mem{Base: next})
		ADDQ(Imm(64), key)
		ADDQ(Imm(64), next)
		for j, v := range acc {
			i.fmaBcst(Mem{Base: q, Index: step, Scale: 1, Disp: 4 * j}, odd, v)
		}
		for j, v := range acc {
			i.fmaBcst(Mem{Base: q, Disp: 4 * j}, even, v)
		}
		LEAQ(Mem{Base: q, Index: step, Scale: 2}, q)
		SUBQ(Imm(2), dim)
		JNZ(LabelRef(fmt.Sprintf("dim%d", n)))
		for j, v := range acc {
			v.store(Mem{Base: s, Disp: spanBytes * j})
		}
		ADDQ(Imm(64), s)
		DECQ(np)
		JNZ(LabelRef(fmt.Sprintf("page%d", n)))
		VZEROUPPER()
		RET()
	}
}

// pairs loads 16 pairs of bfloat16 and expands them to float32.
func (i isa) pairs(m Mem) (even, odd vec) {
	even, odd = i.vec(), i.vec()
	mask := wide("upperHalf", 0xffff0000)
	for j := range even {
		if i == avx512 {
			VMOVDQU32(m, even[j])
			VPANDD_BCST(constant("upper", U32(0xffff0000)), even[j], odd[j])
		} else {
			VMOVDQU(m.Offset(32*j), even[j])
			VPAND(mask, even[j], odd[j])
		}
		VPSLLD(Imm(16), even[j], even[j])
	}
	return even, odd
}

// fmaBcst computes acc += the value at m times b.
func (i isa) fmaBcst(m Mem, b, acc vec) {
	if i == avx512 {
		VFMADD231PS_BCST(m, b[0], acc[0])
		return
	}
	fma(i.splat(m), b, acc)
}

// mixShapes are the tiles of the mix kernels: up to t queries by 16*w columns,
// for each w, such that the accumulators stay in registers. Many queries share
// the conversion of a value; few need columns to hide the latency of the sums.
func (i isa) mixShapes() [][2]int {
	if i == avx512 {
		return [][2]int{{4, 4}, {16, 1}} // 16 accumulators
	}
	return [][2]int{{4, 1}} // 4 accumulators of two registers
}

// mix writes the kernels of weight-value products, accumulated in registers over
// all positions of the pages. Per position: w loads of values and per query a
// broadcast, w multiplications and w additions.
func mix(i isa) {
	name := "mix" + i.suffix()
	TEXT(name, NOSPLIT, "func(a *byte, t int, w int)")
	Pragma("noescape")
	Doc(name+" is mixGo for t queries and 16*w columns; a points to mixArgs.",
		"Only the shapes that the generator lists are there.")
	a := Load(Param("a"), GP64())
	t := Load(Param("t"), GP64())
	w := Load(Param("w"), GP64())
	v, pages, np := field(a, mixV), field(a, mixPages), field(a, mixNP)
	stride, p, row, o := field(a, mixStride), field(a, mixP), field(a, mixDim), field(a, mixO)
	SHLQ(Imm(1), stride)
	SHLQ(Imm(2), row) // bytes of the values of two positions, and of a row of o
	for _, shape := range i.mixShapes() {
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
			i.mixTile(n, wide, v, pages, np, stride, p, row, o)
		}
		if wide > 1 {
			Label(fmt.Sprintf("below%d", wide))
		}
	}
}

func (i isa) mixTile(n, wide int, v, pages, np, stride, p, row, o reg.Register) {
	id := fmt.Sprintf("t%dw%d", n, wide)
	Label(id)
	acc := make([][]vec, n)
	for j := range acc {
		acc[j] = i.vecs(wide)
		for _, r := range acc[j] {
			r.zero()
		}
	}
	Label("page" + id)
	value := pageAt(v, pages, stride)
	ADDQ(Imm(4), pages)
	next := i.nextPage(v, pages, stride, np)
	pos := GP64()
	MOVQ(U32(8), pos)
	Label("pos" + id)
	even, odd := make([]vec, wide), make([]vec, wide)
	for c := range even {
		even[c], odd[c] = i.pairs(Mem{Base: value, Disp: 64 * c})
		PREFETCHT0(Mem{Base: next, Disp: 64 * c})
	}
	ADDQ(row, value)
	ADDQ(row, next)
	for j := range acc {
		at := Mem{Base: p, Disp: spanBytes * j}
		if wide == 1 {
			i.fmaBcst(at.Offset(4), odd[0], acc[j][0])
			i.fmaBcst(at, even[0], acc[j][0])
			continue
		}
		b := i.splat(at.Offset(4))
		for c := range odd {
			fma(b, odd[c], acc[j][c])
		}
		b = i.splat(at)
		for c := range even {
			fma(b, even[c], acc[j][c])
		}
	}
	ADDQ(Imm(8), p)
	DECQ(pos)
	JNZ(LabelRef("pos" + id))
	DECQ(np)
	JNZ(LabelRef("page" + id))
	for j := range acc {
		for c, r := range acc[j] {
			r.store(Mem{Base: o, Disp: 64 * c})
		}
		if j+1 < n {
			ADDQ(row, o)
		}
	}
	VZEROUPPER()
	RET()
}
