package open

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

// tiny returns a model file of one small layer over single bytes. What it says
// makes no sense; that it says something is all these tests need.
func tiny(t testing.TB) []byte {
	const dim, ffn, heads = 32, 64, 2
	tokens := []string{"<unk>", "<s>", "</s>"}
	kinds := []int32{2, 3, 3}
	for b := range 256 {
		tokens = append(tokens, fmt.Sprintf("<0x%02X>", b))
		kinds = append(kinds, 6)
	}
	meta := []gguf.KV{
		{Key: "general.architecture", Value: "llama"},
		{Key: "general.name", Value: "tiny"},
		{Key: "llama.block_count", Value: uint32(1)},
		{Key: "llama.context_length", Value: uint32(256)},
		{Key: "llama.embedding_length", Value: uint32(dim)},
		{Key: "llama.feed_forward_length", Value: uint32(ffn)},
		{Key: "llama.attention.head_count", Value: uint32(heads)},
		{Key: "tokenizer.ggml.model", Value: "llama"},
		{Key: "tokenizer.ggml.tokens", Value: tokens},
		{Key: "tokenizer.ggml.token_type", Value: kinds},
		{Key: "tokenizer.ggml.scores", Value: make([]float32, len(tokens))},
		{Key: "tokenizer.ggml.bos_token_id", Value: uint32(1)},
		{Key: "tokenizer.ggml.eos_token_id", Value: uint32(2)},
	}
	seed := uint32(1)
	tensor := func(name string, shape ...int) gguf.Tensor {
		n := 1
		for _, d := range shape {
			n *= d
		}
		var data []byte
		for range n {
			v := float32(1)
			if len(shape) > 1 {
				seed = seed*1664525 + 1013904223
				v = float32(int32(seed)) / (1 << 33)
			}
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		}
		return gguf.Tensor{Name: name, Type: gguf.F32, Shape: shape, Data: data}
	}
	var file bytes.Buffer
	err := gguf.Write(&file, meta, []gguf.Tensor{
		tensor("token_embd.weight", dim, len(tokens)),
		tensor("output_norm.weight", dim),
		tensor("blk.0.attn_norm.weight", dim),
		tensor("blk.0.ffn_norm.weight", dim),
		tensor("blk.0.attn_q.weight", dim, dim),
		tensor("blk.0.attn_k.weight", dim, dim),
		tensor("blk.0.attn_v.weight", dim, dim),
		tensor("blk.0.attn_output.weight", dim, dim),
		tensor("blk.0.ffn_gate.weight", dim, ffn),
		tensor("blk.0.ffn_up.weight", dim, ffn),
		tensor("blk.0.ffn_down.weight", ffn, dim),
	})
	if err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}
