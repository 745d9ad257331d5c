package sapling

import _ "embed"

//go:embed sapling.gguf
var gguf []byte

// GGUF returns the model as the bytes of a GGUF file. The caller must not
// change them.
func GGUF() []byte { return gguf }
