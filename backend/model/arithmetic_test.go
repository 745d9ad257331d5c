package model

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

// TestArithmeticOptions: what the arithmetic of ggml fixes cannot be chosen beside
// it, and its way to hold keys and values not without it.
func TestArithmeticOptions(t *testing.T) {
	f := tinySpecs()["llama"].open(t, 1)
	for want, o := range map[string]Options{
		`"sse"`:     {Arithmetic: "sse"},
		"float32":   {Arithmetic: GGML, Float32Weights: true},
		"attention": {Arithmetic: GGML, Float32Attention: true},
		"leave out": {Arithmetic: GGML, KV: Int8},
		"f16":       {KV: Float16},
	} {
		m, err := Load(f, o)
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want one with %s", o, err, want)
		}
	}
	for _, o := range []Options{{}, {Arithmetic: Fast}, {Arithmetic: GGML}, {Arithmetic: GGML, KV: Float16}} {
		m, err := Load(f, o)
		if err != nil {
			t.Fatal(err)
		}
		kv, arithmetic := m.KVType(), m.Arithmetic()
		m.Close()
		if plain := o.Arithmetic == GGML; (arithmetic == GGML) != plain || (kv == Float16) != plain {
			t.Errorf("%+v: arithmetic %s, keys and values as %s", o, arithmetic, kv)
		}
	}
}

// TestPlainAgainstReference: the arithmetic of ggml with weights of every type that
// can be written, against float64. With weights in float32 only keys, values,
// queries and weights of positions are rounded, to half floats.
func TestPlainAgainstReference(t *testing.T) {
	specs := tinySpecs()
	scaled := specs["llama"]
	scaled.ropeFreqs = true
	specs["llama3 rope"] = scaled
	for name, spec := range specs {
		if underRace && name != "llama" {
			continue // the threads do the same for all
		}
		for _, v := range []struct {
			spec  tinySpec
			bound float64
		}{{spec, 2e-3}, {spec.quantised(), 3e-2}} {
			f := v.spec.open(t, 7)
			tokens := randTokens(rand.New(rand.NewPCG(3, 3)), 60, spec.vocab)
			m := v.spec.plain().load(t, 7, 2)
			rel := distance(allLogits(t, m, tokens), reference(f, v.spec, tokens))
			t.Logf("%s, %v: relative RMS of all logits %.2g", name, v.spec.types[0], rel)
			if !(rel < v.bound) {
				t.Errorf("%s, %v: logits differ by %.3g relative RMS, want below %g", name, v.spec.types[0], rel, v.bound)
			}
		}
	}
}

// TestPlainMemory: the weights take what they take in the file, a page two bytes a
// value, and the memory of a model is counted.
func TestPlainMemory(t *testing.T) {
	s := tinySpecs()["gemma3"].quantised().plain()
	s.types = []gguf.Type{gguf.Q8_0}
	m := s.load(t, 1, 1)
	kv, err := m.NewKV(2)
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	if want := 2 * 2 * PageSize * s.headDim * s.kvHeads * s.layers; kv.PageBytes() != want {
		t.Errorf("a page takes %d bytes, want %d", kv.PageBytes(), want)
	}
	w := m.Work(10)
	if want := (w.MatrixMACs + w.OutputMACs) / 32 * 34; w.WeightBytes != want {
		t.Errorf("%d bytes of weights, want %d", w.WeightBytes, want)
	}
	if got := m.Bytes(); got < int64(w.WeightBytes) {
		t.Errorf("the model takes %d bytes, its weights alone %d", got, w.WeightBytes)
	}
	if d, err := m.Products(9); err != nil || d <= 0 {
		t.Errorf("%v %v", d, err)
	}
}

// TestPlainPagesAreCopied: a sequence that goes on from copied pages has the logits
// of the one it was copied from.
func TestPlainPagesAreCopied(t *testing.T) {
	s := tinySpecs()["qwen2"].quantised().plain()
	m := s.load(t, 1, 1)
	tokens := randTokens(rand.New(rand.NewPCG(4, 4)), 22, s.vocab)
	want := allLogits(t, m, tokens)[21]
	kv, err := m.NewKV(6)
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	got := [][]float32{make([]float32, s.vocab)}
	for _, b := range []*Batch{
		{Rows: []Row{{Tokens: tokens[:21], Pages: []int32{0, 1}}}},
		{Rows: []Row{{Tokens: tokens[21:], Start: 21, Pages: []int32{0, 4}, Outputs: []int{0}}}},
	} {
		if err := m.Forward(kv, b, got[:b.Outputs()]); err != nil {
			t.Fatal(err)
		}
		kv.CopyPage(4, 1, 5)
	}
	for i, v := range want {
		if math.Float32bits(v) != math.Float32bits(got[0][i]) {
			t.Fatalf("logit %d is %v, want %v", i, got[0][i], v)
		}
	}
}
