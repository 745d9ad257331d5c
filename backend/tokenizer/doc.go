// Package tokenizer turns text into the tokens of a model and back, from the
// vocabulary inside a GGUF file.
//
// Two algorithms are read: byte-level BPE (tokenizer.ggml.model "gpt2") with the
// pre-tokenizers listed in split.go, and SentencePiece with scores and byte fallback
// ("llama"). The ids equal those of llama.cpp 0.5.0; testdata holds its answers.
//
// Three types matter:
//
//   - [Tokenizer] holds the vocabulary. It is immutable but for an internal cache
//     and safe for concurrent use.
//   - [Piece] is a stretch of text with a mark that says whether control tokens may
//     be recognised in it. Chat templates produce pieces; text that a user wrote is
//     never special, so it cannot forge a turn.
//   - [StreamDecoder] turns tokens into text as they come, whole characters only.
//
// Invariants:
//
//   - Text that is not special never yields a control token, whatever it says, nor a
//     user-defined token of the form <|name|>, which is a control token in all but
//     name. (Here llama.cpp differs: it finds such tokens in all text, and the merges of
//     SentencePiece can reach the text of a control token.) Other user-defined tokens,
//     such as runs of spaces or HTML tags, are found in all text.
//   - Where text is cut into pieces does not change the tokens of plain text: pieces
//     are joined first. A control token is recognised only when all of it lies in
//     special text.
//   - No input panics. Bytes that are not UTF-8 keep their value: byte-level BPE and
//     byte fallback encode them as they are.
//   - The time is linear in the length of ordinary text and n log n for one long
//     word; there is no backtracking.
//
// Unlike llama.cpp's detokenizer, Decode neither drops a leading space nor "cleans
// up" spaces before punctuation: it gives exactly the bytes that the tokens stand
// for, so decoding piecewise and decoding at once agree.
package tokenizer
