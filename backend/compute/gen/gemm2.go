package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// For up to farTokens256 tokens the kernels of quantised weights fetch those that lie far256 bytes ahead.
const farTokens256, far256 = 2, 4096

// wide places a 32-byte constant of eight equal words in read-only data.
func wide(name string, word uint32) Mem {
	if m, ok := constants[name]; ok {
		return m
	}
	m := GLOBL(name, RODATA|NOPTR)
	for j := range 8 {
		DATA(4*j, U32(word))
	}
	constants[name] = m
	return m
}

// gemm256 writes the AVX2 kernel of a kind: up to 4 tokens of a tile that has step
// tokens, by panels of 16 rows. One or two tokens, where the weights come from memory,
// take panels that lie one behind the other; three or four of quantised weights take one
// panel, whatever the operands say.
//
// Sixteen registers hold 16 rows, as two registers, of two tokens, or 8 rows of four:
// then each half of a panel is read apart, and what it takes to unpack a weight is
// shared by twice as many products.
//
// Bytes are multiplied by VPMADDUBSW, whose sums of two products must fit in 16
// bits. So weights with offset 128 are made signed, and the product is that of
// their magnitude with the activation under their sign: at most 2*128*127.
// Four-bit weights are small enough to add all products of a block in 16 bits.
func gemm256(k gemmKind) {
	name := "gemm" + k.name + "AVX2"
	TEXT(name, NOSPLIT, "func(a *byte, t int, step int)")
	Pragma("noescape")
	Doc(name+" is gemmGo for "+k.name+" and t tokens, up to 4, of a tile that has step;", "a points to gemmArgs.")
	a := Load(Param("a"), GP64())
	t := Load(Param("t"), GP64())
	step := Load(Param("step"), GP64())
	SHLQ(Imm(2), step)
	stride := field(a, gemmStride)
	SHLQ(Imm(2), stride)
	y, w, panels := field(a, gemmY), field(a, gemmW), field(a, gemmPanels)
	var d, m reg.GPVirtual
	if !k.float {
		d = field(a, gemmD)
	}
	if k.min {
		m = field(a, gemmM)
	}
	const top = 4
	for i := 1; i < top; i++ {
		CMPQ(t, Imm(uint64(i)))
		JEQ(LabelRef(fmt.Sprintf("t%d", i)))
	}
	for i := top; i >= 1; i-- {
		panel := fmt.Sprintf("t%d", i)
		Label(panel)
		if k.float || i <= 2 {
			k.tile256(a, y, w, d, m, step, stride, i, []int{0, 1})
			ADDQ(Imm(64), y)
			DECQ(panels)
			JNZ(LabelRef(panel))
		} else {
			k.tile256(a, y, w, d, m, step, stride, i, []int{0})
			for _, f := range []struct {
				r   reg.Register
				off int
			}{{w, gemmW}, {d, gemmD}, {m, gemmM}} {
				if f.off != gemmM || k.min {
					MOVQ(Mem{Base: a, Disp: f.off}, f.r)
				}
			}
			k.tile256(a, y, w, d, m, step, stride, i, []int{1})
		}
		VZEROUPPER()
		RET()
	}
}

// tile256 computes t tokens by the given halves of a panel's rows, and leaves w, d
// and m behind the panel.
func (k gemmKind) tile256(a, y, w, d, m, step, stride reg.Register, t int, halves []int) {
	acc := make([]vec, t)
	for i := range acc {
		acc[i] = zeros256(len(halves))
	}
	loop := fmt.Sprintf("loop%d_%d", t, halves[0])
	if k.float {
		floatTile256(k, a, w, step, acc, loop)
	} else {
		k.intTile256(a, w, d, m, step, acc, halves, loop)
	}
	row := GP64()
	MOVQ(y, row)
	for i, v := range acc {
		if i > 0 {
			ADDQ(stride, row)
		}
		v.store(Mem{Base: row, Disp: 32 * halves[0]})
	}
}

// zeros256 returns so many registers of zeros.
func zeros256(n int) (v vec) {
	for range n {
		r := YMM()
		VXORPS(r, r, r)
		v = append(v, r)
	}
	return v
}

func floatTile256(k gemmKind, a, w, step reg.Register, acc []vec, loop string) {
	x, n := field(a, gemmXF), field(a, gemmN)
	Label(loop)
	wv := avx2.vec()
	if k.half {
		wv.loadHalf(Mem{Base: w})
		ADDQ(Imm(32), w)
	} else {
		wv.load(Mem{Base: w})
		ADDQ(Imm(64), w)
	}
	for i, v := range acc {
		fma(avx2.splat(Mem{Base: x, Disp: 4 * i}), wv, v)
	}
	ADDQ(step, x)
	DECQ(n)
	JNZ(LabelRef(loop))
}

func (k gemmKind) intTile256(a, w, d, m, step reg.Register, acc []vec, halves []int, loop string) {
	t := len(acc)
	x, sx, n := field(a, gemmX), field(a, gemmSX), field(a, gemmN)
	var xs, init reg.GPVirtual
	if k.min {
		xs = field(a, gemmXS)
	}
	if k.shift > 0 {
		init = field(a, gemmInit)
	}
	held := k.hold256(t)
	Label(loop)
	if t <= farTokens256 {
		for at := 0; at < k.blockBytes(); at += 64 {
			PREFETCHT0(Mem{Base: w, Disp: far256 + at})
		}
	}
	for h := range k.halves {
		dot := make([]vec, t)
		for i := range dot {
			dot[i] = zeros256(len(halves))
		}
		if k.four {
			k.dots4(w, x, step, dot, halves, held)
		} else {
			groups := 8 / k.halves
			for g := h * groups; g < (h+1)*groups; g++ {
				k.dots8(Mem{Base: w, Disp: 64 * g}, x, dot, halves, held)
				ADDQ(step, x)
			}
		}
		dv, tmp := avx2.vec()[:len(halves)], avx2.vec()[:len(halves)]
		dv.loadHalf(Mem{Base: d, Disp: 32*h + 16*halves[0]})
		for i, v := range acc {
			if k.shift > 0 {
				zero := YMM()
				VPBROADCASTD(Mem{Base: init, Disp: 4 * i}, zero)
				VPSRAD(Imm(k.shift), zero, zero)
				for _, r := range dot[i] {
					VPADDD(zero, r, r)
				}
			}
			for _, r := range dot[i] {
				VCVTDQ2PS(r, r)
			}
			mul(avx2.splat(Mem{Base: sx, Disp: 4 * i}), dv, tmp)
			fma(tmp, dot[i], v)
		}
		if k.min {
			dv.loadHalf(Mem{Base: m, Disp: 16 * halves[0]})
			for i, v := range acc {
				fma(avx2.splat(Mem{Base: xs, Disp: 4 * i}), dv, v)
			}
		}
	}
	ADDQ(U32(uint32(k.blockBytes())), w)
	ADDQ(Imm(uint64(32*k.halves)), d)
	ADDQ(step, sx)
	if k.min {
		ADDQ(Imm(32), m)
		ADDQ(step, xs)
	}
	if k.shift > 0 {
		ADDQ(step, init)
	}
	DECQ(n)
	JNZ(LabelRef(loop))
}

// constants256 are what unpacks and adds weights: registers, or memory where there is
// none to spare.
type constants256 struct {
	ones, offset, nibbles, sixteens, bits Op

	bytes [2]Op // of the halves of a panel
}

// hold256 places the constants of a kind. One token leaves registers for them, and needs
// them there: the two loads in a cycle are its limit else.
func (k gemmKind) hold256(t int) (c constants256) {
	hold := func(m Mem, wanted bool) Op {
		if !wanted || t > 1 {
			return m
		}
		r := YMM()
		VMOVDQU(m, r)
		return r
	}
	c.ones = hold(wide("ones16", 0x00010001), !k.four)
	c.offset = hold(wide("offset128", 0x80808080), k.offset)
	c.nibbles = hold(wide("nibbles256", 0x0f0f0f0f), k.four)
	c.sixteens = hold(wide("sixteens256", 0x10101010), k.fifth)
	c.bytes[0] = hold(words("fifthBytes", 0, 0, 0x01010101, 0x01010101, 0x02020202, 0x02020202, 0x03030303, 0x03030303), k.fifth)
	c.bytes[1] = hold(words("fifthBytesHigh", 0x04040404, 0x04040404, 0x05050505, 0x05050505, 0x06060606, 0x06060606, 0x07070707, 0x07070707), k.fifth)
	c.bits = hold(words("fifthMasks", 0x08040201, 0x80402010, 0x08040201, 0x80402010, 0x08040201, 0x80402010, 0x08040201, 0x80402010), k.fifth)
	return c
}

// dots8 adds the products of one group of byte weights.
func (k gemmKind) dots8(w Mem, x reg.Register, dot []vec, halves []int, c constants256) {
	for j, half := range halves {
		s, mag := YMM(), YMM()
		VMOVDQU(w.Offset(32*half), s)
		if k.offset {
			VPXOR(c.offset, s, s)
			VPABSB(s, mag)
		}
		for i := range dot {
			p := YMM()
			VPBROADCASTD(Mem{Base: x, Disp: 4 * i}, p)
			if k.offset {
				VPSIGNB(s, p, p)
				VPMADDUBSW(p, mag, p)
			} else {
				VPMADDUBSW(p, s, p)
			}
			VPMADDWD(c.ones, p, p)
			VPADDD(p, dot[i][j], dot[i][j])
		}
	}
}

// dots4 adds the products of a block of 4-bit weights, with their fifth bits if
// there are, and moves x on. They are added in 16 bits first: the eight of a lane are
// at most 8*2*15*127, with a fifth bit four at most 4*2*31*127.
func (k gemmKind) dots4(w, x, step reg.Register, dot []vec, halves []int, c constants256) {
	high := GP64()
	LEAQ(Mem{Base: x, Index: step, Scale: 4}, high)
	sum := dot
	flush := 4 // groups whose products fit
	if k.fifth {
		flush = 2
	}
	for g := range 4 {
		if k.fifth && g%flush == 0 {
			sum = make([]vec, len(dot))
			for i := range sum {
				sum[i] = zeros256(len(halves))
			}
		}
		if k.fifth && len(dot) == 1 {
			for n, x := range []reg.Register{x, high} {
				k.dots5(w, x, g+4*n, sum[0], c)
			}
		} else {
			k.dotsNibbles(w, x, high, g, sum, halves, c)
		}
		ADDQ(step, x)
		ADDQ(step, high)
		if g%flush < flush-1 {
			continue
		}
		for i := range dot {
			for j, r := range sum[i] {
				VPMADDWD(c.ones, r, r)
				if k.fifth {
					VPADDD(r, dot[i][j], dot[i][j])
				}
			}
		}
	}
	LEAQ(Mem{Base: x, Index: step, Scale: 4}, x)
}

// dotsNibbles adds the products of the groups g and g+4, whose weights share bytes.
func (k gemmKind) dotsNibbles(w, x, high reg.Register, g int, sum []vec, halves []int, c constants256) {
	for j, half := range halves {
		lo, hi := YMM(), YMM()
		VMOVDQU(Mem{Base: w, Disp: 64*g + 32*half}, hi)
		VPAND(c.nibbles, hi, lo)
		VPSRLW(Imm(4), hi, hi)
		VPAND(c.nibbles, hi, hi)
		if k.fifth {
			for n, v := range []reg.VecVirtual{lo, hi} {
				b := YMM()
				VPBROADCASTD(Mem{Base: w, Disp: 256 + 8*(g+4*n) + 4*half}, b)
				VPSHUFB(c.bytes[0], b, b)
				c.fifth(b, v)
			}
		}
		for i := range sum {
			for n, v := range []reg.VecVirtual{lo, hi} {
				p := YMM()
				VPBROADCASTD(Mem{Base: []reg.Register{x, high}[n], Disp: 4 * i}, p)
				VPMADDUBSW(p, v, p)
				VPADDW(p, sum[i][j], sum[i][j])
			}
		}
	}
}

// dots5 adds the products of one token and group g of both halves of a panel, which
// share what is read but for the weights.
func (k gemmKind) dots5(w, x reg.Register, g int, sum vec, c constants256) {
	xs, bits := YMM(), YMM()
	VPBROADCASTD(Mem{Base: x}, xs)
	VPBROADCASTQ(Mem{Base: w, Disp: 256 + 8*g}, bits)
	for half, s := range sum {
		v, b := YMM(), YMM()
		VMOVDQU(Mem{Base: w, Disp: 64*(g%4) + 32*half}, v)
		if g >= 4 {
			VPSRLW(Imm(4), v, v)
		}
		VPAND(c.nibbles, v, v)
		VPSHUFB(c.bytes[half], bits, b)
		c.fifth(b, v)
		VPMADDUBSW(xs, v, v)
		VPADDW(v, s, s)
	}
}

// fifth adds 16 to the bytes of v whose bit is set in b, which it changes.
func (c *constants256) fifth(b, v reg.VecVirtual) {
	VPAND(c.bits, b, b)
	VPCMPEQB(c.bits, b, b)
	VPAND(c.sixteens, b, b)
	VPOR(b, v, v)
}

// words places 32-bit words in read-only data.
func words(name string, w ...uint32) Mem {
	if m, ok := constants[name]; ok {
		return m
	}
	m := GLOBL(name, RODATA|NOPTR)
	for j, v := range w {
		DATA(4*j, U32(v))
	}
	constants[name] = m
	return m
}
