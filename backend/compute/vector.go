package compute

// Norm computes dst = x * w / sqrt(mean(x*x) + eps), the root mean square norm.
// The three have the same length.
func Norm(dst, x, w []float32, eps float32) { norm(dst[:len(x)], x, w[:len(x)], eps) }

// Gate computes dst = act(gate) * up element by element, where act is SiLU, or
// GELU in its tanh form.
func Gate(dst, gate, up []float32, gelu bool) {
	gateUp(dst[:len(gate)], gate, up[:len(gate)], gelu)
}

// Add computes dst += x.
func Add(dst, x []float32) { add(dst[:len(x)], x) }

// Softcap replaces each x by c*tanh(x/c).
func Softcap(x []float32, c float32) {
	for i, v := range x {
		x[i] = c * tanh32(v/c)
	}
}

// tanh32 is tanh to about 1e-7, the same on every machine.
func tanh32(z float32) float32 {
	return 1 - 2/(exp32(2*z)+1)
}
