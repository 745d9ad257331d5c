// Package ggml computes as the portable C code of llama.cpp's library ggml does:
// the same operations on the same types, rounded where it rounds and added up in
// its order. A result is so the same, bit for bit, and where two engines differ
// it is not for the rounding.
//
// What is followed is the CPU backend as it is compiled for x86-64 without more
// than SSE2: there its loops are plain C, with the one exception of the
// exponential function. The sources are ggml-quants.c (how activations are
// quantised), ggml-cpu/quants.c (ggml_vec_dot_*_generic), ggml-cpu/vec.h and
// vec.cpp, and ggml-cpu/ops.cpp of llama.cpp 0.5.0. The builds for newer
// processors round alike but add in another order.
//
// Three types matter. A [Matrix] is a matrix as the file stores it, an [Acts]
// holds activations in the types in which ggml multiplies them, and a [Rope] is
// the rotation of queries and keys.
//
// Sums of integers are exact in any order, so they are computed as is fast.
// Sums of floating-point numbers are not: no product is fused with an addition
// (the explicit conversions to float32 forbid it), and no sum is cut.
package ggml
