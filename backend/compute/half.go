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

// floatToHalf rounds to the nearest half float, ties to even. Values beyond the
// range, NaN included, become the largest of their sign.
func floatToHalf(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	b &= 0x7fffffff
	switch {
	case b >= 0x477ff000: // rounds to 65536 or more
		return sign | 0x7bff
	case b < 0x38800000: // subnormal in half precision: let an addition round
		const magic = 0x1p-1 // the ulp of numbers in [0.5, 1) is 2^-24
		r := math.Float32frombits(b) + magic
		return sign | uint16(math.Float32bits(r)-math.Float32bits(magic))
	}
	b += 0xfff + b>>13&1 // round half to even
	return sign | uint16((b-0x38000000)>>13)
}

// ToHalf rounds src into dst, which has the same length.
func ToHalf(dst []uint16, src []float32) { toHalf(dst[:len(src)], src) }
