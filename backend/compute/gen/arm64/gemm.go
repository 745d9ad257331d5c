package main

import "fmt"

// Offsets in gemmArgs.
const (
	gemmW, gemmD, gemmM, gemmX, gemmSX, gemmXS, gemmInit, gemmXF, gemmN, gemmY, gemmStride, gemmPanels = 0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88
)

type gemmKind struct {
	name     string
	float    bool // activations are float32
	half     bool // weights are half floats
	min      bool // blocks have a minimum
	halves   int  // scales per block
	four     bool // 4-bit weights
	fifth    bool // with a fifth bit apart
	unpacked bool // bytes with a sign, as unpack makes them
}

var gemmKinds = []gemmKind{
	{name: "Float32", float: true},
	{name: "Float16", float: true, half: true},
	{name: "Int8", halves: 1},
	{name: "Int8Half", halves: 2},
	{name: "Int5", halves: 1, four: true, fifth: true},
	{name: "Int5Min", halves: 1, four: true, fifth: true, min: true},
	{name: "Int4", halves: 1, four: true},
	{name: "Int4Min", halves: 1, four: true, min: true},
	{name: "Signed", halves: 1, unpacked: true},
	{name: "SignedHalf", halves: 2, unpacked: true},
	{name: "SignedMin", halves: 1, min: true, unpacked: true},
}

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

// starts tells whether sums begin with what the offset of the weights makes of the
// activations. With a fifth bit it costs nothing to give weights their sign instead, and
// bytes have theirs after one operation.
func (k gemmKind) starts() bool { return k.four && !k.fifth && !k.min }

// Registers of the kernels.
const (
	rStep, rStride, rY, rW, rD, rM, rPanels gp = 1, 2, 3, 4, 5, 6, 7
	rX, rHigh, rSX, rXS, rInit, rN, rRow    gp = 8, 9, 10, 11, 12, 13, 14
	rTmp                                    gp = 15
)

// gemmConsts are what a kernel keeps in registers.
type gemmConsts struct {
	sign    vec    // 0x80 in each byte
	nibble  vec    // 0x0f in each byte
	bit     vec    // 1 to 0x80 in the bytes of each half
	sixteen vec    // in each byte
	spread  [4]vec // which byte of the fifth bits of a group belongs to a byte of weights
}

func (k gemmKind) consts() (c gemmConsts) {
	if !k.four && !k.unpacked && !k.float {
		c.sign = splat(0x80808080)
	}
	if k.four {
		c.nibble = splat(0x0f0f0f0f)
	}
	if k.fifth {
		c.bit = table(0x8040201008040201, 0x8040201008040201)
		for q := range c.spread {
			low := uint64(2*q) * 0x0101010101010101
			c.spread[q] = table(low, low+0x0101010101010101)
		}
		if k.min {
			c.sixteen = splat(0x10101010)
		}
	}
	return c
}

// gemm writes the kernel of a kind: up to 4 tokens of a tile that has step tokens, by
// panels of 16 rows. One or two tokens, where the weights come from memory, take panels
// that lie one behind the other; three or four of quantised weights take one panel,
// whatever the operands say.
//
// Registers hold the sums of 16 rows of two tokens, or of 8 rows of four, 4 to a
// register: as integers within a block and as float32 over all. SDOT multiplies four
// columns of four rows by four columns of a token, a lane of the register that holds
// those of all tokens. Per block, token and 4 rows there are 8 SDOT, a conversion, a
// product and a fused multiply-add.
func gemm(k gemmKind) {
	name := "gemm" + k.name + "NEON"
	begin(name, "a *byte, t int, step int", "", name+" is gemmGo for t tokens, up to 4, of a tile that has step; a points to gemmArgs.")
	arg("a", 0, 0)
	arg("t", 8, rTmp)
	arg("step", 16, rStep)
	op("LSL $2, %v", rStep)
	field(gemmStride, rStride)
	op("LSL $2, %v", rStride)
	field(gemmY, rY)
	field(gemmPanels, rPanels)
	k.panel()
	c := k.consts()
	const top = 4
	for i := 1; i < top; i++ {
		op("CMP $%d, %v", i, rTmp)
		op("BEQ t%d", i)
	}
	kept := pool
	for t := top; t >= 1; t-- {
		pool = kept
		label("t%d", t)
		if t <= 2 || k.float {
			k.tile(c, t, []int{0, 1, 2, 3})
			add(64, rY)
			op("SUBS $1, %v, %v", rPanels, rPanels)
			op("BNE t%d", t)
		} else {
			k.tile(c, t, []int{0, 1})
			k.panel()
			k.tile(c, t, []int{2, 3})
		}
		op("RET")
	}
}

// panel loads the addresses of the weights.
func (k gemmKind) panel() {
	field(gemmW, rW)
	if !k.float {
		field(gemmD, rD)
	}
	if k.min {
		field(gemmM, rM)
	}
}

// lanes loads 32 bits for each of t tokens, up to 4, from base and returns where they
// are. It reads no more than that.
func lanes(t int, base gp) (of []lane, vs []vec) { return lanesAt(t, base, 0) }

// lanesAt is lanes from off bytes on.
func lanesAt(t int, base gp, off int) (of []lane, vs []vec) {
	v := take()
	vs = append(vs, v)
	switch t {
	case 1:
		ldrS(v, base, off)
	case 2, 3:
		ldrD(v, base, off)
	case 4:
		ldrQ(v, base, off)
	}
	for i := range t {
		of = append(of, lane{v, uint32(i)})
	}
	if t == 3 {
		v = take()
		ldrS(v, base, off+8)
		of[2], vs = lane{v, 0}, append(vs, v)
	}
	return of, vs
}

// tile computes t tokens by the given quarters of a panel's rows, and leaves the
// addresses of weights behind the panel.
func (k gemmKind) tile(c gemmConsts, t int, quarters []int) {
	acc := make([][]vec, t)
	for i := range acc {
		acc[i] = takes(len(quarters))
		for _, v := range acc[i] {
			zero(v)
		}
	}
	if k.float {
		k.floats(acc)
	} else {
		k.blocks(c, acc, quarters)
	}
	op("MOVD %v, %v", rY, rRow)
	for i := range acc {
		if i > 0 {
			op("ADD %v, %v", rStride, rRow)
		}
		stores(acc[i], rRow, 16*quarters[0])
		free(acc[i]...)
	}
}

// floats adds the products of a panel of float32 or half floats.
func (k gemmKind) floats(acc [][]vec) {
	t := len(acc)
	field(gemmXF, rX)
	field(gemmN, rN)
	label("loop%d", t)
	w := takes(4)
	if k.half {
		loadHalves(w, rW, 0)
		add(32, rW)
	} else {
		loads(w, rW, 0)
		add(64, rW)
	}
	x, used := lanes(t, rX)
	op("ADD %v, %v", rStep, rX)
	for i := range acc {
		for j := range w {
			fmlaLane(acc[i][j], w[j], x[i])
		}
	}
	free(w...)
	free(used...)
	op("SUBS $1, %v, %v", rN, rN)
	op("BNE loop%d", t)
}

// blocks adds the products of the blocks of a panel.
func (k gemmKind) blocks(c gemmConsts, acc [][]vec, quarters []int) {
	t := len(acc)
	field(gemmX, rX)
	field(gemmSX, rSX)
	if k.min {
		field(gemmXS, rXS)
	}
	if k.starts() {
		field(gemmInit, rInit)
	}
	field(gemmN, rN)
	label("loop%d_%d", t, quarters[0])
	for h := range k.halves {
		dot := k.begin(t, len(quarters))
		if k.four {
			k.dots4(c, dot, quarters)
		} else {
			for g := h * 8 / k.halves; g < (h+1)*8/k.halves; g++ {
				x, used := lanes(t, rX)
				op("ADD %v, %v", rStep, rX)
				w := takes(len(quarters))
				loads(w, rW, 64*g+16*quarters[0])
				for j := range w {
					if !k.unpacked {
						xor(w[j], w[j], c.sign)
					}
					for i := range dot {
						sdot(dot[i][j], w[j], x[i])
					}
				}
				free(w...)
				free(used...)
			}
		}
		d := takes(len(quarters))
		loadHalves(d, rD, 32*h+8*quarters[0])
		s, used := lanes(t, rSX)
		tmp := take()
		for i := range dot {
			for j := range d {
				toFloat(dot[i][j], dot[i][j])
				fmulLane(tmp, d[j], s[i])
				fmla(acc[i][j], tmp, dot[i][j])
			}
			free(dot[i]...)
		}
		free(tmp)
		free(used...)
		if k.min {
			loadHalves(d, rM, 8*quarters[0])
			s, used := lanes(t, rXS)
			for i := range acc {
				for j := range d {
					fmlaLane(acc[i][j], d[j], s[i])
				}
			}
			free(used...)
		}
		free(d...)
	}
	add(k.blockBytes(), rW)
	add(32*k.halves, rD)
	op("ADD %v, %v", rStep, rSX)
	if k.min {
		add(32, rM)
		op("ADD %v, %v", rStep, rXS)
	}
	if k.starts() {
		op("ADD %v, %v", rStep, rInit)
	}
	op("SUBS $1, %v, %v", rN, rN)
	op("BNE loop%d_%d", t, quarters[0])
}

// begin returns the sums that a block starts with.
func (k gemmKind) begin(t, n int) [][]vec {
	dot := make([][]vec, t)
	for i := range dot {
		dot[i] = takes(n)
	}
	if !k.starts() {
		for i := range dot {
			for _, v := range dot[i] {
				zero(v)
			}
		}
		return dot
	}
	start, used := lanes(t, rInit)
	for _, v := range used {
		shrSignedS(v, v, 4) // -128 times the sum is -8 times it
	}
	for i := range dot {
		for _, v := range dot[i] {
			spread(v, start[i])
		}
	}
	free(used...)
	return dot
}

// dots4 adds the products of a block of weights of 4 bits, with their fifth bits if
// there are, and moves rX on.
func (k gemmKind) dots4(c gemmConsts, dot [][]vec, quarters []int) {
	op("ADD %v<<2, %v, %v", rStep, rX, rHigh)
	for g := range 4 {
		low, used := lanes(len(dot), rX)
		high, usedHigh := lanes(len(dot), rHigh)
		op("ADD %v, %v", rStep, rX)
		op("ADD %v, %v", rStep, rHigh)
		bits := k.fifthBits(g)
		for n := 0; n < len(quarters); n += 2 {
			hi, lo := takes(2), takes(2)
			loads(hi, rW, 64*g+16*quarters[n])
			for j := range hi {
				k.split(c, hi[j], lo[j], bits, quarters[n+j])
				for i := range dot {
					sdot(dot[i][n+j], lo[j], low[i])
				}
				for i := range dot {
					sdot(dot[i][n+j], hi[j], high[i])
				}
			}
			free(hi...)
			free(lo...)
		}
		free(bits...)
		free(used...)
		free(usedHigh...)
	}
	op("MOVD %v, %v", rHigh, rX)
}

// fifthBits loads those of the groups g and g+4, if there are: those that are set, or
// where that makes weights signed those that are not.
func (k gemmKind) fifthBits(g int) []vec {
	if !k.fifth {
		return nil
	}
	bits := takes(2)
	for i, v := range bits {
		ldrD(v, rW, 256+8*(g+4*i))
		if !k.min {
			not(v, v)
		}
	}
	return bits
}

// split makes the weights of 4 rows, those of group g in lo and of group g+4 in hi, of
// the bytes in hi.
func (k gemmKind) split(c gemmConsts, hi, lo vec, bits []vec, quarter int) {
	and(lo, hi, c.nibble)
	shrB(hi, hi, 4)
	if !k.fifth {
		return
	}
	t := take()
	for i, v := range []vec{lo, hi} {
		lookup(t, bits[i], c.spread[quarter])
		testB(t, t, c.bit) // -1 where the bit is set
		if k.min {
			mlsB(v, t, c.sixteen) // 16 more
		} else {
			shlInsertB(v, t, 4) // where it was not set, 16 less
		}
	}
	free(t)
}

// unpack writes the kernel that makes bytes with a sign of a panel, for many tokens: it
// pays from the second tile on.
func unpack(k gemmKind) {
	if k.name == "Int8Half" {
		return // as Int8
	}
	name := "unpack" + k.name + "NEON"
	begin(name, "dst *byte, src *byte, n int", "",
		fmt.Sprintf("%s writes n blocks as gemmSigned takes them: each weight as a byte, less its offset.", name))
	arg("dst", 0, rX)
	arg("src", 8, rW)
	arg("n", 16, rN)
	c := k.consts()
	var eight vec
	if k.starts() {
		eight = splat(0x08080808)
	}
	label("loop")
	if !k.four {
		for g := range 8 {
			w := takes(4)
			loads(w, rW, 64*g)
			for _, v := range w {
				xor(v, v, c.sign)
			}
			stores(w, rX, 64*g)
			free(w...)
		}
	} else {
		for g := range 4 {
			bits := k.fifthBits(g)
			for n := 0; n < 4; n += 2 {
				hi, lo := takes(2), takes(2)
				loads(hi, rW, 64*g+16*n)
				for j := range hi {
					k.split(c, hi[j], lo[j], bits, n+j)
					if k.starts() {
						subB(lo[j], lo[j], eight)
						subB(hi[j], hi[j], eight)
					}
				}
				stores(lo, rX, 64*g+16*n)
				stores(hi, rX, 64*(g+4)+16*n)
				free(hi...)
				free(lo...)
			}
			free(bits...)
		}
	}
	add(k.blockBytes(), rW)
	add(512, rX)
	op("SUBS $1, %v, %v", rN, rN)
	op("BNE loop")
	op("RET")
}
