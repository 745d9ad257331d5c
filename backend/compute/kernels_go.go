package compute

import (
	"math"
	"unsafe"
)

// The functions of this file are the reference for the assembly. The explicit
// conversions keep the compiler of some architectures from fusing
// multiplications and additions.

// fma32 returns a*b+c with one rounding, as the fused instructions do.
func fma32(a, b, c float32) float32 {
	// The product is exact in float64. The sum may not be, and when it falls
	// between two float32 values, rounding it again would forget on which side
	// of the middle it was.
	p := float64(a) * float64(b)
	s := p + float64(c)
	if math.Float64bits(s)&(1<<29-1) == 1<<28 {
		s = nudge(s, p, float64(c))
	}
	return float32(s)
}

// nudge moves s = p+c one step towards the exact sum.
func nudge(s, p, c float64) float64 {
	v := s - p
	lost := (p - (s - v)) + (c - v)
	switch {
	case lost > 0:
		return math.Nextafter(s, math.Inf(1))
	case lost < 0:
		return math.Nextafter(s, math.Inf(-1))
	}
	return s
}

// gemmGo computes y[i][r] for i < t tokens of a tile and the 16 rows r of a
// panel.
func gemmGo(kind Kind, a *gemmArgs, t int) {
	switch kind {
	case Float32:
		gemmFloat32Go(a, t)
	case Float16:
		gemmFloat16Go(a, t)
	default:
		gemmIntGo(kind, a, t)
	}
}

// at returns a slice of n elements from p.
func at[T any](p *T, n int) []T { return unsafe.Slice(p, n) }

// skip moves a pointer on by n elements; nil stays nil.
func skip[T any](p *T, n int) *T {
	if p == nil {
		return nil
	}
	return (*T)(unsafe.Add(unsafe.Pointer(p), n*int(unsafe.Sizeof(*p))))
}

func bytesAsInt8(b []byte) []int8 {
	return unsafe.Slice((*int8)(unsafe.Pointer(unsafe.SliceData(b))), len(b))
}

func gemmFloat32Go(a *gemmArgs, t int) {
	w := at((*float32)(unsafe.Pointer(a.w)), a.n*PanelRows)
	x := at(a.xf, a.n*t)
	for i := range t {
		var acc [PanelRows]float32
		for c := range a.n {
			v := x[c*t+i]
			for r, wv := range w[c*PanelRows:][:PanelRows] {
				acc[r] = fma32(v, wv, acc[r])
			}
		}
		copy(at(a.y, i*a.stride+PanelRows)[i*a.stride:], acc[:])
	}
}

func gemmFloat16Go(a *gemmArgs, t int) {
	w := at((*uint16)(unsafe.Pointer(a.w)), a.n*PanelRows)
	x := at(a.xf, a.n*t)
	for i := range t {
		var acc [PanelRows]float32
		for c := range a.n {
			v := x[c*t+i]
			for r, wv := range w[c*PanelRows:][:PanelRows] {
				acc[r] = fma32(v, halfToFloat(wv), acc[r])
			}
		}
		copy(at(a.y, i*a.stride+PanelRows)[i*a.stride:], acc[:])
	}
}

// A column is a block of the activations of one token.
type column [BlockCols]int32

// gather takes the block of token i from a tile of t tokens.
func (c *column) gather(x []int8, t, i int) {
	for g := range BlockCols / 4 {
		x4 := x[(g*t+i)*4:][:4]
		c[4*g], c[4*g+1], c[4*g+2], c[4*g+3] = int32(x4[0]), int32(x4[1]), int32(x4[2]), int32(x4[3])
	}
}

// dot returns the products of row r with the groups g0 up to g1. The masks spare
// the bounds checks.
func (c *column) dot(w *[PanelRows * BlockCols]byte, r, g0, g1 int) int32 {
	var sum int32
	for g := g0; g < g1; g++ {
		w4 := w[(g*64+r*4)&508:]
		x := c[g*4&28:]
		sum += int32(w4[0])*x[0] + int32(w4[1])*x[1] + int32(w4[2])*x[2] + int32(w4[3])*x[3]
	}
	return sum
}

// dot4 is dot for a block of 4-bit weights.
func (c *column) dot4(w *[PanelRows * BlockCols / 2]byte, r int) int32 {
	var sum int32
	for g := range 4 {
		w4 := w[(g*64+r*4)&252:]
		lo, hi := c[g*4&12:], c[g*4&12+16:]
		sum += int32(w4[0]&15)*lo[0] + int32(w4[1]&15)*lo[1] + int32(w4[2]&15)*lo[2] + int32(w4[3]&15)*lo[3]
		sum += int32(w4[0]>>4)*hi[0] + int32(w4[1]>>4)*hi[1] + int32(w4[2]>>4)*hi[2] + int32(w4[3]>>4)*hi[3]
	}
	return sum
}

// dotFifth returns 16 times the activations whose weights have the fifth bit.
func (c *column) dotFifth(bits *[PanelRows * BlockCols / 8]byte, r int) int32 {
	var sum int32
	for g := range BlockCols / 4 {
		v := int32(bits[(g*8+r/2)&63] >> (r % 2 * 4))
		x := c[g*4&28:]
		sum += v&1*x[0] + v>>1&1*x[1] + v>>2&1*x[2] + v>>3&1*x[3]
	}
	return sum << 4
}

// gemmIntGo computes a tile for the quantised kinds.
func gemmIntGo(kind Kind, a *gemmArgs, t int) {
	blk, per := kind.blockBytes(), kind.scalesPerBlock()
	w, d := at(a.w, a.n*blk), at(a.d, a.n*per*PanelRows)
	x, sx := at(a.x, a.n*BlockCols*t), at(a.sx, a.n*t)
	var col column
	for i := range t {
		var acc [PanelRows]float32
		for b := range a.n {
			wb := w[b*blk:][:blk]
			col.gather(x[b*BlockCols*t:], t, i)
			s := sx[b*t+i]
			for h := range per {
				var dots [PanelRows]int32
				if kind >= Int5 {
					for r := range dots {
						dots[r] = col.dot4((*[PanelRows * BlockCols / 2]byte)(wb), r)
					}
					if kind <= Int5Min {
						for r := range dots {
							dots[r] += col.dotFifth((*[PanelRows * BlockCols / 8]byte)(wb[PanelRows*BlockCols/2:]), r)
						}
					}
					if !kind.hasMin() {
						start := at(a.init, a.n*t)[b*t+i] / (128 / int32(kind.offset()))
						for r := range dots {
							dots[r] += start
						}
					}
				} else {
					start := at(a.init, a.n*per*t)[(b*per+h)*t+i]
					for r := range dots {
						dots[r] = start + col.dot((*[PanelRows * BlockCols]byte)(wb), r, h*8/per, (h+1)*8/per)
					}
				}
				scales := d[(b*per+h)*PanelRows:][:PanelRows]
				for r, dot := range dots {
					acc[r] = fma32(float32(dot), halfToFloat(scales[r])*s, acc[r])
				}
			}
			if kind.hasMin() {
				sum := at(a.xs, a.n*t)[b*t+i]
				for r := range acc {
					acc[r] = fma32(halfToFloat(at(a.m, a.n*PanelRows)[b*PanelRows+r]), sum, acc[r])
				}
			}
		}
		copy(at(a.y, i*a.stride+PanelRows)[i*a.stride:], acc[:])
	}
}

// scoresGo computes s[i][p], the sum over d of q[d][i]*key[p][d], for the
// positions p of np pages and i < t queries. Of each pair of dimensions the odd
// one is added first. Products of bfloat16 numbers are exact in float32, so that
// fused or not makes no difference.
func scoresGo(a *scoreArgs, t int) {
	q, pages := at(a.q, a.dim*t), at(a.pages, a.np)
	for j, page := range pages {
		key := at((*uint16)(unsafe.Add(unsafe.Pointer(a.k), 2*int(page)*a.stride)), a.dim*pagePositions)
		for i := range t {
			var acc [pagePositions]float32
			for d := 0; d < a.dim; d += 2 {
				even, odd := q[d*t+i], q[(d+1)*t+i]
				row := key[d*pagePositions:][:2*pagePositions]
				for p := range acc {
					e, o := brainPair(row[2*p : 2*p+2])
					acc[p] = float32(acc[p]+float32(odd*o)) + float32(even*e)
				}
			}
			copy(at(a.s, i*Span+(j+1)*pagePositions)[i*Span+j*pagePositions:], acc[:])
		}
	}
}

// mixGo computes o[i][c], the sum over positions p of p[i][p]*value[p][c], of
// each pair of positions the odd one first.
func mixGo(a *mixArgs, t int) {
	pages := at(a.pages, a.np)
	for i := range t {
		p := at(a.p, i*Span+a.np*pagePositions)[i*Span:]
		o := at(a.o, (i+1)*a.dim)[i*a.dim:]
		clear(o)
		for j, page := range pages {
			value := at((*uint16)(unsafe.Add(unsafe.Pointer(a.v), 2*int(page)*a.stride)), a.dim*pagePositions)
			for s := 0; s < pagePositions; s += 2 {
				even, odd := p[j*pagePositions+s], p[j*pagePositions+s+1]
				row := value[s*a.dim:][:2*a.dim]
				for c := range o {
					e, d := brainPair(row[2*c : 2*c+2])
					o[c] = float32(o[c]+float32(odd*d)) + float32(even*e)
				}
			}
		}
	}
}

// lanes is the number of partial sums of a long reduction: element i belongs
// to sum i%lanes. They are added as a tree of halves.
const lanes = 16

func sumLanes(s *[lanes]float32) float32 {
	for n := lanes / 2; n > 0; n /= 2 {
		for i := range n {
			s[i] += s[i+n]
		}
	}
	return s[0]
}

// softmaxGo replaces the scores s, a multiple of 16, by 2^(s-max), rounded to
// bfloat16, and returns the maximum and their sum. It is the sum of the rounded
// weights, so that these add up to one: what values have in common is not rounded.
// No score is NaN; -Inf weighs nothing.
func softmaxGo(s []float32) (m, sum float32) {
	m = s[0]
	for _, v := range s {
		m = max(m, v)
	}
	var acc [lanes]float32
	for i, v := range s {
		s[i] = roundBrain(exp2f(v - m))
		acc[i%lanes] += s[i]
	}
	return m, sumLanes(&acc)
}

// softmaxTileGo is softmaxGo for each query of a tile.
func softmaxTileGo(a *softmaxArgs, t int) {
	top, sum := at(a.top, t), at(a.sum, t)
	for i := range t {
		top[i], sum[i] = softmaxGo(at(skip(a.s, i*Span), a.n))
	}
}

// foldTileGo is fold for each query of a tile.
func foldTileGo(a *foldArgs, t int) {
	top, sum, topO, sumO := at(a.top, t), at(a.sum, t), at(a.topO, t), at(a.sumO, t)
	for i := range t {
		acc, o := at(skip(a.acc, i*a.dim), a.dim), at(skip(a.o, i*a.stride), a.dim)
		top[i], sum[i] = fold(acc, top[i], sum[i], o, topO[i], sumO[i])
	}
}

// brainPairsGo rounds v to bfloat16 and leaves two numbers side by side, the first in the
// lower half.
func brainPairsGo(dst []uint32, v []float32) {
	for i := range dst {
		dst[i] = uint32(brain(v[2*i])) | uint32(brain(v[2*i+1]))<<16
	}
}

// normGo computes dst = x * w / sqrt(mean(x*x) + eps).
func normGo(dst, x, w []float32, eps float32) {
	var acc [lanes]float32
	for i, v := range x {
		acc[i%lanes] += float32(v * v)
	}
	mean := sumLanes(&acc) / float32(len(x))
	scale := 1 / float32(math.Sqrt(float64(mean+eps)))
	for i, v := range x {
		dst[i] = float32(v*scale) * w[i]
	}
}

// gateGo computes dst = act(gate) * up for SiLU or GELU in its tanh form.
func gateGo(dst, gate, up []float32, gelu bool) {
	for i, g := range gate {
		z := g
		if gelu {
			z = geluArg(g)
		}
		dst[i] = float32(g/float32(1+exp32(-z))) * up[i]
	}
}

// geluArg returns z such that GELU in its tanh form is g/(1+exp(-z)).
func geluArg(g float32) float32 {
	const a, b = 0.044715, 2 * 0.79788456080286535588 // b = 2*sqrt(2/pi)
	g2 := float32(g * g)
	return float32(float32(float32(g2*a)+1)*g) * b
}

// addGo computes dst += x.
func addGo(dst, x []float32) {
	for i, v := range x {
		dst[i] += v
	}
}

// blendGo computes dst = dst*a + x*b.
func blendGo(dst, x []float32, a, b float32) {
	for i, v := range x {
		dst[i] = float32(dst[i]*a) + float32(v*b)
	}
}

// Limits of exp32: below the first the result is 0, above the second it is the
// value at the second.
const (
	expLow  = -87.0
	expHigh = 88.0
)

// exp32 is e^x with a relative error below 2e-7, from additions and
// multiplications alone so that every kernel gives the same bits. The
// polynomial is that of the Cephes library's expf.
func exp32(x float32) float32 {
	if !(x >= expLow) {
		return 0
	}
	x = min(x, expHigh)
	const magic = 3 << 22
	n := float32(x*1.44269504088896341) + magic
	e := math.Float32bits(n)<<23 + 127<<23 // 2^n as a float
	n -= magic
	r := x - float32(n*0.693359375)
	r -= float32(n * -2.12194440e-4)
	p := float32(r*1.9875691500e-4) + 1.3981999507e-3
	p = float32(p*r) + 8.3334519073e-3
	p = float32(p*r) + 4.1665795894e-2
	p = float32(p*r) + 1.6666665459e-1
	p = float32(p*r) + 5.0000001201e-1
	p = float32(p*float32(r*r)) + r
	return float32(p+1) * math.Float32frombits(e)
}

// exp2f is 2^x for x <= 0 with a relative error below 3e-6; below -125 it is 0.
// The polynomial was fitted to the relative error over [-1/2, 1/2].
func exp2f(x float32) float32 {
	if !(x >= -125) {
		return 0
	}
	const magic = 3 << 22
	n := x + magic
	r := x - (n - magic)
	p := fma32(0.00958285, r, 0.05590642)
	p = fma32(p, r, 0.24024099)
	p = fma32(p, r, 0.69312419)
	p = fma32(p, r, 1)
	return math.Float32frombits(math.Float32bits(p) + math.Float32bits(n)<<23)
}
