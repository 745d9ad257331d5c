package ggml

import (
	"fmt"
	"math"
)

// A Rope is the rotation of pairs of a head by a position.
type Rope struct {
	pairs   int
	step    float32 // from one pair's angle to the next one's
	scale   float32 // of angles
	factors []float32
}

// NewRope returns the rotation of pairs by angles of position*scale/base^(i/pairs),
// each divided by its factor if there are factors.
func NewRope(base float32, pairs int, scale float32, factors []float32) (*Rope, error) {
	if factors != nil && len(factors) != pairs {
		return nil, fmt.Errorf("ggml: %d factors for %d pairs", len(factors), pairs)
	}
	// powf is right to the last bit nearly always, as this is.
	step := math.Pow(float64(base), float64(-2/float32(2*pairs)))
	return &Rope{pairs: pairs, step: float32(step), scale: scale, factors: factors}, nil
}

// Angles writes the cosines and sines of a position, one of each for a pair.
func (r *Rope) Angles(cos, sin []float32, pos int) {
	theta := float32(pos)
	for i := range r.pairs {
		a := theta
		if r.factors != nil {
			a /= r.factors[i]
		}
		sin[i], cos[i] = sincos(float32(r.scale * a))
		theta *= r.step
	}
}

// sincos is sinf and cosf of glibc, whose last bit is wrong at times: it takes the
// angle to the nearest quarter turn and polynomials in float64. The algorithm and
// the coefficients are those of Arm's optimized routines.
func sincos(y float32) (sin, cos float32) {
	x := float64(y)
	top := math.Float32bits(y) >> 20 & 0x7ff
	switch {
	case top < 0x3f4: // below about pi/4
		if top < 0x398 { // below 2^-12
			return y, 1
		}
		return polynomials(x, x*x, 0, 1)
	case top < 0x42f: // below 120
		// 24 bits of fraction, rounded.
		n := (int32(x*0x1.45F306DC9C883p+23) + 0x800000) >> 24
		x -= float64(float64(n) * (math.Pi / 2))
		return polynomials(signs[n&3]*x, x*x, n, turn(n))
	case top < 0x7f8:
		bits := math.Float32bits(y)
		x, n := reduce(bits)
		signed := n + int32(bits>>31)
		return polynomials(signs[signed&3]*x, x*x, n, turn(signed))
	}
	return float32(math.NaN()), float32(math.NaN())
}

// signs are those of the sine by quarter turn.
var signs = [4]float64{1, -1, -1, 1}

// turn is the sign of the cosine.
func turn(n int32) float64 {
	if n&2 != 0 {
		return -1
	}
	return 1
}

// polynomials returns sine and cosine of x, less than an eighth turn away from n
// quarter turns; sign is that of the cosine's.
func polynomials(x, x2 float64, n int32, sign float64) (sin, cos float32) {
	x4, x3 := float64(x2*x2), float64(x2*x)
	c2 := -0x1.6c087e89a359dp-10 + float64(x2*0x1.99343027bf8c3p-16)
	s1 := 0x1.1107605230bc4p-7 + float64(x2*-0x1.994eb3774cf24p-13)
	c1 := 1 + float64(x2*-0x1.ffffffd0c621cp-2)
	x5, x6 := float64(x3*x2), float64(x4*x2)
	s := x + float64(x3*-0x1.555545995a603p-3)
	c := c1 + float64(x4*0x1.55553e1068f19p-5)
	sin, cos = float32(s+float64(x5*s1)), float32(sign*(c+float64(x6*c2)))
	if n&1 != 0 {
		return cos, sin
	}
	return sin, cos
}

// twoOverPi are its first bits: 32 of them from each multiple of 8 on, 24 zeros
// before the point.
var twoOverPi = [24]uint32{
	0xa2, 0xa2f9, 0xa2f983, 0xa2f9836e, 0xf9836e4e, 0x836e4e44, 0x6e4e4415, 0x4e441529,
	0x441529fc, 0x1529fc27, 0x29fc2757, 0xfc2757d1, 0x2757d1f5, 0x57d1f534, 0xd1f534dd, 0xf534ddc0,
	0x34ddc0db, 0xddc0db62, 0xc0db6295, 0xdb629599, 0x6295993c, 0x95993c43, 0x993c4390, 0x3c439041,
}

// reduce takes a large angle to the nearest quarter turn, with as many bits of
// 2/pi as matter.
func reduce(bits uint32) (x float64, n int32) {
	at := bits >> 26 & 15
	shift := bits >> 23 & 7
	m := (bits&0xffffff | 0x800000) << shift
	low := uint64(m) * uint64(twoOverPi[at+8])
	mid := uint64(m) * uint64(twoOverPi[at+4])
	r := low>>32 | uint64(m*twoOverPi[at])<<32
	r += mid
	q := (r + 1<<61) >> 62
	r -= q << 62
	return float64(int64(r)) * 0x1.921FB54442D18p-62, int32(q)
}
