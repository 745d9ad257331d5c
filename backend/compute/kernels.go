package compute

import (
	"fmt"
	"slices"
	"strings"
)

// tierNames are what COPPICE_CPU may be set to, the fastest last.
var tierNames = [...]string{"go", "avx2", "avx512", "avx512bf16"}

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
