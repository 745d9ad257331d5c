package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// decoders turn whole blocks of a format into float32. Both slices have been
// checked: len(src) is a multiple of BlockBytes and dst has room.
//
// They follow dequantize_row_* of ggml-quants.c. Each product is rounded to
// float32 before the sum (the explicit conversions forbid fusing), which makes the
// results equal to the reference on every machine.
var decoders map[Type]func(src []byte, dst []float32)

func init() {
	decoders = map[Type]func(src []byte, dst []float32){
		F32: decodeF32, F16: decodeF16, BF16: decodeBF16,
		Q4_0: decodeQ4_0, Q4_1: decodeQ4_1, Q5_0: decodeQ5_0, Q5_1: decodeQ5_1, Q8_0: decodeQ8_0,
		Q4_K: decodeQ4_K, Q5_K: decodeQ5_K, Q6_K: decodeQ6_K,
	}
}

// Dequantize decodes src, which holds len(dst) values stored as t, into dst.
//
// The number of values must be a multiple of t.BlockSize and src must have exactly
// the bytes of that many values; anything else is ErrCorrupt. A type that can be
// sized but not read is ErrUnsupported.
func Dequantize(t Type, src []byte, dst []float32) error {
	decode, ok := decoders[t]
	if !ok {
		return unsupportedf("values stored as %s are not decoded, only %s: take a file in one of these", t, readable())
	}
	if err := checkBlocks(t, len(src), len(dst)); err != nil {
		return err
	}
	decode(src, dst)
	return nil
}

// checkBlocks tells whether n values of t take exactly size bytes.
func checkBlocks(t Type, size, n int) error {
	if n%t.BlockSize() != 0 {
		return fmt.Errorf("%w: %s values stored as %s do not fill blocks of %d", ErrCorrupt, comma(n), t, t.BlockSize())
	}
	if want := t.RowBytes(n); size != want {
		return fmt.Errorf("%w: %s values stored as %s take %s bytes, not %s", ErrCorrupt, comma(n), t, comma(want), comma(size))
	}
	return nil
}

func half(b []byte) float32 { return HalfToFloat(binary.LittleEndian.Uint16(b)) }

func decodeF32(src []byte, dst []float32) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
}

func decodeF16(src []byte, dst []float32) {
	for i := range dst {
		dst[i] = half(src[2*i:])
	}
}

func decodeBF16(src []byte, dst []float32) {
	for i := range dst {
		dst[i] = BrainToFloat(binary.LittleEndian.Uint16(src[2*i:]))
	}
}

// Q4_0 block: half d; 16 bytes, low nibbles are values 0-15, high ones 16-31.
// value = (q - 8) * d
func decodeQ4_0(src []byte, dst []float32) {
	for ; len(dst) >= 32; src, dst = src[18:], dst[32:] {
		d := half(src)
		for j, q := range src[2:18] {
			dst[j] = float32(int(q&15)-8) * d
			dst[j+16] = float32(int(q>>4)-8) * d
		}
	}
}

// Q4_1 block: half d, half m; 16 bytes of nibbles as in Q4_0. value = q*d + m
func decodeQ4_1(src []byte, dst []float32) {
	for ; len(dst) >= 32; src, dst = src[20:], dst[32:] {
		d, m := half(src), half(src[2:])
		for j, q := range src[4:20] {
			dst[j] = float32(float32(q&15)*d) + m
			dst[j+16] = float32(float32(q>>4)*d) + m
		}
	}
}

// Q5_0 block: half d; 32 high bits; 16 bytes of nibbles. value = (q - 16) * d
func decodeQ5_0(src []byte, dst []float32) {
	for ; len(dst) >= 32; src, dst = src[22:], dst[32:] {
		d, high := half(src), binary.LittleEndian.Uint32(src[2:])
		for j, q := range src[6:22] {
			dst[j] = float32(int(q&15)|int(high>>j&1)<<4-16) * d
			dst[j+16] = float32(int(q>>4)|int(high>>(j+16)&1)<<4-16) * d
		}
	}
}

// Q5_1 block: half d, half m; 32 high bits; 16 bytes of nibbles. value = q*d + m
func decodeQ5_1(src []byte, dst []float32) {
	for ; len(dst) >= 32; src, dst = src[24:], dst[32:] {
		d, m, high := half(src), half(src[2:]), binary.LittleEndian.Uint32(src[4:])
		for j, q := range src[8:24] {
			dst[j] = float32(float32(int(q&15)|int(high>>j&1)<<4)*d) + m
			dst[j+16] = float32(float32(int(q>>4)|int(high>>(j+16)&1)<<4)*d) + m
		}
	}
}

// Q8_0 block: half d; 32 signed bytes. value = q * d
func decodeQ8_0(src []byte, dst []float32) {
	for ; len(dst) >= 32; src, dst = src[34:], dst[32:] {
		d := half(src)
		for j, q := range src[2:34] {
			dst[j] = float32(int8(q)) * d
		}
	}
}
