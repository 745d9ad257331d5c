package model

import (
	"math"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

// TestRopeScaling checks the frequencies at both ends, where the schemes say
// plainly what they are.
func TestRopeScaling(t *testing.T) {
	const base, dim = 50000.0, 16
	freqs := func(meta ...gguf.KV) []float64 {
		s := tinySpecs()["llama"]
		s.meta = meta
		return s.load(t, 1, 1).rope[0].freq
	}
	plain := freqs()
	for i, f := range plain {
		if want := math.Pow(base, -2*float64(i)/dim); math.Abs(f-want) > 1e-12 {
			t.Errorf("plain frequency %d is %v, want %v", i, f, want)
		}
	}
	kv := func(key string, v any) gguf.KV { return gguf.KV{Key: "llama.rope.scaling." + key, Value: v} }
	for i, f := range freqs(kv("type", "linear"), kv("factor", float32(4))) {
		if f != plain[i]/4 {
			t.Errorf("linear frequency %d is %v, want a quarter of %v", i, f, plain[i])
		}
	}
	yarn := freqs(kv("type", "yarn"), kv("factor", float32(4)), kv("original_context_length", uint32(512)))
	if yarn[0] != plain[0] {
		t.Errorf("yarn changes the highest frequency from %v to %v", plain[0], yarn[0])
	}
	if last := len(plain) - 1; yarn[last] != plain[last]/4 {
		t.Errorf("yarn makes the lowest frequency %v, want a quarter of %v", yarn[last], plain[last])
	}
	for i := 1; i < len(yarn); i++ {
		if yarn[i] >= yarn[i-1] {
			t.Errorf("yarn frequencies rise at %d: %v", i, yarn)
		}
	}
}

// With large biases on slow pairs, as Qwen2.5 has, keys in bfloat16 must not cost
// more than keys without: their common part is taken off before they are rounded.
func TestKeysAreCentred(t *testing.T) {
	spec := tinySpecs()["qwen2"]
	spec.keyBias = 60
	f := spec.open(t, 5)
	load := func(o Options) *Model {
		o.Threads = 1
		m, err := Load(f, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(m.Close)
		return m
	}
	tokens := make([]int32, 70)
	for i := range tokens {
		tokens[i] = int32(i * 31 % spec.vocab)
	}
	run := func(m *Model) []float32 {
		s := newSeqs(t, m, 1, 128)
		s.tokens[0] = tokens
		return s.step(t)[0]
	}
	off := func(got []float32, want []float64) float64 {
		d, n := 0.0, 0.0
		for i, x := range want {
			d += (float64(got[i]) - x) * (float64(got[i]) - x)
			n += x * x
		}
		return math.Sqrt(d / n)
	}
	want := reference(f, spec, tokens)[len(tokens)-1]
	if e := off(run(load(Options{Float32Weights: true, Float32Attention: true})), want); e > 1e-4 {
		t.Errorf("with attention in float32: %.2e off the definition, want 1e-4", e)
	}
	centred, plain := load(Options{Float32Weights: true}), load(Options{Float32Weights: true})
	for i := range plain.layers {
		if plain.layers[i].kCentre == nil {
			t.Fatal("no centre in a model with biases")
		}
		plain.layers[i].kCentre = nil
	}
	with, without := off(run(centred), want), off(run(plain), want)
	t.Logf("off the definition by %.2e, without a centre by %.2e", with, without)
	if with > 1e-2 || with > without/3 {
		t.Errorf("off the definition by %.2e, without a centre by %.2e, want less than 1e-2 and a third", with, without)
	}
}
