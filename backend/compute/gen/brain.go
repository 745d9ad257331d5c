package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The kernels of this file use VDPBF16PS, which neither avo nor the Go assembler
// knows: it is written as bytes, and so all registers are named by hand.
//
// VDPBF16PS adds two products to each float32 lane, the odd element's first,
// and rounds after each addition (products of bfloat16 numbers are exact). That
// is what scoresGo and mixGo do. It takes subnormal numbers for zero, which the
// conversion to bfloat16 has seen to already.

// dotBrain emits VDPBF16PS with a 32-bit operand at base+disp broadcast to all
// lanes: zmm(acc) += zmm(x) . broadcast.
//
// EVEX.512.F3.0F38.W0 52 /r, with a 32-bit displacement so as to need no scaling.
// base is one of the first eight registers but SP, or R8 to R15 but R12.
func dotBrain(base, disp, x, acc int) {
	inv := func(v, bit int) byte { return byte(^v>>bit&1) & 1 }
	p0 := inv(acc, 3)<<7 | 1<<6 | inv(base, 3)<<5 | inv(acc, 4)<<4 | 2
	p1 := byte(^x&15)<<3 | 1<<2 | 2
	p2 := byte(2<<5) | 1<<4 | inv(x, 4)<<3
	modrm := byte(2<<6) | byte(acc&7)<<3 | byte(base&7)
	bytes := []byte{0x62, p0, p1, p2, 0x52, modrm, byte(disp), byte(disp >> 8), byte(disp >> 16), byte(disp >> 24)}
	for _, b := range bytes {
		Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []Op{Imm(uint64(b))}})
	}
}

var zmm = [...]reg.VecPhysical{
	reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10,
	reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15, reg.Z16, reg.Z17, reg.Z18, reg.Z19,
}

// regR8 is the number of the register that dotBrain's operands start at.
const regR8 = 8

func fieldTo(off int, dst reg.GPPhysical) { MOVQ(Mem{Base: reg.RAX, Disp: off}, dst) }

// pageTo computes in dst the address of the page whose number is at entry.
func pageTo(entry, dst reg.GPPhysical) {
	MOVLQSX(Mem{Base: entry}, dst)
	IMULQ(reg.RSI, dst)
	ADDQ(reg.RBX, dst)
}

// nextTo computes in R11 the address of the next page, for prefetching, or of the
// current one if scoreNear pages are left or fewer. Pages are at RCX, already moved
// on; DX pages are left, the current one included.
func nextTo() {
	MOVQ(reg.RCX, reg.R10)
	LEAQ(Mem{Base: reg.RCX, Disp: -4}, reg.R11)
	CMPQ(reg.RDX, Mem{Base: reg.RAX, Disp: scoreNear})
	CMOVQLE(reg.R11, reg.R10)
	pageTo(reg.R10, reg.R11)
}

// scoresBrain writes the query-key kernel: per pair of dimensions one load of 16
// pairs and per query one VDPBF16PS, i.e. 32 multiply-adds.
//
// Registers: AX arguments, BX keys, CX pages, DX pages left, SI bytes from page
// to page, DI scores, R8 queries, R9 keys of the page, R10 dimensions left, R11
// keys of the next page, R12 bytes from a page's keys to its values; Z0 to Z15
// scores of the queries, Z16 keys.
//
// On pages that lie apart mixBrain fetches the next span's keys and scoresBrain this
// span's values, so that the memory works while products are computed. On pages in
// a row the processor does that better alone: both then name the line in hand.
func scoresBrain() {
	TEXT("scoresBF16", NOSPLIT, "func(a *byte, t int)")
	Pragma("noescape")
	Doc("scoresBF16 is scoresGo for t <= 16 queries; a points to scoreArgs.")
	Load(Param("a"), reg.RAX)
	Load(Param("t"), reg.R13)
	fieldTo(scoreK, reg.RBX)
	fieldTo(scorePages, reg.RCX)
	fieldTo(scoreNP, reg.RDX)
	fieldTo(scoreStride, reg.RSI)
	SHLQ(Imm(1), reg.RSI)
	fieldTo(scoreS, reg.RDI)
	fieldTo(scoreValues, reg.R12)
	for n := 1; n < 16; n++ {
		CMPQ(reg.R13, Imm(uint64(n)))
		JEQ(LabelRef(fmt.Sprintf("t%d", n)))
	}
	for n := 16; n >= 1; n-- {
		Label(fmt.Sprintf("t%d", n))
		Label(fmt.Sprintf("page%d", n))
		pageTo(reg.RCX, reg.R9)
		ADDQ(Imm(4), reg.RCX)
		nextTo()
		fieldTo(scorePairs, reg.R8)
		fieldTo(scoreDim, reg.R10)
		for j := range n {
			VPXORD(zmm[j], zmm[j], zmm[j])
		}
		Label(fmt.Sprintf("dim%d", n))
		VMOVDQU64(Mem{Base: reg.R9}, reg.Z16)
		PREFETCHT0(Mem{Base: reg.R11})
		PREFETCHT1(Mem{Base: reg.R9, Index: reg.R12, Scale: 1})
		for j := range n {
			dotBrain(regR8, 4*j, 16, j)
		}
		ADDQ(Imm(64), reg.R9)
		ADDQ(Imm(64), reg.R11)
		ADDQ(Imm(uint64(4*n)), reg.R8)
		SUBQ(Imm(2), reg.R10)
		JNZ(LabelRef(fmt.Sprintf("dim%d", n)))
		for j := range n {
			VMOVUPS(zmm[j], Mem{Base: reg.RDI, Disp: spanBytes * j})
		}
		ADDQ(Imm(64), reg.RDI)
		DECQ(reg.RDX)
		JNZ(LabelRef(fmt.Sprintf("page%d", n)))
		VZEROUPPER()
		RET()
	}
}

// mixBrain writes the weight-value kernels, of the shapes of mixShapes: per pair
// of positions w loads of values and per query w VDPBF16PS.
//
// Registers: as in scoresBrain, but BX values, DI results, R8 weights, R9 values
// of the page, R10 pairs of positions left, R11 keys of a page of the next span,
// R12 bytes from a page's entry to that of the other, R13 bytes of the values of
// two positions; Z0 to Z15 results, Z16 to Z19 values.
func mixBrain() {
	TEXT("mixBF16", NOSPLIT, "func(a *byte, t int, w int)")
	Pragma("noescape")
	Doc("mixBF16 is mixGo for t queries and 16*w columns; a points to mixArgs.",
		"Only the shapes that the generator lists are there.")
	Load(Param("a"), reg.RAX)
	Load(Param("t"), reg.R13)
	Load(Param("w"), reg.R10)
	fieldTo(mixV, reg.RBX)
	fieldTo(mixPages, reg.RCX)
	fieldTo(mixNP, reg.RDX)
	fieldTo(mixStride, reg.RSI)
	SHLQ(Imm(1), reg.RSI)
	fieldTo(mixO, reg.RDI)
	fieldTo(mixPairs, reg.R8)
	fieldTo(mixNext, reg.R12)
	SUBQ(reg.RCX, reg.R12)
	for _, shape := range avx512.mixShapes() {
		top, wide := shape[0], shape[1]
		if wide > 1 {
			CMPQ(reg.R10, Imm(uint64(wide)))
			JNE(LabelRef(fmt.Sprintf("below%d", wide)))
		}
		for n := 1; n < top; n++ {
			CMPQ(reg.R13, Imm(uint64(n)))
			JEQ(LabelRef(fmt.Sprintf("t%dw%d", n, wide)))
		}
		for n := top; n >= 1; n-- {
			mixBrainTile(n, wide)
		}
		if wide > 1 {
			Label(fmt.Sprintf("below%d", wide))
		}
	}
}

func mixBrainTile(n, wide int) {
	id := fmt.Sprintf("t%dw%d", n, wide)
	Label(id)
	fieldTo(mixDim, reg.R13)
	SHLQ(Imm(2), reg.R13)
	for j := range n * wide {
		VPXORD(zmm[j], zmm[j], zmm[j])
	}
	Label("page" + id)
	pageTo(reg.RCX, reg.R9)
	LEAQ(Mem{Base: reg.RCX, Index: reg.R12, Scale: 1}, reg.R11)
	pageTo(reg.R11, reg.R11)
	ADDQ(Mem{Base: reg.RAX, Disp: mixKeys}, reg.R11)
	ADDQ(Imm(4), reg.RCX)
	MOVQ(U32(8), reg.R10)
	Label("pos" + id)
	for c := range wide {
		VMOVDQU64(Mem{Base: reg.R9, Disp: 64 * c}, zmm[16+c])
		PREFETCHT1(Mem{Base: reg.R11, Disp: 64 * c})
	}
	for j := range n {
		for c := range wide {
			dotBrain(regR8, spanBytes/2*j, 16+c, j*wide+c)
		}
	}
	ADDQ(reg.R13, reg.R9)
	ADDQ(reg.R13, reg.R11)
	ADDQ(Imm(4), reg.R8)
	DECQ(reg.R10)
	JNZ(LabelRef("pos" + id))
	DECQ(reg.RDX)
	JNZ(LabelRef("page" + id))
	for j := range n {
		for c := range wide {
			VMOVUPS(zmm[j*wide+c], Mem{Base: reg.RDI, Disp: 64 * c})
		}
		if j+1 < n {
			ADDQ(reg.R13, reg.RDI)
		}
	}
	VZEROUPPER()
	RET()
}
