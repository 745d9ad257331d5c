package sapling_test

import (
	"fmt"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/sapling"
)

// The model is a GGUF file like any other, in memory.
func Example() {
	f, err := gguf.Parse(sapling.GGUF())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer f.Close()
	context, _ := f.Uint("llama.context_length")
	fmt.Println(f.Architecture(), context >= 8192)
	// Output: llama true
}
