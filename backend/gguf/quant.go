package gguf

import (
	"encoding/binary"
	"math"
)

// Quantize encodes src as t into dst, the opposite of Dequantize. It covers F32,
// F16, BF16, Q8_0, Q4_0 and Q4_1 (the reference rounding of llama.cpp); the other
// formats are ErrUnsupported, because choosing their scales well is a search that
// belongs to a converter.
func Quantize(t Type, src []float32, dst []byte) error {
	encode, ok := encoders[t]
	if !ok {
		return unsupportedf("cannot write tensors of %s; use F32, F16, BF16, Q8_0, Q4_0 or Q4_1", t)
	}
	if err := checkBlocks(t, len(dst), len(src)); err != nil {
		return err
	}
	encode(src, dst)
	return nil
}

var encoders = map[Type]func(src []float32, dst []byte){
	F32: encodeF32, F16: encodeF16, BF16: encodeBF16,
	Q8_0: encodeQ8_0, Q4_0: encodeQ4_0, Q4_1: encodeQ4_1,
}

func putHalf(b []byte, f float32) { binary.LittleEndian.PutUint16(b, FloatToHalf(f)) }

func encodeF32(src []float32, dst []byte) {
	for i, f := range src {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(f))
	}
}

func encodeF16(src []float32, dst []byte) {
	for i, f := range src {
		putHalf(dst[2*i:], f)
	}
}

func encodeBF16(src []float32, dst []byte) {
	for i, f := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], FloatToBrain(f))
	}
}

// inverse is 1/d, or 0 for a block of zeros.
func inverse(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

func encodeQ8_0(src []float32, dst []byte) {
	for ; len(src) >= 32; src, dst = src[32:], dst[34:] {
		var top float32
		for _, f := range src[:32] {
			top = max(top, float32(math.Abs(float64(f))))
		}
		d := top / 127
		inv := inverse(d)
		putHalf(dst, d)
		for j, f := range src[:32] {
			dst[2+j] = byte(int8(clamp(math.Round(float64(f*inv)), -128, 127)))
		}
	}
}

func encodeQ4_0(src []float32, dst []byte) {
	for ; len(src) >= 32; src, dst = src[32:], dst[18:] {
		var top, most float32 // the value of largest magnitude, and that magnitude
		for _, f := range src[:32] {
			if a := float32(math.Abs(float64(f))); a > most {
				top, most = f, a
			}
		}
		d := top / -8
		inv := inverse(d)
		putHalf(dst, d)
		for j := range 16 {
			dst[2+j] = nibble(float32(src[j]*inv)+8.5) | nibble(float32(src[j+16]*inv)+8.5)<<4
		}
	}
}

func encodeQ4_1(src []float32, dst []byte) {
	for ; len(src) >= 32; src, dst = src[32:], dst[20:] {
		low, high := src[0], src[0]
		for _, f := range src[1:32] {
			low, high = min(low, f), max(high, f)
		}
		d := (high - low) / 15
		inv := inverse(d)
		putHalf(dst, d)
		putHalf(dst[2:], low)
		for j := range 16 {
			dst[4+j] = nibble(float32((src[j]-low)*inv)+0.5) | nibble(float32((src[j+16]-low)*inv)+0.5)<<4
		}
	}
}

// nibble cuts f to a whole number from 0 to 15; NaN gives 0.
func nibble(f float32) byte { return byte(clamp(float64(f), 0, 15)) }

func clamp(f, low, high float64) float64 {
	if f != f {
		return 0
	}
	return min(max(f, low), high)
}
