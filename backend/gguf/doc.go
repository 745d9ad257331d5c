// Package gguf reads and writes GGUF files, the container in which llama.cpp and
// its relatives ship models: typed metadata, a table of tensors, and their data.
//
// Three types matter:
//
//   - [File] is one opened model: metadata by typed getters, tensors by name.
//     [Open] maps the file into memory, [Parse] works on bytes already there.
//   - [Tensor] is one named array, its [Type] and its raw bytes.
//   - [Type] is a storage format (F32, Q8_0, Q4_K ...). [Dequantize] turns any of
//     the formats named here into float32, bit for bit as llama.cpp's reference
//     code does; [Quantize] goes the other way for the simple formats.
//
// Invariants:
//
//   - A File that was returned is consistent: every key and tensor name is unique,
//     every tensor lies inside the file, none overlaps another, and every row holds
//     whole blocks. Later code may slice without checking.
//   - No count or length in the file is believed before it is compared with the
//     bytes that are left, so a hostile file cannot make the reader allocate more
//     than a small multiple of its own size.
//   - Metadata and the tensor table are copied out of the file and stay valid after
//     [File.Close]. Tensor data are not: they are read-only views of the mapping.
//
// Errors match [ErrCorrupt] (the bytes are wrong: download the file again) or
// [ErrUnsupported] (the bytes may be right, but this package does not read them).
//
// Versions 2 and 3 of the format are read, little-endian only; version 3 is written.
// The format is described in ggml's docs/gguf.md.
package gguf
