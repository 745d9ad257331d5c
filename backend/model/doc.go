// Package model computes transformer language models on the CPU.
//
// Three types matter. A [Model] holds the weights of one GGUF file, packed for
// the kernels of package compute. A [KV] holds keys and values in pages of
// [PageSize] tokens; who owns which page is the caller's business. A [Batch]
// names the tokens to compute in one step: each [Row] is a piece of a sequence
// with the block table of that sequence.
//
// # Same bits, always
//
// The logits of a position are a function of the model and of the tokens up to
// that position, and of nothing else: not of the other rows of the batch, not
// of how the prompt was cut into steps, not of the page numbers, the number of
// threads or the vector instructions of the machine's family. This holds bit
// for bit, because every sum has boundaries that depend only on the element
// index or on the absolute position:
//
//   - a matrix product adds its terms in blocks of 32 columns, in ascending
//     order, for each output element alone, whatever the tile it is part of;
//   - activations are quantised per token and block of 32 or 256 columns;
//   - attention computes one partial softmax per span of [compute.Span]
//     positions, each from scratch, merges these [compute.Chain] at a time and then
//     the results of that, in ascending order.
//
// # Families
//
// llama (with its many descendants, mistral, mixtral and smollm among them), smollm3,
// qwen2, qwen3, qwen3moe, gemma2, gemma3 and phi3. See [Families].
package model
