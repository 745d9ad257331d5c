package main

// Registers of the element-wise kernels.
const rCount gp = 13

// loop16 writes a loop over rCount elements, a positive multiple of 16, 16 at a time.
func loop16(name string, body func(), ptrs ...gp) {
	label(name)
	body()
	for _, p := range ptrs {
		add(64, p)
	}
	op("SUBS $16, %v, %v", rCount, rCount)
	op("BNE %s", name)
}

// exps are the constants of exp2f.
type exps struct {
	low, magic, one vec
	c               [4]vec
}

func newExps() (e exps) {
	e.low, e.magic, e.one = number(-125), number(3<<22), number(1)
	for i, f := range []float64{0.00958285, 0.05590642, 0.24024099, 0.69312419} {
		e.c[i] = number(f)
	}
	return e
}

// of replaces each x by exp2f(x), see there for the steps.
func (e exps) of(x []vec) {
	n, p, q, keep := takes(len(x)), takes(len(x)), takes(len(x)), takes(len(x))
	each := func(f func(j int)) {
		for j := range x {
			f(j)
		}
	}
	each(func(j int) { atLeast(keep[j], x[j], e.low) })
	each(func(j int) { fadd(n[j], x[j], e.magic) })
	each(func(j int) { fsub(p[j], n[j], e.magic) })
	each(func(j int) { fsub(x[j], x[j], p[j]) })
	each(func(j int) { shlS(n[j], n[j], 23) })
	each(func(j int) { move(p[j], e.c[1]) })
	each(func(j int) { fmla(p[j], x[j], e.c[0]) })
	for _, c := range []vec{e.c[2], e.c[3], e.one} {
		each(func(j int) { move(q[j], c) })
		each(func(j int) { fmla(q[j], p[j], x[j]) })
		p, q = q, p
	}
	each(func(j int) { addS(p[j], p[j], n[j]) })
	each(func(j int) { and(x[j], p[j], keep[j]) })
	for _, vs := range [][]vec{n, p, q, keep} {
		free(vs...)
	}
}

// softmax writes softmaxGo or softmaxPlainGo: first the maximum, then the weights, two
// registers at a time. Weights are 0 or 2^-125 and more: rounding need not look for
// subnormal numbers.
func softmax(name string, rounded bool) {
	begin(name+"NEON", "s *float32, n int", "(m float32, sum float32)", name+"NEON is "+name+"Go for a positive multiple of 16 scores.")
	arg("s", 0, rX)
	arg("n", 8, rCount)
	m := takes(4)
	loads(m, rX, 0)
	loop16("most", func() {
		v := takes(4)
		loads(v, rX, 0)
		for j := range v {
			fmax(m[j], m[j], v[j])
		}
		free(v...)
	}, rX)
	maxLanes(m)
	result(m[0], "m", 16)
	free(m[1:]...)
	spread(m[0], lane{m[0], 0})
	e := newExps()
	var half, one, upper vec
	if rounded {
		half, one, upper = splat(0x7fff), splat(1), splat(0xffff0000)
	}
	acc := zeros(1, 4)[0]
	arg("s", 0, rX)
	arg("n", 8, rCount)
	loop16("weights", func() {
		for from := 0; from < 4; from += 2 {
			x := takes(2)
			loads(x, rX, 16*from)
			for _, v := range x {
				fsub(v, v, m[0])
			}
			e.of(x)
			for j, v := range x {
				if rounded {
					t := take()
					shrS(t, v, 16)
					and(t, t, one)
					addS(v, v, half)
					addS(v, v, t)
					and(v, v, upper)
					free(t)
				}
				fadd(acc[from+j], acc[from+j], v)
			}
			stores(x, rX, 16*from)
			free(x...)
		}
	}, rX)
	addLanes(acc)
	result(acc[0], "sum", 20)
	op("RET")
}

func sumSquares() {
	begin("sumSquaresNEON", "x *float32, n int", "float32", "sumSquaresNEON adds the squares of a positive multiple of 16 elements as normGo does.")
	arg("x", 0, rX)
	arg("n", 8, rCount)
	acc := zeros(1, 4)[0]
	loop16("loop", func() {
		v := takes(4)
		loads(v, rX, 0)
		for j := range v {
			fmul(v[j], v[j], v[j])
			fadd(acc[j], acc[j], v[j])
		}
		free(v...)
	}, rX)
	addLanes(acc)
	result(acc[0], "ret", 16)
	op("RET")
}

// through writes a loop that makes 16 elements of as many at each of the other addresses.
func through(f func(v [][]vec), to gp, from ...gp) {
	loop16("loop", func() {
		var vs [][]vec
		for _, p := range from {
			v := takes(4)
			loads(v, p, 0)
			vs = append(vs, v)
		}
		f(vs)
		stores(vs[0], to, 0)
		for _, v := range vs {
			free(v...)
		}
		for _, p := range from {
			if p != to {
				add(64, p)
			}
		}
	}, to)
	op("RET")
}

func scaleMul() {
	begin("scaleMulNEON", "dst *float32, x *float32, w *float32, n int, scale float32", "", "scaleMulNEON computes dst = (x*scale)*w for a positive multiple of 16 elements.")
	arg("dst", 0, rY)
	arg("x", 8, rX)
	arg("w", 16, rW)
	arg("n", 24, rCount)
	scale := argFloat("scale", 32)
	through(func(v [][]vec) {
		for j := range v[0] {
			fmul(v[0][j], v[0][j], scale)
			fmul(v[0][j], v[0][j], v[1][j])
		}
	}, rY, rX, rW)
}

func addTo() {
	begin("addNEON", "dst *float32, x *float32, n int", "", "addNEON is addGo for a positive multiple of 16 elements.")
	arg("dst", 0, rY)
	arg("x", 8, rX)
	arg("n", 16, rCount)
	through(func(v [][]vec) {
		for j := range v[0] {
			fadd(v[0][j], v[0][j], v[1][j])
		}
	}, rY, rY, rX)
}

func blend() {
	begin("blendNEON", "dst *float32, x *float32, n int, a float32, b float32", "", "blendNEON is blendGo for a positive multiple of 16 elements.")
	arg("dst", 0, rY)
	arg("x", 8, rX)
	arg("n", 16, rCount)
	a, b := argFloat("a", 24), argFloat("b", 28)
	through(func(v [][]vec) {
		for j := range v[0] {
			fmul(v[0][j], v[0][j], a)
			fmul(v[1][j], v[1][j], b)
			fadd(v[0][j], v[0][j], v[1][j])
		}
	}, rY, rY, rX)
}

// gate writes gateGo, two registers at a time.
func gate() {
	begin("gateNEON", "dst *float32, gate *float32, up *float32, n int, gelu int", "", "gateNEON is gateGo for a positive multiple of 16 elements; gelu is 1 or 0.")
	arg("dst", 0, rY)
	arg("gate", 8, rX)
	arg("up", 16, rW)
	arg("n", 24, rCount)
	arg("gelu", 32, rTmp)
	low, high, log2e, magic, bias := number(-87), number(88), number(1.44269504088896341), number(3<<22), splat(127<<23)
	c1, c2, one := number(0.693359375), number(-2.12194440e-4), number(1)
	var p [6]vec
	for i, f := range []float64{1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1} {
		p[i] = number(f)
	}
	geluA, geluB := number(0.044715), number(2*0.79788456080286535588)
	each := func(f func(j int)) {
		for j := range 2 {
			f(j)
		}
	}
	// exp replaces x by exp32(x), see there for the steps.
	exp := func(x []vec) {
		keep, n, e, q := takes(2), takes(2), takes(2), takes(2)
		each(func(j int) { atLeast(keep[j], x[j], low) })
		each(func(j int) { fmin(x[j], x[j], high) })
		each(func(j int) { fmul(n[j], x[j], log2e) })
		each(func(j int) { fadd(n[j], n[j], magic) })
		each(func(j int) { shlS(e[j], n[j], 23) })
		each(func(j int) { addS(e[j], e[j], bias) })
		each(func(j int) { fsub(n[j], n[j], magic) })
		each(func(j int) { fmul(q[j], n[j], c1) })
		each(func(j int) { fsub(x[j], x[j], q[j]) })
		each(func(j int) { fmul(q[j], n[j], c2) })
		each(func(j int) { fsub(x[j], x[j], q[j]) }) // r
		each(func(j int) { fmul(q[j], x[j], p[0]) })
		each(func(j int) { fadd(q[j], q[j], p[1]) })
		for _, c := range p[2:] {
			each(func(j int) { fmul(q[j], q[j], x[j]) })
			each(func(j int) { fadd(q[j], q[j], c) })
		}
		each(func(j int) { fmul(n[j], x[j], x[j]) })
		each(func(j int) { fmul(q[j], q[j], n[j]) })
		each(func(j int) { fadd(q[j], q[j], x[j]) })
		each(func(j int) { fadd(q[j], q[j], one) })
		each(func(j int) { fmul(q[j], q[j], e[j]) })
		each(func(j int) { and(x[j], q[j], keep[j]) })
		for _, vs := range [][]vec{keep, n, e, q} {
			free(vs...)
		}
	}
	loop := func(name string, gelu bool) {
		loop16(name, func() {
			for from := 0; from < 4; from += 2 {
				g, z := takes(2), takes(2)
				loads(g, rX, 16*from)
				if gelu { // z = ((g*g*a + 1) * g) * b
					each(func(j int) { fmul(z[j], g[j], g[j]) })
					each(func(j int) { fmul(z[j], z[j], geluA) })
					each(func(j int) { fadd(z[j], z[j], one) })
					each(func(j int) { fmul(z[j], z[j], g[j]) })
					each(func(j int) { fmul(z[j], z[j], geluB) })
					each(func(j int) { fneg(z[j], z[j]) })
				} else {
					each(func(j int) { fneg(z[j], g[j]) })
				}
				exp(z)
				each(func(j int) { fadd(z[j], z[j], one) })
				each(func(j int) { fdiv(g[j], g[j], z[j]) })
				loads(z, rW, 16*from)
				each(func(j int) { fmul(g[j], g[j], z[j]) })
				stores(g, rY, 16*from)
				free(g...)
				free(z...)
			}
		}, rY, rX, rW)
		op("RET")
	}
	op("CBNZ %v, gelu", rTmp)
	loop("silu", false)
	loop("gelu", true)
}

// Offsets in quantArgs.
const (
	quantX, quantQ, quantSX, quantXS, quantInit, quantInit2, quantN, quantT, quantForm = 0, 8, 16, 24, 32, 40, 48, 56, 64
)

// rounds are the constants of roundEven.
type rounds struct{ magic, fraction, offset vec }

func newRounds() rounds { return rounds{number(3 << 22), splat(0x7fffff), splat(1 << 22)} }

// of makes integers of v*inv.
func (r rounds) of(v []vec, inv vec) {
	for _, x := range v {
		fmul(x, x, inv)
		fadd(x, x, r.magic)
		and(x, x, r.fraction)
		subS(x, x, r.offset)
	}
}

// quantise writes quantiseGo.
func quantise() {
	begin("quantiseNEON", "a *byte", "", "quantiseNEON is quantiseGo for one token; a points to quantArgs.")
	const rQ, rInit2, rLeft, rForm, rP gp = 3, 4, 5, 6, 7
	arg("a", 0, 0)
	field(quantX, rX)
	field(quantQ, rQ)
	field(quantSX, rSX)
	field(quantXS, rXS)
	field(quantInit, rInit)
	field(quantInit2, rInit2)
	field(quantN, rN)
	field(quantT, rStep)
	op("LSL $2, %v", rStep)
	field(quantForm, rForm)
	c127, tiny, one := number(127), number(0x1p-100), number(1)
	most, sign := number(65504), splat(1<<31)
	r := newRounds()
	// throughHalf rounds v to half floats: what is beyond them becomes the largest.
	throughHalf := func(v vec) {
		s := take()
		and(s, v, sign)
		xor(v, v, s)
		minBits(v, v, most)
		toHalf(v, v)
		halves(v, v, false)
		or(v, v, s)
		free(s)
	}
	label("group") // the blocks that share a scale: 1, or up to 8 in form 2
	op("MOVD $1, %v", rLeft)
	op("CMP $2, %v", rForm)
	op("BNE counted")
	op("MOVD $8, %v", rLeft)
	op("CMP %v, %v", rLeft, rN)
	op("CSEL LT, %v, %v, %v", rN, rLeft, rLeft)
	label("counted")
	op("SUB %v, %v", rLeft, rN)
	amax := take()
	zero(amax)
	op("MOVD %v, %v", rX, rP)
	op("MOVD %v, %v", rLeft, rTmp)
	label("most")
	v := takes(8)
	loads(v, rP, 0)
	for _, x := range v {
		fabs(x, x)
	}
	for n := 4; n > 0; n /= 2 {
		for j := range n {
			fmax(v[j], v[j], v[j+n])
		}
	}
	fmax(amax, amax, v[0])
	free(v...)
	add(128, rP)
	op("SUBS $1, %v, %v", rTmp, rTmp)
	op("BNE most")
	maxAcross(amax, amax)
	spread(amax, lane{amax, 0})
	big, inv, scale, stored := take(), take(), take(), take()
	atLeast(big, amax, tiny)
	fdiv(inv, c127, amax)
	and(inv, inv, big)
	fdiv(scale, amax, c127)
	op("CMP $2, %v", rForm)
	op("BEQ wide")
	move(stored, scale)
	throughHalf(stored)
	op("B block")
	label("wide")
	fdiv(stored, one, inv)
	choose(big, stored, scale)
	move(stored, big)
	move(scale, big)
	label("block")
	strS(stored, rSX, 0)
	v = takes(8)
	loads(v, rX, 0)
	r.of(v, inv)
	sums := takes(4)
	for h := range 2 {
		addS(sums[h], v[4*h], v[4*h+1])
		addS(sums[3], v[4*h+2], v[4*h+3])
		addS(sums[h], sums[h], sums[3])
		addAcross(sums[h], sums[h])
	}
	addS(sums[2], sums[0], sums[1])
	toFloat(sums[3], sums[2])
	op("CMP $1, %v", rForm)
	op("BEQ sums")
	fmul(sums[3], sums[3], stored)
	op("B summed")
	label("sums")
	fmul(sums[3], sums[3], scale)
	throughHalf(sums[3])
	label("summed")
	strS(sums[3], rXS, 0)
	for _, s := range sums[:3] {
		shlS(s, s, 7)
		negS(s, s)
	}
	strS(sums[2], rInit, 0)
	strS(sums[0], rInit2, 0)
	op("ADD %v, %v", rStep, rInit2)
	strS(sums[1], rInit2, 0)
	op("ADD %v, %v", rStep, rInit2)
	for h := range 2 {
		bytesOf(v[4*h : 4*h+4])
		for i := range 4 {
			storeLane(lane{v[4*h], uint32(i)}, rQ, rStep)
		}
	}
	add(128, rX)
	for _, p := range []gp{rSX, rXS, rInit} {
		op("ADD %v, %v", rStep, p)
	}
	op("SUBS $1, %v, %v", rLeft, rLeft)
	op("BNE block")
	op("CBNZ %v, group", rN)
	op("RET")
}
