package compute

// Norm computes dst = x * w / sqrt(mean(x*x) + eps), the root mean square norm.
// The three have the same length.
func Norm(dst, x, w []float32, eps float32) { norm(dst[:len(x)], x, w[:len(x)], eps) }

// Gate computes dst = act(gate) * up element by element, where act is SiLU, or
// GELU in its tanh form, rounded to half floats as ggml's table of it is.
func Gate(dst, gate, up []float32, gelu bool) {
	gateUp(dst[:len(gate)], gate, up[:len(gate)], gelu)
}

// Add computes dst += x.
func Add(dst, x []float32) { add(dst[:len(x)], x) }
