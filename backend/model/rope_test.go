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
