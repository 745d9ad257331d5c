package compute

import "math"

// halfToFloat converts a half float that is neither infinite nor NaN. Package
// compute never stores those: floatToHalf saturates.
func halfToFloat(h uint16) float32 {
	// The exponent is moved into place and rebiased by a multiplication by
	// 2^112, which also normalises subnormal numbers.
	const rebias = 0x1p112
	f := math.Float32frombits(uint32(h&0x7fff)<<13) * rebias
	return math.Float32frombits(math.Float32bits(f) | uint32(h&0x8000)<<16)
}

// maxHalf is the largest half float.
const maxHalf = 0x7bff

// floatToHalf rounds to the nearest half float, ties to even. Values beyond the
// range, NaN included, become the largest of their sign.
func floatToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b >= 0x477ff000: // rounds to 65536 or more
		return sign | maxHalf
	case b < 0x38800000: // subnormal in half precision: let an addition round
		const magic = 0x1p-1 // the ulp of numbers in [0.5, 1) is 2^-24
		r := math.Float32frombits(b) + magic
		return sign | uint16(math.Float32bits(r)-math.Float32bits(magic))
	}
	b += 0xfff + b>>13&1 // round half to even
	return sign | uint16((b-0x38000000)>>13)
}

// roundBrain rounds to the nearest bfloat16, ties to even, and returns it as the
// upper half of a float32. Subnormal numbers become zero, because the processor's
// dot product takes them for that.
func roundBrain(f float32) float32 {
	b := math.Float32bits(f)
	if b&0x7f800000 == 0 {
		return 0
	}
	b += 0x7fff + b>>16&1
	return math.Float32frombits(b & 0xffff0000)
}

// brain returns the bfloat16 number that f rounds to.
func brain(f float32) uint16 { return uint16(math.Float32bits(roundBrain(f)) >> 16) }

// brainPair splits two bfloat16 numbers that lie side by side.
func brainPair(p []uint16) (even, odd float32) {
	return math.Float32frombits(uint32(p[0]) << 16), math.Float32frombits(uint32(p[1]) << 16)
}
