package ggml

import (
	"math"
	"sync"

	"github.com/coppice-run/coppice/backend/gguf"
)

// Norm computes dst = x / sqrt(mean(x*x) + eps) * w.
func Norm(dst, x, w []float32, eps float32) {
	dst, w = dst[:len(x)], w[:len(x)]
	sum := 0.0
	for _, v := range x {
		sum += float64(float32(v * v))
	}
	mean := float32(sum / float64(len(x)))
	scale := 1 / float32(math.Sqrt(float64(mean+eps)))
	for i, v := range x {
		dst[i] = float32(v*scale) * w[i]
	}
}

// Gate computes dst = act(gate) * up, where act is SiLU or GELU.
func Gate(dst, gate, up []float32, gelu bool) {
	dst, up = dst[:len(gate)], up[:len(gate)]
	if !gelu {
		whole := len(gate) &^ 3
		for i, g := range gate {
			e := exp(-g)
			if i >= whole { // C's expf for what does not fill a vector of four
				e = float32(math.Exp(float64(-g)))
			}
			dst[i] = float32(g/(1+e)) * up[i]
		}
		return
	}
	table := geluTable()
	for i, g := range gate {
		switch {
		case g <= -10:
			dst[i] = 0
		case g >= 10:
			dst[i] = g * up[i]
		default:
			dst[i] = table[gguf.FloatToHalf(g)] * up[i]
		}
	}
}

// geluTable returns GELU, in its form with tanh, for all half floats, rounded to
// half floats.
var geluTable = sync.OnceValue(func() *[1 << 16]float32 {
	const a, root = float32(0.044715), float32(0.79788456080286535587989211986876) // sqrt(2/pi)
	t := new([1 << 16]float32)
	for i := range t {
		x := gguf.HalfToFloat(uint16(i))
		z := float32(root*x) * (1 + float32(float32(a*x)*x))
		t[i] = throughHalf(float32(0.5*x) * (1 + tanh(z)))
	}
	return t
})

// tanh is C's tanhf, which may be off by one unit in the last place.
func tanh(z float32) float32 { return float32(math.Tanh(float64(z))) }

// Softcap replaces each x by c*tanh(x/c).
func Softcap(x []float32, c float32) {
	inverse := 1 / c
	for i, v := range x {
		x[i] = tanh(float32(v*inverse)) * c
	}
}

// Softmax replaces the scores of consecutive positions by exp(scale*x) over their
// sum. The sum adds up four positions at a time, counted from position 0, of
// which first is x's.
func Softmax(x []float32, scale float32, first int) {
	most := float32(math.Inf(-1))
	for i, v := range x {
		x[i] = v * scale
		most = max(most, x[i])
	}
	sum := 0.0
	var four [4]float32
	for i, v := range x {
		x[i] = exp(v - most)
		at := (first + i) % 4
		four[at] = x[i]
		if at == 3 || i == len(x)-1 {
			sum += float64(float32(four[0]+four[1]) + float32(four[2]+four[3]))
			four = [4]float32{}
		}
	}
	inverse := float32(1 / sum)
	for i := range x {
		x[i] *= inverse
	}
}

// exp is ggml_v_expf: x is n*ln(2)+b, e^b a polynomial, 2^n put into the exponent.
// It is off by less than two units in the last place. The coefficients are
// those of Arm's optimized routines.
func exp(x float32) float32 {
	const shift = 0x1.8p23 // leaves no room for a fraction
	z := float32(x*0x1.715476p+0) + shift
	n := z - shift
	b := float32(x-float32(n*0x1.62e4p-1)) - float32(n*0x1.7f7d1cp-20)
	e := math.Float32bits(z) << 23
	k := math.Float32frombits(e + math.Float32bits(1))
	u := b * b
	p := float32(0x1.0e4020p-7*b) + 0x1.573e2ep-5
	q := float32(0x1.555e66p-3*b) + 0x1.fffdb6p-2
	j := float32(float32(float32(p*u)+q)*u) + float32(0x1.ffffecp-1*b)
	size := abs(n)
	if !(size > 126) {
		return float32(j*k) + k
	}
	// 2^n has no exponent of its own: it is the product of two.
	g := uint32(0)
	if n <= 0 {
		g = 0x82000000
	}
	s1, s2 := math.Float32frombits(g+0x7f000000), math.Float32frombits(e-g)
	if size > 192 {
		return s1 * s1
	}
	return float32(float32(s2*j)+s2) * s1
}

// Halves expands half floats.
func Halves(dst []float32, src []uint16) {
	table := halfTable()
	dst = dst[:len(src)]
	for i, h := range src {
		dst[i] = table[h]
	}
}

// halfTable returns all half floats.
var halfTable = sync.OnceValue(func() *[1 << 16]float32 {
	t := new([1 << 16]float32)
	for i := range t {
		t[i] = gguf.HalfToFloat(uint16(i))
	}
	return t
})

// RoundHalves rounds to half floats.
func RoundHalves(x []float32) {
	for i, v := range x {
		x[i] = throughHalf(v)
	}
}

// AddScaled computes sum += w * x in float64, the products being float32.
func AddScaled(sum []float64, x []float32, w float32) {
	sum = sum[:len(x)]
	for i, v := range x {
		sum[i] += float64(float32(v * w))
	}
}
