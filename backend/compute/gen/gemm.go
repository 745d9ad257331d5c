package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// Offsets in gemmArgs.
const (
	gemmW, gemmD, gemmM, gemmX, gemmSX, gemmXS, gemmInit, gemmXF, gemmN, gemmY, gemmStride, gemmPanels = 0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88
)

type gemmKind struct {
	name   string
	float  bool   // activations are float32
	half   bool   // weights are half floats
	min    bool   // blocks have a minimum
	offset bool   // weights have an offset, of 128 unless there is a shift
	shift  uint64 // the offset is 128 shifted right by this
	halves int    // scales per block
	four   bool   // 4-bit weights
	fifth  bool   // with a fifth bit apart
}

var (
	float32s = gemmKind{name: "Float32", float: true}
	float16s = gemmKind{name: "Float16", float: true, half: true}
	int8s    = gemmKind{name: "Int8", offset: true, halves: 1}
	int4s    = gemmKind{name: "Int4", offset: true, shift: 4, halves: 1, four: true}
	int5s    = gemmKind{name: "Int5", offset: true, shift: 3, halves: 1, four: true, fifth: true}
	int5Min  = gemmKind{name: "Int5Min", min: true, halves: 1, four: true, fifth: true}
	int8Half = gemmKind{name: "Int8Half", offset: true, halves: 2}
	int4Min  = gemmKind{name: "Int4Min", min: true, halves: 1, four: true}
	int8Min  = gemmKind{name: "Int8Min", min: true, halves: 1} // of unpacked panels
)

const tile = 8

// Kernels of 4-bit weights have so many instructions for a cache line that those in
// flight do not cover the latency of memory: for up to farTokens tokens, where weights
// come from there, they fetch weights that lie far bytes ahead.
const farTokens, far = 2, 4096

// blockBytes is Kind.blockBytes.
func (k gemmKind) blockBytes() int {
	switch {
	case k.fifth:
		return 320
	case k.four:
		return 256
	}
	return 512
}

// gemm512 writes the AVX-512 VNNI kernel of a kind: panels of 16 rows, which lie
// one behind the other, by a tile of 1 to 8 tokens. To return after each panel would
// keep the memory waiting.
//
// Registers: one accumulator of float32 and one of int32 per token, one vector
// of weights, one each of scales and minima. Per block of 32 columns and token:
// 8 VPDPBUSD, a conversion, a multiplication and a fused multiply-add.
func gemm512(k gemmKind) {
	name := "gemm" + k.name + "AVX512"
	TEXT(name, NOSPLIT, "func(a *byte, t int)")
	Pragma("noescape")
	Doc(name + " is gemmGo for " + k.name + "; a points to gemmArgs.")
	a := Load(Param("a"), GP64())
	t := Load(Param("t"), GP64())
	stride := field(a, gemmStride)
	SHLQ(Imm(2), stride)
	y := field(a, gemmY)
	w, d, panels := field(a, gemmW), field(a, gemmD), field(a, gemmPanels)
	var m reg.GPVirtual
	if k.min {
		m = field(a, gemmM)
	}
	for i := 1; i < tile; i++ {
		CMPQ(t, Imm(uint64(i)))
		JEQ(LabelRef(fmt.Sprintf("t%d", i)))
	}
	for i := tile; i >= 1; i-- {
		panel := fmt.Sprintf("t%d", i)
		Label(panel)
		var acc []reg.VecVirtual
		for range i {
			r := ZMM()
			VPXORD(r, r, r)
			acc = append(acc, r)
		}
		if k.float {
			gemmFloatTile(k, a, w, i, acc)
		} else {
			gemmIntTile(k, a, w, d, m, i, acc)
		}
		row := GP64()
		MOVQ(y, row)
		for j, r := range acc {
			if j > 0 {
				ADDQ(stride, row)
			}
			VMOVUPS(r, Mem{Base: row})
		}
		ADDQ(Imm(64), y)
		DECQ(panels)
		JNZ(LabelRef(panel))
		VZEROUPPER()
		RET()
	}
}

func gemmFloatTile(k gemmKind, a, w reg.Register, t int, acc []reg.VecVirtual) {
	x, n := field(a, gemmXF), field(a, gemmN)
	loop := fmt.Sprintf("loop%d", t)
	Label(loop)
	wz := ZMM()
	if k.half {
		VCVTPH2PS(Mem{Base: w}, wz)
		ADDQ(Imm(32), w)
	} else {
		VMOVUPS(Mem{Base: w}, wz)
		ADDQ(Imm(64), w)
	}
	for i, r := range acc {
		VFMADD231PS_BCST(Mem{Base: x, Disp: 4 * i}, wz, r)
	}
	ADDQ(Imm(uint64(4*t)), x)
	DECQ(n)
	JNZ(LabelRef(loop))
}

func gemmIntTile(k gemmKind, a, w, d, m reg.Register, t int, acc []reg.VecVirtual) {
	x, sx, n := field(a, gemmX), field(a, gemmSX), field(a, gemmN)
	var xs, init reg.GPVirtual
	if k.min {
		xs = field(a, gemmXS)
	}
	if k.offset {
		init = field(a, gemmInit)
	}
	mask := ZMM()
	if k.four {
		VPBROADCASTD(constant("nibbles", U32(0x0f0f0f0f)), mask)
	}
	sixteen := ZMM()
	if k.fifth {
		VPBROADCASTD(constant("sixteens", U32(0x10101010)), sixteen)
	}
	loop := fmt.Sprintf("loop%d", t)
	Label(loop)
	for h := range k.halves {
		dot := make([]reg.VecVirtual, t)
		for i := range dot {
			dot[i] = ZMM()
			if k.offset {
				VPBROADCASTD(Mem{Base: init, Disp: 4 * (h*t + i)}, dot[i])
				if k.shift > 0 {
					VPSRAD(Imm(k.shift), dot[i], dot[i])
				}
			} else {
				VPXORD(dot[i], dot[i], dot[i])
			}
		}
		groups := 8 / k.halves
		if k.four {
			if t <= farTokens {
				for at := 0; at < k.blockBytes(); at += 64 {
					PREFETCHT0(Mem{Base: w, Disp: far + at})
				}
			}
			for g := range 4 {
				lo, hi := k.groups(w, g, mask, sixteen)
				for i := range dot {
					VPDPBUSD_BCST(Mem{Base: x, Disp: 4 * (g*t + i)}, lo, dot[i])
				}
				for i := range dot {
					VPDPBUSD_BCST(Mem{Base: x, Disp: 4 * ((g+4)*t + i)}, hi, dot[i])
				}
			}
		} else {
			for g := h * groups; g < (h+1)*groups; g++ {
				wz := ZMM()
				VMOVDQU64(Mem{Base: w, Disp: 64 * g}, wz)
				for i := range dot {
					VPDPBUSD_BCST(Mem{Base: x, Disp: 4 * (g*t + i)}, wz, dot[i])
				}
			}
		}
		dz, tmp := ZMM(), ZMM()
		VCVTPH2PS(Mem{Base: d, Disp: 32 * h}, dz)
		for i, r := range acc {
			VCVTDQ2PS(dot[i], dot[i])
			VMULPS_BCST(Mem{Base: sx, Disp: 4 * i}, dz, tmp)
			VFMADD231PS(tmp, dot[i], r)
		}
		if k.min {
			mz := ZMM()
			VCVTPH2PS(Mem{Base: m}, mz)
			for i, r := range acc {
				VFMADD231PS_BCST(Mem{Base: xs, Disp: 4 * i}, mz, r)
			}
		}
	}
	ADDQ(U32(uint32(k.blockBytes())), w)
	ADDQ(U32(uint32(32*t)), x)
	ADDQ(Imm(uint64(32*k.halves)), d)
	ADDQ(Imm(uint64(4*t)), sx)
	if k.min {
		ADDQ(Imm(32), m)
		ADDQ(Imm(uint64(4*t)), xs)
	}
	if k.offset {
		ADDQ(Imm(uint64(4*t*k.halves)), init)
	}
	DECQ(n)
	JNZ(LabelRef(loop))
}

// groups makes bytes of the groups g and g+4 of a block of 4- or 5-bit weights at w.
func (k gemmKind) groups(w reg.Register, g int, mask, sixteen reg.VecVirtual) (lo, hi reg.VecVirtual) {
	lo, hi = ZMM(), ZMM()
	VMOVDQU64(Mem{Base: w, Disp: 64 * g}, hi)
	VPANDD(mask, hi, lo)
	VPSRLD(Imm(4), hi, hi)
	VPANDD(mask, hi, hi)
	if k.fifth {
		k1, k2 := K(), K()
		KMOVQ(Mem{Base: w, Disp: 256 + 8*g}, k1)
		KMOVQ(Mem{Base: w, Disp: 256 + 8*(g+4)}, k2)
		VPADDB(sixteen, lo, k1, lo)
		VPADDB(sixteen, hi, k2, hi)
	}
	return lo, hi
}

// unpack512 writes the kernel that makes bytes of a panel of 4-bit weights, for
// many tokens: it pays from the second tile on.
func unpack512(k gemmKind) {
	name := "unpack" + k.name + "AVX512"
	TEXT(name, NOSPLIT, "func(dst, src *byte, n int, add uint32)")
	Pragma("noescape")
	Doc(name+" writes n blocks as those of gemmInt8: each weight as a byte, to which", "one of add is added.")
	dst, src, n := Load(Param("dst"), GP64()), Load(Param("src"), GP64()), Load(Param("n"), GP64())
	plus, mask, sixteen := ZMM(), ZMM(), ZMM()
	VPBROADCASTD(Load(Param("add"), GP32()), plus)
	VPBROADCASTD(constant("nibbles", U32(0x0f0f0f0f)), mask)
	if k.fifth {
		VPBROADCASTD(constant("sixteens", U32(0x10101010)), sixteen)
	}
	Label("loop")
	for g := range 4 {
		lo, hi := k.groups(src, g, mask, sixteen)
		VPADDB(plus, lo, lo)
		VPADDB(plus, hi, hi)
		VMOVDQU64(lo, Mem{Base: dst, Disp: 64 * g})
		VMOVDQU64(hi, Mem{Base: dst, Disp: 64 * (g + 4)})
	}
	ADDQ(U32(uint32(k.blockBytes())), src)
	ADDQ(U32(512), dst)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
