package gguf

import "encoding/binary"

// scaleMin unpacks the j-th (0-7) 6-bit scale and 6-bit minimum of a Q4_K or Q5_K
// block from its 12 bytes: 0-3 and 4-7 hold the low ones whole, their top two bits
// and bytes 8-11 hold the rest.
func scaleMin(j int, s []byte) (scale, minimum byte) {
	if j < 4 {
		return s[j] & 63, s[j+4] & 63
	}
	return s[j+4]&15 | s[j-4]>>6<<4, s[j+4]>>4 | s[j]>>6<<4
}

// Q4_K block: half d, half dmin; 12 bytes of scales; 128 bytes of nibbles, where
// each 32 bytes hold 64 values, the low nibbles first.
// value = q*(d*scale) - dmin*min, one scale and min for 32 values
func decodeQ4_K(src []byte, dst []float32) {
	for ; len(dst) >= 256; src, dst = src[144:], dst[256:] {
		d, dmin, scales := half(src), half(src[2:]), src[4:16]
		for g := range 4 {
			s0, m0 := scaleMin(2*g, scales)
			s1, m1 := scaleMin(2*g+1, scales)
			d0, o0 := d*float32(s0), dmin*float32(m0)
			d1, o1 := d*float32(s1), dmin*float32(m1)
			for j, q := range src[16+32*g : 48+32*g] {
				dst[64*g+j] = float32(d0*float32(q&15)) - o0
				dst[64*g+32+j] = float32(d1*float32(q>>4)) - o1
			}
		}
	}
}

// Q5_K block: as Q4_K with 32 more bytes before the nibbles; bit k of byte j there
// is the fifth bit of value j of the k-th group of 32.
func decodeQ5_K(src []byte, dst []float32) {
	for ; len(dst) >= 256; src, dst = src[176:], dst[256:] {
		d, dmin, scales, high := half(src), half(src[2:]), src[4:16], src[16:48]
		for g := range 4 {
			s0, m0 := scaleMin(2*g, scales)
			s1, m1 := scaleMin(2*g+1, scales)
			d0, o0 := d*float32(s0), dmin*float32(m0)
			d1, o1 := d*float32(s1), dmin*float32(m1)
			for j, q := range src[48+32*g : 80+32*g] {
				h := high[j] >> (2 * g)
				dst[64*g+j] = float32(d0*float32(q&15|h&1<<4)) - o0
				dst[64*g+32+j] = float32(d1*float32(q>>4|h>>1&1<<4)) - o1
			}
		}
	}
}

// Q6_K block: 128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 signed
// scales (one for 16 values), half d. value = d * scale * (q - 32)
func decodeQ6_K(src []byte, dst []float32) {
	for ; len(dst) >= 256; src, dst = src[210:], dst[256:] {
		d := HalfToFloat(binary.LittleEndian.Uint16(src[208:]))
		for h := range 2 { // halves of 128 values
			ql, qh, sc, out := src[64*h:], src[128+32*h:], src[192+8*h:], dst[128*h:]
			for j := range 32 {
				s := sc[j/16:]
				q0 := int(ql[j]&15|qh[j]&3<<4) - 32
				q1 := int(ql[j+32]&15|qh[j]>>2&3<<4) - 32
				q2 := int(ql[j]>>4|qh[j]>>4&3<<4) - 32
				q3 := int(ql[j+32]>>4|qh[j]>>6<<4) - 32
				out[j] = d * float32(int8(s[0])) * float32(q0)
				out[j+32] = d * float32(int8(s[2])) * float32(q1)
				out[j+64] = d * float32(int8(s[4])) * float32(q2)
				out[j+96] = d * float32(int8(s[6])) * float32(q3)
			}
		}
	}
}
