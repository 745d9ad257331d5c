package model

import (
	"encoding/binary"

	"github.com/coppice-run/coppice/backend/compute"
	"github.com/coppice-run/coppice/backend/gguf"
)

// kindOf returns how the kernels hold a tensor of type t.
func kindOf(t gguf.Type) (compute.Kind, bool) {
	switch t {
	case gguf.F32, gguf.BF16:
		return compute.Float32, true
	case gguf.F16:
		return compute.Float16, true
	case gguf.Q8_0:
		return compute.Int8, true
	case gguf.Q5_0:
		return compute.Int5, true
	case gguf.Q5_1, gguf.Q5_K:
		return compute.Int5Min, true
	case gguf.Q6_K:
		return compute.Int8Half, true
	case gguf.Q4_0:
		return compute.Int4, true
	case gguf.Q4_1, gguf.Q4_K:
		return compute.Int4Min, true
	}
	return 0, false
}

// decodeBlocks unpacks a row of quantised values into blocks of 32. The integers
// are those of the file, moved to the offset of the kind; nothing is quantised
// again. Formats: ggml-quants.c of llama.cpp;
// package gguf describes them.
func decodeBlocks(dst []compute.Block, t gguf.Type, src []byte) {
	size := t.BlockBytes()
	per := t.BlockSize() / compute.BlockCols
	for i := 0; i < len(dst); i += per {
		b, d := src[:size], dst[i:i+per]
		src = src[size:]
		switch t {
		case gguf.Q8_0:
			decodeQ8(&d[0], b)
		case gguf.Q4_0, gguf.Q4_1:
			decodeQ4(&d[0], b, t == gguf.Q4_1)
		case gguf.Q5_0, gguf.Q5_1:
			decodeQ5(&d[0], b, t == gguf.Q5_1)
		case gguf.Q4_K, gguf.Q5_K:
			decodeQ45K(d, b, t == gguf.Q5_K)
		case gguf.Q6_K:
			decodeQ6K(d, b)
		}
	}
}

func half(b []byte) float32 { return gguf.HalfToFloat(binary.LittleEndian.Uint16(b)) }

func both(v float32) [2]float32 { return [2]float32{v, v} }

func decodeQ8(d *compute.Block, b []byte) {
	d.D = both(half(b))
	for i := 0; i < 32; i += 8 {
		// int8 to offset 128: the sign bits turned.
		q := binary.LittleEndian.Uint64(b[2+i:])
		binary.LittleEndian.PutUint64(d.Q[i:], q^0x8080808080808080)
	}
}

// decodeQ4 reads values q*d+m, or (q-8)*d without a minimum.
func decodeQ4(d *compute.Block, b []byte, min bool) {
	scale := half(b)
	d.D, b = both(scale), b[2:]
	if min {
		d.M, b = both(half(b)), b[2:]
	}
	for i := 0; i < 16; i += 8 {
		q := binary.LittleEndian.Uint64(b[i:])
		binary.LittleEndian.PutUint64(d.Q[i:], q&nibbles)
		binary.LittleEndian.PutUint64(d.Q[i+16:], q>>4&nibbles)
	}
}

// nibbles masks the low halves of eight bytes.
const nibbles = 0x0f0f0f0f0f0f0f0f

// decodeQ5 reads values q*d+m, or (q-16)*d without a minimum.
func decodeQ5(d *compute.Block, b []byte, min bool) {
	d.D, b = both(half(b)), b[2:]
	if min {
		d.M, b = both(half(b)), b[2:]
	}
	high := binary.LittleEndian.Uint32(b)
	for i, q := range b[4:20] {
		d.Q[i] = q&15 | uint8(high>>i&1)<<4
		d.Q[i+16] = q>>4 | uint8(high>>(i+16)&1)<<4
	}
}

// decodeQ45K reads 256 values q*(d*scale) - dmin*min in eight blocks.
func decodeQ45K(d []compute.Block, b []byte, five bool) {
	scale, minimum, s := half(b), half(b[2:]), b[4:16]
	high, low := b[16:48], b[16:]
	if five {
		low = b[48:]
	}
	for j := range 8 {
		sc, mn := s[j&3]&63, s[j&3+4]&63
		if j >= 4 {
			sc, mn = s[j+4]&15|s[j-4]>>6<<4, s[j+4]>>4|s[j]>>6<<4
		}
		d[j].D, d[j].M = both(scale*float32(sc)), both(-minimum*float32(mn))
		for i, q := range low[j/2*32:][:32] {
			q = q >> (j % 2 * 4) & 15
			if five {
				q |= high[i] >> j & 1 << 4
			}
			d[j].Q[i] = q
		}
	}
}

// decodeQ6K reads 256 values (q-32)*d*scale, a scale for each 16.
func decodeQ6K(d []compute.Block, b []byte) {
	scale := half(b[208:])
	for j := range 8 {
		part, k := j/4, j%4 // halves of 128 values, quarters of them
		low, high := b[64*part+32*(k%2):], b[128+32*part:]
		for i := range 32 {
			q := low[i]>>(k/2*4)&15 | high[i]>>(2*k)&3<<4
			d[j].Q[i] = q + 128 - 32
		}
		d[j].D = [2]float32{scale * float32(int8(b[192+2*j])), scale * float32(int8(b[193+2*j]))}
	}
}
