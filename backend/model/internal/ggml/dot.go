package ggml

import "github.com/coppice-run/coppice/backend/gguf"

// Dot is ggml_vec_dot_f32, and that of half floats and bfloat16 numbers which were
// expanded: products in float32, their sum in float64.
func Dot(x, y []float32) float32 {
	y = y[:len(x)]
	sum := 0.0
	for i, v := range x {
		sum += float64(float32(v * y[i]))
	}
	return float32(sum)
}

// Dot4 is Dot of y with four vectors of its length that follow each other in x, four
// sums at a time, since each waits for its last addition.
func Dot4(x, y []float32) (out [4]float32) {
	n := len(y)
	a, b, c, d := x[:n], x[n:][:n], x[2*n:][:n], x[3*n:][:n]
	var s, t, u, v float64
	for i, w := range y {
		s += float64(float32(a[i] * w))
		t += float64(float32(b[i] * w))
		u += float64(float32(c[i] * w))
		v += float64(float32(d[i] * w))
	}
	return [4]float32{float32(s), float32(t), float32(u), float32(v)}
}

// dot32 returns the sums of products of 32 columns with two pairs of rows.
func dot32(p, q *[32]int64, a *[32]int8) (x, y int64) {
	for i := 0; i < 32; i += 4 {
		v := int64(a[i])
		x += p[i] * v
		y += q[i] * v
		v = int64(a[i+1])
		x += p[i+1] * v
		y += q[i+1] * v
		v = int64(a[i+2])
		x += p[i+2] * v
		y += q[i+2] * v
		v = int64(a[i+3])
		x += p[i+3] * v
		y += q[i+3] * v
	}
	return x, y
}

// split returns the sums of a pair of rows: see room.
func split(x int64) (low, high int32) {
	low = int32(x)
	return low, int32((x - int64(low)) >> 32)
}

// dotBlocks multiplies the unpacked rows with token i: ggml_vec_dot_q4_0_q8_0 and
// its kin.
func (r *room) dotBlocks(out []float32, t gguf.Type, a *Acts, i int) {
	nb := a.cols / blockCols
	q, d, s := a.q[i*a.cols:][:a.cols], a.d[i*nb:][:nb], a.s[i*nb:][:nb]
	var sum [group]float32
	for b := range nb {
		x, y := dot32((*[32]int64)(r.q[0][b*32:]), (*[32]int64)(r.q[1][b*32:]), (*[32]int8)(q[b*32:]))
		var n [group]int32
		n[0], n[1] = split(x)
		n[2], n[3] = split(y)
		for j := range group {
			v, dx := float32(n[j]), r.d[j][b]
			switch t {
			case gguf.Q4_0:
				sum[j] += float32(float32(v*dx) * d[b])
			case gguf.Q4_1, gguf.Q5_1:
				sum[j] += float32(float32(dx*d[b])*v) + float32(r.m[j][b]*s[b])
			default: // Q5_0, Q8_0
				sum[j] += float32(float32(dx*d[b]) * v)
			}
		}
	}
	copy(out, sum[:])
}

// dotSupers is dotBlocks for the types with blocks of 256: ggml_vec_dot_q4_K_q8_K
// and its kin. Each lane has a sum of its own, which are added at the end.
func (r *room) dotSupers(out []float32, a *Acts, i int) {
	nb := a.cols / superCols
	q, d, sums := a.kq[i*a.cols:][:a.cols], a.kd[i*nb:][:nb], a.ksums[i*nb*8:][:nb*8]
	var sum [group]float32
	var lane [group][lanes]float32
	for b := range nb {
		var dx [group]float32
		for j := range group {
			dx[j] = r.d[j][b] * d[b]
		}
		for l := range lanes {
			at := b*superCols + l*32
			x, y := dot32((*[32]int64)(r.q[0][at:]), (*[32]int64)(r.q[1][at:]), (*[32]int8)(q[at:]))
			n0, n1 := split(x)
			n2, n3 := split(y)
			lane[0][l] += float32(dx[0] * float32(n0))
			lane[1][l] += float32(dx[1] * float32(n1))
			lane[2][l] += float32(dx[2] * float32(n2))
			lane[3][l] += float32(dx[3] * float32(n3))
		}
		for j := range group {
			n := int32(0)
			for k, v := range r.mins[j][b*8:][:8] {
				n += v * sums[b*8+k]
			}
			sum[j] -= float32(float32(r.m[j][b]*d[b]) * float32(n))
		}
	}
	for j := range group {
		for _, v := range lane[j] {
			sum[j] += v
		}
	}
	copy(out, sum[:])
}
