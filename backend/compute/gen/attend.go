package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in scoreArgs and mixArgs.
const (
	scoreQ, scoreK, scorePages, scoreNP, scoreStride, scoreDim, scoreS = 0, 8, 16, 24, 32, 40, 48
	mixP, mixV, mixPages, mixNP, mixStride, mixDim, mixO               = 0, 8, 16, 24, 32, 40, 48
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

// scores writes the kernel of query-key products: per page of 16 positions and
// tile of t queries, one accumulator of 16 lanes per query. Per dimension: one
// load of 16 keys and per query a multiplication and an addition.
//
// With AVX2 a call computes up to 4 queries of a tile of step queries.
func scores(i isa) {
	name := "scores" + i.suffix()
	TEXT(name, NOSPLIT, "func(a *byte, t int, step int)")
	Pragma("noescape")
	Doc(name+" is scoresGo for t queries of a tile that has step; a points to",
		"scoreArgs. AVX-512 takes up to 8, AVX2 up to 4 queries.")
	a := Load(Param("a"), GP64())
	t := Load(Param("t"), GP64())
	step := Load(Param("step"), GP64())
	SHLQ(Imm(2), step)
	k, pages, np := field(a, scoreK), field(a, scorePages), field(a, scoreNP)
	stride, s := field(a, scoreStride), field(a, scoreS)
	SHLQ(Imm(1), stride)
	top := tile
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
		q, dim := field(a, scoreQ), field(a, scoreDim)
		acc := i.vecs(n)
		for _, v := range acc {
			v.zero()
		}
		Label(fmt.Sprintf("dim%d", n))
		kv, tmp := i.vec(), i.vec()
		kv.loadHalf(Mem{Base: key})
		ADDQ(Imm(32), key)
		for j, v := range acc {
			if i == avx512 {
				VMULPS_BCST(Mem{Base: q, Disp: 4 * j}, kv[0], tmp[0])
				add(v, tmp, v)
			} else {
				addMul(v, i.splat(Mem{Base: q, Disp: 4 * j}), kv, tmp)
			}
		}
		ADDQ(step, q)
		DECQ(dim)
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

// mix writes the kernels of weight-value products: up to 4 queries by 16*w
// columns of the values, accumulated in registers over all positions of the
// pages. Per position: w loads of values and per query a broadcast, w
// multiplications and w additions. With AVX2 it is 2 queries by 32 columns.
func mix(i isa) {
	name := "mix" + i.suffix()
	top, widest := 4, 4
	if i == avx2 {
		top, widest = 2, 1
	}
	TEXT(name, NOSPLIT, "func(a *byte, t int, w int)")
	Pragma("noescape")
	Doc(name+" is mixGo for t queries and 16*w columns; a points to mixArgs.",
		fmt.Sprintf("t is at most %d, w is a power of two up to %d.", top, widest))
	a := Load(Param("a"), GP64())
	t := Load(Param("t"), GP64())
	w := Load(Param("w"), GP64())
	v, pages, np := field(a, mixV), field(a, mixPages), field(a, mixNP)
	stride, p, row, o := field(a, mixStride), field(a, mixP), field(a, mixDim), field(a, mixO)
	SHLQ(Imm(1), stride)
	SHLQ(Imm(1), row) // bytes of a position's values
	for wide := widest; wide >= 1; wide /= 2 {
		if wide > 1 {
			CMPQ(w, Imm(uint64(wide)))
			JNE(LabelRef(fmt.Sprintf("below%d", wide)))
		}
		for n := 1; n < top; n++ {
			CMPQ(t, Imm(uint64(n)))
			JEQ(LabelRef(fmt.Sprintf("t%dw%d", n, wide)))
		}
		for n := top; n >= 1; n-- {
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
			pos := GP64()
			MOVQ(U32(16), pos)
			Label("pos" + id)
			vals := i.vecs(wide)
			for c, r := range vals {
				r.loadHalf(Mem{Base: value, Disp: 32 * c})
			}
			ADDQ(row, value)
			for j := range acc {
				b := i.splat(Mem{Base: p, Disp: spanBytes * j})
				tmp := i.vecs(wide)
				for c := range vals {
					mul(b, vals[c], tmp[c])
				}
				for c := range vals {
					add(acc[j][c], tmp[c], acc[j][c])
				}
			}
			ADDQ(Imm(4), p)
			DECQ(pos)
			JNZ(LabelRef("pos" + id))
			DECQ(np)
			JNZ(LabelRef("page" + id))
			for j := range acc {
				for c, r := range acc[j] {
					r.store(Mem{Base: o, Disp: 64 * c})
				}
				if j+1 < n {
					ADDQ(row, o) // a row of o has twice the bytes
					ADDQ(row, o)
				}
			}
			VZEROUPPER()
			RET()
		}
		if wide > 1 {
			Label(fmt.Sprintf("below%d", wide))
		}
	}
}
