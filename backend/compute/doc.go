// Package compute has the arithmetic of a transformer on a CPU: packed weight
// matrices, quantised activations, attention over pages, and the threads that
// share the work.
//
// Three types matter. A [Matrix] is a weight matrix, packed for the kernels. An
// [Acts] holds the activations of some tokens, quantised for a product with a
// Matrix. A [Pool] is a set of threads that meet at cheap barriers.
//
// # Same bits on every path
//
// Each kernel exists as plain Go and as generated assembly, on amd64 for AVX2
// and AVX-512 and on arm64 for NEON (see the gen folder). All of them do the same operations, in an
// order that depends on the index of the element alone: fused multiply-adds
// along a sum, separately rounded operations elsewhere. So the result of an
// output element does not depend on the tile it is computed in, on the thread,
// or on the instruction set: tests compare the kernels for equality, not for
// closeness. The plain Go kernels pay for it, since they emulate the fused
// operation in float64.
//
// # Layouts
//
// Weights are cut into panels of [PanelRows] rows. Within a panel, columns go
// in blocks of [BlockCols]; the 8-bit layout of a block is
// [8 groups][16 rows][4 columns] bytes, so that one 64-byte vector feeds
// VPDPBUSD with four columns of sixteen rows. The 4-bit layout is
// [4 groups][16 rows][4 columns] with group g in the low and group g+4 in the
// high half of a byte. Scales lie apart, [blocks][16 rows] half floats.
//
// Activations are cut into tiles of [TileTokens] tokens; a tile of t tokens is
// [blocks][8 groups][t][4] int8, so that the kernel takes four columns of one
// token as a broadcast operand. Which columns share a scale, and how it is
// rounded, depends on the weights as in llama.cpp: see [Form].
package compute
