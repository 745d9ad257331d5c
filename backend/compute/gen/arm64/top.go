package main

// top writes the kernels that find the greatest of many values. Whether one of them is
// not a number shows in the greatest of their bits without the sign.
func top() {
	begin("topNEON", "x *float32, n int", "(m float32, bits uint32)",
		"topNEON returns the greatest of n values, a positive multiple of 16, and the greatest of their bits without signs.")
	arg("x", 0, rX)
	arg("n", 8, rCount)
	most, bits := takes(4), takes(4)
	loads(most, rX, 0)
	for _, v := range bits {
		zero(v)
	}
	loop16("loop", func() {
		v := takes(4)
		loads(v, rX, 0)
		for j := range v {
			fmax(most[j], most[j], v[j])
			fabs(v[j], v[j])
			maxBits(bits[j], bits[j], v[j])
		}
		free(v...)
	}, rX)
	topResults(most, bits, 16)

	// Each lane of bit[k] has one of the bits 4k to 4k+3, those of 4 values in a word.
	begin("topOfNEON", "x *float32, set *uint64, words int", "(m float32, bits uint32)",
		"topOfNEON is topNEON over those of 64 values a word of set whose bit is set; m is minus infinity if there are none.")
	arg("x", 0, rX)
	arg("set", 8, rW)
	arg("words", 16, rCount)
	none := splat(0xff800000)
	most, bits = takes(4), zeros(1, 4)[0]
	for _, v := range most {
		move(v, none)
	}
	bit := []vec{table(2<<32|1, 8<<32|4)}
	for k := 1; k < 8; k++ {
		v := take()
		shlS(v, bit[0], 4*k)
		bit = append(bit, v)
	}
	label("loop")
	for h := range 2 {
		word := take()
		ldrS(word, rW, 4*h)
		spread(word, lane{word, 0})
		for k := 0; k < 8; k += 2 {
			v, in := takes(2), takes(2)
			loads(v, rX, 128*h+16*k)
			for j := range v {
				to := k%4 + j
				testS(in[j], word, bit[k+j])
				abs := take()
				fabs(abs, v[j])
				and(abs, abs, in[j])
				maxBits(bits[to], bits[to], abs)
				free(abs)
				choose(in[j], v[j], none)
				fmax(most[to], most[to], in[j])
			}
			free(v...)
			free(in...)
		}
		free(word)
	}
	add(256, rX)
	add(8, rW)
	op("SUBS $1, %v, %v", rCount, rCount)
	op("BNE loop")
	topResults(most, bits, 24)

	begin("findNEON", "x *float32, n int, m *float32", "int",
		"findNEON returns the index of the first 16 of n values one of which is m, or n; n is a positive multiple of 16.")
	arg("x", 0, rX)
	arg("n", 8, rCount)
	arg("m", 16, rY)
	m := take()
	ldrS(m, rY, 0)
	spread(m, lane{m, 0})
	op("MOVD $0, %v", rTmp)
	label("loop")
	v := takes(4)
	loads(v, rX, 0)
	for j := range v {
		equal(v[j], v[j], m)
	}
	or(v[0], v[0], v[1])
	or(v[2], v[2], v[3])
	or(v[0], v[0], v[2])
	maxBitsAcross(v[0], v[0])
	op("FMOVS F%d, %v", uint32(v[0]), rW)
	op("CBNZW %v, done", rW)
	add(64, rX)
	add(16, rTmp)
	op("CMP %v, %v", rCount, rTmp)
	op("BLT loop")
	label("done")
	op("MOVD %v, ret+24(FP)", rTmp)
	op("RET")
}

// topResults stores what the four registers of each hold, from so many bytes on.
func topResults(most, bits []vec, at int) {
	maxLanes(most)
	result(most[0], "m", at)
	for j := 1; j < 4; j++ {
		maxBits(bits[0], bits[0], bits[j])
	}
	maxBitsAcross(bits[0], bits[0])
	result(bits[0], "bits", at+4)
	op("RET")
}

// limits writes the loops that measure the peaks of the machine.
func limits() {
	for _, peak := range []struct {
		name, doc string
		op        func(d, n, m vec)
	}{
		{"dotPeakNEON", "dotPeakNEON executes 16*n SDOT, of 16 multiply-adds each.", sdotVec},
		{"floatPeakNEON", "floatPeakNEON executes 16*n FMLA, of 4 multiply-adds each.", fmla},
	} {
		begin(peak.name, "n int", "", peak.doc)
		arg("n", 0, rCount)
		acc := zeros(1, 16)[0]
		x := take()
		zero(x)
		label("loop")
		for _, v := range acc {
			peak.op(v, x, x)
		}
		op("SUBS $1, %v, %v", rCount, rCount)
		op("BNE loop")
		op("RET")
	}

	begin("readNEON", "p *byte, n int", "", "readNEON reads n bytes, a positive multiple of 512.")
	arg("p", 0, rX)
	arg("n", 8, rCount)
	label("loop")
	loads(takes(32), rX, 0)
	add(512, rX)
	op("SUBS $512, %v, %v", rCount, rCount)
	op("BNE loop")
	op("RET")
}
