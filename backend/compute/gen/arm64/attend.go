package main

// Offsets in scoreArgs and mixArgs, and the bytes of a row of scores.
const (
	scoreQ, scoreK, scorePages, scoreNP, scoreStride, scoreDim, scoreS = 0, 8, 16, 24, 32, 40, 48
	mixP, mixV, mixPages, mixNP, mixStride, mixDim, mixO               = 0, 8, 16, 24, 32, 40, 48
	spanBytes                                                          = 4 * 256
)

// Registers of the attention kernels.
const (
	rAll, rTo, rPages, rNP, rPage   gp = 12, 3, 4, 5, 6
	rData, rData2, rFrom, rBack, rK gp = 7, 8, 9, 10, 11
)

// pageTo computes in to the address of the page at rPages, and moves that on.
func pageTo(to gp) {
	op("MOVW.P 4(%v), %v", rPages, to)
	op("MUL %v, %v", rPage, to)
	op("ADD %v, %v", rAll, to)
}

// A pairs is 16 bytes of two bfloat16 a lane: the odd one in the upper half.
type pairs struct{ mask vec }

// products adds to acc[i][j] the odd and then the even half of the lanes of raw[j]
// times odd[i] and even[i]. raw is lost.
func (p pairs) products(acc [][]vec, raw []vec, even, odd []lane) {
	o := takes(min(len(raw), 4))
	for from := 0; from < len(raw); from += len(o) {
		for j := range o {
			and(o[j], raw[from+j], p.mask)
		}
		for i := range acc {
			for j := range o {
				fmlaLane(acc[i][from+j], o[j], odd[i])
			}
		}
		for j := range o {
			shlS(raw[from+j], raw[from+j], 16)
		}
		for i := range acc {
			for j := range o {
				fmlaLane(acc[i][from+j], raw[from+j], even[i])
			}
		}
	}
	free(o...)
}

// zeros returns t times n registers of zeros.
func zeros(t, n int) [][]vec {
	acc := make([][]vec, t)
	for i := range acc {
		acc[i] = takes(n)
		for _, v := range acc[i] {
			zero(v)
		}
	}
	return acc
}

// scores writes the query-key kernel: up to 4 queries by the 16 positions of a page,
// one query by those of two pages, or 8 queries by half a page at a time. Keys are made
// float32 by a shift or a mask; that is shared by all queries.
func scores() {
	begin("scoresNEON", "a *byte, t int, step int", "",
		"scoresNEON is scoresGo for t queries, up to 4 or 8, of a tile that has step; a points to scoreArgs.")
	arg("a", 0, 0)
	arg("t", 8, rTmp)
	arg("step", 16, rStep)
	op("LSL $2, %v", rStep)
	field(scoreK, rAll)
	field(scorePages, rPages)
	field(scoreNP, rNP)
	field(scoreStride, rPage)
	op("LSL $1, %v", rPage)
	field(scoreS, rTo)
	p := pairs{splat(0xffff0000)}
	for i := 1; i <= 4; i++ {
		op("CMP $%d, %v", i, rTmp)
		op("BEQ t%d", i)
	}
	label("page8")
	pageTo(rData)
	op("MOVD %v, %v", rData, rBack)
	p.scoreTile("a", 8, 2, []gp{rData})
	add(32, rBack)
	add(32, rTo)
	op("MOVD %v, %v", rBack, rData)
	p.scoreTile("b", 8, 2, []gp{rData})
	add(32, rTo)
	op("SUBS $1, %v, %v", rNP, rNP)
	op("BNE page8")
	op("RET")
	for t := 4; t >= 1; t-- {
		label("t%d", t)
		if t == 1 {
			// Two pages, since the sums of one wait for each other.
			op("CMP $2, %v", rNP)
			op("BLT last1")
			pageTo(rData)
			pageTo(rData2)
			p.scoreTile("two", 1, 4, []gp{rData, rData2})
			add(128, rTo)
			op("SUBS $2, %v, %v", rNP, rNP)
			op("BNE t1")
			op("RET")
			label("last1")
		}
		pageTo(rData)
		p.scoreTile("", t, 4, []gp{rData})
		add(64, rTo)
		op("SUBS $1, %v, %v", rNP, rNP)
		op("BNE t%d", t)
		op("RET")
	}
}

// scoreTile computes t queries by 4*n positions of each page at the given addresses.
func (p pairs) scoreTile(name string, t, n int, data []gp) {
	acc := zeros(t, n*len(data))
	field(scoreQ, rFrom)
	field(scoreDim, rK)
	label("dim%d%s", t, name)
	var even, odd []lane
	var used []vec
	for _, to := range []*[]lane{&even, &odd} {
		for i := 0; i < t; i += 4 {
			of, vs := lanesAt(min(4, t-i), rFrom, 4*i)
			*to, used = append(*to, of...), append(used, vs...)
		}
		op("ADD %v, %v", rStep, rFrom)
	}
	var raw []vec
	for _, d := range data {
		part := takes(n)
		loads(part, d, 0)
		add(64, d)
		raw = append(raw, part...)
	}
	p.products(acc, raw, even, odd)
	free(raw...)
	free(used...)
	op("SUBS $2, %v, %v", rK, rK)
	op("BNE dim%d%s", t, name)
	for i := range acc {
		storesFar(acc[i], rTo, spanBytes*i)
		free(acc[i]...)
	}
}

// storesFar is stores with offsets that pairs cannot have.
func storesFar(vs []vec, base gp, off int) {
	for i, v := range vs {
		strQ(v, base, off+16*i)
	}
}

// mix writes the weight-value kernels: per pair of positions the values of some columns,
// made float32 as keys are, times the two weights of each query.
func mix() {
	begin("mixNEON", "a *byte, t int, w int", "",
		"mixNEON is mixGo for t queries and 16*w columns: 1 or 2 by 1 or 2, 3 or 4 by 1, or 8 by 1; a points to mixArgs.")
	arg("a", 0, 0)
	arg("t", 8, rTmp)
	arg("w", 16, rK)
	field(mixV, rAll)
	field(mixStride, rPage)
	op("LSL $1, %v", rPage)
	field(mixDim, rStride)
	op("LSL $2, %v", rStride)
	field(mixO, rTo)
	p := pairs{splat(0xffff0000)}
	op("CMP $8, %v", rTmp)
	op("BEQ t8")
	for i := 3; i <= 4; i++ {
		op("CMP $%d, %v", i, rTmp)
		op("BEQ t%d", i)
	}
	op("CMP $1, %v", rK)
	op("BEQ narrow")
	op("CMP $1, %v", rTmp)
	op("BEQ t1wide")
	p.mixTile("t2wide", 2, 8)
	p.mixTile("t1wide", 1, 8)
	label("narrow")
	op("CMP $1, %v", rTmp)
	op("BEQ t1")
	p.mixTile("t2", 2, 4)
	p.mixTile("t1", 1, 4)
	p.mixTile("t3", 3, 4)
	p.mixTile("t4", 4, 4)
	p.mixTile("t8", 8, 2)
}

// mixTile computes t queries by 4*n columns; 8 queries by twice as many, one half after
// the other.
func (p pairs) mixTile(name string, t, n int) {
	label(name)
	acc := zeros(t, n)
	field(mixPages, rPages)
	field(mixNP, rNP)
	field(mixP, rFrom)
	label("page" + name)
	pageTo(rData)
	op("MOVD $8, %v", rBack)
	label("pair" + name)
	raw := takes(n)
	loads(raw, rData, 0)
	op("ADD %v, %v", rStride, rData)
	var even, odd []lane
	w := takes(t)
	for i, v := range w {
		ldrD(v, rFrom, spanBytes*i)
		even, odd = append(even, lane{v, 0}), append(odd, lane{v, 1})
	}
	add(8, rFrom)
	p.products(acc, raw, even, odd)
	free(raw...)
	free(w...)
	op("SUBS $1, %v, %v", rBack, rBack)
	op("BNE pair%s", name)
	op("SUBS $1, %v, %v", rNP, rNP)
	op("BNE page%s", name)
	op("MOVD %v, %v", rTo, rData)
	for i := range acc {
		stores(acc[i], rData, 0)
		free(acc[i]...)
		if i+1 < t {
			op("ADD %v, %v", rStride, rData)
		}
	}
	if t == 8 {
		op("SUBS $1, %v, %v", rK, rK)
		op("BLT done8")
		add(32, rAll)
		add(32, rTo)
		op("B %s", name)
		label("done8")
	}
	op("RET")
}
