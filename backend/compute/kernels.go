package compute

//go:generate sh -c "cd gen && go run . -out ../kernels_gen_amd64.s -stubs ../kernels_gen_amd64.go -pkg compute"
//go:generate sh -c "cd gen && go run ./arm64 -out ../kernels_gen_arm64.s -stubs ../kernels_gen_arm64.go"

import (
	"fmt"
	"slices"
	"strings"
)

// tier is a set of instructions that kernels exist for.
type tier int

const (
	tierGo tier = iota
	tierAVX2
	tierAVX512
	tierBF16 // AVX-512 with the bfloat16 dot product
	tierNEON // with the 8-bit dot product
)

// tierNames are what COPPICE_CPU may be set to, those of a processor in order.
var tierNames = [...]string{"go", "avx2", "avx512", "avx512bf16", "neon"}

// allowed returns the highest of the tiers that the user allows, which has the last of
// them if not told otherwise. What is the name of another processor's tier allows all.
func allowed(tiers []tier, name string) tier {
	if i := slices.Index(tiers, tier(slices.Index(tierNames[:], name))); i >= 0 {
		return tiers[i]
	}
	return tiers[len(tiers)-1]
}

// CheckTier returns an error that says what COPPICE_CPU may be set to, if name is none of
// it; nothing is all that the processor has.
func CheckTier(name string) error {
	if name == "" || slices.Contains(tierNames[:], name) {
		return nil
	}
	return fmt.Errorf("COPPICE_CPU is %q: set it to %s, or to nothing for the best that the processor has",
		name, strings.Join(tierNames[:], ", "))
}

// Span is the number of positions over which one partial softmax runs. Spans
// start at multiples of Span.
const Span = 256

// pagePositions is the number of positions in a page of keys and values.
const pagePositions = 16

// gemmArgs are the operands of one tile of a matrix product.
type gemmArgs struct {
	w      *byte    // panel: integers, or float32, or half floats
	d, m   *uint16  // panel: scales and minima
	x      *int8    // tile
	sx, xs *float32 // tile
	init   *int32   // tile
	xf     *float32 // tile, unquantised
	n      int      // blocks, or columns where the weights are floats
	y      *float32 // [t][stride]
	stride int      // of y, in elements
	panels int      // that lie one behind the other; kernels that are not asked for several take 1
}

// scoreArgs are the operands of one tile of queries against a run of pages.
// Queries are given in one of two forms: float32 values that bfloat16 can hold,
// or pairs of bfloat16.
type scoreArgs struct {
	q      *float32 // [dim][t]
	k      *uint16  // keys of page 0: [dim/2][16][2]
	pages  *int32
	np     int
	stride int // elements from page to page
	dim    int
	s      *float32 // [t][Span]
	pairs  *uint32  // [dim/2][t]
	values int      // bytes from a page's keys to what is fetched meanwhile, its values or the keys again
	near   int      // with so many pages left or fewer the next one is not fetched
}

// mixArgs are the operands of one tile of weights against a run of pages.
// Weights are given in one of two forms, as queries are.
type mixArgs struct {
	p      *float32 // [t][Span]
	v      *uint16  // values of page 0: [8][dim][2]
	pages  *int32
	np     int
	stride int // elements from page to page
	dim    int
	o      *float32 // [t][dim]
	pairs  *uint16  // [t][Span]
	next   *int32   // as many pages, whose keys are fetched meanwhile
	keys   int      // bytes from a page's values to what is fetched, its keys or the values again
}

// softmaxArgs are the operands of softmax over the scores of a tile. Weights are left in
// one of two forms, as mixArgs wants them.
type softmaxArgs struct {
	s     *float32 // [t][Span]
	n     int      // scores of each query, a multiple of 16
	pairs *uint16  // [t][Span]
	top   *float32 // [t] maxima
	sum   *float32 // [t] sums of the weights
	near  *uint16  // what may be fetched meanwhile: here
	step  int      // and every so many bytes after it
}

// foldArgs are the operands that merge results of a tile into earlier ones; every query has
// both.
type foldArgs struct {
	top    *float32 // [t]
	sum    *float32 // [t]
	acc    *float32 // [t][dim]
	dim    int
	topO   *float32 // [t]
	sumO   *float32 // [t]
	o      *float32 // [t][stride]
	stride int
	a, b   [queryTile]float32 // room for factors
}

// quantArgs are the operands of the quantise kernel.
type quantArgs struct {
	x           *float32
	q           *int8    // of the token in its tile
	sx, xs      *float32 // likewise
	init, init2 *int32
	n           int // blocks
	t           int // tokens of the tile
	form        int
}

// quantArgs are the operands that quantiseGo takes.
func (a *Acts) quantArgs(form Form, first, t, at, block int, x []float32) quantArgs {
	to, meta := &a.quants[form], first*a.nb+block*t
	return quantArgs{
		x: &x[0], q: &to.q[meta*BlockCols+at*4],
		sx: &to.sx[meta+at], xs: &to.xs[meta+at], init: &to.init[meta+at], init2: &to.init2[2*meta+at],
		n: len(x) / BlockCols, t: t, form: int(form),
	}
}
