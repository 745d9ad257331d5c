package engine

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/model"
)

// tinyModel is a random transformer over the fake vocabulary: the real forward
// pass, small enough for thousands of schedules.
func tinyModel(tb testing.TB, threads int) Model {
	return tinyModelOf(tb, 2, 2048, model.Options{Threads: threads})
}

// tinyModelOf is tinyModel of so many layers and with a context of its own.
func tinyModelOf(tb testing.TB, layers, context int, opts model.Options) Model {
	tb.Helper()
	const dim, heads, kvHeads, headDim, ffn = 32, 2, 1, 16, 32
	r := rand.New(rand.NewPCG(11, 12))
	u := func(key string, v int) gguf.KV { return gguf.KV{Key: "llama." + key, Value: uint32(v)} }
	meta := []gguf.KV{
		{Key: "general.architecture", Value: "llama"},
		u("block_count", layers), u("embedding_length", dim), u("feed_forward_length", ffn),
		u("attention.head_count", heads), u("attention.head_count_kv", kvHeads),
		u("attention.key_length", headDim), u("attention.value_length", headDim), u("context_length", context),
	}
	var tensors []gguf.Tensor
	put := func(name string, mean, dev float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(mean + dev*r.NormFloat64())
		}
		data := make([]byte, gguf.F32.RowBytes(n))
		if err := gguf.Quantize(gguf.F32, v, data); err != nil {
			tb.Fatal(err)
		}
		tensors = append(tensors, gguf.Tensor{Name: name, Type: gguf.F32, Shape: shape, Data: data})
	}
	matrix := func(name string, cols, rows int) { put(name, 0, 1.5/math.Sqrt(float64(cols)), cols, rows) }
	put("token_embd.weight", 0, 1, dim, fakeVocab)
	matrix("output.weight", dim, fakeVocab)
	put("output_norm.weight", 1, 0.1, dim)
	for l := range layers {
		name := func(n string) string { return fmt.Sprintf("blk.%d.%s.weight", l, n) }
		put(name("attn_norm"), 1, 0.1, dim)
		put(name("ffn_norm"), 1, 0.1, dim)
		matrix(name("attn_q"), dim, heads*headDim)
		matrix(name("attn_k"), dim, kvHeads*headDim)
		matrix(name("attn_v"), dim, kvHeads*headDim)
		matrix(name("attn_output"), heads*headDim, dim)
		matrix(name("ffn_gate"), dim, ffn)
		matrix(name("ffn_up"), dim, ffn)
		matrix(name("ffn_down"), ffn, dim)
	}
	var buf bytes.Buffer
	if err := gguf.Write(&buf, meta, tensors); err != nil {
		tb.Fatal(err)
	}
	f, err := gguf.Parse(buf.Bytes())
	if err != nil {
		tb.Fatal(err)
	}
	m, err := model.Load(f, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(m.Close)
	shared, err := FromModel(m)
	if err != nil {
		tb.Fatal(err)
	}
	return keptOpen{shared}
}

// keptOpen is a model that several engines use.
type keptOpen struct{ Model }

func (keptOpen) Close() {}
