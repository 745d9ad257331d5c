package gguf_test

import (
	"bytes"
	"fmt"

	"github.com/coppice-run/coppice/backend/gguf"
)

func Example() {
	row := []float32{0, 1, 2, 3}
	raw := make([]byte, gguf.F16.RowBytes(len(row)))
	gguf.Quantize(gguf.F16, row, raw)

	var file bytes.Buffer
	gguf.Write(&file,
		[]gguf.KV{{Key: "general.architecture", Value: "llama"}, {Key: "llama.block_count", Value: uint32(1)}},
		[]gguf.Tensor{{Name: "token_embd.weight", Type: gguf.F16, Shape: []int{4, 1}, Data: raw}})

	f, err := gguf.Parse(file.Bytes())
	if err != nil {
		fmt.Println(err)
		return
	}
	layers, _ := f.Uint(f.Architecture() + ".block_count")
	w, _ := f.Tensor("token_embd.weight")
	values := make([]float32, 4)
	err = gguf.Dequantize(w.Type, w.Data, values)
	fmt.Println(f.Architecture(), layers, w.Type, w.Shape, values, err)
	// Output: llama 1 F16 [4 1] [0 1 2 3] <nil>
}
