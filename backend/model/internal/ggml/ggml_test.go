package ggml

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

// recorded is what functions of llama.cpp's portable build returned: see
// testdata/record/kernels.py of package model.
type recorded struct {
	Products []struct {
		Type       string
		Cols, Rows int
		Weights    []byte
		X, Y       numbers
	}
	Gate    struct{ X, Up, Y numbers }
	Softmax struct {
		X, Y numbers
		Sum  float64
	}
	Gelu   []byte
	Sincos struct{ X, Sin, Cos numbers }
}

// numbers are float32 values as little-endian bytes.
type numbers []float32

func (n *numbers) UnmarshalJSON(data []byte) error {
	var raw []byte
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	for ; len(raw) >= 4; raw = raw[4:] {
		*n = append(*n, math.Float32frombits(binary.LittleEndian.Uint32(raw)))
	}
	return nil
}

func load(t *testing.T) *recorded {
	t.Helper()
	data, err := os.ReadFile("testdata/kernels.json")
	if err != nil {
		t.Fatal(err)
	}
	r := new(recorded)
	if err := json.Unmarshal(data, r); err != nil {
		t.Fatal(err)
	}
	return r
}

func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) || len(want) == 0 {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// TestProductsAreThoseOfGGML: the products with weights of every type, for the only
// token, for one of many, and by either way to hand over results.
func TestProductsAreThoseOfGGML(t *testing.T) {
	types := map[string]gguf.Type{}
	for _, typ := range []gguf.Type{gguf.F32, gguf.F16, gguf.BF16, gguf.Q4_0, gguf.Q4_1, gguf.Q5_0, gguf.Q5_1, gguf.Q8_0, gguf.Q4_K, gguf.Q5_K, gguf.Q6_K} {
		types[strings.ToLower(typ.String())] = typ
	}
	for _, p := range load(t).Products {
		typ, ok := types[strings.ToLower(p.Type)]
		if !ok {
			t.Fatal(p.Type)
		}
		delete(types, strings.ToLower(p.Type))
		m, err := NewMatrix(typ, p.Rows, p.Cols, p.Weights)
		if err != nil {
			t.Fatal(err)
		}
		for _, tokens := range []int{1, 3} {
			a := NewActs(tokens, p.Cols, 2)
			// Another product leaves nothing behind.
			a.Reset(tokens, p.Cols)
			a.ReadBy(m)
			noise := make([]float32, p.Cols)
			for i := range noise {
				noise[i] = float32(math.Sin(float64(i)))
			}
			a.SetRow(0, noise)
			y := make([]float32, tokens*p.Rows)
			m.Mul(1, y, p.Rows, a, 0, m.Panels())

			a.Reset(tokens, p.Cols)
			a.ReadBy(m)
			for i := range tokens - 1 {
				a.SetRow(i, noise)
			}
			a.SetRow(tokens-1, p.X)
			m.Mul(1, y, p.Rows, a, 0, m.Panels())
			sameBits(t, p.Type, y[(tokens-1)*p.Rows:], p.Y)
			to := make([][]float32, tokens)
			for i := range to {
				to[i] = make([]float32, p.Rows)
			}
			m.MulTo(0, to, a, 0, m.Panels())
			sameBits(t, p.Type, to[tokens-1], p.Y)
		}
	}
	if len(types) > 0 {
		t.Errorf("nothing recorded for %v", types)
	}
}

// TestFourDots: four at a time are the same bits as one at a time.
func TestFourDots(t *testing.T) {
	x, y := make([]float32, 4*33), make([]float32, 33)
	for i := range x {
		x[i] = float32(math.Sin(float64(i * i)))
	}
	for i := range y {
		y[i] = float32(math.Cos(float64(7 * i)))
	}
	got := Dot4(x, y)
	var want []float32
	for i := range 4 {
		want = append(want, Dot(x[i*33:][:33], y))
	}
	sameBits(t, "dots", got[:], want)
}

func TestFunctionsAreThoseOfGGML(t *testing.T) {
	r := load(t)
	got := make([]float32, len(r.Gate.X))
	Gate(got, r.Gate.X, r.Gate.Up, false)
	sameBits(t, "SiLU", got, r.Gate.Y)

	// ggml divides by the sum as a second step.
	want := slices.Clone(r.Softmax.Y)
	for i := range want {
		want[i] *= float32(1 / r.Softmax.Sum)
	}
	Softmax(r.Softmax.X, 1, 0)
	sameBits(t, "softmax", r.Softmax.X, want)

	table := geluTable()
	for i := range len(r.Gelu) / 2 {
		got, want := table[97*i], gguf.HalfToFloat(binary.LittleEndian.Uint16(r.Gelu[2*i:]))
		if got != want && (got == got || want == want) {
			t.Fatalf("GELU of half float %#x: %v, want %v", 97*i, got, want)
		}
	}
	for i, x := range r.Sincos.X {
		sin, cos := sincos(x)
		sameBits(t, "sine and cosine", []float32{sin, cos}, []float32{r.Sincos.Sin[i], r.Sincos.Cos[i]})
	}
}

// TestQuantiseByHand: a block of Q8_1 rounds halves away from zero, one of Q8_K to
// even ones, and by a scale with the other sign.
func TestQuantiseByHand(t *testing.T) {
	x := make([]float32, blockCols)
	copy(x, []float32{127, 0.5, -0.5, 1.5, -2.5, 126.4})
	q := make([]int8, blockCols)
	d, s := quantiseBlock(q, x)
	if want := []int8{127, 1, -1, 2, -3, 126}; d != 1 || !slices.Equal(q[:6], want) || s != 252 {
		t.Errorf("scale %v, sum %v, %v", d, s, q)
	}
	// A scale that is no half float: it and the sum are rounded, each for itself.
	for i := range x {
		x[i] = 127. / 3
	}
	if d, s := quantiseBlock(q, x); d != throughHalf(1./3) || q[0] != 127 || s != throughHalf(32*127*(float32(127./3)/127)) {
		t.Errorf("scale %v, sum %v, %v", d, s, q[0])
	}
	clear(x)
	if d, s := quantiseBlock(q, x); d != 0 || s != 0 || q[3] != 0 {
		t.Errorf("zeros: %v %v %v", d, s, q)
	}

	x = make([]float32, superCols)
	copy(x, []float32{-127, 0.5, 1.5, -2.5, 127, 0, 0, 0, 3})
	x[255] = 64
	q, sums := make([]int8, superCols), make([]int32, 8)
	k := quantiseSuper(q, sums, x)
	// The first of the largest counts: -127 gives an inverse of 1.
	at := func(c int) int8 { return q[c%8*32+c/8] }
	if k != 1 || at(0) != -127 || at(1) != 0 || at(2) != 2 || at(3) != -2 || at(4) != 127 || at(8) != 3 || at(255) != 64 {
		t.Errorf("scale %v, %v", k, q)
	}
	if sums[0] != 3 || sums[7] != 64 || sums[3] != 0 {
		t.Errorf("sums %v", sums)
	}
	x[0], x[4] = 0, 254
	if k := quantiseSuper(q, sums, x); k != -2 || at(4) != -127 || at(255) != -32 {
		t.Errorf("scale %v, %v", k, q)
	}
	clear(x)
	if k := quantiseSuper(q, sums, x); k != 0 || at(4) != 0 || sums[7] != 0 {
		t.Errorf("zeros: %v %v", k, sums)
	}
}

// TestRowsByHand: one row of each block type with values that can be added up on
// paper.
func TestRowsByHand(t *testing.T) {
	half := func(f float32) []byte { return binary.LittleEndian.AppendUint16(nil, gguf.FloatToHalf(f)) }
	repeat := func(b byte, n int) []byte { return slices.Repeat([]byte{b}, n) }
	scales := append(repeat(0x41, 8), repeat(0x21, 4)...) // scales 1 and 17, minima 1 and 18
	for _, c := range []struct {
		typ  gguf.Type
		row  []byte
		want float32 // the sum of the row's values
	}{
		{gguf.Q4_0, slices.Concat(half(2), repeat(0xa9, 16)), 2 * 16 * (1 + 2)},
		{gguf.Q4_1, slices.Concat(half(2), half(-1), repeat(0x31, 16)), 2*16*4 - 32},
		{gguf.Q5_0, slices.Concat(half(0.5), repeat(0xff, 4), repeat(0x21, 16)), 0.5 * 16 * (1 + 2)},
		{gguf.Q5_1, slices.Concat(half(0.5), half(1), repeat(0xf0, 4), repeat(0x21, 16)), 0.5*16*(1+2) + 0.5*16*16 + 32},
		{gguf.Q8_0, slices.Concat(half(0.25), repeat(0xfd, 32)), 0.25 * -3 * 32},
		{gguf.Q4_K, slices.Concat(half(1), half(0.5), scales, repeat(0x32, 128)), 128*(1+17)*2.5 - 0.5*128*(1+18)},
		{gguf.Q5_K, slices.Concat(half(1), half(0.5), scales, repeat(0xff, 32), repeat(0x32, 128)), 128*(1+17)*18.5 - 0.5*128*(1+18)},
		{gguf.Q6_K, slices.Concat(repeat(0x21, 128), repeat(0xaa, 64), repeat(0xfe, 16), half(0.5)), 0.5 * -2 * 128 * (1 + 2)},
	} {
		cols := c.typ.BlockSize()
		m, err := NewMatrix(c.typ, 1, cols, c.row)
		if err != nil {
			t.Fatal(err)
		}
		a := NewActs(1, cols, 1)
		a.Reset(1, cols)
		a.ReadBy(m)
		x := make([]float32, cols)
		for i := range x {
			x[i] = -127 // scale 1 or -1, sums without rounding
		}
		a.SetRow(0, x)
		y := []float32{0}
		m.Mul(0, y, 1, a, 0, 1)
		if y[0] != -127*c.want {
			t.Errorf("%v: %v, want %v", c.typ, y[0], -127*c.want)
		}
		sum := float32(0)
		m.Row(x, 0)
		for _, v := range x {
			sum += v
		}
		if sum != c.want {
			t.Errorf("%v: the row's values add up to %v, want %v", c.typ, sum, c.want)
		}
	}
}

// TestMatrixIsChecked: types and sizes that do not fit are errors.
func TestMatrixIsChecked(t *testing.T) {
	for _, c := range []struct {
		typ        gguf.Type
		rows, cols int
		bytes      int
	}{{gguf.Type(10), 1, 256, 84}, {gguf.Q8_0, 1, 33, 34}, {gguf.Q8_0, 2, 32, 34}, {gguf.Q4_K, 1, 32, 18}} {
		if m, err := NewMatrix(c.typ, c.rows, c.cols, make([]byte, c.bytes)); err == nil {
			t.Errorf("%+v: %+v", c, m)
		}
	}
}

// TestPairsOfSums: the largest sums of a pair of rows do not run into each other.
func TestPairsOfSums(t *testing.T) {
	var p, q [32]int64
	var a [32]int8
	for _, v := range [][4]int64{{-4096, -4096, 4064, -4096}, {4064, -4096, -4096, 0}, {0, -1, 1, 0}, {-1, 0, 0, 1}} {
		for _, x := range []int8{-128, -1, 1, 127} {
			for i := range p {
				p[i], q[i], a[i] = v[0]+v[1]<<32, v[2]+v[3]<<32, x
			}
			s, u := dot32(&p, &q, &a)
			var got [4]int32
			got[0], got[1] = split(s)
			got[2], got[3] = split(u)
			for i, n := range got {
				if want := 32 * v[i] * int64(x); int64(n) != want {
					t.Errorf("%v times %d: sum %d is %d, want %d", v, x, i, n, want)
				}
			}
		}
	}
}

// TestVectorsByHand has what needs no record: norms, soft caps, the order of a
// softmax, and the angles of positions.
func TestVectorsByHand(t *testing.T) {
	y := make([]float32, 4)
	Norm(y, []float32{1, -1, 1, -1}, []float32{1, 2, 3, 4}, 0)
	sameBits(t, "norm", y, []float32{1, -2, 3, -4})
	// In float32 the small squares would be lost beside the large one.
	x := make([]float32, 257)
	w := make([]float32, 257)
	for i := range x {
		x[i], w[i] = 0x1p-13, 1
	}
	x[0] = 1
	y = make([]float32, len(x))
	Norm(y, x, w, 0)
	if want := 1 / float32(math.Sqrt(float64(float32((1+256*0x1p-26)/257)))); y[0] != want {
		t.Errorf("norm %v, want %v", y[0], want)
	}

	Gate(y[:5], []float32{-10, 10, 0, 1, -9.99}, []float32{3, 3, 3, 1, 1}, true)
	if y[0] != 0 || y[1] != 30 || y[2] != 0 || y[3] != throughHalf(0.8411920) || math.Abs(float64(y[4])) > 1e-6 {
		t.Errorf("GELU %v", y[:5])
	}
	capped := []float32{0, 100, -100, 0.1}
	Softcap(capped, 30)
	if capped[0] != 0 || math.Abs(float64(capped[1])-30*math.Tanh(100./30)) > 1e-5 || capped[2] != -capped[1] {
		t.Errorf("soft cap %v", capped)
	}

	// Four positions are added in float32, counted from position 0: what is small
	// beside a large one is lost only in its own four.
	tiny := float32(math.Log(0x1p-25))
	for _, c := range []struct {
		first int
		sum   float64
	}{{0, 1 + 0x1p-25}, {3, 1 + 4*0x1p-25}} {
		scores := []float32{0, tiny, tiny, tiny, tiny}
		Softmax(scores, 1, c.first)
		small := exp(tiny)
		if want := float32(1 / c.sum); scores[0] != want || scores[1] != small*want {
			t.Errorf("from position %d: %v, want %v", c.first, scores, want)
		}
	}
	masked := []float32{float32(math.Inf(-1)), 2, 2}
	Softmax(masked, 0.5, 6)
	sameBits(t, "softmax", masked, []float32{0, 0.5, 0.5})
	for _, v := range []float32{-200, -104, -95, -87, 0, 1, 87, 88.3} {
		if got, want := float64(exp(v)), math.Exp(float64(v)); math.Abs(got-want) > 3e-7*want+0x1p-148 {
			t.Errorf("exp(%v) = %v, want %v", v, got, want)
		}
	}
	if !math.IsInf(float64(exp(200)), 1) || exp(float32(math.Inf(-1))) != 0 {
		t.Error("exp beyond the range")
	}

	r, err := NewRope(10000, 4, 0.5, []float32{1, 2, 1, 1})
	if err != nil {
		t.Fatal(err)
	}
	cos, sin := make([]float32, 4), make([]float32, 4)
	r.Angles(cos, sin, 30)
	for i, div := range []float64{1, 2, 1, 1} {
		a := 30 * 0.5 / div * math.Pow(10000, -float64(i)/4)
		if math.Abs(float64(sin[i])-math.Sin(a)) > 1e-6 || math.Abs(float64(cos[i])-math.Cos(a)) > 1e-6 {
			t.Errorf("pair %d: %v %v, want %v %v", i, sin[i], cos[i], math.Sin(a), math.Cos(a))
		}
	}
	if _, err := NewRope(10000, 4, 1, make([]float32, 3)); err == nil {
		t.Error("three factors for four pairs")
	}
	if s, c := sincos(float32(math.Inf(1))); s == s || c == c {
		t.Errorf("of infinity: %v %v", s, c)
	}
}
