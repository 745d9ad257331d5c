package main

// Offsets in weighArgs and mix8Args.
const (
	weighS, weighD, weighPages, weighNP, weighStride                               = 0, 8, 16, 24, 32
	mix8P, mix8V, mix8Pages, mix8NP, mix8Stride, mix8Dim, mix8O, mix8Unit, mix8Row = 0, 8, 16, 24, 32, 40, 48, 56, 256
)

func weigh() {
	begin("weighNEON", "a *byte", "float32", "weighNEON is weighGo; a points to weighArgs.")
	arg("a", 0, 0)
	field(weighS, rX)
	field(weighD, rAll)
	field(weighPages, rPages)
	field(weighNP, rNP)
	field(weighStride, rPage)
	top := zeros(1, 4)[0]
	label("page")
	pageTo(rData)
	d, s := takes(4), takes(4)
	loadHalves(d, rData, 0)
	loads(s, rX, 0)
	for j := range s {
		fmul(s[j], s[j], d[j])
		fmax(top[j], top[j], s[j])
	}
	stores(s, rX, 0)
	add(64, rX)
	op("SUBS $1, %v, %v", rNP, rNP)
	op("BNE page")
	maxLanes(top)
	result(top[0], "ret", 8)
	op("RET")
}

func narrow() {
	begin("narrowNEON", "s *float32, p *byte, n int, inv float32", "", "narrowNEON is narrowGo for a positive multiple of 16 weights.")
	arg("s", 0, rX)
	arg("p", 8, rY)
	arg("n", 16, rCount)
	inv := argFloat("inv", 24)
	r, low := newRounds(), splat(127)
	loop16("loop", func() {
		v, lo := takes(4), takes(4)
		loads(v, rX, 0)
		r.of(v, inv)
		for j := range v {
			and(lo[j], v[j], low)
			shrSignedS(v[j], v[j], 7)
		}
		bytesOf(v)
		bytesOf(lo)
		strQ(v[0], rY, 0)
		strQ(lo[0], rY, mix8Row)
		add(16, rY)
		free(v...)
		free(lo...)
	}, rX)
	op("RET")
}

// mix8 writes the kernel of integer weights and values: SDOT multiplies four positions
// of four columns by four weights, a lane of the register that holds those of a page.
// Registers hold the sums of both parts of the weights of 1 query by 32 columns, 2 by 16
// or 4 by 8.
func mix8() {
	begin("mix8NEON", "a *byte, t int", "", "mix8NEON is mix8Go for 1, 2 or 4 queries and a multiple of 32 columns; a points to mix8Args.")
	const rLeft gp = rStep
	arg("a", 0, 0)
	arg("t", 8, rTmp)
	field(mix8V, rAll)
	field(mix8Stride, rPage)
	field(mix8Dim, rLeft)
	op("LSL $2, %v, %v", rLeft, rStride)
	field(mix8O, rTo)
	for _, t := range []int{1, 2} {
		op("CMP $%d, %v", t, rTmp)
		op("BEQ t%d", t)
	}
	for _, t := range []int{4, 2, 1} {
		n := 8 / t
		label("t%d", t)
		high, low := zeros(t, n), zeros(t, n)
		field(mix8P, rFrom)
		field(mix8Pages, rPages)
		field(mix8NP, rNP)
		label("page%d", t)
		pageTo(rData)
		ph, pl := takes(t), takes(t)
		for i := range t {
			ldrQ(ph[i], rFrom, 2*mix8Row*i)
			ldrQ(pl[i], rFrom, 2*mix8Row*i+mix8Row)
		}
		add(16, rFrom)
		for g := range uint32(4) {
			for from := 0; from < n; from += 4 {
				v := takes(min(4, n))
				loads(v, rData, 16*from)
				for j, x := range v {
					for i := range t {
						sdot(high[i][from+j], x, lane{ph[i], g})
						sdot(low[i][from+j], x, lane{pl[i], g})
					}
				}
				free(v...)
			}
			op("ADD %v, %v", rStride, rData)
		}
		free(ph...)
		free(pl...)
		op("SUBS $1, %v, %v", rNP, rNP)
		op("BNE page%d", t)
		field(mix8Unit, rFrom)
		op("MOVD %v, %v", rTo, rData)
		unit := take()
		for i := range t {
			ldrS(unit, rFrom, 4*i)
			for j := range n {
				shlS(high[i][j], high[i][j], 7)
				addS(low[i][j], low[i][j], high[i][j])
				toFloat(low[i][j], low[i][j])
				fmulLane(low[i][j], low[i][j], lane{unit, 0})
			}
			stores(low[i], rData, 0)
			if i+1 < t {
				op("ADD %v, %v", rStride, rData)
			}
			free(high[i]...)
			free(low[i]...)
		}
		free(unit)
		add(16*n, rAll)
		add(16*n, rTo)
		op("SUBS $%d, %v, %v", 4*n, rLeft, rLeft)
		op("BNE t%d", t)
		op("RET")
	}
}
