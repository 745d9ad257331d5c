package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// An isa is an instruction set tier.
type isa int

const (
	avx512 isa = iota
	avx2
)

// suffix ends the names of the kernels of the tier.
func (i isa) suffix() string { return [...]string{"AVX512", "AVX2"}[i] }

// A vec is 16 lanes of 32 bits: one zmm or two ymm registers.
type vec []reg.VecVirtual

func (i isa) vec() vec {
	if i == avx512 {
		return vec{ZMM()}
	}
	return vec{YMM(), YMM()}
}

func (i isa) vecs(n int) []vec {
	var out []vec
	for range n {
		out = append(out, i.vec())
	}
	return out
}

// zero clears the vector.
func (v vec) zero() {
	for _, r := range v {
		if len(v) == 1 {
			VPXORD(r, r, r)
		} else {
			VXORPS(r, r, r)
		}
	}
}

// load reads 16 float32 values.
func (v vec) load(m Mem) {
	for i, r := range v {
		VMOVUPS(m.Offset(32*i), r)
	}
}

// store writes 16 float32 values.
func (v vec) store(m Mem) {
	for i, r := range v {
		VMOVUPS(r, m.Offset(32*i))
	}
}

// loadHalf reads 16 half floats.
func (v vec) loadHalf(m Mem) {
	for i, r := range v {
		VCVTPH2PS(m.Offset(16*i), r)
	}
}

// splat returns a vector of 16 equal values read from m. The two registers of an
// AVX2 vector are one and the same then.
func (i isa) splat(m Mem) vec {
	if i == avx512 {
		r := ZMM()
		VBROADCASTSS(m, r)
		return vec{r}
	}
	r := YMM()
	VBROADCASTSS(m, r)
	return vec{r, r}
}

// each calls f for each register of v.
func each(f func(i int), v vec) {
	for i := range v {
		f(i)
	}
}

func add(a, b, dst vec)  { each(func(i int) { VADDPS(b[i], a[i], dst[i]) }, dst) }
func sub(a, b, dst vec)  { each(func(i int) { VSUBPS(b[i], a[i], dst[i]) }, dst) } // a - b
func mul(a, b, dst vec)  { each(func(i int) { VMULPS(b[i], a[i], dst[i]) }, dst) }
func div(a, b, dst vec)  { each(func(i int) { VDIVPS(b[i], a[i], dst[i]) }, dst) } // a / b
func vmax(a, b, dst vec) { each(func(i int) { VMAXPS(b[i], a[i], dst[i]) }, dst) }

// fma computes acc += a*b with one rounding.
func fma(a, b, acc vec) { each(func(i int) { VFMADD231PS(b[i], a[i], acc[i]) }, acc) }

// fold reduces the 16 lanes to one by a tree of halves, as sumLanes does: op is
// VADDPS or VMAXPS. The result is in lane 0 of an xmm register.
func fold(v vec, op func(...Op)) reg.VecVirtual {
	y := YMM()
	if len(v) == 1 {
		VEXTRACTF64X4(Imm(1), v[0], y)
		op(y, v[0].AsY(), y)
	} else {
		op(v[1], v[0], y)
	}
	x := XMM()
	VEXTRACTF128(Imm(1), y, x)
	op(x, y.AsX(), x)
	t := XMM()
	VMOVHLPS(x, x, t)
	op(t, x, x)
	VMOVSHDUP(x, t)
	op(t, x, x)
	return x
}

// constant places a float32 or uint32 in read-only data.
func constant(name string, v Constant) Mem {
	if m, ok := constants[name]; ok {
		return m
	}
	m := GLOBL(name, RODATA|NOPTR)
	DATA(0, v)
	constants[name] = m
	return m
}

var constants = map[string]Mem{}

// field loads field off of the argument struct at p.
func field(p reg.Register, off int) reg.GPVirtual {
	r := GP64()
	MOVQ(Mem{Base: p, Disp: off}, r)
	return r
}
