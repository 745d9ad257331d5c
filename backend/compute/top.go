package compute

import (
	"math"
	"math/bits"
)

// topBlock is the number of values that the kernels of Top take at a time.
const topBlock = 64

// Top returns the index of the greatest of x, the first one of equals, among those
// whose bit is set in allowed; nil allows all. It is -1 if none is allowed, or all
// of x is minus infinity and allowed is nil. nan tells whether one of them is not a
// number; the index means nothing then.
func Top(x []float32, allowed []uint64) (at int, nan bool) {
	if allowed != nil {
		x = x[:min(len(x), 64*len(allowed))]
	}
	n := len(x) &^ (topBlock - 1)
	if n == 0 || !hasTop(allowed != nil) {
		return topGo(x, allowed)
	}
	var set []uint64
	if allowed != nil {
		set = allowed[:n/topBlock]
		allowed = allowed[n/topBlock:]
	}
	m, abs := topOf(x[:n], set)
	rest, nan := topGo(x[n:], allowed)
	if nan || abs > infinite {
		return 0, true
	}
	at = -1
	if set != nil || !math.IsInf(float64(m), -1) {
		at = firstOf(x[:n], m, set)
	}
	if rest >= 0 && (at < 0 || x[n+rest] > m) {
		at = n + rest
	}
	return at, false
}

// infinite has the bits of infinity; greater ones, but for the sign, are not numbers.
const infinite = 0x7f800000

// firstOf returns the index of the first of x that is m and allowed, or -1.
func firstOf(x []float32, m float32, allowed []uint64) int {
	for from := 0; from < len(x); from += topBlock {
		from += find(x[from:], m) &^ (topBlock - 1)
		for i := from; i < min(len(x), from+topBlock); i++ {
			if x[i] == m && isAllowed(allowed, i) {
				return i
			}
		}
	}
	return -1
}

func isAllowed(set []uint64, i int) bool { return set == nil || set[i/64]>>(i%64)&1 != 0 }

// topGo is the reference of Top.
func topGo(x []float32, allowed []uint64) (best int, nan bool) {
	top := float32(math.Inf(-1))
	best = -1
	if allowed == nil {
		for i, v := range x {
			if !(v <= top) { // greater, or not a number
				if v != v {
					return 0, true
				}
				top, best = v, i
			}
		}
		return best, false
	}
	for w, word := range allowed {
		for ; word != 0; word &= word - 1 {
			i := w*64 + bits.TrailingZeros64(word)
			if i >= len(x) {
				return best, false
			}
			switch v := x[i]; {
			case v > top || best < 0 && v == top:
				top, best = v, i
			case v != v:
				return 0, true
			}
		}
	}
	return best, false
}
