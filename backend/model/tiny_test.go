package model

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

// A tinySpec describes a small random model.
type tinySpec struct {
	arch                                 string
	layers, dim, heads, kvHeads, headDim int
	ffn, vocab, context, window          int
	experts                              int         // of which a token goes through two; 0 for no mixture
	types                                []gguf.Type // of the matrices, in turn
	tied, ropeFreqs                      bool
	keyBias                              float64 // added to the biases of the slower half of the pairs
	meta                                 []gguf.KV
	kv                                   KVType // to load it with
	arithmetic                           Arithmetic
}

// tinySpecs has one model of each family, with odd shapes and mixed types.
func tinySpecs() map[string]tinySpec {
	f := []gguf.Type{gguf.F32}
	return map[string]tinySpec{
		"llama":  {arch: "llama", layers: 2, dim: 64, heads: 4, kvHeads: 2, headDim: 16, ffn: 96, vocab: 99, context: 2048, types: f},
		"qwen2":  {arch: "qwen2", layers: 2, dim: 96, heads: 6, kvHeads: 2, headDim: 16, ffn: 160, vocab: 130, context: 2048, types: f, tied: true},
		"qwen3":  {arch: "qwen3", layers: 2, dim: 64, heads: 4, kvHeads: 4, headDim: 32, ffn: 64, vocab: 77, context: 2048, types: f},
		"gemma3": {arch: "gemma3", layers: 7, dim: 64, heads: 4, kvHeads: 1, headDim: 32, ffn: 128, vocab: 120, context: 2048, window: 40, types: f, tied: true},
	}
}

// quantised returns the spec with matrices in the writable quantised types.
func (s tinySpec) quantised() tinySpec {
	s.types = []gguf.Type{gguf.Q8_0, gguf.Q4_1, gguf.F16, gguf.Q4_0, gguf.BF16, gguf.Q8_0}
	return s
}

// int8 returns the spec with keys and values in 8 bits.
func (s tinySpec) int8() tinySpec {
	s.kv = Int8
	return s
}

// plain returns the spec in the arithmetic of ggml.
func (s tinySpec) plain() tinySpec {
	s.arithmetic = GGML
	return s
}

// file builds the GGUF bytes of the model.
func (s tinySpec) file(t testing.TB, seed uint64) []byte {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	u := func(key string, v int) gguf.KV { return gguf.KV{Key: s.arch + "." + key, Value: uint32(v)} }
	meta := []gguf.KV{
		{Key: "general.architecture", Value: s.arch},
		{Key: "general.name", Value: "tiny"},
		u("block_count", s.layers), u("embedding_length", s.dim), u("feed_forward_length", s.ffn),
		u("attention.head_count", s.heads), u("attention.head_count_kv", s.kvHeads),
		u("attention.key_length", s.headDim), u("attention.value_length", s.headDim),
		u("context_length", s.context),
		{Key: s.arch + ".attention.layer_norm_rms_epsilon", Value: float32(1e-5)},
		{Key: s.arch + ".rope.freq_base", Value: float32(50000)},
	}
	if s.window > 0 {
		meta = append(meta, u("attention.sliding_window", s.window))
	}
	if s.experts > 0 {
		meta = append(meta, u("expert_count", s.experts), u("expert_used_count", 2))
	}
	meta = append(meta, s.meta...)
	var tensors []gguf.Tensor
	put := func(name string, typ gguf.Type, mean, dev float64, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		v := make([]float32, n)
		for i := range v {
			v[i] = float32(mean + dev*r.NormFloat64())
		}
		data := make([]byte, typ.RowBytes(n))
		if err := gguf.Quantize(typ, v, data); err != nil {
			t.Fatal(err)
		}
		tensors = append(tensors, gguf.Tensor{Name: name, Type: typ, Shape: shape, Data: data})
	}
	next := 0
	matrix := func(name string, cols int, rows ...int) {
		put(name, s.types[next%len(s.types)], 0, 1.2/math.Sqrt(float64(cols)), append([]int{cols}, rows...)...)
		next++
	}
	vector := func(name string, n int, mean float64) { put(name, gguf.F32, mean, 0.1, n) }
	matrix("token_embd.weight", s.dim, s.vocab)
	if !s.tied {
		matrix("output.weight", s.dim, s.vocab)
	}
	vector("output_norm.weight", s.dim, 1)
	if s.ropeFreqs {
		put("rope_freqs.weight", gguf.F32, 4, 0.5, s.headDim/2)
	}
	fam := families[s.arch]
	qd, kd := s.heads*s.headDim, s.kvHeads*s.headDim
	for l := range s.layers {
		name := func(n string) string { return fmt.Sprintf("blk.%d.%s", l, n) }
		vector(name("attn_norm.weight"), s.dim, 1)
		vector(name("ffn_norm.weight"), s.dim, 1)
		matrix(name("attn_q.weight"), s.dim, qd)
		matrix(name("attn_k.weight"), s.dim, kd)
		matrix(name("attn_v.weight"), s.dim, kd)
		matrix(name("attn_output.weight"), qd, s.dim)
		if s.experts > 0 {
			matrix(name("ffn_gate_inp.weight"), s.dim, s.experts)
			matrix(name("ffn_gate_exps.weight"), s.dim, s.ffn, s.experts)
			matrix(name("ffn_up_exps.weight"), s.dim, s.ffn, s.experts)
			matrix(name("ffn_down_exps.weight"), s.ffn, s.dim, s.experts)
		} else {
			matrix(name("ffn_gate.weight"), s.dim, s.ffn)
			matrix(name("ffn_up.weight"), s.dim, s.ffn)
			matrix(name("ffn_down.weight"), s.ffn, s.dim)
		}
		if fam.bias {
			vector(name("attn_q.bias"), qd, 0)
			vector(name("attn_k.bias"), kd, 0.3)
			if s.keyBias != 0 {
				b := tensors[len(tensors)-1].Data
				for i := range kd {
					if i%(s.headDim/2) >= s.headDim*3/8 {
						binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(float32(s.keyBias)))
					}
				}
			}
			vector(name("attn_v.bias"), kd, 0)
		}
		if fam.qkNorm {
			vector(name("attn_q_norm.weight"), s.headDim, 1)
			vector(name("attn_k_norm.weight"), s.headDim, 1)
		}
		if fam.postNorm {
			vector(name("post_attention_norm.weight"), s.dim, 1)
			vector(name("post_ffw_norm.weight"), s.dim, 1)
		}
	}
	var buf bytes.Buffer
	if err := gguf.Write(&buf, meta, tensors); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func (s tinySpec) open(t testing.TB, seed uint64) *gguf.File {
	t.Helper()
	f, err := gguf.Parse(s.file(t, seed))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (s tinySpec) load(t testing.TB, seed uint64, threads int) *Model {
	t.Helper()
	m, err := Load(s.open(t, seed), Options{Threads: threads, KV: s.kv, Arithmetic: s.arithmetic})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

// floats returns a tensor of the file as float64 values, nil when missing.
func floats(f *gguf.File, name string) []float64 {
	t, ok := f.Tensor(name)
	if !ok {
		return nil
	}
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	v := make([]float32, n)
	if t.Type == gguf.F32 {
		for i := range v {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
		}
	} else if err := gguf.Dequantize(t.Type, t.Data, v); err != nil {
		panic(err)
	}
	out := make([]float64, n)
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}
